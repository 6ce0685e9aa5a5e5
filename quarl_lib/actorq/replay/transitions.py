"""N-step transitions: accumulated at the actor, one float32 vector on the way, a batch at the learner."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import dm_env
import numpy as np
import torch

from quarl_lib.envs.specs import DiscreteArray, EnvironmentSpec


class Batch(NamedTuple):
    """Transitions o_tm1 -a_tm1-> o_t: [B, obs], [B, actions] or int64 [B], [B], [B], [B, obs].

    r_t is the return of up to n steps; d_t is its discount without the last step's factor, as Acme's adder has it:
    a target bootstraps with `discount * d_t`.
    """

    o_tm1: torch.Tensor
    a_tm1: torch.Tensor
    r_t: torch.Tensor
    d_t: torch.Tensor
    o_t: torch.Tensor


class Adder(Protocol):
    """An actor's side of a replay; Acme's adders have it too, but for `flush`."""

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        """Start an episode."""

    def add(self, action: Any, next_timestep: dm_env.TimeStep, extras: Any = ()) -> None:
        """Write every transition that ends with this step."""

    def reset(self) -> None:
        """Forget the episode."""

    def flush(self) -> None:
        """Wait until what was added is there."""


class TransitionLayout:
    """Where the parts of a transition lie in its vector: o_tm1, a_tm1, r_t, d_t, o_t."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        self.observation_size = observation_size(spec)
        self.discrete = isinstance(spec.actions, DiscreteArray)
        self.action_size = int(np.prod(spec.actions.shape, dtype=int))
        self.size = 2 * self.observation_size + self.action_size + 2

    def pack(self, observation, action, reward: float, discount: float, next_observation) -> np.ndarray:
        """Return a new float32 vector [size]."""
        vector = np.empty(self.size, np.float32)
        self.fill(vector, observation, action, reward, discount, next_observation)
        return vector

    def fill(self, vector: np.ndarray, observation, action, reward: float, discount: float, next_observation) -> None:
        """Write a transition into a float32 vector [size]; a part of another size raises ValueError."""
        end = self.observation_size
        vector[:end] = observation
        vector[end : end + self.action_size] = action
        end += self.action_size
        vector[end], vector[end + 1] = reward, discount
        vector[end + 2 :] = next_observation

    def unpack(self, vectors: torch.Tensor) -> Batch:
        """Return the parts of vectors [B, size], as views where they stay float32."""
        end = self.observation_size
        after = end + self.action_size
        action = vectors[:, end:after]
        if self.discrete:
            action = action[:, 0].long()
        return Batch(vectors[:, :end], action, vectors[:, after], vectors[:, after + 1], vectors[:, after + 2 :])


def observation_size(spec: EnvironmentSpec) -> int:
    """Return how many numbers an observation has, a dict's arrays laid one behind the other."""
    parts = spec.observations.values() if isinstance(spec.observations, dict) else [spec.observations]
    return sum(int(np.prod(part.shape, dtype=int)) for part in parts)


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def unpack_vectors(layout: TransitionLayout) -> Callable[[np.ndarray], Batch]:
    """Return what makes a batch of vectors [B, size]."""
    return lambda data: layout.unpack(_tensor(data))


def unpack_acme(spec: EnvironmentSpec, data) -> Batch:
    """Return a batch of the tuples that Acme's adder writes, its dict observations laid in vectors."""
    # In the order of the environment's spec: Reverb hands dicts back sorted.
    names = list(spec.observations) if isinstance(spec.observations, dict) else None

    def vector(observation) -> torch.Tensor:
        parts = [observation] if names is None else [observation[name] for name in names]
        return torch.cat([_tensor(part).reshape(len(part), -1).float() for part in parts], 1)

    action = _tensor(data.action)
    return Batch(
        vector(data.observation), action if action.is_floating_point() else action.long(),
        _tensor(data.reward).float(), _tensor(data.discount).float(), vector(data.next_observation),
    )  # fmt: skip


class NStep:
    """Accumulates n-step returns, with Acme's shorter transitions at both ends of an episode.

    Of an episode o_0 .. o_T come, in this order: (o_0 -> o_1), (o_0 -> o_2) .. (o_0 -> o_n), (o_1 -> o_n+1) ..,
    and after its last step (o_T-n+1 -> o_T) .. (o_T-1 -> o_T).
    """

    def __init__(self, n_step: int, discount: float) -> None:
        self._n_step, self._discount = n_step, discount
        self._window: deque[list] = deque()
        self._observation: np.ndarray | None = None

    def first(self, observation: np.ndarray) -> None:
        """Start an episode."""
        self._window.clear()
        self._observation = observation

    def reset(self) -> None:
        """Forget the episode; its last transitions are not returned."""
        self._window.clear()
        self._observation = None

    def add(self, action, next_timestep) -> list[list]:
        """Take what an environment gave for an action in, as `step`."""
        step_type, reward, discount, observation = next_timestep
        return self.step(action, float(reward), float(discount), observation, step_type == 2)

    def step(self, action, reward: float, discount: float, observation: np.ndarray, last: bool) -> list[list]:
        """Take one step in; return what ends at `observation`: lists of o_tm1, a_tm1, r_t, d_t.

        Raises:
            RuntimeError: no episode was started.
        """
        if self._observation is None:
            raise RuntimeError("step before first: start the episode with first(observation)")
        window, factor = self._window, self._discount
        for entry in window:
            weight = entry[3] * factor
            entry[2] += reward * weight
            entry[3] = weight * discount
        window.append([self._observation, action, reward, discount])
        self._observation = observation
        ending = [window[0]]
        if last:
            window.popleft()
            ending.extend(window)
            window.clear()
            self._observation = None
        elif len(window) == self._n_step:
            window.popleft()
        return ending
