"""A row per task and precision: to the threshold in steps, seconds and energy; beside fp32, its peers and the paper."""

from __future__ import annotations

import math

import pandas as pd

from quarl_lib.metrics import Interval, paired_ratio
from quarl_lib.studies.actorq_training import beside_peers
from quarl_lib.studies.actorq_training import runs as training_runs
from quarl_lib.studies.common.paper_tables import PAPER_TASKS
from quarl_lib.studies.common.trained import AGES

SUMMARY_COLUMNS = (
    "task", "algorithm", "precision", "learner_quantization", "envs_per_actor", "clock", "seeds", "seeds_reached",
    "best_return", "threshold", "steps_to_threshold",
    "seconds_to_threshold", "speedup", "speedup_low", "speedup_high", "energy_kwh", "emissions_kg", "energy_source",
    "co2_ratio", "co2_ratio_low", "co2_ratio_high", "co2_ratio_cpu", "time_ratio", "bound_by", "learner_busy",
    "actor_busy", "actor_us_per_step", "speedup_if_actor_bound", "best_return_quantized",
    "seconds_to_threshold_quantized", "weights_version", "weights_age_steps", "weights_age_s", "changed_share",
    "paper_return", "paper_seconds", "paper_speedup",
    "paper_co2_ratio",
    "peer", "peer_seconds", "over_peer", "over_peer_low", "over_peer_high", "over_peer_is",
)  # fmt: skip


def summarize(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per task and precision: to the threshold in steps, seconds, energy; beside fp32, and the paper.

    Times and energies are medians over the seeds that reached the threshold, over the same interval: from the start
    to the snapshot whose return first passed. Ratios are geometric means over the seeds that both precisions reached,
    fp32 over this precision, and the fastest peer's time over ours (`over_peer`); `speedup` and `co2_ratio` have their
    95 % intervals (NaN for one seed). `..._quantized` is the same policy as the actors run it, played by their engine.
    Energy is CPU and RAM (and GPU), without the evaluator's; `co2_ratio_cpu` leaves the RAM out.
    """
    runs = training_runs.reduce(table)
    faster_than = beside_peers.nearest(beside_peers.ratios(table, runs)).set_index(["task", "precision"])
    rows = []
    for (task, precision), group in runs.groupby(["task", "precision"], sort=False):
        fp32 = runs[(runs.task == task) & (runs.precision == "fp32")]
        reached = group[group.seconds.notna()]
        pairs = reached.merge(fp32[fp32.seconds.notna()], on="seed", suffixes=("", "_fp32"))
        everywhere = group.merge(fp32, on="seed", suffixes=("", "_fp32"))
        faster = paired_ratio(pairs.seconds_fp32, pairs.seconds)
        cleaner = _energy_ratio(pairs, "energy_kwh")
        rows.append(
            {
                "task": task,
                "algorithm": group.algorithm.iloc[0].upper(),
                "precision": precision,
                "learner_quantization": group.learner_quantization.iloc[0],
                "envs_per_actor": group.envs_per_actor.iloc[0],
                "clock": group.clock.iloc[0],
                "seeds": len(group),
                "seeds_reached": len(reached),
                "best_return": group.best_return.median(),
                "threshold": group.threshold.iloc[0],
                "steps_to_threshold": reached.steps.median(),
                "seconds_to_threshold": reached.seconds.median(),
                **dict(zip(("speedup", "speedup_low", "speedup_high"), faster, strict=True)),
                "energy_kwh": reached.energy_kwh.median(),
                "emissions_kg": reached.emissions_kg.median(),
                "energy_source": _energy_source(reached if len(reached) else group),
                **dict(zip(("co2_ratio", "co2_ratio_low", "co2_ratio_high"), cleaner, strict=True)),
                "co2_ratio_cpu": _energy_ratio(pairs, "cpu_energy_kwh").estimate,
                "time_ratio": faster.estimate,
                "learner_busy": group.learner_busy.median(),
                "actor_busy": group.actor_busy.median(),
                "bound_by": _bound_by(group.learner_busy.median(), group.actor_busy.median()),
                "actor_us_per_step": group.actor_us_per_step.median(),
                "speedup_if_actor_bound": paired_ratio(
                    everywhere.actor_us_per_step_fp32, everywhere.actor_us_per_step
                ).estimate,
                "best_return_quantized": group.best_return_quantized.median(),
                "seconds_to_threshold_quantized": group.seconds_quantized.median(),
                **{name: group[name].median() for name in AGES},
                **_paper(task, precision),
                **(faster_than.loc[(task, precision)].to_dict() if (task, precision) in faster_than.index else {}),
            }
        )
    return pd.DataFrame(rows).reindex(columns=list(SUMMARY_COLUMNS))


def _bound_by(learner_busy: float, actor_busy: float) -> str:
    if math.isnan(learner_busy) or math.isnan(actor_busy):
        return "unknown"
    return "learner" if learner_busy >= actor_busy else "actor"


def _energy_source(runs: pd.DataFrame) -> str:
    """Return where the energy comes from, if any run is long enough to have one."""
    measured = runs[runs.energy_kwh.notna()]
    return (measured if len(measured) else runs).energy_source.iloc[0]


def _energy_ratio(pairs: pd.DataFrame, name: str) -> Interval:
    known = pairs[(pairs[name] > 0) & (pairs[f"{name}_fp32"] > 0)]
    return paired_ratio(known[f"{name}_fp32"], known[name])


def _paper(task: str, precision: str) -> dict[str, float]:
    rows = [row for row in PAPER_TASKS if row.task == task]
    if not rows or precision not in ("fp32", "int8"):
        return {}
    row, quantized = rows[0], precision == "int8"
    return {
        "paper_return": row.mean_return,
        "paper_seconds": row.int8_seconds if quantized else row.fp32_seconds,
        "paper_speedup": row.speedup if quantized else 1.0,
        "paper_co2_ratio": row.co2_ratio if quantized else 1.0,
    }
