"""Replay without a server: a ring for each actor in shared memory, sampled where it lies by the learner.

One writer a ring and one sampler over all of them, so no lock is taken. A writer announces a slot before it writes and
counts it after; the sampler draws again what a writer announced meanwhile. Stores of one process are seen in their
order (x86-64; elsewhere each count is fenced by a lock).
"""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path

import numpy as np
import torch

from quarl_lib.actorq.config import Config
from quarl_lib.actorq.link import Stopped
from quarl_lib.actorq.memory import SharedBlock
from quarl_lib.actorq.replay.transitions import Batch, NStep, TransitionLayout
from quarl_lib.envs.specs import EnvironmentSpec

SAMPLED = 0  # int64 words of the header: items sampled so far, then two for every writer
ANNOUNCED, INSERTED = 0, 1
LONGEST_PAUSE_S = 0.001
Wait = Callable[[float], None]
_ORDERED = platform.machine() in ("x86_64", "AMD64")


class Limiter:
    """Says who may go on, as Reverb's SampleToInsertRatio does; with a ratio of 0 as its MinSize.

    Counts are of items since the beginning; `size` is how many are there now.
    """

    def __init__(self, samples_per_insert: float, min_replay: int, error_buffer: float) -> None:
        self._ratio, self._min_replay = samples_per_insert, min_replay
        middle = samples_per_insert * min_replay
        self._least, self._most = middle - error_buffer, middle + error_buffer

    def may_insert(self, inserted: int, sampled: int, size: int, count: int = 1) -> bool:
        """Say whether `count` more items may be inserted."""
        if size + count <= self._min_replay or not self._ratio:
            return True
        return (inserted + count) * self._ratio - sampled <= self._most

    def may_sample(self, inserted: int, sampled: int, size: int, count: int) -> bool:
        """Say whether `count` items, each counted as a sample of its own, may be sampled."""
        if size < self._min_replay:
            return False
        return not self._ratio or inserted * self._ratio - sampled - count >= self._least


