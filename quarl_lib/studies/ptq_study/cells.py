"""One cell of the PTQ study: one agent at one precision under one quantizer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import numpy as np
import pandas as pd
import torch
from gymnasium import spaces

from quarl_lib import metrics
from quarl_lib.envs import disturbed
from quarl_lib.inference.engines import make_engine
from quarl_lib.inference.pack import pack
from quarl_lib.quantization.ptq import quantize_policy
from quarl_lib.sb3 import ActingPolicy, Agent, AgentFile, evaluate
from quarl_lib.sb3.spec import agent_spec, evaluate_engine
from quarl_lib.studies.common.agents import Failure
from quarl_lib.studies.common.observed import in_batches, prepare

NATIVE, RANDOM = "native", "random"  # played by the machine's kernels; by drawing actions, the 0 of normalized returns
UNDISTURBED = "none"
UNQUANTIZED = {"fp32": "none", "fp16": "cast"}  # what tables say where no quantizer is called


@dataclass(frozen=True)
class PTQCell:
    """What one process needs to measure one cell."""

    file: AgentFile
    precision: str
    quantizer: str | None  # None at fp32 and fp16
    observation: str
    per_channel: bool
    episodes: int
    calibration_steps: int
    kl_states: int
    deterministic_std: float
    seed: int
    engine: str = "simulated"
    disturbance: str = UNDISTURBED

    @property
    def name(self) -> str:
        """What progress says, e.g. `ppo/CartPole-v1 int8 paper`."""
        under = "" if self.disturbance == UNDISTURBED else f" {self.disturbance}"
        return f"{self.file.name} {self.precision} {self.label}{under}"

    @property
    def reads(self) -> list[Path]:
        """The files that it needs, wherever it is measured."""
        return self.file.parts

    @property
    def label(self) -> str:
        """What tables say in the column `quantizer`."""
        if self.engine in (NATIVE, RANDOM):
            return self.engine
        return self.quantizer or UNQUANTIZED[self.precision]


def measure(cell: PTQCell) -> pd.DataFrame:
    """Return one row per episode; what holds for the whole cell (divergence, agreement) stands in each of them.

    A policy that cannot be quantized so (fp16 overflow, NaN weights) is one row with the reason in `error`, an agent
    that cannot be loaded one row of precision "none".
    """
    observed = prepare(cell.file, cell.calibration_steps, cell.kl_states, cell.seed)
    if isinstance(observed, Failure):
        return pd.DataFrame([observed.row()])
    agent, calibration, states, deviations = observed
    if layer := non_finite_layer(agent):
        reason = f"weights of {layer} hold NaN or infinity"
        return pd.DataFrame([Failure(agent.algorithm, agent.env_id, agent.name, reason).row()])
    columns = {
        "algorithm": agent.algorithm,
        "env_id": agent.env_id,
        "agent": agent.name,
        "precision": cell.precision,
        "quantizer": cell.label,
        "observation": cell.observation,
        "engine": cell.engine,
        "disturbance": cell.disturbance,
        "normalisation": agent.statistics,
        "trained_on": agent.trained_on,
        "warning": agent.warning,
    }
    try:
        if cell.engine == RANDOM:
            table = evaluate(agent, _Random(agent, cell.seed), cell.episodes, cell.seed)
            return table.assign(**columns, error="")
        if cell.engine == NATIVE:
            spec, weights = agent_spec(agent)
            engine = make_engine(spec, cell.precision, NATIVE)
            engine.load(pack(spec, weights, cell.precision))
            return evaluate_engine(agent, engine, cell.episodes, cell.seed).assign(**columns, error="")
        policy = quantize_policy(
            agent.policy, cell.precision, cell.quantizer, cell.per_channel, cell.observation, calibration
        )
        if cell.disturbance != UNDISTURBED:
            make_env = disturbed_environments(agent, disturbed.parse(cell.disturbance), deviations)
            table = evaluate(agent, policy, cell.episodes, cell.seed, make_env=make_env)
            return table.assign(**columns, error="")
        distances = compare(agent.policy, policy, states, cell.deterministic_std)
        table = evaluate(agent, policy, cell.episodes, cell.seed)
    except ValueError as error:
        return pd.DataFrame([{**columns, "error": str(error)}])
    except Exception as error:  # whatever an environment raises costs this cell and no other
        return pd.DataFrame([{**columns, "error": f"{type(error).__name__}: {error}"}])
    return table.assign(**columns, **distances, error="")


def disturbed_environments(
    agent: Agent, disturbance: disturbed.Disturbance, deviations: np.ndarray
) -> Callable[[], gymnasium.Env]:
    """Return what makes an agent's environment under a disturbance; noise counts in the agent's own deviations.

    Raises:
        ValueError: what the agent observes or does cannot be disturbed so.
    """
    if agent.masked and disturbance.kind in ("action_noise", "action_delay"):
        raise ValueError(f"{disturbance.kind}: actions are masked, another or a late one may not be allowed")
    if disturbance.kind == disturbed.NOISE and (agent.masked or not _numbers(agent.flat or agent.observation_space)):
        raise ValueError(f"{disturbance.kind}: observations are {agent.flat or agent.observation_space}, not numbers")
    return lambda: disturbed.disturbed(agent.make_env(), disturbance, deviations)


def _numbers(space: spaces.Space) -> bool:
    """Say whether noise can be added: an array, or a dictionary of real ones."""
    if isinstance(space, spaces.Dict):
        return all(isinstance(part, spaces.Box) and part.dtype.kind == "f" for part in space.spaces.values())
    return isinstance(space, spaces.Box)


def lost(cell: PTQCell) -> pd.DataFrame:
    """Return the row of a cell whose process died."""
    failure = Failure(cell.file.algorithm, cell.file.env_id, cell.file.name, "the process that played it died")
    return pd.DataFrame([failure.row()])


def non_finite_layer(agent: Agent) -> str | None:
    """Return the name of the first parameter that holds NaN or infinity, None if all are finite."""
    return next((name for name, value in agent.policy.named_parameters() if not value.isfinite().all()), None)


class _Random:
    """Draw actions from the environment's action space."""

    def __init__(self, agent: Agent, seed: int) -> None:
        env = agent.make_env(seed)
        self._space = env.action_space
        env.close()
        self._policy, self._generator = agent.policy, np.random.default_rng(seed)

    def act(self, observation: np.ndarray) -> np.ndarray:
        if count := self._policy.num_masked:  # the largest of random numbers among the allowed
            drawn = self._generator.random((len(observation), count))
            return self._policy.actions(np.where(observation[:, :count] > 0, drawn, -1.0))
        return np.stack([np.asarray(self._space.sample()) for _ in range(len(observation))])


