"""How much sooner, and with how much less energy, do quantized actors bring a learner to the same return?"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from quarl_lib import results
from quarl_lib.actorq import config as actorq
from quarl_lib.actorq.bench.setups import Setup
from quarl_lib.actorq.launch import cluster, costs
from quarl_lib.envs import registry
from quarl_lib.results import Progress, no_progress
from quarl_lib.studies.actorq_training import finished, peers
from quarl_lib.studies.actorq_training import runs as training_runs
from quarl_lib.studies.actorq_training import speed as training_speed
from quarl_lib.studies.common.checks import check_each_once
from quarl_lib.studies.common.training import training_options

CLOCKS = {"local": "real", "virtual": "virtual", "ray": "real"}  # of each launcher
LAUNCHERS = tuple(CLOCKS)
PARTS_OF_A_RUN = 100  # steps of progress per run


@dataclass(frozen=True)
class Config:
    """What to train, at which precisions, how often, and until when. Lists beside `tasks` have one value a task."""

    tasks: list[str] = field(default_factory=lambda: ["dm_control:cartpole:balance", "gym:CartPole-v0"])
    algorithm: str = "auto"
    precisions: list[str] = field(default_factory=lambda: ["fp32", "int8"])
    seeds: list[int] = field(default_factory=lambda: [0])
    thresholds: list[float] = field(default_factory=lambda: [900.0, 40.0])
    actor_steps: list[int] = field(default_factory=lambda: [2500, 12000])
    update_periods: list[int] = field(default_factory=lambda: [100, 100])
    n_actors: int = 2
    envs_per_actor: int = 1
    samples_per_insert: float = 16.0
    batch_size: int = 64
    n_step: int = 5
    min_replay: int = 1000
    max_replay: int = 100000
    replay: str = "auto"
    policy_hidden: list[int] = field(default_factory=lambda: [128, 128, 128])
    critic_hidden: list[int] = field(default_factory=lambda: [256, 256])
    policy_learning_rate: float = 0.0003
    critic_learning_rate: float = 0.001
    publish_period: int = 20
    target_update_period: int = 100
    learner_quantization: str = "none"
    sigma_max: float = 0.6
    epsilon_max: float = 0.4
    vmin: float = 0.0
    vmax: float = 100.0
    transport: str = "shared_memory"
    communication_precision: str = "same"
    eval_period: int = 1000
    eval_episodes: int = 2
    stop_at_threshold: bool = True
    max_seconds: float = 8.0
    checkpoint_every: int = 0
    cpu_watts: float = 100.0
    ram_watts: float = 10.0
    carbon_grams_per_kwh: float = 475.0
    import_modules: list[str] = field(default_factory=list)
    peers: list[str] = field(default_factory=lambda: ["sb3_sac", "sb3_dqn"])
    peer_seeds: list[int] = field(default_factory=lambda: [0])
    peer_times: float = 1.0
    peer_threads: int = 1
    launcher: str = "local"
    ray_address: str = ""
    machine: str = "laptop"
    throughput_tasks: list[str] = field(default_factory=lambda: ["dm_control:cartpole:balance", "gym:CartPole-v0"])
    throughput_precisions: list[str] = field(default_factory=lambda: ["fp32", "int8", "int4"])
    throughput_update_periods: list[int] = field(default_factory=lambda: [300, 30])
    throughput_authors_precision: str = "int8"
    throughput_envs: list[int] = field(default_factory=lambda: [1, 8])
    throughput_hidden: list[int] = field(default_factory=lambda: [512, 512, 512])
    throughput_steps: int = 300
    throughput_rounds: int = 2

    def __post_init__(self) -> None:
        lone = ("throughput_tasks", "throughput_precisions", "throughput_update_periods", "throughput_envs")
        for name in ("tasks", "precisions", "seeds", *lone):
            check_each_once(name, getattr(self, name))
        for name in ("thresholds", "actor_steps", "update_periods"):
            if len(getattr(self, name)) != len(self.tasks):
                raise ValueError(
                    f"{name}={getattr(self, name)}: give one value for each of the {len(self.tasks)} tasks"
                )
        if "fp32" not in self.precisions:
            raise ValueError(f"precisions={self.precisions}: leave fp32 in, every ratio is taken to it")
        if self.algorithm not in ("auto", *actorq.ALGORITHMS):
            raise ValueError(f"algorithm={self.algorithm!r}: choose auto or one of {', '.join(actorq.ALGORITHMS)}")
        if not all(map(math.isfinite, self.thresholds)):
            raise ValueError(f"thresholds={self.thresholds}: give finite numbers; 0 is 95 % of the best fp32 return")
        if self.stop_at_threshold and not all(self.thresholds):
            raise ValueError(
                f"stop_at_threshold=True with thresholds={self.thresholds}: 0 stands for 95 % of the best fp32 return, "
                "which is known only when all runs are over; set it to False"
            )
        if not {"fp32", self.throughput_authors_precision} <= set(self.throughput_precisions):
            raise ValueError(
                f"throughput_precisions={self.throughput_precisions}: leave fp32 and "
                f"throughput_authors_precision={self.throughput_authors_precision!r} in, ratios are taken to them"
            )
        if 1 not in self.throughput_envs:
            raise ValueError(f"throughput_envs={self.throughput_envs}: leave 1 in, ratios are taken to it")
        longest = max(self.throughput_update_periods)
        if self.throughput_rounds < 0 or self.throughput_steps < longest:
            raise ValueError(
                f"throughput_rounds={self.throughput_rounds}, throughput_steps={self.throughput_steps}: give rounds "
                f"of at least 0 (0: leave it out) and blocks as long as the longest update period, {longest}"
            )
        peers.check(self.peers, self.peer_seeds, self.seeds, self.peer_times, self.peer_threads)
        if self.launcher not in LAUNCHERS:
            raise ValueError(f"launcher={self.launcher!r}: choose one of {', '.join(LAUNCHERS)}")
        if self.launcher == "virtual" and (self.transport != "shared_memory" or self.replay == "reverb"):
            raise ValueError(
                f"launcher='virtual' with transport={self.transport!r}, replay={self.replay!r}: a virtual clock has no "
                "server; give transport='shared_memory' and replay='local' (or 'auto')"
            )
        if self.launcher == "ray":
            cluster.check_address(self.ray_address)
            cluster.import_ray()
        registry.import_modules(self.import_modules)
        lone_actors(self)
        for training in planned_runs(self):
            options = training.options(self)
            if self.launcher == "virtual":
                costs.load(self.machine).of(options)


@dataclass(frozen=True)
class TrainingRun:
    """One run of the study."""

    index: int
    task: str
    precision: str
    seed: int

    @property
    def name(self) -> str:
        """Return a name for the run's folder."""
        return f"{self.task.replace(':', '-')}_{self.precision}_seed{self.seed}"

    def options(self, config: Config) -> actorq.Config:
        """Return the ActorQ options of the run."""
        return training_options(
            config, task=self.task, precision=self.precision, seed=self.seed,
            actor_steps=config.actor_steps[self.index], update_period=config.update_periods[self.index],
            stop_return=config.thresholds[self.index] if config.stop_at_threshold else np.inf,
            import_modules=tuple(config.import_modules),
            # Actors in floating point have no grid: there what is learned acts already.
            learner_quantization=config.learner_quantization if self.precision.startswith("int") else "none",
        )  # fmt: skip


