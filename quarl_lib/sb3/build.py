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
from quarl_lib.sb3.declared import (
    ALGORITHMS,
    DETERMINISTIC,
    FLATTEN,
    ON_POLICY,
    Declared,
    check_algorithm,
    read_declared,
)
from quarl_lib.sb3.policy import ActingPolicy, ConstantSpread, PredictedSpread, StateDependentSpread

__all__ = ["ALGORITHMS", "policy_from_archive", "policy_from_arrays"]
NATURE_STRIDES = {8: 4, 4: 2, 3: 1}  # kernel size -> stride of NatureCNN (Mnih et al., 2015), in this order
ARRAY_ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "id": nn.Identity}
LAYER_NORM_EPSILON = 1e-12  # TensorFlow 1's


def policy_from_archive(archive: Archive, algorithm: str, action_space: spaces.Space) -> ActingPolicy:
    """Rebuild what acts in a Stable-Baselines3 or sb3-contrib agent.

    Raises:
        AgentError: the network is not one that the library builds by itself, or the archive is of another algorithm;
            the message says what is other.
    """
    declared = read_declared(archive.settings)
    check_algorithm(declared.algorithm, declared.policy_class, algorithm)
    weights = _Weights(archive.weights)
    policy = _build(weights, declared, action_space)
    weights.check_all_read(declared)
    return policy


def _build(weights: _Weights, declared: Declared, action_space: spaces.Space) -> ActingPolicy:
    algorithm = declared.algorithm
    if algorithm in ON_POLICY:
        return _on_policy(weights, declared, action_space)
    if algorithm == "ARS":
        return _random_search(weights, declared, action_space)
    if algorithm in ("DQN", "QRDQN"):
        _expect(action_space, spaces.Discrete, algorithm)
        network = "q_net" if algorithm == "DQN" else "quantile_net"
        layers = [*_features(weights, f"{network}.", declared), *_mlp(weights, f"{network}.{network}", declared)]
        head = layers[-2]
        if algorithm == "QRDQN":
            head = mean_of_quantiles(head, int(action_space.n))  # type: ignore[attr-defined, arg-type]
        return ActingPolicy(nn.Sequential(*layers[:-2]), head, "q_values")
    low, high = _bounds(action_space, algorithm)
    features = _features(weights, "actor.", declared)
    if algorithm in DETERMINISTIC:
        layers = [*features, *_mlp(weights, "actor.mu", declared)]
        return ActingPolicy(
            nn.Sequential(*layers[:-2]), nn.Sequential(layers[-2], nn.Tanh()), "deterministic", low=low, high=high
        )
    latent = nn.Sequential(*features, *_mlp(weights, "actor.latent_pi", declared, optional=True))
    if "actor.log_std" in weights:  # gSDE
        clip = declared.clip_mean
        mean = (
            nn.Sequential(_layer(weights, "actor.mu.0"), nn.Hardtanh(-clip, clip))
            if clip > 0
            else _layer(weights, "actor.mu")
        )
        spread: nn.Module = StateDependentSpread(weights["actor.log_std"], len(low), declared.use_expln)
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
        low, high = _bounds(action_space, f"kind {kind}")
        if kind == "gauss":
            spread = ConstantSpread(torch.from_numpy(arrays["log_std"]))
            return ActingPolicy(latent, head, "gaussian", spread=spread, low=low, high=high)
        if kind == "tanh":
            return ActingPolicy(latent, nn.Sequential(head, layers[-1]), "deterministic", low=low, high=high)
    except KeyError as error:
        raise AgentError(f"the arrays lack {error}, or it is unknown") from error
    raise AgentError(f"kind {kind!r} is none of cat, q, gauss, tanh")


def _on_policy(weights: _Weights, declared: Declared, action_space: spaces.Space) -> ActingPolicy:
    prefix = "pi_" if any(name.startswith("pi_features_extractor.") for name in weights) else ""
    shared = _mlp(weights, "mlp_extractor.shared_net", declared, optional=True)  # before version 1.8
    own = _mlp(weights, "mlp_extractor.policy_net", declared, optional=True)
    latent = nn.Sequential(*_features(weights, prefix, declared), *shared, *own)
    head = _layer(weights, "action_net")
    if isinstance(action_space, spaces.Discrete):
        if "log_std" in weights:
            raise AgentError(f"a Gaussian policy (it has log_std) does not act where actions are {action_space}")
        return ActingPolicy(latent, head, "categorical")
    squash = declared.squash_output and declared.use_sde
    low, high = _bounds(action_space, declared.algorithm, finite=squash)
    log_std = weights["log_std"]
    gsde = declared.use_sde
    spread = StateDependentSpread(log_std, len(low), declared.use_expln) if gsde else ConstantSpread(log_std)
    return ActingPolicy(latent, head, "gaussian", spread=spread, low=low, high=high, squash=squash)


def _random_search(weights: _Weights, declared: Declared, action_space: spaces.Space) -> ActingPolicy:
    """ARS: one Sequential; continuous actions are squashed by a tanh at its end, or only clipped."""
    layers = [nn.Flatten(), *_mlp(weights, "action_net", declared)]
    latent, head = nn.Sequential(*layers[:-2]), layers[-2]
    if isinstance(action_space, spaces.Discrete):
        return ActingPolicy(latent, head, "q_values")
    low, high = _bounds(action_space, "ARS", finite=declared.squash_output)
    if declared.squash_output:
        return ActingPolicy(latent, nn.Sequential(head, nn.Tanh()), "deterministic", low=low, high=high)
    return ActingPolicy(latent, head, "direct", low=low, high=high)


