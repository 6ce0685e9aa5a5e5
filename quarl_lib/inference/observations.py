"""Check an observation on its way into an engine."""

from __future__ import annotations

import math

import numpy as np

from quarl_lib.inference.spec import PolicySpec


class ObservationCheck:
    """Turn one observation or a batch into a contiguous batch of the policy's dtype, or refuse it.

    `check(observation)` returns the batch, [n, *observation_shape], and whether it was a single observation.
    """

    def __init__(self, spec: PolicySpec) -> None:
        self._shape = spec.observation_shape
        self._dtype = np.dtype(np.uint8 if spec.conv else np.float32)
        self._normalized = spec.normalize_observation

    def __call__(self, observation: np.ndarray) -> tuple[np.ndarray, bool]:
        """Raise ValueError for a wrong shape or dtype, NaN or infinity, saying where."""
        if type(observation) is not np.ndarray or observation.dtype != self._dtype:
            observation = self._converted(observation)
        single = observation.shape == self._shape
        if not single and (observation.shape[1:] != self._shape or not len(observation)):
            raise ValueError(
                f"observation has shape {observation.shape}: the policy takes {self._shape}, or a batch of such"
            )
        batch = observation[None] if single else observation
        if not batch.flags.c_contiguous:
            batch = np.ascontiguousarray(batch)
        if self._dtype != np.uint8:
            flat = batch.reshape(-1)
            # The sum of squares is finite wherever all values are, overflow aside: a fifth of isfinite().all()'s time.
            if not math.isfinite(flat.dot(flat)):
                check_finite(observation, "observation")
        return batch, single

    def _converted(self, observation: object) -> np.ndarray:
        array = np.asarray(observation)
        if self._dtype == np.uint8 or array.dtype.kind not in "fiub":
            raise ValueError(f"observation is {array.dtype}: this policy takes {self._dtype}")
        return _floats(array, self._normalized)


def _floats(array: np.ndarray, normalized: bool) -> np.ndarray:
    """Return real numbers as float32, or in full where a mean is subtracted first: what differs may lie far from 0."""
    with np.errstate(over="ignore"):
        return array.astype(np.float64 if normalized and array.dtype != np.float32 else np.float32, copy=False)


def check_observation(spec: PolicySpec, observation: object) -> np.ndarray:
    """Return the observation as contiguous floats [obs] or [n, obs]; raise ValueError where it does not fit.

    They are float32; or, where the policy normalises, float64 unless they were float32.
    """
    x = np.asarray(observation)
    if x.dtype.kind not in "fiub":
        raise ValueError(f"observation has dtype {x.dtype}: give float32 (other real numbers are converted)")
    if x.ndim not in (1, 2) or x.shape[-1:] != spec.observation_shape or x.shape[0] == 0:
        n = spec.observation_shape[0]
        raise ValueError(f"observation has shape {x.shape}: give ({n},) or (n, {n})")
    x = np.ascontiguousarray(_floats(x, spec.normalize_observation))
    check_finite(x, "observation")
    return x


def check_finite(x: np.ndarray, where: str) -> None:
    """Raise ValueError that says where an array is NaN or infinite."""
    bad = np.argwhere(~np.isfinite(x))
    if len(bad):
        index = tuple(int(i) for i in bad[0])
        raise ValueError(f"{where}[{', '.join(map(str, index))}] is {x[index]}: it must be finite")
