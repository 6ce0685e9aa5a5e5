"""Run a program under a virtual clock: real learning, in one process, at costs from a table.

Every part keeps its code and gets a clock of its own. Where it books a stage on its timer, the stage's cost is added to
that clock, and the part whose clock is earliest goes next: a discrete-event simulation with coroutines. What a stage
does lies in memory from its beginning on; a part that waits for the replay goes on when the stage that let it ends.
Nothing depends on the machine's load: the same seed and table give the same rows.
"""

from __future__ import annotations

import contextlib
import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import greenlet
import numpy as np
import pandas as pd

from quarl_lib import results
from quarl_lib.actorq.config import Config
from quarl_lib.actorq.launch.costs import BEHIND, Cost
from quarl_lib.actorq.launch.local import TABLES
from quarl_lib.actorq.launch.program import Part, build
from quarl_lib.actorq.link import Link, Stopped, read
from quarl_lib.actorq.timing import StageTimer

REPORT_EVERY = 1000  # actor steps between two calls of progress
WAIT = "wait"
LONGEST_PAUSE_S = 0.002  # a look costs no time here, and what is seen late would be learned for nothing


def run(
    config: Config, directory: Path, costs: Mapping[str, Cost], progress: results.Progress = results.no_progress,
    evaluated: bool = True, cores: int = 0,
) -> dict[str, pd.DataFrame]:  # fmt: skip
    """Run an ActorQ program to its end in virtual time and return its tables, as `launch.local.run` does.

    `wall_time_s` in the tables is virtual time. The evaluator takes no time: as on a machine with a core to spare.
    There are no checkpoints, and nothing is resumed: a run that goes on would not be the same twice.

    Args:
        costs: seconds of every stage, drawn by a generator that is passed in; the second argument is the bytes of
            weights that the stage moves.
        cores: that all parts share, a stage a core; 0: each part has its own.
    """
    import torch

    config = config.replace(replay="local", checkpoint_every=0, resume=False)
    threads = torch.get_num_threads()
    clock = Clock(costs, config.seed, cores)
    program = build(config, Path(directory), evaluated=evaluated, make_link=partial(VirtualLink, clock=clock))
    link, total = program.link, config.actor_steps

    def report() -> None:
        link.part = "supervisor"
        inserted = {"inserted": link.replay.inserted(link.replay.counts())}
        link.log("emissions", [_energy(config, clock.worked(), clock.time()) | inserted])
        progress(min(link.actor_steps(), total), total, program.label)

    try:
        report()
        clock.run(program.parts, link, report)
        report()
    finally:
        torch.set_num_threads(threads)  # the parts set it for what they take to be their own process
    return {table: read(link.directory, table) for table in TABLES}


def _energy(config: Config, worked_s: float, wall_time_s: float) -> dict[str, object]:
    """Return a row as the real meter's: each part has a core of its own, and draws power while it works."""
    watts_per_core = config.cpu_watts / (config.n_actors + 1)
    cpu, ram = (watts * seconds / 3.6e6 for watts, seconds in
                ((watts_per_core, worked_s), (config.ram_watts, wall_time_s)))  # fmt: skip
    return {
        "cpu_energy_kwh": cpu, "ram_energy_kwh": ram, "gpu_energy_kwh": 0.0, "energy_kwh": cpu + ram,
        "emissions_kg": (cpu + ram) * config.carbon_grams_per_kwh / 1000, "cpu_source": "modelled",
        "ram_source": "modelled", "gpu_source": "no GPU", "energy_source": "modelled", "metered_s": wall_time_s,
        "watts_per_core": watts_per_core, "wall_time_s": wall_time_s,
    }  # fmt: skip


class Coroutine:
    """One part as a coroutine, with its clock in seconds."""

    def __init__(self, number: int, part: Part, parent: greenlet.greenlet) -> None:
        self.number, self.part, self.time, self.worked = number, part, 0.0, 0.0
        self.looks_again = False  # woken while it waited for the replay, and not yet past it
        self.coroutine = greenlet.greenlet(self._run, parent)

    def _run(self) -> None:
        with contextlib.suppress(Stopped):
            self.part.function(*self.part.arguments, *([0] if self.part.replaceable else []))


