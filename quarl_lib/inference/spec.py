"""What a policy is, free of any framework: its layers, its head, and its weights as plain float32 arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

# Every precision that an engine may have, from fp32 down, with the bits of a weight in a middle layer: the one list.
WEIGHT_BITS = {"fp32": 32, "fp16": 16, "int8": 8, "int8a16": 8, "int4": 4, "int4g128": 4, "int3": 3, "int2": 2}
PRECISIONS = tuple(WEIGHT_BITS)
ACTIVATIONS = ("identity", "relu", "tanh", "elu", "silu")
STATISTICS = ("observation_mean", "observation_inverse_std")
HEADS = ("none", "tanh", "clip", "argmax", "categorical", "gaussian")
SMALLEST_STEP = 2.0**-100  # its inverse is finite
MAX_FEATURES = 65536  # int32 sums of 8-bit products cannot overflow below this width


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}: choose one of {', '.join(choices)}")


@dataclass(frozen=True)
class Conv:
    """A 2-D convolution of the front end: square kernel, no padding, activation behind it."""

    in_channels: int
    out_channels: int
    kernel: int
    stride: int = 1
    activation: str = "relu"

    def __post_init__(self) -> None:
        for name in ("in_channels", "out_channels", "kernel", "stride"):
            if getattr(self, name) < 1:
                raise ValueError(f"Conv.{name} is {getattr(self, name)}: give at least 1")
        _check_choice("Conv.activation", self.activation, ACTIVATIONS)


@dataclass(frozen=True)
class Layer:
    """A linear layer, an optional LayerNorm behind it, and the activation last."""

    in_features: int
    out_features: int
    activation: str = "identity"
    layer_norm: bool = False
    layer_norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("in_features", "out_features"):
            if not 1 <= getattr(self, name) <= MAX_FEATURES:
                raise ValueError(f"Layer.{name} is {getattr(self, name)}: give 1 to {MAX_FEATURES}")
        _check_choice("Layer.activation", self.activation, ACTIVATIONS)
        if not (math.isfinite(self.layer_norm_eps) and self.layer_norm_eps > 0):
            raise ValueError(f"Layer.layer_norm_eps is {self.layer_norm_eps}: give a positive number")


@dataclass(frozen=True)
class Head:
    """How the last layer's output becomes an action.

    none: the output itself. tanh: tanh(output), scaled to [low, high]. clip: output clipped to [low, high].
    argmax: index of the largest Q value or logit. categorical: an index drawn from softmax(output).
    gaussian: a draw from N(output, exp(log_std)), log_std among the weights, clipped where bounds are given.
    """

    kind: str = "none"
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        _check_choice("Head.kind", self.kind, HEADS)
        object.__setattr__(self, "low", tuple(float(v) for v in self.low))
        object.__setattr__(self, "high", tuple(float(v) for v in self.high))
        if len(self.low) != len(self.high):
            raise ValueError(f"Head.low has {len(self.low)} values and Head.high {len(self.high)}: give as many")
        if self.kind in ("tanh", "clip") and not self.low:
            raise ValueError(f"Head.low is empty: a {self.kind!r} head needs the action's bounds")
        if self.kind in ("none", "argmax", "categorical") and self.low:
            raise ValueError(f"Head.low is {self.low}: a {self.kind!r} head takes no bounds")
        for low, high in zip(self.low, self.high, strict=True):
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise ValueError(f"Head bounds are [{low}, {high}]: give finite bounds with low below high")

    @property
    def discrete(self) -> bool:
        """Tell whether the action is an index."""
        return self.kind in ("argmax", "categorical")


@dataclass(frozen=True)
class PolicySpec:
    """A policy without its weights: observation -> normalise -> convolutions -> linear layers -> head.

    `conv` and `image_shape` (channels, height, width) describe a convolutional front end over uint8 images, which
    are divided by 255; the first linear layer then takes the flattened features. `normalize_observation` stands for
    (observation - mean) * inverse_std in float64, clipped to +-`observation_clip`; mean and inverse_std are weights.
    """

    layers: tuple[Layer, ...]
    head: Head = Head()
    normalize_observation: bool = False
    observation_clip: float = math.inf
    conv: tuple[Conv, ...] = ()
    image_shape: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        object.__setattr__(self, "conv", tuple(self.conv))
        if not self.layers:
            raise ValueError("PolicySpec.layers is empty: give at least one Layer")
        for i, (before, after) in enumerate(zip(self.layers, self.layers[1:], strict=False)):
            if before.out_features != after.in_features:
                raise ValueError(
                    f"PolicySpec.layers[{i + 1}].in_features is {after.in_features}: "
                    f"layers[{i}] gives {before.out_features}"
                )
        if self.head.low and len(self.head.low) != self.action_dim:
            raise ValueError(f"Head.low has {len(self.head.low)} values: the last layer gives {self.action_dim}")
        if not self.observation_clip > 0:
            raise ValueError(f"PolicySpec.observation_clip is {self.observation_clip}: give a positive number or inf")
        if bool(self.conv) != (self.image_shape is not None):
            raise ValueError("PolicySpec.conv and PolicySpec.image_shape go together: give both or neither")
        if self.image_shape:
            self._check_conv(*self.image_shape)

    def _check_conv(self, channels: int, height: int, width: int) -> None:
        if self.normalize_observation:
            raise ValueError("PolicySpec.normalize_observation is True: images are only divided by 255")
        for i, conv in enumerate(self.conv):
            if conv.in_channels != channels:
                raise ValueError(f"PolicySpec.conv[{i}].in_channels is {conv.in_channels}: it gets {channels}")
            channels = conv.out_channels
            height, width = ((size - conv.kernel) // conv.stride + 1 for size in (height, width))
            if height < 1 or width < 1:
                raise ValueError(f"PolicySpec.conv[{i}].kernel is {conv.kernel}: larger than its input image")
        if self.layers[0].in_features != channels * height * width:
            raise ValueError(
                f"PolicySpec.layers[0].in_features is {self.layers[0].in_features}: "
                f"the convolutions give {channels * height * width}"
            )

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Return the shape of one observation."""
        return self.image_shape or (self.layers[0].in_features,)

    @property
    def action_dim(self) -> int:
        """Return the number of outputs of the last layer."""
        return self.layers[-1].out_features

    @property
    def num_weights(self) -> int:
        """Count the multiplied weights (biases aside)."""
        conv = sum(c.in_channels * c.out_channels * c.kernel**2 for c in self.conv)
        return conv + sum(layer.in_features * layer.out_features for layer in self.layers)

    @property
    def fingerprint(self) -> int:
        """Return 64 bits that name this spec; a packed buffer carries them so that a foreign one is refused."""
        return int.from_bytes(blake2b(repr(self).encode(), digest_size=8).digest(), "little")


