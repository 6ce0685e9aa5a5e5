"""Post-training quantization, simulated: quantize and dequantize in fp32 around every layer of a copied policy.

What the paper does (section 3): weights and activations at one precision, convolutions per-channel, everything else
per-tensor, biases in fp32. The last layer's output stays as its fp32 accumulator, as a native engine leaves it; at fp16
it is rounded like every other layer's.
"""

from __future__ import annotations

import copy
from typing import TypeVar

from torch import Tensor, nn

from quarl_lib.quantization.affine import affine_params, cast_fp16, fake_quantize, range_params
from quarl_lib.quantization.calibration import LayerInput, observe_inputs
from quarl_lib.quantization.quantizers import Quantizer, precision_bits, quantizer_named

LAYERS = (nn.Linear, nn.Conv2d)
ModuleT = TypeVar("ModuleT", bound=nn.Module)
OBSERVATIONS = ("none", "per_feature", "per_tensor")


def quantize_policy(
    policy: ModuleT,
    precision: str,
    quantizer: str | None = "paper",
    per_channel: bool = False,
    observation: str = "none",
    calibration: Tensor | None = None,
) -> ModuleT:
    """Return a copy of `policy` that computes as if its layers ran at `precision`; the original is not touched.

    Linear and Conv2d layers are quantized wherever they stand. `calibration` holds observations [n, ...] of a rollout
    that set the range of every layer's input; without it, or at fp32, activations stay as they are. `observation` says
    how the first layer's input is treated: left alone, one range a feature (axis 1), or one range for all.
    `per_channel` quantizes the weights of linear layers per output channel too. fp32 and fp16 need no `quantizer`.

    Raises:
        ValueError: an option is unknown, or weights or activations are NaN, infinite or beyond fp16; names the layer.
    """
    num_bits = precision_bits(precision)
    chosen = None if num_bits is None else quantizer_named(quantizer)
    if observation not in OBSERVATIONS:
        raise ValueError(f"observation={observation!r}: choose one of {', '.join(OBSERVATIONS)}")
    quantized = copy.deepcopy(policy).eval().requires_grad_(False)
    if precision == "fp32":
        return quantized
    layers = {name: module for name, module in quantized.named_modules() if isinstance(module, LAYERS)}
    inputs = {} if calibration is None else observe_inputs(quantized, layers, calibration)
    for name, layer in layers.items():
        if num_bits is None or chosen is None:
            weight = cast_fp16(layer.weight, f"{name}.weight")
        else:
            by_channel = per_channel or isinstance(layer, nn.Conv2d)
            weight = chosen.weight(layer.weight, num_bits, by_channel, f"{name}.weight")
        layer.weight.copy_(weight)
    for name, seen in inputs.items():
        kind = observation if seen.is_observation else "per_tensor"
        if kind != "none":
            hook = (
                _RoundInput(name) if num_bits is None or chosen is None else _input_hook(seen, num_bits, chosen, kind)
            )
            layers[name].register_forward_pre_hook(hook)
        if num_bits is None:
            layers[name].register_forward_hook(_RoundOutput(name))
    return quantized


def _input_hook(seen: LayerInput, num_bits: int, quantizer: Quantizer, kind: str) -> _QuantizeInput:
    """Return the hook that quantizes a layer's input, with one range for all or one a feature."""
    if kind == "per_feature":
        # The two ends of a feature's range give the same parameters as all of its values.
        scale, zero_point = affine_params(seen.feature_range(), num_bits, quantizer.mode, channel_axis=1)
        shape = [1, -1] + [1] * (seen.last.ndim - 2)
        return _QuantizeInput(scale.reshape(shape), zero_point.reshape(shape), num_bits)  # type: ignore[union-attr]
    if quantizer.clip == "none":
        return _QuantizeInput(*range_params(seen.low, seen.high, num_bits, quantizer.mode), num_bits)
    return _QuantizeInput(*affine_params(seen.sample(), num_bits, quantizer.mode, clip=quantizer.clip), num_bits)


class _QuantizeInput:
    """A forward pre-hook that quantizes and dequantizes a layer's input with fixed parameters."""

    def __init__(self, scale: float | Tensor, zero_point: int | Tensor, num_bits: int) -> None:
        self.scale, self.zero_point, self.num_bits = scale, zero_point, num_bits

    def __call__(self, module: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (fake_quantize(arguments[0], self.scale, self.zero_point, self.num_bits), *arguments[1:])


class _RoundInput:
    """A forward pre-hook that rounds a layer's input to fp16."""

    def __init__(self, layer: str) -> None:
        self.name = f"input of {layer}"

    def __call__(self, module: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (cast_fp16(arguments[0], self.name), *arguments[1:])


class _RoundOutput:
    """A forward hook that rounds a layer's output to fp16."""

    def __init__(self, layer: str) -> None:
        self.name = f"output of {layer}"

    def __call__(self, module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return cast_fp16(output, self.name)
