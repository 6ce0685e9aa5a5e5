"""One interface for every way to run a policy, and the choice of the fastest that this machine has."""

from __future__ import annotations

import warnings
from functools import partial
from importlib import import_module
from types import ModuleType

from quarl_lib.inference import measured
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
# What the native engine is timed against: the fastest library so far, at the precisions that it has kernels for.
PEER, PEER_PRECISIONS = "onnxruntime", ("fp32", "int8", "int4g128")


def make_engine(spec: PolicySpec, precision: str, backend: str = "auto", seed: int = 0, batch: int = 1) -> Engine:
    """Return an engine without weights; `seed` feeds the draws of categorical and gaussian heads.

    With `auto` it is the one that was measured to be fastest on this machine for a policy of about this size and
    `batch` observations a call, else the first that can run the spec; `engine.reason` says why. Raise ValueError for
    an unknown precision or backend, a batch below 1, and if the backend cannot run this spec.
    """
    check_precision(precision)
    if batch < 1:
        raise ValueError(f"batch is {batch}: give the observations of a call, 1 or more")
    if backend == "auto":
        return _fastest(spec, precision, seed, batch)
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


def _fastest(spec: PolicySpec, precision: str, seed: int, batch: int) -> Engine:
    comparable = not spec.conv and precision in PEER_PRECISIONS and unsupported(spec, precision, "native") is None
    if not comparable or not measured.installed(PEER):
        return _first_able(spec, precision, seed)
    makers = {name: partial(_create, precision=precision, backend=name, seed=0, reason="") for name in ("native", PEER)}
    try:
        found = measured.microseconds(spec, precision, batch, makers)
    except Exception as error:  # whatever the peer raises: the native engine runs without it
        return _create(spec, precision, "native", seed, f"{PEER} does not run here ({error})")
    faster = found["native"] > measured.MARGIN * found[PEER]
    times = ", ".join(f"{name} {found[name]:.3g}" for name in ("native", PEER))
    why = f"measured here at about this size, microseconds an action in batches of {batch}: {times}"
    return _create(spec, precision, PEER if faster else "native", seed, why)


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