def mean_of_quantiles(layer: Any, num_actions: int) -> nn.Linear:
    """Fold the mean over quantiles [quantiles, actions] into the layer that gives them; summed in double."""
    if layer.out_features % num_actions:
        raise AgentError(f"quantile_net has {layer.out_features} outputs, no multiple of {num_actions} actions")
    weight = layer.weight.double().reshape(-1, num_actions, layer.in_features).mean(0).float()
    return _linear(weight, layer.bias.double().reshape(-1, num_actions).mean(0).float())


class _Weights(dict[str, Tensor]):
    """Weights by name that remember which were read."""

    # Of the value function and of targets: they train, and do not act.
    IDLE = ("value_net.", "mlp_extractor.value_net.", "vf_features_extractor.", "critic", "actor_target.",
            "q_net_target.", "quantile_net_target.")  # fmt: skip

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__(weights)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Tensor:
        """Return a weight that acts.

        Raises:
            AgentError: it is missing, or not finite; names it.
        """
        value = super().get(name)
        if value is None:
            raise AgentError(f"weights hold no {name}")
        if not torch.isfinite(value).all():
            index = ", ".join(map(str, (~torch.isfinite(value)).nonzero()[0].tolist()))
            raise AgentError(f"{name}[{index}] is not finite: such a policy cannot act; train it anew")
        self.read.add(name)
        return value

    def check_all_read(self, declared: Declared) -> None:
        """Raise AgentError where the acting part holds weights that the rebuilt network does not use."""
        idle: tuple[str, ...] = self.IDLE
        if any(name.startswith("pi_features_extractor.") for name in self):
            idle = (*idle, "features_extractor.")
        left = [name for name in self if name not in self.read and not name.startswith(idle)]
        if left:
            raise AgentError(f"weights hold {left[0]}, which a {declared.policy_class} of these options has not")


def _expect(action_space: spaces.Space, kind: type[spaces.Space], algorithm: str) -> None:
    if not isinstance(action_space, kind):
        raise AgentError(f"{algorithm} takes {kind.__name__} actions, the environment's are {action_space}")


def _bounds(action_space: spaces.Space, algorithm: str, finite: bool = True) -> tuple[np.ndarray, np.ndarray]:
    _expect(action_space, spaces.Box, algorithm)
    low, high = action_space.low.reshape(-1), action_space.high.reshape(-1)  # type: ignore[attr-defined]
    if finite and not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise AgentError(f"{algorithm} scales its actions to the bounds, which are not finite: {action_space}")
    return low, high


def _features(weights: _Weights, prefix: str, declared: Declared) -> list[nn.Module]:
    """Return the layers before the MLP: flattening, or the convolutions and the linear layer of NatureCNN."""
    start = f"{prefix}features_extractor."
    if declared.extractor == FLATTEN:
        return [nn.Flatten()]  # weights of an extractor beside it are found by `check_all_read`
    indices = _indices(weights, f"{start}cnn")
    kernels = [weights[f"{start}cnn.{index}.weight"].shape[-1:].numel() for index in indices]
    if kernels != list(NATURE_STRIDES):
        raise AgentError(f"{start}cnn is not NatureCNN's: its kernels are {kernels}, not {list(NATURE_STRIDES)}")
    layers: list[nn.Module] = []
    for index, kernel in zip(indices, kernels, strict=True):
        weight, bias = weights[f"{start}cnn.{index}.weight"], weights[f"{start}cnn.{index}.bias"]
        layers += [_conv2d(weight, bias, stride=NATURE_STRIDES[kernel]), nn.ReLU()]
    return [*layers, nn.Flatten(), _layer(weights, f"{start}linear.0"), nn.ReLU()]


def _indices(weights: Mapping[str, Tensor], prefix: str) -> list[int]:
    pattern = re.compile(rf"^{re.escape(prefix)}\.(\d+)\.weight$")
    return sorted(int(match.group(1)) for name in weights if (match := pattern.match(name)))


def _mlp(weights: _Weights, prefix: str, declared: Declared, optional: bool = False) -> list[nn.Module]:
    """Return Linear, activation, Linear, activation, ... of a stored Sequential."""
    indices = _indices(weights, prefix)
    if not indices and not optional:
        raise AgentError(f"no weights under {prefix}")
    if any(later - earlier != 2 for earlier, later in pairwise(indices)):
        raise AgentError(f"{prefix} has layers other than Linear and activation at {indices}")
    return [module for index in indices for module in (_layer(weights, f"{prefix}.{index}"), declared.activation())]


def _layer(weights: _Weights, name: str) -> nn.Linear:
    weight = weights[f"{name}.weight"]
    bias = None
    if f"{name}.bias" in weights:
        bias = weights[f"{name}.bias"]
    if weight.ndim != 2 or not weight.numel() or (bias is not None and bias.shape != weight.shape[:1]):
        shapes = f"{tuple(weight.shape)}" + ("" if bias is None else f" with a bias of {tuple(bias.shape)}")
        raise AgentError(f"{name} is no linear layer: its weight is {shapes}")
    return _linear(weight, bias)


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
