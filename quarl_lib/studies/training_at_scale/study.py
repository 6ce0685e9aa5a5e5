"""What would quantized actors buy on a machine with a GPU learner and N actors?"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from quarl_lib.actorq.launch import costs
from quarl_lib.metrics import paired_ratio
from quarl_lib.results import PROJECT, Progress, no_progress
from quarl_lib.studies.common.checks import check_each_once
from quarl_lib.studies.common.pool import map_tasks
from quarl_lib.studies.common.training import training_options
from quarl_lib.studies.training_at_scale.cells import Cell, measure

SUMMARY_COLUMNS = (
    "task", "precision", "design", "n_actors", "learner_ms", "clock", "machine", "seeds", "seeds_reached",
    "seconds_to_threshold", "steps_to_threshold", "speedup", "speedup_low", "speedup_high", "over_authors_fp32",
    "over_authors_fp32_low", "over_authors_fp32_high", "bound_by", "learner_busy", "actor_busy", "weights_age_steps",
    "steps_per_s", "energy_kwh", "energy_ratio", "best_return", "threshold",
)  # fmt: skip
SETUP = ["task", "design", "precision", "n_actors", "learner_ms", "machine"]
DESIGNS = {"packed": ("fp32", "fp16", "int8", "int4", "int3", "int2"), "authors": ("fp32", "fp16", "int8")}
STAND_IN = {"task": "gym:CartPole-v0", "algorithm": "dqn", "policy_hidden": (8,), "n_step": 1}


@dataclass(frozen=True)
class Config:
    """What is trained under the virtual clock. Lists beside `tasks` have one value a task."""

    tasks: list[str] = field(default_factory=lambda: ["dm_control:cartpole:balance", "gym:CartPole-v0"])
    thresholds: list[float] = field(default_factory=lambda: [200.0, 9.0])
    actor_steps: list[int] = field(default_factory=lambda: [1000, 1000])
    update_periods: list[int] = field(default_factory=lambda: [100, 100])
    precisions: list[str] = field(default_factory=lambda: ["fp32", "int8"])
    designs: list[str] = field(default_factory=lambda: ["packed", "authors"])
    actors: list[int] = field(default_factory=lambda: [4])
    learner_ms: list[float] = field(default_factory=lambda: [2.0])
    authors_learner_ms: list[float] = field(default_factory=lambda: [2.0])
    machine: str = "laptop"
    seeds: list[int] = field(default_factory=lambda: [0])
    samples_per_insert: float = 16.0
    batch_size: int = 256
    n_step: int = 5
    min_replay: int = 500
    max_replay: int = 100000
    policy_hidden: list[int] = field(default_factory=lambda: [16, 16])
    critic_hidden: list[int] = field(default_factory=lambda: [16, 16])
    policy_learning_rate: float = 0.001
    critic_learning_rate: float = 0.001
    publish_period: int = 20
    target_update_period: int = 50
    sigma_max: float = 0.3
    eval_period: int = 500
    eval_episodes: int = 1
    stop_evaluations: int = 2
    border_actors: list[int] = field(default_factory=lambda: [1, 4, 16])
    border_learner_ms: list[float] = field(default_factory=lambda: [0.5, 2.0])
    border_precisions: list[str] = field(default_factory=lambda: ["fp32", "int8", "int4"])
    border_steps: int = 2000
    validation_replays: list[str] = field(default_factory=lambda: ["local"])
    validation_samples_per_insert: list[float] = field(default_factory=lambda: [16.0])
    validation_steps: int = 2000
    validation_rounds: int = 1
    cpu_watts: float = 100.0
    ram_watts: float = 10.0
    carbon_grams_per_kwh: float = 475.0
    cells_dir: str = ""
    workers: int = 0

    def __post_init__(self) -> None:
        for name in ("tasks", "precisions", "designs", "actors", "learner_ms", "seeds", "border_actors",
                     "border_learner_ms", "border_precisions"):  # fmt: skip
            check_each_once(name, getattr(self, name))
        for name in ("thresholds", "actor_steps", "update_periods"):
            if len(getattr(self, name)) != len(self.tasks):
                raise ValueError(
                    f"{name}={getattr(self, name)}: give one value for each of the {len(self.tasks)} tasks"
                )
        known = DESIGNS["packed"]
        for name in ("precisions", "border_precisions"):
            if not set(getattr(self, name)) <= set(known):
                raise ValueError(f"{name}={getattr(self, name)}: choose of {', '.join(known)}")
            if "fp32" not in getattr(self, name):
                raise ValueError(f"{name}={getattr(self, name)}: leave fp32 in, every ratio is taken to it")
        if not all(map(math.isfinite, self.thresholds)):
            raise ValueError(f"thresholds={self.thresholds}: give finite numbers")
        for name in ("actors", "border_actors"):
            if not all(1 <= number <= 256 for number in getattr(self, name)):
                raise ValueError(f"{name}={getattr(self, name)}: give numbers of actors from 1 to 256")
        for name in ("learner_ms", "authors_learner_ms", "border_learner_ms"):
            if not all(math.isfinite(ms) and ms > 0 for ms in getattr(self, name)):
                raise ValueError(f"{name}={getattr(self, name)}: give milliseconds above 0")
        for name in self.designs:
            if name not in DESIGNS:
                raise ValueError(f"designs={self.designs}: choose of {', '.join(DESIGNS)}")
        if self.border_steps < 4 * self.batch_size or self.validation_steps < 0:
            raise ValueError(
                f"border_steps={self.border_steps}, validation_steps={self.validation_steps}: give at least four "
                f"batches ({4 * self.batch_size}), and at least 0 (0: nothing is validated)"
            )
        if self.validation_rounds < 1:
            raise ValueError(f"validation_rounds={self.validation_rounds}: give at least 1")
        if not set(self.validation_replays) <= {"local", "reverb"}:
            raise ValueError(f"validation_replays={self.validation_replays}: choose of local, reverb")
        for cell in [*trained_cells(self), *border_cells(self)]:
            cell.costs.of(cell.options, cell.design, cell.learner_ms, cell.task)


def trained_cells(config: Config) -> list[Cell]:
    """Return the runs that learn, those of one seed side by side."""
    table, folder = costs.load(config.machine), _folder(config)
    cells = []
    for index, task in enumerate(config.tasks):
        told = {
            "task": task, "actor_steps": config.actor_steps[index], "update_period": config.update_periods[index],
            "stop_return": config.thresholds[index], "eval_deployed": False, "flush_period": 1, "replay": "local",
        }  # fmt: skip
        for seed in config.seeds:
            for n_actors, learner_ms, design, precision in _setups(
                config, config.actors, config.learner_ms, config.precisions
            ):
                if design == "authors" and learner_ms not in config.authors_learner_ms:
                    continue
                options = training_options(config, **told, seed=seed, n_actors=n_actors, precision=precision)
                cells.append(Cell(options, task, design, learner_ms, table, True, folder))
    return cells


def border_cells(config: Config) -> list[Cell]:
    """Return short runs of another task and a tiny network at the costs of the first task: their pace is its pace."""
    cells = []
    for machine in dict.fromkeys((config.machine, "paper")):
        table = costs.load(machine)
        for n_actors, learner_ms, design, precision in _setups(
            config, config.border_actors, config.border_learner_ms, config.border_precisions
        ):
            if machine != config.machine and precision not in table.actor.get(design, {}):
                continue
            options = training_options(
                config, **STAND_IN, n_actors=n_actors, precision=precision, update_period=config.update_periods[0],
                actor_steps=config.border_steps, min_replay=config.batch_size, flush_period=1, replay="local",
            )  # fmt: skip
            cells.append(Cell(options, config.tasks[0], design, learner_ms, table, False, _folder(config)))
    return cells


def _setups(
    config: Config, actors: list[int], learner_ms: list[float], precisions: list[str]
) -> list[tuple[int, float, str, str]]:
    return [
        (n_actors, ms, design, precision)
        for n_actors in actors for ms in learner_ms for design in config.designs for precision in precisions
        if precision in DESIGNS[design]
    ]  # fmt: skip


def _folder(config: Config) -> Path:
    return Path(config.cells_dir) if config.cells_dir else PROJECT / "outputs" / "cells"


def run(config: Config, progress: Progress = no_progress) -> pd.DataFrame:
    """Run every cell in virtual time, over all cores; what was run before by the same code and options is read.

    Returns:
        One long table, the same for the same config; its column `record` says what a row is: a "run" that learned,
        one of its "evaluation"s, or the "pace" of a set-up.
    """
    cells = [*trained_cells(config), *border_cells(config)]
    tables = map_tasks(measure, cells, config.workers, progress, lambda cell: cell.name)
    return pd.concat(tables, ignore_index=True)


def summarize(table: pd.DataFrame, validation: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return one row per set-up that learned, in virtual time, and one per real run of the validation.

    Times, steps and energies are medians over the seeds that reached the threshold. `speedup` is fp32 of the same
    design over this one, `over_authors_fp32` the authors' fp32 over this one, at the same actors and learner: geometric
    means over the seeds that both reached, with 95 % intervals.
    """
    runs = table[table.record == "run"]
    rows = []
    for key, group in runs.groupby(SETUP, sort=False):
        names = dict(zip(SETUP, key, strict=True))
        beside = runs[
            (runs.task == names["task"]) & (runs.n_actors == names["n_actors"]) & (runs.machine == names["machine"])
            & (runs.learner_ms == names["learner_ms"]) & (runs.precision == "fp32")
        ]  # fmt: skip
        reached = group[group.seconds.notna()]
        own, theirs = (beside[beside.design == design] for design in (names["design"], "authors"))
        rows.append(
            {
                **names,
                "clock": "virtual",
                "seeds": len(group),
                "seeds_reached": len(reached),
                "seconds_to_threshold": reached.seconds.median(),
                "steps_to_threshold": reached.steps.median(),
                **_ratio(own, group, "seconds", "speedup"),
                **_ratio(theirs, group, "seconds", "over_authors_fp32"),
                "bound_by": "learner" if group.learner_busy.median() >= group.actor_busy.median() else "actor",
                "energy_kwh": reached.energy_kwh.median(),
                "energy_ratio": _ratio(own, group, "energy_kwh", "energy")["energy"],
                "threshold": group.threshold.iloc[0],
                **{name: group[name].median() for name in
                   ("learner_busy", "actor_busy", "weights_age_steps", "steps_per_s", "best_return")},
            }
        )  # fmt: skip
    if validation is not None:
        rows += validation.assign(clock="real").to_dict("records")  # type: ignore[arg-type]
    return pd.DataFrame(rows).reindex(columns=list(SUMMARY_COLUMNS))


