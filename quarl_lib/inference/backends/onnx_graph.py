"""Write a policy as an ONNX graph, quantized where onnxruntime has fast kernels; no exporter, no tracing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from onnx import ModelProto, TensorProto, helper, numpy_helper

from quarl_lib.inference.heads import middle_and_half_width
from quarl_lib.inference.spec import Conv, Layer, LayerWeights, PolicySpec, Weights

OPSETS = (helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1))
SUPPORTED = ("fp32", "int8", "int4g128")
GROUP = 128  # weights per scale at int4g128
INPUT, OUTPUT = "observation", "output"
Range = tuple[float, float]


def build(
    spec: PolicySpec,
    weights: Weights,
    precision: str,
    *,
    code_max: int = 63,
    ranges: Sequence[Range] | None = None,
    taps: bool = False,
    doubles: bool = False,
) -> ModelProto:
    """Return the model of a policy, its head included where that is tanh or clip: [n, ...] -> [n, action_dim].

    precision: fp32; int8: linear layers quantize their input per call, weights per output channel to +-`code_max`
    (63 where 8-bit products are summed in int16 and would saturate, else 127); int4g128: hidden layers in groups.
    ranges: the (low, high) of every layer's input, which makes int8 static (quantize-dequantize nodes), and is how
    convolutions get quantized. taps: add every layer's input to the outputs, for calibration. doubles: take
    observations in double where they are normalised.

    Raises:
        ValueError: another precision.
    """
    if precision not in SUPPORTED:
        raise ValueError(f"precision is {precision!r}: choose one of {', '.join(SUPPORTED)}")
    graph = _Graph(precision, code_max, ranges)
    name = INPUT
    if spec.normalize_observation:
        name = graph.normalize(name, weights, spec.observation_clip)
    if spec.conv and ranges is None:
        floats = graph.node("Cast", [name], to=TensorProto.FLOAT)
        name = graph.node("Mul", [floats, graph.constant("one_255th", np.float32(1 / 255))])
    for index, (conv, arrays) in enumerate(zip(spec.conv, weights.conv, strict=True)):
        folds = ranges is not None and index == 0 and foldable(conv, spec.observation_shape)
        name = graph.folded_conv(conv, arrays, name) if folds else graph.conv(index, conv, arrays, name)
    if spec.conv:
        name = graph.flatten(name, len(spec.conv))
    for index, (layer, arrays) in enumerate(zip(spec.layers, weights.layers, strict=True), start=len(spec.conv)):
        name = graph.linear(index, layer, arrays, name, hidden=0 < index < len(spec.conv) + len(spec.layers) - 1)
    graph.node("Identity", [graph.bounded(name, spec)], output=OUTPUT)
    kind = TensorProto.UINT8 if spec.conv else TensorProto.FLOAT
    kind = TensorProto.DOUBLE if doubles and spec.normalize_observation else kind
    inputs = [helper.make_tensor_value_info(INPUT, kind, ["n", *spec.observation_shape])]
    outputs = [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["n", spec.action_dim])]
    outputs += [helper.make_tensor_value_info(tap, TensorProto.FLOAT, None) for tap in graph.taps * taps]
    proto = helper.make_graph(graph.nodes, "policy", inputs, outputs, graph.constants)
    return helper.make_model(proto, opset_imports=OPSETS, ir_version=8)


class _Graph:
    """Collects nodes and constants; every method returns the name of the value it adds."""

    def __init__(self, precision: str, code_max: int, ranges: Sequence[Range] | None) -> None:
        self.precision, self.code_max, self.ranges = precision, code_max, ranges
        self.nodes: list = []
        self.constants: list = []
        self.taps: list[str] = []
        self.input_scale = np.float32(1.0)  # of the layer that is being written, where static

    def node(self, operator: str, inputs: list[str], output: str = "", domain: str = "", **attributes: Any) -> str:
        output = output or f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], domain=domain, **attributes))
        return output

    def constant(self, name: str, value: ArrayLike | None) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def normalize(self, name: str, weights: Weights, clip: float) -> str:
        exact = self.node("Cast", [name], to=TensorProto.DOUBLE)
        centred = self.node("Sub", [exact, self.constant("mean", weights.observation_mean)])
        scaled = self.node("Mul", [centred, self.constant("inverse_std", weights.observation_inverse_std)])
        scaled = self.node("Cast", [scaled], to=TensorProto.FLOAT)
        if np.isinf(clip):
            return scaled
        low, high = self.constant("clip_low", np.float32(-clip)), self.constant("clip_high", np.float32(clip))
        return self.node("Clip", [scaled, low, high])

    def conv(self, index: int, conv: Conv, arrays: LayerWeights, name: str) -> str:
        name = self._layer_input(index, name, pixels=index == 0)
        weight, bias = self._weights(index, arrays.weight, arrays.bias, axis=0)
        shape: dict[str, Any] = {"kernel_shape": 2 * [conv.kernel], "strides": 2 * [conv.stride]}
        return self.activation(conv.activation, self.node("Conv", [name, weight, bias], **shape))

    def folded_conv(self, conv: Conv, arrays: LayerWeights, name: str) -> str:
        """Add the first convolution over blocks of stride x stride pixels: the same sums in long runs of channels."""
        stride, kernel = conv.stride, conv.kernel // conv.stride
        channels = conv.in_channels * stride**2
        blocks = arrays.weight.reshape(conv.out_channels, conv.in_channels, kernel, stride, kernel, stride)
        weight = blocks.transpose(0, 3, 5, 1, 2, 4).reshape(conv.out_channels, channels, kernel, kernel)
        name = self.node("SpaceToDepth", [name], blocksize=stride)
        folded = Conv(channels, conv.out_channels, kernel, 1, conv.activation)
        return self.conv(0, folded, LayerWeights(np.ascontiguousarray(weight), arrays.bias), name)

    def flatten(self, name: str, index: int) -> str:
        # Quantized on both sides, or onnxruntime keeps the convolution before it in fp32.
        name = name if self.ranges is None else self._quantize_dequantize(name, f"flat{index}", self.ranges[index])
        return self.node("Flatten", [name], axis=1)

    def linear(self, index: int, layer: Layer, arrays: LayerWeights, name: str, hidden: bool) -> str:
        name = self._layer_input(index, name)
        if self.precision == "int8" and self.ranges is None:
            name = self._dynamic_int8(index, arrays, name)
        elif self.precision == "int4g128" and hidden:
            name = self._grouped_int4(index, arrays, name)
        elif self.ranges is None:
            weight, bias = self._weights(index, arrays.weight, arrays.bias, axis=0)
            name = self.node("Gemm", [name, weight, bias], transB=1)
        else:
            weight, bias = self._weights(index, np.ascontiguousarray(arrays.weight.T), arrays.bias, axis=1)
            name = self.node("Gemm", [name, weight, bias])
        if layer.layer_norm:
            scale = self.constant(f"norm_scale{index}", arrays.norm_scale)
            offset = self.constant(f"norm_offset{index}", arrays.norm_offset)
            name = self.node("LayerNormalization", [name, scale, offset], axis=-1, epsilon=layer.layer_norm_eps)
        return self.activation(layer.activation, name)

    def activation(self, kind: str, name: str) -> str:
        if kind == "silu":
            return self.node("Mul", [name, self.node("Sigmoid", [name])])
        return name if kind == "identity" else self.node({"relu": "Relu", "tanh": "Tanh", "elu": "Elu"}[kind], [name])

    def bounded(self, name: str, spec: PolicySpec) -> str:
        """Squash or clip to the action's bounds; heads that choose or draw run outside the graph."""
        if spec.head.kind == "clip":
            low, high = (
                self.constant(k, np.asarray(v, np.float32))
                for k, v in (("low", spec.head.low), ("high", spec.head.high))
            )
            return self.node("Min", [self.node("Max", [name, low]), high])
        if spec.head.kind != "tanh":
            return name
        middle, half_width = middle_and_half_width(spec)
        name = self.node("Tanh", [name])
        if (half_width != 1).any():
            name = self.node("Mul", [name, self.constant("half_width", half_width)])
        return self.node("Add", [name, self.constant("middle", middle)]) if middle.any() else name

    def _layer_input(self, index: int, name: str, pixels: bool = False) -> str:
        self.taps.append(name)
        if self.ranges is None:
            return name
        if not pixels:
            return self._quantize_dequantize(name, f"input{index}", self.ranges[index])
        # uint8 pixels are their own codes: nothing to quantize.
        self.input_scale = np.float32(1 / 255)
        scale, zero = self.constant("pixel_scale", self.input_scale), self.constant("pixel_zero", np.uint8(0))
        return self.node("DequantizeLinear", [name, scale, zero])

    def _quantize_dequantize(self, name: str, label: str, between: Range) -> str:
        low, high = min(between[0], 0.0), max(between[1], 0.0)
        scale = np.float32(max(high - low, 1e-8) / 255)
        self.input_scale = scale
        pair = [self.constant(f"{label}_scale", scale), self.constant(f"{label}_zero", np.uint8(round(-low / scale)))]
        return self.node("DequantizeLinear", [self.node("QuantizeLinear", [name, *pair]), *pair])

    def _weights(self, index: int, weight: np.ndarray, bias: np.ndarray, axis: int) -> tuple[str, str]:
        """Add weight and bias, as codes behind a DequantizeLinear where the graph is static int8."""
        if self.ranges is None:
            return self.constant(f"weight{index}", weight), self.constant(f"bias{index}", bias)
        codes, scale = quantize_per_channel(weight, axis, self.code_max)
        inputs = [self.constant(f"codes{index}", codes), self.constant(f"scale{index}", scale)]
        # Without its zero point onnxruntime does not recognise the pattern and runs the layer in fp32, 20 x slower.
        inputs.append(self.constant(f"zero{index}", np.zeros(len(scale), np.int8)))
        # The bias joins the integer sums, so its scale is the product of the input's and the weights'.
        sum_scale = scale * self.input_scale
        sums = self.constant(f"bias{index}", np.rint(bias / sum_scale).astype(np.int32))
        summed = self.node("DequantizeLinear", [sums, self.constant(f"bias_scale{index}", sum_scale)], axis=0)
        return self.node("DequantizeLinear", inputs, axis=axis), summed

    def _dynamic_int8(self, index: int, arrays: LayerWeights, name: str) -> str:
        codes, scale = quantize_per_channel(arrays.weight, 0, self.code_max)
        inputs = [
            self.constant(f"codes{index}", np.ascontiguousarray(codes.T)),
            self.constant(f"scale{index}", scale),
            self.constant(f"zero{index}", np.zeros(len(scale), np.int8)),
            self.constant(f"bias{index}", arrays.bias),
        ]
        return self.node("DynamicQuantizeMatMul", [name, *inputs], domain="com.microsoft")

    def _grouped_int4(self, index: int, arrays: LayerWeights, name: str) -> str:
        packed, scale = pack_groups_of_4_bit(arrays.weight)
        inputs = [name, self.constant(f"codes{index}", packed), self.constant(f"scale{index}", scale)]
        rows, columns = arrays.weight.shape
        # Level 4 lets the kernel quantize its input to 8 bits and sum integers.
        sizes: dict[str, Any] = {"K": columns, "N": rows, "bits": 4, "block_size": GROUP, "accuracy_level": 4}
        product = self.node("MatMulNBits", inputs, domain="com.microsoft", **sizes)
        return self.node("Add", [product, self.constant(f"bias{index}", arrays.bias)])


