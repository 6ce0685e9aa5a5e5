"""Several trainings on one core, each for a short while in turn: what the core loses falls on all alike."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

Answer = TypeVar("Answer")
Pause = Callable[[], None]


def in_turns(jobs: Sequence[Callable[[Pause], Answer]]) -> list[Answer]:
    """Return every job's answer; a job calls the `pause` that it gets to let the next one go on.

    Only one runs at a time, in a thread of its own with global random states of its own: each ends as if it had been
    alone, and `time.thread_time` is its own processor time. Raises what the first job to fail raised, after all ended.
    """
    lanes = [_Lane(job) for job in jobs]
    for lane, following in zip(lanes, [*lanes[1:], *lanes[:1]], strict=True):
        lane.following = following
    for lane in lanes:
        lane.start()
    if lanes:
        lanes[0].go.set()
    for lane in lanes:
        lane.join()
    for lane in lanes:
        if lane.error is not None:
            raise lane.error
    return [lane.answer for lane in lanes]


class _Lane(threading.Thread):
    following: _Lane

    def __init__(self, job: Callable[[Pause], Any]) -> None:
        super().__init__(daemon=True)
        self._job, self.go, self.ended = job, threading.Event(), False
        self.answer: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        self.go.wait()
        try:
            self.answer = self._job(self.pause)
        except BaseException as error:  # raised again where the others are known to have ended
            self.error = error
        self.ended = True
        self._next_alive().go.set()

    def pause(self) -> None:
        """Let the others run and come back with the random states as they were."""
        following = self._next_alive()
        if following is self:
            return
        kept = (random.getstate(), np.random.get_state(), torch.get_rng_state())  # noqa: NPY002  Stable-Baselines3 draws from it
        self.go.clear()
        following.go.set()
        self.go.wait()
        random.setstate(kept[0])
        np.random.set_state(kept[1])  # noqa: NPY002
        torch.set_rng_state(kept[2])

    def _next_alive(self) -> _Lane:
        lane = self.following
        while lane.ended and lane is not self:
            lane = lane.following
        return lane
