"""Rebuild the acting network of a Stable-Baselines3 agent from the shapes of its weights."""

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
    COMBINED,
    DETERMINISTIC,
    FLATTEN,
    MASKABLE,
    ON_POLICY,
    Declared,
    check_algorithm,
    read_declared,
)
from quarl_lib.sb3.flat import Joined, Pieces, num_choices
from quarl_lib.sb3.policy import ActingPolicy, ConstantSpread, PredictedSpread, StateDependentSpread

__all__ = ["ALGORITHMS", "bounds", "linear", "mean_of_quantiles", "policy_from_archive"]
NATURE_STRIDES = {8: 4, 4: 2, 3: 1}  # kernel size -> stride of NatureCNN (Mnih et al., 2015), in this order


def policy_from_archive(
    archive: Archive, algorithm: str, action_space: spaces.Space, flat: spaces.Space | None = None
) -> ActingPolicy:
    """Rebuild what acts in a Stable-Baselines3 or sb3-contrib agent; `flat` is the space that comes as one vector.

    Raises:
        AgentError: the network is not one that the library builds by itself, or the archive is of another algorithm;
            the message says what is other.
    """
    declared = read_declared(archive.settings)
    check_algorithm(declared.algorithm, declared.policy_class, algorithm)
    weights = _Weights(archive.weights, flat)
    if (declared.extractor == COMBINED) != isinstance(flat, spaces.Dict):
        raise AgentError(
            f"the archive's features extractor, {declared.extractor}, does not take the environment's observations: "
            + ("they are a Dict" if isinstance(flat, spaces.Dict) else "they are no Dict")
        )
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
    low, high = bounds(action_space, algorithm)
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


def _on_policy(weights: _Weights, declared: Declared, action_space: spaces.Space) -> ActingPolicy:
    prefix = "pi_" if any(name.startswith("pi_features_extractor.") for name in weights) else ""
    shared = _mlp(weights, "mlp_extractor.shared_net", declared, optional=True)  # before version 1.8
    own = _mlp(weights, "mlp_extractor.policy_net", declared, optional=True)
    latent = nn.Sequential(*_features(weights, prefix, declared), *shared, *own)
    head = _layer(weights, "action_net")
    if num_choices(action_space):
        if "log_std" in weights:
            raise AgentError(f"a Gaussian policy (it has log_std) does not act where actions are {action_space}")
        return of_indices(latent, head, action_space, masked=declared.algorithm == MASKABLE)
    squash = declared.squash_output and declared.use_sde
    low, high = bounds(action_space, declared.algorithm, finite=squash)
    log_std = weights["log_std"]
    gsde = declared.use_sde
    spread = StateDependentSpread(log_std, len(low), declared.use_expln) if gsde else ConstantSpread(log_std)
    return ActingPolicy(latent, head, "gaussian", spread=spread, low=low, high=high, squash=squash)


def of_indices(latent: nn.Module, head: nn.Module, action_space: spaces.Space, masked: bool) -> ActingPolicy:
    """Return a policy whose actions are one index or several."""
    choices = num_choices(action_space)
    if isinstance(action_space, spaces.MultiBinary) and not masked:  # masks are of two logits a component
        return ActingPolicy(latent, head, "bernoulli")
    num_masked = sum(choices) if masked else 0
    if isinstance(action_space, spaces.Discrete):
        return ActingPolicy(latent, head, "categorical", num_masked=num_masked)
    return ActingPolicy(latent, head, "multi_categorical", choices=choices, num_masked=num_masked)


def _random_search(weights: _Weights, declared: Declared, action_space: spaces.Space) -> ActingPolicy:
    """ARS: one Sequential; continuous actions are squashed by a tanh at its end, or only clipped."""
    layers = [nn.Flatten(), *_mlp(weights, "action_net", declared)]
    latent, head = nn.Sequential(*layers[:-2]), layers[-2]
    if isinstance(action_space, spaces.Discrete):
        return ActingPolicy(latent, head, "q_values")
    low, high = bounds(action_space, "ARS", finite=declared.squash_output)
    if declared.squash_output:
        return ActingPolicy(latent, nn.Sequential(head, nn.Tanh()), "deterministic", low=low, high=high)
    return ActingPolicy(latent, head, "direct", low=low, high=high)


def mean_of_quantiles(layer: Any, num_actions: int) -> nn.Linear:
    """Fold QRDQN's mean over quantiles [quantiles, actions] into the layer that gives them; summed in double."""
    if layer.out_features % num_actions:
        raise AgentError(f"quantile_net has {layer.out_features} outputs, no multiple of {num_actions} actions")
    weight = layer.weight.double().reshape(-1, num_actions, layer.in_features).mean(0).float()
    return linear(weight, layer.bias.double().reshape(-1, num_actions).mean(0).float())


class _Weights(dict[str, Tensor]):
    """Weights by name that remember which were read."""

    # Of the value function and of targets: they train, and do not act.
    IDLE = ("value_net.", "mlp_extractor.value_net.", "vf_features_extractor.", "critic", "actor_target.",
            "q_net_target.", "quantile_net_target.")  # fmt: skip

    def __init__(self, weights: Mapping[str, Tensor], flat: spaces.Space | None = None) -> None:
        super().__init__(weights)
        self.flat = flat
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


def bounds(action_space: spaces.Space, algorithm: str, finite: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Return the flat bounds of a Box; raise AgentError where it is none, or they are not finite and must be."""
    _expect(action_space, spaces.Box, algorithm)
    low, high = action_space.low.reshape(-1), action_space.high.reshape(-1)  # type: ignore[attr-defined]
    if finite and not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise AgentError(f"{algorithm} scales its actions to the bounds, which are not finite: {action_space}")
    return low, high


def _features(weights: _Weights, prefix: str, declared: Declared) -> list[nn.Module]:
    """Return the layers before the MLP: flattening, NatureCNN, or for a Dict one of the two for each key."""
    start, flat = f"{prefix}features_extractor.", weights.flat
    if isinstance(flat, spaces.Dict):
        names = {key: f"{start}extractors.{key}." for key in flat.spaces}
        with_images = {key for key, name in names.items() if f"{name}cnn.0.weight" in weights}
        if not with_images:
            return [nn.Flatten()]
        layers = {
            key: nn.Sequential(*_nature_cnn(weights, name)) if key in with_images else nn.Flatten()
            for key, name in names.items()
        }
        return [Pieces(flat, declared.normalize_images), Joined(layers)]
    taken_apart = [Pieces(flat, declared.normalize_images)] if flat is not None and len(flat.shape or ()) > 1 else []
    if declared.extractor == FLATTEN:
        return [*taken_apart, nn.Flatten()]  # weights of an extractor beside it are found by `check_all_read`
    return [*taken_apart, *_nature_cnn(weights, start)]


def _nature_cnn(weights: _Weights, start: str) -> list[nn.Module]:
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
    return linear(weight, bias)


# Built without their random initial values, so that loading an agent draws nothing from torch's generator.
def linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a linear layer of weights [out, in], which does not learn."""
    layer = nn.utils.skip_init(nn.Linear, weight.shape[1], weight.shape[0], bias=bias is not None)
    return _filled(layer, weight, bias)


def _conv2d(weight: Tensor, bias: Tensor, stride: int) -> nn.Conv2d:
    size = tuple(weight.shape[2:])
    return _filled(nn.utils.skip_init(nn.Conv2d, weight.shape[1], weight.shape[0], size, stride=stride), weight, bias)


def _filled(layer: Any, weight: Tensor, bias: Tensor | None) -> Any:
    with torch.no_grad():
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)
    return layer.requires_grad_(False)
