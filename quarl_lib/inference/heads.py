"""From the last layer's outputs to actions, in numpy; the native engine draws the same numbers."""

from __future__ import annotations

import math

import numpy as np

from quarl_lib.inference.arithmetic import tanh
from quarl_lib.inference.spec import PolicySpec

_MASK = 2**64 - 1


class ActionHead:
    """Turn outputs [n, action_dim] into actions [n, action_dim] or indices [n]; `seed` fixes the draws."""

    def __init__(self, spec: PolicySpec, seed: int = 0) -> None:
        self.kind = spec.head.kind
        self.discrete = spec.head.discrete
        self.low, self.high = np.array(spec.head.low, np.float32), np.array(spec.head.high, np.float32)
        self.middle, self.half_width = middle_and_half_width(spec)
        self._state = seed & _MASK

    def __call__(self, outputs: np.ndarray, log_std: np.ndarray | None = None) -> np.ndarray:
        """Return the actions; a gaussian head needs `log_std` [action_dim]."""
        if self.kind == "tanh":
            return self.middle + self.half_width * tanh(outputs)
        if self.kind == "clip":
            return np.clip(outputs, self.low, self.high)
        if self.kind == "argmax":
            return outputs.argmax(axis=1)
        if self.kind == "categorical":
            return np.array([self._categorical(row) for row in outputs], np.int64)
        if self.kind == "gaussian":
            if log_std is None:
                raise ValueError("log_std is None: a gaussian head needs it")
            return np.stack([self._gaussian(row, log_std) for row in outputs])
        return outputs

    def _categorical(self, logits: np.ndarray) -> int:
        highest = float(logits.max())
        weights = [math.exp(float(v) - highest) for v in logits]
        total = 0.0
        for w in weights:
            total += w
        rest = self._uniform() * total
        for i, w in enumerate(weights):
            rest -= w
            if rest < 0:
                return i
        return len(weights) - 1

    def _gaussian(self, mean: np.ndarray, log_std: np.ndarray) -> np.ndarray:
        draws = [math.exp(float(s)) * self._normal() for s in log_std]
        action = np.array([float(m) + d for m, d in zip(mean, draws, strict=True)], np.float32)
        return np.clip(action, self.low, self.high) if self.low.size else action

    def _normal(self) -> float:
        """Draw by Box and Muller, one of the pair."""
        radius = math.sqrt(-2.0 * math.log(1.0 - self._uniform()))
        return radius * math.cos(2.0 * math.pi * self._uniform())

    def _uniform(self) -> float:
        """Draw from [0, 1) with splitmix64 (Steele, Lea and Flood 2014)."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((z ^ (z >> 31)) >> 11) * 2.0**-53


def middle_and_half_width(spec: PolicySpec) -> tuple[np.ndarray, np.ndarray]:
    """Return the middle and half the width of the action's bounds, float32 [action_dim] or empty."""
    low, high = np.array(spec.head.low), np.array(spec.head.high)
    return ((low + high) / 2).astype(np.float32), ((high - low) / 2).astype(np.float32)