class Clock:
    """Lets the parts go on in the order of their clocks."""

    def __init__(self, costs: Mapping[str, Cost], seed: int, cores: int = 0) -> None:
        self.costs, self.seed = costs, seed
        self._cores_free_at = [0.0] * cores
        self._tasks: list[Coroutine] = []
        self._running: Coroutine | None = None
        self._queue: list[tuple[float, int, Coroutine]] = []
        self._waiting: deque[Coroutine] = deque()  # for the replay's other side, first come first served
        self._hub = greenlet.getcurrent()

    def time(self) -> float:
        """Return the time of the part that runs, in seconds; of the last one after the end, 0 before any."""
        return self._running.time if self._running else 0.0

    def worked(self) -> float:
        """Return the seconds that all parts worked together, their waiting left out."""
        return sum(task.worked for task in self._tasks)

    def number(self) -> int:
        """Return the number of the part that runs."""
        return self._current().number

    def run(self, parts: Sequence[Part], link: Link, report: Callable[[], None] = lambda: None) -> None:
        """Run every part to its end, with a report now and then; an error in one ends all and is raised."""
        self._hub = greenlet.getcurrent()
        tasks = self._tasks = [Coroutine(number, part, self._hub) for number, part in enumerate(parts)]
        for task in tasks:
            self._push(task)
        reported = 0
        try:
            while self._queue or self._waiting:
                if link.should_stop() or not self._queue:
                    self._wake(len(self._waiting))
                _, _, task = heapq.heappop(self._queue)
                self._running, link.part = task, task.part.name
                task.coroutine.switch()
                if task.coroutine.dead:
                    self._ended(task, tasks, link)
                if link.actor_steps() - reported >= REPORT_EVERY:
                    reported = link.actor_steps()
                    report()
        finally:
            for task in tasks:
                if task.coroutine:  # started and not at its end
                    task.coroutine.throw(greenlet.GreenletExit)

    def _ended(self, task: Coroutine, tasks: list[Coroutine], link: Link) -> None:
        if task.part.ends_run:
            link.request_stop(f"{task.part.name} ended")
        elif task.part.replaceable and all(other.coroutine.dead for other in tasks if other.part.replaceable):
            link.request_stop("the actors took their steps")

    def spend(self, seconds: float) -> None:
        """Let the running part's time go by; another goes on if it is earlier now."""
        task = self._current()
        task.time += seconds
        if self._queue and self._queue[0][0] < task.time:
            self._push(task)
            self._hub.switch()

    def book(self, stage: str, num_bytes: int, rng: np.random.Generator) -> float:
        """Spend what a stage costs and return it; at its end one of those who wait for the replay looks again."""
        task = self._current()
        task.looks_again = False
        cost = self.costs[stage](rng, num_bytes)
        task.worked += cost
        waited = self._take_core(task.time, cost)
        behind = self.costs.get(BEHIND.get(stage, ""))
        if behind is not None and self._cores_free_at:
            self._take_core(task.time + waited + cost, behind(rng, 0))
        if self._waiting and stage in ("observe", "sample"):
            self._wake(1, task.time + waited + cost)
        self.spend(waited + cost)
        return cost

    def _take_core(self, now: float, seconds: float) -> float:
        """Take the core that is free first and return the wait for it; parts come in the order of their clocks."""
        if not self._cores_free_at:
            return 0.0
        begin = max(now, self._cores_free_at[0])
        heapq.heapreplace(self._cores_free_at, begin + seconds)
        return begin - now

    def wait_for_replay(self) -> None:
        """Stop the running part until the replay's other side has gone on."""
        task = self._current()
        (self._waiting.appendleft if task.looks_again else self._waiting.append)(task)
        self._hub.switch()

    def _wake(self, count: int, now: float = 0.0) -> None:
        for _ in range(count):
            task = self._waiting.popleft()
            task.time, task.looks_again = max(task.time, now or self.time()), True
            self._push(task)

    def _push(self, task: Coroutine) -> None:
        heapq.heappush(self._queue, (task.time, task.number, task))

    def _current(self) -> Coroutine:
        assert self._running is not None, "only a running part has a clock"
        return self._running


class VirtualTimer(StageTimer):
    """Books a stage at its cost, and what the part waited for others before it as the stage "wait"."""

    __slots__ = ("_clock", "_rng")

    def __init__(self, clock: Clock) -> None:
        self._clock, self._rng = clock, np.random.default_rng([clock.seed, clock.number()])
        super().__init__()
        self.start()

    def start(self) -> None:
        """Set the mark from which the next lap counts."""
        self._mark = self._clock.time()

    def lap(self, stage: str, num_bytes: int = 0) -> float:
        """Let the stage's cost go by, book it under `stage`, and return it in seconds."""
        cost = self._clock.book(stage, num_bytes, self._rng)
        now = self._clock.time()
        self.seconds[WAIT] += now - self._mark - cost
        self.seconds[stage] += cost
        self.counts[stage] += 1
        self._mark = now
        return cost


class VirtualLink(Link):
    """A link whose time is the running part's own."""

    def __init__(self, directory: Path, num_actors: int, weights: Any, clock: Clock) -> None:
        self.clock = clock
        super().__init__(directory, num_actors, weights)

    def timer(self) -> StageTimer:
        """Return a timer that spends what a stage costs."""
        return VirtualTimer(self.clock)

    def now(self) -> float:
        """Return the running part's virtual time."""
        return self.clock.time()

    def pause(self, seconds: float) -> None:
        """Let virtual time go by."""
        self.clock.spend(min(seconds, LONGEST_PAUSE_S))

    def wait_for_replay(self, seconds: float) -> None:
        """Let the others go on until one of them changed the replay."""
        self.clock.wait_for_replay()

    def cpu_seconds(self) -> float:
        """Return 0: nothing here takes the time of a core that is timed."""
        return 0.0
