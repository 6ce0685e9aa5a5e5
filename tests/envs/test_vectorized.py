"""Copies of a task against the single environment: same bits where it is the same code, near dynamics in EnvPool."""

from __future__ import annotations

import dm_env
import numpy as np
import pytest

from quarl_lib.envs import control, vectorized
from quarl_lib.envs.vectorized import FIRST, LAST, MID

needs_envpool = pytest.mark.skipif(not vectorized.find_spec("envpool"), reason="EnvPool is an extra")


def some_actions(spec, count: int, steps: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if hasattr(spec, "num_values"):
        return rng.integers(spec.num_values, size=(steps, count)).astype(np.int32)
    return rng.uniform(-1, 1, (steps, count, *spec.shape)).astype(np.float32)


@pytest.mark.parametrize(
    ("task", "backend", "steps"),
    [("gym:CartPole-v0", "together", 300), ("gym:Pendulum-v1", "together", 410), ("gym:Acrobot-v1", "loop", 60),
     ("gym:MountainCarContinuous-v0", "loop", 60), ("dm_control:cartpole:balance", "loop", 60)],
)  # fmt: skip
def test_each_copy_is_the_single_environment_of_its_seed(task, backend, steps):
    seeds = [3, 1_000, 2**32 - 1]
    copies, singles = vectorized.make(task, seeds, backend), [control.make(task, seed) for seed in seeds]
    assert copies.backend == backend
    for given, single in ((copies.action_spec(), singles[0].action_spec()),
                          (copies.observation_spec(), singles[0].observation_spec())):  # fmt: skip
        assert given == single
    batch, alone = copies.reset(), [single.reset() for single in singles]
    seen = set()
    for actions in some_actions(copies.action_spec(), 3, steps):
        for copy, timestep in enumerate(alone):
            assert_same(batch.of(copy), timestep)
            seen.add(timestep.step_type)
        batch = copies.step(actions)
        alone = [single.step(action) for single, action in zip(singles, actions, strict=True)]
    assert dm_env.StepType.LAST in seen or steps < 100
    assert_same(copies.reset().of(1), singles[1].reset())  # in the midst of an episode
    copies.close()


def assert_same(given: dm_env.TimeStep, expected: dm_env.TimeStep) -> None:
    assert given.step_type == expected.step_type
    assert given.reward == expected.reward
    assert given.discount == expected.discount
    np.testing.assert_array_equal(given.observation, expected.observation)
    assert given.observation.dtype == np.float32


def test_a_time_limit_and_an_end_are_told_apart():
    copies = vectorized.make("gym:CartPole-v0", range(2))
    timesteps, ends = copies.reset(), []
    for _ in range(201):
        balance = (timesteps.observation[:, 2] + 0.3 * timesteps.observation[:, 3] > 0).astype(int)
        timesteps = copies.step(np.array([balance[0], 1]))  # the second one falls
        if timesteps.step_type[0] == LAST:
            ends.append(timesteps.discount[0])
        if timesteps.step_type[1] == LAST:
            assert timesteps.discount[1] == 0.0
            assert copies.step(np.array([0, 0])).step_type.tolist() in ([MID, FIRST], [LAST, FIRST])
    assert ends == [1.0] or not ends
    copies = vectorized.make("gym:Pendulum-v1", range(2))
    copies.reset()
    for step in range(1, 201):
        timesteps = copies.step(np.zeros((2, 1), np.float32))
        assert timesteps.step_type.tolist() == [LAST if step == 200 else MID] * 2
    assert timesteps.discount.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("call", "needle"),
    [
        (("gym:CartPole-v0", [], "auto"), "seeds"),
        (("gym:CartPole-v0", [0], "fast"), "backend='fast'.*together"),
        (("gym:Acrobot-v1", [0], "together"), "does not have the task 'gym:Acrobot-v1'"),
        (("gym:NoSuch-v0", [0], "auto"), "NoSuch-v0"),
        (("gym:LunarLander-v3", [0], "envpool"), "envpool.*LunarLander"),
    ],
)
def test_what_is_not_there_is_refused(call, needle):
    with pytest.raises(ValueError, match=needle):
        vectorized.make(*call)


