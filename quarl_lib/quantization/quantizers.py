"""The quantizers that a study selects by name, and what a precision's name says."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import Tensor

from quarl_lib.quantization.affine import MAX_BITS, MIN_BITS, affine_params, fake_quantize


@dataclass(frozen=True)
class Quantizer:
    """How weights become codes; activations always take the affine, per-tensor form of the same mode and clipping."""

    mode: str = "paper"
    symmetric: bool = False
    per_channel: bool = False
    clip: str = "none"

    def weight(self, weight: Tensor, num_bits: int, per_channel: bool, name: str) -> Tensor:
        """Return a layer's weight [out, in, ...] quantized and dequantized, per output channel or as one tensor.

        Raises:
            ValueError: the weight holds NaN or infinity; `name` says which layer's.
        """
        axis = 0 if per_channel or self.per_channel else None
        params = affine_params(weight, num_bits, self.mode, axis, self.symmetric, self.clip, name)
        return fake_quantize(weight, *params, num_bits)


QUANTIZERS = {
    "paper": Quantizer("paper"),
    "standard": Quantizer("standard"),
    "per_channel": Quantizer("standard", per_channel=True),
    "symmetric_per_channel": Quantizer("standard", symmetric=True, per_channel=True),
    "mse_clip": Quantizer("standard", clip="mse"),
    "mse_clip_per_channel": Quantizer("standard", per_channel=True, clip="mse"),
}


def quantizer_named(name: str | None) -> Quantizer:
    """Return the quantizer of a name.

    Raises:
        ValueError: there is none of that name.
    """
    if name is None or name not in QUANTIZERS:
        raise ValueError(f"quantizer={name!r}: choose one of {', '.join(QUANTIZERS)}")
    return QUANTIZERS[name]


def precision_bits(precision: str) -> int | None:
    """Return the bits of "int2" to "int16", None for "fp32" and "fp16".

    Raises:
        ValueError: the name says none of these.
    """
    if precision in ("fp32", "fp16"):
        return None
    match = re.fullmatch(r"int(\d+)", precision) if isinstance(precision, str) else None
    if match is None or not MIN_BITS <= int(match[1]) <= MAX_BITS:
        raise ValueError(f"precision={precision!r}: choose fp32, fp16 or int{MIN_BITS} to int{MAX_BITS}")
    return int(match[1])


def storage_bits(precision: str) -> int:
    """Return the bits that one value takes: 32, 16 or those of the integer."""
    return precision_bits(precision) or int(precision.removeprefix("fp"))
