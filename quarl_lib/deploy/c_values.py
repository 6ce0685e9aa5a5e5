"""Numbers as C text and as the bytes of a row."""

from __future__ import annotations

import re

import numpy as np


def packed_codes(matrix: np.ndarray, bits: int) -> np.ndarray:
    """Return a row's codes: one a byte at 8 bits, else runs of columns that share their bytes.

    At 3 bits four runs share the bytes of their low two bits, then eight those of their high ones.
    """
    if bits == 8:
        return matrix.astype(np.int8)
    codes = ((matrix + (2**bits - 1)) / 2).astype(np.uint8)
    if bits == 3:
        codes = np.pad(codes, ((0, 0), (0, -codes.shape[1] % 8)))
        return np.concatenate([_merged(codes & 3, 2), _merged(codes >> 2, 1)], axis=1)
    return _merged(codes, bits)


def _merged(codes: np.ndarray, bits: int) -> np.ndarray:
    parts = 8 // bits
    codes = np.pad(codes, ((0, 0), (0, -codes.shape[1] % parts))).reshape(len(codes), parts, -1)
    shifts = np.arange(parts, dtype=np.uint8)[None, :, None] * np.uint8(bits)
    return np.bitwise_or.reduce(codes << shifts, axis=1)


def float_text(value: float) -> str:
    """Write a float32 so that a compiler reads the same bits."""
    text = f"{np.float32(value):.9g}"
    return f"{text}f" if re.search(r"[.e]", text) else f"{text}.0f"
