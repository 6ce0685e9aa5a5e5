"""Who has not been heard of: how long each part's heartbeat stood still."""

from __future__ import annotations

import time

from quarl_lib.actorq.link import CHECKPOINT, END, NOTHING, SAMPLE, START, Link

LONGEST_LOOK_S = 1.0  # while the supervisor itself was stopped, nobody's silence counts
# On top of stall_s: imports, a sampler that waits for a slow or hung actor (up to 7 s seen), a large replay, and the
# end, where that sampler and the server are waited for: how a part failed is known only afterwards.
PATIENCE_S = {NOTHING: 90.0, START: 90.0, SAMPLE: 10.0, CHECKPOINT: 270.0, END: 30.0}


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
