"""The actor-bound measurement, tiny: real publisher, replay server and actor, every stage accounted for."""

# mypy: disable-error-code="arg-type"
from __future__ import annotations

import timeit
from functools import partial

import numpy as np
import pytest

from quarl_lib.actorq.bench import authors as baseline
from quarl_lib.actorq.bench import throughput
from quarl_lib.actorq.bench.throughput import Setup
from quarl_lib.actorq.launch.program import weights_bytes
from quarl_lib.actorq.timing import StageTimer
from quarl_lib.inference import Head, Layer, LayerWeights, PolicySpec, Weights, make_engine, pack

SMALL = (64, 64)
SETUPS = [
    Setup(hidden=SMALL, precision="int8", update_period=30),
    Setup(hidden=SMALL, precision="int8", update_period=30, transport="reverb", communication_precision="fp32"),
    Setup(hidden=SMALL, precision="int8", update_period=30, transport="reverb", design="authors"),
    Setup(hidden=SMALL, precision="fp32", update_period=30, transport="reverb", design="authors"),  # the same table
    Setup(hidden=SMALL, precision="int8", update_period=30, task="gym:CartPole-v0"),
    Setup(hidden=SMALL, precision="fp32", update_period=30, task="gym:CartPole-v0", transport="reverb",
          design="authors"),
]  # fmt: skip


@pytest.fixture(scope="module")
def table():
    return throughput.measure(SETUPS, steps=60, rounds=2)


@pytest.mark.slow
def test_stages_sum_to_the_measured_time_without_overlap(table):
    blocks = table.groupby(["setup", "round"])
    assert len(blocks) == len(SETUPS) * 2
    np.testing.assert_allclose(blocks.seconds.sum(), blocks.wall_s.first())
    assert (table.seconds >= 0).all()
    other = table.query("stage == 'other'")
    assert (other.seconds / other.wall_s).median() < 0.03
    assert (table.cpu_s < 1.5 * table.wall_s).all()


@pytest.mark.slow
def test_an_actor_of_copies_takes_as_many_steps_and_pulls():
    cartpole = partial(Setup, hidden=SMALL, update_period=30, task="gym:CartPole-v0")
    table = throughput.measure([cartpole(), cartpole(envs_per_actor=4)], steps=60, rounds=1)
    assert (table.pulls == 2).all()
    steps = table.groupby("envs_per_actor").steps.first()
    assert steps[1] == 60
    assert 60 <= steps[4] < 64
    stages = table[table.seconds > 0].groupby("envs_per_actor").stage.agg(set)
    assert stages[1] == stages[4]


@pytest.mark.slow
def test_every_setup_does_its_own_work(table):
    stages = table[table.seconds > 0].groupby("setup").stage.agg(set)
    ours = {"env_step", "select_action", "observe", "pull", "load_weights", "other"}
    assert stages[0] == stages[4] == ours
    assert stages[1] == stages[2] == stages[3] == ours | {"deserialize"}
    assert (table.pulls == 2).all()
    assert (table.query("design == 'authors'").messages == 2).all()  # fetched at every pull
    assert (table.messages <= 2).all()
    size = table.groupby("setup").payload_bytes.max()
    assert size[0] < size[2] < size[1]  # packed int8, pickled int8, packed fp32


@pytest.mark.slow
def test_our_recipe_beats_the_authors(table):
    blocks = table.drop_duplicates(["setup", "round"]).set_index("setup").wall_s
    assert blocks[2].median() > blocks[0].median()


@pytest.mark.slow
def test_timing_costs_under_one_percent_of_a_dm_control_loop_and_two_of_the_cheapest(table):
    timer = StageTimer()
    lap_s = min(timeit.repeat(partial(timer.lap, "env_step"), number=2000, repeat=10)) / 2000
    for task, share in (("dm_control:cartpole:balance", 0.01), ("gym:CartPole-v0", 0.02)):
        blocks = table[(table.task == task) & (table.design == "packed")].drop_duplicates("round")
        assert 3 * lap_s < share * (blocks.wall_s / blocks.steps).median()


def test_an_authors_policy_acts_as_the_engine_does():
    rng = np.random.default_rng(0)
    layers = (Layer(5, 16, "relu"), Layer(16, 2))
    spec = PolicySpec(layers, Head("tanh", (-1.0, -1.0), (1.0, 1.0)))
    weights = Weights(
        tuple(
            LayerWeights(rng.normal(size=(layer.out_features, layer.in_features)).astype(np.float32),
                         rng.normal(size=layer.out_features).astype(np.float32))
            for layer in layers
        )
    )  # fmt: skip
    observation = {
        "position": np.array([0.1, -0.2, 0.3], np.float32),
        "velocity": np.array([[0.5], [-1.0]], np.float32),
    }
    engine = make_engine(spec, "fp32", "numpy")
    engine.load(pack(spec, weights, "fp32"))
    expected = engine(np.array([0.1, -0.2, 0.3, 0.5, -1.0], np.float32))
    policy = baseline.TorchPolicy(spec, baseline.make_module(spec, weights, "fp32"))
    np.testing.assert_allclose(policy(observation), expected, rtol=1e-5)
    quantized = baseline.TorchPolicy(spec, baseline.make_module(spec, weights, "int8"))
    assert 0 < np.abs(quantized(observation) - expected).max() < 0.1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Setup(design="theirs"), "design='theirs'"),
        (lambda: Setup(update_period=0), "update_period=0"),
        (lambda: Setup(precision="int7"), "precision='int7'"),
        (lambda: Setup(design="authors", transport="reverb", precision="int4"), "precision='int4'"),
        (lambda: Setup(design="authors", transport="shared_memory"), "transport='shared_memory'"),
        (lambda: throughput.measure([], 10, 1), "setups="),
        (lambda: throughput.measure([SETUPS[0]], 10, 1), "steps=10"),
        (lambda: throughput.measure([SETUPS[0]], 30, 0), "rounds=0"),
    ],
)
def test_bad_parameters_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.slow
def test_new_weights_of_a_wide_int8_policy_cost_next_to_nothing_beside_the_authors():
    shared = {"precision": "int8", "update_period": 30}  # 3 x 2048, the default
    setups = [Setup(**shared), Setup(**shared, design="authors", transport="reverb"), Setup(precision="fp32")]
    int8, _, fp32 = (weights_bytes(setup.config()) for setup in setups)
    assert fp32 >= 3.9 * int8
    table = throughput.measure(setups[:2], steps=120, rounds=3)
    stages = table.pivot_table(index="design", columns="stage", values="seconds", aggfunc="sum")
    messages = table.drop_duplicates(["design", "round"]).groupby("design").messages.sum()
    load_s = stages.load_weights / messages
    assert load_s["packed"] <= load_s["authors"] / 50
    ours = stages.loc["packed"]
    assert ours[["pull", "deserialize", "load_weights"]].sum() < 0.05 * ours.sum()
