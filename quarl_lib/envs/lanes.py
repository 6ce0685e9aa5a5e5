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

    What stands in a lane that does not play means nothing, its reward and its ends aside: they are 0 and False.
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
    """Environments whose states are rows of one array; the environments themselves draw where episodes start."""

    def __init__(self, envs: Sequence[gymnasium.Env]) -> None:
        super().__init__(envs)
        self._one: Any = envs[0].unwrapped  # its constants are those of all
        self._dynamics = DYNAMICS[type(self._one)]
        self._limit = envs[0].get_wrapper_attr("_max_episode_steps")
        self._elapsed = np.zeros(len(envs), int)

    def reset_all(self, seeds: Sequence[int | None]) -> np.ndarray:
        """Start an episode in every lane and return the first observations [n, ...]."""
        first = super().reset_all(seeds)
        self._states = np.stack([env.unwrapped.state for env in self.envs])  # type: ignore[attr-defined]
        self._elapsed[:] = 0
        return first

    def reset(self, lane: int, seed: int | None = None) -> None:
        """Start the next episode of one lane; None goes on with its own random numbers."""
        super().reset(lane, seed)
        self._states[lane] = self.envs[lane].unwrapped.state  # type: ignore[attr-defined]
        self._elapsed[lane] = 0

    def step(self, actions: np.ndarray, playing: Sequence[int]) -> Steps:
        """Take a step in the lanes that play, with one action a lane [n, ...]."""
        plays = np.zeros(len(self.envs), bool)
        plays[playing] = True
        self._states, self.observations, rewards, terminated = self._dynamics(self._one, self._states, actions)
        self._elapsed += 1
        return Steps(
            self.observations, np.where(plays, rewards, 0.0), terminated & plays, (self._elapsed >= self._limit) & plays
        )


Dynamics = Callable[[Any, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]


# Operation for operation as gymnasium writes them for one environment, so that no bit differs.
def cart_pole(env: CartPoleEnv, state: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return next states [n, 4], observations, rewards and ends; actions are 0 or 1."""
    right = action == 1
    if not (right | (action == 0)).all():
        raise ValueError(f"actions={action.tolist()}: CartPole has the actions 0 and 1")
    x, x_dot, theta, theta_dot = state.T
    force = np.where(right, env.force_mag, -env.force_mag)
    cos, sin = np.cos(theta), np.sin(theta)
    temp = (force + env.polemass_length * np.square(theta_dot) * sin) / env.total_mass
    theta_acc = (env.gravity * sin - cos * temp) / (
        env.length * (4.0 / 3.0 - env.masspole * np.square(cos) / env.total_mass)
    )
    x_acc = temp - env.polemass_length * theta_acc * cos / env.total_mass
    x, x_dot = x + env.tau * x_dot, x_dot + env.tau * x_acc
    theta, theta_dot = theta + env.tau * theta_dot, theta_dot + env.tau * theta_acc
    state = np.stack((x, x_dot, theta, theta_dot), axis=1)
    limit, tilt = env.x_threshold, env.theta_threshold_radians
    ended = (x < -limit) | (x > limit) | (theta < -tilt) | (theta > tilt)
    return state, state.astype(np.float32), np.ones(len(state)), ended


def pendulum(env: PendulumEnv, state: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return next states [n, 2], observations, rewards and ends (none); actions [n, 1] are torques."""
    theta, speed = state.T
    torque = list(np.clip(action, -env.max_torque, env.max_torque)[:, 0])
    # Scalars where one environment has them: powers and mixed widths are rounded otherwise in arrays.
    costs = [
        angle**2 + 0.1 * v**2 + 0.001 * (u**2)
        for angle, v, u in zip(angle_normalize(theta), speed, torque, strict=True)
    ]
    pull = np.array([3.0 / (env.m * env.l**2) * u for u in torque])
    speed = speed + (3 * env.g / (2 * env.l) * np.sin(theta) + pull) * env.dt
    speed = np.clip(speed, -env.max_speed, env.max_speed)
    theta = theta + speed * env.dt
    observations = np.stack((np.cos(theta), np.sin(theta), speed), axis=1).astype(np.float32)
    return np.stack((theta, speed), axis=1), observations, -np.array(costs), np.zeros(len(state), bool)


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
