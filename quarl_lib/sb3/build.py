"""Rebuild the acting network of an agent from the shapes of its weights: Stable-Baselines3 or the paper's arrays."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from quarl_lib.sb3.archive import AgentError, Archive
from quarl_lib.sb3.policy import ActingPolicy, ConstantSpread, PredictedSpread, StateDependentSpread

ON_POLICY = ("A2C", "PPO")
DETERMINISTIC = ("DDPG", "TD3")
ALGORITHMS = (*ON_POLICY, "DQN", *DETERMINISTIC, "SAC")
ACTIVATIONS = (
    "Tanh",
    "ReLU",
    "ELU",
    "LeakyReLU",
    "GELU",
    "SiLU",
    "Sigmoid",
    "Softplus",
    "Mish",
    "CELU",
    "SELU",
    "Identity",
)
NATURE_STRIDES = {8: 4, 4: 2, 3: 1}  # kernel size -> stride of NatureCNN (Mnih et al., 2015), in this order
ARRAY_ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "id": nn.Identity}
LAYER_NORM_EPSILON = 1e-12  # TensorFlow 1's


def policy_from_archive(archive: Archive, algorithm: str, action_space: spaces.Space) -> ActingPolicy:
    """Rebuild what acts in a Stable-Baselines3 agent.

    Raises:
        AgentError: the network is not one that Stable-Baselines3 builds by itself; the message says what is other.
    """
    weights, options = archive.weights, _policy_options(archive.settings)
    activation = _activation(options, algorithm)
    if algorithm in ON_POLICY:
        return _on_policy(weights, options, activation, action_space, bool(archive.settings.get("use_sde")))
    if algorithm == "DQN":
        layers = [*_features(weights, "q_net."), *_mlp(weights, "q_net.q_net", activation)]
        return ActingPolicy(nn.Sequential(*layers[:-2]), layers[-2], "q_values")
    low, high = _bounds(action_space)
    features = _features(weights, "actor.")
    if algorithm in DETERMINISTIC:
        layers = [*features, *_mlp(weights, "actor.mu", activation)]
        return ActingPolicy(
            nn.Sequential(*layers[:-2]), nn.Sequential(layers[-2], nn.Tanh()), "deterministic", low=low, high=high
        )
    latent = nn.Sequential(*features, *_mlp(weights, "actor.latent_pi", activation))
    if "actor.log_std" in weights:  # gSDE
        clip = float(options.get("clip_mean", 2.0))
        mean = (
            nn.Sequential(_layer(weights, "actor.mu.0"), nn.Hardtanh(-clip, clip))
            if clip > 0
            else _layer(weights, "actor.mu")
        )
        spread: nn.Module = StateDependentSpread(weights["actor.log_std"], len(low), bool(options.get("use_expln")))
    else:
        mean, spread = _layer(weights, "actor.mu"), PredictedSpread(_layer(weights, "actor.log_std"))
    return ActingPolicy(latent, mean, "gaussian", spread=spread, low=low, high=high, squash=True)


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
            layers.append(_linear(torch.from_numpy(arrays[f"W{index}"]), torch.from_numpy(arrays[f"b{index}"])))
            if f"ln_gamma{index}" in arrays:
                layers.append(_layer_norm(arrays[f"ln_gamma{index}"], arrays[f"ln_beta{index}"]))
            layers.append(ARRAY_ACTIVATIONS[name]())
        kind = description["kind"]
        latent, head = nn.Sequential(*layers[:-2]), layers[-2]
        if kind == "cat":
            return ActingPolicy(latent, head, "categorical")
        if kind == "q":
            return ActingPolicy(latent, head, "q_values")
        low, high = _bounds(action_space)
        if kind == "gauss":
            spread = ConstantSpread(torch.from_numpy(arrays["log_std"]))
            return ActingPolicy(latent, head, "gaussian", spread=spread, low=low, high=high)
        if kind == "tanh":
            return ActingPolicy(latent, nn.Sequential(head, layers[-1]), "deterministic", low=low, high=high)
    except KeyError as error:
        raise AgentError(f"the arrays lack {error}, or it is unknown") from error
    raise AgentError(f"kind {kind!r} is none of cat, q, gauss, tanh")


def _on_policy(
    weights: Mapping[str, Tensor],
    options: Mapping[str, Any],
    activation: type[nn.Module],
    action_space: spaces.Space,
    use_sde: bool,
) -> ActingPolicy:
    prefix = "pi_" if any(name.startswith("pi_features_extractor.") for name in weights) else ""
    shared = _mlp(weights, "mlp_extractor.shared_net", activation, optional=True)
    own = _mlp(weights, "mlp_extractor.policy_net", activation, optional=True)
    latent = nn.Sequential(*_features(weights, prefix), *shared, *own)
    head = _layer(weights, "action_net")
    if isinstance(action_space, spaces.Discrete):
        return ActingPolicy(latent, head, "categorical")
    if any(name.startswith("sde_features_extractor.") for name in weights):
        raise AgentError("gSDE with a network of its own (sde_net_arch) is not supported")
    low, high = _bounds(action_space)
    log_std = weights["log_std"]
    spread = (
        StateDependentSpread(log_std, len(low), bool(options.get("use_expln"))) if use_sde else ConstantSpread(log_std)
    )
    squash = bool(options.get("squash_output")) and use_sde
    return ActingPolicy(latent, head, "gaussian", spread=spread, low=low, high=high, squash=squash)


def _policy_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return policy_kwargs; values that JSON cannot hold are their names as text."""
    options = settings.get("policy_kwargs") or {}
    extractor = str(options.get("features_extractor_class", "FlattenExtractor"))
    if not any(name in extractor for name in ("FlattenExtractor", "NatureCNN")):
        raise AgentError(f"features extractor {extractor} is not one that Stable-Baselines3 builds from JSON")
    return options


