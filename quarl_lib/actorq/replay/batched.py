"""N-step transitions of several environments that step together: `transitions.NStep` with a row for each."""

from __future__ import annotations

import numpy as np

from quarl_lib.actorq.replay.transitions import TransitionLayout
from quarl_lib.envs.specs import EnvironmentSpec
from quarl_lib.envs.vectorized import FIRST, LAST, TimeSteps


class BatchedNStep:
    """Accumulates the n-step returns of `count` copies; returns transitions as vectors [m, size].

    Each copy's are those of `NStep`, in its order, with the same bits. Window slots are shared: what a copy did at
    step t stands in slot t mod n_step, its oldest `held` steps back.
    """

    def __init__(self, spec: EnvironmentSpec, count: int, n_step: int, discount: float) -> None:
        layout = TransitionLayout(spec)
        self._count, self._n_step, self._discount = count, n_step, discount
        self._size, self._seen = layout.size, layout.observation_size
        self._acted = self._seen + layout.action_size
        self._slot, self._held = 0, [0] * count
        self._done = np.zeros((n_step, count, self._acted), np.float32)  # o_tm1 and a_tm1 of every step held
        self._gained = np.zeros((n_step, count, 2))  # and its r_t and d_t so far
        self._last: np.ndarray | None = None

    def first(self, timesteps: TimeSteps) -> None:
        """Start an episode in every copy."""
        self._held = [0] * self._count
        self._last = timesteps.observation

    def step(self, actions: np.ndarray, timesteps: TimeSteps) -> np.ndarray:
        """Take one step in; return every transition that ends with it, float32 [m, size].

        A copy whose timestep begins an episode took no step: its action is ignored.

        Raises:
            RuntimeError: no episode was started.
        """
        if self._last is None:
            raise RuntimeError("step before first: start the episodes with first(timesteps)")
        types, rewards, discounts, observations = timesteps
        slot, done, gained = self._slot, self._done, self._gained
        weights = gained[..., 1] * self._discount
        gained[..., 0] += rewards * weights
        np.multiply(weights, discounts, out=gained[..., 1])
        gained[slot, :, 0], gained[slot, :, 1] = rewards, discounts
        done[slot, :, : self._seen], done[slot, :, self._seen :] = self._last, actions.reshape(self._count, -1)
        copies, rows = self._ending(types.tolist())
        vectors = np.empty((len(rows), self._size), np.float32)
        vectors[:, : self._acted] = done.reshape(-1, self._acted).take(rows, axis=0)
        vectors[:, self._acted : self._acted + 2] = gained.reshape(-1, 2).take(rows, axis=0)
        vectors[:, self._acted + 2 :] = observations.take(copies, axis=0)
        self._last, self._slot = observations, (slot + 1) % self._n_step
        return vectors

    def _ending(self, types: list[int]) -> tuple[list[int], list[int]]:
        """Count a step; return whose transitions end with it, and where in the window they begin."""
        slot, held, copies, rows = self._slot, self._held, list[int](), list[int]()
        for copy, kind in enumerate(types):
            if kind == FIRST:
                held[copy] = 0
                continue
            oldest = held[copy]  # steps ago
            for age in range(oldest, -1 if kind == LAST else oldest - 1, -1):
                copies.append(copy)
                rows.append((slot - age) % self._n_step * self._count + copy)
            held[copy] = 0 if kind == LAST else min(oldest + 1, self._n_step - 1)
        return copies, rows
