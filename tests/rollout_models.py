"""Tiny models for the tests of quantized rollouts, and a look at every rollout that they collect."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import A2C, DQN, PPO, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

STEPS = 32
BUFFER = ("observations", "actions", "log_probs", "values", "rewards", "episode_starts", "advantages", "returns")


def env_of(env_id: str, n_envs: int = 1, normalize: bool = False, limit: int | None = 12) -> Any:
    """Return environments whose episodes are cut off after `limit` steps."""
    env: Any = DummyVecEnv([lambda: Monitor(gymnasium.make(env_id, max_episode_steps=limit)) for _ in range(n_envs)])
    env.seed(0)
    return VecNormalize(env) if normalize else env


def model_of(algorithm: str, env: Any, **options: Any) -> Any:
    """Return a small untrained model; the same arguments give the same one."""
    torch.set_num_threads(1)
    options = {"policy_kwargs": {"net_arch": [16, 16]}, "seed": 0, "device": "cpu", **options}
    if algorithm == "PPO":
        return PPO("MlpPolicy", env, n_steps=STEPS, batch_size=16, n_epochs=2, **options)
    if algorithm == "A2C":
        return A2C("MlpPolicy", env, n_steps=STEPS, **options)
    options |= {"learning_starts": 10, "batch_size": 8, "buffer_size": 500}
    if algorithm == "DQN":
        return DQN("MlpPolicy", env, train_freq=4, exploration_final_eps=0.3, **options)
    if algorithm == "TD3":
        return TD3("MlpPolicy", env, action_noise=NormalActionNoise(np.zeros(1), 0.1 * np.ones(1)), **options)
    return SAC("MlpPolicy", env, **options)


class Seen(BaseCallback):
    """Copies the rollout buffer at the end of every rollout and calls `look(model)` there."""

    def __init__(self, look: Any = lambda model: None) -> None:
        super().__init__()
        self.rollouts: list[dict[str, np.ndarray]] = []
        self.truncated = 0
        self._look = look

    def _on_step(self) -> bool:
        self.truncated += sum(bool(info.get("TimeLimit.truncated")) for info in self.locals["infos"])
        return True

    def _on_rollout_end(self) -> None:
        buffer = getattr(self.model, "rollout_buffer", None)
        if buffer is not None:
            self.rollouts.append({name: getattr(buffer, name).copy() for name in BUFFER})
        self._look(self.model)
