"""What actors add to their policy: Gaussian noise for D4PG, random actions for DQN, each actor its own amount."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from quarl_lib.actorq.config import Config
from quarl_lib.envs.specs import EnvironmentSpec

Explore = Callable[[Any], Any]


def sigma_of(actor_id: int, n_actors: int, sigma_max: float) -> float:
    """Return an actor's standard deviation: evenly spread over [0, sigma_max], its middle for a single actor."""
    return sigma_max * actor_id / (n_actors - 1) if n_actors > 1 else sigma_max / 2


def epsilon_of(actor_id: int, n_actors: int, epsilon_min: float, epsilon_max: float) -> float:
    """Return an actor's share of random actions: a geometric ladder (Ape-X), its middle for a single actor."""
    position = actor_id / (n_actors - 1) if n_actors > 1 else 0.5
    if epsilon_min == 0:  # no geometric ladder reaches 0
        return epsilon_max * position
    return epsilon_min * math.pow(epsilon_max / epsilon_min, position)


class GaussianNoise:
    """Adds noise of one standard deviation to an action in [-1, 1] and clips it there."""

    def __init__(self, sigma: float | np.ndarray, rng: np.random.Generator) -> None:
        self.sigma, self._rng = np.float32(sigma), rng  # [n, 1] for actions [n, k] of several environments

    def __call__(self, action: np.ndarray) -> np.ndarray:
        """Return a new action, float32."""
        noise = self._rng.standard_normal(action.shape, np.float32)
        noise *= self.sigma
        noise += action
        np.minimum(noise, 1.0, out=noise)
        return np.maximum(noise, -1.0, out=noise)


class EpsilonGreedy:
    """Replaces a share of the actions by random ones."""

    def __init__(self, epsilon: float, num_actions: int, rng: np.random.Generator) -> None:
        self.epsilon, self._num_actions, self._rng = epsilon, num_actions, rng

    def __call__(self, action: int) -> int:
        """Return the action, or a random one."""
        if self._rng.random() < self.epsilon:
            return int(self._rng.integers(self._num_actions))
        return action


class BatchedEpsilonGreedy:
    """Replaces each copy's own share of the actions by random ones."""

    def __init__(self, epsilons: list[float], num_actions: int, rng: np.random.Generator) -> None:
        self.epsilons, self._num_actions, self._rng = epsilons, num_actions, rng

    def __call__(self, actions: np.ndarray) -> np.ndarray:
        """Return new actions [n]."""
        whether, which = self._rng.random((2, len(self.epsilons))).tolist()
        mixed = zip(actions.tolist(), whether, which, self.epsilons, strict=True)
        return np.array([int(u * self._num_actions) if v < epsilon else action for action, v, u, epsilon in mixed])


def make_exploration(config: Config, spec: EnvironmentSpec, actor_id: int, rng: np.random.Generator) -> Explore:
    """Return what one actor does to its policy's actions; copies of one environment explore as so many actors would."""
    count, copies = config.n_actors * config.envs_per_actor, config.envs_per_actor
    if copies > 1:
        ids = range(actor_id * copies, (actor_id + 1) * copies)
        if config.algorithm == "d4pg":
            sigmas = np.array([[sigma_of(i, count, config.sigma_max)] for i in ids], np.float32)
            return GaussianNoise(sigmas, rng)
        epsilons = [epsilon_of(i, count, config.epsilon_min, config.epsilon_max) for i in ids]
        return BatchedEpsilonGreedy(epsilons, spec.actions.num_values, rng)
    if config.algorithm == "d4pg":
        return GaussianNoise(sigma_of(actor_id, config.n_actors, config.sigma_max), rng)
    epsilon = epsilon_of(actor_id, config.n_actors, config.epsilon_min, config.epsilon_max)
    explore = EpsilonGreedy(epsilon, spec.actions.num_values, rng)
    if config.adder != "acme":
        return explore
    counted = spec.actions.dtype.type  # Acme's adder writes what the spec says, an int32
    return lambda action: counted(explore(action))
