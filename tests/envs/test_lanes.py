"""Environments side by side against the same environments one after the other."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import TimeAwareObservation

from quarl_lib.envs.lanes import Lanes, Together, side_by_side


def envs(name: str, count: int) -> list[gymnasium.Env]:
    return [gymnasium.make(name) for _ in range(count)]


@pytest.mark.parametrize(("name", "scale"), [("CartPole-v1", None), ("CartPole-v0", None), ("Pendulum-v1", 3.0)])
@pytest.mark.parametrize("count", [1, 5, 32])
@pytest.mark.filterwarnings("ignore:.*out of date")
def test_steps_taken_together_have_the_bits_of_steps_taken_alone(name, scale, count):
    together, alone = side_by_side(envs(name, count)), Lanes(envs(name, count))
    assert isinstance(together, Together)
    rng, playing = np.random.default_rng(count), list(range(count))
    seeds = range(100, 100 + count)
    np.testing.assert_array_equal(together.reset_all(seeds), alone.reset_all(seeds))
    ends = 0
    for number in range(260):
        right = rng.integers(2, size=count)
        # Torques beyond the limits are among them; Stable-Baselines3's policies act in float32.
        actions = right if scale is None else rng.uniform(-scale, scale, (count, 1)).astype(np.float32)
        if scale is None and number < 230:  # held up, so that some episodes reach their time limit
            actions = (together.observations[:, 2] + 0.3 * together.observations[:, 3] > 0).astype(int)
        given, expected = together.step(actions, playing), alone.step(actions, playing)
        for got, wanted in zip(given, expected, strict=True):
            np.testing.assert_array_equal(got[playing], wanted[playing])
        assert given.observations.dtype == expected.observations.dtype
        for lane in np.flatnonzero(given.terminated | given.truncated):
            ends += 1
            for lanes in (together, alone):
                lanes.reset(lane, None if number % 2 else int(number))
    assert ends > 0 or name == "CartPole-v1"


def test_both_ends_are_told_apart():
    lanes = side_by_side(envs("CartPole-v1", 2))
    lanes.reset_all([0, 1])
    for number in range(1, 501):
        balance = (lanes.observations[:, 2] + 0.3 * lanes.observations[:, 3] > 0).astype(int)
        balance[1] = 1
        steps = lanes.step(balance, [0, 1] if number < 12 else [0])
        if steps.terminated[1]:
            break
    assert not steps.terminated[0]
    while not steps.truncated[0]:
        number += 1
        balance[0] = lanes.observations[0, 2] + 0.3 * lanes.observations[0, 3] > 0
        steps = lanes.step(balance, [0])
        assert steps.rewards.tolist() == [1.0, 0.0]  # a lane that does not play earns nothing
        assert not steps.terminated.any()
    assert number == 500


def test_what_is_not_plain_is_stepped_by_itself():
    class Mine(gymnasium.envs.classic_control.CartPoleEnv):
        pass

    others = [
        Mine(),
        gymnasium.make("Acrobot-v1"),
        gymnasium.make("CartPole-v1", sutton_barto_reward=True),
        gymnasium.make("CartPole-v1", render_mode="rgb_array"),
        gymnasium.make("CartPole-v1").unwrapped,
        TimeAwareObservation(gymnasium.make("Pendulum-v1")),
    ]
    for env in others:
        assert type(side_by_side([env])) is Lanes
    semi_implicit = gymnasium.make("CartPole-v1")
    semi_implicit.unwrapped.kinematics_integrator = "semi-implicit"  # type: ignore[attr-defined]
    assert type(side_by_side([semi_implicit])) is Lanes
    other_gravity = side_by_side([gymnasium.make("Pendulum-v1", g=3.0)]), Lanes([gymnasium.make("Pendulum-v1", g=3.0)])
    for lanes in other_gravity:
        lanes.reset_all([5])
    action = np.array([[0.5]], np.float32)
    first, second = (lanes.step(action, [0]) for lanes in other_gravity)
    np.testing.assert_array_equal(first.observations, second.observations)


def test_an_action_that_cart_pole_lacks_is_refused():
    lanes = side_by_side(envs("CartPole-v1", 2))
    lanes.reset_all([0, 1])
    with pytest.raises(ValueError, match=r"actions=\[0, 2\]"):
        lanes.step(np.array([0, 2]), [0, 1])
