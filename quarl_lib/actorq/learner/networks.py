"""Policy, critic and Q networks in fp32 torch, as plain modules that an engine can take over layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from quarl_lib.actorq.actor.policy import policy_weights, task_policy
from quarl_lib.actorq.config import Config
from quarl_lib.inference.spec import PolicySpec, Weights

FINAL_LAYER_STD = 1e-3


def mlp(num_inputs: int, hidden: Sequence[int], num_outputs: int) -> nn.Sequential:
    """Return Linear and ReLU for every hidden size, then a Linear."""
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(num_inputs, size), nn.ReLU()]
        num_inputs = size
    return nn.Sequential(*layers, nn.Linear(num_inputs, num_outputs))


def make_policy(observation_size: int, action_size: int, hidden: Sequence[int]) -> nn.Sequential:
    """Return a deterministic policy: ReLU layers, and a tanh that bounds actions to [-1, 1].

    The last layer starts near zero, where tanh passes gradients on.
    """
    policy = mlp(observation_size, hidden, action_size)
    last: Any = policy[-1]
    nn.init.normal_(last.weight, std=FINAL_LAYER_STD)
    nn.init.zeros_(last.bias)
    return policy.append(nn.Tanh())


def initial_policy(config: Config, seed: int) -> tuple[PolicySpec, Weights]:
    """Return spec and weights of a policy that nobody trained: PyTorch's default initialisation."""
    spec = task_policy(config)
    torch.manual_seed(seed)
    return spec, policy_weights(mlp(spec.layers[0].in_features, config.policy_hidden, spec.action_dim))


class DistributionalCritic(nn.Module):
    """Logits over atoms for an observation and an action: [B, obs], [B, actions] -> [B, num_atoms].

    With `layer_norm` as in Acme's D4PG: LayerNorm and tanh behind the first layer, ELU behind the others; else ReLU.
    """

    support: torch.Tensor

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        hidden: Sequence[int],
        num_atoms: int,
        vmin: float,
        vmax: float,
        layer_norm: bool = True,
    ) -> None:
        super().__init__()
        first, *others = hidden
        layers: list[nn.Module] = [nn.Linear(observation_size + action_size, first)]
        layers += [nn.LayerNorm(first), nn.Tanh()] if layer_norm else [nn.ReLU()]
        for size in others:
            layers += [nn.Linear(first, size), nn.ELU() if layer_norm else nn.ReLU()]
            first = size
        self.network = nn.Sequential(*layers, nn.Linear(first, num_atoms))
        self.register_buffer("support", torch.linspace(vmin, vmax, num_atoms))

    def forward(self, observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """Return logits [B, num_atoms]."""
        return self.network(torch.cat([observation, action], -1))
