"""One interface for every way to run a policy, and the choice of the fastest that this machine has."""

from __future__ import annotations

import warnings
from importlib import import_module
from types import ModuleType

from quarl_lib.inference.interface import Engine
from quarl_lib.inference.pack import check_precision
from quarl_lib.inference.spec import PolicySpec

# Fastest first. A backend is a module with two functions:
#   unsupported(spec, precision) -> str | None    None if it can, else the reason in words
#   create(spec, precision, seed) -> Engine
BACKENDS = {
    "native": "quarl_lib.inference.backends.native",
    "onnxruntime": "quarl_lib.inference.backends.onnx",
    "torch": "quarl_lib.inference.backends.torch",
    "numpy": "quarl_lib.inference.backends.reference",
}


def make_engine(spec: PolicySpec, precision: str, backend: str = "auto", seed: int = 0) -> Engine:
    """Return an engine without weights; `seed` feeds the draws of categorical and gaussian heads.

    With `auto` the first backend that can run the spec is taken, and `engine.reason` says why. Raise ValueError for
    an unknown precision or backend, and if the backend cannot run this spec.
    """
    check_precision(precision)
    if backend == "auto":
        return _first_able(spec, precision, seed)
    if backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}: choose auto, {', '.join(BACKENDS)}")
    reason = unsupported(spec, precision, backend)
    if reason:
        raise ValueError(f"backend {backend!r} cannot run this policy at {precision}: {reason}; backend='auto' picks")
    return _create(spec, precision, backend, seed, "asked for by name")


def unsupported(spec: PolicySpec, precision: str, backend: str) -> str | None:
    """Return why `backend` cannot run `spec` at `precision` on this machine, None if it can."""
    module, reason = _module(backend)
    return reason if module is None else module.unsupported(spec, precision)


def _first_able(spec: PolicySpec, precision: str, seed: int) -> Engine:
    passed_over: list[str] = []
    for backend in BACKENDS:
        reason = unsupported(spec, precision, backend)
        if reason is None:
            why = "; ".join(passed_over) or "the fastest for this policy"
            return _create(spec, precision, backend, seed, why)
        passed_over.append(f"{backend}: {reason}")
        if backend == "native" and not spec.conv:
            _warn_once(f"Native kernels unavailable, actions will take longer: {reason}")
    raise ValueError(f"no backend runs this policy at {precision} ({'; '.join(passed_over)})")


def _create(spec: PolicySpec, precision: str, backend: str, seed: int, reason: str) -> Engine:
    engine = import_module(BACKENDS[backend]).create(spec, precision, seed)
    engine.reason = reason
    return engine


def _module(backend: str) -> tuple[ModuleType | None, str]:
    try:
        return import_module(BACKENDS[backend]), ""
    except ImportError as error:
        return None, f"not installed ({error})"


_warned: set[str] = set()


def _warn_once(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, RuntimeWarning, stacklevel=4)
