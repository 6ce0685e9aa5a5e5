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
LAYER_NORM_EPSILON = 1e-12  # TensorFlow 1's


def policy_from_arrays(
    arrays: Mapping[str, np.ndarray], description: Mapping[str, Any], action_space: spaces.Space
) -> ActingPolicy:
    """Rebuild an actor stored as plain arrays `W{i}` [out, in], `b{i}`, `ln_*`, `log_std`.

    Raises:
        AgentError: an array or a field is missing or unknown.
    """
    try:
        layers: list[nn.Module] = []
        for index, name in enumerate(description["acts"]):
            layers.append(linear(torch.from_numpy(arrays[f"W{index}"]), torch.from_numpy(arrays[f"b{index}"])))
            if f"ln_gamma{index}" in arrays:
                layers.append(_layer_norm(arrays[f"ln_gamma{index}"], arrays[f"ln_beta{index}"]))
            layers.append(ACTIVATIONS[name]())
        kind = description["kind"]
        latent, head = nn.Sequential(*layers[:-2]), layers[-2]
        if kind == "cat":
            return ActingPolicy(latent, head, "categorical")
        if kind == "q":
            return ActingPolicy(latent, head, "q_values")
        low, high = bounds(action_space, f"kind {kind}")
        if kind == "gauss":
            spread = ConstantSpread(torch.from_numpy(arrays["log_std"]))
            return ActingPolicy(latent, head, "gaussian", spread=spread, low=low, high=high)
        if kind == "tanh":
            return ActingPolicy(latent, nn.Sequential(head, layers[-1]), "deterministic", low=low, high=high)
    except KeyError as error:
        raise AgentError(f"the arrays lack {error}, or it is unknown") from error
    raise AgentError(f"kind {kind!r} is none of cat, q, gauss, tanh")


def _layer_norm(gamma: np.ndarray, beta: np.ndarray) -> nn.LayerNorm:
    layer = nn.LayerNorm(len(gamma), eps=LAYER_NORM_EPSILON)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(gamma))
        layer.bias.copy_(torch.from_numpy(beta))
    return layer.requires_grad_(False)
