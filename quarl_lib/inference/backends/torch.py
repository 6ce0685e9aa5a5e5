"""PyTorch as a backend: fp32, and torch.ao's dynamic int8 and fp16, the paper's baseline, while torch has them."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from quarl_lib.inference.backends.framework import FrameworkEngine
from quarl_lib.inference.heads import middle_and_half_width
from quarl_lib.inference.spec import Layer, LayerWeights, PolicySpec, Weights

ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "elu": nn.ELU, "silu": nn.SiLU}
QUANTIZED_DTYPES = {"fp16": torch.float16, "int8": torch.qint8}
SUPPORTED = ("fp32", *QUANTIZED_DTYPES)
# The engines whose dynamic int8 is fastest on x86, in this order; onednn and qnnpack never are.
QUANTIZED_ENGINES = ("x86", "fbgemm", "onednn", "qnnpack")


class _Normalize(nn.Module):
    """Normalise an observation: (x - mean) * inverse_std in double, clipped."""

    mean: torch.Tensor
    inverse_std: torch.Tensor

    def __init__(self, mean: torch.Tensor, inverse_std: torch.Tensor, clip: float) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("inverse_std", inverse_std)
        self.clip = clip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the normalised batch."""
        return ((x - self.mean) * self.inverse_std).float().clamp(-self.clip, self.clip)


class _Pixels(nn.Module):
    """Turn uint8 pixels into floats from 0 to 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x / 255."""
        return x.float() / 255.0