def foldable(conv: Conv, image_shape: tuple[int, ...]) -> bool:
    """Tell whether the convolution's kernel and image are whole blocks of its stride."""
    return conv.stride > 1 and not any(size % conv.stride for size in (conv.kernel, *image_shape[1:]))


def quantize_per_channel(weight: np.ndarray, axis: int, code_max: int) -> tuple[np.ndarray, np.ndarray]:
    """Return symmetric int8 codes within +-`code_max` and one float32 scale per channel along `axis`."""
    others = tuple(i for i in range(weight.ndim) if i != axis)
    largest = np.maximum(weight.max(others), -weight.min(others))
    scale = np.where(largest > 0, largest / code_max, 1.0).astype(np.float32)
    shape = [1] * weight.ndim
    shape[axis] = -1
    scaled = weight * (1.0 / scale).reshape(shape)
    return np.rint(scaled, out=scaled).clip(-code_max, code_max, out=scaled).astype(np.int8), scale


def pack_groups_of_4_bit(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return MatMulNBits's weights [out, groups, GROUP / 2] (two codes + 8 a byte) and its scales [out * groups]."""
    rows, columns = weight.shape
    groups = -(-columns // GROUP)
    padded = np.zeros((rows, groups * GROUP), np.float32)
    padded[:, :columns] = weight
    codes, scale = quantize_per_channel(padded.reshape(rows * groups, GROUP), 0, 7)
    codes = (codes + 8).astype(np.uint8)
    return (codes[:, 0::2] | (codes[:, 1::2] << 4)).reshape(rows, groups, GROUP // 2), scale
