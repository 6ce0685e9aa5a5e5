"""Transitions and counts of a local replay on their way between two machines, each with rings of its own."""

from __future__ import annotations

from collections.abc import Container

import numpy as np

from quarl_lib.actorq.replay.local import ANNOUNCED, INSERTED, SAMPLED, Memory, fence


def begin_at(memory: Memory, writer: int, inserted: int) -> None:
    """Let a ring go on behind `inserted` transitions that lie in another machine's memory."""
    words = memory.counts()[1 + 2 * writer : 3 + 2 * writer]
    words[ANNOUNCED] = words[INSERTED] = inserted


def inserted_by(memory: Memory, writer: int) -> int:
    """Return how many transitions of a writer lie, or lay, in its ring."""
    return memory.counts()[1 + 2 * writer + INSERTED]


def mirror(memory: Memory, counts: np.ndarray, but: Container[int]) -> None:
    """Take over another machine's counts, so that the ratio is held over all; those of the writers `but` are here."""
    words = memory.counts()
    words[SAMPLED] = counts[SAMPLED]
    for writer in range(memory.num_writers):
        if writer not in but:
            begin_at(memory, writer, counts[1 + 2 * writer + INSERTED])


def inserted_since(memory: Memory, writer: int, number: int) -> np.ndarray:
    """Return a copy of a writer's transitions from the `number`-th on, float32 [count, width].

    Raises:
        BufferError: some of them were overwritten.
    """
    words = memory.counts()[1 + 2 * writer : 3 + 2 * writer]
    vectors = memory.rings()[writer].take(np.arange(number, words[INSERTED]), axis=0, mode="wrap")
    fence()()
    if (waited := words[ANNOUNCED] - number) > memory.capacity:
        raise BufferError(f"writer {writer}: {waited} transitions waited in a ring of {memory.capacity}")
    return vectors


def extend(memory: Memory, writer: int, vectors: np.ndarray) -> None:
    """Append transitions that a writer on another machine made, float32 [count, width]."""
    words, order = memory.counts()[1 + 2 * writer : 3 + 2 * writer], fence()
    number = words[INSERTED]
    words[ANNOUNCED] = number + len(vectors)
    order()
    kept = vectors[-memory.capacity :]
    slots = np.arange(number + len(vectors) - len(kept), number + len(vectors)) % memory.capacity
    memory.rings()[writer, slots] = kept
    order()
    words[INSERTED] = number + len(vectors)
