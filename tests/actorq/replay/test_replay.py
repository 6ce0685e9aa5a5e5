"""Replay against hand-worked n-step numbers, against Acme's own adder, and through a real Reverb server."""

# mypy: disable-error-code="arg-type, attr-defined"
from __future__ import annotations

import time
from typing import Any

import dm_env
import numpy as np
import pytest

from quarl_lib.actorq.config import Config
from quarl_lib.actorq.replay.transitions import NStep, TransitionLayout
from quarl_lib.envs import control, specs

OBSERVATION, ACTION = specs.Array((3,), np.float32), specs.BoundedArray((2,), np.float32, -1.0, 1.0)
SPEC = specs.EnvironmentSpec(OBSERVATION, ACTION, specs.Array((), np.float32), specs.BoundedArray((), np.float32, 0, 1))
CONFIG = Config(
    min_replay=1, samples_per_insert=0.0, n_step=3, discount=0.9, batch_size=8, flush_period=4, max_replay=10_000
)


def episode(length: int, seed: int, terminated: bool = True):
    """Return a first step and (action, next step) pairs with random content."""
    rng = np.random.default_rng(seed)
    draw = lambda n: rng.normal(size=n).astype(np.float32)  # noqa: E731
    steps = []
    for index in range(length):
        last = index == length - 1
        kind = dm_env.StepType.LAST if last else dm_env.StepType.MID
        discount = np.float32(0.0 if last and terminated else rng.uniform(0.5, 1.0))
        steps.append((draw(2), dm_env.TimeStep(kind, np.float32(rng.normal()), discount, draw(3))))
    return dm_env.restart(draw(3)), steps


def write(adder, first, steps):
    adder.add_first(first)
    for action, timestep in steps:
        adder.add(action, timestep)
    adder.flush()


def write_episodes(adder, count, length):
    for seed in range(count):
        write(adder, *episode(length, seed))


@pytest.fixture(scope="module")
def replay():
    from quarl_lib.actorq.replay import reverb as replay

    return replay


@pytest.fixture
def server(replay):
    running = []

    def start(config, spec=SPEC, **options):
        running.append(replay.serve(config, spec, **options))
        return running[-1]

    yield start
    for server in running:
        server.stop()


def contents(replay, address, count):
    """Return every item of a Fifo-ordered copy of the table: sampled until each key was seen."""
    import reverb

    found: dict[Any, Any] = {}
    client = reverb.Client(address)
    while len(found) < count:
        for sample in client.sample(
            "replay", num_samples=4 * count, emit_timesteps=False, unpack_as_table_signature=True
        ):
            found[int(np.atleast_1d(sample.info.key)[0])] = sample.data
    return list(found.values())


def test_n_step_by_hand():
    nstep = NStep(n_step=2, discount=0.5)
    nstep.first("o0")
    assert nstep.step("a0", 1.0, 1.0, "o1", False) == [["o0", "a0", 1.0, 1.0]]
    assert nstep.step("a1", 2.0, 0.8, "o2", False) == [["o0", "a0", 1.0 + 0.5 * 2.0, 0.5 * 0.8]]
    full, short = nstep.step("a2", 4.0, 0.0, "o3", True)
    assert full == ["o1", "a1", 2.0 + 0.5 * 0.8 * 4.0, 0.0]
    assert short == ["o2", "a2", 4.0, 0.0]
    with pytest.raises(RuntimeError, match="first"):
        nstep.step("a3", 0.0, 1.0, "o4", False)


def test_episode_shorter_than_n():
    nstep = NStep(n_step=5, discount=1.0)
    nstep.first("o0")
    endings = nstep.step("a0", 1.0, 1.0, "o1", False), nstep.step("a1", 1.0, 0.0, "o2", True)
    assert [[entry[0] for entry in ending] for ending in endings] == [["o0"], ["o0", "o1"]]
    assert endings[1][0][2:] == [2.0, 0.0]


