"""Pack weights into one buffer, the same arrays again and again where training changes them in place."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from quarl_lib.inference import tiles
from quarl_lib.inference.extension import native
from quarl_lib.inference.layout import ALIGN, BITS, KINDS, LayerLayout, Layout, Section, activation_limit, layout_of
from quarl_lib.inference.spec import PRECISIONS, LayerWeights, PolicySpec, Weights

_MULTIPLIER = 0x9E3779B97F4A7C15
PAYLOAD_FIELD, HEADER_FIELD = 48, 56  # of a header: where the checksums lie


class Packer:
    """Packs the same arrays again and again into one buffer: what training changes in place, without allocation.

    Arguments as of `pack`, whose bytes it gives. A ValueError for a weight that is not finite may leave the buffer
    half written, its header's checksum of the weights before: whoever runs on it must load anew.
    """

    def __init__(self, spec: PolicySpec, weights: Weights, precision: str, out: object = None) -> None:
        check_precision(precision)
        layout = layout_of(spec, precision)
        arrays = weights.named_arrays(spec)
        weights.check(spec, finite=False)
        self._vectors = [(name, array) for name, array, _ in arrays if array is not None and array.ndim == 1]
        data = aligned_empty(layout.num_bytes) if out is None else writable(out, layout.num_bytes)
        self.buffer = data.data
        self._copies: list[tuple[np.ndarray, np.ndarray]] = []  # (where to, from which array)
        self._staged: list[tuple[np.ndarray, np.ndarray]] = []  # the same, of matrices that do not lie in one piece
        self._layers = [self._layer(*part, data) for part in _all_layers(layout, weights)]
        self._put(layout.observation_mean, weights.observation_mean, data)
        self._put(layout.observation_inverse_std, weights.observation_inverse_std, data)
        self._put(layout.log_std, weights.log_std, data)
        size = len(layout.header)
        self._head, self._payload = data[:size], data[size:]
        self._header = np.frombuffer(bytearray(layout.header), np.uint8)
        self._version = self._header[32:40].view("<i8")
        self._sums = self._header[PAYLOAD_FIELD : HEADER_FIELD + 8].view("<u8")

    def __call__(self, weights_version: int = 0) -> memoryview:
        """Quantize the arrays as they are now, write the header last, and return the buffer."""
        if not -1 < weights_version < 2**63:
            raise ValueError(f"weights_version is {weights_version}: give 0 to 2^63 - 1")
        for name, vector in self._vectors:
            if not math.isfinite(np.dot(vector, vector)):  # a fifth of the exact test's time; large ones may overflow
                _refuse_non_finite(name, vector)
        for staged, matrix in self._staged:
            np.copyto(staged, matrix)
        for name, layer, matrix, views, arguments in self._layers:
            _encode(name, layer, matrix, views, arguments)
        for section, vector in self._copies:
            section[:] = vector
        self._version[0] = weights_version
        self._sums[0] = checksum(self._payload)
        self._sums[1] = 0
        self._sums[1] = checksum(self._header)
        self._head[:] = self._header
        return self.buffer

    def _layer(self, name: str, layer: LayerLayout, arrays: LayerWeights, data: np.ndarray) -> tuple:
        matrix = np.ascontiguousarray(arrays.weight)
        if not np.shares_memory(matrix, arrays.weight):
            self._staged.append((matrix, arrays.weight))
        sections = (layer.weights, layer.scales, layer.row_sums, layer.residuals)
        views = [None if s is None else s.view(data) for s in sections]
        self._put(layer.bias, arrays.bias, data)
        self._put(layer.input_step, input_step_at(layer, arrays), data)
        self._put(layer.norm_scale, arrays.norm_scale, data)
        self._put(layer.norm_offset, arrays.norm_offset, data)
        flat = matrix.reshape(layer.rows, layer.cols)
        step = arrays.step if has_step_of(layer, arrays) else None
        arguments = (KINDS.index(layer.kind), flat, layer.rows, layer.cols, layer.cols_padded, *views, step)
        return name, layer, matrix, views, arguments

    def _put(self, section: Section | None, values: np.ndarray | None, data: np.ndarray) -> None:
        if section is not None and values is not None:
            view = section.view(data)
            view[len(values) :] = 0
            self._copies.append((view[: len(values)], values))


def has_step_of(layer: LayerLayout, arrays: LayerWeights) -> bool:
    """Say whether the weights' steps were learned for this layer's kind of weights."""
    return arrays.step is not None and arrays.step_bits == BITS[layer.kind] and layer.kind != "w4g128a8"


def input_step_at(layer: LayerLayout, arrays: LayerWeights) -> np.ndarray:
    """Return the step of the input [1], as it changes in training; 0 where none was learned for this layer's codes."""
    own = arrays.input_limit == activation_limit(layer.kind, layer.cols_padded)
    if arrays.input_step is None or not own or (arrays.step is not None and not has_step_of(layer, arrays)):
        return np.zeros(1, np.float32)
    return arrays.input_step


