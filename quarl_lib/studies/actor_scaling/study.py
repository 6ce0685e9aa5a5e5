"""How does the time for a fixed number of steps fall with the number of actors, and what stops it?"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from quarl_lib import provenance
from quarl_lib.actorq import config as actorq
from quarl_lib.actorq.launch import cluster
from quarl_lib.metrics import Interval, paired_ratio
from quarl_lib.results import Progress, no_progress
from quarl_lib.studies.actor_scaling import machines
from quarl_lib.studies.actor_scaling.model import Traffic, bounds, slowest
from quarl_lib.studies.common.blocks import in_order
from quarl_lib.studies.common.checks import check_each_once
from quarl_lib.studies.common.training import training_options

SUMMARY_COLUMNS = (
    "precision", "n_actors", "rounds", "fits", "us_per_step", "us_low", "us_high", "predicted_us", "prediction_error",
    "bound_by", "slowdown", "speedup_over_one", "speedup_over_one_low", "speedup_over_one_high", "over_most_fitting",
    "speedup_over_fp32", "speedup_over_fp32_low", "speedup_over_fp32_high", "actor_us", "learner_us", "cpu_us",
    "cores_used", "seconds_for_steps", "nodes", "network_us", "transition_bytes", "weights_bytes",
)  # fmt: skip


@dataclass(frozen=True)
class Config:
    """The runs to time: every precision with every number of actors, `rounds` times in turn."""

    task: str = "dm_control:cartpole:balance"
    precisions: list[str] = field(default_factory=lambda: ["fp32", "int8"])
    actors: list[int] = field(default_factory=lambda: [1, 2])
    actor_steps: int = 1500
    rounds: int = 1
    policy_hidden: list[int] = field(default_factory=lambda: [512, 512, 512])
    critic_hidden: list[int] = field(default_factory=lambda: [64, 64])
    batch_size: int = 32
    samples_per_insert: float = 0.25
    min_replay: int = 100
    update_period: int = 300
    publish_period: int = 4
    max_seconds: float = 20.0
    contention_rounds: int = 3
    launcher: str = "local"
    ray_address: str = ""
    gigabytes_per_s: float = 0.125
    projected_learner_ms: list[float] = field(default_factory=lambda: [0.5, 2.0, 20.0])
    projected_cores: list[int] = field(default_factory=lambda: [1, 4, 16, 64])
    projected_nodes: list[int] = field(default_factory=lambda: [1, 2, 4, 16])
    projected_samples_per_insert: float = 16.0
    projected_batch_size: int = 256
    projected_publish_period: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("precisions", "actors", "projected_learner_ms", "projected_cores", "projected_nodes"):
            check_each_once(name, getattr(self, name))
        for name in ("actors", "projected_cores", "projected_learner_ms", "projected_nodes"):
            if min(getattr(self, name)) <= 0:
                raise ValueError(f"{name}={getattr(self, name)}: give numbers above 0")
        if "fp32" not in self.precisions or 1 not in self.actors:
            raise ValueError(
                f"precisions={self.precisions}, actors={self.actors}: leave fp32 and 1 in, ratios are taken to them"
            )
        if 1 not in self.projected_nodes:
            raise ValueError(f"projected_nodes={self.projected_nodes}: leave 1 in, for one machine")
        if max(self.projected_nodes) > max(self.projected_cores):
            raise ValueError(
                f"projected_nodes={self.projected_nodes}: each has an actor's core at least; give no more than "
                f"the most of projected_cores={self.projected_cores}"
            )
        above_0 = ("rounds", "contention_rounds", "samples_per_insert", "projected_batch_size")
        for name in (*above_0, "projected_samples_per_insert", "projected_publish_period"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}={getattr(self, name)}: give a number above 0")
        if not (math.isfinite(self.gigabytes_per_s) and self.gigabytes_per_s >= 0):
            raise ValueError(
                f"gigabytes_per_s={self.gigabytes_per_s}: give a finite number of at least 0 (0: no network)"
            )
        if self.launcher not in machines.LAUNCHERS:
            raise ValueError(f"launcher={self.launcher!r}: choose one of {', '.join(machines.LAUNCHERS)}")
        if self.launcher == "ray":
            cluster.check_address(self.ray_address)
            cluster.import_ray()
        list(options(self, 0))


def options(config: Config, number: int) -> Iterator[actorq.Config]:
    """Yield the ActorQ options of one round's runs."""
    for precision in config.precisions:
        for n_actors in config.actors:
            one = training_options(
                config, seed=config.seed + number, precision=precision, n_actors=n_actors,
                eval_period=config.actor_steps, eval_episodes=1,
            )  # fmt: skip
            # The default lets a burst of four updates in, which in a short run is far above the ratio.
            yield one.replace(error_buffer=max(float(config.batch_size), one.smallest_error_buffer))


