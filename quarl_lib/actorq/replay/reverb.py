"""Replay through Reverb: the server's tables, the adders that write, the dataset that samples, weights in a table.

The only importer of reverb, and so of TensorFlow (4 s). Every wait has a time-out after which a stop flag is looked at.
"""

from __future__ import annotations

import ctypes
import functools
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np
import reverb
import tensorflow as tf
from reverb import structured_writer

from quarl_lib.actorq.config import Config
from quarl_lib.actorq.link import Stopped
from quarl_lib.actorq.replay.limiter import with_limits
from quarl_lib.actorq.replay.transitions import Adder, Batch, NStep, TransitionLayout, unpack_acme, unpack_vectors
from quarl_lib.envs.specs import EnvironmentSpec

REPLAY_TABLE = "replay"
WEIGHTS_TABLE = "model"
WAIT_MS = 500
BURST, QUIET = 32, 48  # items handed over at once; Reverb writes a line to the log whenever more than 50 are pending
SERVER_TIMEOUT_S = 5
GONE_AFTER_S = 120.0  # a server that is held up answers again; one that is gone takes the run with it sooner


class ServerGone(Exception):
    """The replay server no longer answers."""


class Server:
    """A running replay server; `address` is what clients connect to."""

    def __init__(self, server: reverb.Server) -> None:
        self._server = server
        self.address = f"localhost:{server.port}"

    def stop(self) -> None:
        """Stop serving. Stop samplers first: a blocked one holds this up for ten seconds."""
        self._server.stop()


def serve(
    config: Config, spec: EnvironmentSpec, checkpoint_dir: Path | None = None, restore_from: Path | None = None
) -> Server:
    """Start a server with the replay and the weights table.

    Args:
        checkpoint_dir: an empty folder that `checkpoint` is to write to.
        restore_from: what `checkpoint` once returned; the tables begin as they stood there.
    """
    if config.samples_per_insert:
        limiter = reverb.rate_limiters.SampleToInsertRatio(
            config.samples_per_insert, config.min_replay, config.replay_error_buffer
        )
    else:
        limiter = reverb.rate_limiters.MinSize(config.min_replay)
    if config.adder == "acme":
        from quarl_lib.actorq.replay.acme_adder import AcmeAdder

        signature = AcmeAdder.signature(spec)
    else:
        signature = tf.TensorSpec([TransitionLayout(spec).size], tf.float32)
    uniform, fifo = reverb.selectors.Uniform(), reverb.selectors.Fifo()
    replay = reverb.Table(REPLAY_TABLE, uniform, fifo, config.max_replay, limiter, signature=signature)
    lifo, fifo = reverb.selectors.Lifo(), reverb.selectors.Fifo()
    weights = reverb.Table(WEIGHTS_TABLE, lifo, fifo, 1, reverb.rate_limiters.MinSize(1))
    checkpointer = None
    if checkpoint_dir is not None:
        checkpoint_dir.mkdir(parents=True, exist_ok=True)
        if restore_from is not None:
            restore_from = with_limits(restore_from, checkpoint_dir.parent / ".restored", REPLAY_TABLE, config)
        checkpointer = reverb.platform.checkpointers_lib.DefaultCheckpointer(
            str(checkpoint_dir), fallback_checkpoint_path=str(restore_from) if restore_from else None
        )
    return Server(reverb.Server([replay, weights], checkpointer=checkpointer))


def checkpoint(address: str) -> Path:
    """Write the server's tables to its checkpoint folder and return what was written."""
    return Path(reverb.Client(address).checkpoint())


def insert_and_sample_counts(address: str) -> tuple[int, int]:
    """Return how many transitions were inserted and sampled since the server began."""
    info = _patient_info(reverb.Client(address), lambda: False)[REPLAY_TABLE].rate_limiter_info
    return info.insert_stats.completed, info.sample_stats.completed


def _never_destroy(writer: object) -> None:
    # A writer's destructor waits, without a time-out, until the server has taken what is pending.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(writer))


class NStepAdder:
    """Writes n-step transitions, one float32 vector and one item each (16 us a step; Acme's own adder takes 640).

    They go to the server `flush_period` at a time; so many at most are lost with an actor that is killed.

    Raises:
        Stopped: `should_stop()` during a wait.
        ServerGone: the server no longer answers.
    """

    def __init__(
        self, config: Config, address: str, spec: EnvironmentSpec, should_stop: Callable[[], bool] = lambda: False
    ) -> None:
        self._layout, self._nstep = TransitionLayout(spec), NStep(config.n_step, config.discount)
        self._client, self._should_stop = reverb.Client(address), should_stop
        # Handed over in bursts: every append wakes the writer's own thread, which costs more than the append.
        self._flush_period, self._waiting = config.flush_period, list[np.ndarray]()
        example = np.zeros(self._layout.size, np.float32)
        pattern = structured_writer.pattern_from_transform(example, lambda step: step[-1])
        self._configs = [structured_writer.create_config(pattern, REPLAY_TABLE)]
        self._writer = self._client.structured_writer(self._configs)

    def add_first(self, timestep) -> None:
        """Start an episode."""
        self._nstep.first(timestep.observation)

    def add(self, action, next_timestep, extras=()) -> None:
        """Write every transition that ends with this step."""
        observation = next_timestep.observation
        ending = self._nstep.add(action, next_timestep)
        self.write([self._layout.pack(o_tm1, a_tm1, r_t, d_t, observation) for o_tm1, a_tm1, r_t, d_t in ending])

    def write(self, vectors: Iterable[np.ndarray]) -> None:
        """Write transitions [m, size]."""
        self._waiting.extend(vectors)
        if len(self._waiting) >= self._flush_period:
            self._flush(self._flush_period)

    def reset(self) -> None:
        """Write what is held back and forget the episode; its last transitions stay unwritten."""
        self.flush()
        self._nstep.reset()

    def flush(self) -> None:
        """Wait until the server has every transition written so far."""
        self._flush(0)

    def _flush(self, may_be_pending: int) -> None:
        for begin in range(0, len(self._waiting), BURST):
            self._wait(QUIET - BURST)  # before, not after: by now the server has taken the burst before
            for vector in self._waiting[begin : begin + BURST]:
                self._writer.append(vector)
        self._waiting.clear()
        if not may_be_pending:
            self._wait(0)

    def _wait(self, may_be_pending: int) -> None:
        flush_patiently(self._writer.flush, self._writer._writer, self._client, may_be_pending, self._should_stop)


