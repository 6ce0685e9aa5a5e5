"""A training run's tables in long form, and what one run comes down to: to its threshold in steps, seconds, energy."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd

from quarl_lib.actorq import config as actorq
from quarl_lib.actorq.carbon import NOT_MEASURED, modelled_kwh
from quarl_lib.actorq.link import read
from quarl_lib.metrics import running_mean

RECORDS = {
    "episodes": "episode", "evaluations": "evaluation", "timing": "timing", "emissions": "emission",
    "learner": "learner", "deaths": "death", "resumed": "resumed",
}  # fmt: skip
WINDOW = 10  # episodes of the paper's running mean
PAPER_SHARE = 0.95  # the paper measures to 95 % of the best fp32 return
AGES = ("weights_version", "weights_age_steps", "weights_age_s", "changed_share")
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
        reduced.append(
            {
                **dict(zip(RUN_KEYS, keys, strict=True)),
                "best_return": best[keys],
                "threshold": threshold,
                "steps": steps,
                "seconds": seconds,
                "best_return_quantized": _running(quantized).running_return.max(),
                "seconds_quantized": reached(quantized, threshold, int(facts.needed))[1],
                **ages(run),
                **energy_until(records(run, "emission"), records(run, "evaluator"), seconds),
                **busy(records(run, "timing"), int(facts.n_actors)),
            }
        )
    return pd.DataFrame(reduced)


def _paper_threshold(best: pd.Series, task: str) -> float:
    top = best.xs((task, "fp32"), level=("task", "precision")).max()
    return top - (1 - PAPER_SHARE) * abs(top)


def reached(evaluations: pd.DataFrame, threshold: float, needed: int) -> tuple[float, float]:
    """Return actor steps and seconds of the first of `needed` snapshots in a row with that mean return; NaN if none."""
    if "learner_steps" in evaluations:  # a policy counts once, at its first evaluation
        first = evaluations.groupby("learner_steps").actor_steps.transform("min")
        evaluations = evaluations[evaluations.actor_steps == first]
    points = evaluations.groupby(["actor_steps", "wall_time_s"]).episode_return.mean().sort_index()
    in_a_row = 0
    for index, value in enumerate(points):
        in_a_row = in_a_row + 1 if value >= threshold else 0
        if in_a_row == needed:
            steps, seconds = points.index[index - needed + 1]
            return float(steps), float(seconds)
    return math.nan, math.nan


def energy_until(emissions: pd.DataFrame, evaluator: pd.DataFrame, seconds: float) -> dict[str, object]:
    """Return the energy until a time, less the evaluator's where it is modelled; NaN where nothing is known."""
    last = emissions.iloc[-1]
    names = ("cpu_energy_kwh", "ram_energy_kwh", "gpu_energy_kwh")
    nothing = dict.fromkeys((*names, "energy_kwh", "emissions_kg"), math.nan)
    if math.isnan(seconds):
        return {**nothing, "energy_source": last.energy_source}
    clock = emissions.wall_time_s
    spent = {
        name: float(np.interp(seconds, clock, emissions[name]) - np.interp(0.0, clock, emissions[name]))
        for name in names
    }
    if last.cpu_source == "modelled" and len(evaluator):
        cpu_seconds = np.interp(seconds, evaluator.wall_time_s, evaluator.cpu_seconds) - evaluator.cpu_seconds.iloc[0]
        spent["cpu_energy_kwh"] -= modelled_kwh(float(cpu_seconds), float(last.watts_per_core))
    if spent["cpu_energy_kwh"] <= 0:  # past its threshold before the meter's second reading
        return {**nothing, "energy_source": NOT_MEASURED}
    energy = sum(spent.values())
    per_kwh = last.emissions_kg / last.energy_kwh if last.energy_kwh else math.nan
    return {**spent, "energy_kwh": energy, "emissions_kg": energy * per_kwh, "energy_source": last.energy_source}


def busy(timing: pd.DataFrame, n_actors: int) -> dict[str, float]:
    """Return which shares of their time learner and actors worked, and an actor's own time per step.

    A learner that waits does so in `sample`, an actor in `observe`. Sampling and writing themselves count as waiting:
    they are not told apart from it, and they are smaller. NaN for a learner whose run ended before its first step.
    """
    seconds = {part: timing[timing.part == part].groupby("stage").seconds.sum() for part in ("learner", "actor")}
    learner, actors = seconds["learner"], seconds["actor"]
    steps = timing[(timing.part == "actor") & (timing.stage == "env_step")]["count"].sum()
    working = actors.sum() - actors.get("observe", 0.0)
    return {
        "learner_busy": _share(learner.sum() - learner.get("sample", 0.0), learner.sum()),
        "actor_busy": _share(working, actors.sum()),
        "actor_us_per_step": 1e6 * _share(working, steps),
    }


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else math.nan


def ages(run: pd.DataFrame) -> dict[str, float]:
    """Return the newest version of the weights that an actor ran, their median age, and what changed between versions.

    Ages are in steps of all actors and in seconds; `changed_share` is the median share of weight codes that differ
    between two publications. NaN where nothing was noted, as in a run that ended within half a second.
    """
    run = run.reindex(columns=run.columns.union(AGES))
    timing, learner = run[(run.record == "timing") & (run.part == "actor")], run[run.record == "learner"]
    return {
        "weights_version": float(timing.weights_version.max()),
        "weights_age_steps": float(timing.weights_age_steps.median()),
        "weights_age_s": float(timing.weights_age_s.median()),
        "changed_share": float(learner.changed_share.median()),
    }


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
