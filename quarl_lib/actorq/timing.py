"""Time the stages of a loop at a cost far below the loop's own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

STAGES = (
    "env_step", "select_action", "observe", "pull", "deserialize", "load_weights",
    "sample", "learner_step", "quantize", "broadcast",
)  # fmt: skip


class StageTimer:
    """Accumulate seconds and counts per stage; `lap` costs one clock read and two additions.

    Stages follow one another: `start()` sets the mark, every `lap(stage)` books the time since the last mark.
    Stages so measured neither overlap nor leave a gap, and their sum is the time from `start` to the last lap.
    """

    __slots__ = ("_mark", "counts", "seconds")

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.counts: defaultdict[str, int] = defaultdict(int)
        self._mark = perf_counter()

    def start(self) -> None:
        """Set the mark from which the next lap counts."""
        self._mark = perf_counter()

    def lap(self, stage: str, num_bytes: int = 0) -> float:
        """Book the time since the last mark under `stage` and return it in seconds.

        `num_bytes` of weights were moved: a virtual clock charges for them.
        """
        now = perf_counter()
        elapsed = now - self._mark
        self._mark = now
        self.seconds[stage] += elapsed
        self.counts[stage] += 1
        return elapsed

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Book the time of a block under `name`, apart from the running mark."""
        begin = perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += perf_counter() - begin
            self.counts[name] += 1

    def rows(self, **columns: object) -> list[dict[str, object]]:
        """Return one row per stage: the given columns, stage, seconds, count."""
        return [{**columns, "stage": s, "seconds": t, "count": self.counts[s]} for s, t in self.seconds.items()]

    def reset(self) -> None:
        """Forget what was booked and set the mark."""
        self.seconds.clear()
        self.counts.clear()
        self.start()
