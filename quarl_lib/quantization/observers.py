"""What a fake-quantized layer does to its weight or its input: a quantizer maps a tensor onto its grid.

Buffers are named `running_*`, because Stable-Baselines3 copies exactly those to target networks. Ranges are read as
plain floats on every call and quantized weights are never kept: target networks change without telling anybody.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from quarl_lib.quantization import affine

FULL_PRECISION = 32


def round_data(x: Tensor, scale: float | Tensor, low: int, high: int) -> Tensor:
    """Overwrite `x` with `scale * clamp(round(x / scale), low, high)`, unseen by autograd, and return it.

    On a fresh clone or clamp of a tensor this is the straight-through estimator: both save no output for their gradient
    (1; 1 within the limits). An autograd.Function costs more per call than all of this arithmetic on a 64 x 64 layer.
    """
    x.data.div_(scale).round_().clamp_(low, high).mul_(scale)
    return x


class FakeQuantizer(nn.Module):
    """Leave a tensor as it is (32 bits); the base of the others."""

    def __init__(self, num_bits: int = FULL_PRECISION) -> None:
        super().__init__()
        if num_bits != FULL_PRECISION:
            affine.check_bits(num_bits)
        self.num_bits = num_bits

    def observe(self, x: Tensor) -> None:
        """Take note of a training batch, before and after quantization starts."""

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` on the grid, in the same shape and type, differentiable by the straight-through estimator."""
        return x

    def extra_repr(self) -> str:
        """Return what `print(module)` shows."""
        return f"num_bits={self.num_bits}"


class RunningRange(FakeQuantizer):
    """Quantize an input per tensor, on the range that training batches had of late.

    A running minimum and maximum: widened at once, narrowed by an exponential moving average. A plain moving average of
    both, as is usual, is too narrow here: an on-policy batch is small and its samples are correlated.
    """

    running_range: Tensor

    def __init__(self, num_bits: int, decay: float = 0.999) -> None:
        super().__init__(num_bits)
        self.decay = decay
        self.register_buffer("running_range", torch.zeros(3))  # minimum, maximum, batches seen: one read a call

    def observe(self, x: Tensor) -> None:
        """Widen the range to this batch's minimum and maximum, or narrow it a little towards them."""
        low, high = (value.item() for value in torch.aminmax(x.detach()))
        old_low, old_high, batches = self.running_range.tolist()
        keep = self.decay if batches else 0.0
        low, high = min(low, low + keep * (old_low - low)), max(high, high + keep * (old_high - high))
        self.running_range.copy_(torch.tensor((low, high, batches + 1)))

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` on the running range's grid; unchanged as long as no batch was seen."""
        low, high, batches = self.running_range.tolist()
        if not batches:
            return x
        scale, zero_point = affine.range_params(low, high, self.num_bits, "standard")
        first, last = -zero_point, 2**self.num_bits - 1 - zero_point
        # Half a step beyond the outer codes still rounds to them: the gradient ends where a code is clamped.
        return round_data(x.clamp((first - 0.5) * scale, (last + 0.5) * scale), scale, first, last)


class TensorRange(FakeQuantizer):
    """Quantize a weight per tensor, from its least to its largest value; nothing is clamped, the gradient is 1."""

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` with at most 2^num_bits different values."""
        low, high = (value.item() for value in torch.aminmax(x.detach()))
        scale, zero_point = affine.range_params(low, high, self.num_bits, "standard")
        return round_data(x.clone(), scale, -zero_point, 2**self.num_bits - 1 - zero_point)


class ChannelRange(FakeQuantizer):
    """Quantize a weight per output channel (axis 0) from its least to its largest value; the gradient is 1."""

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` with at most 2^num_bits different values in each channel."""
        rows, last = x.detach().flatten(1), 2**self.num_bits - 1
        shape = (-1, *[1] * (x.ndim - 1))
        low, high = rows.amin(1).clamp_(max=0).reshape(shape), rows.amax(1).clamp_(min=0).reshape(shape)
        scale = ((high - low) / last).clamp_(min=affine.SMALLEST_SCALE).masked_fill_(low == high, 1.0)
        first = (low / scale).round_().clamp_(-last, 0)
        result = x.clone()
        torch.clamp(result.data.div_(scale).round_(), first, first + last, out=result.data).mul_(scale)
        return result
