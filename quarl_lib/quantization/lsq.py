"""Learned step size quantization (Esser et al., arXiv 1902.08153): the step is trained beside the weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from quarl_lib.quantization.engine_grid import SMALLEST_ROW
from quarl_lib.quantization.observers import FakeQuantizer


class LearnedStep(FakeQuantizer):
    """Quantize on a learned step: `running_step` is where it starts, `log_gain` (one or one per channel) is trained.

    Learning the logarithm keeps the step positive and makes a target network's average of `log_gain` mean something
    from the first update on, because the start travels to it as a `running_*` buffer.
    """

    running_step: Tensor

    def __init__(self, num_bits: int, channels: int = 0, dimensions: int = 2) -> None:
        super().__init__(num_bits)
        shape = (channels, *[1] * (dimensions - 1)) if channels else ()
        self.log_gain = nn.Parameter(torch.zeros(shape))
        self.register_buffer("running_step", torch.zeros(shape))

    def step(self) -> Tensor:
        """Return the present step size."""
        return self.running_step * self.log_gain.exp()

    def _quantize(self, x: Tensor, low: int, high: int, values: int) -> Tensor:
        """Round `x / step` into [low, high] and scale back; `values` share one step.

        Autograd gives the paper's equation 3 by itself: rounding goes unseen, so the step's gradient is the rounding
        error inside the limits and the limit outside, scaled by 1 / sqrt(values * high).
        """
        step = self._scaled_step(values, high)
        ratio = (x / step).clamp(low, high)
        ratio.data.round_()
        return ratio * step

    def _scaled_step(self, values: int, high: int) -> Tensor:
        """Return the step, its gradient scaled by 1 / sqrt(values * high); the very number, which engines get too."""
        step = self.step()
        if not step.requires_grad:
            return step
        return step.detach() + (step - step.detach()) / math.sqrt(values * high)


class LearnedWeightStep(LearnedStep):
    """Quantize a weight on a learned step that starts at 2 mean|w| / sqrt(largest code)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` with at most 2^num_bits - 1 different values per tensor (or per channel)."""
        high = 2 ** (self.num_bits - 1) - 1
        if not self.running_step.any().item():
            magnitude = x.detach().abs()
            mean = magnitude.mean() if self.log_gain.ndim == 0 else magnitude.flatten(1).mean(1)
            start = (2 * mean / math.sqrt(high)).clamp_(min=torch.finfo(torch.float32).tiny)
            self.running_step.copy_(start.reshape(self.running_step.shape))
        return self._quantize(x, -high, high, x.numel() // self.log_gain.numel())


class LearnedEngineStep(LearnedStep):
    """Quantize each row of a weight on a learned step of the engines' grid; `pack` takes the same steps.

    A mid-tread quantizer from 5 bits on, a mid-rise one for fewer, as where steps come from the weights. What lies
    beyond the outermost code is clamped; there is no bias correction, which would undo that.
    """

    def step(self) -> Tensor:
        """Return the present step of each row, at least the smallest that engines take."""
        return super().step().clamp(min=SMALLEST_ROW)

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` with at most 2^num_bits different values in each row."""
        middle = 2 ** (self.num_bits - 1)
        high = middle if self.num_bits <= 4 else middle - 1
        if not self.running_step.any().item():
            mean = x.detach().abs().flatten(1).mean(1)
            start = (2 * mean / math.sqrt(high)).clamp_(min=SMALLEST_ROW)
            self.running_step.copy_(start.reshape(self.running_step.shape))
        step = self._scaled_step(x[0].numel(), high)
        ratio = (x / step).clamp(-high, high)
        steps = x.detach() * step.detach().reciprocal()  # as the engines divide
        if self.num_bits <= 4:
            last = 2 * middle - 1
            ratio.data.copy_(steps.add_(middle).floor_().clamp_(0, last).sub_(last / 2))
        else:
            ratio.data.copy_(steps.clamp_(-high, high).round_())
        return ratio * step


class LearnedInputStep(LearnedStep):
    """Quantize an input on a learned step that starts at the observed range; unsigned where nothing was negative."""

    running_range: Tensor

    def __init__(self, num_bits: int) -> None:
        super().__init__(num_bits)
        self.register_buffer("running_range", torch.zeros(2))  # least and largest value before the start

    def observe(self, x: Tensor) -> None:
        """Widen the range; once quantization has started the step is learned, and the range no longer counts."""
        if not self.running_step.item():
            low, high = (value.item() for value in torch.aminmax(x.detach()))
            old_low, old_high = self.running_range.tolist()
            self.running_range.copy_(torch.tensor((min(low, old_low), max(high, old_high))))

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` on the learned grid; unchanged as long as nothing was observed."""
        least, largest = self.running_range.tolist()
        if not (least or largest):
            return x
        high = 2 ** (self.num_bits - 1) - 1 if least < 0 else 2**self.num_bits - 1
        if not self.running_step.item():
            self.running_step.fill_(max(-least, largest) / high)
        return self._quantize(x, -high if least < 0 else 0, high, max(x.numel() // max(len(x), 1), 1))


class LearnedEngineInput(LearnedInputStep):
    """Quantize an input on a learned step of the engines' grid, whose codes go up to `limit`; `pack` takes it too."""

    def __init__(self, num_bits: int, limit: int) -> None:
        super().__init__(num_bits)
        self.limit = limit

    def step(self) -> Tensor:
        """Return the present step, at least the smallest that engines take."""
        return super().step().clamp(min=SMALLEST_ROW)

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` with at most 2 limit + 1 different values; unchanged as long as nothing was observed."""
        largest = self.running_range.abs().max()
        if not largest.item():
            return x
        if not self.running_step.item():
            self.running_step.copy_((largest / self.limit).clamp(min=SMALLEST_ROW))
        step = self._scaled_step(max(x.numel() // max(len(x), 1), 1), self.limit)
        ratio = (x / step).clamp(-self.limit, self.limit)
        most = step.detach() * self.limit
        ratio.data.copy_((x.detach().clamp(-most, most) * step.detach().reciprocal()).round_())  # as the engines divide
        return ratio * step
