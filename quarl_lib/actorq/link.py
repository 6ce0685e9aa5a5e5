"""What one part of a running program sees of the others: a stop flag, counters, heartbeats, an address, a log."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from quarl_lib.actorq.memory import SharedBlock
from quarl_lib.actorq.timing import StageTimer

# int64 slots of the board. Then the heartbeats, one a part, and each actor's steps and pulled publication.
STOP, LEARNER_STEPS, LEARNER_DONE, PORT, PUBLISHED, PUBLISHED_NS, PUBLISHED_STEPS, BEATS = range(8)
RUNNING, ENDED, ABORTED = range(3)  # values of STOP
OTHER_PARTS = 16  # heartbeats beside the actors': learner, evaluator, watchers
# Where a part stands, kept in the low bits of its heartbeat; the count of its loop is above them.
STAGES = ("nothing", "start", "env_reset", "env_step", "observe", "sample", "learner_step", "broadcast", "checkpoint",
          "evaluate", "wait", "end")  # fmt: skip
NOTHING, START, ENV_RESET, ENV_STEP, OBSERVE, SAMPLE = range(6)
LEARNER_STEP, BROADCAST, CHECKPOINT, EVALUATE, WAIT, END = range(6, 12)
_ONE_BEAT = 256


class Stopped(Exception):
    """The run is to end; a wait was given up."""


class RunFailed(RuntimeError):
    """A part of the run failed; the text says which and why, with its traceback."""


class Link:
    """State that all processes of a run share: picklable, one memory behind every copy.

    Every counter has one writer, and an aligned 8-byte store is whole on the machines that this runs on.
    """

    def __init__(self, directory: Path, num_actors: int, weights: Any = None) -> None:
        self.directory, self.part, self.weights = Path(directory), "supervisor", weights
        self.replay: Any = None  # the memory of a local replay
        self.host = "localhost"  # where a replay server listens
        self.num_actors = num_actors
        self.started_at = self.now()
        self.resumed_steps, self.resumed_wall_s = 0, 0.0
        self.first_beat, self.last_beat = BEATS, BEATS + num_actors + OTHER_PARTS - 1
        self.beat_slot, self._beats = self.last_beat, 0
        self._steps_at = self.last_beat + 1
        self._pulled_at = self._steps_at + num_actors
        self.block = SharedBlock(8 * (self._pulled_at + num_actors))
        self.board = self.block.view.cast("q")
        (self.directory / "logs").mkdir(parents=True, exist_ok=True)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "board"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.board = self.block.view.cast("q")

    def beat(self, stage: int) -> None:
        """Say that this part's loop went on, and what it does next: one shared store."""
        self._beats += _ONE_BEAT
        self.board[self.beat_slot] = self._beats | stage

    def ticker(self, stage: int) -> Callable[[], None]:
        """Return `beat` for one stage of a loop in which every tenth of a microsecond counts."""
        board, slot, count = self.board, self.beat_slot, itertools.count(_ONE_BEAT | stage, _ONE_BEAT).__next__

        def tick() -> None:
            board[slot] = count()

        return tick

    def heartbeat(self, slot: int) -> tuple[int, int]:
        """Return a part's count and the stage that it is in; (0, NOTHING) before its first beat."""
        word = self.board[slot]
        return word // _ONE_BEAT, word % _ONE_BEAT

    def waiting(self) -> bool:
        """Say that this part waits for others, and whether it must end."""
        self.beat(WAIT)
        return self.board[STOP] != RUNNING

    def should_stop(self) -> bool:
        """Say whether this part must end: one read of a shared byte."""
        return self.board[STOP] != RUNNING

    def aborted(self) -> bool:
        """Say whether the run failed or was interrupted, as against having reached its end."""
        return self.board[STOP] == ABORTED

    def request_stop(self, reason: str) -> None:
        """End the run in good order: every part finishes what it has and returns."""
        if not self.should_stop():
            self.log("stop", [{"reason": reason, "wall_time_s": self.wall_time_s()}])
            self.board[STOP] = ENDED

    def abort(self) -> None:
        """End the run at once."""
        self.board[STOP] = ABORTED

    def actor_steps(self) -> int:
        """Return the environment steps that all actors took together."""
        return sum(self.board[self._steps_at : self._pulled_at])

    def actor_steps_of(self, actor_id: int) -> int:
        """Return the steps of one actor, those of its dead predecessors included."""
        return self.board[self._steps_at + actor_id]

    def set_actor_steps(self, actor_id: int, steps: int) -> None:
        """Publish the steps of one actor."""
        self.board[self._steps_at + actor_id] = steps

    def learner_steps(self) -> int:
        """Return the learner's update steps."""
        return self.board[LEARNER_STEPS]

    def set_learner_steps(self, steps: int) -> None:
        """Publish the learner's update steps."""
        self.board[LEARNER_STEPS] = steps

    def learner_done(self) -> bool:
        """Say whether the learner left its last snapshot."""
        return bool(self.board[LEARNER_DONE])

    def set_learner_done(self) -> None:
        """Say that no further snapshot comes."""
        self.board[LEARNER_DONE] = 1

    def published(self) -> int:
        """Return how many times the learner published weights."""
        return self.board[PUBLISHED]

    def note_publication(self) -> None:
        """Count a publication, with the time and the actor steps at which it came."""
        self.board[PUBLISHED_NS], self.board[PUBLISHED_STEPS] = int(1e9 * self.now()), self.actor_steps()
        self.board[PUBLISHED] += 1

    def note_publication_of(self, number: int, published_at_s: float, actor_steps: int) -> None:
        """Take over a publication that another machine made at a wall time, when the actors had taken their steps."""
        published_ns = int(1e9 * (self.started_at + published_at_s))
        self.board[PUBLISHED_NS], self.board[PUBLISHED_STEPS] = published_ns, actor_steps
        self.board[PUBLISHED] = number

    def publication(self) -> tuple[int, int, int]:
        """Return the newest publication's number, its time in nanoseconds of `now`, and the actor steps then."""
        return self.board[PUBLISHED], self.board[PUBLISHED_NS], self.board[PUBLISHED_STEPS]

    def pulled(self, actor_id: int) -> int:
        """Return the number of the publication that an actor runs; 0 before its first."""
        return self.board[self._pulled_at + actor_id]

    def set_pulled(self, actor_id: int, number: int) -> None:
        """Say which publication an actor runs."""
        self.board[self._pulled_at + actor_id] = number

    def set_address(self, address: str) -> None:
        """Say where replay listens; actors wait for it."""
        self.board[PORT] = int(address.rpartition(":")[2])

    def address(self, timeout_s: float = 60.0) -> str:
        """Wait for the replay's address.

        Raises:
            Stopped: the program was stopped meanwhile.
            TimeoutError: no server after `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while not self.board[PORT]:
            if self.should_stop():
                raise Stopped
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.part}: no replay server after {timeout_s:g} s; see the learner's log")
            time.sleep(0.01)
        return f"{self.host}:{self.board[PORT]}"

    def start_clock(self) -> None:
        """Let wall time begin now, or where a resumed run left it."""
        self.started_at = self.now() - self.resumed_wall_s

    def wall_time_s(self) -> float:
        """Return the seconds since the program started, those before it was resumed included; never goes back."""
        return self.now() - self.started_at

    def timer(self) -> StageTimer:
        """Return what books the stages of this part's loop."""
        return StageTimer()

    def now(self) -> float:
        """Return seconds by a clock that never goes back, the same in all parts."""
        return time.monotonic()

    def pause(self, seconds: float) -> None:
        """Sleep between two looks at something."""
        time.sleep(seconds)

    def wait_for_replay(self, seconds: float) -> None:
        """Sleep until the replay's other side may have gone on, about `seconds` at most."""
        time.sleep(seconds)

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of this part's process."""
        return time.process_time()

    def resume(self, actor_steps: int, wall_time_s: float) -> None:
        """Let counters and clock go on where they stood."""
        self.set_actor_steps(0, actor_steps)
        self.resumed_steps, self.resumed_wall_s = actor_steps, wall_time_s

    def log(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows to this part's file of a table in one write, so that a reader never meets half a row.

        Raises:
            OSError: the disk is full; nothing of these rows is left in the file.
        """
        lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path = self.directory / "logs" / f"{table}.{self.part}.jsonl"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            before = os.fstat(fd).st_size
            if os.write(fd, lines) < len(lines):
                os.ftruncate(fd, before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        finally:
            os.close(fd)


def read(directory: Path, table: str) -> pd.DataFrame:
    """Read all rows of a table so far, those of every part; empty where nothing was logged."""
    rows: list[dict[str, Any]] = []
    paths: list[Path] = []
    with contextlib.suppress(FileNotFoundError):  # a run that begins clears its folder
        paths = sorted((Path(directory) / "logs").glob(f"{table}.*.jsonl"))
    for path in paths:
        lines = path.read_text().splitlines(keepends=True)
        rows += [json.loads(line) for line in lines if line.endswith("\n")]  # a full disk can cut the last one short
    return pd.DataFrame(rows)
