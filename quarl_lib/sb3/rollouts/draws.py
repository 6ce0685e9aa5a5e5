"""From an engine's outputs to what Stable-Baselines3 draws, by the same generator and in the same order.

Actions equal those of the library's own distributions on the same outputs, number for number where rounding allows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.dqn.policies import DQNPolicy
from stable_baselines3.sac.policies import LOG_STD_MAX, LOG_STD_MIN, SACPolicy

HALF_LOG_2_PI = np.float32(0.5 * np.log(2 * np.pi))
OnPolicyDraw = Callable[[np.ndarray, np.ndarray | None, bool], tuple[np.ndarray, np.ndarray]]
OffPolicyDraw = Callable[[np.ndarray, bool], np.ndarray]


class Noise:
    """Draws in place from torch's generator into an array of the same shape each time."""

    def __init__(self) -> None:
        self._tensor, self._array = torch.empty(0), np.empty(0, np.float32)

    def normal(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return what `torch.normal(zeros, ones)` draws."""
        self._fit(shape)
        self._tensor.normal_()
        return self._array

    def exponential(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return the draws with which `torch.multinomial` takes one sample: the argmax of probabilities over them."""
        self._fit(shape)
        self._tensor.exponential_(1.0)
        return self._array

    def _fit(self, shape: tuple[int, ...]) -> None:
        if self._array.shape != shape:
            self._tensor = torch.empty(shape)
            self._array = self._tensor.numpy()


def on_policy_draw(model: BaseAlgorithm) -> OnPolicyDraw:
    """Return `draw(outputs, log_std, deterministic) -> (actions, log-probabilities [n])` of A2C and PPO."""
    noise = Noise()

    def categorical(
        logits: np.ndarray, log_std: np.ndarray | None, deterministic: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        shifted = logits - logits.max(axis=1, keepdims=True)
        weights = np.exp(shifted)
        total = weights.sum(axis=1, keepdims=True)
        # Dividing all of a row's weights by their sum would not change the argmax.
        actions = (weights if deterministic else weights / noise.exponential(weights.shape)).argmax(axis=1)
        rows = np.arange(len(actions))
        return actions, shifted[rows, actions] - np.log(total[:, 0])

    def gaussian(mean: np.ndarray, log_std: np.ndarray | None, deterministic: bool) -> tuple[np.ndarray, np.ndarray]:
        assert log_std is not None
        drawn = np.float32(0) if deterministic else noise.normal(mean.shape)
        actions = mean + np.exp(log_std) * drawn
        terms = np.float32(-0.5) * drawn * drawn - log_std - HALF_LOG_2_PI
        return actions, np.broadcast_to(terms, mean.shape).sum(axis=1)

    return categorical if isinstance(model.action_space, spaces.Discrete) else gaussian


def off_policy_draw(model: BaseAlgorithm) -> OffPolicyDraw:
    """Return `draw(outputs, deterministic) -> actions` as `predict` gives them, scaled to the space's bounds."""
    policy: Any = model.policy
    noise = Noise()

    def best(q_values: np.ndarray, deterministic: bool) -> np.ndarray:
        return q_values.argmax(axis=1)

    def squashed(outputs: np.ndarray, deterministic: bool) -> np.ndarray:
        mean, log_std = np.split(outputs, 2, axis=1)
        if not deterministic:
            mean = mean + np.exp(np.clip(log_std, LOG_STD_MIN, LOG_STD_MAX)) * noise.normal(mean.shape)
        return policy.unscale_action(np.tanh(mean).reshape(-1, *policy.action_space.shape))

    def scaled(actions: np.ndarray, deterministic: bool) -> np.ndarray:
        return policy.unscale_action(actions.reshape(-1, *policy.action_space.shape))

    if isinstance(policy, DQNPolicy):
        return best
    return squashed if isinstance(policy, SACPolicy) else scaled
