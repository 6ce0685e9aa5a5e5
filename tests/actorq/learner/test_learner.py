"""The learner against a real replay server: it learns, publishes, leaves snapshots, saves, resumes."""

# mypy: disable-error-code="arg-type"
from __future__ import annotations

import math
import multiprocessing
import os
import signal
import threading
import time

import dm_env
import numpy as np
import pytest
import torch

from quarl_lib.actorq.actor.evaluator import waiting_snapshots
from quarl_lib.actorq.actor.policy import policy_spec, policy_weights
from quarl_lib.actorq.config import Config
from quarl_lib.actorq.learner import checkpoint
from quarl_lib.actorq.learner import loop as learner
from quarl_lib.actorq.learner.state import device_of
from quarl_lib.actorq.link import END, NOTHING, Link, read
from quarl_lib.actorq.replay.transitions import Batch
from quarl_lib.actorq.weights.broadcast import SharedMemoryBroadcast, subscriber_of
from quarl_lib.envs import control, specs
from quarl_lib.inference.pack import packed_size, read_version, unpack

CONFIG = Config(
    task="gym:CartPole-v0", algorithm="dqn", policy_hidden=(16, 16), precision="int8", n_actors=1, n_step=1,
    min_replay=32, batch_size=16, samples_per_insert=1.0, flush_period=8, actor_steps=1200, publish_period=5,
    eval_period=300, device="cpu", max_seconds=120.0,
)  # fmt: skip
ENVIRONMENT_SPEC = specs.make_environment_spec(control.make(CONFIG.task, seed=0))


def act(config: Config, link: Link, failed: list) -> None:
    """Write random transitions, as an actor would, until the learner is done."""
    from quarl_lib.actorq.replay import reverb as replay

    rng = np.random.default_rng(0)
    try:
        adder = replay.make_adder(config, link.address(), ENVIRONMENT_SPEC, link.should_stop)
        draw = lambda: rng.normal(size=4).astype(np.float32)  # noqa: E731
        adder.add_first(dm_env.restart(draw()))
        for step in range(link.actor_steps() + 1, config.actor_steps + 1):
            adder.add(int(rng.integers(2)), dm_env.transition(np.float32(1), draw(), np.float32(1)))
            link.set_actor_steps(0, step)
            if link.should_stop():
                break
        adder.flush()
    except replay.Stopped:
        pass
    except Exception as error:
        failed.append(error)


def learn(config: Config, directory) -> Link:
    """Run the real learner in this process beside a thread that acts."""
    spec = policy_spec(config, ENVIRONMENT_SPEC)
    link = Link(directory, 1, SharedMemoryBroadcast(packed_size(spec, config.weights_precision), 1))
    if config.resume:
        link.set_actor_steps(0, checkpoint.read_counters(checkpoint.latest(directory)).actor_steps)
    failed: list[Exception] = []
    actor = threading.Thread(target=act, args=(config, link, failed), daemon=True)
    actor.start()
    try:
        learner.run(config, link)
    finally:
        link.abort()
        actor.join(10)
    assert not failed
    return link


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    return learn(CONFIG.replace(checkpoint_every=25), directory)


def test_learns_as_often_as_the_ratio_says(finished):
    steps = finished.learner_steps()
    rows = read(finished.directory, "learner")
    assert rows.learner_steps.iloc[-1] == steps
    last = rows.iloc[-1]
    ahead = (last.inserted - CONFIG.min_replay) * CONFIG.samples_per_insert - last.sampled
    assert abs(ahead) <= CONFIG.replay_error_buffer
    assert 0.5 * last.sampled < steps * CONFIG.batch_size <= last.sampled  # a checkpoint drops what is in flight
    assert np.isfinite(rows.critic_loss).all()


def test_publishes_the_online_policy_at_the_weights_precision(finished):
    subscriber = subscriber_of(finished, 0)
    assert subscriber.version() == 1 + finished.learner_steps() // CONFIG.publish_period
    buffer = subscriber.fetch()
    spec = policy_spec(CONFIG, ENVIRONMENT_SPEC)
    assert len(buffer) == packed_size(spec, "int8")
    assert read_version(buffer) % CONFIG.publish_period == 1
    published = unpack(spec, buffer).layers[0].weight
    fresh = policy_weights(learner.ALGORITHMS["dqn"].init(CONFIG, ENVIRONMENT_SPEC, device_of(CONFIG)).policy)
    assert not np.allclose(published, fresh.layers[0].weight, atol=1e-3)  # it moved


