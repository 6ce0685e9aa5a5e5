"""The replay in shared memory: against Reverb on the same schedule, and beside writers that are killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time

import dm_env
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl_lib.actorq.config import Config
from quarl_lib.actorq.link import Stopped
from quarl_lib.actorq.replay import local
from quarl_lib.actorq.replay.transitions import TransitionLayout
from quarl_lib.envs import specs

SPEC = specs.EnvironmentSpec(
    specs.Array((3,), np.float32),
    specs.BoundedArray((2,), np.float32, -1.0, 1.0),
    specs.Array((), np.float32),
    specs.BoundedArray((), np.float32, 0, 1),
)
CONFIG = Config(min_replay=1, samples_per_insert=0.0, n_step=1, discount=1.0, batch_size=8, max_replay=10_000)


def write(adder, values) -> None:
    """Write one transition a value, every number of it that value."""
    for value in values:
        observation = np.full(3, value, np.float32)
        adder.add_first(dm_env.restart(observation))
        adder.add(np.full(2, value, np.float32), dm_env.TimeStep(dm_env.StepType.LAST, value, value, observation))


def test_transitions_come_back_as_they_were_written():
    memory = local.Memory(CONFIG.replace(n_step=2, discount=0.5), SPEC, 1)
    adder = local.LocalAdder(CONFIG.replace(n_step=2, discount=0.5), memory, SPEC, 0)
    adder.add_first(dm_env.restart(np.array([1, 2, 3], np.float32)))
    adder.add(np.array([4, 5], np.float32), dm_env.transition(6.0, np.array([7, 8, 9], np.float32), 1.0))
    adder.add(np.array([10, 11], np.float32), dm_env.termination(2.0, np.array([12, 13, 14], np.float32)))
    assert memory.rows()[:3].tolist() == [
        [1, 2, 3, 4, 5, 6, 1, 7, 8, 9],
        [1, 2, 3, 4, 5, 6 + 0.5 * 2, 0, 12, 13, 14],
        [7, 8, 9, 10, 11, 2, 0, 12, 13, 14],
    ]
    replay = local.LocalReplay(CONFIG, memory, SPEC)
    assert replay.counts() == (3, 0)
    batch = next(replay.batches())
    assert [part.shape for part in batch] == [(8, 3), (8, 2), (8,), (8,), (8, 3)]
    assert {tuple(row) for row in batch.o_tm1.tolist()} <= {(1, 2, 3), (7, 8, 9)}
    assert replay.counts() == (3, 8)


def test_a_full_ring_forgets_its_own_oldest():
    memory = local.Memory(CONFIG.replace(max_replay=6), SPEC, 2)
    write(local.LocalAdder(CONFIG, memory, SPEC, 0), range(1, 6))
    write(local.LocalAdder(CONFIG, memory, SPEC, 1), [100])
    assert memory.size(memory.counts()) == 4
    sampler = local.Sampler(memory, np.random.default_rng(0))
    assert set(sampler(500)[:, 0]) == {3, 4, 5, 100}


def test_sampling_is_uniform_over_all_rings():
    from scipy import stats

    memory = local.Memory(CONFIG.replace(max_replay=100), SPEC, 2)
    write(local.LocalAdder(CONFIG, memory, SPEC, 0), range(70))  # 20 to 69 are left
    write(local.LocalAdder(CONFIG, memory, SPEC, 1), range(100, 130))
    drawn = local.Sampler(memory, np.random.default_rng(1))(40_000)[:, 0].astype(int)
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == [*range(20, 70), *range(100, 130)]
    assert stats.chisquare(counts).pvalue > 0.001


class Pusher:
    """Inserts into, or samples from, a Reverb table whenever its limiter lets it, in a thread of its own."""

    def __init__(self, limiter, sampling: bool) -> None:
        import reverb

        table = reverb.Table("t", reverb.selectors.Uniform(), reverb.selectors.Fifo(), 5, limiter)
        self.server, self.sampling, self.done = reverb.Server([table]), sampling, False
        self.client = reverb.Client(f"localhost:{self.server.port}")
        self.thread = threading.Thread(target=self._push)
        self.thread.start()

    def _push(self) -> None:
        while not self.done:
            self.sample() if self.sampling else self.insert()

    def insert(self) -> None:
        self.client.insert([np.zeros(1, np.float32)], {"t": 1.0})

    def sample(self) -> None:
        list(self.client.sample("t", 1))

    def counts(self) -> tuple[int, int]:
        info = self.client.server_info(5)["t"].rate_limiter_info
        return info.insert_stats.completed, info.sample_stats.completed

    def settled(self, expected: tuple[int, int]) -> tuple[int, int]:
        """Wait until the counts are as expected, then whether they stay so; return them."""
        deadline = time.monotonic() + 5
        while self.counts() != expected and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(0.02)
        return self.counts()

    def end(self) -> None:
        self.done = True
        while self.thread.is_alive():
            self.insert() if self.sampling else self.sample()
            self.thread.join(0.2)
        self.server.stop()


@pytest.mark.parametrize("sampling", [True, False])
@pytest.mark.parametrize(("ratio", "min_replay", "buffer"), [(2.0, 3, 4.0), (0.5, 2, 2.0), (16.0, 1, 40.0)])
def test_limiter_gives_the_trace_that_reverb_gives(ratio, min_replay, buffer, sampling):
    """One side goes as far as it may after every single step of the other."""
    import reverb

    ours = local.Limiter(ratio, min_replay, buffer)
    pusher = Pusher(reverb.rate_limiters.SampleToInsertRatio(ratio, min_replay, buffer), sampling)
    inserted = sampled = 0
    try:
        for _ in range(12):
            while not sampling and ours.may_insert(inserted, sampled, min(inserted, 5)):
                inserted += 1
            while sampling and ours.may_sample(inserted, sampled, min(inserted, 5), 1):
                sampled += 1
            assert pusher.settled((inserted, sampled)) == (inserted, sampled)
            if sampling:
                pusher.insert()
                inserted += 1
            else:
                pusher.sample()
                sampled += 1
        assert inserted > min_replay
    finally:
        pusher.end()


def test_without_a_ratio_only_the_smallest_size_counts():
    limiter = local.Limiter(0.0, 3, 1.0)
    assert [limiter.may_sample(size, 10**6, size, 8) for size in (2, 3)] == [False, True]
    assert limiter.may_insert(10**9, 0, 10**9)


@settings(max_examples=60, deadline=None)
@given(
    ratio=st.floats(0.1, 40.0), min_replay=st.integers(1, 50), steps=st.lists(st.booleans(), max_size=300),
    batch=st.integers(1, 16),
)  # fmt: skip
def test_some_side_may_always_go_on(ratio, min_replay, steps, batch):
    buffer = max(4.0 * batch, 2.0 * max(1.0, ratio))
    limiter, inserted, sampled = local.Limiter(ratio, min_replay, buffer), 0, 0
    for wants_insert in steps:
        may_insert = limiter.may_insert(inserted, sampled, inserted)
        may_sample = limiter.may_sample(inserted, sampled, inserted, batch)
        assert may_insert or may_sample
        if may_insert and (wants_insert or not may_sample):
            inserted += 1
        else:
            sampled += batch
        if inserted > min_replay:
            assert abs(inserted * ratio - sampled - ratio * min_replay) <= buffer + ratio + batch


def test_adder_held_back_gives_up_when_the_run_ends():
    config = CONFIG.replace(samples_per_insert=1.0, error_buffer=4.0)
    memory = local.Memory(config, SPEC, 1)
    adder = local.LocalAdder(config, memory, SPEC, 0, should_stop=lambda: True)
    with pytest.raises(Stopped):
        write(adder, range(100))
    assert memory.inserted(memory.counts()) == 5  # min_replay 1 and four more


def test_a_dataset_that_waits_ends_with_the_run():
    looks = iter([False, False, True])
    replay = local.LocalReplay(CONFIG, local.Memory(CONFIG, SPEC, 1), SPEC)
    assert list(replay.batches(lambda: next(looks))) == []


def test_wrong_writer_and_wrong_shape_are_refused():
    memory = local.Memory(CONFIG, SPEC, 2)
    with pytest.raises(ValueError, match="writer=2"):
        local.LocalAdder(CONFIG, memory, SPEC, 2)
    adder = local.LocalAdder(CONFIG, memory, SPEC, 0)
    adder.add_first(dm_env.restart(np.zeros(3, np.float32)))
    with pytest.raises(ValueError, match="shape"):
        adder.add(np.zeros(2, np.float32), dm_env.transition(0.0, np.zeros(4, np.float32)))
    assert memory.inserted(memory.counts()) == 0


def test_saved_and_restored_it_goes_on_where_it_stood(tmp_path):
    config = CONFIG.replace(max_replay=8)
    memory = local.Memory(config, SPEC, 2)
    write(local.LocalAdder(config, memory, SPEC, 0), range(6))
    write(local.LocalAdder(config, memory, SPEC, 1), [50])
    replay = local.LocalReplay(config, memory, SPEC)
    next(replay.batches())
    saved = replay.save(tmp_path)
    again = local.Memory(config, SPEC, 2)
    restored = local.LocalReplay(config, again, SPEC)
    restored.restore(saved)
    assert restored.counts() == (7, 8)
    write(local.LocalAdder(config, again, SPEC, 0), [6])
    assert set(local.Sampler(again, np.random.default_rng(0))(300)[:, 0]) == {3, 4, 5, 6, 50}
    with pytest.raises(ValueError, match="1 of 10"):
        local.LocalReplay(config, local.Memory(config, SPEC, 1), SPEC).restore(saved)


def write_forever(config: Config, memory: local.Memory, writer: int) -> None:
    adder = local.LocalAdder(config, memory, SPEC, writer)
    value = 0
    while True:
        write(adder, [float(writer * 1_000_000 + value % 1_000_000)])
        value += 1


def test_no_torn_transition_is_sampled_while_writers_write_and_die():
    context = multiprocessing.get_context("fork")
    config = CONFIG.replace(max_replay=8)  # tiny rings: the sampler meets the writers all the time
    memory = local.Memory(config, SPEC, 2)
    writers = [context.Process(target=write_forever, args=(config, memory, i), daemon=True) for i in range(2)]
    for writer in writers:
        writer.start()
    sampler, width = local.Sampler(memory, np.random.default_rng(0)), TransitionLayout(SPEC).size
    try:
        deadline = time.monotonic() + 30
        while memory.size(memory.counts()) < 8:
            assert time.monotonic() < deadline
        rows = 0
        for number in range(3000):
            vectors = sampler(32)
            assert (vectors == vectors[:, :1]).all()
            rows += len(vectors)
            if number == 1500:
                os.kill(writers[0].pid or 0, signal.SIGKILL)
                writers[0].join()
        assert rows == 3000 * 32
        before = memory.counts()[2]
        write(local.LocalAdder(config, memory, SPEC, 0), [7.0] * 4)  # its successor
        assert memory.counts()[2] == before + 4
        vectors = sampler(200)
        assert (vectors[vectors[:, 0] < 1_000_000] == 7.0).all()
        assert vectors.shape == (200, width)
    finally:
        for writer in writers:
            writer.kill()
            writer.join()


@pytest.mark.slow
def test_a_program_without_a_server_learns_at_the_ratio_and_resumes(tmp_path):
    from quarl_lib.actorq.launch import local as launcher

    config = Config(
        task="gym:CartPole-v0", algorithm="dqn", replay="local", precision="int8", actor_steps=3000, min_replay=200,
        policy_hidden=(8,), samples_per_insert=8.0, checkpoint_every=100, eval_period=10**6,
    )  # fmt: skip
    tables = launcher.run(config, tmp_path, metered=False, evaluated=False)
    last = tables["learner"].iloc[-1]
    assert abs(last.sampled - 8.0 * (last.inserted - 200)) <= config.replay_error_buffer + 64
    assert last.inserted == pytest.approx(tables["episodes"].actor_steps.max() + 4 * len(tables["episodes"]), rel=0.1)
    assert tables["deaths"].empty
    again = launcher.run(config.replace(resume=True, actor_steps=4000), tmp_path, metered=False, evaluated=False)
    assert again["learner"].learner_steps.is_monotonic_increasing
    assert again["learner"].inserted.iloc[-1] > last.inserted
    with pytest.raises(launcher.RunFailed, match="replay='reverb'"):
        launcher.run(config.replace(resume=True, replay="reverb", actor_steps=5000), tmp_path, metered=False)


def test_what_needs_a_server_is_refused():
    with pytest.raises(ValueError, match="replay='local': adder='acme' needs Reverb"):
        Config(replay="local", adder="acme")
    assert Config(replay="local").local_replay
    assert not Config(replay="reverb").local_replay
