"""What one ActorQ run comes down to: steps, seconds and energy to its threshold, who was busy, how old weights were."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from quarl_lib.actorq.carbon import NOT_MEASURED, modelled_kwh

AGES = ("weights_version", "weights_age_steps", "weights_age_s", "changed_share")


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
    they are not told apart from it, and they are smaller. A virtual clock tells them apart: its waiting is `wait`. NaN
    for a learner whose run ended before its first step.
    """
    timing = timing.reindex(columns=["part", "stage", "seconds", "count"])  # empty where nobody began
    seconds = {part: timing[timing.part == part].groupby("stage").seconds.sum() for part in ("learner", "actor")}
    learner, actors = seconds["learner"], seconds["actor"]
    steps = timing[(timing.part == "actor") & (timing.stage == "env_step")]["count"].sum()
    working = actors.sum() - actors.get("wait", actors.get("observe", 0.0))
    return {
        "learner_busy": _share(learner.sum() - learner.get("wait", learner.get("sample", 0.0)), learner.sum()),
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
    run = run.reindex(columns=run.columns.union([*AGES, "part"]))
    timing, learner = run[(run.record == "timing") & (run.part == "actor")], run[run.record == "learner"]
    return {
        "weights_version": float(timing.weights_version.max()),
        "weights_age_steps": float(timing.weights_age_steps.median()),
        "weights_age_s": float(timing.weights_age_s.median()),
        "changed_share": float(learner.changed_share.median()),
    }
