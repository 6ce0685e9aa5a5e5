"""The broadcast under fire: real processes, every byte checked, readers killed while they hold a buffer."""

# mypy: disable-error-code="arg-type"
from __future__ import annotations

import multiprocessing
import os
import signal
import time
import zlib

import numpy as np
import pytest

from quarl_lib.actorq.link import Link, read
from quarl_lib.actorq.memory import SharedBlock
from quarl_lib.actorq.weights.broadcast import SharedMemoryBroadcast

CONTEXT = multiprocessing.get_context("forkserver")
NUM_BYTES = 200_000
FIRE_S = 1.0


def packed(version: int) -> np.ndarray:
    """Make a buffer that names its version in every byte and carries its own checksum."""
    body = np.full(NUM_BYTES, version % 251, np.uint8)
    body[:8] = np.frombuffer(np.int64(version).tobytes(), np.uint8)
    return np.concatenate([body, np.frombuffer(np.uint32(zlib.crc32(body)).tobytes(), np.uint8)])


def intact(buffer: np.ndarray) -> bool:
    return zlib.crc32(buffer[:-4]) == buffer[-4:].view(np.uint32)[0]


def write(broadcast: SharedMemoryBroadcast, link: Link) -> None:
    publisher, version = broadcast.publisher(), 0
    while not link.should_stop():
        version += 1
        publisher.publish(packed(version))
    link.set_learner_steps(version)


def check(broadcast: SharedMemoryBroadcast, link: Link, reader: int) -> None:
    subscriber, torn, fetched, last = broadcast.subscriber(reader), 0, 0, 0
    while not subscriber.version():
        time.sleep(0.001)
    while not link.should_stop():
        buffer = subscriber.fetch()
        version = int(buffer[:8].view(np.int64)[0])
        before = subscriber.version()
        torn += not intact(buffer) or version < last
        while subscriber.version() < before + 3 and not link.should_stop():  # held while the writer laps us
            time.sleep(0)
        torn += not intact(buffer)
        fetched, last = fetched + 1, version
        link.set_actor_steps(reader, fetched)
    link.log("torn", [{"reader": reader, "torn": torn, "fetched": fetched}])


def test_reader_never_meets_a_torn_or_overwritten_buffer(tmp_path):
    broadcast, link = SharedMemoryBroadcast(NUM_BYTES + 4, num_readers=3), Link(tmp_path, 3)
    readers = [CONTEXT.Process(target=check, args=(broadcast, link, reader)) for reader in range(3)]
    processes = [CONTEXT.Process(target=write, args=(broadcast, link)), *readers]
    for process in processes:
        process.start()
    while not all(link.actor_steps_of(reader) for reader in range(3)):
        assert all(process.exitcode is None for process in processes)
        time.sleep(0.01)
    os.kill(readers[2].pid, signal.SIGKILL)  # it dies holding a slot: the others must not notice
    time.sleep(FIRE_S)
    link.request_stop("enough")
    for process in processes:
        process.join(5)
    rows = read(tmp_path, "torn")
    assert sorted(rows.reader) == [0, 1]
    assert rows.torn.sum() == 0
    assert (rows.fetched > 20).all()
    assert link.learner_steps() > 100


def test_a_held_buffer_survives_any_number_of_publications():
    broadcast = SharedMemoryBroadcast(NUM_BYTES + 4, num_readers=2)
    publisher, slow, fast = broadcast.publisher(), broadcast.subscriber(0), broadcast.subscriber(1)
    publisher.publish(packed(1))
    held = slow.fetch()
    for version in range(2, 20):
        publisher.publish(packed(version))
        assert slow.version() == version
        assert fast.fetch()[:8].view(np.int64)[0] == version
        assert held[:8].view(np.int64)[0] == 1
        assert intact(held)
    assert slow.fetch()[:8].view(np.int64)[0] == 19


def test_nothing_is_copied_and_readers_cannot_write():
    broadcast = SharedMemoryBroadcast(64, num_readers=1)
    broadcast.publisher().publish(b"abc")
    first, again = broadcast.subscriber(0).fetch(), broadcast.subscriber(0).fetch()
    assert first.tobytes() == b"abc"
    assert first.ctypes.data == again.ctypes.data
    assert first.ctypes.data % 64 == 0
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1


def test_more_readers_than_a_byte_can_number():
    broadcast = SharedMemoryBroadcast(8, num_readers=1000)
    publisher, readers = broadcast.publisher(), [broadcast.subscriber(i) for i in range(1000)]
    held = []
    for number, reader in enumerate(readers):
        publisher.publish(number.to_bytes(8, "little"))
        held.append(reader.fetch())
    assert [int.from_bytes(memory.tobytes(), "little") for memory in held] == list(range(1000))
    assert readers[0].version() == 1000


def test_no_name_is_left_in_shared_memory():
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    broadcast = SharedMemoryBroadcast(1 << 20, num_readers=1)
    broadcast.publisher().publish(b"weights")
    assert (set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()) <= before


def test_closes_its_file_descriptors():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        block = SharedBlock(4096)
        block.view[0] = 1
        del block
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SharedMemoryBroadcast(0, 1), "capacity=0"),
        (lambda: SharedMemoryBroadcast(8, 0), "num_readers=0"),
        (lambda: SharedMemoryBroadcast(8, 1).subscriber(1), "reader=1"),
        (lambda: SharedMemoryBroadcast(8, 1).publisher().publish(b"123456789"), "9 bytes"),
        (lambda: SharedMemoryBroadcast(8, 1).publisher().publish(b""), "0 bytes"),
    ],
)
def test_impossible_settings_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_fetch_before_the_first_publication_is_an_error():
    with pytest.raises(LookupError, match="nothing was published"):
        SharedMemoryBroadcast(8, 1).subscriber(0).fetch()


def test_log_skips_a_row_that_a_full_disk_cut_short(tmp_path):
    link = Link(tmp_path, 1)
    link.part = "actor-0"
    link.log("episodes", [{"episode_return": 1.0}, {"episode_return": 2.0}])
    with open(tmp_path / "logs" / "episodes.actor-0.jsonl", "a") as file:
        file.write('{"episode_ret')
    assert read(tmp_path, "episodes").episode_return.tolist() == [1.0, 2.0]
    assert read(tmp_path, "nothing").empty
