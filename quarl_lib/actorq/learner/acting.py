"""The learner's policy as the actors' engine computes it: what acts, what is learned and what is deployed are one.

Weights are rounded once an update, inputs in every layer; gradients pass straight through to the fp32 weights.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

from quarl_lib.actorq.config import Config
from quarl_lib.quantization.observers import FakeQuantizer
from quarl_lib.quantization.qat import QATConfig, fake_quant_layers, insert_fake_quant, start_quantization


def precision_of(config: Config) -> str:
    """Return on whose precision's grid the learner computes, "" for none."""
    return config.precision if config.learner_quantization == "engine" else ""


class GridPolicy:
    """A twin of a policy whose weights are the policy's own on the engine's grid."""

    def __init__(self, policy: nn.Module, precision: str) -> None:
        self.module = copy.deepcopy(policy)
        insert_fake_quant(self.module, [""], QATConfig.for_engine(precision))
        start_quantization(self.module)
        self._layers = []
        for name, layer in fake_quant_layers(self.module):
            self._layers.append((policy.get_submodule(name), layer, layer.weight_quantizer))
            layer.weight_quantizer = FakeQuantizer()  # once an update is enough: several passes use the same weights

    @torch.no_grad()
    def refresh(self) -> nn.Module:
        """Round the policy's weights anew and return the twin."""
        for source, layer, quantizer in self._layers:
            layer.weight.copy_(quantizer(source.weight))
            layer.bias.copy_(source.bias)
        return self.module
