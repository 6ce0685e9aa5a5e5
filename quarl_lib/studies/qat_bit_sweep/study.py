"""How few bits does a policy need if it is trained with them? (Appendix A, Figure 10)"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from quarl_lib import metrics
from quarl_lib.results import PROJECT, Progress, no_progress
from quarl_lib.sb3.qat_policies import POLICIES
from quarl_lib.sb3.recipes import recipe_for
from quarl_lib.studies.common.pool import map_tasks
from quarl_lib.studies.qat_bit_sweep.cells import (
    FP32,
    Bits,
    QATCell,
    digest_of_sources,
    measure,
    read,
    read_levels,
    versions_of_libraries,
)

METHODS = ("qat", "qat_lsq", "qat_engine")
AGENT = ["algorithm", "env_id"]
BITS = ["weight_bits", "activation_bits", "observation_bits", "edge_bits"]
SUMMARY_COLUMNS = (
    *AGENT, "method", *BITS, "actor_steps", "seeds", "episodes", "mean_return", "ci_low", "ci_high", "relative_error",
    "paired_difference", "paired_ci_low", "paired_ci_high", "over_ptq", "over_ptq_low", "over_ptq_high",
    "without_loss", "fewest_bits_without_loss", "training_time_ratio", "ratio_low", "ratio_high",
)  # fmt: skip


@dataclass(frozen=True)
class Config:
    """Parameters of the bit sweep; the defaults are those of the smoke preset."""

    # what is trained: algorithm/environment/actor steps (0: the recipe's own)
    agents: list[str] = field(default_factory=lambda: ["PPO/CartPole-v1/4000"])
    seeds: list[int] = field(default_factory=lambda: [0, 1])
    # at how many bits: "4", "4/8/16" (weights/activations/observation) or "4/8/16/8" (first and last layer too)
    bits: list[str] = field(default_factory=lambda: ["8", "4", "2/2/8"])
    methods: list[str] = field(default_factory=lambda: ["qat"])
    delay_share: float = 0.5
    # how it is measured
    episodes: int = 10
    calibration_steps: int = 1000
    tolerated_loss: float = 0.01
    # where finished cells are kept ("": outputs/cells), and on how many processes (0: one a core)
    cells_dir: str = ""
    workers: int = 0

    def __post_init__(self) -> None:
        for name in ("agents", "seeds", "bits", "methods"):
            if not getattr(self, name):
                raise ValueError(f"{name}=[]: name at least one")
        for agent in self.agents:
            parse_agent(agent)
        for bits in self.bits:
            if Bits.parse(bits) == FP32:
                raise ValueError(f"bits={bits!r}: fp32 is always among the methods")
        for method in self.methods:
            if method not in METHODS:
                raise ValueError(f"methods={method!r}: choose among {', '.join(METHODS)}")
        if not 0 <= self.delay_share <= 1:
            raise ValueError(f"delay_share={self.delay_share}: the delay ends within training; give 0 to 1")
        if not 0 <= self.tolerated_loss < 1:
            raise ValueError(f"tolerated_loss={self.tolerated_loss}: give a share from 0 to below 1")
        for name, least in {"episodes": 2, "calibration_steps": 1, "workers": 0}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)}: give at least {least}")


def parse_agent(text: str) -> tuple[str, str, int]:
    """Return algorithm, environment and actor steps of "PPO/CartPole-v1/100000"; 0 steps are the recipe's own.

    Raises:
        ValueError: the text has another form, or there is no recipe or no fake-quantized policy.
    """
    parts = text.split("/")
    algorithm, env_id, steps = parts[0].upper(), "/".join(parts[1:-1]), parts[-1]
    if len(parts) < 3 or not steps.isdigit():
        raise ValueError(f"agents={text!r}: give algorithm/environment/actor steps")
    if algorithm not in POLICIES:
        raise ValueError(f"agents={text!r}: choose an algorithm among {', '.join(POLICIES)}")
    recipe = recipe_for(algorithm, env_id)
    return algorithm, recipe.env_id, int(steps) or recipe.total_steps


def cells_of(config: Config) -> tuple[list[QATCell], list[QATCell]]:
    """Return the cells that train, and those of PTQ, which start from the fp32 ones; none twice."""
    directory = Path(config.cells_dir) if config.cells_dir else PROJECT / "outputs" / "cells"
    code = (digest_of_sources(), versions_of_libraries())
    trained, rounded = [], []
    for algorithm, env_id, steps in map(parse_agent, config.agents):
        delay = round(config.delay_share * steps)
        select = delay if recipe_for(algorithm, env_id).select_every_steps else 0
        for seed in config.seeds:
            common = (seed, delay, select, config.episodes, 0, directory, *code)
            fp32 = QATCell(algorithm, env_id, steps, "fp32", FP32, *common).fp32
            trained.append(fp32)
            for method in config.methods:
                ptq = ptq_of(method)
                for bits in map(Bits.parse, config.bits):
                    if method == "qat_engine":
                        bits = Bits(bits.weight, activation=8, observation=16, edge=8)
                    trained.append(QATCell(algorithm, env_id, steps, method, bits, *common))
                    common_ptq = (seed, 0, select, config.episodes, config.calibration_steps, directory, *code)
                    rounded.append(QATCell(algorithm, env_id, steps, ptq, bits, *common_ptq))
    return list(dict.fromkeys(trained)), list(dict.fromkeys(rounded))


def ptq_of(method: str) -> str:
    """Return the method that rounds to the bits with which this one trains."""
    return "ptq_engine" if method == "qat_engine" else "ptq"


def run(config: Config, progress: Progress = no_progress) -> pd.DataFrame:
    """Train, quantize and evaluate every cell and return one row per episode.

    A finished cell lies on disk and is taken from there, so that an interrupted sweep goes on where it stood.
    """
    trained, rounded = cells_of(config)
    total = len(trained) + len(rounded)
    done = sum(cell.finished for cell in (*trained, *rounded))
    clock = _TimeLeft(progress, done, total)
    for cells in (trained, rounded):
        map_tasks(measure, [c for c in cells if not c.finished], config.workers, clock, lambda cell: cell.name)
    return pd.concat([read(cell) for cell in (*trained, *rounded)], ignore_index=True)


class _TimeLeft:
    """Count cells over several calls of `map_tasks`, and say how long the rest will take at this pace."""

    def __init__(self, progress: Progress, done: int, total: int) -> None:
        self._progress, self._done_before, self._done, self._total = progress, done, done, total
        self._begin = time.monotonic()
        if done:
            progress(done, total, "cells, finished earlier")

    def __call__(self, done: int, total: int, what: str) -> None:
        self._done += 1
        pace = (time.monotonic() - self._begin) / (self._done - self._done_before)
        left = pace * (self._total - self._done)
        self._progress(self._done, self._total, f"cells, about {left / 60:.1f} min left, last {what}")


def weight_levels(config: Config) -> pd.DataFrame:
    """Return how often the layers of the first seed's trained policies hold which weight; the run must be finished."""
    trained, _ = cells_of(config)
    tables = []
    for cell in trained:
        if cell.seed == config.seeds[0]:
            columns = {
                "algorithm": cell.algorithm,
                "env_id": cell.env_id,
                "method": cell.method,
                "bits": str(cell.bits),
            }
            tables.append(read_levels(cell).assign(**columns, weight_bits=cell.bits.weight))
    return pd.concat(tables, ignore_index=True)