@dataclass(frozen=True)
class LayerWeights:
    """One layer's arrays, float32: weight [out, in] ([out, in, k, k] for a Conv), bias [out], LayerNorm's two [out].

    `step` [out] is what training learned for weights of `step_bits` bits: from code to code in each row. Other
    precisions take steps from the weights, as without it. `input_step` [1] is what it learned for the layer's input,
    whose codes go up to `input_limit` (static quantization); where a precision's do not, and without it, every
    observation has its own.
    """

    weight: np.ndarray
    bias: np.ndarray
    norm_scale: np.ndarray | None = None
    norm_offset: np.ndarray | None = None
    step: np.ndarray | None = None
    step_bits: int = 0
    input_step: np.ndarray | None = None
    input_limit: int = 0


@dataclass(frozen=True)
class Weights:
    """All numbers that training changes; `check` holds them against a spec. The observation's are float64."""

    layers: tuple[LayerWeights, ...]
    conv: tuple[LayerWeights, ...] = ()
    observation_mean: np.ndarray | None = None
    observation_inverse_std: np.ndarray | None = None
    log_std: np.ndarray | None = None

    def check(self, spec: PolicySpec, *, finite: bool = True) -> None:
        """Raise ValueError where an array is missing, has another shape or dtype than `spec` says, or is not finite."""
        for name, array, shape in self.named_arrays(spec):
            dtype = np.float64 if name in STATISTICS else np.float32
            if not isinstance(array, np.ndarray) or array.dtype != dtype:
                found = getattr(array, "dtype", type(array).__name__)
                raise ValueError(f"{name} is {found}: give a {np.dtype(dtype)} array")
            if array.shape != shape:
                raise ValueError(f"{name} has shape {array.shape}: the spec says {shape}")
            if finite and not np.isfinite(array).all():
                index = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
                raise ValueError(f"{name}[{', '.join(map(str, index))}] is {array[index]}: weights must be finite")
            if name.endswith("step") and not (array >= SMALLEST_STEP).all():
                raise ValueError(f"{name} is {array.min()} somewhere: steps must be at least 2^-100")

    def named_arrays(self, spec: PolicySpec) -> list[tuple[str, np.ndarray | None, tuple[int, ...]]]:
        """List (name, array, shape that `spec` asks for) of every array; raise ValueError if the counts differ."""
        for name, have, want in (("layers", self.layers, spec.layers), ("conv", self.conv, spec.conv)):
            if len(have) != len(want):
                raise ValueError(f"Weights.{name} has {len(have)} entries: the spec has {len(want)}")
        rows: list[tuple[str, np.ndarray | None, tuple[int, ...]]] = []
        if spec.normalize_observation:
            rows.append(("observation_mean", self.observation_mean, spec.observation_shape))
            rows.append(("observation_inverse_std", self.observation_inverse_std, spec.observation_shape))
        for i, (conv, arrays) in enumerate(zip(spec.conv, self.conv, strict=True)):
            rows.append(
                (f"conv[{i}].weight", arrays.weight, (conv.out_channels, conv.in_channels) + 2 * (conv.kernel,))
            )
            rows.append((f"conv[{i}].bias", arrays.bias, (conv.out_channels,)))
        for i, (layer, arrays) in enumerate(zip(spec.layers, self.layers, strict=True)):
            rows.append((f"layers[{i}].weight", arrays.weight, (layer.out_features, layer.in_features)))
            rows.append((f"layers[{i}].bias", arrays.bias, (layer.out_features,)))
            if layer.layer_norm:
                rows.append((f"layers[{i}].norm_scale", arrays.norm_scale, (layer.out_features,)))
                rows.append((f"layers[{i}].norm_offset", arrays.norm_offset, (layer.out_features,)))
            if arrays.step is not None:
                rows.append((f"layers[{i}].step", arrays.step, (layer.out_features,)))
            if arrays.input_step is not None:
                rows.append((f"layers[{i}].input_step", arrays.input_step, (1,)))
        if spec.head.kind == "gaussian":
            rows.append(("log_std", self.log_std, (spec.action_dim,)))
        return rows
