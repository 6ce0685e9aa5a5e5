"""The learner's policy as the actors' engine computes it: what acts, what is learned and what is deployed are one.

Weights are rounded once an update, inputs in every layer; gradients pass straight through to the fp32 weights.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import ModuleType
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quarl_lib.actorq.config import Config
from quarl_lib.inference.extension import native
from quarl_lib.quantization.engine_grid import EngineInput
from quarl_lib.quantization.observers import FakeQuantizer
from quarl_lib.quantization.qat import QATConfig, fake_quant_layers, insert_fake_quant


def precision_of(config: Config) -> str:
    """Return on whose precision's grid the learner computes, "" for none."""
    return config.precision if config.learner_quantization == "engine" else ""


class GridPolicy:
    """A twin of a policy whose weights are the policy's own on the engine's grid.

    On the CPU the engine's kernels round: torch takes ten small operations for a layer, in which a small policy's
    update would spend half its time. The grid is the same without them.
    """

    def __init__(self, policy: nn.Module, precision: str) -> None:
        self.module = copy.deepcopy(policy)
        insert_fake_quant(self.module, [""], QATConfig.for_engine(precision))
        self._roundings: list[_WeightRounding | _NativeWeightRounding] = []
        for name, layer in list(fake_quant_layers(self.module)):
            source, quantizer = cast(nn.Linear, policy.get_submodule(name)), cast(EngineInput, layer.input_quantizer)
            extension = native() if source.weight.device.type == "cpu" else None
            round_input = quantizer if extension is None else _NativeInput(extension, cast(int, quantizer.limit))
            twin = _GridLinear(cast(nn.Parameter, layer.weight), source.bias, round_input)
            if extension is None:
                self._roundings.append(_WeightRounding(source.weight, twin.weight, layer.weight_quantizer))
            else:
                num_bits = layer.weight_quantizer.num_bits
                self._roundings.append(_NativeWeightRounding(extension, source.weight, twin.weight, num_bits))
            parent, _, leaf = name.rpartition(".")
            setattr(self.module.get_submodule(parent), leaf, twin)

    def refresh(self) -> nn.Module:
        """Round the policy's weights anew and return the twin."""
        for rounding in self._roundings:
            rounding()
        return self.module


class _GridLinear(nn.Module):
    """A linear layer whose weight is rounded already, once an update for several passes; its bias is the policy's."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter, round_input: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.bias, self._round_input = weight, bias, round_input

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self._round_input(x), self.weight, self.bias)


class _WeightRounding:
    def __init__(self, source: Tensor, target: Tensor, quantizer: FakeQuantizer) -> None:
        self._source, self._target, self._quantizer = source, target, quantizer

    @torch.no_grad()
    def __call__(self) -> None:
        self._target.copy_(self._quantizer(self._source))


class _NativeWeightRounding:
    """Rounds in the tensors' own memory, where optimizers and checkpoints change weights too."""

    def __init__(self, extension: ModuleType, source: Tensor, target: Tensor, num_bits: int) -> None:
        self._round = extension.round_weights
        self._arguments = (source.detach().numpy(), *source.shape, num_bits, target.detach().numpy())

    def __call__(self) -> None:
        self._round(*self._arguments)


class _NativeInput:
    def __init__(self, extension: ModuleType, limit: int) -> None:
        self._round, self._limit = extension.round_inputs, limit

    def __call__(self, x: Tensor) -> Tensor:
        result = x.clone()  # whose gradient is 1, whatever is written into it unseen by autograd
        self._round(result.detach().numpy(), *x.shape, self._limit)
        return result