def flush_patiently(
    flush: Callable[..., object], writer: object, client: reverb.Client, may_be_pending: int,
    should_stop: Callable[[], bool],
) -> None:  # fmt: skip
    """Flush in waits of half a second, between which `should_stop` is asked: a server may be held up for a while.

    Raises:
        Stopped: `should_stop()`.
        ServerGone: the server did not answer for `GONE_AFTER_S`.
    """
    silent_since = time.monotonic()
    while True:
        try:
            flush(may_be_pending, timeout_ms=WAIT_MS)
        except reverb.DeadlineExceededError:
            if should_stop():
                _never_destroy(writer)
                raise Stopped from None
            try:
                client.server_info(1)
                silent_since = time.monotonic()
            except reverb.DeadlineExceededError as error:
                if time.monotonic() - silent_since > GONE_AFTER_S:
                    _never_destroy(writer)
                    raise ServerGone(f"replay server at {client.server_address} does not answer") from error
        else:
            return


def make_adder(
    config: Config, address: str, spec: EnvironmentSpec, should_stop: Callable[[], bool] = lambda: False
) -> Adder:
    """Return the adder that `config.adder` names, connected to the server at `address`."""
    if config.adder == "acme":
        from quarl_lib.actorq.replay.acme_adder import AcmeAdder

        return AcmeAdder(config, address, should_stop)
    return NStepAdder(config, address, spec, should_stop)


def make_dataset(
    config: Config, address: str, spec: EnvironmentSpec, should_stop: Callable[[], bool] = lambda: False
) -> Generator[Batch, None, None]:
    """Return batches sampled by one worker (3 ms for 256; Acme's dataset takes 7); ends when `should_stop()`."""
    samples = reverb.TrajectoryDataset.from_table_signature(
        address, REPLAY_TABLE, max_in_flight_samples_per_worker=config.batch_size, num_workers_per_iterator=1,
        rate_limiter_timeout_ms=WAIT_MS, get_signature_timeout_secs=SERVER_TIMEOUT_S,
    )  # fmt: skip
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    options.threading.max_intra_op_parallelism = 1
    batches = samples.batch(config.batch_size, drop_remainder=True).with_options(options)
    unpack = functools.partial(unpack_acme, spec) if config.adder == "acme" else unpack_vectors(TransitionLayout(spec))
    while not should_stop():
        for sample in batches.as_numpy_iterator():  # ends whenever the ratio let no sample through for WAIT_MS
            yield unpack(sample.data)
            if should_stop():
                return


class WeightsClient:
    """Weights through the server's own table: the way across hosts, and the paper's way.

    Raises:
        Stopped: `should_stop()` while the server did not answer.
        ServerGone: it did not for `GONE_AFTER_S`.
    """

    def __init__(self, address: str, should_stop: Callable[[], bool] = lambda: False) -> None:
        self._client, self._should_stop = reverb.Client(address), should_stop
        self._thread = ThreadPoolExecutor(1)  # a sampler knows no time-out, and waits for ever on a server that ended

    def insert(self, buffer: bytes | memoryview | np.ndarray) -> None:
        """Publish one buffer in place of the one before."""
        self._client.insert(np.frombuffer(buffer, np.uint8), {WEIGHTS_TABLE: 1.0})

    def version(self) -> int:
        """Return how many buffers were published, without fetching any (0.4 ms)."""
        info = _patient_info(self._client, self._should_stop)
        return info[WEIGHTS_TABLE].rate_limiter_info.insert_stats.completed

    def fetch(self) -> np.ndarray:
        """Return the newest buffer as uint8; waits for the first one."""
        _patient_info(self._client, self._should_stop)
        sample = self._thread.submit(lambda: next(self._client.sample(WEIGHTS_TABLE)))
        while not wait([sample], WAIT_MS / 1000).done:
            if self._should_stop():
                raise Stopped
        return sample.result()[0].data[0]


def _patient_info(client: reverb.Client, should_stop: Callable[[], bool]) -> dict:
    silent_since = time.monotonic()
    while True:
        try:
            return client.server_info(1)
        except reverb.DeadlineExceededError as error:
            if should_stop():
                raise Stopped from None
            if time.monotonic() - silent_since > GONE_AFTER_S:
                raise ServerGone(f"replay server at {client.server_address} does not answer") from error
