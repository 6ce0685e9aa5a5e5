"""Quantization-aware training: Linear and Conv2d layers that compute on quantized weights and inputs, in fp32.

A fake-quantized layer keeps the parameters of the layer that it replaces (the very same objects, so an optimizer made
before stays right) and changes nothing until quantization starts.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quarl_lib.quantization.affine import MAX_BITS, MIN_BITS
from quarl_lib.quantization.engine_grid import EngineInput, EngineWeight, largest_code
from quarl_lib.quantization.lsq import LearnedEngineInput, LearnedEngineStep, LearnedInputStep, LearnedWeightStep
from quarl_lib.quantization.observers import (
    FULL_PRECISION,
    ChannelRange,
    FakeQuantizer,
    RunningRange,
    TensorRange,
)

ModuleT = TypeVar("ModuleT", bound=nn.Module)
METHODS = ("minmax", "lsq")
GRIDS = ("affine", "engine")
ENGINE_BITS = {
    "int8": (8, 8),
    "int8a16": (8, 16),
    "int4": (4, 8),
    "int3": (3, 8),
    "int2": (2, 8),
}  # weights, activations


@dataclass(frozen=True)
class QATConfig:
    """Which tensors get how many bits (32: not quantized), and on which grid.

    Grid "affine" is the paper's: zero points, per tensor (convolutions per channel), inputs on their running range.
    Grid "engine" is what the integer engines compute: symmetric per output channel, inputs on each sample's own range.
    Method "minmax" takes ranges from the values; "lsq" learns the steps: on the engines' grid those of the weights, and
    with `static_inputs` those of the inputs too, but of the first and the last layer's.

    Raises:
        ValueError: a bit width is not 32 or an integer from 2 to 16, a name is unknown, or inputs are to be static
            where no engine learns their steps.
    """

    weight_bits: int = 8
    activation_bits: int = 8
    observation_bits: int = 8
    edge_bits: int = 0  # weights of the first and the last layer; 0: like the others
    method: str = "minmax"
    grid: str = "affine"
    static_inputs: bool = False

    def __post_init__(self) -> None:
        for name in ("weight_bits", "activation_bits", "observation_bits", "edge_bits"):
            value = getattr(self, name)
            allowed = {*range(MIN_BITS, MAX_BITS + 1), FULL_PRECISION, *([0] if name == "edge_bits" else [])}
            if isinstance(value, bool) or value not in allowed:
                raise ValueError(f"{name}={value!r}: give {MIN_BITS} to {MAX_BITS}, or {FULL_PRECISION} for fp32")
        for name, choices in (("method", METHODS), ("grid", GRIDS)):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}={getattr(self, name)!r}: choose one of {', '.join(choices)}")
        if self.static_inputs and (self.method, self.grid) != ("lsq", "engine"):
            raise ValueError(
                f"static_inputs=True with method={self.method!r}, grid={self.grid!r}: steps of inputs that engines "
                "compute on are learned with method='lsq' and grid='engine'"
            )

    @classmethod
    def for_engine(cls, precision: str) -> QATConfig:
        """Return what an integer engine computes: "int8", "int8a16", "int4", "int3" or "int2".

        Raises:
            ValueError: no engine's arithmetic is simulated for that precision.
        """
        if precision not in ENGINE_BITS:
            raise ValueError(f"precision={precision!r}: choose one of {', '.join(ENGINE_BITS)}")
        weight_bits, activation_bits = ENGINE_BITS[precision]
        return cls(weight_bits, activation_bits, observation_bits=16, edge_bits=8, grid="engine")

    def weight_quantizer(self, weight: Tensor, at_edge: bool) -> FakeQuantizer:
        """Return the quantizer of a Linear [out, in] or Conv2d [out, in, height, width] weight."""
        num_bits = (self.edge_bits or self.weight_bits) if at_edge else self.weight_bits
        if num_bits == FULL_PRECISION:
            return FakeQuantizer()
        if self.grid == "engine":
            learned = self.method == "lsq" and not at_edge
            return LearnedEngineStep(num_bits, len(weight), weight.ndim) if learned else EngineWeight(num_bits)
        per_channel = weight.ndim > 2
        if self.method == "lsq":
            return LearnedWeightStep(num_bits, len(weight) if per_channel else 0, weight.ndim)
        return ChannelRange(num_bits) if per_channel else TensorRange(num_bits)

    def input_quantizer(self, weight: Tensor, at_start: bool, at_end: bool, unsigned: bool) -> FakeQuantizer:
        """Return the quantizer of the input of the layer with `weight`; `unsigned` if it comes from a ReLU.

        Engines compute the last layer as they compute the first.
        """
        as_observation = at_start or (at_end and self.grid == "engine")
        num_bits = self.observation_bits if as_observation else self.activation_bits
        if num_bits == FULL_PRECISION:
            return FakeQuantizer()
        if self.grid == "engine":
            limit = largest_code(num_bits, weight, unsigned and self.weight_bits > 4)
            return (
                LearnedEngineInput(num_bits, limit)
                if self.static_inputs and not as_observation
                else (EngineInput(num_bits, limit))
            )
        return LearnedInputStep(num_bits) if self.method == "lsq" else RunningRange(num_bits)


class FakeQuantLayer(nn.Module):
    """What fake-quantized Linear and Conv2d share: two quantizers and the switch that starts them."""

    weight: Tensor
    bias: Any  # a Parameter or None, which torch's own annotations of Linear and Conv2d tell differently
    running_enabled: Tensor

    def _adopt(
        self, layer: nn.Linear | nn.Conv2d, weight_quantizer: FakeQuantizer, input_quantizer: FakeQuantizer
    ) -> None:
        self.weight, self.bias = layer.weight, layer.bias
        self.weight_quantizer, self.input_quantizer = weight_quantizer, input_quantizer
        # A float, because target networks get their running_* buffers by multiplying and adding.
        self.register_buffer("running_enabled", torch.zeros(()))

    def quantized_weight(self) -> Tensor:
        """Return the weight that the layer computes with now."""
        return self.weight_quantizer(self.weight) if self.running_enabled.item() else self.weight

    def _operands(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.training and torch.is_grad_enabled():
            self.input_quantizer.observe(x)
        if not self.running_enabled.item():
            return x, self.weight
        return self.input_quantizer(x), self.weight_quantizer(self.weight)


class FakeQuantLinear(FakeQuantLayer, nn.Linear):
    """A Linear layer on quantized operands; its bias stays fp32."""

    def __init__(self, layer: nn.Linear, weight_quantizer: FakeQuantizer, input_quantizer: FakeQuantizer) -> None:
        # On the meta device nothing is drawn from the random generator: a run keeps its fp32 twin's numbers.
        nn.Linear.__init__(self, layer.in_features, layer.out_features, layer.bias is not None, device="meta")
        self._adopt(layer, weight_quantizer, input_quantizer)

    def forward(self, x: Tensor) -> Tensor:
        """Return [n, out] for [n, in]."""
        return F.linear(*self._operands(x), self.bias)


class FakeQuantConv2d(FakeQuantLayer, nn.Conv2d):
    """A Conv2d layer on quantized operands, the weight always per output channel; its bias stays fp32."""

    def __init__(self, layer: nn.Conv2d, weight_quantizer: FakeQuantizer, input_quantizer: FakeQuantizer) -> None:
        shape = {name: getattr(layer, name) for name in ("kernel_size", "stride", "padding", "dilation", "groups")}
        nn.Conv2d.__init__(
            self, layer.in_channels, layer.out_channels, **shape, bias=layer.bias is not None,
            padding_mode=layer.padding_mode, device="meta",
        )  # fmt: skip
        self._adopt(layer, weight_quantizer, input_quantizer)

    def forward(self, x: Tensor) -> Tensor:
        """Return [n, out, height, width] for [n, in, height, width]."""
        return self._conv_forward(*self._operands(x), self.bias)


def insert_fake_quant(root: nn.Module, where: Sequence[str], config: QATConfig) -> list[str]:
    """Replace every Linear and Conv2d under the submodules `where` (in data-flow order) and return their names.

    The first layer's input is the observation. Parameters stay the same objects, no random number is drawn.

    Raises:
        ValueError: there is no Linear or Conv2d in `where`.
    """
    found: list[tuple[str, nn.Linear | nn.Conv2d, bool]] = []
    behind_relu = False
    for prefix in where:
        for name, part in root.get_submodule(prefix).named_modules(prefix=prefix):
            if type(part) in (nn.Linear, nn.Conv2d):
                found.append((name, part, behind_relu))  # type: ignore[arg-type]
                behind_relu = False
            elif not isinstance(part, nn.Flatten) and not list(part.children()):
                behind_relu = isinstance(part, nn.ReLU)
    if not found:
        raise ValueError(f"where={list(where)}: {type(root).__name__} has no Linear or Conv2d layer there")
    for position, (name, layer, unsigned) in enumerate(found):
        at_start, at_end = position == 0, position == len(found) - 1
        weight_quantizer = config.weight_quantizer(layer.weight, at_start or at_end)
        input_quantizer = config.input_quantizer(layer.weight, at_start, at_end, unsigned)
        replacement = FakeQuantConv2d if isinstance(layer, nn.Conv2d) else FakeQuantLinear
        parent, _, leaf = name.rpartition(".")
        setattr(root.get_submodule(parent), leaf, replacement(layer, weight_quantizer, input_quantizer))  # type: ignore[arg-type]
    return [name for name, _, _ in found]


def fake_quant_layers(module: nn.Module) -> Iterator[tuple[str, FakeQuantLayer]]:
    """Yield name and layer of every fake-quantized layer, those of target networks included."""
    return ((name, layer) for name, layer in module.named_modules() if isinstance(layer, FakeQuantLayer))


def start_quantization(module: nn.Module) -> None:
    """Let every fake-quantized layer compute on quantized operands from now on."""
    for _, layer in fake_quant_layers(module):
        layer.running_enabled.fill_(1.0)


def quantize_trained(policy: ModuleT, where: Sequence[str], config: QATConfig, observations: Tensor) -> ModuleT:
    """Return a copy of a trained fp32 policy on QAT's own grid, without training: PTQ with nothing else changed.

    The range of every layer's input comes from one pass over `observations` [n, ...].
    """
    quantized = copy.deepcopy(policy)
    insert_fake_quant(quantized, where, config)
    quantized.train()
    with torch.enable_grad():
        quantized(observations)
    start_quantization(quantized)
    return quantized.eval()


@torch.no_grad()
def bake_weights(module: nn.Module) -> dict[str, Tensor]:
    """Return the fp32 twin's state: every weight on its grid, quantizers left out; `module` itself is unchanged."""
    layers = dict(fake_quant_layers(module))
    quantizers = tuple(f"{name}.{part}" for name in layers for part in ("weight_q", "input_q", "running_enabled"))
    state = {name: value.clone() for name, value in module.state_dict().items() if not name.startswith(quantizers)}
    for name, layer in layers.items():
        state[f"{name}.weight"] = layer.quantized_weight().clone()
    return state
