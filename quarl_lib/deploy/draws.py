"""Stochastic actions of a deployed policy: which distribution the training drew from, and a draw of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from quarl_lib.inference.engines import Engine, make_engine
from quarl_lib.inference.rehead import with_head
from quarl_lib.inference.spec import Head, PolicySpec

Distribution = Literal["", "categorical", "gaussian"]


@dataclass(frozen=True)
class Draws:
    """How `deterministic=False` draws: from logits, around a mean with one deviation for all states, or not at all.

    `reason` says why not. `log_std` [action_dim] belongs to a gaussian.
    """

    distribution: Distribution
    log_std: tuple[float, ...] = ()
    reason: str = "the policy is deterministic"

    def __post_init__(self) -> None:
        if self.distribution not in ("", "categorical", "gaussian"):
            raise ValueError(f"distribution={self.distribution!r}: choose categorical or gaussian, or '' for none")
        if not np.isfinite(self.log_std).all():
            raise ValueError(f"log_std={self.log_std}: it must be finite")

    def engine(self, spec: PolicySpec, buffer: np.ndarray, precision: str, backend: str) -> Engine:
        """Return an engine over the same weights that gives the last layer's outputs instead of actions."""
        if not self.distribution:
            raise ValueError(f"deterministic=False: {self.reason}")
        outputs_spec, outputs_buffer = with_head(spec, Head(), buffer)
        engine = make_engine(outputs_spec, precision, backend)
        engine.load(outputs_buffer, copy=True)
        return engine

    def actions(self, outputs: np.ndarray, spec: PolicySpec, rng: np.random.Generator) -> np.ndarray:
        """Draw actions for outputs [n, action_dim]: int64 [n], or float32 [n, action_dim] within the bounds."""
        if self.distribution == "categorical":
            logits = outputs.astype(np.float64)
            weights = np.exp(logits - logits.max(axis=1, keepdims=True)).cumsum(axis=1)
            rest = rng.random((len(outputs), 1)) * weights[:, -1:]
            return np.minimum((weights <= rest).sum(axis=1), outputs.shape[1] - 1)
        deviation = np.exp(np.asarray(self.log_std, np.float64))
        drawn = outputs + deviation * rng.standard_normal(outputs.shape)
        low, high = (np.asarray(bound, np.float32) for bound in (spec.head.low, spec.head.high))
        return np.clip(drawn.astype(np.float32), low, high)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"distribution": self.distribution, "log_std": list(self.log_std), "reason": self.reason}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Draws:
        """Read `to_json`'s values."""
        return cls(plain["distribution"], tuple(map(float, plain["log_std"])), str(plain["reason"]))
