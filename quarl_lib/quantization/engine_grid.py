"""The grid on which the integer engines compute, digit for digit: what to train on if a policy is to run there.

`quarl_lib/inference/layout.py` says what the engines do and why; the tests hold the two against each other. Every row
(axis 0) has its own scale: an output channel of a weight, a sample of a batch. The straight-through gradient is 1,
because nothing is clamped.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quarl_lib.quantization.observers import FakeQuantizer

SMALLEST_ROW = 2.0**-100  # a row whose largest magnitude is below this counts as zeros
COLUMN_STEP = 16


class EngineWeight(FakeQuantizer):
    """Quantize a weight as `pack` does: a mid-tread quantizer from 5 bits on, a mid-rise one (no zero) for fewer.

    Bias correction: the mean rounding error of each row is added back to it, as the engines do by their residual.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` with at most 2^num_bits different values in each row; a row of zeros stays zero."""
        largest, divisor = _largest(x)
        result, middle = x.clone(), 2 ** (self.num_bits - 1)
        rounded = result.data
        if self.num_bits <= 4:
            # Counted from the lowest code, as the kernels count: the sum rounds what lies a hair below a whole number.
            last = 2 * middle - 1
            rounded.mul_(_quotient(middle, divisor)).add_(middle).floor_().clamp_(0, last).sub_(last / 2)
            rounded.mul_(largest / middle)
        else:
            rounded.mul_(_quotient(middle - 1, divisor)).round_().mul_(largest / (middle - 1))
        rounded.add_((x.detach() - rounded).mean(tuple(range(1, x.ndim)), keepdim=True))
        return result


class EngineInput(FakeQuantizer):
    """Quantize a layer's input as the engines do in every call, `limit` being the largest code."""

    def __init__(self, num_bits: int, limit: int | None = None) -> None:
        super().__init__(num_bits)
        self.limit = limit or 2 ** (num_bits - 1) - 1

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` with at most 2 limit + 1 different values in each sample."""
        largest, divisor = _largest(x)
        result = x.clone()
        result.data.mul_(_quotient(self.limit, divisor)).round_().mul_(largest / self.limit)
        return result


def largest_code(num_bits: int, weight: Tensor, unsigned: bool) -> int:
    """Return the largest code of the input of a layer with this weight; `unsigned` if it comes from a ReLU.

    Unsigned 8-bit inputs meet 8-bit weights only; 16-bit ones get so many codes that an int32 sum cannot overflow.
    """
    if num_bits > 8:
        columns = -(-weight[0].numel() // COLUMN_STEP) * COLUMN_STEP
        return min(2 ** (num_bits - 1) - 1, (2**31 - 1) // (127 * columns))
    return 2**num_bits - 1 if unsigned else 2 ** (num_bits - 1) - 1


def _largest(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's largest magnitude, broadcasting over `x`, and what to divide by: infinity for zeros."""
    largest = x.detach().abs().amax(tuple(range(1, x.ndim)), keepdim=True)
    return largest, largest.masked_fill(largest < SMALLEST_ROW, torch.inf)


def _quotient(limit: int, divisor: Tensor) -> Tensor:
    """Return limit / divisor rounded once, as the kernels do; torch takes a reciprocal where a number stands above."""
    if limit & (limit - 1) == 0:  # a power of two: both ways round once
        return limit / divisor
    return divisor.new_full((), limit) / divisor
