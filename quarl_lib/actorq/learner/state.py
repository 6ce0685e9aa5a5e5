"""The state that both algorithms train: online and target networks, optimizers, a step count."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from quarl_lib.actorq.config import Config
from quarl_lib.actorq.learner.acting import GridPolicy


@dataclass
class State:
    """Networks by name ("policy" is what actors run), their targets, one optimizer each."""

    online: dict[str, nn.Module]
    target: dict[str, nn.Module]
    optimizers: dict[str, torch.optim.Optimizer]
    acting: GridPolicy | None = None
    learner_steps: int = 0

    def acting_policy(self) -> nn.Module:
        """Return what gradients are taken of: the policy, or its twin on the actors' grid as the weights stand now."""
        return self.policy if self.acting is None else self.acting.refresh()

    @property
    def policy(self) -> nn.Module:
        """The online policy, whose weights are published."""
        return self.online["policy"]

    def save(self) -> dict[str, Any]:
        """Return everything as state dicts; their tensors are the live ones, so write them out before the next step."""
        parts: dict[str, Any] = {
            part: {name: module.state_dict() for name, module in getattr(self, part).items()}
            for part in ("online", "target", "optimizers")
        }
        return {**parts, "learner_steps": self.learner_steps}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take everything over from `save`."""
        for part in ("online", "target", "optimizers"):
            for name, module in getattr(self, part).items():
                module.load_state_dict(saved[part][name])
        self.learner_steps = saved["learner_steps"]


def make_state(
    networks: dict[str, nn.Module], learning_rates: dict[str, float], device: torch.device, on_grid_of: str = ""
) -> State:
    """Return a state with targets equal to the networks, and an Adam for each.

    Args:
        on_grid_of: a precision whose grid the policy computes on while it learns; "": none.
    """
    for network in networks.values():
        network.to(device)
    acting = GridPolicy(networks["policy"], on_grid_of) if on_grid_of else None
    targets = copy.deepcopy(networks)
    for network in targets.values():
        network.requires_grad_(False)
    optimizers: dict[str, torch.optim.Optimizer] = {
        name: torch.optim.Adam(network.parameters(), learning_rates[name], fused=True)
        for name, network in networks.items()
    }
    return State(networks, targets, optimizers, acting)


def device_of(config: Config) -> torch.device:
    """Return the learner's device: "auto" takes a GPU where there is one."""
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(config.device)


def apply_gradients(state: State, name: str, gradients: tuple[torch.Tensor, ...], max_norm: float) -> torch.Tensor:
    """Clip by the global norm, take an optimizer's step, and return the norm before clipping."""
    parameters = list(state.online[name].parameters())
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    norm = nn.utils.clip_grad_norm_(parameters, max_norm)
    state.optimizers[name].step()
    return norm


def count_step(state: State, target_update_period: int) -> None:
    """Count an update; copy the networks to their targets when it is time.

    A policy on the actors' grid has rounded weights in its target as well: its fp32 ones act nowhere.
    """
    state.learner_steps += 1
    if state.learner_steps % target_update_period == 0:
        with torch.no_grad():
            for name, network in {**state.online, "policy": state.acting_policy()}.items():
                for target, source in zip(state.target[name].parameters(), network.parameters(), strict=True):
                    target.copy_(source)
