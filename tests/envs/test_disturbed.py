"""Disturbances against numbers worked out by hand, and MuJoCo's own model."""

# mypy: disable-error-code="arg-type, attr-defined"
from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from quarl_lib.envs import disturbed
from quarl_lib.envs import gym as environments


class Recorder(gymnasium.Env):
    """Observes [0, 10] whatever is done, and keeps what was done."""

    def __init__(self, actions: spaces.Space, observations: spaces.Space | None = None) -> None:
        self.action_space = actions
        self.observation_space = observations or spaces.Box(-100, 100, (2,), np.float32)
        self.done: list[Any] = []

    def reset(self, *, seed=None, options=None):
        self.done = []
        return np.array([0, 10], self.observation_space.dtype), {}

    def step(self, action):
        self.done.append(action)
        return np.array([0, 10], self.observation_space.dtype), 0.0, False, False, {}


def under(name: str, env: gymnasium.Env, deviations: Any = (1.0, 1.0)) -> gymnasium.Env:
    return disturbed.disturbed(env, disturbed.parse(name), np.asarray(deviations))


def played(env: gymnasium.Env, actions: list[Any], seed: int = 3) -> np.ndarray:
    return np.array([env.reset(seed=seed)[0], *(env.step(action)[0] for action in actions)])


def test_a_delay_of_two_repeats_the_first_action_twice_and_each_episode_begins_anew():
    recorder = Recorder(spaces.Discrete(9))
    env = under("action_delay=2", recorder)
    played(env, [1, 2, 3, 4, 5])
    assert recorder.done == [1, 1, 1, 2, 3]
    played(env, [7, 8])
    assert recorder.done == [7, 7]
    memory, recorder = np.zeros(1, np.float32), Recorder(spaces.Box(-1, 1, (1,)))
    env = under("action_delay=1", recorder)
    env.reset(seed=0)
    for value in (0.1, 0.2, 0.3):
        memory[0] = value  # a policy that writes all its actions into the same memory
        env.step(memory)
    np.testing.assert_array_equal(np.concatenate(recorder.done), np.float32([0.1, 0.1, 0.2]))


def test_observation_noise_has_the_deviations_asked_for_and_hangs_on_seed_and_step_alone():
    recorder = Recorder(spaces.Discrete(9))
    env = under("observation_noise=0.1", recorder, (2.0, 0.5))
    met = played(env, [0] * 4000)
    assert met.dtype == np.float32
    assert met.mean(axis=0) == pytest.approx([0, 10], abs=0.02)
    assert met.std(axis=0) == pytest.approx([0.2, 0.05], rel=0.05)
    np.testing.assert_array_equal(played(env, [5] * 20), met[:21])
    assert (played(env, [0] * 20, seed=4) != met[:21]).all()


def test_noise_on_bytes_is_rounded_and_stays_within_bounds():
    recorder = Recorder(spaces.Discrete(2), spaces.Box(0, 10, (2,), np.uint8))
    met = played(under("observation_noise=1", recorder, (3.0, 3.0)), [0] * 200)
    assert met.dtype == np.uint8
    assert set(np.unique(met[:, 0])) == set(range(int(met[:, 0].max()) + 1))  # a half-Gaussian from 0
    assert met[:, 1].max() == 10


def test_action_noise_is_a_share_of_half_the_range_and_stays_within_bounds():
    recorder = Recorder(spaces.Box(np.float32([-2, 0]), np.float32([2, 100])))
    played(under("action_noise=0.1", recorder), [np.float32([0, 50])] * 4000)
    done = np.array(recorder.done)
    assert done.std(axis=0) == pytest.approx([0.2, 5.0], rel=0.05)
    played(under("action_noise=1", recorder), [np.float32([2, 0])] * 100)
    done = np.array(recorder.done)
    assert (done.max(axis=0), done.min(axis=0))[0][0] == 2
    assert done[:, 1].min() == 0


