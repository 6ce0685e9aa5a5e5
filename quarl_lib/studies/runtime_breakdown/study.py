"""Where does an actor's time go at each precision, in the authors' design and in ours?"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from quarl_lib.actorq import config as actorq
from quarl_lib.actorq.bench.setups import DESIGNS, Setup
from quarl_lib.actorq.bench.throughput_parts import STAGES
from quarl_lib.inference.backends import torch as torch_backend
from quarl_lib.metrics import paired_ratio
from quarl_lib.results import Progress, no_progress
from quarl_lib.studies.common.blocks import SETUP_KEYS, blocks, by_setup, check_blocks, in_order, paired_speedup
from quarl_lib.studies.common.checks import check_each_once
from quarl_lib.studies.common.replays import runnable
from quarl_lib.studies.common.training import training_options
from quarl_lib.studies.runtime_breakdown import replays

LOAD_OVER_AUTHORS = ("load_over_authors", "load_over_authors_low", "load_over_authors_high")
SUMMARY_COLUMNS = (
    "design", "update_period", "precision", "rounds", "seconds_per_1000_steps", *(f"{stage}_s" for stage in STAGES),
    "accounted", "new_weights_share", "load_ms", "payload_bytes", "speedup", "speedup_low", "speedup_high",
    "over_authors", "over_authors_low", "over_authors_high",
    *LOAD_OVER_AUTHORS,
)  # fmt: skip
NEW_WEIGHTS = ["pull", "deserialize", "load_weights"]
COMPONENTS = {
    "select_action": "inference", "env_step": "environment", "learner_step": "learner step", "sample": "sample",
    "observe": "communication", "pull": "communication", "deserialize": "communication",
    "load_weights": "communication", "quantize": "communication", "broadcast": "communication",
}  # fmt: skip


@dataclass(frozen=True)
class Config:
    """The actors to take apart, and the training runs of the whole system."""

    task: str = "dm_control:cartpole:balance"
    hidden: list[int] = field(default_factory=lambda: [512, 512, 512])
    designs: list[str] = field(default_factory=lambda: ["authors", "packed"])
    precisions: list[str] = field(default_factory=lambda: ["fp32", "fp16", "int8", "int4"])
    update_periods: list[int] = field(default_factory=lambda: [30, 300])
    steps: int = 300
    rounds: int = 2
    system_precisions: list[str] = field(default_factory=lambda: ["fp32", "int8"])
    system_actor_steps: int = 1500
    system_seconds: float = 6.0
    system_policy_hidden: list[int] = field(default_factory=lambda: [512, 512, 512])
    system_critic_hidden: list[int] = field(default_factory=lambda: [64, 64])
    n_actors: int = 1
    batch_size: int = 32
    samples_per_insert: float = 4.0
    min_replay: int = 200
    publish_period: int = 20
    system_update_period: int = 100
    replays: list[str] = field(default_factory=lambda: ["reverb", "local"])
    replay_rounds: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("designs", "precisions", "update_periods", "system_precisions"):
            check_each_once(name, getattr(self, name))
        unknown = set(self.designs) - set(DESIGNS)
        if unknown:
            raise ValueError(f"designs={self.designs}: choose among {', '.join(DESIGNS)}")
        if "fp32" not in self.precisions:
            raise ValueError(f"precisions={self.precisions}: leave fp32 in, every speedup is taken to it")
        check_blocks(self.rounds, self.steps, self.update_periods)
        check_each_once("replays", self.replays)
        if self.replay_rounds < 0:
            raise ValueError(f"replay_rounds={self.replay_rounds}: give at least 0; 0 leaves the comparison out")
        setups(self)
        for options in system_options(self):
            for replay in runnable(self.replays, "reverb"):
                options.replace(replay=replay)


def setups(config: Config) -> list[Setup]:
    """Return every design at every precision that it has, each an actor that nothing holds back."""
    return [
        Setup(
            task=config.task,
            hidden=tuple(config.hidden),
            design=design,
            precision=precision,
            transport="reverb" if design == "authors" else "shared_memory",
            update_period=period,
        )
        for design in runnable(config.designs, "authors")
        for period in config.update_periods
        for precision in config.precisions
        if design == "packed" or precision in torch_backend.SUPPORTED
    ]


def system_options(config: Config) -> Iterator[actorq.Config]:
    """Yield the ActorQ options of the training runs that show the whole system."""
    for precision in config.system_precisions:
        yield training_options(
            config, precision=precision, update_period=config.system_update_period,
            actor_steps=config.system_actor_steps, max_seconds=config.system_seconds,
            policy_hidden=tuple(config.system_policy_hidden), critic_hidden=tuple(config.system_critic_hidden),
            eval_period=config.system_actor_steps, eval_episodes=1,
        )  # fmt: skip


def run(config: Config, progress: Progress = no_progress) -> pd.DataFrame:
    """Take every actor's time apart, then run the whole system at each of its precisions.

    Returns:
        Long form, by `record`: "block" (a set-up's columns, round, stage, seconds, ...; see `throughput.measure`),
        "replay" (replay, round, part, stage, seconds, count) and "system" (precision, part, stage, seconds, count,
        actor_steps, wall_time_s).
    """
    from quarl_lib.actorq.bench import throughput
    from quarl_lib.actorq.launch import local

    runs = list(system_options(config))
    compared = runnable(config.replays, "reverb")
    total = 100 * (1 + len(runs) + config.replay_rounds * len(compared))

    def part(number: int) -> Progress:
        return lambda done, of, what: progress(100 * number + 100 * done // max(of, 1), total, what)

    measured = throughput.measure(setups(config), config.steps, config.rounds, config.seed, part(0))
    tables = [measured.assign(record="block")]
    for number, options in enumerate(runs, start=1):
        with tempfile.TemporaryDirectory(prefix="quarl-") as directory:
            logged = local.run(options, Path(directory), part(number), metered=False, evaluated=False)
        tables.append(logged["timing"].assign(record="system"))
    after = 1 + len(runs)
    tables += replays.measure(runs[-1], compared, config.replay_rounds, lambda number: part(after + number))
    progress(total, total, "measured")
    return pd.concat(tables, ignore_index=True)


def summarize(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per design, period and precision: mean seconds of every stage in 1000 actor steps.

    The stages sum to `seconds_per_1000_steps`, `other_s` included; `accounted` is the share of all but `other`.
    `speedup` is over fp32 of the same design and period, `over_authors` over the authors' recipe at the same
    precision and period, `load_over_authors` the same of the time to load a message; all paired by round, with 95 %
    intervals. `new_weights_share` is pull, deserialize and load together.
    """
    groups = by_setup(blocks(table))
    named = {(key[0], key[2], key[3]): group for key, group in groups.items()}
    rows = []
    for key, group in groups.items():
        values = dict(zip(SETUP_KEYS, key, strict=True))
        design, period, precision = values["design"], values["update_period"], values["precision"]
        per_1000 = 1000 / group.steps.sum()
        stages = {f"{stage}_s": group[stage].sum() * per_1000 for stage in STAGES}
        over_fp32 = paired_speedup(named[design, period, "fp32"], group)
        theirs = named.get(("authors", period, precision)) if design == "packed" else None
        over_authors = (np.nan,) * 3 if theirs is None else paired_speedup(theirs, group)
        faster_load = (np.nan,) * 3 if theirs is None else paired_ratio(*_loads(theirs, group))
        rows.append(
            {
                "design": design,
                "update_period": period,
                "precision": precision,
                "rounds": len(group),
                "seconds_per_1000_steps": group.wall_s.sum() * per_1000,
                **stages,
                "accounted": 1 - group.other.sum() / group.wall_s.sum(),
                "new_weights_share": group[NEW_WEIGHTS].sum().sum() / group.wall_s.sum(),
                "load_ms": 1000 * group.load_weights.sum() / max(group.messages.sum(), 1),
                "payload_bytes": group[group.messages > 0].payload_bytes.median(),
                **dict(zip(("speedup", "speedup_low", "speedup_high"), over_fp32, strict=True)),
                **dict(zip(("over_authors", "over_authors_low", "over_authors_high"), over_authors, strict=True)),
                **dict(zip(LOAD_OVER_AUTHORS, faster_load, strict=True)),
            }
        )
    summary = pd.DataFrame(rows).reindex(columns=list(SUMMARY_COLUMNS))
    return in_order(summary, {"design": True, "update_period": True, "precision": True})


def _loads(*sides: pd.DataFrame) -> NDArray[np.float64]:
    """Return each side's seconds to load a message [sides, rounds], of the rounds in which both had one."""
    seconds = np.stack([(side.load_weights / side.messages.where(side.messages > 0)).to_numpy() for side in sides])
    return seconds[:, (seconds > 0).all(axis=0)]


def system(table: pd.DataFrame) -> pd.DataFrame:
    """Return the whole system's seconds per component and 1000 actor steps, and their share, per precision.

    Seconds of all processes together. A wait counts to what waits: actors held back by the replay's ratio to
    communication, a learner without data to sample.
    """
    rows = table[table.record == "system"].assign(component=lambda t: t.stage.map(COMPONENTS))
    steps = rows[rows.stage == "select_action"].groupby("precision", sort=False)["count"].sum()
    seconds = rows.groupby(["precision", "component"], sort=False).seconds.sum().reset_index()
    seconds["seconds_per_1000_steps"] = 1000 * seconds.seconds / seconds.precision.map(steps)
    seconds["share"] = seconds.seconds / seconds.groupby("precision").seconds.transform("sum")
    return in_order(seconds.drop(columns="seconds"), {"precision": True, "component": True})
