"""One interface for every way to run a policy, and the choice of the fastest that this machine has."""

from __future__ import annotations

import warnings
from importlib import import_module
from types import ModuleType
from typing import Protocol

import numpy as np

from quarl_lib.inference.pack import check_precision
from quarl_lib.inference.spec import PolicySpec

# Fastest first. A backend is a module with two functions:
#   unsupported(spec, precision) -> str | None    None if it can, else the reason in words
#   create(spec, precision, seed) -> Engine
BACKENDS = {
    "native": "quarl_lib.inference.native",
    "onnxruntime": "quarl_lib.inference.onnx_backend",
    "torch": "quarl_lib.inference.torch_backend",
    "numpy": "quarl_lib.inference.reference",
}


class Engine(Protocol):
    """A policy ready to act: `load` a packed buffer, then call it with an observation.

    A call takes one observation (float32, `spec.observation_shape`; uint8 for images) and returns its action: a
    float32 array [action_dim], or an int where the head is discrete. With a leading batch axis it returns float32
    [n, action_dim] or int64 [n]. The action array is the caller's to keep. Other float dtypes and non-contiguous
    arrays are converted; a wrong shape, a NaN or an infinity raises ValueError that names the place.
    """

    spec: PolicySpec
    precision: str
    backend: str
    reason: str

    @property
    def weights_version(self) -> int:
        """Return the version that the loaded buffer carries, -1 before the first load."""
        ...

    def load(self, buffer: object, *, copy: bool = False, verify: bool | None = None) -> None:
        """Use the weights of `buffer` (made by `pack` for this spec and precision) from the next call on.

        Without `copy` a native engine reads them where they lie and keeps the buffer alive; the writer must not
        change it meanwhile. `verify` holds the payload to its checksum, which costs one read of all weights: done by
        default when copying. In place only the header's own checksum is held, so that a load costs microseconds: it is
        the writer's protocol (a version before and after) that must tell a half-written payload.
        Raise ValueError, and keep the old weights, if the buffer is truncated, foreign, corrupted, or of another
        layout version.
        """
        ...

    def __call__(self, observation: np.ndarray) -> np.ndarray | int:
        """Return the action for one observation, or the actions for a batch."""
        ...


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
