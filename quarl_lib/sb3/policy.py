"""What acts: an observation in, logits, Q values, a mean or an action out; every algorithm in one module."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

Kind = Literal["categorical", "multi_categorical", "bernoulli", "q_values", "gaussian", "deterministic", "direct"]
INDICES = ("categorical", "multi_categorical", "bernoulli", "q_values")
MASKED = -1e8  # the logit of an action that is not allowed, as in sb3-contrib
SDE_EPSILON = 1e-6  # Stable-Baselines3 adds it to the variance of gSDE


class ActingPolicy(nn.Module):
    """The part of a trained agent that chooses actions; its Linear and Conv2d layers are the real modules.

    Args:
        latent: from the normalised observation to the last hidden layer.
        head: from there to the outputs.
        kind: what the outputs are; Gaussian means, Q values and direct actions (clipped like means) are unbounded,
            deterministic actions lie in [-1, 1], a Bernoulli's logit is one a component.
        spread: from the last hidden layer to the standard deviation; only for Gaussian policies.
        low, high: bounds of a continuous action space, [k].
        squash: whether a Gaussian action passes through tanh and is scaled to the bounds (SAC), or clipped (A2C, PPO).
        choices: how many of the outputs belong to each component of a multi-categorical action.
        num_masked: how many values in front of an observation say which outputs are allowed (1) or not (0); 0 or all.
    """

    def __init__(
        self,
        latent: nn.Module,
        head: nn.Module,
        kind: Kind,
        *,
        spread: nn.Module | None = None,
        low: np.ndarray | None = None,
        high: np.ndarray | None = None,
        squash: bool = False,
        choices: tuple[int, ...] = (),
        num_masked: int = 0,
    ) -> None:
        super().__init__()
        if kind not in get_args(Kind):
            raise ValueError(f"kind={kind!r} is none of {', '.join(get_args(Kind))}")
        if (kind == "gaussian") != (spread is not None):
            raise ValueError(f"kind={kind!r}: a Gaussian policy has a spread, and no other")
        self.latent, self.head, self.spread = latent, head, spread
        self.kind: Kind = kind
        self.squash, self.choices, self.num_masked = squash, choices, num_masked
        self.discrete = kind in INDICES
        if (kind == "multi_categorical") != bool(choices):
            raise ValueError(f"choices={choices}: a multi-categorical policy has them, kind={kind!r} or not")
        if not self.discrete:
            scaled = squash or kind == "deterministic"  # what only clips needs no finite bounds
            if low is None or high is None or (scaled and not (np.isfinite(low).all() and np.isfinite(high).all())):
                raise ValueError(f"kind={kind!r} needs {'finite ' * scaled}bounds low and high, got {low} and {high}")
            self.low, self.high = np.asarray(low, np.float32), np.asarray(high, np.float32)

    def forward(self, observation: Tensor) -> Tensor:
        """Map normalised observations [n, ...] to logits, Q values, means or actions [n, k]."""
        if not self.num_masked:
            return self.head(self.latent(observation))
        mask, observation = observation[:, : self.num_masked], observation[:, self.num_masked :]
        return torch.where(mask > 0, self.head(self.latent(observation)), MASKED)

    def categories(self, outputs: np.ndarray) -> list[np.ndarray]:
        """Return the logits of each index that is chosen apart from the others, from outputs [n, k]: [n, choices]."""
        if self.kind == "bernoulli":
            return [np.stack([np.zeros_like(logit), logit], axis=-1) for logit in np.moveaxis(outputs, -1, 0)]
        if self.kind == "multi_categorical":
            return np.split(outputs, np.cumsum(self.choices)[:-1], axis=-1)
        return [outputs]

    def std(self, observation: Tensor) -> Tensor:
        """Return the standard deviation of a Gaussian policy for observations [n, ...], as [n, k].

        Raises:
            ValueError: the policy is not Gaussian.
        """
        if self.spread is None:
            raise ValueError(f"kind={self.kind!r} has no standard deviation")
        return self.spread(self.latent(observation))

    def actions(self, outputs: Tensor | np.ndarray) -> np.ndarray:
        """Turn outputs [n, k] into the environment's deterministic actions: int64 [n] or [n, c], or float32 [n, k]."""
        values = outputs.detach().numpy() if isinstance(outputs, Tensor) else np.asarray(outputs)
        if self.discrete:
            # The first of equals, whatever the batch size.
            chosen = [logits.argmax(axis=-1) for logits in self.categories(values)]
            return np.stack(chosen, axis=-1) if self.kind in ("bernoulli", "multi_categorical") else chosen[0]
        if self.kind in ("gaussian", "direct") and not self.squash:
            return np.clip(values, self.low, self.high)
        if self.squash:
            values = np.tanh(values)
        return self.low + 0.5 * (values + 1.0) * (self.high - self.low)

    @torch.no_grad()
    def act(self, observation: np.ndarray) -> np.ndarray:
        """Return the deterministic actions for normalised float32 observations [n, ...]."""
        return self.actions(self(torch.from_numpy(observation)))


class ConstantSpread(nn.Module):
    """A standard deviation that does not depend on the observation (A2C and PPO)."""

    log_std: Tensor

    def __init__(self, log_std: Tensor) -> None:
        super().__init__()
        self.register_buffer("log_std", log_std.reshape(-1))

    def forward(self, latent: Tensor) -> Tensor:
        """Return exp(log_std) once per row."""
        return self.log_std.exp().expand(latent.shape[0], -1)


class PredictedSpread(nn.Module):
    """A standard deviation that a layer of its own predicts (SAC), its logarithm clamped as in training."""

    LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0

    def __init__(self, log_std: nn.Linear) -> None:
        super().__init__()
        self.log_std = log_std

    def forward(self, latent: Tensor) -> Tensor:
        """Return exp(clamp(log_std(latent)))."""
        return self.log_std(latent).clamp(self.LOG_STD_MIN, self.LOG_STD_MAX).exp()


class StateDependentSpread(nn.Module):
    """Generalized state-dependent exploration: the variance is latent^2 @ std^2 (Raffin et al., 2021)."""

    variance: Tensor

    def __init__(self, log_std: Tensor, num_actions: int, use_expln: bool = False) -> None:
        super().__init__()
        if use_expln:  # exp below zero, log1p above: grows slower
            std = torch.where(log_std <= 0, log_std.exp(), torch.log1p(log_std.clamp(min=0) + SDE_EPSILON) + 1.0)
        else:
            std = log_std.exp()
        self.register_buffer("variance", (std**2).expand(-1, num_actions).clone())

    def forward(self, latent: Tensor) -> Tensor:
        """Return the standard deviation of the actions at `latent` [n, h], as [n, k]."""
        return torch.sqrt(latent**2 @ self.variance + SDE_EPSILON)
