"""Uniform affine quantization against numbers worked out by hand and against plain numpy."""

# mypy: disable-error-code="arg-type, union-attr"
from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from quarl_lib.quantization.affine import (
    affine_params,
    cast_fp16,
    fake_quantize,
    range_params,
)


def codes_of(x: torch.Tensor, scale: float, zero_point: int, bits: int) -> torch.Tensor:
    """Return the codes that the quantize-dequantize pair went through."""
    return (fake_quantize(x, scale, zero_point, bits).double() / scale + zero_point).round().to(torch.int32)


HAND_WORKED = [
    # values, bits, mode, scale, zero point, codes, values again
    ([-1, 0, 0.5, 1], 8, "paper", 0.0078125, 128, [0, 128, 192, 255], [-1, 0, 0.5, 0.9921875]),
    ([-1, 0, 0.5, 1], 2, "paper", 0.5, 2, [0, 2, 3, 3], [-1, 0, 0.5, 0.5]),
    ([0.5, 1, 2], 8, "paper", 0.0078125, 0, [64, 128, 255], [0.5, 1, 1.9921875]),
    ([0.7, 0.7], 8, "paper", 0.002734375, 0, [255, 255], [0.697265625] * 2),
    ([0.7, 0.7], 8, "standard", 0.7 / 255, 0, [255, 255], [0.7, 0.7]),
    ([-2, -1, -0.5], 8, "paper", 0.0078125, 255, [0, 127, 191], [-1.9921875, -1, -0.5]),
    ([0, 0, 0], 8, "paper", 1.0, 0, [0, 0, 0], [0, 0, 0]),
    ([-1, 2], 2, "standard", 1.0, 1, [0, 3], [-1, 2]),
    # half to even: 0.5, 1.5 and 2.5 steps are 0, 2 and 2
    ([0.5, 1.5, 2.5, 3], 2, "standard", 1.0, 0, [0, 2, 2, 3], [0, 2, 2, 3]),
]


@pytest.mark.parametrize(("values", "bits", "mode", "scale", "zero_point", "codes", "again"), HAND_WORKED)
def test_hand_worked_values(values, bits, mode, scale, zero_point, codes, again):
    x = torch.tensor(values, dtype=torch.float32)
    found_scale, found_zero_point = affine_params(x, bits, mode)
    assert isinstance(found_scale, float)
    assert isinstance(found_zero_point, int)
    assert found_scale == pytest.approx(scale, rel=1e-7)
    assert found_zero_point == zero_point
    assert codes_of(x, found_scale, found_zero_point, bits).tolist() == codes
    assert fake_quantize(x, found_scale, found_zero_point, bits).tolist() == pytest.approx(again, abs=1e-7)


def test_symmetric_puts_zero_on_the_middle_code():
    x = torch.tensor([-1.27, 0.0, 0.5])
    scale, zero_point = affine_params(x, 8, "standard", symmetric=True)
    assert (scale, zero_point) == (pytest.approx(0.01), 128)
    assert codes_of(x, scale, zero_point, 8).tolist() == [1, 128, 178]
    assert affine_params(x, 8, "paper", symmetric=True)[0] == pytest.approx(1.27 / 128)


def test_per_channel_is_per_tensor_channel_by_channel():
    x = torch.randn(3, 4, 2, 2, generator=torch.Generator().manual_seed(0))
    for axis in (0, 1):
        scale, zero_point = affine_params(x, 4, "standard", channel_axis=axis)
        whole = fake_quantize(x, scale, zero_point, 4)
        for channel in range(x.shape[axis]):
            one = x.select(axis, channel)
            torch.testing.assert_close(
                whole.select(axis, channel), fake_quantize(one, *affine_params(one, 4, "standard"), 4)
            )


def test_dead_channel_empty_one_element_and_non_contiguous():
    x = torch.tensor([[0.0, 0.0], [1.0, -1.0]])
    scale, zero_point = affine_params(x, 8, channel_axis=0)
    assert torch.isfinite(scale).all()
    assert fake_quantize(x, scale, zero_point, 8)[0].tolist() == [0, 0]
    assert affine_params(torch.empty(0), 8) == (1.0, 0)
    assert affine_params(torch.empty(3, 0), 8, channel_axis=0)[0].shape == (3, 1)
    assert affine_params(torch.empty(0, 3), 8, channel_axis=0)[0].shape == (0, 1)
    assert affine_params(torch.tensor(2.0), 8, "standard")[0] == pytest.approx(2 / 255)
    wide = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    assert affine_params(wide[::2].T, 5) == affine_params(wide[::2].T.contiguous(), 5)


