"""Gymnasium environments of one kind side by side.

CartPole and Pendulum take all their steps at once, with the same bits as one after the other; the others in a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv, PendulumEnv
from gymnasium.envs.classic_control.pendulum import angle_normalize
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

TRANSPARENT = (TimeLimit, OrderEnforcing, PassiveEnvChecker)  # wrappers that `gymnasium.make` adds


class Steps(NamedTuple):
    """One step of n lanes: observations [n, ...], float64 rewards [n], and whether each episode ended or was cut off.

    In a lane that does not play, the observation stays, the reward is 0, and nothing ends.
    """

    observations: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


def side_by_side(envs: Sequence[gymnasium.Env]) -> Lanes:
    """Return environments, all made alike, as lanes; they are closed with the lanes."""
    return Together(envs) if all(map(_together, envs)) else Lanes(envs)


class Lanes:
    """Environments that step one after the other; `observations` are what each met last, from its reset on."""

    observations: np.ndarray

    def __init__(self, envs: Sequence[gymnasium.Env]) -> None:
        self.envs = list(envs)
        space = envs[0].action_space
        self._shape = space.shape if len(space.shape or ()) > 1 else None

    def reset_all(self, seeds: Sequence[int | None]) -> np.ndarray:
        """Start an episode in every lane and return the first observations [n, ...]."""
        self.observations = np.stack(
            [np.asarray(env.reset(seed=s)[0]) for env, s in zip(self.envs, seeds, strict=True)]
        )
        return self.observations

    def reset(self, lane: int, seed: int | None = None) -> None:
        """Start the next episode of one lane; None goes on with its own random numbers."""
        self.observations[lane] = self.envs[lane].reset(seed=seed)[0]

    def step(self, actions: np.ndarray, playing: Sequence[int]) -> Steps:
        """Take a step in the lanes that play, with one action a lane [n, ...]."""
        count = len(self.envs)
        rewards, terminated, truncated = np.zeros(count), np.zeros(count, bool), np.zeros(count, bool)
        for lane in playing:
            action = actions[lane] if self._shape is None else actions[lane].reshape(self._shape)
            self.observations[lane], rewards[lane], terminated[lane], truncated[lane], _ = self.envs[lane].step(action)
        return Steps(self.observations, rewards, terminated, truncated)

    def close(self) -> None:
        """Close every environment."""
        for env in self.envs:
            env.close()


class Together(Lanes):
    """Environments whose dynamics are computed here; the environments themselves draw where episodes start."""

    def __init__(self, envs: Sequence[gymnasium.Env]) -> None:
        super().__init__(envs)
        self._bare: list[Any] = [env.unwrapped for env in envs]
        self._dynamics = DYNAMICS[type(self._bare[0])]
        self._limit: int = envs[0].get_wrapper_attr("_max_episode_steps")
        self._states: list[Any] = [None] * len(envs)
        self._elapsed = [0] * len(envs)

    def reset_all(self, seeds: Sequence[int | None]) -> np.ndarray:
        """Start an episode in every lane and return the first observations [n, ...]."""
        first = super().reset_all(seeds)
        self._states = [bare.state.tolist() for bare in self._bare]
        self._elapsed = [0] * len(self.envs)
        return first

    def reset(self, lane: int, seed: int | None = None) -> None:
        """Start the next episode of one lane; None goes on with its own random numbers."""
        bare = self._bare[lane]
        self.observations[lane] = bare.reset(seed=seed)[0]
        self._states[lane], self._elapsed[lane] = bare.state.tolist(), 0

    def step(self, actions: np.ndarray, playing: Sequence[int]) -> Steps:
        """Take a step in the lanes that play, with one action a lane [n, ...]."""
        count = len(self.envs)
        rewards, terminated, truncated = [0.0] * count, [False] * count, [False] * count
        elapsed, limit = self._elapsed, self._limit
        self.observations = self._dynamics(self._bare[0], self._states, actions, playing, rewards, terminated)
        for lane in playing:
            elapsed[lane] += 1
            truncated[lane] = elapsed[lane] >= limit
        return Steps(self.observations, np.array(rewards), np.array(terminated), np.array(truncated))


States = list[list[float]]
Dynamics = Callable[[Any, States, np.ndarray, Sequence[int], list[float], list[bool]], np.ndarray]


# Operation for operation as gymnasium writes them for one environment, and sines as numpy computes them, so that no bit
# differs. Python's floats are faster than numpy's arrays for a few lanes, and as fast for 32.
def cart_pole(
    env: CartPoleEnv, states: States, actions: np.ndarray, playing: Sequence[int],
    rewards: list[float], terminated: list[bool],
) -> np.ndarray:  # fmt: skip
    """Step the states of lanes that play, note rewards and ends, and return observations; actions are 0 or 1."""
    angles = np.array([state[2] for state in states])
    sines, cosines, chosen = np.sin(angles).tolist(), np.cos(angles).tolist(), actions.tolist()
    masspole, total_mass, polemass_length = env.masspole, env.total_mass, env.polemass_length
    length, gravity, tau, limit, tilt = env.length, env.gravity, env.tau, env.x_threshold, env.theta_threshold_radians
    for lane in playing:
        if chosen[lane] not in (0, 1):
            raise ValueError(f"actions={chosen}: CartPole has the actions 0 and 1")
        x, x_dot, theta, theta_dot = states[lane]
        sin, cos, force = sines[lane], cosines[lane], env.force_mag if chosen[lane] == 1 else -env.force_mag
        temp = (force + polemass_length * (theta_dot * theta_dot) * sin) / total_mass
        theta_acc = (gravity * sin - cos * temp) / (length * (4.0 / 3.0 - masspole * (cos * cos) / total_mass))
        x_acc = temp - polemass_length * theta_acc * cos / total_mass
        x, x_dot = x + tau * x_dot, x_dot + tau * x_acc
        theta, theta_dot = theta + tau * theta_dot, theta_dot + tau * theta_acc
        states[lane] = [x, x_dot, theta, theta_dot]
        rewards[lane], terminated[lane] = 1.0, x < -limit or x > limit or theta < -tilt or theta > tilt
    return np.array(states, np.float32)


def pendulum(
    env: PendulumEnv, states: States, actions: np.ndarray, playing: Sequence[int],
    rewards: list[float], terminated: list[bool],
) -> np.ndarray:  # fmt: skip
    """Step the states of lanes that play, note rewards, and return observations; actions [n, 1] are torques."""
    sines = np.sin(np.array([state[0] for state in states])).tolist()
    # Scalars of numpy, whose width decides how products of them are rounded.
    torques = list(np.clip(actions, -env.max_torque, env.max_torque)[:, 0])
    fast, dt = float(env.max_speed), env.dt
    for lane in playing:
        theta, speed = states[lane]
        torque = torques[lane]
        rewards[lane] = -float(angle_normalize(theta) ** 2 + 0.1 * speed**2 + 0.001 * (torque**2))
        push = 3 * env.g / (2 * env.l) * sines[lane] + 3.0 / (env.m * env.l**2) * torque
        speed = min(max(speed + float(push * dt), -fast), fast)
        states[lane] = [theta + speed * dt, speed]
    new = np.array(states)
    return np.stack((np.cos(new[:, 0]), np.sin(new[:, 0]), new[:, 1]), axis=1).astype(np.float32)


DYNAMICS: dict[type, Dynamics] = {CartPoleEnv: cart_pole, PendulumEnv: pendulum}  # type: ignore[dict-item]


def _together(env: gymnasium.Env) -> bool:
    """Say whether an environment is one of those above, as gymnasium makes it, with a time limit."""
    wrappers = []
    while isinstance(env, gymnasium.Wrapper):
        wrappers.append(type(env))
        env = env.env
    plain = type(env) in DYNAMICS and env.render_mode is None and TimeLimit in wrappers
    if isinstance(env, CartPoleEnv):
        plain = plain and env.kinematics_integrator == "euler" and not env._sutton_barto_reward
    return plain and all(wrapper in TRANSPARENT for wrapper in wrappers)
