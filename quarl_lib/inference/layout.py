"""Where everything lies in a packed buffer: the one definition that pack, engines and C kernels share.

    header   64 bytes, then 64 bytes per layer (convolutions first); little-endian, see HEADER and RECORD
    payload  sections, each at a multiple of 64 bytes: the observation's mean and inverse std (float64), log std, then
             per layer weights, scales, row sums, residuals, bias, input step, LayerNorm's scale and offset; absent
             ones take no space

A layer's rows (outputs) are padded to 16 and cut into panels of 64 (w8u8: 256); its columns (inputs) are padded to the
kernel's step. A panel holds, column step by column step, four bytes for each of its rows, so that a kernel streams it
from front to back and the lanes of a vector are rows:

    w8   [panel][column / 4][row][4 codes]      code -127..127, weight = code * scale
    w8u8 [panel][column][row]                   the same codes; a column lies together, so that it can be left out
    w4   [panel][column / 8][row][4 bytes]      byte j: columns j (low nibble) and 4 + j; weight = (2 code - 15) * scale
    w2   [panel][column / 16][row][4 bytes]     byte j: columns j, 4 + j, 8 + j, 12 + j; weight = (2 code - 3) * scale
    w3   [panel][column / 32][3][row][4 bytes]  byte j of word i: columns 8 i + j (low three bits) and 8 i + 4 + j (the
                                                next); bits 6 and 7 of words 0 and 1 are the high two bits of columns
                                                24 + j and 28 + j, of word 2 their lowest; weight = (2 code - 7) * scale
    fp   [panel][column][row]                   float32 or float16

w4, w3 and w2 use all 16, 8 and 4 levels of a mid-rise quantizer: symmetric without a level at zero, so that the
largest error is absmax/16, absmax/8 and absmax/4 (of a mid-tread quantizer absmax/14, absmax/6 and absmax/2). The first
and the last layer of every integer precision are w8 with 16-bit activations: few of a wide policy's bytes, and where
rounding hurts most.

A row's residual, its mean rounding error, is for bias correction: a kernel adds residual * (sum of the activations) and
so cancels the error's part that all activations share, a fifth of it behind a ReLU, at one operation a row.

Activations are quantized per call, symmetric, with one scale: code = round half to even(x * (limit / absmax)), scale =
absmax / limit. A layer whose input step is not 0 has a static one, which training learned: code = round half to even
(clip(x, -limit * step, limit * step) * (1 / step)), scale = step. The limit is 127 (w8a8, w4a8, w3a8, w2a8), 255 for
w8u8, and for w8a16 the largest that keeps int32 sums from overflowing. output = (sum * scale + code_sum * residual) *
activation_scale + bias, in float32.

Behind a ReLU w8a8 becomes w8u8: codes are 0..255, and the columns of those that are 0, half of them as a rule, are not
even read. fp32 and fp16 leave them out as well.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from quarl_lib.inference.spec import ACTIVATIONS, PRECISIONS, PolicySpec

MAGIC = b"QUARLPK\0"
LAYOUT_VERSION = 5
PANEL, TALL_PANEL, BLOCK, GROUP, ALIGN = 64, 256, 16, 128, 64
# magic, layout version, precision, spec fingerprint, total bytes, weights version, layers, header bytes,
# payload checksum, header checksum (of the header with this field 0)
HEADER = struct.Struct("<8sIIQQqIIQQ")
# in, out, kernel kind, activation (bit 8: LayerNorm), offsets of weights, scales, row sums, residuals, bias, norm scale
RECORD = struct.Struct("<IIIIQQQQQQ")

KINDS = ("fp32", "fp16", "w8a8", "w8a16", "w4a8", "w4g128a8", "w2a8", "w8u8", "w3a8")
COLUMN_STEP = {
    "fp32": 8, "fp16": 8, "w8a8": 16, "w8a16": 16, "w4a8": 32, "w4g128a8": GROUP, "w2a8": 64, "w8u8": 16, "w3a8": 32,
}  # fmt: skip
BITS = {
    "fp32": 32, "fp16": 16, "w8a8": 8, "w8a16": 8, "w4a8": 4, "w4g128a8": 4, "w2a8": 2, "w8u8": 8, "w3a8": 3,
}  # fmt: skip
_MIDDLE_KIND = {
    "fp32": "fp32", "fp16": "fp16", "int8": "w8a8", "int8a16": "w8a16",
    "int4": "w4a8", "int4g128": "w4g128a8", "int3": "w3a8", "int2": "w2a8",
}  # fmt: skip


@dataclass(frozen=True)
class Section:
    """An array inside the buffer."""

    offset: int
    shape: tuple[int, ...]
    dtype: str

    def view(self, buffer: np.ndarray) -> np.ndarray:
        """Return the section of a uint8 buffer as an array that shares its memory."""
        num_bytes = prod(self.shape) * np.dtype(self.dtype).itemsize
        return buffer[self.offset : self.offset + num_bytes].view(self.dtype).reshape(self.shape)


@dataclass(frozen=True)
class LayerLayout:
    """One layer's kernel kind, padded sizes and sections."""

    kind: str
    rows: int
    cols: int
    rows_padded: int
    cols_padded: int
    weights: Section
    scales: Section | None
    row_sums: Section | None
    residuals: Section | None
    bias: Section
    input_step: Section | None
    norm_scale: Section | None
    norm_offset: Section | None


