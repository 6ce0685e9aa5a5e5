"""The arithmetic of every kernel in numpy: what the C code must reproduce, and the engine of last resort."""

from __future__ import annotations

import numpy as np

from quarl_lib.inference import tiles
from quarl_lib.inference.arithmetic import activate, layer_norm, quantize_activations
from quarl_lib.inference.heads import ActionHead
from quarl_lib.inference.layout import GROUP, LayerLayout, Section, activation_limit, layout_of
from quarl_lib.inference.observations import check_finite, check_observation
from quarl_lib.inference.pack import as_bytes, check_buffer, read_version
from quarl_lib.inference.spec import Layer, PolicySpec

_CHUNK = 512  # 255 * 127 * 512 < 2^24: float32 sums of this many products of 8-bit codes are exact integers


def unsupported(spec: PolicySpec, precision: str) -> str | None:
    """Return why numpy cannot run `spec`, None if it can."""
    return "convolutions run on onnxruntime and torch only" if spec.conv else None


def create(spec: PolicySpec, precision: str, seed: int = 0) -> NumpyEngine:
    """Return an engine that computes with numpy what the native kernels compute."""
    return NumpyEngine(spec, precision, seed)


class NumpyEngine:
    """Run a packed policy in numpy; integer sums are exact, so codes, sums and floats equal the native engine's."""

    backend = "numpy"

    def __init__(self, spec: PolicySpec, precision: str, seed: int = 0) -> None:
        self.spec = spec
        self.precision = precision
        self.reason = ""
        self.weights_version = -1
        self._layout = layout_of(spec, precision)
        self._head = ActionHead(spec, seed)
        self._limits = [activation_limit(layer.kind, layer.cols_padded) for layer in self._layout.layers]

    def load(self, buffer: object, *, copy: bool = False, verify: bool | None = None) -> None:
        """Decode the weights of `buffer`; see `Engine.load`. The decoded copy makes `copy` meaningless here."""
        data = as_bytes(buffer)
        check_buffer(self.spec, self.precision, data, verify=True if verify is None else verify)
        matrices = [tiles.decode(layer, layer.weights.view(data)) for layer in self._layout.layers]
        layout = self._layout
        self._weights = [(m, _sections(layer, data)) for m, layer in zip(matrices, layout.layers, strict=True)]
        inputs = self.spec.layers[0].in_features
        self._mean = _copied(layout.observation_mean, data, inputs)
        self._inverse_std = _copied(layout.observation_inverse_std, data, inputs)
        self._log_std = _copied(layout.log_std, data, self.spec.action_dim)
        self.weights_version = read_version(data)

    def __call__(self, observation: np.ndarray) -> np.ndarray | int:
        """Return the action for one observation or a batch; see `Engine`."""
        x = check_observation(self.spec, observation)
        if self.weights_version < 0:
            raise ValueError("the engine has no weights: call load(buffer) first")
        actions = self._head(self.outputs(np.atleast_2d(x)), self._log_std)
        if x.ndim == 2:
            return actions
        return int(actions[0]) if self.spec.head.discrete else actions[0]

    def outputs(self, x: np.ndarray) -> np.ndarray:
        """Return the last layer's outputs [n, action_dim] for observations [n, obs_dim]."""
        if self._mean is not None and self._inverse_std is not None:
            clip = np.float32(self.spec.observation_clip)
            with np.errstate(over="ignore"):
                x = np.clip(((x - self._mean) * self._inverse_std).astype(np.float32), -clip, clip)
        for i in range(len(self.spec.layers)):
            x = np.stack([self.run_layer(i, row)[2] for row in x])
        for row in x:
            check_finite(row, f"layers[{len(self.spec.layers) - 1}]")
        return x

    def run_layer(self, index: int, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return codes [in], int32 sums [out] (per group [groups, out]) and outputs [out] of one layer for x [in]."""
        layer, layout = self.spec.layers[index], self._layout.layers[index]
        matrix, sections = self._weights[index]
        x = np.ascontiguousarray(x, np.float32)
        if layout.kind in ("fp32", "fp16"):
            codes = sums = np.zeros(0, np.int32)
            with np.errstate(over="ignore", invalid="ignore"):
                y = matrix @ x + sections["bias"]
        else:
            check_finite(x, f"layers[{index - 1}]" if index else "observation")
            codes, scale = quantize_activations(x, self._limits[index], sections["input_step"][0])
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                sums, y = _integer_layer(layout, matrix, sections, codes, scale)
        return codes, sums, _finish(layer, sections, y)


def _integer_layer(
    layout: LayerLayout, matrix: np.ndarray, sections: dict[str, np.ndarray], codes: np.ndarray, scale: np.float32
) -> tuple[np.ndarray, np.ndarray]:
    correction = np.float32(codes.sum()) * sections["residuals"]
    if layout.kind != "w4g128a8":
        sums = _exact_product(matrix, codes)
        return sums, (sums.astype(np.float32) * sections["scales"] + correction) * scale + sections["bias"]
    parts = [slice(start, start + GROUP) for start in range(0, layout.cols, GROUP)]
    sums = np.stack([_exact_product(matrix[:, p], codes[p]) for p in parts])
    total = np.zeros(layout.rows, np.float32)
    for group_sums, group_scales in zip(sums, sections["scales"], strict=True):
        total = total + group_sums.astype(np.float32) * group_scales
    return sums, (total + correction) * scale + sections["bias"]


def _exact_product(matrix: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Return matrix @ codes as int32, exactly: 16-bit codes go as two bytes, long rows in chunks."""
    high, low = np.divmod(codes, 256) if np.abs(codes).max(initial=0) > 255 else (None, codes)
    total = np.zeros(matrix.shape[0], np.int64)
    for part, factor in ((high, 256), (low, 1)):
        if part is None:
            continue
        vector = part.astype(np.float32)
        for start in range(0, len(codes), _CHUNK):
            product = matrix[:, start : start + _CHUNK] @ vector[start : start + _CHUNK]
            total += factor * product.astype(np.int64)
    return total.astype(np.int32)


def _finish(layer: Layer, sections: dict[str, np.ndarray], y: np.ndarray) -> np.ndarray:
    if layer.layer_norm:
        y = layer_norm(y, sections["norm_scale"], sections["norm_offset"], layer.layer_norm_eps)
    return activate(layer.activation, y)


def _copied(section: Section | None, data: np.ndarray, length: int) -> np.ndarray | None:
    return None if section is None else section.view(data)[:length].copy()


def _sections(layer: LayerLayout, data: np.ndarray) -> dict[str, np.ndarray]:
    """Copy a layer's small sections, cut to its real rows."""
    arrays = {}
    for name in ("scales", "residuals", "bias", "input_step", "norm_scale", "norm_offset"):
        section = getattr(layer, name)
        if section is not None:
            grouped = name == "scales" and layer.kind == "w4g128a8"
            view = section.view(data)
            arrays[name] = tiles.ungroup_scales(layer, view) if grouped else view[: layer.rows].copy()
    return arrays
