"""A dm_env environment as Gymnasium has it, so that other libraries train on the very tasks that ActorQ does."""

from __future__ import annotations

from typing import Any

import dm_env
import gymnasium
import numpy as np

from quarl_lib.envs import specs


class AsGym(gymnasium.Env):
    """A flat environment of `control.make`; an episode that ends with a discount above 0 was cut off, not over."""

    def __init__(self, environment: dm_env.Environment) -> None:
        self._environment = environment
        shape = environment.observation_spec().shape
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32)
        action = environment.action_spec()
        if isinstance(action, specs.DiscreteArray):
            self.action_space: gymnasium.Space = gymnasium.spaces.Discrete(action.num_values)
        else:
            self.action_space = gymnasium.spaces.Box(-1.0, 1.0, action.shape, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Start an episode; the environment was seeded when it was made."""
        super().reset(seed=seed)
        return self._environment.reset().observation, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take one step."""
        timestep = self._environment.step(action)
        terminated = timestep.last() and not timestep.discount
        return timestep.observation, float(timestep.reward), terminated, timestep.last() and not terminated, {}

    def close(self) -> None:
        """Close the environment."""
        self._environment.close()