@torch.no_grad()
def compare(policy: ActingPolicy, other: ActingPolicy, states: torch.Tensor, std: float) -> dict[str, object]:
    """Return how far `other` is from `policy` on the same normalised states [n, ...].

    `kl_divergence` is KL(policy || other) in nats, exact, averaged over states; `kl_kind` names the distributions.
    Deterministic policies count as Gaussians of equal `std`, in units of half the action range.
    """
    outputs, others = in_batches(policy, states), in_batches(other, states)
    first, second = outputs.numpy(), others.numpy()
    if policy.discrete:  # indices chosen apart from one another: their divergences add up
        kind = {"q_values": "softmax(Q)", "multi_categorical": "categorical"}.get(policy.kind, policy.kind)
        pairs = zip(policy.categories(first), policy.categories(second), strict=True)
        kl = np.sum([metrics.categorical_kl(*pair) for pair in pairs], axis=0)
    elif policy.kind == "gaussian":
        stds = in_batches(policy.std, states).numpy(), in_batches(other.std, states).numpy()
        kind, kl = "gaussian", metrics.gaussian_kl(first, stds[0], second, stds[1]).sum(axis=-1)
    else:
        if policy.kind == "direct":  # in units of the action itself, unlike what a tanh gives
            half = (policy.high - policy.low) / 2
            half = np.where(np.isfinite(half), half, 1.0)
            first, second = policy.actions(first) / half, other.actions(second) / half
        kind, kl = f"equal-variance gaussian, std {std:g}", metrics.equal_variance_kl(first, second, std).sum(axis=-1)
    actions, other_actions = policy.actions(outputs), other.actions(others)
    return {
        "kl_divergence": float(np.mean(kl)),
        "kl_kind": kind,
        "same_action_rate": metrics.same_action_rate(actions, other_actions) if policy.discrete else math.nan,
        "mean_abs_action_difference": math.nan if policy.discrete else float(np.abs(actions - other_actions).mean()),
    }