def test_scale_survives_the_smallest_and_the_largest_floats():
    for x in (torch.tensor([1e-44]), torch.tensor([3.4e38, -3.4e38])):
        for bits in (2, 16):
            scale, zero_point = affine_params(x, bits)
            assert scale > 0
            assert math.isfinite(scale)
            assert torch.isfinite(fake_quantize(x, scale, zero_point, bits)).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_not_finite_is_an_error_that_names_the_layer(bad):
    x = torch.tensor([0.0, bad])
    with pytest.raises(ValueError, match=r"net\.2\.weight: 1 of 2"):
        affine_params(x, 8, name="net.2.weight")
    with pytest.raises(ValueError, match=r"net\.2\.weight"):
        cast_fp16(x, name="net.2.weight")


def test_fp16_rounds_and_refuses_overflow():
    assert cast_fp16(torch.tensor([1 / 3])).item() == float(np.float16(1 / 3))
    assert cast_fp16(torch.tensor([65504.0])).item() == 65504
    with pytest.raises(ValueError, match=r"head: largest magnitude 7e\+04 overflows fp16"):
        cast_fp16(torch.tensor([70000.0]), name="head")


@pytest.mark.parametrize("bits", [1, 17, 8.0, True])
def test_bits_are_checked(bits):
    with pytest.raises(ValueError, match="num_bits"):
        affine_params(torch.ones(2), bits)


def test_unknown_options_are_named():
    with pytest.raises(ValueError, match="mode='papr'"):
        affine_params(torch.ones(2), 8, "papr")
    with pytest.raises(ValueError, match="clip='max'"):
        affine_params(torch.ones(2), 8, clip="max")


def test_straight_through_gradient_is_one_inside_and_zero_where_clamped():
    x = torch.tensor([-3.0, -1.0, 0.3, 1.0, 3.0], requires_grad=True)
    scale, zero_point = range_params(-1, 1, 8, "standard")
    (fake_quantize(x, scale, zero_point, 8) * torch.tensor([1.0, 2, 3, 4, 5])).sum().backward()
    assert x.grad.tolist() == [0, 2, 3, 4, 0]


def test_mse_clip_gives_up_an_outlier_for_the_rest():
    x = torch.cat([torch.linspace(-1, 1, 1001), torch.tensor([8.0])])
    clipped = affine_params(x, 3, "standard", clip="mse")
    plain = affine_params(x, 3, "standard")
    errors = [float(((x - fake_quantize(x, *params, 3)) ** 2).sum()) for params in (clipped, plain)]
    assert errors[0] < errors[1] / 2
    assert clipped[0] < plain[0]


FLOATS = st.floats(-1e6, 1e6, width=32)


@settings(max_examples=60, deadline=None)
@given(
    values=arrays.arrays(np.float32, st.integers(1, 12), elements=FLOATS),
    bits=st.integers(2, 16),
    mode=st.sampled_from(["paper", "standard"]),
    symmetric=st.booleans(),
)
def test_error_is_within_half_a_step_and_zero_is_exact(values, bits, mode, symmetric):
    x = torch.from_numpy(values)
    scale, zero_point = affine_params(x, bits, mode, symmetric=symmetric)
    codes = codes_of(x, scale, zero_point, bits)
    assert 0 <= int(codes.min()) <= int(codes.max()) <= 2**bits - 1
    assert 0 <= zero_point <= 2**bits - 1
    approximation = (codes - zero_point).to(torch.float32) * scale
    torch.testing.assert_close(approximation, fake_quantize(x, scale, zero_point, bits))
    # Half a step of rounding and, as the zero point is rounded too, half a step at an end; in mode paper the last
    # code is a whole step short.
    slack = 1.0 if mode == "standard" else 1.5
    assert float((approximation - x).abs().max()) <= slack * scale * (1 + 1e-3) + 1e-6 * float(x.abs().max())
    assert float(fake_quantize(torch.zeros(1), scale, zero_point, bits)) == 0


@settings(max_examples=30, deadline=None)
@given(values=arrays.arrays(np.float32, (3, 5), elements=FLOATS), bits=st.integers(2, 8))
def test_mse_clip_is_never_worse_than_the_whole_range(values, bits):
    x = torch.from_numpy(values)
    for axis in (None, 0):
        errors = {}
        for clip in ("none", "mse"):
            scale, zero_point = affine_params(x, bits, "standard", channel_axis=axis, clip=clip)
            errors[clip] = float(((x - fake_quantize(x, scale, zero_point, bits)).double() ** 2).sum())
        assert errors["mse"] <= errors["none"] * (1 + 1e-4) + 1e-9