class _Bounded(nn.Module):
    """Squash or clip outputs to the action's bounds."""

    middle: torch.Tensor
    half_width: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__()
        self.squash = spec.head.kind == "tanh"
        middle, half_width = middle_and_half_width(spec)
        self.unit = bool((middle == 0).all() and (half_width == 1).all())
        bounds = {"middle": middle, "half_width": half_width, "low": spec.head.low, "high": spec.head.high}
        for name, value in bounds.items():
            self.register_buffer(name, torch.tensor(value, dtype=torch.float32), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the actions."""
        if not self.squash:
            return x.clamp(self.low, self.high)
        return x.tanh() if self.unit else torch.addcmul(self.middle, self.half_width, x.tanh())


def module_from_spec(spec: PolicySpec, weights: Weights) -> nn.Sequential:
    """Return the policy as a torch module in eval mode, weights copied, with its head where that is tanh or clip."""
    parts: list[nn.Module] = []
    if spec.normalize_observation:
        mean, inverse_std = (
            torch.from_numpy(np.array(array, np.float64))
            for array in (weights.observation_mean, weights.observation_inverse_std)
        )
        parts.append(_Normalize(mean, inverse_std, spec.observation_clip))
    if spec.conv:
        parts.append(_Pixels())
    for conv, arrays in zip(spec.conv, weights.conv, strict=True):
        module = nn.utils.skip_init(nn.Conv2d, conv.in_channels, conv.out_channels, conv.kernel, conv.stride)
        parts += [_filled(module, arrays), *_activation(conv.activation)]
    if spec.conv:
        parts.append(nn.Flatten())
    for layer, arrays in zip(spec.layers, weights.layers, strict=True):
        linear = nn.utils.skip_init(nn.Linear, layer.in_features, layer.out_features)
        parts += [_filled(linear, arrays), *_layer_norm(layer, arrays), *_activation(layer.activation)]
    if spec.head.kind in ("tanh", "clip"):
        parts.append(_Bounded(spec))
    return nn.Sequential(*parts).eval().requires_grad_(False)


def quantize_dynamic(module: nn.Module, precision: str) -> nn.Module:
    """Return torch.ao's dynamically quantized copy of `module` (its Linear layers only)."""
    with _quantized_engine(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dtype = QUANTIZED_DTYPES[precision]
        return torch.ao.quantization.quantize_dynamic(module, {nn.Linear}, dtype=dtype)


def export(module: nn.Module, precision: str) -> bytes:
    """Return what a PyTorch learner sends of its fp32 module: the saved state_dict at this precision.

    Raises:
        ValueError: torch has no such precision.
    """
    if precision not in ("fp32", *QUANTIZED_DTYPES):
        raise ValueError(f"precision is {precision!r}: choose one of fp32, {', '.join(QUANTIZED_DTYPES)}")
    buffer = io.BytesIO()
    torch.save((module if precision == "fp32" else quantize_dynamic(module, precision)).state_dict(), buffer)
    return buffer.getvalue()


class TorchEngine(FrameworkEngine):
    """A policy run by PyTorch; `frozen` lets TorchScript fold and fuse the module first."""

    backend = "torch"

    def __init__(self, spec: PolicySpec, precision: str, seed: int = 0, *, frozen: bool = False) -> None:
        """Make an engine without weights."""
        super().__init__(spec, precision, seed)
        self.frozen = frozen
        self._eager: nn.Module | None = None
        self._module: nn.Module | None = None

    def load_export(self, message: bytes, weights_version: int = 0) -> None:
        """Take a message of `export`: unpickle it and copy it into the module, which repacks quantized weights.

        Raises:
            ValueError: no weights were set before: a state_dict needs a module to load into.
        """
        if self._eager is None:
            raise ValueError("load_export before set_weights: a state_dict needs a module to load into")
        with _quantized_engine(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # torch.ao's packed weights are no tensors: only the fp32 message can be read without unpickling objects.
            state = torch.load(io.BytesIO(message), weights_only=self.precision == "fp32")
            self._eager.load_state_dict(state)
        self._use(self._eager)
        self._source = None
        self.weights_version = weights_version

    def _options(self) -> dict[str, Any]:
        return {"frozen": self.frozen}

    def _build(self, weights: Weights) -> None:
        module = module_from_spec(self.spec, weights)
        self._use(module if self.precision == "fp32" else quantize_dynamic(module, self.precision))

    def _use(self, module: nn.Module) -> None:
        self._eager = module
        self._module = _frozen(module, self.spec) if self.frozen else module

    def _outputs(self, batch: np.ndarray) -> np.ndarray:
        module: Any = self._module
        with torch.inference_mode():
            return module(torch.from_numpy(batch)).numpy()


def unsupported(spec: PolicySpec, precision: str) -> str | None:
    """Return why torch cannot run this policy at this precision here, None if it can."""
    if precision not in SUPPORTED:
        return f"no CPU kernels for {precision}"
    if precision == "fp32":
        return None
    if not hasattr(getattr(torch.ao, "quantization", None), "quantize_dynamic"):
        return f"torch {torch.__version__} no longer has torch.ao.quantization"
    try:
        linear = quantize_dynamic(nn.Sequential(nn.Linear(8, 8)), precision)
        linear(torch.zeros(1, 8))
    except (RuntimeError, NotImplementedError, ImportError) as error:
        return f"torch.ao fails here: {str(error).splitlines()[0]}"
    return None


def create(spec: PolicySpec, precision: str, seed: int) -> TorchEngine:
    """Return an engine without weights."""
    return TorchEngine(spec, precision, seed)


def _frozen(module: nn.Module, spec: PolicySpec) -> nn.Module:
    example = torch.zeros((1, *spec.observation_shape), dtype=torch.uint8 if spec.conv else torch.float32)
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        frozen = torch.jit.optimize_for_inference(torch.jit.freeze(torch.jit.trace(module, example)))
        for _ in range(3):  # TorchScript profiles the first calls, then compiles
            frozen(example)
    return frozen


@contextmanager
def _quantized_engine() -> Iterator[None]:
    """Use the fastest engine for quantized layers inside the block; packed weights keep it afterwards."""
    before = torch.backends.quantized.engine
    supported = torch.backends.quantized.supported_engines
    torch.backends.quantized.engine = next((name for name in QUANTIZED_ENGINES if name in supported), before)
    try:
        yield
    finally:
        torch.backends.quantized.engine = before


def _tensor(array: np.ndarray | None) -> torch.Tensor:
    return torch.from_numpy(np.array(array, np.float32))


def _filled(module: nn.Module, arrays: LayerWeights) -> nn.Module:
    module.weight.data, module.bias.data = _tensor(arrays.weight), _tensor(arrays.bias)
    return module


def _layer_norm(layer: Layer, arrays: LayerWeights) -> list[nn.Module]:
    if not layer.layer_norm:
        return []
    norm = nn.LayerNorm(layer.out_features, eps=layer.layer_norm_eps)
    norm.weight.data, norm.bias.data = _tensor(arrays.norm_scale), _tensor(arrays.norm_offset)
    return [norm]


def _activation(name: str) -> list[nn.Module]:
    return [] if name == "identity" else [ACTIVATIONS[name]()]