def test_layout_round_trip():
    import torch

    layout = TransitionLayout(SPEC)
    vector = layout.pack([1, 2, 3], [4, 5], 6.0, 0.5, [7, 8, 9])
    batch = layout.unpack(torch.from_numpy(vector[None]))
    assert [part.tolist() for part in batch] == [[[1, 2, 3]], [[4, 5]], [6.0], [0.5], [[7, 8, 9]]]
    discrete = TransitionLayout(SPEC._replace(actions=specs.DiscreteArray(3)))
    action = discrete.unpack(torch.from_numpy(discrete.pack([0] * 3, 2, 0.0, 1.0, [0] * 3)[None])).a_tm1
    assert action.dtype == torch.int64
    assert action.tolist() == [2]


@pytest.mark.parametrize(("length", "n_step"), [(1, 3), (2, 3), (3, 3), (9, 3), (6, 1)])
def test_same_transitions_as_acme(replay, server, length, n_step):
    first, steps = episode(length, seed=length, terminated=length % 2 == 0)
    count = length + min(n_step, length) - 1
    found: dict[Any, Any] = {}
    for adder in ("structured", "acme"):
        config = CONFIG.replace(adder=adder, n_step=n_step)
        address = server(config).address
        write(replay.make_adder(config, address, SPEC), first, steps)
        assert replay.insert_and_sample_counts(address)[0] == count
        found[adder] = contents(replay, address, count)
    ours = sorted(np.asarray(item).tolist() for item in found["structured"])
    layout = TransitionLayout(SPEC)
    acmes = sorted(
        layout.pack(t.observation, t.action, float(t.reward), float(t.discount), t.next_observation).tolist()
        for t in found["acme"]
    )
    np.testing.assert_allclose(ours, acmes, rtol=1e-6, atol=1e-7)


def test_baseline_with_dict_observations_gives_the_same_batches(replay, server):
    environment = control.make("dm_control:cartpole:balance", seed=0, flat=False)
    spec = specs.make_environment_spec(environment)
    config = CONFIG.replace(adder="acme", n_step=1, batch_size=1)
    address = server(config, spec).address
    adder = replay.make_adder(config, address, spec)
    first = environment.reset()
    adder.add_first(first)
    adder.add(np.array([0.5], np.float32), environment.step(np.array([0.5], np.float32)))
    adder.flush()
    batch = next(replay.make_dataset(config, address, spec))
    np.testing.assert_array_equal(batch.o_tm1[0], control.Flattener(environment.observation_spec())(first.observation))
    assert batch.a_tm1.tolist() == [[0.5]]