def summarize(table: pd.DataFrame, tolerated_loss: float = 0.01) -> pd.DataFrame:
    """Return one row per policy and bits: return with its interval over training seeds, loss, and training time.

    One value a seed, the mean of its episodes: episodes of one policy say nothing of another training. Paired by seed
    are `paired_difference` (to fp32), `over_ptq` (to PTQ at the same bits) and `training_time_ratio` (the processor's
    seconds over fp32's). Without loss means: the mean is at most `tolerated_loss` of fp32's below it. That an
    interval of few seeds holds 0 excuses no loss, since it would excuse almost any.
    """
    rows = []
    for agent, cells in table.groupby(AGENT, sort=False):
        fp32 = cells[cells.method == "fp32"]
        reference = _of_seeds(fp32)
        floor = reference.mean() - tolerated_loss * abs(reference.mean())
        seconds = fp32.groupby("seed").training_cpu_s.first()
        for key, cell in cells.groupby(["method", *BITS], sort=False):
            returns = _of_seeds(cell)
            mean = metrics.mean_interval(returns)
            loss = metrics.relative_error(mean.estimate, float(reference.mean()))
            paired = metrics.paired_difference(returns, reference.loc[returns.index])
            row = dict(zip([*AGENT, "method", *BITS], [*agent, *key], strict=True)) | {
                "actor_steps": cell.actor_steps.iloc[0],
                "seeds": cell.seed.nunique(),
                "episodes": len(cell),
                "mean_return": mean.estimate,
                "ci_low": mean.low,
                "ci_high": mean.high,
                "relative_error": loss,
                **dict(zip(("paired_difference", "paired_ci_low", "paired_ci_high"), paired, strict=True)),
                "without_loss": bool(mean.estimate >= floor),
            }
            if str(key[0]).startswith("qat"):
                rounded = cells[(cells.method == ptq_of(str(key[0]))) & (cells[BITS] == list(key[1:])).all(axis=1)]
                if len(rounded):
                    over = metrics.paired_difference(returns, _of_seeds(rounded).loc[returns.index])
                    row |= dict(zip(("over_ptq", "over_ptq_low", "over_ptq_high"), over, strict=True))
            own = cell.groupby("seed").training_cpu_s.first()
            if own.notna().all():
                ratio = metrics.paired_ratio(own, seconds.loc[own.index])
                row |= {"training_time_ratio": ratio.estimate, "ratio_low": ratio.low, "ratio_high": ratio.high}
            rows.append(row)
    summary = pd.DataFrame(rows)
    kept = (
        summary[summary.without_loss].groupby([*AGENT, "method"]).weight_bits.min().rename("fewest_bits_without_loss")
    )
    summary = summary.merge(kept.reset_index(), how="left", on=[*AGENT, "method"])
    return summary.reindex(columns=list(SUMMARY_COLUMNS))


def _of_seeds(cell: pd.DataFrame) -> pd.Series:
    """Return the mean return of each training seed."""
    return cell.groupby("seed").episode_return.mean()
