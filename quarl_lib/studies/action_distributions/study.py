"""How do a quantized policy's actions differ from fp32's, observation by observation? (Figure 3, appendix C)"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from quarl_lib import metrics
from quarl_lib.quantization.ptq import OBSERVATIONS, quantize_policy
from quarl_lib.quantization.quantizers import precision_bits, quantizer_named, storage_bits
from quarl_lib.results import Progress, no_progress
from quarl_lib.sb3 import AgentFile
from quarl_lib.studies.action_distributions.ranges import shown_range
from quarl_lib.studies.common.agents import Failure, choose_agents
from quarl_lib.studies.common.observed import Observed, in_batches, prepare
from quarl_lib.studies.common.pool import map_tasks

TABLE_COLUMNS = (
    "algorithm", "env_id", "agent", "precision", "quantizer", "discrete", "dimension", "state", "action_fp32", "action",
    "low", "high", "error",
)  # fmt: skip
SUMMARY_COLUMNS = (
    "algorithm", "env_id", "agent", "precision", "quantizer", "num_bits", "dimension", "states", "same_action_rate",
    "mean_abs_difference", "median_abs_difference", "p99_abs_difference", "share_identical",
    "share_at_bounds_fp32", "share_at_bounds", "histogram_distance", "error",
)  # fmt: skip
HISTOGRAM_BINS = 50


@dataclass(frozen=True)
class Config:
    """Parameters of the action study; the defaults are those of the smoke preset."""

    # which agents: a folder <algorithm>/<environment>/ ("": those in the package); empty lists let all pass
    agents_dir: str = ""
    import_modules: list[str] = field(default_factory=list)
    run_pickles: bool = False
    algorithms: list[str] = field(default_factory=list)
    env_ids: list[str] = field(default_factory=list)
    retrain: bool = False
    # which policies act beside fp32's
    precisions: list[str] = field(default_factory=lambda: ["fp16", "int8", "int4", "int2"])
    quantizer: str = "paper"
    observation_quantization: str = "none"
    per_channel: bool = False
    # on how many states
    steps: int = 5000
    calibration_steps: int = 1000
    seed: int = 0
    workers: int = 0

    def __post_init__(self) -> None:
        if not self.precisions or "fp32" in self.precisions:
            raise ValueError(f"precisions={self.precisions}: name at least one; fp32 is always beside them")
        for precision in self.precisions:
            precision_bits(precision)
        quantizer_named(self.quantizer)
        if self.observation_quantization not in OBSERVATIONS:
            raise ValueError(
                f"observation_quantization={self.observation_quantization!r}: choose one of {', '.join(OBSERVATIONS)}"
            )
        for name, least in {"steps": 1, "calibration_steps": 1, "workers": 0, "seed": 0}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)}: give at least {least}")


@dataclass(frozen=True)
class Comparison:
    """What one process needs to compare one agent's policies."""

    file: AgentFile
    precisions: tuple[str, ...]
    quantizer: str
    observation: str
    per_channel: bool
    steps: int
    calibration_steps: int
    seed: int

    @property
    def reads(self) -> list[Path]:
        """The files that it needs, wherever it is measured."""
        return self.file.parts


def run(config: Config, progress: Progress = no_progress) -> pd.DataFrame:
    """Show every policy the same states and return one row per agent, precision, state and action dimension.

    The states are those of an fp32 rollout; actions are deterministic. An agent that cannot be loaded, or a policy that
    cannot be quantized, is one row with the reason in `error`.
    """
    files, failures = choose_agents(
        config.agents_dir, config.algorithms, config.env_ids, config.retrain, config.seed, progress,
        config.import_modules, config.run_pickles,
    )  # fmt: skip
    tasks = [
        Comparison(
            file, tuple(config.precisions), config.quantizer, config.observation_quantization, config.per_channel,
            config.steps, config.calibration_steps, config.seed,
        )
        for file in files
    ]  # fmt: skip
    tables = map_tasks(act_side_by_side, tasks, config.workers, progress, lambda task: task.file.name, lost)
    tables.sort(key=lambda table: bool((table.precision == "none").all()))  # agents refused come last
    table = pd.concat([*tables, pd.DataFrame([failure.row() for failure in failures])], ignore_index=True)
    return table.reindex(columns=list(TABLE_COLUMNS)).fillna({"error": ""})