@dataclass(frozen=True)
class Layout:
    """The map of one spec at one precision; `header` has its versions and checksums at zero."""

    conv: tuple[LayerLayout, ...]
    layers: tuple[LayerLayout, ...]
    observation_mean: Section | None
    observation_inverse_std: Section | None
    log_std: Section | None
    header: bytes
    num_bytes: int


def kinds_of(activations: Sequence[str], precision: str) -> tuple[str, ...]:
    """Return each layer's kernel kind, first to last, from the layers' activations."""
    kinds = [_MIDDLE_KIND[precision]] * len(activations)
    if precision == "int8":
        kinds = ["w8u8" if before == "relu" else "w8a8" for before in ("", *activations[:-1])]
    if precision.startswith("int"):
        kinds[0] = kinds[-1] = "w8a16"
    return tuple(kinds)


def activation_limit(kind: str, cols_padded: int) -> int:
    """Return the largest activation code; with 16 bits only so large that an int32 sum cannot overflow."""
    if kind == "w8a16":
        return min(32767, (2**31 - 1) // (127 * cols_padded))
    return 255 if kind == "w8u8" else 127


class _Cursor:
    def __init__(self, offset: int) -> None:
        self.offset = offset

    def take(self, dtype: str, *shape: int) -> Section:
        section = Section(self.offset, shape, dtype)
        self.offset += round_up(prod(shape) * np.dtype(dtype).itemsize, ALIGN)
        return section


def round_up(value: int, step: int) -> int:
    """Return the smallest multiple of `step` that is not below `value`."""
    return -(-value // step) * step


@lru_cache(maxsize=256)
def layout_of(spec: PolicySpec, precision: str) -> Layout:
    """Lay out `spec` at `precision`; every buffer of the two has this size and these offsets."""
    num_layers = len(spec.conv) + len(spec.layers)
    header_bytes = HEADER.size + RECORD.size * num_layers
    cursor = _Cursor(header_bytes)
    inputs = round_up(spec.layers[0].in_features, BLOCK)
    mean = cursor.take("<f8", inputs) if spec.normalize_observation else None
    inverse_std = cursor.take("<f8", inputs) if spec.normalize_observation else None
    log_std = cursor.take("<f4", round_up(spec.action_dim, BLOCK)) if spec.head.kind == "gaussian" else None
    shapes = [(c.out_channels, c.in_channels * c.kernel**2, c.activation, False) for c in spec.conv]
    shapes += [(i.out_features, i.in_features, i.activation, i.layer_norm) for i in spec.layers]
    layouts, records = [], []
    kinds = kinds_of([activation for _, _, activation, _ in shapes], precision)
    for kind, (rows, cols, activation, layer_norm) in zip(kinds, shapes, strict=True):
        layout = _layer(cursor, kind, rows, cols, layer_norm)
        layouts.append(layout)
        sections = (
            layout.weights, layout.scales, layout.row_sums, layout.residuals, layout.bias, layout.norm_scale,
        )  # fmt: skip
        flags = ACTIVATIONS.index(activation) | layer_norm << 8
        records.append(RECORD.pack(cols, rows, KINDS.index(kind), flags, *(s.offset if s else 0 for s in sections)))
    start = HEADER.pack(
        MAGIC, LAYOUT_VERSION, PRECISIONS.index(precision), spec.fingerprint, cursor.offset, 0, num_layers,
        header_bytes, 0, 0,
    )  # fmt: skip
    return Layout(
        conv=tuple(layouts[: len(spec.conv)]),
        layers=tuple(layouts[len(spec.conv) :]),
        observation_mean=mean,
        observation_inverse_std=inverse_std,
        log_std=log_std,
        header=start + b"".join(records),
        num_bytes=cursor.offset,
    )


def _layer(cursor: _Cursor, kind: str, rows: int, cols: int, layer_norm: bool) -> LayerLayout:
    rows_padded, cols_padded = round_up(rows, BLOCK), round_up(cols, COLUMN_STEP[kind])
    groups = cols_padded // GROUP if kind == "w4g128a8" else 1
    quantized = kind.startswith("w")
    return LayerLayout(
        kind=kind,
        rows=rows,
        cols=cols,
        rows_padded=rows_padded,
        cols_padded=cols_padded,
        weights=cursor.take("u1", rows_padded * cols_padded * BITS[kind] // 8),
        scales=cursor.take("<f4", rows_padded * groups) if quantized else None,
        row_sums=cursor.take("<i4", rows_padded) if kind == "w8a8" else None,
        residuals=cursor.take("<f4", rows_padded) if quantized else None,
        bias=cursor.take("<f4", rows_padded),
        input_step=cursor.take("<f4", BLOCK) if quantized else None,
        norm_scale=cursor.take("<f4", rows_padded) if layer_norm else None,
        norm_offset=cursor.take("<f4", rows_padded) if layer_norm else None,
    )
