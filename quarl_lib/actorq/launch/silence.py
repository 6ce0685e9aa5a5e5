"""Who has not been heard of: how long each part's heartbeat stood still."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from quarl_lib.actorq.link import CHECKPOINT, END, NOTHING, SAMPLE, START, Link

LONGEST_LOOK_S = 1.0  # while the supervisor itself was stopped, nobody's silence counts
# On top of stall_s: imports, a sampler that waits for a slow or hung actor (up to 7 s seen), a large replay, and the
# end, where that sampler and the server are waited for: how a part failed is known only afterwards.
PATIENCE_S = {NOTHING: 90.0, START: 90.0, SAMPLE: 10.0, CHECKPOINT: 270.0, END: 30.0}


class Silence:
    """How long each heartbeat has stood still while this process looked and the other had a core, if it wants one."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._seen: dict[int, tuple[int, int]] = {}
        self._seconds: dict[int, float] = {}
        self._waited: dict[int, float] = {}
        self._looked_at = time.monotonic()

    def begin(self, slot: int) -> None:
        """Watch a slot anew: a process starts there."""
        self._link.board[slot] = 0
        self._seen[slot], self._seconds[slot] = (0, NOTHING), 0.0
        self._waited.pop(slot, None)

    def look(self, waited: Mapping[int, float]) -> None:
        """Look at every heartbeat.

        Args:
            waited: by slot, for how many seconds its process has waited for a core: that is no silence of its own. On a
                busy machine an evaluator, at the lowest priority, may have none for a minute.
        """
        now = time.monotonic()
        passed, self._looked_at = min(now - self._looked_at, LONGEST_LOOK_S), now
        for slot, before in self._seen.items():
            beat = self._link.heartbeat(slot)
            starved = waited.get(slot, 0.0) - self._waited.get(slot, waited.get(slot, 0.0))
            self._waited[slot] = waited.get(slot, 0.0)
            self._seconds[slot] = self._seconds[slot] + max(0.0, passed - starved) if beat == before else 0.0
            self._seen[slot] = beat

    def seconds(self, slot: int) -> float:
        """Return how long a slot has been silent."""
        return self._seconds[slot]

    def too_long(self, slot: int, stall_s: float) -> bool:
        """Say whether a slot has been silent for longer than its stage may take."""
        stage = self._seen[slot][1]
        return self._seconds[slot] > stall_s + PATIENCE_S.get(stage, 0.0)


def waited_s(pid: int | None) -> float:
    """Return how long a process's main thread has waited for a core, in seconds; 0 where the system does not say."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
