"""Control tasks by name, each as a dm_env environment with one float32 observation vector.

`"dm_control:<domain>:<task>"`, `"gym:<id>"`, or `"gym:<module>:<id>"`, whose module is imported first. Continuous
actions are canonical, in [-1, 1]; discrete ones are counted from 0.
"""

from __future__ import annotations

import functools
import math
import os
import warnings
from collections.abc import Mapping
from typing import Any

import dm_env
import gymnasium
import numpy as np
from dm_env import specs

from quarl_lib.envs import registry

INSTALL = "pip install dm-control"
# CartPole-v0 is asked for on purpose: its 200 steps are the paper's.
warnings.filterwarnings("ignore", message=r".*environment CartPole-v0 is out of date")


def make(task: str, seed: int, flat: bool = True) -> dm_env.Environment:
    """Make the environment of a task name.

    Args:
        task: `"dm_control:cartpole:balance"`, `"gym:CartPole-v0"`, or any other of theirs by name.
        seed: of the environment's own randomness.
        flat: False leaves dm_control's observation a dict of float32 arrays, as Acme's own agents see it.

    Raises:
        ValueError: unknown task, or (on a step) an observation or reward that is not finite.
    """
    check_task(task)
    suite, _, name = task.partition(":")
    if suite == "gym":
        return GymEnvironment(name, seed)
    domain, _, task_name = name.partition(":")
    environment = _suite().load(domain, task_name, task_kwargs={"random": seed})
    from quarl_lib.envs import lean  # imports dm_control

    return ControlEnvironment(lean.trim(environment), task, flat)


def made_anew(environment: dm_env.Environment) -> dm_env.Environment:
    """Return what `make` returns for the task and seed of one that it made, which is used no more.

    dm_control's keep their compiled model, which takes 20 times as long to make as an episode to begin.
    """
    if isinstance(environment, ControlEnvironment):
        environment.begin_anew()
        return environment
    assert isinstance(environment, GymEnvironment)
    environment.close()
    return make(environment.task, environment.seed)


def check_task(task: str) -> None:
    """Raise ValueError for a task that neither suite has, naming those near it."""
    suite, _, name = task.partition(":")
    if suite == "dm_control":
        domain, _, task_name = name.partition(":")
        known = _control_tasks()
        if domain not in known:
            raise ValueError(f"task={task!r}: dm_control has no domain {domain!r}; it has {', '.join(sorted(known))}")
        if task_name not in known[domain]:
            raise ValueError(f"task={task!r}: domain {domain!r} has the tasks {', '.join(known[domain])}")
    elif suite == "gym":
        try:
            gymnasium.spec(registry.registered_name(name))
        except gymnasium.error.Error as error:
            raise ValueError(
                f"task={task!r}: gymnasium does not know {name!r} ({error}); for one of your own "
                "write gym:<module>:<id>"
            ) from error
    else:
        raise ValueError(f"task={task!r}: write dm_control:<domain>:<task> or gym:<id>")


def is_discrete(task: str) -> bool:
    """Say whether a task's actions are counted (True) or a vector (False).

    Raises:
        ValueError: they are neither, or there is no such task.
    """
    check_task(task)
    suite, _, name = task.partition(":")
    return suite == "gym" and registry.kind_of_actions(name) == "discrete"


def _suite() -> Any:
    # Chosen before the import: without a display the default backend warns, and training never renders.
    os.environ.setdefault("MUJOCO_GL", "disabled")
    try:
        from dm_control import suite
    except ImportError as error:
        raise ValueError(f"dm_control cannot be imported ({error}); {INSTALL}") from error
    return suite


@functools.cache
def _control_tasks() -> dict[str, tuple[str, ...]]:
    known: dict[str, tuple[str, ...]] = {}
    for domain, task_name in _suite().ALL_TASKS:
        known[domain] = (*known.get(domain, ()), task_name)
    return known


class Flattener:
    """Lays the arrays of a dict observation one behind the other into one float32 vector."""

    def __init__(self, spec: Mapping[str, specs.Array]) -> None:
        self._slots: list[tuple[str, slice]] = []
        self.size = 0
        for name, part in spec.items():
            end = self.size + int(np.prod(part.shape, dtype=int))
            self._slots.append((name, slice(self.size, end)))
            self.size = end

    def __call__(self, observation: Mapping[str, Any]) -> np.ndarray:
        """Return a new float32 vector [size]."""
        vector = np.empty(self.size, np.float32)
        for name, where in self._slots:
            value = observation[name]
            vector[where] = value.ravel() if getattr(value, "ndim", 0) > 1 else value
        return vector


def _check_finite(vector: np.ndarray, task: str) -> None:
    # The sum is finite only if every entry is (or at overflow, which is no observation either): one fast call a step.
    if not math.isfinite(vector.sum()):
        where = np.flatnonzero(~np.isfinite(vector)).tolist()
        raise ValueError(f"task={task!r}: its observation is not finite at {where[:10]}; mend the environment")


def check_batch(observations: np.ndarray, rewards: np.ndarray, task: str) -> None:
    """Raise ValueError unless observations [n, size] and rewards [n] of a task are finite."""
    if not math.isfinite(observations.sum()):
        for vector in observations:
            _check_finite(vector, task)
    if not math.isfinite(rewards.sum()):
        for reward in rewards:
            _check_reward(reward, task)


def _check_reward(reward: Any, task: str) -> None:
    if not math.isfinite(reward):
        raise ValueError(f"task={task!r}: its reward is {reward}; mend the environment")


