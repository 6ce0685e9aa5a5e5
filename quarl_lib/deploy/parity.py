"""Does an exported policy still act like the original? Measured on observations that the agent met, and in episodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from quarl_lib import metrics
from quarl_lib.deploy.source import Source
from quarl_lib.sb3.agents import Agent
from quarl_lib.sb3.episodes import MAX_ENVS, evaluate
from quarl_lib.sb3.spec import evaluate_engine

# The environment's observations [n, ...] -> actions [n] or [n, action_dim].
BatchAct = Callable[[np.ndarray], np.ndarray]
OBSERVATIONS, EPISODES, SEED = 1000, 20, 4_000_000  # seeds far from those of training and of the studies
MOST_OBSERVATIONS, MOST_ROUNDS = 4000, 10
ALIKE = 0.01  # continuous actions count as the same within this share of their range


@dataclass(frozen=True)
class Difference:
    """How far two policies' actions lie apart; the absolute ones are of continuous actions only."""

    same_action_rate: float
    max_abs_difference: float | None
    mean_abs_difference: float | None


@dataclass(frozen=True)
class Original:
    """What the agent itself did: the observations it met, its actions there, and its returns."""

    observations: np.ndarray
    actions: np.ndarray
    returns: np.ndarray


def play_original(agent: Agent) -> Original:
    """Play the paired episodes with the agent's own fp32 policy, and on until it has met enough observations.

    The actions are those of the library's `predict(deterministic=True)`: the same modules, the same arithmetic.
    """
    met: list[np.ndarray] = []

    def normalize(observation: np.ndarray) -> np.ndarray:
        met.append(observation.copy())
        return agent.normalize(observation)

    returns = evaluate(agent, agent.policy, EPISODES, SEED, normalize=normalize).episode_return.to_numpy()
    observations = _different(met)
    for round_ in range(1, MOST_ROUNDS):
        if len(observations) >= OBSERVATIONS:
            break
        evaluate(agent, agent.policy, MAX_ENVS, SEED + 1000 * round_, normalize=normalize)
        observations = _different(met)
    if len(observations) < OBSERVATIONS:  # an environment with few states: the same ones again
        observations = np.resize(observations, (OBSERVATIONS, *observations.shape[1:]))
    some = np.linspace(0, len(observations) - 1, min(len(observations), MOST_OBSERVATIONS)).astype(int)
    observations = observations[some]
    return Original(observations, original_actions(agent, observations), returns)


def difference(actions: np.ndarray, others: np.ndarray, agent: Agent) -> Difference:
    """Compare actions for the same observations."""
    if agent.policy.discrete:
        return Difference(metrics.same_action_rate(actions, others), None, None)
    apart = np.abs(actions.reshape(others.shape).astype(np.float64) - others)
    width = agent.policy.high.astype(np.float64) - agent.policy.low
    width = np.where(np.isfinite(width), width, np.ptp(others.reshape(len(others), -1), axis=0))  # of what it did
    alike = (apart.reshape(len(apart), -1) <= ALIKE * width.reshape(-1)).all(axis=1)
    return Difference(float(alike.mean()), float(apart.max()), float(apart.mean()))


def measure(source: Source, original: Original, exported: BatchAct, engine: BatchAct, precision: str) -> dict[str, Any]:
    """Return the card's parity of an exported policy.

    Raises:
        ValueError: it is farther from the original than the engine of its precision is.
    """
    agent = source.agent
    found = difference(original.actions, exported(original.observations), agent)
    check(found, difference(original.actions, engine(original.observations), agent), agent, precision)
    returns = evaluate_engine(agent, exported, EPISODES, SEED).episode_return.to_numpy()
    interval = metrics.paired_difference(returns, original.returns)
    return {
        "observations": len(original.observations),
        **asdict(found),
        "episodes": EPISODES,
        "mean_return_original": float(original.returns.mean()),
        "mean_return_exported": float(returns.mean()),
        "paired_ci_low": interval.low,
        "paired_ci_high": interval.high,
    }


def check(found: Difference, engine: Difference, agent: Agent, precision: str) -> None:
    """Raise ValueError if an export's difference lies outside what the engine itself shows.

    Outside is: a rate lower by 0.1 %, or a mean or largest difference above the engine's by more than rounding does:
    an activation whose last bit differs moves a code now and then.
    """
    worse = []
    if found.same_action_rate < engine.same_action_rate - 0.001:
        worse.append(f"same actions {found.same_action_rate:.4f} against {engine.same_action_rate:.4f}")
    if not agent.policy.discrete:
        width = agent.policy.high - agent.policy.low
        unit = 1e-5 * max(1.0, float(width[np.isfinite(width)].max(initial=0.0)) / 2)
        for name, factor in (("mean_abs_difference", 1.1), ("max_abs_difference", 2.0)):
            mine, its = getattr(found, name), getattr(engine, name)
            if not mine <= factor * its + unit:
                worse.append(f"{name} {mine:.3g} against {its:.3g}")
    if worse:
        raise ValueError(f"the exported policy acts otherwise than the {precision} engine: {'; '.join(worse)}")


def original_actions(agent: Agent, observations: np.ndarray) -> np.ndarray:
    """Return the agent's own actions, computed in batches as in its episodes."""
    parts = [
        agent.policy.act(agent.normalize(part)) for part in np.array_split(observations, -(-len(observations) // 32))
    ]
    return np.concatenate(parts)


def _different(met: list[np.ndarray]) -> np.ndarray:
    """Return the observations met, each once, in their order."""
    rows = np.concatenate(met)
    _, first = np.unique(rows.reshape(len(rows), -1), axis=0, return_index=True)
    return rows[np.sort(first)]
