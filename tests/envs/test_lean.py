"""dm_control's suite made lean against the suite itself: the same bits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dm_control import suite
from dm_control.utils import rewards
from hypothesis import given
from hypothesis import strategies as st

from quarl_lib.envs import lean

TASKS = [
    ("cartpole", "balance", 1010),  # an episode and the start of the next
    ("cartpole", "swingup_sparse", 300),
    pytest.param("cartpole", "three_poles", 300, marks=pytest.mark.slow),
    pytest.param("acrobot", "swingup", 300, marks=pytest.mark.slow),
    pytest.param("ball_in_cup", "catch", 300, marks=pytest.mark.slow),
    ("cheetah", "run", 300),
    pytest.param("finger", "turn_easy", 300, marks=pytest.mark.slow),
    pytest.param("fish", "swim", 200, marks=pytest.mark.slow),
    ("hopper", "hop", 300),
    pytest.param("pendulum", "swingup", 300, marks=pytest.mark.slow),
    pytest.param("point_mass", "easy", 300, marks=pytest.mark.slow),
    ("reacher", "easy", 300),
    pytest.param("swimmer", "swimmer6", 200, marks=pytest.mark.slow),
    ("walker", "run", 300),
    pytest.param("humanoid", "run", 300, marks=pytest.mark.slow),
    pytest.param("manipulator", "bring_ball", 300, marks=pytest.mark.slow),
    pytest.param("quadruped", "fetch", 200, marks=pytest.mark.slow),
    pytest.param("stacker", "stack_2", 300, marks=pytest.mark.slow),
    pytest.param("dog", "fetch", 100, marks=pytest.mark.slow),
    pytest.param("lqr", "lqr_2_1", 300, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("domain", "task", "steps"), TASKS)
def test_every_step_has_the_suites_own_bits(domain, task, steps):
    theirs, ours = (suite.load(domain, task, task_kwargs={"random": 5}) for _ in range(2))
    lean.trim(ours)
    bounds, rng = theirs.action_spec(), np.random.default_rng(0)
    expected, given = theirs.reset(), ours.reset()
    for _ in range(steps):
        action = rng.uniform(np.maximum(bounds.minimum, -1), np.minimum(bounds.maximum, 1))
        expected, given = theirs.step(action), ours.step(action)
        assert given.step_type == expected.step_type
        assert given.discount == expected.discount
        assert type(given.reward) is type(expected.reward)
        assert given.reward == expected.reward  # exact, so that a run's returns stay what they were
        for name, value in expected.observation.items():
            np.testing.assert_array_equal(given.observation[name], value)


def test_the_library_itself_and_other_environments_stay_as_they_are():
    ours, theirs = (suite.load("cartpole", "balance", task_kwargs={"random": 0}) for _ in range(2))
    before, method = rewards.tolerance, type(theirs.task)._get_reward
    lean.trim(ours)
    assert rewards.tolerance is before
    assert type(theirs.task)._get_reward is method
    assert method.__globals__["rewards"] is rewards
    assert isinstance(ours.task, type(theirs.task))
    assert type(ours.task)._get_reward.__globals__["rewards"].tolerance is lean.tolerance


numbers = st.floats(-1e3, 1e3) | st.sampled_from([0.0, -0.0, 1.0, math.inf, -math.inf, math.nan, 1e308, 5e-324])


@given(
    values=st.lists(numbers, min_size=1, max_size=lean.FEW + 2),
    bounds=st.tuples(st.floats(-5, 5) | st.just(-math.inf), st.floats(0, 5) | st.just(math.inf)),
    margin=st.sampled_from([0.0, 1.0, 5, 0.3]),
    shape=st.sampled_from([("gaussian", 0.1), ("gaussian", 0.6), ("linear", 0.0), ("quadratic", 0.0),
                           ("quadratic", 0.2), ("long_tail", 0.1), ("cosine", 0.1), ("tanh_squared", 0.3)]),
)  # fmt: skip
def test_tolerance_has_the_librarys_own_bits(values, bounds, margin, shape):
    bounds = tuple(sorted(bounds))
    for x in (*values, *map(np.float64, values), np.array(values), np.array(values)[::-1], np.array(values[0])):
        with np.errstate(all="ignore"):
            expected, given = (f(x, bounds, margin, *shape) for f in (rewards.tolerance, lean.tolerance))
        assert type(given) is type(expected)
        np.testing.assert_array_equal(given, expected)
        assert np.asarray(given).dtype == np.asarray(expected).dtype


@pytest.mark.parametrize("wrong", [{"bounds": (1, 0)}, {"margin": -1}, {"margin": 1, "value_at_margin": 0}])
def test_what_the_library_refuses_is_refused(wrong):
    for x in (0.5, np.array([0.5])):
        with pytest.raises(ValueError):
            lean.tolerance(x, **wrong)


def test_every_kind_of_key_finds_the_same_numbers_twice():
    physics = lean.trim(suite.load("walker", "walk", task_kwargs={"random": 0})).physics
    plain = suite.load("walker", "walk", task_kwargs={"random": 0}).physics
    keys = ["torso", ["torso", "left_leg"], ("torso", "zz"), (slice(1, None), ["xx", "xz"]), 1, (2, "xz"),
            np.array([1, 2]), (["torso", "left_leg"], 0), slice(0, 3), np.int64(2)]  # fmt: skip
    for key in (*keys, *keys):
        expected = plain.named.data.xmat[key]
        np.testing.assert_array_equal(physics.named.data.xmat[key], expected)
    physics.named.data.qpos["rootz"] = 1.25
    assert physics.data.qpos[0] == 1.25
    for _ in range(2):
        with pytest.raises(KeyError):
            physics.named.data.xmat["no_such_body"]
        with pytest.raises(IndexError):
            physics.named.data.xmat[None]
