"""How much CPU time a step costs beside other actors: cores share a last-level cache and the way to memory.

Actors alone, with nothing to write to or to learn from them: each acts for a while by itself, and while others act on
other cores. What differs between the two is what the machine's cores take from each other.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import dm_env
import numpy as np
import pandas as pd

from quarl_lib.actorq.config import Config
from quarl_lib.actorq.launch.program import Part, Program
from quarl_lib.actorq.link import Link, read
from quarl_lib.actorq.timing import StageTimer
from quarl_lib.actorq.weights.broadcast import SharedMemoryBroadcast
from quarl_lib.envs import control, specs

BLOCK_S = 0.05  # short beside the seconds over which a machine's caches and clocks change
ANSWER_TIMEOUT_S = 60.0


def measure(
    configs: Sequence[Config], counts: Sequence[int], rounds: int, seed: int = 0, seconds: float = BLOCK_S
) -> pd.DataFrame:
    """Let 1, and each of `counts`, actors act at once for `seconds`, in a new order every round.

    Args:
        configs: options of the actors, one for every precision; all actors read the same weights.
        counts: numbers of actors, none above the number of cores.

    Returns:
        One row per round, precision, count and actor: `round`, `precision`, `n_actors`, `actor_id`, `steps`, and
        `cpu_us`, the CPU time of inference and environment for a step in microseconds.

    Raises:
        ValueError: no actors, no rounds or no time.
        local.RunFailed: a process died.
    """
    from quarl_lib.actorq.launch import local
    from quarl_lib.actorq.learner.networks import initial_policy
    from quarl_lib.inference.pack import pack

    if min(counts, default=0) < 1:
        raise ValueError(f"counts={list(counts)}: give numbers of actors above 0")
    if rounds < 1:
        raise ValueError(f"rounds={rounds}: give at least 1")
    if seconds <= 0:
        raise ValueError(f"seconds={seconds}: give a time above 0")
    most, broadcasts = max(counts), []
    for config in configs:
        weights = pack(*initial_policy(config, seed), config.precision)
        broadcasts.append(SharedMemoryBroadcast(weights.nbytes, num_readers=most))
        broadcasts[-1].publisher().publish(weights)
    blocks = [(index, count) for index in range(len(configs)) for count in sorted({1, *counts})]
    rng = np.random.default_rng(seed)
    order = [(number, *blocks[i]) for number in range(rounds) for i in rng.permutation(len(blocks))]
    pipes = [Pipe() for _ in range(most - 1)]
    local.warm_up()
    with tempfile.TemporaryDirectory(prefix="quarl-") as directory:
        link = Link(Path(directory), most)
        work = (list(configs), broadcasts, seconds, link)
        followers = [Part(f"actor-{i + 1}", follow, (*work, i + 1, theirs)) for i, (_, theirs) in enumerate(pipes)]
        leader = Part("actor-0", lead, (*work, [ours for ours, _ in pipes], order), ends_run=True)
        with local.signals_as_exceptions():
            local.supervise(Program((leader, *followers), link, len(order), "contention"))
        return read(link.directory, "contention")


def slowdown(table: pd.DataFrame) -> pd.Series:
    """Return the CPU time of a step beside others over an actor's alone, by precision and number of actors.

    The geometric mean over rounds, in each of which both were measured. Never below 1: others do not speed an actor up.
    """
    cpu_us = table.groupby(["precision", "n_actors", "round"]).cpu_us.mean().unstack("n_actors")
    ratios = cpu_us.div(cpu_us[1], axis=0).stack()
    return np.exp(np.log(ratios).groupby(["precision", "n_actors"]).mean()).clip(lower=1.0)


def lead(
    configs: list[Config],
    broadcasts: list[SharedMemoryBroadcast],
    seconds: float,
    link: Link,
    followers: list[Connection],
    order: list[tuple[int, int, int]],
) -> None:
    """Act in every block, with as many followers as it wants, and note what all of them took."""
    actors = _actors(configs, broadcasts, actor_id=0)
    for follower in followers:
        _answer(follower)
    for done, (number, index, count) in enumerate(order):
        if link.should_stop():
            return
        beside = followers[: count - 1]
        for follower in beside:
            follower.send(index)
        taken = [actors[index].act(seconds), *(_answer(follower) for follower in beside)]
        block = {"round": number, "precision": configs[index].precision, "n_actors": count}
        rows = [{**block, "actor_id": i, "steps": steps, "cpu_us": cpu_us} for i, (steps, cpu_us) in enumerate(taken)]
        link.log("contention", rows)
        link.set_actor_steps(0, done + 1)


def follow(
    configs: list[Config],
    broadcasts: list[SharedMemoryBroadcast],
    seconds: float,
    link: Link,
    actor_id: int,
    leader: Connection,
) -> None:
    """Act whenever the leader says, until the run is over."""
    actors = _actors(configs, broadcasts, actor_id)
    leader.send(None)
    while not link.should_stop():
        if leader.poll(0.1):
            leader.send(actors[leader.recv()].act(seconds))


def _answer(follower: Connection) -> Any:
    if not follower.poll(ANSWER_TIMEOUT_S):
        raise TimeoutError(f"an actor did not answer within {ANSWER_TIMEOUT_S:g} s; see its log")
    return follower.recv()


def _actors(configs: list[Config], broadcasts: list[SharedMemoryBroadcast], actor_id: int) -> list[_Actor]:
    import torch

    torch.set_num_threads(1)
    actors = [_Actor(config, broadcast, actor_id) for config, broadcast in zip(configs, broadcasts, strict=True)]
    gc.freeze()
    return actors


class _Actor:
    """One actor's loop without replay and pulls, with weights that lie where all actors read them."""

    def __init__(self, config: Config, broadcast: SharedMemoryBroadcast, actor_id: int) -> None:
        from quarl_lib.actorq.actor.exploration import make_exploration
        from quarl_lib.actorq.actor.policy import policy_spec
        from quarl_lib.inference import make_engine

        self.environment = control.make(config.task, config.seed + actor_id, flat=True)
        environment_spec = specs.make_environment_spec(self.environment)
        self.engine = make_engine(policy_spec(config, environment_spec), config.precision, config.backend)
        self.engine.load(broadcast.subscriber(actor_id).fetch())
        rng = np.random.default_rng([config.seed, actor_id])
        self.explore = make_exploration(config, environment_spec, actor_id, rng)
        self.act(BLOCK_S)  # brings weights and environment into the caches

    def select_action(self, observation: Any) -> Any:
        return self.explore(self.engine(observation))

    def act(self, seconds: float) -> tuple[int, float]:
        """Return the steps taken in `seconds` of wall time, and this thread's CPU microseconds for one."""
        from quarl_lib.actorq.actor.loop import run_episode

        gc.collect()
        steps, adder, timer = 0, _NoReplay(), StageTimer()
        cpu, end = time.thread_time(), time.perf_counter() + seconds

        def after_step() -> bool:
            return time.perf_counter() < end

        while after_step():
            steps += run_episode(self.environment, self.select_action, adder, timer, after_step)[1]
        return steps, 1e6 * (time.thread_time() - cpu) / steps


class _NoReplay:
    """Takes transitions and keeps none."""

    def reset(self) -> None:
        """Forget nothing."""

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        """Keep nothing."""

    def add(self, action: Any, next_timestep: dm_env.TimeStep, extras: Any = ()) -> None:
        """Keep nothing."""

    def flush(self) -> None:
        """Keep nothing."""
