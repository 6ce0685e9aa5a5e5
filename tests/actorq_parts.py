"""Parts that stand in for real ones where a test is about processes: they count, log, and die when told to."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from quarl_lib.actorq.launch.program import Part, Program
from quarl_lib.actorq.link import Link
from quarl_lib.actorq.memory import SharedBlock


def learn(link: Link) -> None:
    link.set_address("localhost:1")
    while not link.should_stop():
        link.set_learner_steps(link.learner_steps() + 1)
        time.sleep(0.005)


def act(link: Link, actor_id: int, generation: int) -> None:
    link.log("started", [{"actor_id": actor_id, "generation": generation, "time": time.time()}])
    while not link.should_stop():
        link.set_actor_steps(actor_id, link.actor_steps_of(actor_id) + 1)
        link.log("episodes", [{"actor_id": actor_id, "actor_steps": link.actor_steps_of(actor_id)}])
        time.sleep(0.005)


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


def program(directory: Path, learner=learn, actors=(act, act), actor_steps: int = 10**9) -> Program:
    """Build a program of such parts."""
    link = Link(directory, len(actors))
    link.weights = SharedBlock(1 << 20)  # type: ignore[assignment]  # held by every process, as real weights are
    parts = [Part("learner", learner, (link,), ends_run=True)]
    parts += [Part(f"actor-{i}", function, (link, i), replaceable=True) for i, function in enumerate(actors)]
    return Program(tuple(parts), link, actor_steps, "test")