def test_counted_actions_become_another_one_with_the_probability_asked_for():
    recorder = Recorder(spaces.Discrete(3))
    env = under("action_noise=0.25", recorder)
    played(env, [1] * 4000)
    counts = np.bincount(recorder.done, minlength=3) / 4000
    assert counts == pytest.approx([0.125, 0.75, 0.125], abs=0.02)
    first = list(recorder.done)
    played(env, [1] * 10)
    assert recorder.done == first[:10]
    recorder = Recorder(spaces.MultiDiscrete([2, 5]))
    played(under("action_noise=1", recorder), [np.array([1, 4])] * 50)
    assert set(np.array(recorder.done)[:, 0]) == {0}
    assert set(np.array(recorder.done)[:, 1]) == {0, 1, 2, 3}


def total_return(env: gymnasium.Env) -> float:
    env.reset(seed=1)
    env.action_space.seed(1)
    return sum(float(env.step(env.action_space.sample())[1]) for _ in range(50))


def test_masses_and_friction_of_gymnasiums_mujoco_models():
    pytest.importorskip("mujoco")
    plain, heavy, smooth = (environments.make("Hopper-v5") for _ in range(3))
    before = plain.unwrapped.model
    model = under("body_mass=1.5", heavy).unwrapped.model
    np.testing.assert_array_equal(model.body_mass, before.body_mass * 1.5)
    np.testing.assert_array_equal(model.body_inertia, before.body_inertia * 1.5)
    np.testing.assert_allclose(model.body_subtreemass, before.body_subtreemass * 1.5)  # derived anew
    model = under("friction=0.5", smooth).unwrapped.model
    np.testing.assert_array_equal(model.geom_friction, before.geom_friction * 0.5)
    np.testing.assert_array_equal(model.body_mass, before.body_mass)
    same = under("body_mass=1", environments.make("Hopper-v5"))
    returns = {name: total_return(env) for name, env in (("plain", plain), ("same", same), ("heavy", heavy))}
    assert returns["plain"] == returns["same"] != returns["heavy"]


class OfControl(gymnasium.Env):
    """A dm_control environment as its gymnasium covers hold it."""

    observation_space, action_space = spaces.Box(-9, 9, (5,)), spaces.Box(-1, 1, (1,))

    def __init__(self) -> None:
        from dm_control import suite

        self._env = suite.load("cartpole", "balance")
        self.own_mass = 0.0

    def reset(self, *, seed=None, options=None):
        self._env.reset()
        if self.own_mass:
            self._env.physics.model.body_mass[:] = self.own_mass
        return np.zeros(5), {}


def test_dm_control_models_and_environments_that_set_their_own(monkeypatch):
    pytest.importorskip("dm_control")
    env = OfControl()
    before = env._env.physics.model.body_mass.copy()
    heavy = under("body_mass=2", env)
    heavy.reset()
    np.testing.assert_array_equal(env._env.physics.model.body_mass, before * 2)
    env.own_mass = 1.0
    with pytest.raises(ValueError, match="body_mass: the environment sets its own"):
        heavy.reset()


@pytest.mark.parametrize(
    ("name", "actions", "reason"),
    [
        ("body_mass=2", spaces.Discrete(2), "Recorder has no MuJoCo model"),
        ("friction=2", spaces.Discrete(2), "Recorder has no MuJoCo model"),
        ("action_noise=0.1", spaces.Box(-np.inf, np.inf, (1,)), "no bounds"),
        ("action_noise=0.1", spaces.Text(3), "noise is for numbers and indices"),
    ],
)
def test_what_an_environment_cannot_take_is_named(name, actions, reason):
    with pytest.raises(ValueError, match=f"{name.partition('=')[0]}: .*{reason}"):
        under(name, Recorder(actions))


@pytest.mark.parametrize(
    "text",
    ["noise=1", "observation_noise", "observation_noise=-1", "observation_noise=nan", "observation_noise=much", "=1",
     "action_delay=0.5", "action_delay=0", "action_noise=1.5", "body_mass=0", "friction=inf", ""],
)  # fmt: skip
def test_levels_are_checked_where_they_enter(text):
    with pytest.raises(ValueError, match="disturbances='"):
        disturbed.parse(text)


def test_names_are_read_as_they_are_written():
    assert disturbed.parse(" action_delay = 2.0 ").name == "action_delay=2"
    assert disturbed.parse("body_mass=0.5") == disturbed.Disturbance("body_mass", 0.5)
