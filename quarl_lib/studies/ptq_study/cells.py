"""One cell of the PTQ study: one agent at one precision under one quantizer."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from quarl_lib import metrics
from quarl_lib.quantization.ptq import quantize_policy
from quarl_lib.sb3 import ActingPolicy, AgentFile, evaluate
from quarl_lib.studies.common.agents import Failure
from quarl_lib.studies.common.observed import in_batches, prepare

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

    @property
    def name(self) -> str:
        """What progress says, e.g. `ppo/CartPole-v1 int8 paper`."""
        return f"{self.file.name} {self.precision} {self.label}"

    @property
    def label(self) -> str:
        """What tables say in the column `quantizer`."""
        return self.quantizer or UNQUANTIZED[self.precision]


def measure(cell: PTQCell) -> pd.DataFrame:
    """Return one row per episode; what holds for the whole cell (divergence, agreement) stands in each of them.

    A policy that cannot be quantized so (fp16 overflow, NaN weights) is one row with the reason in `error`, an agent
    that cannot be loaded one row of precision "none".
    """
    observed = prepare(cell.file, cell.calibration_steps, cell.kl_states, cell.seed)
    if isinstance(observed, Failure):
        return pd.DataFrame([observed.row()])
    agent, calibration, states = observed
    columns = {
        "algorithm": agent.algorithm,
        "env_id": agent.env_id,
        "agent": agent.name,
        "precision": cell.precision,
        "quantizer": cell.label,
        "observation": cell.observation,
        "warning": agent.warning,
    }
    try:
        policy = quantize_policy(
            agent.policy, cell.precision, cell.quantizer, cell.per_channel, cell.observation, calibration
        )
        distances = compare(agent.policy, policy, states, cell.deterministic_std)
        table = evaluate(agent, policy, cell.episodes, cell.seed)
    except ValueError as error:
        return pd.DataFrame([{**columns, "error": str(error)}])
    except Exception as error:  # whatever an environment raises costs this cell and no other
        return pd.DataFrame([{**columns, "error": f"{type(error).__name__}: {error}"}])
    return table.assign(**columns, **distances, error="")


def lost(cell: PTQCell) -> pd.DataFrame:
    """Return the row of a cell whose process died."""
    failure = Failure(cell.file.algorithm, cell.file.env_id, cell.file.name, "the process that played it died")
    return pd.DataFrame([failure.row()])


@torch.no_grad()
def compare(policy: ActingPolicy, other: ActingPolicy, states: torch.Tensor, std: float) -> dict[str, object]:
    """Return how far `other` is from `policy` on the same normalised states [n, ...].

    `kl_divergence` is KL(policy || other) in nats, exact, averaged over states; `kl_kind` names the distributions.
    Deterministic policies count as Gaussians of equal `std`, in units of half the action range.
    """
    outputs, others = in_batches(policy, states), in_batches(other, states)
    first, second = outputs.numpy(), others.numpy()
    if policy.kind == "categorical":
        kind, kl = "categorical", metrics.categorical_kl(first, second)
    elif policy.kind == "q_values":
        kind, kl = "softmax(Q)", metrics.categorical_kl(first, second)
    elif policy.kind == "gaussian":
        stds = in_batches(policy.std, states).numpy(), in_batches(other.std, states).numpy()
        kind, kl = "gaussian", metrics.gaussian_kl(first, stds[0], second, stds[1]).sum(axis=-1)
    else:
        kind, kl = f"equal-variance gaussian, std {std:g}", metrics.equal_variance_kl(first, second, std).sum(axis=-1)
    actions, other_actions = policy.actions(outputs), other.actions(others)
    return {
        "kl_divergence": float(np.mean(kl)),
        "kl_kind": kind,
        "same_action_rate": metrics.same_action_rate(actions, other_actions) if policy.discrete else math.nan,
        "mean_abs_action_difference": math.nan if policy.discrete else float(np.abs(actions - other_actions).mean()),
    }
