"""CartPole of other people's: environments that go wrong while an agent plays; imported by name in each process."""

from __future__ import annotations

import os

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv


class Raises(CartPoleEnv):
    """Raises in the third step."""

    steps_left = 3

    def step(self, action):
        self.steps_left -= 1
        if self.steps_left == 0:
            raise ZeroDivisionError("a wheel came off")
        return super().step(action)


class WantsAnArray(CartPoleEnv):
    """Wants an action of another shape than its space says."""

    def step(self, action):
        return super().step(int(np.asarray(action).reshape(1, 2).argmax()))


class Dies(CartPoleEnv):
    """Takes its process along, as a segmentation fault does."""

    def step(self, action):
        os._exit(1)


FAULTS = {"Raises-v0": Raises, "WantsAnArray-v0": WantsAnArray, "Dies-v0": Dies}
for name, kind in {**FAULTS, "Sound-v0": CartPoleEnv}.items():
    gymnasium.register(name, f"{kind.__module__}:{kind.__name__}", max_episode_steps=50, disable_env_checker=True)
