"""Weights to tiles and back in numpy: quantize a matrix into a layer's sections (see layout.py), decode them again."""

from __future__ import annotations

import numpy as np

from quarl_lib.inference.layout import BITS, GROUP, PANEL, TALL_PANEL, LayerLayout

TINY = np.float32(2.0**-100)  # a row whose absmax is below this counts as zero
_LEVELS = {"w4a8": 16, "w4g128a8": 16, "w3a8": 8, "w2a8": 4}


def encode(layer: LayerLayout, weight: np.ndarray, step: np.ndarray | None = None) -> tuple[np.ndarray | None, ...]:
    """Return the sections tiles, scales, row sums and residuals (or None) of a finite float32 [out, in] matrix.

    `step` [out] is a learned step from code to code; without it a row's largest weight gives the step.
    """
    padded = np.zeros((layer.rows_padded, layer.cols_padded), np.float32)
    padded[: layer.rows, : layer.cols] = weight
    if layer.kind in ("fp32", "fp16"):
        with np.errstate(over="ignore"):
            values = padded.astype(np.float16 if layer.kind == "fp16" else np.float32)
        return _by_panel([panel.T for panel in _panels(values)]), None, None, None
    if layer.kind.startswith("w8"):
        scales, codes, errors = _quantize_rows(padded) if step is None else _by_step(layer, padded, step)
        sums = codes.sum(axis=1, dtype=np.int32) if layer.row_sums else None
        residuals = _lane_sums(errors) * scales / np.float32(layer.cols)
        columns = layer.kind == "w8u8"
        panels = _panels(codes, TALL_PANEL if columns else PANEL)
        tiles = [panel.T if columns else _interleave(panel, 1) for panel in panels]
        return _by_panel(tiles), scales, sums, residuals
    grouped = padded.reshape(layer.rows_padded, -1, GROUP if layer.kind == "w4g128a8" else layer.cols_padded)
    if step is None:
        scales, codes, errors = _quantize_mid_rise(grouped, _LEVELS[layer.kind])
    else:
        scales, codes, errors = _by_step(layer, padded, step)
        scales = scales[:, None]
    codes, errors = codes.reshape(padded.shape), errors.reshape(padded.shape)
    codes[layer.rows :] = errors[layer.rows :] = 0
    codes[:, layer.cols :] = errors[:, layer.cols :] = 0
    total = np.zeros(layer.rows_padded, np.float32)
    for g in range(grouped.shape[1]):
        total += _lane_sums(errors.reshape(grouped.shape)[:, g]) * (np.float32(2) * scales[:, g])
    tiles = [_merge(panel, BITS[layer.kind]) for panel in _panels(codes)]
    scales = _by_panel([panel.T for panel in _panels(scales)]).view(np.float32)
    return _by_panel(tiles), scales, None, total / np.float32(layer.cols)


def decode(layer: LayerLayout, tiles: np.ndarray) -> np.ndarray:
    """Return the float32 [out, in] matrix of values before scaling (integers where the layer is quantized)."""
    height = TALL_PANEL if layer.kind == "w8u8" else PANEL
    by_row = tiles.reshape(layer.rows_padded, -1)  # a panel's bytes are as many as its rows', though in another order
    panels = [_decode_panel(layer, panel.reshape(-1), len(panel)) for panel in _panels(by_row, height)]
    return np.ascontiguousarray(np.concatenate(panels)[: layer.rows, : layer.cols], np.float32)


def ungroup_scales(layer: LayerLayout, scales: np.ndarray) -> np.ndarray:
    """Return the scales of a grouped layer as [groups, out]."""
    groups = len(scales) // layer.rows_padded
    starts = range(0, layer.rows_padded, PANEL)
    panels = [scales[s * groups : (s + PANEL) * groups].reshape(groups, -1) for s in starts]
    return np.ascontiguousarray(np.concatenate(panels, axis=1)[:, : layer.rows])


def _decode_panel(layer: LayerLayout, panel: np.ndarray, rows: int) -> np.ndarray:
    if layer.kind in ("fp32", "fp16"):
        return panel.view("<f4" if layer.kind == "fp32" else "<f2").reshape(-1, rows).T
    if layer.kind == "w8u8":
        return panel.view(np.int8).reshape(-1, rows).T
    bits, levels = BITS[layer.kind], 2 ** BITS[layer.kind]
    words = panel.reshape(-1, 3 if bits == 3 else 1, rows, 4).transpose(1, 2, 0, 3)
    if bits == 8:
        return words[0].view(np.int8).reshape(rows, -1)
    parts = [(word >> shift) & (levels - 1) for word in words for shift in range(0, 9 - bits, bits)]
    if bits == 3:
        parts += [(words[p - 6] >> 5 & 6) | (words[2] >> p & 1) for p in (6, 7)]
    codes = np.stack(parts, axis=2).reshape(rows, -1)
    return 2.0 * codes - (levels - 1)