def run(config: Config, progress: Progress = no_progress) -> pd.DataFrame:
    """Run every precision with every number of actors, in a new order every round, after a look at contention.

    Returns:
        One row per run: `round`, `precision`, `n_actors`, the `cores` of all machines, what `measured`,
        `machines.spread` and `machines.message_bytes` return, and the round's `slowdown` of as many actors as act at
        once on a machine, measured on this one.
    """
    with machines.joined(config.launcher, config.ray_address, max(config.actors)) as found:
        return _rounds(config, found, progress)


def _rounds(config: Config, found: machines.Machines, progress: Progress) -> pd.DataFrame:
    from quarl_lib.actorq.bench import contention

    rng, here = np.random.default_rng(config.seed), provenance.allowed_cores()
    at_once = {n_actors: min(found.at_once(n_actors), here) for n_actors in config.actors}
    of_round = [list(options(config, number)) for number in range(config.rounds)]
    bytes_of = {one.precision: machines.message_bytes(one) for one in of_round[0]}
    done, total, rows = 0, 100 * sum(map(len, of_round)), []

    def part(steps: int, of: int, what: str) -> None:
        progress(100 * done + 100 * steps // of, total, what)

    for number, runs in enumerate(of_round):
        alone = [one for one in runs if one.n_actors == 1]
        beside = contention.measure(alone, list(at_once.values()), config.contention_rounds, config.seed + number)
        slowdown = contention.slowdown(beside)
        for one in (runs[i] for i in rng.permutation(len(runs))):
            with tempfile.TemporaryDirectory(prefix="quarl-") as directory:
                logged = machines.launch(config.launcher, config.ray_address, one, Path(directory), part)
            names = {"round": number, "precision": one.precision, "n_actors": one.n_actors, "cores": found.cores}
            slower = {"slowdown": slowdown[one.precision, at_once[one.n_actors]]}
            sent = {**machines.spread(logged), **bytes_of[one.precision]}
            rows.append({**names, **measured(logged["timing"], logged["cpu"]), **slower, **sent})
            done += 1
    progress(total, total, "measured")
    return pd.DataFrame(rows)


def measured(timing: pd.DataFrame, cpu: pd.DataFrame) -> dict[str, float]:
    """Reduce a run's rows to its figures.

    Returns:
        us_per_step: of all actors together while all act, each one's steps over its own time (they do not begin and
        end together); actor_us: an actor's time for a step; actor_steps; learner_us: one update, with its share of
        publishing, without waiting for data; learner_steps; cpu_us: CPU time of all processes for a step.
    """
    actor = timing[timing.part == "actor"]
    seconds = actor.groupby("actor_id").seconds.sum()
    counts = actor[actor.stage == "select_action"].groupby("actor_id")["count"].sum()
    steps = int(counts.sum())
    learner = timing[(timing.part == "learner") & (timing.stage != "sample")]
    updates = timing[timing.stage == "learner_step"]["count"].sum()
    return {
        "us_per_step": 1e6 / (counts / seconds).sum(),
        "actor_us": 1e6 * seconds.sum() / steps,
        "actor_steps": steps,
        "learner_us": 1e6 * learner.seconds.sum() / max(updates, 1),
        "learner_steps": int(updates),
        "cpu_us": 1e6 * cpu.cpu_s.sum() / steps,
    }


def summarize(table: pd.DataFrame, config: Config) -> pd.DataFrame:
    """Return one row per precision and number of actors: microseconds a step, measured and predicted.

    The prediction is the slowest of `bounds` with what the runs with one actor took: an actor's time, all CPU time, an
    update; with the slowdown that actors without learner and replay showed; and with what the link of the learner's
    machine takes for the other machines at the config's bandwidth. `fits` says whether there were as
    many cores as actors, `over_most_fitting` is the speed over the most that fit, `cores_used` how many the program got
    beside other work on the machine. Ratios are paired by round, with 95 % intervals; times are geometric means over
    rounds, so that they divide to these ratios.
    """
    runs = table.sort_values("round")
    groups = {key: group.reset_index(drop=True) for key, group in runs.groupby(["precision", "n_actors"])}
    rows = []
    for (precision, n_actors), group in groups.items():
        alone, fp32 = groups[precision, 1], groups["fp32", n_actors]
        updates = alone[alone.learner_steps > 0].learner_us
        learner_us = geometric_mean(updates).estimate if len(updates) else 0.0
        cores = int(group.cores.iloc[0])
        actor_us, cpu_us = (geometric_mean(values).estimate for values in (alone.actor_us, alone.cpu_us))
        slowdown = geometric_mean(group.slowdown).estimate
        nodes, transition_bytes, weights_bytes = map(int, group[["nodes", *machines.MESSAGES]].max())
        per_step = config.samples_per_insert / config.batch_size / config.publish_period
        elsewhere = float(group.actors_elsewhere.mean()) / n_actors
        sent = Traffic(transition_bytes, weights_bytes, per_step, nodes - 1, elsewhere)
        sides = bounds(
            actor_us, n_actors, learner_us, config.samples_per_insert, config.batch_size, cpu=cpu_us, cores=cores,
            slowdown=slowdown, network=sent.us_per_step(config.gigabytes_per_s),
        )  # fmt: skip
        predicted = max(sides.values())
        interval = geometric_mean(group.us_per_step)
        over_one, over_fp32 = (paired_ratio(base.us_per_step, group.us_per_step) for base in (alone, fp32))
        rows.append(
            {
                "precision": precision,
                "n_actors": n_actors,
                "rounds": len(group),
                "fits": n_actors <= cores,
                "us_per_step": interval.estimate,
                "us_low": interval.low,
                "us_high": interval.high,
                "predicted_us": predicted,
                "prediction_error": predicted / interval.estimate - 1,
                "bound_by": slowest(sides),
                "slowdown": slowdown,
                "speedup_over_one": over_one.estimate,
                "speedup_over_one_low": over_one.low,
                "speedup_over_one_high": over_one.high,
                "speedup_over_fp32": over_fp32.estimate,
                "speedup_over_fp32_low": over_fp32.low,
                "speedup_over_fp32_high": over_fp32.high,
                "actor_us": actor_us,
                "learner_us": learner_us,
                "cpu_us": cpu_us,
                "cores_used": paired_ratio(group.cpu_us, group.us_per_step).estimate,
                "seconds_for_steps": geometric_mean(group.us_per_step * group.actor_steps).estimate / 1e6,
                "nodes": nodes,
                "network_us": sides["network"],
                "transition_bytes": transition_bytes,
                "weights_bytes": weights_bytes,
            }
        )
    summary = in_order(pd.DataFrame(rows).reindex(columns=list(SUMMARY_COLUMNS)), {"precision": True, "n_actors": True})
    fitting = summary[summary.fits].groupby("precision").us_per_step.last()
    summary["over_most_fitting"] = summary.precision.map(fitting) / summary.us_per_step
    return summary


def geometric_mean(values: pd.Series) -> Interval:
    """Return the geometric mean over rounds with its interval: a ratio to 1."""
    return paired_ratio(values, np.ones(len(values)))
