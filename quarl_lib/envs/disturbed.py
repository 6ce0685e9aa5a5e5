"""Environments that are not quite those of the training: noise, late actions, other masses and friction.

A disturbance is written `<kind>=<level>`, such as `observation_noise=0.05`. Noise is drawn from the episode's seed and
the step alone, so that whatever policy plays an episode meets the same.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces

KINDS = {
    "observation_noise": "Gaussian, its deviation a share of that which the feature has while the agent plays",
    "action_noise": "Gaussian, its deviation a share of half the action range; a counted action becomes any other one "
    "with this probability",
    "action_delay": "each action acts so many steps late, the first of an episode until the second does",
    "body_mass": "MuJoCo: factor on every body's mass and inertia",
    "friction": "MuJoCo: factor on every contact's friction",
}
NOISE, SHARES, FACTORS = "observation_noise", ("observation_noise", "action_noise"), ("body_mass", "friction")
_STREAM = 1  # apart from the environment's own numbers, which come from the seed itself


@dataclass(frozen=True)
class Disturbance:
    """One kind (see `KINDS`) at one level."""

    kind: str
    level: float

    @property
    def name(self) -> str:
        """The text that `parse` reads."""
        return f"{self.kind}={self.level:g}"


def parse(text: str) -> Disturbance:
    """Read `<kind>=<level>`.

    Raises:
        ValueError: another form, an unknown kind, or a level that the kind cannot have.
    """
    kind, equals, number = (part.strip() for part in text.partition("="))
    if not equals or kind not in KINDS:
        raise ValueError(f"disturbances={text!r}: write <kind>=<level>, the kinds are {', '.join(KINDS)}")
    try:
        level = float(number)
    except ValueError:
        level = math.nan
    if not (math.isfinite(level) and level > 0):
        raise ValueError(f"disturbances={text!r}: give a level above 0, such as {kind}={_example(kind)}")
    if kind == "action_delay" and level != int(level):
        raise ValueError(f"disturbances={text!r}: give a whole number of steps, such as action_delay=1")
    if kind in SHARES and level > 1:
        raise ValueError(f"disturbances={text!r}: give a share up to 1, such as {kind}={_example(kind)}")
    return Disturbance(kind, level)


def _example(kind: str) -> str:
    return "0.05" if kind in SHARES else "1" if kind == "action_delay" else "1.2"


def disturbed(env: gymnasium.Env, disturbance: Disturbance, deviations: np.ndarray) -> gymnasium.Env:
    """Return an environment under a disturbance; `deviations`, in the observation's shape, scale observation noise.

    Raises:
        ValueError: the environment cannot be disturbed so; names why.
    """
    kind, level = disturbance.kind, disturbance.level
    if kind == NOISE:
        return ObservationNoise(env, level * deviations)
    if kind == "action_noise":
        return ActionNoise(env, level)
    if kind == "action_delay":
        return ActionDelay(env, int(level))
    return OtherModel(env, kind, level)


class _Seeded(gymnasium.Wrapper):
    """Start a generator of one's own from each episode's seed."""

    _generator = np.random.default_rng(0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._generator = np.random.default_rng([seed, _STREAM])
        return self.env.reset(seed=seed, options=options)


class ObservationNoise(_Seeded):
    """Add Gaussian noise to every observation, whole numbers rounded and kept within their bounds."""

    def __init__(self, env: gymnasium.Env, deviations: np.ndarray) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, spaces.Box):
            raise ValueError(f"observation_noise: observations are {space}, noise is for arrays of numbers")
        self._deviations, self._low, self._high = deviations, space.low, space.high

    def reset(self, **options: Any) -> tuple[np.ndarray, dict[str, Any]]:
        observation, info = super().reset(**options)
        return self._noisy(observation), info

    def step(self, action: Any) -> tuple[np.ndarray, SupportsFloat, bool, bool, dict[str, Any]]:
        observation, *rest = self.env.step(action)
        return self._noisy(observation), *rest  # type: ignore[return-value]

    def _noisy(self, observation: Any) -> np.ndarray:
        exact = np.asarray(observation)
        noisy = exact + self._generator.standard_normal(exact.shape) * self._deviations
        if exact.dtype.kind in "iu":
            noisy = np.clip(np.rint(noisy), self._low, self._high)
        return noisy.astype(exact.dtype)


class ActionNoise(_Seeded):
    """Add Gaussian noise to actions within their bounds; replace counted ones at random."""

    def __init__(self, env: gymnasium.Env, level: float) -> None:
        super().__init__(env)
        self._level, self._space = level, env.action_space
        self._choices: np.ndarray | None = None
        if isinstance(self._space, spaces.Box):
            if not np.isfinite([self._space.low, self._space.high]).all():
                raise ValueError("action_noise: actions have no bounds, noise is a share of their range")
        elif isinstance(self._space, spaces.Discrete):
            self._choices = np.array(self._space.n)
        elif isinstance(self._space, spaces.MultiDiscrete):
            self._choices = self._space.nvec
        elif isinstance(self._space, spaces.MultiBinary):
            self._choices = np.full(self._space.shape, 2)
        else:
            raise ValueError(f"action_noise: actions are {self._space}, noise is for numbers and indices")

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        return self.env.step(self._noisy(np.asarray(action)))

    def _noisy(self, action: np.ndarray) -> np.ndarray:
        if self._choices is None:
            low, high = self._space.low, self._space.high  # type: ignore[attr-defined]
            noise = self._generator.standard_normal(action.shape) * (self._level * (high - low) / 2)
            return np.clip(action + noise, low, high).astype(self._space.dtype)
        # Both are drawn in each step, so that the next one's numbers do not depend on this one's.
        replaced = self._generator.random(action.shape) < self._level
        other = (action + self._generator.integers(1, np.maximum(self._choices, 2))) % self._choices
        return np.where(replaced, other, action).astype(action.dtype)[()]


class ActionDelay(gymnasium.Wrapper):
    """Let each action act `steps` later; the first of an episode acts until then."""

    def __init__(self, env: gymnasium.Env, steps: int) -> None:
        super().__init__(env)
        self._steps = steps
        self._waiting: deque[np.ndarray] = deque()

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        self._waiting.clear()
        return self.env.reset(**options)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        action = np.array(action)[()]  # a copy: policies may write the next one into the same memory
        if not self._waiting:
            self._waiting.extend([action] * self._steps)
        self._waiting.append(action)
        return self.env.step(self._waiting.popleft())


class OtherModel(gymnasium.Wrapper):
    """Scale the masses or the friction of a MuJoCo model, gymnasium's or dm_control's."""

    def __init__(self, env: gymnasium.Env, kind: str, factor: float) -> None:
        super().__init__(env)
        found = _mujoco(env)
        if found is None:
            name = env.spec.id if env.spec else type(env.unwrapped).__name__
            raise ValueError(f"{kind}: {name} has no MuJoCo model")
        import mujoco

        model, data = found
        for array in self._arrays(model, kind):
            array *= factor
        mujoco.mj_setConst(model, data)  # what the model derives from its masses
        self._kind, self._scaled = kind, self._arrays(model, kind)[0].copy()

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        result = self.env.reset(**options)
        found = _mujoco(self.env)
        if found is None or not np.array_equal(self._arrays(found[0], self._kind)[0], self._scaled):
            raise ValueError(f"{self._kind}: the environment sets its own when an episode begins")
        return result

    @staticmethod
    def _arrays(model: Any, kind: str) -> tuple[np.ndarray, ...]:
        if kind == "body_mass":
            return model.body_mass, model.body_inertia
        return model.geom_friction, model.pair_friction


def _mujoco(env: gymnasium.Env) -> tuple[Any, Any] | None:
    """Return MuJoCo's own model and data of an environment, None where it has none."""
    base = env.unwrapped
    for owner in (base, getattr(base, "_env", None), getattr(base, "env", None)):
        physics = getattr(owner, "physics", owner)  # dm_control keeps both there, gymnasium in the environment itself
        model, data = getattr(physics, "model", None), getattr(physics, "data", None)
        if hasattr(model, "body_mass") and data is not None:
            return getattr(model, "ptr", model), getattr(data, "ptr", data)
    return None
