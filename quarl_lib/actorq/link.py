"""What one part of a running program sees of the others: a stop flag, counters, the replay's address, its log."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from quarl_lib.actorq.memory import SharedBlock

STOP, LEARNER_STEPS, PORT, ACTOR_STEPS = range(4)  # int64 slots of the board; one per actor follows the last
RUNNING, ENDED, ABORTED = range(3)  # values of STOP


class Link:
    """State that all processes of a run share: picklable, one memory behind every copy.

    Every counter has one writer, and an aligned 8-byte store is whole on the machines that this runs on.
    """

    def __init__(self, directory: Path, num_actors: int, weights: Any = None) -> None:
        self.directory, self.part, self.weights = Path(directory), "supervisor", weights
        self.started_at = time.time()
        self.resumed_steps, self.resumed_wall_s = 0, 0.0
        self.block = SharedBlock(8 * (ACTOR_STEPS + num_actors))
        self.board = self.block.view.cast("q")
        (self.directory / "logs").mkdir(parents=True, exist_ok=True)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "board"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.board = self.block.view.cast("q")

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
        return sum(self.board[ACTOR_STEPS:])

    def actor_steps_of(self, actor_id: int) -> int:
        """Return the steps of one actor, those of its dead predecessors included."""
        return self.board[ACTOR_STEPS + actor_id]

    def set_actor_steps(self, actor_id: int, steps: int) -> None:
        """Publish the steps of one actor."""
        self.board[ACTOR_STEPS + actor_id] = steps

    def learner_steps(self) -> int:
        """Return the learner's update steps."""
        return self.board[LEARNER_STEPS]

    def set_learner_steps(self, steps: int) -> None:
        """Publish the learner's update steps."""
        self.board[LEARNER_STEPS] = steps

    def set_address(self, address: str) -> None:
        """Say where replay listens; actors wait for it."""
        self.board[PORT] = int(address.rpartition(":")[2])

    def address(self, timeout_s: float = 60.0) -> str:
        """Wait for the replay's address.

        Raises:
            TimeoutError: no server after `timeout_s`, or the program was stopped meanwhile.
        """
        deadline = time.monotonic() + timeout_s
        while not self.board[PORT]:
            if self.should_stop() or time.monotonic() > deadline:
                raise TimeoutError(f"{self.part}: no replay server after {timeout_s:g} s; see the learner's log")
            time.sleep(0.01)
        return f"localhost:{self.board[PORT]}"

    def start_clock(self) -> None:
        """Let wall time begin now, or where a resumed run left it."""
        self.started_at = time.time() - self.resumed_wall_s

    def wall_time_s(self) -> float:
        """Return the seconds since the program started, those before it was resumed included."""
        return time.time() - self.started_at

    def begin(self) -> None:
        """Forget the rows of an earlier run in the same folder."""
        for path in (self.directory / "logs").iterdir():
            path.unlink()

    def resume(self, actor_steps: int, wall_time_s: float) -> None:
        """Go on from a checkpoint: counters and clock as they stood there, rows logged after it forgotten."""
        self.set_actor_steps(0, actor_steps)
        self.resumed_steps, self.resumed_wall_s = actor_steps, wall_time_s
        for path in (self.directory / "logs").glob("*.jsonl"):
            lines = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
            path.write_text("".join(line for line in lines if json.loads(line).get("wall_time_s", 0.0) <= wall_time_s))

    def log(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows to this part's file of a table in one write, so that a reader never meets half a row."""
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        fd = os.open(self.directory / "logs" / f"{table}.{self.part}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(fd, lines.encode())
        finally:
            os.close(fd)


def read(directory: Path, table: str) -> pd.DataFrame:
    """Read all rows of a table so far, those of every part; empty where nothing was logged."""
    rows: list[dict[str, Any]] = []
    for path in sorted((Path(directory) / "logs").glob(f"{table}.*.jsonl")):
        lines = path.read_text().splitlines(keepends=True)
        rows += [json.loads(line) for line in lines if line.endswith("\n")]  # a full disk can cut the last one short
    return pd.DataFrame(rows)