def check_precision(precision: str) -> None:
    """Raise ValueError for a precision that no engine knows."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision is {precision!r}: choose one of {', '.join(PRECISIONS)}")


def checksum(data: np.ndarray) -> int:
    """Return 64 bits over bytes (a multiple of 64): of eight lanes of 64-bit words the sum and the sum of sums, mixed.

    As in Fletcher's checksum a changed word changes its lane's sum, and two swapped words the sum of sums; mixing 16
    values into one leaves a chance of 2^-64. It runs at the speed of memory; a CRC would cost as much as ten actions.
    """
    extension = native()
    if extension is not None:
        return extension.checksum(data)
    words = data.view("<u8").reshape(-1, 8)
    sums = np.zeros(8, np.uint64)
    sums_of_sums = np.zeros(8, np.uint64)
    for start in range(0, len(words), 4096):
        part = words[start : start + 4096]
        weights = np.arange(len(part), 0, -1, dtype=np.uint64)[:, None]
        sums_of_sums += np.uint64(len(part)) * sums + (weights * part).sum(axis=0, dtype=np.uint64)
        sums += part.sum(axis=0, dtype=np.uint64)
    total = 0
    for value in (*sums.tolist(), *sums_of_sums.tolist()):
        total = (total ^ value) * _MULTIPLIER % 2**64
        total ^= total >> 32
    return total


def as_bytes(buffer: object) -> np.ndarray:
    """View any contiguous buffer as uint8."""
    return np.frombuffer(buffer, np.uint8)  # type: ignore[call-overload]


def aligned_empty(num_bytes: int) -> np.ndarray:
    """Return an uninitialised uint8 array whose memory starts at a multiple of 64 bytes."""
    raw = np.empty(num_bytes + ALIGN, np.uint8)
    start = -raw.ctypes.data % ALIGN
    return raw[start : start + num_bytes]


def _all_layers(layout: Layout, weights: Weights) -> Iterator[tuple[str, LayerLayout, LayerWeights]]:
    for i, (layer, arrays) in enumerate(zip(layout.conv, weights.conv, strict=True)):
        yield f"conv[{i}]", layer, arrays
    for i, (layer, arrays) in enumerate(zip(layout.layers, weights.layers, strict=True)):
        yield f"layers[{i}]", layer, arrays


def _encode(name: str, layer: LayerLayout, matrix: np.ndarray, views: list, arguments: tuple) -> None:
    extension = native()
    if extension is not None:
        bad = extension.encode(*arguments)
        if bad >= 0:
            _refuse(f"{name}.weight", matrix, bad, layer.kind)
        return
    _refuse_non_finite(f"{name}.weight", matrix, layer.kind)
    for section, values in zip(views, tiles.encode(layer, arguments[1], arguments[-1]), strict=True):
        if section is not None:
            section[:] = values


def writable(out: object, num_bytes: int) -> np.ndarray:
    data = as_bytes(out)
    if not data.flags.writeable or len(data) < num_bytes:
        state = "read-only" if not data.flags.writeable else f"{len(data)} bytes long"
        raise ValueError(f"out is {state}: give a writable buffer of {num_bytes} bytes")
    return data[:num_bytes]


def _refuse_non_finite(name: str, array: np.ndarray, kind: str = "fp32") -> None:
    limit = 65520 if kind == "fp16" else np.inf  # 65520 is what rounds to infinity in float16
    bad = np.flatnonzero(~(np.abs(array) < limit))
    if len(bad):
        _refuse(name, array, int(bad[0]), kind)


def _refuse(name: str, array: np.ndarray, flat_index: int, kind: str) -> None:
    index = tuple(int(i) for i in np.unravel_index(flat_index, array.shape))
    limit = "finite and below 65520 at fp16" if kind == "fp16" else "finite"
    raise ValueError(f"{name}[{', '.join(map(str, index))}] is {array[index]}: weights must be {limit}")