def _activation(options: Mapping[str, Any], algorithm: str) -> type[nn.Module]:
    stored = options.get("activation_fn")
    if stored is None:
        return nn.Tanh if algorithm in ON_POLICY else nn.ReLU
    match = re.search(r"(\w+)'?>?$", str(stored))
    name = match.group(1) if match else str(stored)
    if name not in ACTIVATIONS:
        raise AgentError(f"activation {name} is none of {', '.join(ACTIVATIONS)}")
    return getattr(nn, name)


def _bounds(action_space: spaces.Space) -> tuple[np.ndarray, np.ndarray]:
    if not isinstance(action_space, spaces.Box):
        raise AgentError(f"continuous actions expected, the environment's action space is {action_space}")
    return action_space.low.reshape(-1), action_space.high.reshape(-1)


def _features(weights: Mapping[str, Tensor], prefix: str) -> list[nn.Module]:
    """Return the layers before the MLP: flattening, or the convolutions and the linear layer of NatureCNN."""
    start = f"{prefix}features_extractor."
    names = [name for name in weights if name.startswith(start)]
    if not names:
        return [nn.Flatten()]
    indices = _indices(weights, f"{start}cnn")
    kernels = [weights[f"{start}cnn.{index}.weight"].shape[-1] for index in indices]
    if kernels != list(NATURE_STRIDES) or f"{start}linear.0.weight" not in weights:
        raise AgentError("the features extractor has weights but is not NatureCNN")
    layers: list[nn.Module] = []
    for index, kernel in zip(indices, kernels, strict=True):
        weight, bias = weights[f"{start}cnn.{index}.weight"], weights[f"{start}cnn.{index}.bias"]
        layers += [_conv2d(weight, bias, stride=NATURE_STRIDES[kernel]), nn.ReLU()]
    return [*layers, nn.Flatten(), _layer(weights, f"{start}linear.0"), nn.ReLU()]


def _indices(weights: Mapping[str, Tensor], prefix: str) -> list[int]:
    pattern = re.compile(rf"^{re.escape(prefix)}\.(\d+)\.weight$")
    return sorted(int(match.group(1)) for name in weights if (match := pattern.match(name)))


def _mlp(
    weights: Mapping[str, Tensor], prefix: str, activation: type[nn.Module], optional: bool = False
) -> list[nn.Module]:
    """Return Linear, activation, Linear, activation, ... of a stored Sequential."""
    indices = _indices(weights, prefix)
    if not indices and not optional:
        raise AgentError(f"no weights under {prefix}")
    if any(later - earlier != 2 for earlier, later in pairwise(indices)):
        raise AgentError(f"{prefix} has layers other than Linear and activation at {indices}")
    return [module for index in indices for module in (_layer(weights, f"{prefix}.{index}"), activation())]


def _layer(weights: Mapping[str, Tensor], name: str) -> nn.Linear:
    weight = weights.get(f"{name}.weight")
    if weight is None or weight.ndim != 2:
        raise AgentError(
            f"{name} is no linear layer: its weight is {'missing' if weight is None else tuple(weight.shape)}"
        )
    return _linear(weight, weights.get(f"{name}.bias"))


# Built without their random initial values, so that loading an agent draws nothing from torch's generator.
def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    layer = nn.utils.skip_init(nn.Linear, weight.shape[1], weight.shape[0], bias=bias is not None)
    return _filled(layer, weight, bias)


def _conv2d(weight: Tensor, bias: Tensor, stride: int) -> nn.Conv2d:
    size = tuple(weight.shape[2:])
    return _filled(nn.utils.skip_init(nn.Conv2d, weight.shape[1], weight.shape[0], size, stride=stride), weight, bias)


def _layer_norm(gamma: np.ndarray, beta: np.ndarray) -> nn.LayerNorm:
    layer = nn.LayerNorm(len(gamma), eps=LAYER_NORM_EPSILON)
    return _filled(layer, torch.from_numpy(gamma), torch.from_numpy(beta))


def _filled(layer: Any, weight: Tensor, bias: Tensor | None) -> Any:
    with torch.no_grad():
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)
    return layer.requires_grad_(False)
