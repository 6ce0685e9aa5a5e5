"""An actor's loop, its pulls and its exploration; the replay is a list, everything else is real."""

# mypy: disable-error-code="arg-type, misc"
from __future__ import annotations

import itertools
import sys
import time
import types

import numpy as np
import pytest

import quarl_lib.actorq.replay
from quarl_lib.actorq.actor import exploration
from quarl_lib.actorq.actor import loop as actor
from quarl_lib.actorq.actor.policy import policy_spec
from quarl_lib.actorq.config import Config
from quarl_lib.actorq.link import Link, read
from quarl_lib.actorq.timing import StageTimer
from quarl_lib.actorq.weights.broadcast import SharedMemoryBroadcast
from quarl_lib.envs import control, specs
from quarl_lib.inference import LayerWeights, Weights, make_engine
from quarl_lib.inference.pack import pack, packed_size, unpack

CARTPOLE = Config(task="gym:CartPole-v0", algorithm="dqn", n_actors=1, policy_hidden=(16,), min_replay=10, seed=3)
BALANCE = Config(n_actors=1, policy_hidden=(16, 16), min_replay=10)


class Recorder:
    """Stands in for replay: keeps what an adder is told."""

    def __init__(self) -> None:
        self.observations: list[np.ndarray] = []
        self.actions: list[object] = []

    def add_first(self, timestep) -> None:
        self.observations.append(timestep.observation)

    def add(self, action, next_timestep, extras=()) -> None:
        self.actions.append(action)
        self.observations.append(next_timestep.observation)

    def flush(self) -> None:
        pass


def spec_of(config: Config):
    return policy_spec(config, specs.make_environment_spec(control.make(config.task, 0)))


def random_weights(spec, seed: int) -> Weights:
    rng = np.random.default_rng(seed)
    layers = []
    for layer in spec.layers:
        bound = layer.in_features**-0.5
        shapes = ((layer.out_features, layer.in_features), (layer.out_features,))
        layers.append(LayerWeights(*(rng.uniform(-bound, bound, shape).astype(np.float32) for shape in shapes)))
    return Weights(tuple(layers))


def act(config: Config, directory, monkeypatch, generation: int = 0) -> tuple[Recorder, Link]:
    """Run the real actor against weights that were published once."""
    recorder = Recorder()
    fake = types.SimpleNamespace(make_adder=lambda *arguments: recorder, Stopped=KeyError)
    monkeypatch.setitem(sys.modules, "quarl_lib.actorq.replay.reverb", fake)
    monkeypatch.setattr(quarl_lib.actorq.replay, "reverb", fake, raising=False)
    spec = spec_of(config)
    broadcast = SharedMemoryBroadcast(packed_size(spec, config.weights_precision), 1)
    broadcast.publisher().publish(pack(spec, random_weights(spec, 0), config.weights_precision, weights_version=1))
    link = Link(directory, 1, broadcast)
    link.set_address("localhost:1")
    actor.run(config, link, 0, generation)
    return recorder, link


class Feed:
    """A subscriber that counts what is asked of it."""

    def __init__(self, buffers) -> None:
        self.buffers, self.published, self.fetches = buffers, 0, 0

    def version(self) -> int:
        return self.published

    def fetch(self) -> np.ndarray:
        self.fetches += 1
        return np.frombuffer(self.buffers[self.published - 1], np.uint8)


@pytest.mark.parametrize("config", [CARTPOLE, BALANCE], ids=["dqn", "d4pg"])
def test_same_seed_gives_the_same_first_thousand_transitions(tmp_path, monkeypatch, config):
    config = config.replace(actor_steps=1000)
    first, _ = act(config, tmp_path / "a", monkeypatch)
    again, _ = act(config, tmp_path / "b", monkeypatch)
    other, _ = act(config.replace(seed=4), tmp_path / "c", monkeypatch)
    assert len(first.actions) >= 1000
    np.testing.assert_array_equal(first.observations, again.observations)
    np.testing.assert_array_equal(first.actions, again.actions)
    assert not np.array_equal(first.observations[:50], other.observations[:50])


def test_a_replacement_has_random_numbers_of_its_own(tmp_path, monkeypatch):
    config = CARTPOLE.replace(actor_steps=50)
    first, _ = act(config, tmp_path / "a", monkeypatch)
    replacement, _ = act(config, tmp_path / "b", monkeypatch, generation=1)
    assert not np.array_equal(first.observations[:20], replacement.observations[:20])


def test_rows_say_what_happened(tmp_path, monkeypatch):
    recorder, link = act(CARTPOLE.replace(actor_steps=400, update_period=50), tmp_path, monkeypatch)
    episodes, timing = read(tmp_path, "episodes"), read(tmp_path, "timing")
    assert link.actor_steps() == len(recorder.actions)
    # CartPole pays 1 a step; the last episode was cut short by the run's end and is no row.
    np.testing.assert_array_equal(episodes.episode_return, episodes.episode_steps)
    assert episodes.episode_steps.sum() <= link.actor_steps() < episodes.episode_steps.sum() + 200
    assert episodes.actor_steps.is_monotonic_increasing
    counts = timing.groupby("stage")["count"].sum()
    assert counts["select_action"] == counts["observe"] - len(episodes) - 1 == link.actor_steps()
    assert counts["pull"] == link.actor_steps() // 50
    assert set(timing.precision) == {"fp32"}


