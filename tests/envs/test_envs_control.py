"""Control tasks by name: one float32 vector, canonical actions, NaN refused; the tasks of the paper's Table 3."""

from __future__ import annotations

import subprocess
import sys
import types
import unittest

import dm_env
import gymnasium
import numpy as np
import pytest
from dm_env import specs, test_utils

from quarl_lib.envs import control
from quarl_lib.studies.common.paper_tables import PAPER_TASKS


class TestCartpole(test_utils.EnvironmentTestMixin, unittest.TestCase):
    def make_object_under_test(self):
        return control.make("dm_control:cartpole:balance", seed=0)

    def make_action_sequence(self):
        for _ in range(20):
            yield np.array([0.3], np.float32)


class TestGymCartPole(test_utils.EnvironmentTestMixin, unittest.TestCase):
    def make_object_under_test(self):
        return control.make("gym:CartPole-v0", seed=0)

    def make_action_sequence(self):
        for index in range(60):
            yield np.int32(index % 2)


@pytest.mark.parametrize("row", PAPER_TASKS, ids=lambda row: row.task)
def test_every_task_of_table_3(row):
    environment = control.make(row.task, seed=1)
    spec = environment.action_spec()
    timestep = environment.reset()
    assert timestep.observation.shape == environment.observation_spec().shape
    for _ in range(5):
        timestep = environment.step(np.zeros(spec.shape, spec.dtype))
        assert timestep.observation.dtype == np.float32
        assert np.asarray(timestep.reward).dtype == np.float32
    assert isinstance(spec, specs.DiscreteArray) == (row.algorithm == "dqn") == control.is_discrete(row.task)


def test_vector_holds_the_dict_in_its_order():
    flat, nested = (control.make("dm_control:walker:stand", seed=3, flat=flat) for flat in (True, False))
    action = np.full(6, 0.5, np.float32)
    for left, right in ((flat.reset(), nested.reset()), (flat.step(action), nested.step(action))):
        parts = [np.ravel(right.observation[name]) for name in nested.observation_spec()]
        np.testing.assert_array_equal(left.observation, np.concatenate(parts))
        assert left.reward == right.reward
    assert any(np.ndim(part) == 0 for part in right.observation.values())  # scalars were among them


@pytest.mark.parametrize(
    "task",
    ["dm_control:cartpole:balance", "dm_control:finger:turn_hard", "dm_control:reacher:hard", "dm_control:lqr:lqr_2_1",
     "dm_control:point_mass:hard", "dm_control:fish:swim", "dm_control:humanoid:run",
     "dm_control:manipulator:bring_ball", "dm_control:swimmer:swimmer6", "gym:CartPole-v0", "gym:Pendulum-v1"],
)  # fmt: skip
def test_made_anew_is_as_made(task):
    """What was played before leaves nothing behind: starting states, random parts of the model, warm-started forces."""

    def play(environment, steps):
        rng, spec = np.random.default_rng(1), environment.action_spec()
        discrete = isinstance(spec, specs.DiscreteArray)
        timesteps = [environment.reset()]
        for step in range(steps):
            action = rng.integers(spec.num_values) if discrete else rng.uniform(-1, 1, spec.shape).astype(np.float32)
            timesteps.append(environment.reset() if step == steps // 2 else environment.step(action))
        return [(one.observation.tobytes(), one.reward) for one in timesteps]

    environment = control.make(task, seed=5)
    first = play(environment, 20)
    play(environment, 33)
    assert play(control.made_anew(environment), 20) == first
    assert play(control.make(task, seed=5), 20) == first


def test_actions_are_scaled_to_the_tasks_bounds():
    environment = control.make("gym:Pendulum-v1", seed=0)
    environment.reset()
    inner = environment.gym.unwrapped
    for action, torque in ((1.0, 2.0), (-1.0, -2.0), (0.25, 0.5)):
        environment.step(np.array([action], np.float32))
        assert inner.last_u == pytest.approx(torque)


def test_a_time_limit_does_not_end_the_value():
    environment = control.make("gym:MountainCar-v0", seed=0)
    timestep = environment.reset()
    steps = 0
    while not timestep.last():
        timestep = environment.step(0)
        steps += 1
    assert steps == 200
    assert timestep.discount == 1.0
    assert environment.step(0).first()


def test_same_seed_same_episode():
    first, second = (
        [control.make("gym:CartPole-v0", seed=seed).reset().observation.tolist() for _ in range(2)] for seed in (5, 6)
    )
    assert first[0] == first[1] != second[0]


@pytest.mark.parametrize(
    ("task", "needle"),
    [
        ("cartpole", "dm_control:<domain>:<task>"),
        ("dm_control:cartpol:balance", "no domain 'cartpol'"),
        ("dm_control:cartpole:swing", "balance"),
        ("gym:CartPole-v9", "CartPole-v9"),
        ("gym:FrozenLake-v1", "Box"),
    ],
)
def test_unknown_tasks_are_named(task, needle):
    with pytest.raises(ValueError, match=needle) as raised:
        control.make(task, seed=0)
    assert task in str(raised.value)


class Broken(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(3), {}

    def step(self, action):
        return np.array([0.0, np.nan, 0.0]), 0.0, False, False, {}


def test_nan_observation_names_task_and_place():
    gymnasium.register("QuarlBroken-v0", Broken)  # type: ignore[arg-type]
    environment = control.make("gym:QuarlBroken-v0", seed=0)
    environment.reset()
    with pytest.raises(ValueError, match=r"QuarlBroken-v0.*\[1\]"):
        environment.step(0)


def test_dm_control_is_checked_too():
    class Hurt(dm_env.Environment):
        task = types.SimpleNamespace(random=np.random.RandomState(0))

        def reset(self):
            return dm_env.restart({"position": np.array([np.inf])})

        def step(self, action):
            raise NotImplementedError

        def observation_spec(self):
            return {"position": specs.Array((1,), float)}

        def action_spec(self):
            return specs.BoundedArray((1,), float, -1, 1)

    with pytest.raises(ValueError, match="hurt"):
        control.ControlEnvironment(Hurt(), "dm_control:hurt:task").reset()


def test_no_renderer_is_touched():
    code = (
        "from quarl_lib.envs import control; import sys; e = control.make('dm_control:cartpole:balance', 0); e.reset();"
        "assert not any(m.split('.')[0] in ('glfw', 'OpenGL') for m in sys.modules), 'a renderer was imported'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PATH": ""}, check=False)
    assert done.returncode == 0, done.stderr
    assert "EGL" not in done.stderr
    assert "GLFW" not in done.stderr.upper()
