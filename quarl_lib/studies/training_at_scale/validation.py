"""Does the virtual clock tell the time? Real runs on this machine against it, with costs that were just measured."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from quarl_lib.actorq import config as actorq
from quarl_lib.actorq.launch.costs import CostTable
from quarl_lib.provenance import usable_cores
from quarl_lib.results import Progress, no_progress
from quarl_lib.studies.common.trained import busy, reached
from quarl_lib.studies.common.training import training_options
from quarl_lib.studies.training_at_scale.study import Config

COLUMNS = (
    "setup", "replay", "task", "precision", "design", "n_actors", "samples_per_insert", "machine", "learner_ms",
    "real_seconds", "virtual_seconds", "virtual_over_real", "real_steps_per_s", "virtual_steps_per_s", "steps",
    "threshold", "seeds", "seeds_reached", "seconds_to_threshold", "steps_to_threshold", "bound_by",
)  # fmt: skip


def validate(config: Config, progress: Progress = no_progress) -> pd.DataFrame:
    """Run the first task for real with each replay and ratio, then under the virtual clock; a row a set-up.

    Both clocks are read at the same two numbers of actor steps: the first episode's end, and where the real run reached
    its threshold, or its end after `validation_steps`. So neither what was learned matters, nor how long processes
    take to start. Of `validation_rounds` measurements of the costs and real runs, in turn, the quickest of each count:
    a table's costs are those of calls that nothing disturbed. One actor; under the virtual clock the parts share as
    many cores as here.
    """
    if not config.validation_steps:
        return pd.DataFrame(columns=list(COLUMNS))
    replays = [name for name in config.validation_replays if name == "local" or find_spec("reverb")]
    rows = []
    for number, replay in enumerate(replays):
        setups = [options(config, replay, ratio) for ratio in config.validation_samples_per_insert]
        tables, real = [], [[] for _ in setups]  # type: ignore[var-annotated]
        for turn in range(config.validation_rounds):
            progress(number, len(replays), f"real runs, replay {replay}, round {turn + 1}")
            tables.append(_profile(config, replay))
            for one, runs in zip(setups, real, strict=True):
                runs.append(_run(one))
        table = min(tables, key=_sum_of_costs)
        rows += [_compare(one, runs, table, config.thresholds[0]) for one, runs in zip(setups, real, strict=True)]
    progress(len(replays), len(replays), "validated")
    return pd.DataFrame(rows).reindex(columns=list(COLUMNS))


def options(config: Config, replay: str, samples_per_insert: float) -> actorq.Config:
    """Return the options of a real run: int8, one actor."""
    return training_options(
        config, task=config.tasks[0], precision="int8", seed=config.seeds[0], n_actors=1, replay=replay,
        samples_per_insert=samples_per_insert, actor_steps=config.validation_steps,
        update_period=config.update_periods[0], eval_deployed=False,
    )  # fmt: skip


def _profile(config: Config, replay: str) -> CostTable:
    from quarl_lib.actorq.bench import profile

    one = options(config, replay, config.samples_per_insert)
    measured = profile.measure("this machine", [one.task], one.policy_hidden, ["int8"], one, designs=("packed",))
    return CostTable(**measured)


def _sum_of_costs(table: CostTable) -> float:
    """Return the microseconds of a step and an update: of two tables of one program the smaller was less disturbed."""
    step, update = ([np.mean(value) for value in costs.values() if not isinstance(value, Mapping)]
                    for costs in (table.actor["packed"]["int8"], table.learner))  # fmt: skip
    return float(sum(step) + sum(update) + sum(np.mean(value) for value in table.env_step.values()))


def _run(one: actorq.Config) -> dict[str, pd.DataFrame]:
    from quarl_lib.actorq.launch import local

    with tempfile.TemporaryDirectory(prefix="quarl-") as directory:
        return local.run(one, Path(directory), metered=False)


def _compare(
    one: actorq.Config, runs: Sequence[dict[str, pd.DataFrame]], table: CostTable, threshold: float
) -> dict[str, Any]:
    from quarl_lib.actorq.launch import virtual

    with tempfile.TemporaryDirectory(prefix="quarl-") as directory:
        virtually = virtual.run(one, Path(directory), table.of(one), evaluated=False, cores=usable_cores())
    rows = [_row(one, real, virtually, threshold, table.machine) for real in runs]
    return max(rows, key=lambda row: np.nan_to_num(row["real_steps_per_s"]))


def _row(
    one: actorq.Config,
    real: dict[str, pd.DataFrame],
    virtually: dict[str, pd.DataFrame],
    threshold: float,
    machine: str,
) -> dict[str, Any]:
    steps, _ = reached(real["evaluations"], threshold, one.stop_evaluations)
    episodes = {clock: logged["episodes"].sort_values("wall_time_s") for clock, logged in
                (("real", real), ("virtual", virtually))}  # fmt: skip
    begin = max(rows.actor_steps.iloc[0] for rows in episodes.values())
    end = min(rows.actor_steps.iloc[-1] for rows in episodes.values())
    end = min(end, steps) if steps > begin else end
    # A run of a single episode has no two points in time: NaN.
    seconds = {
        clock: float(np.diff(np.interp([begin, end], rows.actor_steps, rows.wall_time_s))[0]) or np.nan
        for clock, rows in episodes.items()
    }
    at_work = busy(real["timing"], one.n_actors)
    replay, ratio = one.replay, one.samples_per_insert
    return {
        "setup": f"{replay} replay, {ratio:g} samples per insert", "replay": replay, "task": one.task,
        "precision": one.precision, "design": "packed", "n_actors": one.n_actors, "samples_per_insert": ratio,
        "machine": machine, "real_seconds": seconds["real"], "virtual_seconds": seconds["virtual"],
        "virtual_over_real": seconds["virtual"] / seconds["real"],
        "real_steps_per_s": (end - begin) / seconds["real"],
        "virtual_steps_per_s": (end - begin) / seconds["virtual"], "steps": int(end - begin),
        "threshold": threshold, "seeds": 1, "seeds_reached": int(steps == steps),
        "seconds_to_threshold": reached(real["evaluations"], threshold, one.stop_evaluations)[1],
        "steps_to_threshold": steps,
        "bound_by": "learner" if at_work["learner_busy"] >= at_work["actor_busy"] else "actor",
    }  # fmt: skip
