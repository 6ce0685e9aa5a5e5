"""A training run's tables in long form, and what one run comes down to: to its threshold in steps, seconds, energy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from quarl_lib.actorq import config as actorq
from quarl_lib.actorq.carbon import NOT_MEASURED
from quarl_lib.actorq.link import read
from quarl_lib.metrics import running_mean
from quarl_lib.studies.common.trained import ages, busy, energy_until, reached

RECORDS = {
    "episodes": "episode", "evaluations": "evaluation", "timing": "timing", "emissions": "emission",
    "learner": "learner", "deaths": "death", "resumed": "resumed",
}  # fmt: skip
WINDOW = 10  # episodes of the paper's running mean
PAPER_SHARE = 0.95  # the paper measures to 95 % of the best fp32 return
RUN_KEYS = ["task", "algorithm", "precision", "seed"]


def long_form(
    logged: dict[str, pd.DataFrame], options: actorq.Config, threshold: float, directory: Path
) -> pd.DataFrame:
    """Return all rows of one run in one table: the run's columns, `record`, and what that kind of row has."""
    tables = [logged[name].assign(record=record) for name, record in RECORDS.items() if len(logged[name])]
    tables.append(read(directory, "evaluator").assign(record="evaluator"))
    reasons = logged["stop"].reason if len(logged["stop"]) else ["ended"]
    tables.append(
        pd.DataFrame(
            {
                "record": ["run"],
                "threshold": [threshold],
                "needed": [options.stop_evaluations],
                "reason": [next(iter(reasons))],
                "n_actors": [options.n_actors],
                "learner_quantization": [options.learner_quantization],
                "envs_per_actor": [options.envs_per_actor],
            }
        )
    )
    table = pd.concat(tables, ignore_index=True)
    for name in RUN_KEYS:
        table[name] = getattr(options, name)
    return table


def so_far(directory: Path) -> pd.DataFrame:
    """Return the actors' episodes, with exploration noise, that the runs in a folder have logged by now."""
    found = [read(run, "episodes").assign(run=run.name) for run in sorted((directory / "runs").glob("*"))]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()


def records(table: pd.DataFrame, record: str) -> pd.DataFrame:
    """Return the rows of one kind, without the columns that it does not have."""
    return table[table.record == record].drop(columns="record").dropna(axis=1, how="all").reset_index(drop=True)


def evaluations(table: pd.DataFrame, policy: str = "learner") -> pd.DataFrame:
    """Return the evaluator's episodes of the policy as the "learner" has it, or as the "actors" run it.

    Actors that run it in fp32 run the learner's own.
    """
    rows = records(table, "evaluation")
    if "policy" not in rows:
        return rows
    alike = rows.precision == "fp32" if policy == "actors" and not (rows.policy == "actors").any() else False
    return rows[(rows.policy == policy) | alike].reset_index(drop=True)


def episodes(table: pd.DataFrame) -> pd.DataFrame:
    """Return all episodes, the evaluator's as those of actor -1."""
    played = pd.concat([records(table, "episode"), evaluations(table).assign(actor_id=-1)], ignore_index=True)
    columns = [*RUN_KEYS, "actor_id", "actor_steps", "wall_time_s", "episode_return"]
    return played.reindex(columns=columns).sort_values(["task", "precision", "seed", "wall_time_s"], ignore_index=True)


def curves(table: pd.DataFrame) -> pd.DataFrame:
    """Return the convergence curves: the evaluator's episodes with the running mean over ten of them."""
    return _running(evaluations(table))


def _running(rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows.sort_values([*RUN_KEYS, "actor_steps", "episode"], ignore_index=True)
    grouped = rows.groupby(RUN_KEYS, sort=False).episode_return
    rows["running_return"] = grouped.transform(lambda values: running_mean(values, WINDOW))
    return rows


def reduce(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per run: threshold, steps and seconds to it (NaN: not reached), energy to it, who was busy."""
    rows = curves(table)
    best = rows.groupby(RUN_KEYS, sort=False).running_return.max()
    reduced = []
    for keys, run in table[~table.record.isin(["throughput", "lone_actor"])].groupby(RUN_KEYS, sort=False):
        facts = records(run, "run").iloc[0]
        threshold = facts.threshold or _paper_threshold(best, keys[0])
        steps, seconds = reached(evaluations(run), threshold, int(facts.needed))
        quantized = evaluations(run, "actors")
        copies = int(facts.get("envs_per_actor", 1))
        at_work = busy(records(run, "timing"), int(facts.n_actors))
        at_work["actor_us_per_step"] /= copies  # what is timed is a step of all copies
        reduced.append(
            {
                **dict(zip(RUN_KEYS, keys, strict=True)),
                "clock": run.clock.iloc[0] if "clock" in run else "real",
                "best_return": best[keys],
                "learner_quantization": facts.get("learner_quantization", "none"),
                "envs_per_actor": copies,
                "threshold": threshold,
                "steps": steps,
                "seconds": seconds,
                "best_return_quantized": _running(quantized).running_return.max(),
                "seconds_quantized": reached(quantized, threshold, int(facts.needed))[1],
                **ages(run),
                **energy_until(records(run, "emission"), records(run, "evaluator"), seconds),
                **at_work,
            }
        )
    return pd.DataFrame(reduced)


def _paper_threshold(best: pd.Series, task: str) -> float:
    top = best.xs((task, "fp32"), level=("task", "precision")).max()
    return top - (1 - PAPER_SHARE) * abs(top)


def stages(table: pd.DataFrame) -> pd.DataFrame:
    """Return seconds and counts per run, part and stage, and microseconds each time."""
    summed = records(table, "timing").groupby([*RUN_KEYS, "part", "stage"], sort=False)[["seconds", "count"]].sum()
    return summed.assign(us_each=1e6 * summed.seconds / summed["count"]).reset_index()


def emissions(table: pd.DataFrame) -> pd.DataFrame:
    """Return every run's energy and CO2 to its end, the evaluator's included, with the source of each figure."""
    last = records(table, "emission").sort_values("wall_time_s").groupby(RUN_KEYS, sort=False).tail(1)
    last = last.sort_values(RUN_KEYS, ignore_index=True)
    unseen = last.cpu_energy_kwh <= 0
    last.loc[unseen, "energy_source"] = NOT_MEASURED
    last.loc[unseen, [name for name in last if name.endswith("_energy_kwh")] + ["energy_kwh", "emissions_kg"]] = np.nan
    return last