def test_leaves_snapshots_at_fixed_actor_steps(finished):
    taken = [snapshot.actor_steps for snapshot in waiting_snapshots(finished.directory)]
    assert taken[0] < 300
    assert [steps // 300 for steps in taken[:4]] == [0, 1, 2, 3]
    assert all(steps % 300 < 200 for steps in taken[:4])  # a step late at most, and the actor is fast
    times = [snapshot.wall_time_s for snapshot in waiting_snapshots(finished.directory)]
    assert times == sorted(times)


def test_stages_are_timed_without_overlap(finished):
    rows = read(finished.directory, "timing")
    assert set(rows.stage) == {"sample", "learner_step", "quantize", "broadcast"}
    assert rows.groupby("stage")["count"].sum()["learner_step"] == finished.learner_steps()
    assert rows.seconds.sum() <= rows.wall_time_s.max()


def test_goes_on_from_the_last_whole_checkpoint(finished):
    directory = finished.directory
    saved = checkpoint.latest(directory)
    counters = checkpoint.read_counters(saved)
    assert counters.learner_steps % 25 == 0
    assert len([path for path in checkpoint.folder(directory).iterdir() if path.name.isdigit()]) == checkpoint.KEPT
    again = learn(CONFIG.replace(resume=True, actor_steps=counters.actor_steps + 400), directory)
    assert again.learner_steps() > counters.learner_steps + 10
    rows = read(directory, "learner")
    assert rows.learner_steps.iloc[-1] == again.learner_steps()


class WaitingReplay:
    """A replay whose sampler gives `steps` batches, then waits until the learner has ended without it."""

    address = "localhost:1"

    def __init__(self, link: Link, config: Config, steps: int) -> None:
        self.link, self.config, self.steps, self.returned_at = link, config, steps, 0.0

    def batches(self, should_stop):
        self.beat_before = self.link.heartbeat(self.link.beat_slot)
        rng = np.random.default_rng(0)
        draw = lambda: torch.from_numpy(rng.normal(size=(16, 4)).astype(np.float32))  # noqa: E731
        for _ in range(self.steps):
            yield Batch(draw(), torch.zeros(16, dtype=torch.int64), torch.ones(16), torch.ones(16), draw())
        self.link.set_actor_steps(0, self.config.actor_steps)  # the actors end here
        deadline = time.monotonic() + 10
        while not self.link.learner_done() and time.monotonic() < deadline:
            time.sleep(0.005)
        self.returned_at = self.link.wall_time_s() if self.link.learner_done() else math.inf
        yield Batch(draw(), torch.zeros(16, dtype=torch.int64), torch.ones(16), torch.ones(16), draw())

    def counts(self) -> tuple[int, int]:
        return 32, 16 * self.steps

    def stop(self) -> None:
        pass


def test_the_end_does_not_wait_for_the_sampler(tmp_path, monkeypatch):
    config = CONFIG.replace(transport="shared_memory")
    link = Link(tmp_path, 1, SharedMemoryBroadcast(packed_size(policy_spec(config, ENVIRONMENT_SPEC), "int8"), 1))
    replay = WaitingReplay(link, config, steps=7)
    monkeypatch.setattr(learner, "open_replay", lambda *_: replay)
    learner.run(config, link)
    last = waiting_snapshots(tmp_path)[-1]
    assert (last.learner_steps, last.actor_steps) == (7, config.actor_steps)  # no step more, once the actors ended
    assert link.learner_steps() == 7
    assert replay.beat_before == (0, NOTHING)  # the first publication and making the sampler are no stall
    assert last.wall_time_s < replay.returned_at < math.inf  # taken, and said to be the last, while the sampler waited


def test_a_last_snapshot_that_cannot_be_left_fails_the_learner(tmp_path, monkeypatch):
    link = Link(tmp_path, 1, SharedMemoryBroadcast(packed_size(policy_spec(CONFIG, ENVIRONMENT_SPEC), "int8"), 1))
    monkeypatch.setattr(learner, "open_replay", lambda *_: WaitingReplay(link, CONFIG, steps=3))
    written = []

    def leave_snapshot(*arguments) -> None:
        written.append(arguments)
        if len(written) > 1:
            raise OSError("no space left")

    monkeypatch.setattr(learner, "leave_snapshot", leave_snapshot)
    with pytest.raises(OSError, match="no space left"):
        learner.run(CONFIG, link)
    assert link.heartbeat(link.beat_slot)[1] == END  # what ends a sampler and a server is no stall


def test_a_diverged_learner_says_so(tmp_path):
    config = CONFIG.replace(critic_learning_rate=1e30, max_gradient_norm=1e30)
    with pytest.raises((FloatingPointError, ValueError), match=r"diverged|inf|nan"):
        learn(config, tmp_path)


def write_for_ever(directory, ready) -> None:
    network = torch.nn.Linear(300, 300)
    for step in range(1, 10_000):
        checkpoint.write(
            directory, checkpoint.Counters(step, step, 1.0), {"step": step, "w": network.state_dict()}, None
        )
        ready.set()


@pytest.mark.parametrize(
    "delay_s", [0.011, *(pytest.param(delay_s, marks=pytest.mark.slow) for delay_s in (0.0, 0.003, 0.023, 0.04))]
)
def test_killed_while_writing_the_one_before_is_used(tmp_path, delay_s):
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    writer = context.Process(target=write_for_ever, args=(tmp_path, ready), daemon=True)
    writer.start()
    assert ready.wait(60)
    time.sleep(delay_s)
    os.kill(writer.pid, signal.SIGKILL)
    writer.join(10)
    path = checkpoint.latest(tmp_path)
    assert checkpoint.read_learner(path)["step"] == checkpoint.read_counters(path).learner_steps


def test_half_a_checkpoint_is_none(tmp_path):
    assert checkpoint.latest(tmp_path) is None
    (checkpoint.folder(tmp_path) / ".part").mkdir(parents=True)
    assert checkpoint.latest(tmp_path) is None
    for steps in (9, 10, 11):
        checkpoint.write(tmp_path, checkpoint.Counters(steps * 4, steps, 0.5), {}, None)
    assert checkpoint.read_counters(checkpoint.latest(tmp_path)) == checkpoint.Counters(44, 11, 0.5)


def test_random_state_goes_on(tmp_path):
    torch.manual_seed(3)
    path = checkpoint.write(tmp_path, checkpoint.Counters(1, 1, 0.0), {}, None)
    expected = torch.rand(4)
    torch.manual_seed(99)
    checkpoint.read_learner(path)
    assert torch.equal(torch.rand(4), expected)
