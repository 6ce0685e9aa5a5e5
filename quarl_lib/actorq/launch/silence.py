"""Who has not been heard of: how long each part's heartbeat stood still, and whether the fork server works."""

from __future__ import annotations

import contextlib
import time
from multiprocessing import forkserver

import psutil

from quarl_lib.actorq.link import CHECKPOINT, NOTHING, SAMPLE, START, Link

LONGEST_LOOK_S = 1.0  # while the supervisor itself was stopped, nobody's silence counts
# On top of stall_s: imports, a sampler that waits for a slow or hung actor (up to 7 s seen), a large replay.
PATIENCE_S = {NOTHING: 90.0, START: 90.0, SAMPLE: 10.0, CHECKPOINT: 270.0}


class Silence:
    """How long each slot's heartbeat has stood still while this process looked; monotonic time."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._seen: dict[int, tuple[int, int]] = {}
        self._seconds: dict[int, float] = {}
        self._looked_at = time.monotonic()

    def begin(self, slot: int) -> None:
        """Watch a slot anew: a process starts there."""
        self._link.board[slot] = 0
        self._seen[slot], self._seconds[slot] = (0, NOTHING), 0.0

    def look(self) -> None:
        """Look at every heartbeat."""
        now = time.monotonic()
        passed, self._looked_at = min(now - self._looked_at, LONGEST_LOOK_S), now
        for slot, before in self._seen.items():
            beat = self._link.heartbeat(slot)
            self._seconds[slot] = self._seconds[slot] + passed if beat == before else 0.0
            self._seen[slot] = beat

    def seconds(self, slot: int) -> float:
        """Return how long a slot has been silent."""
        return self._seconds[slot]

    def too_long(self, slot: int, stall_s: float) -> bool:
        """Say whether a slot has been silent for longer than its stage may take."""
        stage = self._seen[slot][1]
        return self._seconds[slot] > stall_s + PATIENCE_S.get(stage, 0.0)


class ForkServer:
    """The process that forks the parts and says how they ended, as the caller sees it; psutil knows it by its start."""

    def __init__(self) -> None:
        self._process: psutil.Process | None = None
        pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
        with contextlib.suppress(psutil.Error):
            self._process = psutil.Process(pid) if pid else None
        self._stopped_s, self._looked_at = 0.0, time.monotonic()

    def status(self) -> str:
        """Return psutil's word for what it does; "gone" where it ended."""
        try:
            status = self._process.status() if self._process is not None else "gone"
        except psutil.Error:
            return "gone"
        return "gone" if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) else status

    def ended(self) -> bool:
        """Say whether it is gone: then no part can be started, and how one ended is not known."""
        return self.status() == "gone"

    def is_stopped(self) -> bool:
        """Say whether it is stopped (SIGSTOP): it then starts no part."""
        return self.status() == psutil.STATUS_STOPPED

    def stopped_s(self) -> float:
        """Return for how long it has been found stopped."""
        now = time.monotonic()
        passed, self._looked_at = min(now - self._looked_at, LONGEST_LOOK_S), now
        self._stopped_s = self._stopped_s + passed if self.is_stopped() else 0.0
        return self._stopped_s

    def kill(self) -> None:
        """End it; the next run starts another."""
        if self._process is not None:
            with contextlib.suppress(psutil.Error):
                self._process.kill()
        deadline = time.monotonic() + 2.0  # psutil's own wait would take its end from multiprocessing, which asks later
        while not self.ended() and time.monotonic() < deadline:
            time.sleep(0.01)
