"""Parts that stand in for real ones where a test is about processes: they count, log, and die when told to."""

from __future__ import annotations

import errno
import math
import os
import signal
import time
from pathlib import Path
from typing import Any

from quarl_lib.actorq.launch.program import Part, Program
from quarl_lib.actorq.link import ENV_STEP, SAMPLE, Link
from quarl_lib.actorq.memory import SharedBlock


def learn(link: Link) -> None:
    link.set_address("localhost:1")
    while not link.should_stop():
        link.set_learner_steps(link.learner_steps() + 1)
        link.beat(SAMPLE)
        time.sleep(0.005)


def act(link: Link, actor_id: int, generation: int) -> None:
    link.log("started", [{"actor_id": actor_id, "generation": generation, "time": time.time()}])
    while not link.should_stop():
        link.set_actor_steps(actor_id, link.actor_steps_of(actor_id) + 1)
        link.beat(ENV_STEP)
        link.log("episodes", [{"actor_id": actor_id, "actor_steps": link.actor_steps_of(actor_id)}])
        time.sleep(0.005)


def act_and_hang_once(link: Link, actor_id: int, generation: int) -> None:
    """Let the first generation's environment never come back from a step."""
    for _ in range(20 if generation == 0 else 10**9):
        if link.should_stop():
            return
        link.set_actor_steps(actor_id, link.actor_steps_of(actor_id) + 1)
        link.beat(ENV_STEP)
        time.sleep(0.005)
    time.sleep(600)


def act_with_old_weights(link: Link, actor_id: int, generation: int) -> None:
    link.set_pulled(actor_id, 1)
    while not link.should_stop():
        link.set_actor_steps(actor_id, link.actor_steps_of(actor_id) + 1)
        time.sleep(0.005)


def publish(link: Link) -> None:
    while not link.should_stop():
        link.note_publication()
        time.sleep(0.005)


def act_until_the_end_and_raise(link: Link, actor_id: int, generation: int) -> None:
    while not link.should_stop():
        link.set_actor_steps(actor_id, link.actor_steps_of(actor_id) + 1)
        time.sleep(0.005)
    raise ZeroDivisionError("in the last flush")


def fill_the_disk(link: Link, actor_id: int, generation: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def act_a_little(link: Link, actor_id: int, generation: int) -> None:
    link.set_actor_steps(actor_id, 5)


def act_and_raise(link: Link, actor_id: int, generation: int) -> None:
    raise ZeroDivisionError(f"observation of actor {actor_id}, generation {generation}")


def die(link: Link) -> None:
    while link.actor_steps() < 20:
        time.sleep(0.005)
    os.kill(os.getpid(), signal.SIGKILL)


def hang(link: Link, actor_id: int, generation: int) -> None:
    """Neither look at the stop flag nor heed SIGTERM, as a thread stuck in a library does."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        link.set_actor_steps(actor_id, link.actor_steps_of(actor_id) + 1)
        time.sleep(0.01)


def program(
    directory: Path,
    learner=learn,
    actors=(act, act),
    actor_steps: int = 10**9,
    stall_s: float = math.inf,
    period: int = 0,
    grace_s: float = 2.0,
) -> Program:
    """Build a program of such parts."""
    link = Link(directory, len(actors))
    link.weights = SharedBlock(1 << 20)  # type: ignore[assignment]  # held by every process, as real weights are
    watched: dict[str, Any] = {"stall_s": stall_s, "environment": "gym:Test-v0"}
    parts = [Part("learner", learner, (link,), ends_run=True, **watched)]
    parts += [
        Part(f"actor-{i}", function, (link, i), replaceable=True, actor_id=i, grace_s=grace_s, **watched)
        for i, function in enumerate(actors)
    ]
    return Program(tuple(parts), link, actor_steps, "test", period)
