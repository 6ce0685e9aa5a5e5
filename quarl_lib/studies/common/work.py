"""How much a study's independent cells have to do, and what a unit of it took: from this, hours of a core."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from quarl_lib.actorq import config as actorq
from quarl_lib.files import read_json

UPDATES_TIMED = 10


class Measured(Protocol):
    """A finished run: its folder, its `run.json` and its tables."""

    directory: Path

    @property
    def record(self) -> dict[str, Any]:
        """What `run.json` says of it."""

    @property
    def table(self) -> pd.DataFrame:
        """Its long-form table."""

    def saved(self, name: str) -> pd.DataFrame:
        """Return a table that it saved."""


@dataclass(frozen=True)
class Work:
    """What one independent cell does: `units` of a kind, on so many cores, after all cells of earlier phases."""

    kind: str
    units: float
    cores: int = 1
    phase: int = 0


@dataclass(frozen=True)
class Account:
    """A study's work under one config.

    seconds: of a core and a unit, for every kind that was measured. basis: where they are from. mean: of all units that
    were measured, for kinds that were not; NaN where units are too different for that. left_out: what the cells do
    beside, in words. one_machine: its cells run one after the other, wherever further machines are.
    """

    cells: Sequence[Work]
    seconds: Mapping[str, float]
    basis: str
    mean: float = math.nan
    left_out: str = ""
    one_machine: bool = False


def core_seconds(finished: Measured, tasks: int) -> float | str:
    """Return a pooled study's duration times the cores that it used, or why that says nothing."""
    if finished.record.get("cluster"):
        return "the finished run was on a cluster, whose cores are not noted"
    cores = int(read_json(finished.directory / "provenance.json").get("cores", 0))
    if not cores:
        return "the finished run does not say on how many cores it was"
    used = min(int(finished.record["parameters"].get("workers") or cores), cores, tasks)
    return float(finished.record["duration_s"]) * used


def learner_kind(options: actorq.Config) -> str:
    """Name what an update of the learner depends on most: algorithm, networks, batch."""
    policy, critic = ("x".join(map(str, sizes)) for sizes in (options.policy_hidden, options.critic_hidden))
    networks = f"{policy}, critic {critic}" if options.algorithm == "d4pg" else policy
    return f"{options.algorithm} {networks}, batch {options.batch_size}"


def updates(options: actorq.Config) -> float:
    """Return how many updates the ratio of samples to inserts lets a learner make, at most."""
    return options.actor_steps * options.samples_per_insert / options.batch_size


def trainings(
    runs: Iterable[actorq.Config], learner_seconds: Callable[[actorq.Config], float]
) -> tuple[list[Work], dict[str, float]]:
    """Return ActorQ runs as work, their learner's updates with a core for every part, and what an update takes.

    Args:
        learner_seconds: measures one; called once for every kind, which may take a minute.
    """
    cells, seconds = [], dict[str, float]()
    for options in runs:
        kind = learner_kind(options)
        if kind not in seconds:
            seconds[kind] = learner_seconds(options)
        limit = options.max_seconds / seconds[kind] if options.max_seconds else math.inf
        cells.append(Work(kind, min(updates(options), limit), options.n_actors + 1))
    return cells, seconds


_updates: dict[str, float] = {}  # by kind: studies of one command have one


def measured_update(options: actorq.Config) -> float:
    """Return the median seconds of an update with its batch, measured here on one core, once for every kind."""
    from quarl_lib.actorq.bench import profile

    if (kind := learner_kind(options)) not in _updates:
        print(f"measuring an update of {kind}", file=sys.stderr)  # noqa: T201
        timer, _ = profile.learner_laps(options.replace(replay="local", transport="shared_memory"), UPDATES_TIMED)
        laps = timer.laps
        _updates[kind] = statistics.median(laps["sample"]) + statistics.median(laps["learner_step"])
    return _updates[kind]
