"""CartPole that goes wrong once when a file tells it to; imported by name, as an environment of one's own is."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from quarl_lib.actorq.actor.evaluator import EVALUATION_SEED

ORDERS = "QUARL_TEST_ORDERS"  # a folder; a file `<fault>-<part>` in it is an order, taken by the first to see it


class Faulty(CartPoleEnv):
    """Raises, pays NaN, or never returns from a step."""

    def reset(self, *, seed: int | None = None, options: Any = None):
        if seed is not None:
            self.who = "evaluator" if seed == EVALUATION_SEED else "actor"
        return super().reset(seed=seed, options=options)

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        for fault in ("exception", "nan", "hang"):
            order = Path(os.environ[ORDERS]) / f"{fault}-{self.who}"
            if not order.exists():
                continue
            try:
                order.unlink()
            except FileNotFoundError:
                continue  # another actor took it
            if fault == "exception":
                raise ArithmeticError("the environment broke")
            if fault == "nan":
                reward = math.nan
            while fault == "hang":
                time.sleep(1.0)
        return observation, reward, terminated, truncated, info


gymnasium.register("Faulty-v0", "faulty_environment:Faulty", max_episode_steps=200)