def _quantize_rows(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return scales [rows], codes -127..127 (half to even) and rounding errors, in steps."""
    absmax = np.abs(weight).max(axis=1, keepdims=True)
    zero = absmax < TINY
    steps = weight * np.where(zero, np.float32(0), np.float32(127) / np.where(zero, np.float32(1), absmax))
    codes = np.rint(steps)
    scales = np.where(zero, np.float32(0), absmax / np.float32(127))[:, 0]
    return scales, codes.astype(np.int8), steps - codes


def _by_step(layer: LayerLayout, weight: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return scales, codes clamped to their range, and no errors: what was learned is not corrected."""
    padded = np.zeros((len(weight), 1), np.float32)
    padded[: layer.rows, 0] = step
    with np.errstate(over="ignore"):
        steps = weight * (np.float32(1) / np.where(padded > 0, padded, np.float32(1)))
    no_errors = np.zeros(weight.shape, np.float32)
    if layer.kind not in _LEVELS:
        codes = np.rint(np.clip(steps, np.float32(-127), np.float32(127))).astype(np.int8)
        return padded[:, 0], codes, no_errors
    levels = _LEVELS[layer.kind]
    codes = np.clip(steps + np.float32(levels // 2), np.float32(0), np.float32(levels - 1)).astype(np.uint8)
    return padded[:, 0] * np.float32(0.5), codes, no_errors


def _quantize_mid_rise(weight: np.ndarray, levels: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return scales, codes 0..levels-1 for (2 code - levels + 1) * scale, and errors, of [rows, groups, width]."""
    half = np.float32(levels // 2)
    absmax = np.abs(weight).max(axis=2, keepdims=True)
    zero = absmax < TINY
    steps = weight * (half / np.where(zero, np.float32(1), absmax))
    codes = np.clip(steps + half, np.float32(0), np.float32(levels - 1)).astype(np.uint8)
    errors = steps - (codes.astype(np.float32) - (half - np.float32(0.5)))
    scales = np.where(zero, np.float32(0), absmax / np.float32(levels))[:, :, 0]
    return scales, np.where(zero, 0, codes).astype(np.uint8), np.where(zero, np.float32(0), errors)


def _lane_sums(rows: np.ndarray) -> np.ndarray:
    """Sum each row in 32 lanes, each in order, then by halves: the order of the C code."""
    padded = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 32)))
    lanes = np.cumsum(padded.reshape(len(rows), -1, 32), axis=1)[:, -1]
    while lanes.shape[1] > 1:
        lanes = lanes[:, : lanes.shape[1] // 2] + lanes[:, lanes.shape[1] // 2 :]
    return lanes[:, 0]


def _panels(matrix: np.ndarray, height: int = PANEL) -> list[np.ndarray]:
    return [matrix[start : start + height] for start in range(0, len(matrix), height)]


def _interleave(panel: np.ndarray, parts: int) -> np.ndarray:
    """Order [rows, cols] as [column step, row, part, 4]; a step holds `parts` runs of four columns."""
    rows = len(panel)
    return panel.reshape(rows, -1, parts, 4).transpose(1, 0, 2, 3)


def _merge(panel: np.ndarray, bits: int) -> np.ndarray:
    """Merge codes [rows, cols] into [column step, word, row, 4] bytes: one word, or three at 3 bits."""
    if bits == 3:
        parts = _interleave(panel, 8)
        words = parts[:, :, 0:6:2] | parts[:, :, 1:6:2] << 3
        words[:, :, :2] |= parts[:, :, 6:] >> 1 << 6
        words[:, :, 2] |= (parts[:, :, 6] & 1) << 6 | (parts[:, :, 7] & 1) << 7
        return words.transpose(0, 2, 1, 3)
    parts = _interleave(panel, 8 // bits)
    shifts = np.arange(8 // bits, dtype=np.uint8)[:, None] * np.uint8(bits)
    return np.bitwise_or.reduce(parts << shifts, axis=2)


def _by_panel(panels: list[np.ndarray]) -> np.ndarray:
    """Concatenate panels into one row of bytes."""
    return np.concatenate([np.ascontiguousarray(p).reshape(-1).view(np.uint8) for p in panels])
