"""The kernels' float arithmetic in numpy: the same basic operations in the same order, so the same bits."""

from __future__ import annotations

import numpy as np

TINY = np.float32(2.0**-100)  # below this absmax a tensor counts as zero: 127 / absmax must stay finite


def quantize_activations(x: np.ndarray, limit: int, step: np.float32 | None = None) -> tuple[np.ndarray, np.float32]:
    """Return int32 codes in [-limit, limit] and the float32 scale: symmetric, per tensor, half to even.

    The scale is the static `step`, if there is one, with larger values clipped; else that of the largest value.
    """
    if step is not None and step >= TINY:
        with np.errstate(over="ignore"):
            most = np.float32(limit) * step
        return np.rint(np.clip(x, -most, most) * (np.float32(1) / step)).astype(np.int32), step
    absmax = np.abs(x).max()
    if absmax < TINY:
        return np.zeros(x.shape, np.int32), np.float32(0)
    codes = np.rint(x * (np.float32(limit) / absmax)).astype(np.int32)
    return codes, absmax / np.float32(limit)


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


def layer_norm(y: np.ndarray, scale: np.ndarray, offset: np.ndarray, eps: float) -> np.ndarray:
    """Normalise one layer's outputs [out] to mean 0 and variance 1, then scale and shift them."""
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
