"""An integer policy as an ONNX graph of standard operators: the reference's own codes and sums, no float weights.

`MatMulInteger` multiplies bytes. Weights are uint8 with zero point 128: uint8 times uint8 is exact in every runtime,
while signed weights saturate on CPUs without VNNI. Codes of 16 bits go in as two bytes, and the two sums are joined.
Every row of a batch has a scale of its own, so that an action does not depend on its neighbours.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from onnx import NodeProto, TensorProto, helper, numpy_helper

from quarl_lib.inference import tiles
from quarl_lib.inference.layout import LayerLayout, Section, activation_limit, layout_of
from quarl_lib.inference.spec import Layer, PolicySpec

SMALLEST = np.float32(2.0**-100)  # a row whose largest magnitude is below this counts as zeros


class IntegerGraph:
    """Nodes and constants of the layers; methods return the name of the value that they add."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, TensorProto] = {}

    def node(self, operator: str, *inputs: str, output: str = "", **attributes: object) -> str:
        """Add a node and return its output's name."""
        name = output or f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))  # type: ignore[arg-type]
        return name

    def constant(self, name: str, value: ArrayLike) -> str:
        """Add a constant once and return its name."""
        self.constants.setdefault(name, numpy_helper.from_array(np.asarray(value), name))
        return name

    def policy(self, spec: PolicySpec, precision: str, data: np.ndarray, observation: str) -> str:
        """Add normalisation and layers of a packed int8 policy; return the last layer's outputs."""
        layout, x = layout_of(spec, precision), observation
        if layout.observation_mean is not None and layout.observation_inverse_std is not None:
            n, clip = spec.layers[0].in_features, np.float32(spec.observation_clip)
            mean = self.constant("mean", _vector(layout.observation_mean, data, n))
            inverse_std = self.constant("inverse_std", _vector(layout.observation_inverse_std, data, n))
            x = self.node("Mul", self.node("Sub", self.node("Cast", x, to=TensorProto.DOUBLE), mean), inverse_std)
            x = self.node("Cast", x, to=TensorProto.FLOAT)
            if np.isfinite(clip):
                x = self.node("Clip", x, self.constant("clip_low", -clip), self.constant("clip_high", clip))
        for index, (layer, part) in enumerate(zip(spec.layers, layout.layers, strict=True)):
            x = self._layer(index, layer, part, data, x)
        return x

    def _layer(self, index: int, layer: Layer, part: LayerLayout, data: np.ndarray, x: str) -> str:
        step = _vector(part.input_step, data, 1)[0]
        codes, scale = self._quantize(x, activation_limit(part.kind, part.cols_padded), step)
        matrix = tiles.decode(part, part.weights.view(data)).T  # [in, out], integers within +-127
        weight = self.constant(f"weight{index}", np.ascontiguousarray(matrix + 128).astype(np.uint8))
        if part.kind == "w8a16":
            product = self._wide(codes, weight)
        else:  # codes of a w8u8 layer stand behind a ReLU: they are bytes already
            product = self._bytes(codes, weight, shifted=part.kind != "w8u8")
        sums = self.node("Cast", product, to=TensorProto.FLOAT)
        code_sum = self.node("ReduceSum", codes, self.constant("last_axis", np.array([-1])), keepdims=1)
        sections = {"scale": part.scales, "residual": part.residuals, "bias": part.bias}
        own = {name: self.constant(f"{name}{index}", _vector(s, data, part.rows)) for name, s in sections.items()}
        y = self.node("Add", self.node("Mul", sums, own["scale"]), self.node("Mul", code_sum, own["residual"]))
        y = self.node("Add", self.node("Mul", y, scale), own["bias"])
        if part.norm_scale is not None:
            norms = [
                self.constant(f"{name}{index}", _vector(section, data, part.rows))
                for name, section in (("norm_scale", part.norm_scale), ("norm_offset", part.norm_offset))
            ]
            y = self.node("LayerNormalization", y, *norms, axis=-1, epsilon=layer.layer_norm_eps)
        if layer.activation == "silu":
            return self.node("Mul", y, self.node("Sigmoid", y))
        names = {"identity": "", "relu": "Relu", "tanh": "Tanh", "elu": "Elu"}
        return self.node(names[layer.activation], y) if names[layer.activation] else y

    def _quantize(self, x: str, limit: int, step: np.float32) -> tuple[str, str]:
        """Add codes, as whole floats, and the scale of each row, or the learned step's if that is not 0."""
        if step:
            most, name = np.float32(limit) * step, len(self.nodes)
            bounds = self.constant(f"least{name}", -most), self.constant(f"most{name}", most)
            steps = self.constant(f"steps{name}", np.float32(1) / step)
            codes = self.node("Round", self.node("Mul", self.node("Clip", x, *bounds), steps))
            return codes, self.constant(f"input_step{name}", step)
        largest = self.node("ReduceMax", self.node("Abs", x), axes=[-1], keepdims=1)
        zero = self.node("Less", largest, self.constant("smallest", SMALLEST))
        limits = self.constant(f"limit{limit}", np.float32(limit))
        none, one = self.constant("none", np.float32(0)), self.constant("one", np.float32(1))
        steps = self.node("Where", zero, none, self.node("Div", limits, self.node("Where", zero, one, largest)))
        scale = self.node("Where", zero, none, self.node("Div", largest, limits))
        return self.node("Round", self.node("Mul", x, steps)), scale

    def _wide(self, codes: str, weight: str) -> str:
        """Add the sums of 16-bit codes: those of the high byte times 256, and those of the low one."""
        step = self.constant("step", np.float32(256))
        high = self.node("Floor", self.node("Div", codes, step))
        low = self.node("Sub", codes, self.node("Mul", high, step))
        sums = self.node("Mul", self._bytes(high, weight, shifted=True), self.constant("high_byte", np.int32(256)))
        return self.node("Add", sums, self._bytes(low, weight, shifted=False))

    def _bytes(self, codes: str, weight: str, shifted: bool) -> str:
        middle = self.constant("middle_code", np.uint8(128))
        zero = middle if shifted else self.constant("zero_code", np.uint8(0))
        if shifted:
            codes = self.node("Add", codes, self.constant("shift", np.float32(128)))
        return self.node("MatMulInteger", self.node("Cast", codes, to=TensorProto.UINT8), weight, zero, middle)


def _vector(section: Section | None, data: np.ndarray, length: int) -> np.ndarray:
    assert section is not None
    return section.view(data)[:length].copy()
