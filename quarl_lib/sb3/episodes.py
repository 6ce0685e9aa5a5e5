"""Let an agent act: returns per episode under fixed seeds, and the observations it meets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import gymnasium
import numpy as np
import pandas as pd

from quarl_lib.sb3.agents import Agent

MAX_ENVS = 32  # side by side; beyond that a batch hardly costs less per row
COLUMNS = ("episode", "seed", "episode_return", "episode_length")


class Acting(Protocol):
    """What `evaluate` asks of a policy: actions for normalised observations [n, ...]."""

    def act(self, observation: np.ndarray) -> np.ndarray: ...


def evaluate(
    agent: Agent,
    policy: Acting,
    episodes: int,
    seed: int,
    progress: Callable[[int, int, str], None] = lambda done, total, what: None,
    normalize: Callable[[np.ndarray], np.ndarray] | None = None,
) -> pd.DataFrame:
    """Play `episodes` episodes with deterministic actions and return one row for each.

    Episode i starts from seed + i whatever the policy, so that two policies meet the same starts. Up to 32
    environments run side by side and share one batch, whose size stays the same from the first step to the last:
    what an episode sees of rounding does not depend on when the others end. `normalize` is the agent's own by default.
    """
    if episodes < 1:
        raise ValueError(f"episodes={episodes} must be at least 1")
    normalize = normalize or agent.normalize
    envs = [agent.make_env() for _ in range(min(episodes, MAX_ENVS))]
    try:
        lanes = _Lanes(envs, episodes, seed)
        while lanes.active:
            if lanes.step(policy.act(normalize(lanes.observations))):
                progress(len(lanes.rows), episodes, f"{agent.name} episodes")
    finally:
        for env in envs:
            env.close()
    return pd.DataFrame(sorted(lanes.rows), columns=list(COLUMNS))


def rollout(agent: Agent, policy: Acting, steps: int, seed: int) -> np.ndarray:
    """Return the first `steps` normalised observations [steps, ...] that a policy meets, episode after episode."""
    if steps < 1:
        raise ValueError(f"steps={steps} must be at least 1")
    env = agent.make_env()
    met: list[np.ndarray] = []
    try:
        observation, _ = env.reset(seed=seed)
        while len(met) < steps:
            met.append(agent.normalize(np.asarray(observation)[None]))
            observation, _, terminated, truncated, _ = env.step(_shaped(policy.act(met[-1])[0], env))
            if terminated or truncated:
                seed += 1
                observation, _ = env.reset(seed=seed)
    finally:
        env.close()
    return np.concatenate(met)


def _shaped(action: np.ndarray, env: gymnasium.Env) -> np.ndarray:
    """Return a policy's flat action in the shape of the environment's."""
    return action.reshape(shape) if len(shape := env.action_space.shape or ()) > 1 else action


class _Lanes:
    """Environments side by side; lane j plays episodes j, j + n, j + 2n, ... of n lanes."""

    def __init__(self, envs: list[gymnasium.Env], episodes: int, seed: int) -> None:
        self._envs, self._episodes, self._seed = envs, episodes, seed
        self.rows: list[tuple[int, int, float, int]] = []
        self.active = list(range(len(envs)))
        self._episode = list(self.active)
        self._returns, self._lengths = [0.0] * len(envs), [0] * len(envs)
        self.observations = np.stack([np.asarray(env.reset(seed=seed + lane)[0]) for lane, env in enumerate(envs)])

    def step(self, actions: np.ndarray) -> bool:
        """Step every lane that still plays and say whether an episode ended."""
        ended = False
        for lane in tuple(self.active):
            observation, reward, terminated, truncated, _ = self._envs[lane].step(
                _shaped(actions[lane], self._envs[lane])
            )
            self._returns[lane] += float(reward)
            self._lengths[lane] += 1
            if terminated or truncated:
                observation = self._next_episode(lane)
                ended = True
            self.observations[lane] = observation
        return ended

    def _next_episode(self, lane: int) -> np.ndarray:
        episode = self._episode[lane]
        self.rows.append((episode, self._seed + episode, self._returns[lane], self._lengths[lane]))
        episode += len(self._envs)
        if episode >= self._episodes:
            self.active.remove(lane)
            return self.observations[lane]
        self._episode[lane], self._returns[lane], self._lengths[lane] = episode, 0.0, 0
        return np.asarray(self._envs[lane].reset(seed=self._seed + episode)[0])
