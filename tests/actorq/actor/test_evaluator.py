"""The evaluator plays what the learner left, in order, without noise, and ends the run at a confirmed threshold."""

from __future__ import annotations

import numpy as np
import pytest

from quarl_lib.actorq.actor import evaluator
from quarl_lib.actorq.actor.policy import policy_spec
from quarl_lib.actorq.config import Config
from quarl_lib.actorq.link import Link, read
from quarl_lib.envs import control, specs
from quarl_lib.inference import make_engine
from quarl_lib.inference.pack import pack
from quarl_lib.inference.spec import LayerWeights, Weights

CONFIG = Config(
    task="gym:CartPole-v0", algorithm="dqn", policy_hidden=(4,), eval_episodes=2, backend="numpy", stop_return=150.0
)
SPEC = policy_spec(CONFIG, specs.make_environment_spec(control.make(CONFIG.task, seed=0)))


def policy(gain: float) -> memoryview:
    """Return a policy that pushes towards the side to which the pole falls: good with gain 1, hopeless with -1."""
    first = np.zeros((4, 4), np.float32)
    first[0], first[1] = (0, 0, 1, 1), (0, 0, -1, -1)  # relu(x) and relu(-x) of angle plus its speed
    second = gain * np.array([[0, 1, 0, 0], [1, 0, 0, 0]], np.float32)
    layers = (LayerWeights(first, np.zeros(4, np.float32)), LayerWeights(second, np.zeros(2, np.float32)))
    return pack(SPEC, Weights(layers), "fp32")


@pytest.fixture
def link(tmp_path):
    return Link(tmp_path, 1)


def test_plays_all_in_order_and_returns_after_a_stop(link):
    good, bad = policy(1.0), policy(-1.0)
    for steps, wall_time_s, buffer in ((1000, 1.5, bad), (200, 0.25, good)):
        evaluator.leave_snapshot(link.directory, buffer, steps, steps // 10, wall_time_s)
    link.set_learner_done()
    evaluator.run(CONFIG, link)
    rows = read(link.directory, "evaluations")
    assert rows.actor_steps.tolist() == [200, 200, 1000, 1000]
    assert rows.wall_time_s.tolist() == [0.25, 0.25, 1.5, 1.5]
    assert rows.learner_steps.tolist() == [20, 20, 100, 100]
    assert rows.episode_return[:2].min() >= 150
    assert rows.episode_return[2:].max() <= 15
    assert not list((link.directory / "snapshots").iterdir())
    cpu_seconds = read(link.directory, "evaluator").cpu_seconds
    assert len(cpu_seconds) == 3
    assert 0 < cpu_seconds.iloc[0] <= cpu_seconds.iloc[1] <= cpu_seconds.iloc[2]


def test_same_policy_same_returns(link):
    for steps in (1, 2):
        evaluator.leave_snapshot(link.directory, policy(1.0), steps, steps, float(steps))
    link.set_learner_done()
    evaluator.run(CONFIG, link)
    first, second = read(link.directory, "evaluations").groupby("actor_steps").episode_return.apply(list)
    assert first == second


def test_a_confirmed_threshold_ends_the_run(link):
    for steps in (100, 200, 300):
        evaluator.leave_snapshot(link.directory, policy(1.0), steps, steps, float(steps))
    link.set_learner_done()
    evaluator.run(CONFIG, link)  # nobody else asks for a stop
    assert link.should_stop()
    assert not link.aborted()
    assert "at 200 steps" in read(link.directory, "stop").reason.iloc[0]


def test_an_aborted_run_is_left_at_once(link):
    evaluator.leave_snapshot(link.directory, policy(1.0), 1, 1, 1.0)
    link.abort()
    evaluator.run(CONFIG, link)
    assert read(link.directory, "evaluations").empty


@pytest.mark.parametrize(
    ("returns", "needed", "at"), [([900, 900], 1, 0), ([900, 100, 900, 900], 2, 3), ([899.9, 899.9], 1, None)]
)
def test_threshold_in_a_row(returns, needed, at):
    threshold = evaluator.Threshold(900.0, needed)
    confirmed = [threshold.confirmed(value) for value in returns]
    assert (confirmed.index(True) if True in confirmed else None) == at


def test_what_the_actors_run_is_played_beside_what_is_learned(link, monkeypatch):
    config = CONFIG.replace(precision="int2", stop_return=1e9)
    evaluator.leave_snapshot(link.directory, policy(1.0), 100, 10, 1.0)
    link.set_learner_done()
    evaluator.run(config, link)
    rows = read(link.directory, "evaluations")
    assert rows.policy.tolist() == ["learner"] * 2 + ["actors"] * 2
    engine = make_engine(SPEC, "int2", "numpy")
    engine.load(evaluator.deployed(SPEC, config, policy(1.0)))
    environment = control.make(CONFIG.task, evaluator.EVALUATION_SEED)
    expected = [evaluator.play_episode(environment, engine, link) for _ in range(2)]
    assert rows.episode_return[2:].tolist() == expected


def test_a_learner_on_the_actors_grid_has_one_policy(link):
    config = CONFIG.replace(precision="int2", learner_quantization="engine", stop_return=np.inf)
    evaluator.leave_snapshot(link.directory, policy(1.0), 200, 20, 1.0)
    link.set_learner_done()
    evaluator.run(config, link)
    rows = read(link.directory, "evaluations")
    learned, deployed = (rows[rows.policy == name].episode_return.tolist() for name in ("learner", "actors"))
    assert len(learned) == 2
    assert learned == deployed
    buffer = evaluator.deployed(SPEC, config, policy(1.0))
    engine = make_engine(SPEC, "int2", "numpy")
    engine.load(buffer, copy=True)
    environment = control.make(CONFIG.task, evaluator.EVALUATION_SEED)
    assert learned == [evaluator.play_episode(environment, engine, link) for _ in range(2)]


def test_one_policy_left_twice_confirms_nothing(link):
    for steps in (100, 200):
        evaluator.leave_snapshot(link.directory, policy(1.0), steps, 7, float(steps))
    link.set_learner_done()
    evaluator.run(CONFIG, link)
    assert not link.should_stop()


def test_a_resumed_evaluator_plays_nothing_again_and_remembers_what_passed(link):
    evaluator.leave_snapshot(link.directory, policy(1.0), 100, 10, 1.0)
    link.set_learner_done()
    evaluator.run(CONFIG, link)
    for steps in (100, 200):  # the first was logged, but not yet removed when the run was killed
        evaluator.leave_snapshot(link.directory, policy(1.0), steps, steps // 10, float(steps))
    evaluator.run(CONFIG, link)
    assert read(link.directory, "evaluations").actor_steps.tolist() == [100, 100, 200, 200]
    assert link.should_stop()


def test_an_episode_that_never_ends_blames_the_environment(link, monkeypatch):
    monkeypatch.setattr(evaluator, "LONGEST_EPISODE", 20)
    engine = make_engine(SPEC, "fp32", "numpy")
    engine.load(policy(1.0))
    environment = control.make(CONFIG.task, 0)
    with pytest.raises(RuntimeError, match=r"gym:CartPole-v0.*did not end within 20 steps"):
        evaluator.play_episode(environment, engine, link, CONFIG.task)
