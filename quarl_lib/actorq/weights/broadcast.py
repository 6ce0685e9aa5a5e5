"""Weights from the learner to the actors: packed once, published under a version, used where they lie.

What travels are the online policy's weights, not the target network's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from quarl_lib.actorq.link import Link
from quarl_lib.actorq.memory import SharedBlock

_SLOT_BITS = 20  # a million readers; 43 bits are left for the version
_SLOT_MASK = (1 << _SLOT_BITS) - 1
_PAGE = 4096


class Publisher(Protocol):
    """The learner's side of a broadcast."""

    def publish(self, buffer: Any) -> int:
        """Make a packed buffer the newest version; return its bytes."""


class Subscriber(Protocol):
    """An actor's side of a broadcast."""

    def version(self) -> int:
        """Return how many buffers were published so far, without fetching one; 0 before the first."""

    def fetch(self) -> np.ndarray:
        """Return the newest buffer, uint8 and read-only, valid until the next `fetch`."""


class SharedMemoryBroadcast:
    """One writer and a known number of readers on one host; readers use a published buffer in place.

    A reader announces the slot that it is about to use and looks again whether that is still the newest; the writer
    takes a slot that is neither the newest nor announced (hazard pointers). With two slots more than readers one is
    always free, so neither side waits, and a slot in use is never written, however often the learner publishes. A
    reader that died keeps its slot until its replacement announces another.

    Memory is touched only as far as it is used: a generous capacity costs nothing.

    Raises:
        ValueError: no capacity, no readers, or more readers than slots can be numbered.
    """

    def __init__(self, capacity: int, num_readers: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity={capacity}: give the bytes of the largest packed policy")
        if not 1 <= num_readers <= _SLOT_MASK - 1:
            raise ValueError(f"num_readers={num_readers}: give 1 to {_SLOT_MASK - 1}, one for each actor")
        self.capacity, self.num_readers = capacity, num_readers
        self.num_slots = num_readers + 2
        self.header_bytes = _whole_pages(8 * (1 + num_readers + self.num_slots))
        self.stride = _whole_pages(capacity)  # whole pages, so that sections aligned in a buffer stay so in its slot
        self.block = SharedBlock(self.header_bytes + self.num_slots * self.stride)

    def publisher(self) -> SharedMemoryPublisher:
        """Return the writer's side; one for the whole program."""
        return SharedMemoryPublisher(self)

    def subscriber(self, reader: int) -> SharedMemorySubscriber:
        """Return one reader's side; only one process may use an index at a time.

        Raises:
            ValueError: the broadcast was made for fewer readers.
        """
        if not 0 <= reader < self.num_readers:
            raise ValueError(f"reader={reader}: this broadcast was made for num_readers={self.num_readers}")
        return SharedMemorySubscriber(self, reader)


def _whole_pages(num_bytes: int) -> int:
    return -(-num_bytes // _PAGE) * _PAGE


class _Slots:
    """One process's view of the shared words: newest stamp, one announced stamp per reader, bytes in each slot.

    A stamp is `version << 20 | slot`, so that both change in one store; 0 stands for none.
    """

    def __init__(self, broadcast: SharedMemoryBroadcast) -> None:
        self.shape = broadcast
        words = broadcast.block.view[: broadcast.header_bytes].cast("q")
        readers = broadcast.num_readers
        self.newest, self.announced = words[:1], words[1 : 1 + readers]
        self.sizes = words[1 + readers : 1 + readers + broadcast.num_slots]
        self._lock = threading.Lock()

    def fence(self) -> None:
        """Order our last store before our next load, which taking a lock does (an atomic read-modify-write)."""
        with self._lock:
            pass

    def memory(self, slot: int, num_bytes: int) -> np.ndarray:
        start = self.shape.header_bytes + slot * self.shape.stride
        return np.frombuffer(self.shape.block.view[start : start + num_bytes], np.uint8)


class SharedMemoryPublisher:
    """Writes into a slot that nobody reads, then names it the newest."""

    def __init__(self, broadcast: SharedMemoryBroadcast) -> None:
        self._slots = _Slots(broadcast)

    def publish(self, buffer: Any, version: int = 0) -> int:
        """Make a packed buffer the newest version, which has the next number or that given; return its bytes.

        Raises:
            ValueError: it is empty or larger than the capacity.
        """
        data, slots = np.frombuffer(buffer, np.uint8), self._slots
        if not 0 < data.size <= slots.shape.capacity:
            raise ValueError(f"buffer of {data.size} bytes: this broadcast carries 1 to {slots.shape.capacity}")
        slots.fence()
        taken = {stamp & _SLOT_MASK for stamp in (*slots.newest, *slots.announced) if stamp}
        slot = next(slot for slot in range(slots.shape.num_slots) if slot not in taken)
        slots.memory(slot, data.size)[:] = data
        slots.sizes[slot] = data.size
        slots.newest[0] = (version or (slots.newest[0] >> _SLOT_BITS) + 1) << _SLOT_BITS | slot
        return data.size


class SharedMemorySubscriber:
    """Reads the newest slot in place; it stays as it is until this reader's next `fetch`."""

    def __init__(self, broadcast: SharedMemoryBroadcast, reader: int) -> None:
        self._slots, self._reader = _Slots(broadcast), reader

    def version(self) -> int:
        """Return how many buffers were published so far; one load."""
        return self._slots.newest[0] >> _SLOT_BITS

    def fetch(self) -> np.ndarray:
        """Return the newest buffer, uint8 and read-only, valid until the next `fetch`.

        Raises:
            LookupError: nothing was published yet.
        """
        slots, stamp = self._slots, -1
        while stamp != slots.newest[0]:
            stamp = slots.newest[0]
            slots.announced[self._reader] = stamp
            slots.fence()
        if not stamp:
            raise LookupError("nothing was published yet; ask for version() first")
        memory = slots.memory(stamp & _SLOT_MASK, slots.sizes[stamp & _SLOT_MASK])
        memory.flags.writeable = False
        return memory


class ReverbPublisher:
    """Inserts buffers into a one-item Reverb table: across hosts, and as in the paper."""

    def __init__(self, address: str) -> None:
        from quarl_lib.actorq.replay import (
            reverb as replay,  # brings TensorFlow, which a program without Reverb need not wait for
        )

        self._client = replay.WeightsClient(address)

    def publish(self, buffer: Any) -> int:
        """Make a packed buffer the newest version; return its bytes."""
        data = np.frombuffer(buffer, np.uint8)
        self._client.insert(data)
        return data.size


class ReverbSubscriber:
    """Asks the table how often it was written before it samples from it."""

    def __init__(self, address: str, should_stop: Callable[[], bool] = lambda: False) -> None:
        from quarl_lib.actorq.replay import reverb as replay

        self._client = replay.WeightsClient(address, should_stop)

    def version(self) -> int:
        """Return how many buffers were published so far; one small call, nothing is fetched."""
        return self._client.version()

    def fetch(self) -> np.ndarray:
        """Return a copy of the newest buffer."""
        return self._client.fetch()


def publisher_of(link: Link) -> Publisher:
    """Return the learner's side of a run's broadcast; through Reverb where no shared memory was made."""
    return link.weights.publisher() if link.weights else ReverbPublisher(link.address())


def subscriber_of(link: Link, reader: int) -> Subscriber:
    """Return one reader's side of a run's broadcast."""
    return link.weights.subscriber(reader) if link.weights else ReverbSubscriber(link.address(), link.waiting)
