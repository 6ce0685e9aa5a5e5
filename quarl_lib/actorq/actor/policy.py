"""What the actors run: the policy of a config as an engine's spec, and a learner's weights for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quarl_lib.actorq.config import Config
from quarl_lib.envs import control
from quarl_lib.envs.specs import DiscreteArray, EnvironmentSpec, make_environment_spec
from quarl_lib.inference.spec import Head, Layer, LayerWeights, PolicySpec, Weights

if TYPE_CHECKING:
    from torch import nn


def policy_spec(config: Config, spec: EnvironmentSpec) -> PolicySpec:
    """Return the policy's layers and head: tanh to [-1, 1] for D4PG, the best action's index for DQN."""
    parts = spec.observations.values() if isinstance(spec.observations, dict) else [spec.observations]
    num_inputs = sum(int(np.prod(part.shape, dtype=int)) for part in parts)
    layers = []
    for size in config.policy_hidden:
        layers.append(Layer(num_inputs, size, "relu"))
        num_inputs = size
    if isinstance(spec.actions, DiscreteArray):
        return PolicySpec((*layers, Layer(num_inputs, spec.actions.num_values)), Head("argmax"))
    size = int(np.prod(spec.actions.shape, dtype=int))
    return PolicySpec((*layers, Layer(num_inputs, size)), Head("tanh", (-1.0,) * size, (1.0,) * size))


def policy_weights(policy: nn.Module) -> Weights:
    """Return the linear layers' arrays, views of the module's own tensors where these lie on the CPU."""
    from torch import nn

    layers = [layer for layer in policy.modules() if isinstance(layer, nn.Linear)]
    arrays = [(layer.weight.detach().cpu().numpy(), layer.bias.detach().cpu().numpy()) for layer in layers]
    return Weights(tuple(LayerWeights(weight, bias) for weight, bias in arrays))


def task_policy(config: Config) -> PolicySpec:
    """Return the policy's spec on the config's own task."""
    return policy_spec(config, make_environment_spec(control.make(config.task, config.seed)))
