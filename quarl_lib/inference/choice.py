"""Say which engine each precision gets on this machine, and why."""

from __future__ import annotations

import warnings

from quarl_lib.inference.engines import BACKENDS, make_engine, unsupported
from quarl_lib.inference.spec import PRECISIONS, Conv, Head, Layer, PolicySpec

MLP = PolicySpec((Layer(24, 64, "relu"), Layer(64, 6)), Head("tanh", 6 * (-1.0,), 6 * (1.0,)))
CNN = PolicySpec((Layer(16 * 9 * 9, 6),), Head("argmax"), conv=(Conv(1, 16, 4, 2),), image_shape=(1, 20, 20))
KINDS = {"linear layers": MLP, "convolutions": CNN}


def choices() -> list[dict[str, str]]:
    """Return per kind of policy and precision what `make_engine(..., backend="auto")` takes: backend and reason."""
    rows = []
    for kind, spec in KINDS.items():
        for precision in PRECISIONS:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", RuntimeWarning)
                    engine = make_engine(spec, precision)
                backend, reason = engine.backend, engine.reason
            except ValueError as error:
                backend, reason = "none", str(error)
            rows.append({"policy": kind, "precision": precision, "backend": backend, "reason": reason})
    return rows


def missing() -> dict[str, str]:
    """Return the backends that run nothing on this machine, each with its reason."""
    reasons = {backend: [unsupported(spec, "fp32", backend) for spec in KINDS.values()] for backend in BACKENDS}
    return {backend: given[0] for backend, given in reasons.items() if all(given) and given[0]}
