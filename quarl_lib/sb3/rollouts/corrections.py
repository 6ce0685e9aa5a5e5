"""The end of a rollout of A2C or PPO: values, and which policy's log-probabilities stand in the buffer."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from torch import Tensor

CORRECTIONS = ("behaviour", "none", "truncated")
LARGEST_WEIGHT = 2.0
BATCH = 4096  # observations; a rollout of frames would not fit into memory at once


@torch.no_grad()
def finish_rollout(
    model: BaseAlgorithm,
    correction: str,
    advantages: Callable[[Tensor, np.ndarray], None],
    last_values: Tensor,
    dones: np.ndarray,
) -> float:
    """Fill in fp32 values, let the buffer compute its `advantages`, and correct; return the seconds that values took.

    Terminal values of truncated episodes stand in the rewards already: the library asks the fp32 critic for each.
    """
    begin = perf_counter()
    buffer: Any = model.rollout_buffer  # type: ignore[attr-defined]
    observations = torch.as_tensor(buffer.observations.reshape(-1, *buffer.obs_shape), device=model.device)
    policy: Any = model.policy
    acted: np.ndarray = buffer.log_probs.copy()
    if correction == "behaviour":
        values = torch.cat([policy.predict_values(batch) for batch in observations.split(BATCH)])
    else:
        actions = torch.as_tensor(buffer.actions.reshape(-1, buffer.action_dim), device=model.device)
        if isinstance(model.action_space, spaces.Discrete):
            actions = actions.long().flatten()
        pairs = zip(observations.split(BATCH), actions.split(BATCH), strict=True)
        parts = [policy.evaluate_actions(*pair)[:2] for pair in pairs]
        values = torch.cat([value for value, _ in parts])
        buffer.log_probs[:] = torch.cat([log_prob for _, log_prob in parts]).cpu().numpy().reshape(acted.shape)
    buffer.values[:] = values.cpu().numpy().reshape(buffer.values.shape)
    seconds = perf_counter() - begin
    advantages(last_values, dones)
    if correction == "truncated":
        buffer.advantages *= np.exp(np.minimum(buffer.log_probs - acted, np.log(np.float32(LARGEST_WEIGHT))))
    return seconds