class _Float32Environment(dm_env.Environment):
    """What both kinds share: rewards and discounts are float32 scalars."""

    def reward_spec(self) -> specs.Array:
        """Return a float32 scalar."""
        return specs.Array((), np.float32, "reward")

    def discount_spec(self) -> specs.BoundedArray:
        """Return a float32 scalar in [0, 1]."""
        return specs.BoundedArray((), np.float32, 0.0, 1.0, "discount")


class ControlEnvironment(_Float32Environment):
    """A dm_control environment with canonical actions and one float32 vector (or a dict of float32 arrays)."""

    def __init__(self, environment: Any, task: str, flat: bool = True) -> None:
        self._environment, self.task, self._flat = environment, task, flat
        self._random_as_made = environment.task.random.get_state()
        self._spec: dict[str, specs.Array] = dict(environment.observation_spec())
        self.observation_names = tuple(self._spec)  # of what lies one behind the other
        self._flatten = Flattener(self._spec)
        action = environment.action_spec()
        self._low, self._half = action.minimum, (action.maximum - action.minimum) / 2
        self._action_spec = specs.BoundedArray(action.shape, np.float32, -1.0, 1.0, "action")

    def reset(self) -> dm_env.TimeStep:
        """Start an episode."""
        return self._convert(self._environment.reset())

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        """Take one step with an action in [-1, 1]."""
        return self._convert(self._environment.step(self.scaled(action)))

    def begin_anew(self) -> None:
        """Let the next episodes be the first ones again."""
        self._environment.task.random.set_state(self._random_as_made)

    def scaled(self, action: np.ndarray) -> np.ndarray:
        """Return the suite's own actions for canonical ones, of one environment or of several [n, k]."""
        return self._low + (action + 1.0) * self._half

    def observation_spec(self) -> specs.Array | dict[str, specs.Array]:
        """Return the vector's spec, or each array's."""
        if self._flat:
            return specs.Array((self._flatten.size,), np.float32, "observation")
        return {name: specs.Array(part.shape, np.float32, name) for name, part in self._spec.items()}

    def action_spec(self) -> specs.BoundedArray:
        """Return float32 actions in [-1, 1]."""
        return self._action_spec

    def close(self) -> None:
        """Free the simulation."""
        self._environment.close()

    def _convert(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        step_type, reward, discount, observation = timestep
        if reward is not None:
            _check_reward(reward, self.task)
        vector: Any = self._flatten(observation)
        _check_finite(vector, self.task)
        if not self._flat:
            vector = {name: np.asarray(value, np.float32) for name, value in observation.items()}
        return dm_env.TimeStep(
            step_type,
            None if reward is None else np.float32(reward),
            None if discount is None else np.float32(discount),
            vector,
        )


class GymEnvironment(_Float32Environment):
    """A gymnasium environment as dm_env; cut off by its time limit, an episode ends with discount 1."""

    def __init__(self, name: str, seed: int) -> None:
        self.gym = gymnasium.make(registry.registered_name(name), disable_env_checker=True)
        self.task, self.seed = f"gym:{name}", seed
        self.observation_names = ("obs",)
        self._seeded = self._running = False
        space, action = self.gym.observation_space, self.gym.action_space
        if not isinstance(space, gymnasium.spaces.Box):
            raise ValueError(f"task={self.task!r}: observations are {space}; only arrays (Box) can be laid in a vector")
        self._observation_spec = specs.Array((int(np.prod(space.shape)),), np.float32, "observation")
        self._discrete = isinstance(action, gymnasium.spaces.Discrete)
        if isinstance(action, gymnasium.spaces.Discrete):
            self._start = int(action.start)
            self._action_spec: specs.Array = specs.DiscreteArray(int(action.n), np.int32, "action")
        elif isinstance(action, gymnasium.spaces.Box) and np.isfinite([action.low, action.high]).all():
            self._low, self._half = action.low, (action.high - action.low) / 2
            self._action_spec = specs.BoundedArray(action.shape, np.float32, -1.0, 1.0, "action")
        else:
            raise ValueError(
                f"task={self.task!r}: actions are {action}; give a task with Discrete or bounded Box actions"
            )

    def reset(self) -> dm_env.TimeStep:
        """Start an episode; the first one is seeded."""
        observation, _ = self.gym.reset(seed=None if self._seeded else self.seed)
        self._seeded = self._running = True
        return dm_env.restart(self._vector(observation))

    def step(self, action: Any) -> dm_env.TimeStep:
        """Take one step with a counted action, or a vector in [-1, 1]; after an episode's last step, start the next."""
        if not self._running:
            return self.reset()
        chosen = int(action) + self._start if self._discrete else self.scaled(action)
        observation, reward, terminated, truncated, _ = self.gym.step(chosen)
        _check_reward(reward, self.task)
        ended = terminated or truncated
        self._running = not ended
        step_type = dm_env.StepType.LAST if ended else dm_env.StepType.MID
        discount = np.float32(0.0 if terminated else 1.0)
        return dm_env.TimeStep(step_type, np.float32(reward), discount, self._vector(observation))

    def scaled(self, action: np.ndarray) -> np.ndarray:
        """Return gymnasium's own actions for counted or canonical ones, of one environment or of several [n, ...]."""
        return action + self._start if self._discrete else self._low + (action + 1.0) * self._half

    def observation_spec(self) -> specs.Array:
        """Return the vector's spec."""
        return self._observation_spec

    def action_spec(self) -> specs.Array:
        """Return counted actions, or float32 ones in [-1, 1]."""
        return self._action_spec

    def close(self) -> None:
        """Close the environment."""
        self.gym.close()

    def _vector(self, observation: np.ndarray) -> np.ndarray:
        vector = np.array(observation, np.float32).reshape(-1)
        _check_finite(vector, self.task)
        return vector
