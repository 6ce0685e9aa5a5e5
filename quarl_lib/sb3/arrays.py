"""Rebuild the acting network of an agent stored as plain arrays, such as the paper's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from quarl_lib.sb3.archive import AgentError
from quarl_lib.sb3.build import bounds, linear
from quarl_lib.sb3.policy import ActingPolicy, ConstantSpread

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "id": nn.Identity}
LAST = {"cat": "id", "q": "id", "gauss": "id", "tanh": "tanh"}  # kind -> activation behind the last layer
LAYER_NORM_EPSILON = 1e-12  # TensorFlow 1's


def policy_from_arrays(
    arrays: Mapping[str, np.ndarray], description: Mapping[str, Any], action_space: spaces.Space
) -> ActingPolicy:
    """Rebuild an actor stored as plain arrays `W{i}` [out, in], `b{i}`, `ln_gamma{i}`, `ln_beta{i}`, `log_std`.

    `description` has `kind` (cat, q, gauss, tanh) and `acts`, the activation behind each layer. Arrays that begin with
    `norm_` are statistics, which are read elsewhere.

    Raises:
        AgentError: an array or a field is missing, unknown or of another shape; names it.
    """
    stored = _Arrays(arrays)
    kind, names = description.get("kind"), description.get("acts")
    if not isinstance(kind, str) or kind not in LAST:
        raise AgentError(f"kind {kind!r} is none of {', '.join(LAST)}")
    if not isinstance(names, list) or not names or any(name not in ACTIVATIONS for name in map(str, names)):
        known = ", ".join(ACTIVATIONS)
        raise AgentError(f"acts is {str(names)[:60]}: it names the activation behind each layer, one of {known}")
    if names[-1] != LAST[kind]:
        raise AgentError(f"acts ends with {names[-1]!r}: behind the last layer of kind {kind!r} stands {LAST[kind]!r}")
    layers: list[nn.Module] = []
    for index, name in enumerate(names):
        weight = stored.take(f"W{index}", 2)
        layers.append(linear(weight, stored.take(f"b{index}", 1, len(weight))))
        if f"ln_gamma{index}" in arrays or f"ln_beta{index}" in arrays:
            if index == len(names) - 1:
                raise AgentError(f"ln_gamma{index}: a layer norm behind the last layer is not known")
            gamma, beta = (stored.take(f"ln_{part}{index}", 1, len(weight)) for part in ("gamma", "beta"))
            layers.append(_layer_norm(gamma, beta))
        layers.append(ACTIVATIONS[name]())
    policy = _policy(kind, nn.Sequential(*layers[:-2]), layers[-2], stored, action_space)
    if unread := sorted(name for name in set(arrays) - stored.read if not name.startswith("norm_")):
        raise AgentError(f"the arrays hold {unread[0]}, which a policy of {len(names)} layers has not")
    return policy


def _policy(kind: str, latent: nn.Module, head: nn.Module, stored: _Arrays, action_space: spaces.Space) -> ActingPolicy:
    if kind == "cat":
        return ActingPolicy(latent, head, "categorical")
    if kind == "q":
        return ActingPolicy(latent, head, "q_values")
    low, high = bounds(action_space, f"kind {kind}")
    if kind == "gauss":
        spread = ConstantSpread(stored.take("log_std", None, len(low)))
        return ActingPolicy(latent, head, "gaussian", spread=spread, low=low, high=high)
    return ActingPolicy(latent, nn.Sequential(head, nn.Tanh()), "deterministic", low=low, high=high)


class _Arrays:
    """Arrays by name that remember which were read."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._arrays = arrays
        self.read: set[str] = {"log_std"}  # the paper's actors keep it whatever their kind

    def take(self, name: str, axes: int | None, size: int | None = None) -> torch.Tensor:
        """Return a finite float32 array of so many axes whose first has `size`; raise AgentError otherwise."""
        array = self._arrays.get(name)
        if array is None:
            raise AgentError(f"the arrays lack {name!r}")
        if array.dtype.kind != "f":
            raise AgentError(f"{name} holds {array.dtype}, not real numbers")
        if axes is None:
            array = array.reshape(-1)
        elif array.ndim != axes:
            raise AgentError(f"{name} has shape {array.shape}: give {axes} axes")
        if not array.size or size not in (None, len(array)):
            raise AgentError(f"{name} has shape {array.shape}: its first axis must be {size or 'at least 1'}")
        if not np.isfinite(array).all():
            raise AgentError(f"{name}{[int(i) for i in np.argwhere(~np.isfinite(array))[0]]} is not finite")
        self.read.add(name)
        return torch.from_numpy(array.astype(np.float32))


def _layer_norm(gamma: torch.Tensor, beta: torch.Tensor) -> nn.LayerNorm:
    layer = nn.LayerNorm(len(gamma), eps=LAYER_NORM_EPSILON)
    with torch.no_grad():
        layer.weight.copy_(gamma)
        layer.bias.copy_(beta)
    return layer.requires_grad_(False)
