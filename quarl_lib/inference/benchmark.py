"""Time calls in pairs with a baseline, so that a ratio holds on a machine that does other work as well."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter, perf_counter_ns, thread_time_ns

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from quarl_lib.inference.extension import native
from quarl_lib.inference.pack import aligned_empty

Call = Callable[[], object]
MEASURED_US = 20.0  # a clock read costs up to 0.1 us: calls shorter than this are timed several at once
WAITED_SHARE = 0.03  # of a timed stretch that the thread may have spent off the processor
MOST_TRIES = 4  # times the wanted calls, on a machine that interrupts nearly all of them


@dataclass(frozen=True)
class Schedule:
    """How often to measure: `rounds` pairs of blocks; a block has at most `calls` timed calls or `block_ms` ms."""

    rounds: int = 10
    calls: int = 8
    block_ms: float = 12.0
    # Untimed ones that bring a block's own weights back into the caches. A kernel that skips columns has them all there
    # only when every observation of the round has been seen once.
    warm_calls: int = 16

    def __post_init__(self) -> None:
        for name in ("rounds", "calls", "block_ms"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}={getattr(self, name)}: give a positive number")


@dataclass(frozen=True)
class Block:
    """Microseconds per call of one block of calls: their median and their best."""

    median_us: float
    best_us: float


@dataclass(frozen=True)
class Pair:
    """One round of one candidate: its block and the block of the baseline that ran right beside it."""

    name: str
    round: int
    candidate: Block
    baseline: Block


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Hold torch and the BLAS libraries to one thread, and the garbage collector back, while a block measures."""
    threads, collecting = torch.get_num_threads(), gc.isenabled()
    torch.set_num_threads(1)
    gc.disable()
    try:
        with threadpool_limits(limits=1):
            yield
    finally:
        torch.set_num_threads(threads)
        if collecting:
            gc.enable()


def touch(megabytes: float) -> Call:
    """Return a call that reads `megabytes` of data of its own and so pushes other data out of the caches."""
    data = np.ones(max(1, int(megabytes * 1e6) // 4), np.float32)
    return lambda: np.dot(data, data)


def reader(num_bytes: int) -> Call:
    """Return a call that reads `num_bytes` once, front to back: what memory allows to an engine of so many weights."""
    extension = native()
    if extension is not None:
        data = aligned_empty(max(256, num_bytes))
        data[:] = 1
        return lambda: extension.read_seconds(data, 1)
    numbers = np.ones(max(1, num_bytes // 4), np.float32)
    return lambda: np.dot(numbers, numbers)


def peak_products(floats: bool, tries: int = 60) -> float:
    """Return the multiply-adds a microsecond of this core, of 8-bit integers or floats; 0 without the extension.

    The best of many short runs, with nothing to load: the roof that memory lets no engine reach.
    """
    extension = native()
    if extension is None:
        return 0.0
    return max(extension.products_per_second(floats, 1000) for _ in range(tries)) / 1e6


def estimate_us(call: Call, budget_ms: float = 5.0) -> float:
    """Return the best of a few calls, after two untimed ones, within about `budget_ms` milliseconds."""
    call()
    call()
    best, deadline = np.inf, perf_counter() + budget_ms / 1e3
    while True:
        best = min(best, _timed(call, 1)[0])
        if perf_counter() > deadline:
            return best


def time_block(call: Call, schedule: Schedule, expected_us: float, before: Call | None = None) -> Block:
    """Time one block of calls; `before` runs, untimed, ahead of every timed call (a cold cache)."""
    # A call with cold caches cannot be repeated at once; a hot one that the clock would blur must be.
    repeats = 1 if before else max(1, round(MEASURED_US / max(expected_us, 0.05)))
    share = max(1, int(schedule.block_ms * 1e3 / max(expected_us * repeats, 1e-3)))
    wanted = min(schedule.calls, share)
    undisturbed: list[float] = []
    disturbed: list[float] = []
    for _ in range(min(schedule.warm_calls, share) * (before is None)):
        call()
    while len(undisturbed) < wanted and len(undisturbed) + len(disturbed) < MOST_TRIES * wanted:
        if before:
            before()
        time_us, alone = _timed(call, repeats)
        (undisturbed if alone else disturbed).append(time_us)
    times = undisturbed or disturbed
    return Block(float(np.median(times)), min(times))


def _timed(call: Call, repeats: int) -> tuple[float, bool]:
    """Return microseconds per call, and whether the thread had the processor to itself all the while.

    A slow call is more often interrupted by other processes than a quick one: counted, that would flatter the quick.
    """
    cpu_start, start = thread_time_ns(), perf_counter_ns()
    for _ in range(repeats):
        call()
    wall = perf_counter_ns() - start
    waited = wall - (thread_time_ns() - cpu_start)
    return wall / repeats / 1e3, waited < WAITED_SHARE * wall


def paired(
    candidates: Mapping[str, Call],
    baseline: Call,
    schedule: Schedule,
    rng: np.random.Generator,
    before: Call | None = None,
) -> list[Pair]:
    """Time every candidate in rounds, each block next to a block of the baseline, in a new order each round.

    What slows the machine for a while slows both blocks of a pair. Which of the two comes first alternates.
    """
    with one_thread():
        expected = {name: estimate_us(call) for name, call in candidates.items()}
        baseline_us = estimate_us(baseline)
        pairs = []
        for number in range(schedule.rounds):
            for index in rng.permutation(len(candidates)):
                name = list(candidates)[index]
                sides: dict[str, Callable] = {
                    "candidate": lambda name=name: time_block(candidates[name], schedule, expected[name], before),
                    "baseline": lambda: time_block(baseline, schedule, baseline_us, before),
                }
                order: Sequence[str] = ("candidate", "baseline") if (number + index) % 2 else ("baseline", "candidate")
                blocks = {side: sides[side]() for side in order}
                pairs.append(Pair(name, number, blocks["candidate"], blocks["baseline"]))
    return pairs


def milliseconds(call: Call) -> float:
    """Return what one call takes, in milliseconds."""
    return _timed(call, 1)[0] / 1e3