def test_an_extra_that_is_missing_is_named(monkeypatch):
    vectorized.envpool_name.cache_clear()
    monkeypatch.setattr(vectorized, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install .*\[envpool\]"):
        vectorized.make("gym:Acrobot-v1", [0], "envpool")
    assert vectorized.make("gym:Acrobot-v1", [0]).backend == "loop"
    vectorized.envpool_name.cache_clear()


def test_observations_that_are_no_numbers_blame_the_environment(monkeypatch):
    copies = vectorized.make("gym:Pendulum-v1", [0, 1])
    copies.reset()
    copies._lanes._states[1] = [np.nan, 0.0]  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"Pendulum-v1.*not finite"):
        copies.step(np.zeros((2, 1), np.float32))


# How an environment is put into the state that EnvPool's first observation tells.
def _acrobot(env, seen):
    env.unwrapped.state = np.array([np.arctan2(seen[1], seen[0]), np.arctan2(seen[3], seen[2]), seen[4], seen[5]])


def _car(env, seen):
    env.unwrapped.state = seen.astype(float)


@needs_envpool
@pytest.mark.parametrize(
    ("task", "put", "steps", "near"),
    [("gym:Acrobot-v1", _acrobot, 50, 1e-3), ("gym:MountainCar-v0", _car, 150, 1e-5),
     ("gym:MountainCarContinuous-v0", _car, 150, 1e-5)],
)  # fmt: skip
def test_envpools_dynamics_are_near_the_originals(task, put, steps, near):
    copies = vectorized.make(task, range(4), "envpool")
    batch, singles = copies.reset(), [control.make(task, 0) for _ in range(4)]
    assert copies.observation_spec() == singles[0].observation_spec()
    for copy, single in enumerate(singles):
        single.reset()
        put(single.gym, batch.observation[copy])  # type: ignore[attr-defined]
    for actions in some_actions(copies.action_spec(), 4, steps):
        batch = copies.step(actions)
        for copy, single in enumerate(singles):
            timestep = single.step(actions[copy])
            assert batch.step_type[copy] == timestep.step_type
            assert batch.reward[copy] == pytest.approx(timestep.reward, abs=1e-6)
            np.testing.assert_allclose(batch.observation[copy], timestep.observation, atol=near)


@needs_envpool
def test_envpools_cartpole_of_dm_control_moves_as_the_original_does():
    copies = vectorized.make("dm_control:cartpole:balance", range(3))
    assert copies.backend == "envpool"
    batch, singles = copies.reset(), [control.make("dm_control:cartpole:balance", 0) for _ in range(3)]
    for copy, single in enumerate(singles):
        single.reset()
        x, cos, sin, *velocity = batch.observation[copy]
        physics = single._environment.physics  # type: ignore[attr-defined]
        with physics.reset_context():
            physics.data.qpos[:], physics.data.qvel[:] = [x, np.arctan2(sin, cos)], velocity
    for actions in some_actions(copies.action_spec(), 3, 100):
        batch = copies.step(actions)
        for copy, single in enumerate(singles):
            timestep = single.step(actions[copy])
            np.testing.assert_allclose(batch.observation[copy], timestep.observation, atol=1e-3)
            assert batch.reward[copy] == pytest.approx(timestep.reward, abs=1e-3)


@needs_envpool
@pytest.mark.parametrize(("task", "limit"), [("gym:MountainCar-v0", 200), ("dm_control:cartpole:balance", 1000)])
def test_envpools_time_limit_is_the_originals_and_does_not_end_the_value(task, limit):
    copies = vectorized.make(task, range(2), "envpool")
    copies.reset()
    action = np.zeros((2, *copies.action_spec().shape), copies.action_spec().dtype)
    for _ in range(2):
        kinds = [copies.step(action).step_type.tolist() for _ in range(limit - 1)]
        assert kinds == [[MID, MID]] * (limit - 1)
        timesteps = copies.step(action)
        assert timesteps.step_type.tolist() == [LAST, LAST]
        assert timesteps.discount.tolist() == [1.0, 1.0]
        timesteps = copies.step(action)
        assert timesteps.step_type.tolist() == [FIRST, FIRST]
        assert timesteps.reward.tolist() == [0.0, 0.0]


@needs_envpool
def test_envpools_seeds_are_each_copys_own():
    first, again, other = (
        vectorized.make("dm_control:cheetah:run", seeds).reset().observation
        for seeds in ([5, 2**32 - 1], [5, 9], [6, 9])
    )
    np.testing.assert_array_equal(first[0], again[0])
    np.testing.assert_array_equal(again[1], other[1])
    assert (first[1] != again[1]).any()
    assert (again[0] != other[0]).any()
