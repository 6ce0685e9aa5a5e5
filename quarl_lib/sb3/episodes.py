"""Let an agent act: returns per episode under fixed seeds, and the observations it meets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import gymnasium
import numpy as np
import pandas as pd

from quarl_lib.envs.lanes import side_by_side
from quarl_lib.sb3.agents import Agent

MAX_ENVS = 32  # side by side; beyond that a batch hardly costs less per row
BLOCK_OF_FRAMES = 8
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
    make_env: Callable[[], gymnasium.Env] | None = None,
) -> pd.DataFrame:
    """Play `episodes` episodes with deterministic actions and return one row for each.

    Episode i starts from seed + i whatever the policy, so that two policies meet the same starts. Lane j of up to 32
    environments side by side plays episodes j, j + 32, ...; the policy always sees batches of one size, padded with
    zeros, so that an episode's rounding depends neither on how many are played beside it nor on when they end.
    `normalize` and `make_env` are the agent's own by default.
    """
    if episodes < 1:
        raise ValueError(f"episodes={episodes} must be at least 1")
    normalize, make_env = normalize or agent.normalize, make_env or agent.make_env
    count = min(episodes, MAX_ENVS)
    lanes = side_by_side([make_env() for _ in range(count)])
    try:
        batch = _Padded(lanes.reset_all(range(seed, seed + count)))
        playing, episode = list(range(count)), list(range(count))
        returns, lengths = np.zeros(count), np.zeros(count, int)
        rows: list[tuple[int, int, float, int]] = []
        while playing:
            steps = lanes.step(batch.actions(policy, normalize, lanes.observations), playing)
            returns += steps.rewards
            lengths += 1
            for lane in np.flatnonzero(steps.terminated | steps.truncated).tolist():
                rows.append((episode[lane], seed + episode[lane], float(returns[lane]), int(lengths[lane])))
                episode[lane], returns[lane], lengths[lane] = episode[lane] + count, 0.0, 0
                if episode[lane] < episodes:
                    lanes.reset(lane, seed + episode[lane])
                else:
                    playing.remove(lane)
                progress(len(rows), episodes, f"{agent.name} episodes")
    finally:
        lanes.close()
    return pd.DataFrame(sorted(rows), columns=list(COLUMNS))


class _Padded:
    """Batches of whole blocks: results of a batch's rows depend on its size, not on what its other rows hold."""

    def __init__(self, observations: np.ndarray) -> None:
        # A block of frames stays small: convolutions cost by the row.
        block = BLOCK_OF_FRAMES if observations.ndim > 2 else MAX_ENVS
        self._count, self._block = len(observations), block
        self._rows = np.zeros((-(-len(observations) // block) * block, *observations.shape[1:]), observations.dtype)

    def actions(
        self, policy: Acting, normalize: Callable[[np.ndarray], np.ndarray], observations: np.ndarray
    ) -> np.ndarray:
        """Return the policy's actions for observations [n, ...]."""
        self._rows[: self._count] = observations
        rows = normalize(self._rows)
        blocks = [rows[begin : begin + self._block] for begin in range(0, len(rows), self._block)]
        return np.concatenate([policy.act(block) for block in blocks])[: self._count]


def rollout(agent: Agent, policy: Acting, steps: int, seed: int) -> np.ndarray:
    """Return the first `steps` normalised observations [steps, ...] that a policy meets, episode after episode."""
    return agent.normalize(met_observations(agent, policy, steps, seed))


def met_observations(agent: Agent, policy: Acting, steps: int, seed: int) -> np.ndarray:
    """Return the same observations as the environment gives them."""
    if steps < 1:
        raise ValueError(f"steps={steps} must be at least 1")
    env = agent.make_env()
    met: list[np.ndarray] = []
    try:
        observation, _ = env.reset(seed=seed)
        while len(met) < steps:
            met.append(np.array(observation))  # environments may write the next one into the same memory
            action = policy.act(agent.normalize(met[-1][None]))[0]
            observation, _, terminated, truncated, _ = env.step(_shaped(action, env))
            if terminated or truncated:
                seed += 1
                observation, _ = env.reset(seed=seed)
    finally:
        env.close()
    return np.stack(met)


def _shaped(action: np.ndarray, env: gymnasium.Env) -> np.ndarray:
    """Return a policy's flat action in the shape of the environment's."""
    return action.reshape(shape) if len(shape := env.action_space.shape or ()) > 1 else action
