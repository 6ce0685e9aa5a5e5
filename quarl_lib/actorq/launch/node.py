"""One machine of a cluster: its actors are processes with one memory, as on a single machine, and messages join it to
the learner's machine: newest weights and counters one way, transitions, rows and counters the other."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from quarl_lib.actorq.config import Config
from quarl_lib.actorq.launch.children import warm_up
from quarl_lib.actorq.launch.program import Part, replay_memory
from quarl_lib.actorq.launch.supervisor import Supervisor
from quarl_lib.actorq.link import LEARNER_DONE, LEARNER_STEPS, PORT, STOP, Link
from quarl_lib.actorq.replay import relay
from quarl_lib.actorq.weights.broadcast import SharedMemoryBroadcast

OWN_WORDS = (STOP, LEARNER_STEPS, LEARNER_DONE, PORT)  # of the board: written on the learner's machine alone
WAITING_TRANSITIONS = 65_536  # an actor's, until they are fetched; memory that is not used costs nothing
NOT_SENT = "stop."  # a machine whose actors are done says nothing about the run


@dataclass(frozen=True)
class Ahead:
    """What an actor's predecessor left behind: how often it was started, its steps, its transitions."""

    generation: int
    steps: int
    inserted: int


@dataclass(frozen=True)
class Down:
    """What the learner's machine says: the board's own words, every actor's steps, the replay's counts."""

    words: tuple[int, ...]
    publication: tuple[int, float, int]  # its number, its wall time, the actors' steps then
    actor_steps: tuple[int, ...]
    replay: np.ndarray | None


@dataclass(frozen=True)
class Up:
    """What a machine answers; `written` holds what came to its log files since the last time, `failed` why it ended."""

    actor_steps: dict[int, int]
    pulled: dict[int, int]
    transitions: dict[int, np.ndarray]
    written: dict[str, bytes]
    running: int
    failed: str


def versions() -> dict[str, str]:
    """Return what must be alike on every machine: Python's, this package's and NumPy's versions."""
    return {
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("quarl-lib", "numpy", "ray")},
    }


class Node:
    """A machine's actors and their supervisor; made where they are to run."""

    def __init__(self, config: Config, name: str, host: str, num_bytes: int, prepare: Callable[[], None]) -> None:
        prepare()
        self._config, self._directory = config, Path(tempfile.mkdtemp(prefix="quarl-"))
        weights = SharedMemoryBroadcast(num_bytes, config.n_actors) if config.transport == "shared_memory" else None
        link = self.link = Link(self._directory, config.n_actors, weights)
        link.part, link.host = name, host
        if config.local_replay:
            rings = config.replace(max_replay=max(config.max_replay, WAITING_TRANSITIONS * config.n_actors))
            link.replay = replay_memory(rings)
        self._publisher = weights.publisher() if weights is not None else None
        self._handed: dict[int, int] = {}  # transitions of each actor here that went to the learner
        self._sent: dict[str, int] = {}  # bytes of each log file that did
        self._waiting: deque[tuple[Part, Ahead]] = deque()
        self._failed, self._closing = "", threading.Event()
        warm_up()
        self._supervisor = Supervisor(link, config.update_period, prepare)
        self._thread = threading.Thread(target=self._supervise, daemon=True)
        self._thread.start()

    def ready(self) -> None:
        """Answer: this process has imported what its actors need."""

    def publish(self, buffer: np.ndarray, number: int, published_at_s: float, actor_steps: int) -> int:
        """Lay a publication where every actor here uses it in place; return its number."""
        assert self._publisher is not None
        self._publisher.publish(buffer, number)
        self.link.note_publication_of(number, published_at_s, actor_steps)
        return number

    def start(self, parts: list[tuple[Part, Ahead]], wall_time_s: float) -> None:
        """Start actors, which go on where their predecessors stood; the run's clock shows `wall_time_s`."""
        self.link.started_at = time.monotonic() - wall_time_s
        for part, ahead in parts:
            assert part.actor_id is not None
            self.link.set_actor_steps(part.actor_id, ahead.steps)
            if self.link.replay is not None:
                relay.begin_at(self.link.replay, part.actor_id, ahead.inserted)
            self._handed[part.actor_id] = ahead.inserted
            self._waiting.append((part, ahead))

    def exchange(self, down: Down) -> Up:
        """Take over what the learner's machine says and return what is new here.

        Raises:
            BufferError: transitions were overwritten before they were fetched.
        """
        link, memory = self.link, self.link.replay
        for word, value in zip(OWN_WORDS, down.words, strict=True):
            if word != STOP or value:
                link.board[word] = value
        if self._publisher is None:  # the actors fetch weights from the learner's server themselves
            link.note_publication_of(*down.publication)
        for actor_id, steps in enumerate(down.actor_steps):
            if actor_id not in self._handed:
                link.set_actor_steps(actor_id, steps)
        transitions = {}
        if memory is not None and down.replay is not None:
            relay.mirror(memory, down.replay, but=self._handed)
            for actor_id, number in self._handed.items():
                if len(vectors := relay.inserted_since(memory, actor_id, number)):
                    transitions[actor_id] = vectors
                    self._handed[actor_id] += len(vectors)
        return Up(
            {actor_id: link.actor_steps_of(actor_id) for actor_id in self._handed},
            {actor_id: link.pulled(actor_id) for actor_id in self._handed},
            transitions,
            self._written(),
            len(self._waiting) + len(self._supervisor.running),
            self._failed,
        )

    def close(self) -> dict[str, bytes]:
        """End what still runs here and leave nothing behind; return what was written last."""
        self.link.abort()
        self._closing.set()
        self._thread.join()
        written = self._written()
        shutil.rmtree(self._directory, ignore_errors=True)
        return written

    def _supervise(self) -> None:
        try:
            while not self._closing.is_set():
                while self._waiting:
                    part, ahead = self._waiting[0]
                    self._supervisor.generations[part.name] = ahead.generation - 1
                    self._supervisor.start(self._here(part))
                    self._waiting.popleft()
                self._supervisor.look()
        except Exception as error:
            self._failed = f"{self.link.part}: {error}"
        finally:
            self._supervisor.end()

    def _here(self, part: Part) -> Part:
        config, _, *others = part.arguments
        return replace(part, arguments=(config, self.link, *others))

    def _written(self) -> dict[str, bytes]:
        written = {}
        for path in sorted((self._directory / "logs").iterdir()):
            with path.open("rb") as file:
                file.seek(self._sent.get(path.name, 0))
                new = file.read()
            if path.suffix == ".jsonl":
                new = new[: new.rfind(b"\n") + 1]  # a row is written whole, unless the disk is full
            if new and not path.name.startswith(NOT_SENT):
                written[path.name] = new
                self._sent[path.name] = self._sent.get(path.name, 0) + len(new)
        return written