class Memory:
    """The rings and their counts; made before the processes that share it, to which it travels as an argument.

    Each of the `num_writers` rings holds an equal part of `max_replay`, rounded up, and forgets its own oldest first.
    """

    def __init__(self, config: Config, spec: EnvironmentSpec, num_writers: int) -> None:
        self.num_writers, self.width = num_writers, TransitionLayout(spec).size
        self.capacity = max(2, -(-config.max_replay // num_writers))
        self._words = 1 + 2 * num_writers
        self._start = -(-8 * self._words // 64) * 64
        self.block = SharedBlock(self._start + 4 * num_writers * self.capacity * self.width)

    def counts(self) -> memoryview:
        """Return the header as int64 words."""
        return self.block.view[: 8 * self._words].cast("q")

    def rows(self) -> np.ndarray:
        """Return all rings as float32 [num_writers * capacity, width], one behind the other."""
        return np.frombuffer(self.block.view[self._start :], np.float32).reshape(-1, self.width)

    def rings(self) -> np.ndarray:
        """Return the rings as float32 [num_writers, capacity, width]."""
        return self.rows().reshape(self.num_writers, self.capacity, self.width)

    def inserted(self, counts: memoryview) -> int:
        """Return how many transitions all writers inserted."""
        return sum(counts[2::2])

    def size(self, counts: memoryview) -> int:
        """Return how many transitions are there now."""
        return sum(min(count, self.capacity) for count in counts[2::2])


class LocalReplay:
    """The learner's side of the rings; what `choice.ReverbReplay` is to a server."""

    address = ""

    def __init__(self, config: Config, memory: Memory, spec: EnvironmentSpec, wait: Wait = time.sleep) -> None:
        self._config, self._memory, self._spec, self._wait = config, memory, spec, wait

    def batches(self, should_stop: Callable[[], bool] = lambda: False) -> Generator[Batch, None, None]:
        """Return batches sampled uniformly over all rings, with replacement; ends when `should_stop()`."""
        config, memory = self._config, self._memory
        layout, limiter = TransitionLayout(self._spec), limiter_of(config)
        sample, counts, pause = Sampler(memory, np.random.default_rng(config.seed)), memory.counts(), 0.0
        while not should_stop():
            if not limiter.may_sample(memory.inserted(counts), counts[SAMPLED], memory.size(counts), config.batch_size):
                pause = min(LONGEST_PAUSE_S, pause + 1e-4)
                self._wait(pause)
                continue
            pause = 0.0
            vectors = sample(config.batch_size)
            counts[SAMPLED] += config.batch_size
            yield layout.unpack(torch.from_numpy(vectors))

    def counts(self) -> tuple[int, int]:
        """Return how many transitions were inserted and sampled since the replay began."""
        counts = self._memory.counts()
        return self._memory.inserted(counts), counts[SAMPLED]

    def save(self, directory: Path) -> Path:
        """Write counts and every transition that is there into a folder; return the file."""
        counts = np.array(self._memory.counts())
        rings = {f"ring{i}": ring[: counts[2 + 2 * i]] for i, ring in enumerate(self._memory.rings())}
        np.savez(directory / "rings.npz", counts=counts, **rings)
        return directory / "rings.npz"

    def restore(self, path: Path) -> None:
        """Begin as the replay stood at `save`.

        Raises:
            ValueError: it was saved from rings of another number or shape.
        """
        memory = self._memory
        with np.load(path) as saved:
            counts = saved["counts"]
            rings = [saved[f"ring{i}"] for i in range(len(counts) // 2)]
        same = len(rings) == memory.num_writers and all(
            rows.shape == (min(counts[2 + 2 * i], memory.capacity), memory.width) for i, rows in enumerate(rings)
        )
        if not same:
            raise ValueError(
                f"{path}: saved from {len(rings)} rings of {rings[0].shape[1]} numbers a transition; this run has "
                f"{memory.num_writers} of {memory.width}. Resume with the n_actors, task and max_replay of before"
            )
        for ring, rows in zip(memory.rings(), rings, strict=True):
            ring[: len(rows)] = rows
        counts[1::2] = counts[2::2]  # what was announced and not whole is gone
        memory.counts()[:] = memoryview(counts.astype(np.int64)).cast("B").cast("q")

    def stop(self) -> None:
        """Do nothing: there is no server."""


class LocalAdder:
    """Writes n-step transitions straight into this actor's ring; each can be sampled at once.

    A successor of an actor that died takes the same `writer` and goes on behind the last transition that was whole.

    Raises:
        ValueError: the memory was made for fewer writers.
        Stopped: `should_stop()` while the ratio held this actor back.
    """

    def __init__(
        self, config: Config, memory: Memory, spec: EnvironmentSpec, writer: int,
        should_stop: Callable[[], bool] = lambda: False, wait: Wait = time.sleep,
    ) -> None:  # fmt: skip
        if not 0 <= writer < memory.num_writers:
            raise ValueError(f"writer={writer}: this replay was made for num_writers={memory.num_writers}")
        self._memory, self._should_stop, self._wait = memory, should_stop, wait
        self._layout, self._nstep = TransitionLayout(spec), NStep(config.n_step, config.discount)
        self._limiter = limiter_of(config)
        self._counts = memory.counts()
        self._mine = self._counts[1 + 2 * writer : 3 + 2 * writer]
        self._ring = memory.rows()[writer * memory.capacity : (writer + 1) * memory.capacity]
        self._fence = fence()

    def add_first(self, timestep) -> None:
        """Start an episode."""
        self._nstep.first(timestep.observation)

    def add(self, action, next_timestep, extras=()) -> None:
        """Write every transition that ends with this step."""
        observation = next_timestep.observation
        for o_tm1, a_tm1, r_t, d_t in self._nstep.add(action, next_timestep):
            self._wait_for_the_ratio()
            number = self._mine[INSERTED]
            self._mine[ANNOUNCED] = number + 1
            self._fence()
            self._layout.fill(self._ring[number % len(self._ring)], o_tm1, a_tm1, r_t, d_t, observation)
            self._fence()
            self._mine[INSERTED] = number + 1

    def write(self, vectors: np.ndarray) -> None:
        """Write transitions [m, size] at once, or one by one where the ratio does not let all of them in."""
        memory, counts, ring, begin = self._memory, self._counts, self._ring, 0
        while begin < len(vectors):
            count = min(len(vectors) - begin, len(ring))
            if not self._limiter.may_insert(memory.inserted(counts), counts[SAMPLED], memory.size(counts), count):
                count = 1
                self._wait_for_the_ratio()
            number = self._mine[INSERTED]
            self._mine[ANNOUNCED] = number + count
            self._fence()
            where = number % len(ring)
            until_end = min(count, len(ring) - where)
            ring[where : where + until_end] = vectors[begin : begin + until_end]
            ring[: count - until_end] = vectors[begin + until_end : begin + count]
            self._fence()
            self._mine[INSERTED] = number + count
            begin += count

    def reset(self) -> None:
        """Forget the episode; its last transitions stay unwritten."""
        self._nstep.reset()

    def flush(self) -> None:
        """Do nothing: what was added is there."""

    def _wait_for_the_ratio(self) -> None:
        memory, counts, pause = self._memory, self._counts, 0.0
        while not self._limiter.may_insert(memory.inserted(counts), counts[SAMPLED], memory.size(counts)):
            if self._should_stop():
                raise Stopped
            pause = min(LONGEST_PAUSE_S, pause + 1e-4)
            self._wait(pause)


class Sampler:
    """Draws whole transitions; those that a writer may have touched meanwhile are drawn again."""

    def __init__(self, memory: Memory, rng: np.random.Generator) -> None:
        self._memory, self._rng = memory, rng
        self._rows, self._counts, self._fence = memory.rows(), memory.counts(), fence()

    def __call__(self, count: int) -> np.ndarray:
        """Return float32 [count, width], gathered in one pass."""
        picked, before = self._pick(count)
        vectors = self._rows.take(picked, axis=0)
        self._fence()
        while (torn := self._torn(picked, before)).any():
            picked[torn], before = self._pick(int(torn.sum()))
            vectors[torn] = self._rows[picked[torn]]
            self._fence()
        return vectors

    def _pick(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        capacity = self._memory.capacity
        inserted = np.array(self._counts[2::2])
        ends = np.minimum(inserted, capacity).cumsum()
        drawn = self._rng.integers(ends[-1], size=count)
        rings = ends.searchsorted(drawn, side="right")
        starts = np.concatenate([[0], ends[:-1]])
        return rings * capacity + drawn - starts[rings], inserted

    def _torn(self, picked: np.ndarray, before: np.ndarray) -> np.ndarray:
        """Say which rows were announced for rewriting since the counts in `before` were read."""
        rings, slots = np.divmod(picked, self._memory.capacity)
        announced = np.array(self._counts[1::2])
        return (slots - before[rings]) % self._memory.capacity < (announced - before)[rings]


def limiter_of(config: Config) -> Limiter:
    """Return the limiter of a run."""
    return Limiter(config.samples_per_insert, config.min_replay, config.replay_error_buffer)


def fence() -> Callable[[], None]:
    """Return what orders the stores before it with those after it for another process."""
    if _ORDERED:
        return lambda: None
    lock = threading.Lock()

    def fence() -> None:
        with lock:
            pass

    return fence