def planned_runs(config: Config) -> Iterator[TrainingRun]:
    """Name the runs in their order: the precisions of one seed side by side, first and last taking turns."""
    for index, task in enumerate(config.tasks):
        for turn, seed in enumerate(config.seeds):
            for precision in config.precisions[:: 1 if turn % 2 == 0 else -1]:
                yield TrainingRun(index, task, precision, seed)


def lone_actors(config: Config) -> list[Setup]:
    """Return the set-ups of the lone actor."""
    return training_speed.setups(
        config.throughput_tasks, config.throughput_precisions, config.throughput_update_periods,
        config.throughput_hidden, config.throughput_authors_precision, config.throughput_envs,
    )  # fmt: skip


def run(config: Config, progress: Progress = no_progress) -> pd.DataFrame:
    """Train every task at every precision with every seed, one run after the other, then time a lone actor.

    In a batch, what an interrupted call in the same folder finished is kept, and the run that it was in goes on from
    its newest good checkpoint.

    Returns:
        One long table; its column `record` says what a row is: an "episode" of an actor, an "evaluation", "timing"
        of a stage, an "emission", an "evaluator" (its CPU seconds), a "run", a "throughput" block, a "lone_actor":
        a set-up's steps a second and ratios, or a peer's, see `peers.train`.

    Raises:
        RunFailed: a part of a run died; the text holds its traceback.
    """
    planned = list(planned_runs(config))
    total = PARTS_OF_A_RUN * (len(planned) + (config.throughput_rounds > 0))
    batch = os.environ.get(results.RUN_DIR_VARIABLE)
    folder = Path(batch or results.PROJECT / "outputs/interactive/actorq_training") / "runs"
    if not batch:
        shutil.rmtree(folder, ignore_errors=True)  # Run All begins anew; a runner keeps what an interrupted run left
    how = f"virtual {costs.load(config.machine)}" if config.launcher == "virtual" else config.launcher
    tables = []
    with _session(config):
        for number, training in enumerate(planned):

            def report(done: int, of: int, what: str, number: int = number, seed: int = training.seed) -> None:
                done = PARTS_OF_A_RUN * number + int(PARTS_OF_A_RUN * done / of)
                progress(min(done, total - 1), total, f"{what} seed {seed}")

            options = training.options(config)
            own = folder / training.name
            table = finished.load(own, options, how)
            if table is None:
                logged = _launch(config, options, own, report)
                table = training_runs.long_form(logged, options, config.thresholds[training.index], own)
                table["clock"] = CLOCKS[config.launcher]
                finished.save(own, options, table, how)
            tables.append(table)
            # Peers in between, so that what slows the machine slows both; their time is no virtual one.
            if number % len(config.precisions) == 0 and CLOCKS[config.launcher] == "real":
                seconds = table.loc[table.record == "emission", "wall_time_s"].max()
                tables += peers.tables(config, options, seconds, folder, partial(report, 1, 1))
    if config.throughput_rounds:
        progress(total - PARTS_OF_A_RUN, total, "a lone actor")
        tables.append(training_speed.measure(lone_actors(config), config.throughput_steps, config.throughput_rounds))
    progress(total, total, "trained")
    return pd.concat([table for table in tables if len(table)], ignore_index=True)


def _session(config: Config) -> contextlib.AbstractContextManager[object]:
    """Return what all runs happen in: one session of Ray, which takes seconds to start."""
    if config.launcher == "ray":
        return cluster.joined(config.ray_address, config.n_actors + 1)
    return contextlib.nullcontext()


def _launch(config: Config, options: actorq.Config, folder: Path, report: Progress) -> dict[str, pd.DataFrame]:
    if config.launcher == "virtual":
        from quarl_lib.actorq.launch import virtual

        return virtual.run(options, folder, costs.load(config.machine).of(options), report)
    if config.launcher == "ray":
        from quarl_lib.actorq.launch import ray

        return ray.run(options.replace(resume=True), folder, report, address=config.ray_address)
    from quarl_lib.actorq.launch import local

    return local.run(options.replace(resume=True), folder, progress=report)