def act_side_by_side(task: Comparison) -> pd.DataFrame:
    """Return fp32's and every other policy's actions on the same states of one agent."""
    observed = prepare(task.file, task.calibration_steps, task.steps, task.seed)
    if isinstance(observed, Failure):
        return pd.DataFrame([observed.row()])
    try:
        return _actions(task, observed)
    except Exception as error:  # one agent costs no other its rows
        file = task.file
        reason = f"{type(error).__name__}: {error}"
        return pd.DataFrame([Failure(file.algorithm, file.env_id, file.name, reason).row()])


@torch.no_grad()
def _actions(task: Comparison, observed: Observed) -> pd.DataFrame:
    agent, calibration, states, _ = observed
    policy = agent.policy
    reference = policy.actions(in_batches(policy, states)).reshape(len(states), -1)
    dimensions = reference.shape[1]
    tables = []
    for precision in task.precisions:
        quantizer = None if precision == "fp16" else task.quantizer
        columns = {
            "algorithm": agent.algorithm,
            "env_id": agent.env_id,
            "agent": agent.name,
            "precision": precision,
            "quantizer": quantizer or "cast",
        }
        try:
            other = quantize_policy(policy, precision, quantizer, task.per_channel, task.observation, calibration)
            actions = other.actions(in_batches(other, states)).reshape(len(states), -1)
        except Exception as error:  # one policy costs no other its rows
            tables.append(pd.DataFrame([{**columns, "error": str(error)}]))
            continue
        tables.append(
            pd.DataFrame(
                {
                    **columns,
                    "discrete": policy.discrete,
                    "dimension": np.tile(np.arange(dimensions), len(states)),
                    "state": np.repeat(np.arange(len(states)), dimensions),
                    "action_fp32": reference.reshape(-1).astype(np.float32),
                    "action": actions.reshape(-1).astype(np.float32),
                    "low": np.nan if policy.discrete else np.tile(policy.low.reshape(-1), len(states)),
                    "high": np.nan if policy.discrete else np.tile(policy.high.reshape(-1), len(states)),
                    "error": "",
                }
            )
        )
    return pd.concat(tables, ignore_index=True)


def lost(task: Comparison) -> pd.DataFrame:
    """Return the row of an agent whose process died."""
    file = task.file
    return pd.DataFrame([Failure(file.algorithm, file.env_id, file.name, "the process that played it died").row()])


def summarize(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per agent, precision and action dimension: agreement, differences, mass at the bounds.

    Differences are in units of the action; `histogram_distance` is the total variation between the histograms of fp32's
    and the quantized policy's actions (50 bins over the bounds; for discrete actions between their shares).
    """
    rows = []
    keys = ["algorithm", "env_id", "agent", "precision", "quantizer"]
    for key, cell in table.groupby([*keys, "dimension"], sort=False, dropna=False):
        row = dict(zip([*keys, "dimension"], key, strict=True)) | {"error": cell.error.iloc[0]}
        if row["precision"] != "none":
            row["num_bits"] = storage_bits(row["precision"])
        if not row["error"]:
            row |= _discrete(cell) if cell.discrete.iloc[0] else _continuous(cell)
            row["states"] = len(cell)
            row["share_identical"] = float((cell.action == cell.action_fp32).mean())
        rows.append(row)
    return pd.DataFrame(rows).reindex(columns=list(SUMMARY_COLUMNS))


def _discrete(cell: pd.DataFrame) -> dict[str, float]:
    count = int(max(cell.action.max(), cell.action_fp32.max())) + 1
    shares = [
        np.bincount(column.astype(int), minlength=count) / len(cell) for column in (cell.action_fp32, cell.action)
    ]
    return {
        "same_action_rate": metrics.same_action_rate(cell.action, cell.action_fp32),
        "histogram_distance": float(np.abs(shares[0] - shares[1]).sum() / 2),
    }


def _continuous(cell: pd.DataFrame) -> dict[str, float]:
    difference = (cell.action - cell.action_fp32).abs()
    bounds = cell.low.iloc[0], cell.high.iloc[0]
    edges = shown_range(cell)
    histograms = [
        np.histogram(np.clip(a, *edges), HISTOGRAM_BINS, edges)[0] / len(cell) for a in (cell.action_fp32, cell.action)
    ]
    at_bounds = [float(((a <= bounds[0]) | (a >= bounds[1])).mean()) for a in (cell.action_fp32, cell.action)]
    return {
        "mean_abs_difference": float(difference.mean()),
        "median_abs_difference": float(difference.median()),
        "p99_abs_difference": float(difference.quantile(0.99)),
        "share_at_bounds_fp32": at_bounds[0],
        "share_at_bounds": at_bounds[1],
        "histogram_distance": float(np.abs(histograms[0] - histograms[1]).sum() / 2),
    }
