"""Environments of every kind of observation and action, and small models of every algorithm for them; imported by name.

`gymnasium.make("Toy_<observations>_<actions>-v0")`.
"""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium
import numpy as np
import pytest
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch import nn

from quarl_lib.sb3.flat import num_choices

contrib = pytest.importorskip("sb3_contrib")


class Tanh(nn.Tanh):
    """A user's own, which is not torch's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x)


class MyFlattenExtractor(FlattenExtractor):
    """A user's own, which is not Stable-Baselines3's."""

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return -super().forward(observations)


OBSERVATIONS: dict[str, spaces.Space] = {
    "vector": spaces.Box(-3, 3, (5,), np.float32),
    "float64": spaces.Box(-3, 3, (5,), np.float64),
    "uint8-vector": spaces.Box(0, 255, (5,), np.uint8),
    "chw": spaces.Box(0, 255, (3, 36, 36), np.uint8),
    "hwc": spaces.Box(0, 255, (36, 36, 3), np.uint8),
    "float-image": spaces.Box(0, 1, (3, 36, 36), np.float32),
    "discrete": spaces.Discrete(6),
    "dict": spaces.Dict({"a": spaces.Box(-1, 1, (3,), np.float32), "b": spaces.Box(-1, 1, (2,), np.float32)}),
    "dict-mixed": spaces.Dict({"i": spaces.Discrete(3), "h": spaces.Box(0, 255, (36, 36, 3), np.uint8),
                               "b": spaces.Box(0, 9, (2, 2), np.uint8), "m": spaces.MultiBinary(2)}),
    "multi-discrete": spaces.MultiDiscrete([3, 5]),
    "multi-binary": spaces.MultiBinary(4),
    "grid": spaces.Box(-1, 1, (2, 3), np.float32),
}  # fmt: skip
ACTIONS: dict[str, spaces.Space] = {
    "discrete": spaces.Discrete(4),
    "start": spaces.Discrete(4, start=2),
    "box": spaces.Box(np.array([-2, 0], np.float32), np.array([1, 5], np.float32)),
    "unbounded": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "half-bounded": spaces.Box(np.array([0, -1], np.float32), np.array([np.inf, 1], np.float32)),
    "box-2d": spaces.Box(-2, 3, (2, 2), np.float32),
    "multi-discrete": spaces.MultiDiscrete([3, 4]),
    "multi-binary": spaces.MultiBinary(3),
}
ALGORITHMS = {name: getattr(stable_baselines3, name) for name in ("A2C", "PPO", "DQN", "DDPG", "TD3", "SAC")} | {
    name: getattr(contrib, name) for name in ("TQC", "TRPO", "QRDQN", "ARS", "MaskablePPO", "RecurrentPPO")
}
DISCRETE_ONLY, BOX_ONLY = {"DQN", "QRDQN"}, {"DDPG", "TD3", "SAC", "TQC"}
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "relu": {"activation_fn": nn.ReLU, "net_arch": [16]},
    "elu": {"activation_fn": nn.ELU, "net_arch": [16, 8]},
    "linear": {"net_arch": []},
    "own-tanh": {"activation_fn": Tanh, "net_arch": [16]},
    "own-extractor": {"features_extractor_class": MyFlattenExtractor, "net_arch": [16]},
    "apart": {"share_features_extractor": False, "net_arch": {"pi": [8], "vf": [16]}},
    "leaky-lambda": {"activation_fn": lambda: nn.LeakyReLU(0.3), "net_arch": [16]},
}


class Toy(gymnasium.Env):
    def __init__(self, observations: str, actions: str) -> None:
        self.observation_space, self.action_space = OBSERVATIONS[observations], ACTIONS[actions]
        self._left = 4

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._left = 4
        return self.observation_space.sample(), {}

    def step(self, action):
        self._left -= 1
        return self.observation_space.sample(), 1.0, self._left == 0, False, {}

    def action_masks(self) -> np.ndarray:
        size = sum(num_choices(self.action_space))
        return np.arange(size) % 3 != self._left % 3


for observations, actions in itertools.product(OBSERVATIONS, ACTIONS):
    gymnasium.register(
        f"Toy_{observations}_{actions}-v0",
        lambda **spaces_of: Toy(**spaces_of),
        kwargs={"observations": observations, "actions": actions},
    )


def make_model(algorithm: str, env: gymnasium.Env, options: dict[str, Any]):
    policy = "MlpPolicy"
    space = env.observation_space
    if isinstance(space, spaces.Dict):
        policy = "MultiInputPolicy"
    elif len(space.shape or ()) == 3 and algorithm != "ARS":
        policy = "CnnPolicy"
        if space.dtype != np.uint8:
            options = {**options, "normalize_images": False}
    kwargs: dict[str, Any] = {"device": "cpu", "seed": 0}
    if algorithm == "RecurrentPPO":
        policy = "MlpLstmPolicy"
    if algorithm in DISCRETE_ONLY | BOX_ONLY:
        kwargs |= {"buffer_size": 64, "learning_starts": 4, "batch_size": 4}
    elif algorithm == "ARS":
        kwargs |= {"n_delta": 1}
    elif algorithm == "A2C":
        kwargs |= {"n_steps": 4}
    else:
        kwargs |= {"n_steps": 8, "batch_size": 8}
    return ALGORITHMS[algorithm](policy, env, policy_kwargs=options or None, **kwargs)