def _ratio(baseline: pd.DataFrame, group: pd.DataFrame, column: str, name: str) -> dict[str, float]:
    pairs = baseline[baseline[column].notna()].merge(group[group[column].notna()], on="seed", suffixes=("_base", ""))
    ratio = paired_ratio(pairs[f"{column}_base"], pairs[column])
    return dict(zip((name, f"{name}_low", f"{name}_high"), ratio, strict=True))


def border(table: pd.DataFrame) -> pd.DataFrame:
    """Return the pace of every set-up, and its speed-up over fp32 of the same design and machine: 1 where the
    learner binds."""
    pace = table[table.record == "pace"]
    key = ["design", "machine", "n_actors", "learner_ms"]
    fp32 = pace[pace.precision == "fp32"][[*key, "steps_per_s"]]
    rows = pace.merge(fp32, on=key, suffixes=("", "_fp32"))
    rows["speedup"] = rows.steps_per_s / rows.steps_per_s_fp32
    rows["bound_by"] = ["learner" if one.learner_busy >= one.actor_busy else "actor" for one in rows.itertuples()]
    names = ["task", "machine", "design", "precision", "n_actors", "learner_ms", "steps_per_s", "speedup", "bound_by"]
    return rows[[*names, "learner_busy", "actor_busy", "weights_age_steps"]].reset_index(drop=True)