@pytest.mark.slow
def test_stages_add_up_to_the_loop(tmp_path):
    environment = control.make(BALANCE.task, 0)
    engine = make_engine(spec_of(BALANCE), "fp32")
    engine.load(pack(engine.spec, random_weights(engine.spec, 0), "fp32"))
    shares = []
    for _ in range(5):  # another process may take the core for a moment that no stage holds, but hardly every time
        timer, steps = StageTimer(), itertools.count(1)
        begin = time.perf_counter()
        timer.reset()
        actor.run_episode(environment, engine, Recorder(), timer, lambda steps=steps: next(steps) < 300)
        shares.append(sum(timer.seconds.values()) / (time.perf_counter() - begin))
    assert np.median(shares) > 0.97
    assert max(shares) <= 1
    assert set(timer.counts) == {"env_step", "observe", "select_action"}


def test_puller_fetches_only_what_is_new():
    spec = spec_of(BALANCE)
    feed = Feed([pack(spec, random_weights(spec, seed), "int8", weights_version=seed) for seed in (1, 2, 3)])
    engine, timer = make_engine(spec, "int8"), StageTimer()
    pull = actor.Puller(spec, engine, feed, "int8")
    feed.published = 1
    assert [pull(timer), pull(timer), pull(timer)] == [True, False, False]
    feed.published = 3
    assert pull(timer)
    assert feed.fetches == 2
    assert engine.weights_version == 3
    assert timer.counts == {"pull": 4, "load_weights": 2}


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_fp32_sent_and_quantized_by_the_actor_equals_the_learner_packing(precision):
    spec, observation = spec_of(BALANCE), np.linspace(-1, 1, 5, dtype=np.float32)
    weights = random_weights(spec, 1)
    direct = make_engine(spec, precision)
    direct.load(pack(spec, weights, precision))
    feed, engine = Feed([pack(spec, weights, "fp32", weights_version=7)]), make_engine(spec, precision)
    feed.published, timer = 1, StageTimer()
    actor.Puller(spec, engine, feed, "fp32")(timer)
    np.testing.assert_array_equal(engine(observation), direct(observation))
    assert engine.weights_version == 7
    assert set(timer.counts) == {"pull", "deserialize", "load_weights"}


def test_int8_sent_and_computed_in_fp32_uses_the_dequantized_weights():
    spec, observation = spec_of(BALANCE), np.linspace(-1, 1, 5, dtype=np.float32)
    message = pack(spec, random_weights(spec, 1), "int8")
    feed, engine = Feed([message]), make_engine(spec, "fp32")
    feed.published = 1
    actor.Puller(spec, engine, feed, "int8")(StageTimer())
    expected = make_engine(spec, "fp32", "numpy")
    expected.load(pack(spec, unpack(spec, message), "fp32"))
    np.testing.assert_allclose(engine(observation), expected(observation), rtol=1e-5)


def test_waiting_for_weights_ends_with_an_error(tmp_path):
    with pytest.raises(TimeoutError, match="published no weights"):
        actor.wait_for_weights(Feed([]), Link(tmp_path, 1), timeout_s=0.02)


def test_sigma_is_spread_over_the_actors():
    assert [exploration.sigma_of(i, 3, 0.6) for i in range(3)] == pytest.approx([0.0, 0.3, 0.6])
    assert exploration.sigma_of(0, 1, 0.6) == pytest.approx(0.3)


def test_epsilon_is_a_geometric_ladder():
    ladder = [exploration.epsilon_of(i, 3, 0.01, 0.64) for i in range(3)]
    assert ladder == pytest.approx([0.01, 0.08, 0.64])
    assert exploration.epsilon_of(0, 1, 0.01, 0.64) == pytest.approx(0.08)
    assert [exploration.epsilon_of(i, 2, 0.0, 0.5) for i in range(2)] == [0.0, 0.5]


def test_noise_has_its_sigma_and_stays_in_bounds():
    noise = exploration.GaussianNoise(0.5, np.random.default_rng(0))
    draws = np.stack([noise(np.zeros(2, np.float32)) for _ in range(4000)])
    assert draws.dtype == np.float32
    assert np.abs(draws).max() == 1.0
    inside = draws[np.abs(draws) < 1]
    assert 0.40 < inside.std() < 0.45  # a normal of 0.5 cut off at 2 sigma has a deviation of 0.44
    still = exploration.GaussianNoise(0.0, np.random.default_rng(0))
    np.testing.assert_array_equal(still(np.array([0.25, -1.0], np.float32)), np.array([0.25, -1.0], np.float32))


def test_epsilon_is_the_share_of_random_actions():
    explore = exploration.EpsilonGreedy(0.3, 4, np.random.default_rng(0))
    actions = np.array([explore(0) for _ in range(4000)])
    assert (actions != 0).mean() == pytest.approx(0.3 * 3 / 4, abs=0.03)
    assert set(actions) == {0, 1, 2, 3}


@pytest.mark.parametrize(("adder", "dtype"), [("structured", int), ("acme", np.int32)])
def test_acmes_adder_gets_the_dtype_that_its_table_takes(adder, dtype):
    spec = specs.make_environment_spec(control.make(CARTPOLE.task, 0))
    explore = exploration.make_exploration(CARTPOLE.replace(adder=adder), spec, 0, np.random.default_rng(0))
    assert {type(explore(1)) for _ in range(50)} == {dtype}