@pytest.mark.parametrize(("adder", "length"), [("structured", 600), ("acme", 600), ("acme", 3)])
def test_ratio_is_held_and_both_sides_stop_when_told(replay, server, adder, length):
    config = CONFIG.replace(samples_per_insert=2.0, min_replay=20, batch_size=8, n_step=1, adder=adder)
    address = server(config).address
    stop_at = time.monotonic() + 0.6
    adder = replay.make_adder(config, address, SPEC, lambda: time.monotonic() > stop_at)
    with pytest.raises(replay.Stopped):  # nobody samples: writing must stand still, and end when told
        write_episodes(adder, 600 // length, length)
    inserted, sampled = replay.insert_and_sample_counts(address)
    assert sampled == 0
    assert inserted * 2.0 <= config.min_replay * 2.0 + config.replay_error_buffer
    stop_at = time.monotonic() + 1.5
    batches = sum(1 for _ in replay.make_dataset(config, address, SPEC, lambda: time.monotonic() > stop_at))
    assert batches > 0
    inserted, sampled = replay.insert_and_sample_counts(address)
    assert abs(inserted * 2.0 - sampled - config.min_replay * 2.0) <= config.replay_error_buffer


def test_server_gone_is_an_error_and_not_a_hang(replay, server, monkeypatch):
    monkeypatch.setattr(replay, "GONE_AFTER_S", 1.0)
    config = CONFIG.replace(n_step=1)
    running = server(config)
    adder = replay.make_adder(config, running.address, SPEC)
    weights = replay.WeightsClient(running.address)
    weights.insert(b"12345678")
    running.stop()
    first, steps = episode(40, seed=0)
    with pytest.raises(replay.ServerGone):
        write(adder, first, steps)
    with pytest.raises(replay.ServerGone):
        weights.version()


def test_weights_table_keeps_the_newest(replay, server):
    client = replay.WeightsClient(server(CONFIG).address)
    assert client.version() == 0
    for version in (1, 2):
        client.insert(np.full(64, version, np.uint8).tobytes())
        assert client.version() == version
    assert client.fetch().tolist() == [2] * 64


def test_waiting_for_weights_ends_when_told(replay, server):
    address = server(CONFIG).address
    stop_at = time.monotonic() + 0.6
    client = replay.WeightsClient(address, lambda: time.monotonic() > stop_at)
    with pytest.raises(replay.Stopped):
        client.fetch()  # nobody published, as on a server that was stopped between asking and fetching
    client.insert(b"12345678")  # lets the sampler, and so the server, end


def test_checkpoint_brings_back_what_was_written(replay, server, tmp_path):
    first, steps = episode(10, seed=3)
    running = server(CONFIG, checkpoint_dir=tmp_path / "first")
    write(replay.make_adder(CONFIG, running.address, SPEC), first, steps)
    before = sorted(np.asarray(item).tolist() for item in contents(replay, running.address, 12))
    written = replay.checkpoint(running.address)
    assert written.is_relative_to(tmp_path / "first")
    running.stop()
    again = server(CONFIG, checkpoint_dir=tmp_path / "second", restore_from=written)
    assert sorted(np.asarray(item).tolist() for item in contents(replay, again.address, 12)) == before


def test_a_restored_replay_holds_the_ratio_of_the_config(replay, server, tmp_path):
    import reverb

    first, steps = episode(10, seed=3)
    old = CONFIG.replace(samples_per_insert=4.0, min_replay=2)
    running = server(old, checkpoint_dir=tmp_path / "first")
    write(replay.make_adder(old, running.address, SPEC), first, steps)
    written = replay.checkpoint(running.address)
    running.stop()
    before = (written / "tables.tfrecord").read_bytes()
    new = old.replace(samples_per_insert=2.0, min_replay=5)
    again = server(new, checkpoint_dir=tmp_path / "second", restore_from=written)
    limiter = reverb.Client(again.address).server_info(5)["replay"].rate_limiter_info
    assert (limiter.samples_per_insert, limiter.min_size_to_sample) == (2.0, 5)
    buffer = new.replay_error_buffer
    assert (limiter.min_diff, limiter.max_diff) == (10.0 - buffer, 10.0 + buffer)
    assert (written / "tables.tfrecord").read_bytes() == before  # its checksum still holds


def test_the_log_is_quiet_about_pending_items(replay, server, capfd):
    config = CONFIG.replace(flush_period=100)
    first, steps = episode(600, seed=0)
    write(replay.make_adder(config, server(config).address, SPEC), first, steps)
    assert "pending items" not in capfd.readouterr().err


@pytest.mark.slow
def test_writing_a_transition_costs_less_than_acmes_adder(replay, server):
    first, steps = episode(1000, seed=0)
    cost = {}
    for adder in ("structured", "acme"):
        config = CONFIG.replace(adder=adder, flush_period=32, n_step=5)
        made = replay.make_adder(config, server(config).address, SPEC)
        write(made, first, steps[:100] + steps[-1:])
        start = time.thread_time()
        write(made, first, steps)
        cost[adder] = (time.thread_time() - start) / len(steps)
    assert cost["structured"] * 5 < cost["acme"]
