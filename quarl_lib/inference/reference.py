"""The arithmetic of every kernel in numpy: what the C code must reproduce, and the engine of last resort."""

from __future__ import annotations

import numpy as np

from quarl_lib.inference import tiles
from quarl_lib.inference.heads import ActionHead
from quarl_lib.inference.layout import GROUP, LayerLayout, Section, activation_limit, layout_of
from quarl_lib.inference.pack import as_bytes, check_buffer, read_version
from quarl_lib.inference.spec import Layer, PolicySpec

TINY = np.float32(2.0**-100)  # below this absmax a tensor counts as zero: 127 / absmax must stay finite
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
            x = np.clip((x - self._mean) * self._inverse_std, -clip, clip)
        for i in range(len(self.spec.layers)):
            x = np.stack([self.run_layer(i, row)[2] for row in x])
        for row in x:
            _check_finite(row, f"layers[{len(self.spec.layers) - 1}]")
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
            _check_finite(x, f"layers[{index - 1}]" if index else "observation")
            codes, scale = quantize_activations(x, self._limits[index])
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                sums, y = _integer_layer(layout, matrix, sections, codes, scale)
        return codes, sums, _finish(layer, sections, y)


def quantize_activations(x: np.ndarray, limit: int) -> tuple[np.ndarray, np.float32]:
    """Return int32 codes in [-limit, limit] and the float32 scale: symmetric, per tensor, half to even."""
    absmax = np.abs(x).max()
    if absmax < TINY:
        return np.zeros(x.shape, np.int32), np.float32(0)
    codes = np.rint(x * (np.float32(limit) / absmax)).astype(np.int32)
    return codes, absmax / np.float32(limit)


def check_observation(spec: PolicySpec, observation: object) -> np.ndarray:
    """Return the observation as contiguous float32 [obs] or [n, obs]; raise ValueError where it does not fit."""
    x = np.asarray(observation)
    if x.dtype.kind not in "fiub":
        raise ValueError(f"observation has dtype {x.dtype}: give float32 (other real numbers are converted)")
    if x.ndim not in (1, 2) or x.shape[-1:] != spec.observation_shape or x.shape[0] == 0:
        n = spec.observation_shape[0]
        raise ValueError(f"observation has shape {x.shape}: give ({n},) or (n, {n})")
    with np.errstate(over="ignore"):
        x = np.ascontiguousarray(x, np.float32)
    _check_finite(x, "observation")
    return x


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
        y = _layer_norm(y, sections["norm_scale"], sections["norm_offset"], layer.layer_norm_eps)
    return activate(layer.activation, y)


def _layer_norm(y: np.ndarray, scale: np.ndarray, offset: np.ndarray, eps: float) -> np.ndarray:
    exact = y.astype(np.float64)
    mean = _lane_sum(exact) / len(y)
    variance = _lane_sum((exact - mean) ** 2) / len(y)
    inverse = np.float32(1.0 / np.sqrt(variance + eps))
    return (y - np.float32(mean)) * inverse * scale + offset


def _lane_sum(values: np.ndarray) -> np.float64:
    """Sum in eight lanes, each in order, then pairwise: the order of the C code."""
    lanes = np.zeros((-(-len(values) // 8), 8))
    lanes.reshape(-1)[: len(values)] = values
    s = np.cumsum(lanes, axis=0)[-1]
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]))


def activate(name: str, y: np.ndarray) -> np.ndarray:
    """Apply an activation in float32 basic operations, the same and in the same order as the C code."""
    if name == "relu":
        return np.where(y > 0, y, np.float32(0))
    if name == "tanh":
        return tanh(y)
    if name == "elu":
        return np.where(y > 0, y, exp(np.minimum(y, np.float32(0))) - np.float32(1))
    if name == "silu":
        return y / (np.float32(1) + exp(-y))
    return y


def exp(x: np.ndarray) -> np.ndarray:
    """Return e^x within 2 ulp for x in [-87, 88], clamped to that range: Cephes' polynomial after range reduction."""
    f = np.float32
    x = np.minimum(np.maximum(x, f(-87.0)), f(88.0))
    n = np.rint(x * f(1.44269504))
    r = (x - n * f(0.693359375)) - n * f(-2.12194440e-4)
    p = f(1.9875691500e-4) * r + f(1.3981999507e-3)
    for c in (8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = p * r + f(c)
    p = (p * (r * r) + r) + f(1)
    return p * ((n.astype(np.int32) + 127) << 23).view(np.float32)


def tanh(x: np.ndarray) -> np.ndarray:
    """Return tanh(x) within 4 ulp: the rational approximation of Eigen, without fused multiply-add."""
    f = np.float32
    x = np.minimum(np.maximum(x, f(-7.90531110763549805)), f(7.90531110763549805))
    s = x * x
    p = s * f(-2.76076847742355e-16) + f(2.00018790482477e-13)
    for c in (-8.60467152213735e-11, 5.12229709037114e-08, 1.48572235717979e-05, 6.37261928875436e-04):
        p = p * s + f(c)
    p = (p * s + f(4.89352455891786e-03)) * x
    q = s * f(1.19825839466702e-06) + f(1.18534705686654e-04)
    q = q * s + f(2.26843463243900e-03)
    return p / (q * s + f(4.89352518554385e-03))


def _check_finite(x: np.ndarray, where: str) -> None:
    bad = np.argwhere(~np.isfinite(x))
    if len(bad):
        index = tuple(int(i) for i in bad[0])
        raise ValueError(f"{where}[{', '.join(map(str, index))}] is {x[index]}: it must be finite")


def _copied(section: Section | None, data: np.ndarray, length: int) -> np.ndarray | None:
    return None if section is None else section.view(data)[:length].copy()


def _sections(layer: LayerLayout, data: np.ndarray) -> dict[str, np.ndarray]:
    """Copy a layer's small sections, cut to its real rows."""
    arrays = {}
    for name in ("scales", "residuals", "bias", "norm_scale", "norm_offset"):
        section = getattr(layer, name)
        if section is not None:
            grouped = name == "scales" and layer.kind == "w4g128a8"
            view = section.view(data)
            arrays[name] = tiles.ungroup_scales(layer, view) if grouped else view[: layer.rows].copy()
    return arrays
