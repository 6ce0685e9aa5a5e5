"""Simulated post-training quantization of real modules against the same sums done in numpy."""

# mypy: disable-error-code="arg-type, index, operator"
from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from quarl_lib.quantization.ptq import quantize_policy
from quarl_lib.quantization.quantizers import QUANTIZERS, precision_bits, storage_bits


def make_mlp(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))


def make_cnn() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(4, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 4 * 4, 5))


def observations(n: int = 500, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(seed)) * torch.tensor([0.01, 1.0, 1.0, 30.0])


def numpy_fake_quantize(x: np.ndarray, low: float, high: float, bits: int) -> np.ndarray:
    low, high = min(low, 0.0), max(high, 0.0)
    scale = np.float32((high - low) / 2**bits)
    zero_point = min(max(np.rint(-low / scale), 0), 2**bits - 1)
    return (np.clip(np.rint(x / scale) + zero_point, 0, 2**bits - 1) - zero_point).astype(np.float32) * scale


def numpy_mlp(policy: nn.Sequential, x: np.ndarray, calibration: np.ndarray, bits: int, per_tensor_observation: bool):
    layers = [m for m in policy if isinstance(m, nn.Linear)]
    seen = calibration
    for i, layer in enumerate(layers):
        weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
        if i or per_tensor_observation:
            x = numpy_fake_quantize(x, seen.min(), seen.max(), bits)
        x = x @ numpy_fake_quantize(weight, weight.min(), weight.max(), bits).T + bias
        seen = seen @ weight.T + bias
        if i < len(layers) - 1:
            x, seen = np.tanh(x), np.tanh(seen)
    return x


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("observation", ["none", "per_tensor"])
def test_paper_mode_is_what_numpy_computes(bits, observation):
    policy, calibration, states = make_mlp(), observations(), observations(20, seed=1)
    quantized = quantize_policy(policy, f"int{bits}", observation=observation, calibration=calibration)
    expected = numpy_mlp(policy, states.numpy(), calibration.numpy(), bits, observation == "per_tensor")
    # A value that lies on a rounding edge may fall either way in another order of summing.
    differs = np.abs(quantized(states).numpy() - expected) > 1e-4
    assert differs.mean() < 0.02


def test_original_is_untouched_and_the_copy_holds_no_gradient():
    policy = make_mlp()
    before = copy.deepcopy(policy.state_dict())
    quantized = quantize_policy(policy, "int2", calibration=observations())
    for name, tensor in policy.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in policy.modules())
    assert policy.training
    assert all(parameter.requires_grad for parameter in policy.parameters())
    assert not any(parameter.requires_grad for parameter in quantized.parameters())
    again = pickle.loads(pickle.dumps(quantized))
    assert torch.equal(again(observations(5)), quantized(observations(5)))


def test_fp32_computes_the_same_bits():
    policy, states = make_mlp(), observations()
    assert torch.equal(quantize_policy(policy, "fp32", calibration=states)(states), policy(states))


def test_error_falls_with_every_bit_more():
    policy, states = make_mlp(), observations()
    reference = policy(states)
    errors = [
        float(
            (quantize_policy(policy, f"int{bits}", "standard", calibration=states)(states) - reference)
            .abs()
            .mean()
            .detach()
        )
        for bits in (2, 3, 4, 6, 8, 12)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 100 * errors[-1]


def test_fp16_rounds_weights_inputs_and_outputs_but_not_biases():
    policy, states = make_mlp(), observations()
    quantized = quantize_policy(policy, "fp16", None, calibration=states)
    assert torch.equal(quantized[0].weight, policy[0].weight.half().float())
    assert torch.equal(quantized[0].bias, policy[0].bias)
    output = quantized(states)
    assert torch.equal(output, output.half().float())
    assert not torch.equal(output, policy(states).half().float())


@pytest.mark.parametrize("name", list(QUANTIZERS))
def test_every_quantizer_is_selected_by_name_and_keeps_biases(name):
    policy, states = make_mlp(), observations()
    quantized = quantize_policy(policy, "int4", name, calibration=states)
    for layer, original in zip(quantized, policy, strict=True):
        if isinstance(layer, nn.Linear):
            assert torch.equal(layer.bias, original.bias)
            rows = len(layer.weight) if QUANTIZERS[name].per_channel else 1
            levels = [len(row.unique()) for row in layer.weight.reshape(rows, -1)]
            assert max(levels) <= 16
    assert torch.isfinite(quantized(states)).all()


def test_better_quantizers_approximate_weights_better_at_four_bits():
    torch.manual_seed(0)
    layer = nn.Linear(64, 64, bias=False)
    layer.weight.data = torch.randn(64, 64) * torch.logspace(-2, 0, 64)[:, None]

    def error(name: str, **options: bool) -> float:
        return float(((quantize_policy(layer, "int4", name, **options).weight - layer.weight) ** 2).sum().detach())

    assert error("mse_clip") < error("standard")
    assert error("symmetric_per_channel") < error("standard") / 2
    assert error("mse_clip_per_channel") < error("per_channel")
    assert error("standard", per_channel=True) == error("per_channel")


def test_convolutions_are_per_channel_and_linear_layers_are_not():
    policy = make_cnn()
    policy[0].weight.data[3] *= 1e-3
    quantized = quantize_policy(policy, "int8", "paper")
    for channel in range(8):
        weight = policy[0].weight[channel].detach().numpy()
        expected = numpy_fake_quantize(weight, weight.min(), weight.max(), 8)
        np.testing.assert_allclose(quantized[0].weight[channel].numpy(), expected, atol=1e-7)
    weight = policy[3].weight.detach().numpy()
    np.testing.assert_allclose(
        quantized[3].weight.numpy(), numpy_fake_quantize(weight, weight.min(), weight.max(), 8), atol=1e-7
    )


def test_observations_per_feature_keep_a_small_feature_that_one_range_for_all_loses():
    policy = nn.Sequential(nn.Linear(4, 4, bias=False))
    policy[0].weight.data = torch.eye(4)
    states = observations()
    outputs = {
        kind: quantize_policy(policy, "int8", "standard", observation=kind, calibration=states)(states)
        for kind in ("none", "per_feature", "per_tensor")
    }
    assert torch.equal(outputs["none"], states)
    assert outputs["per_tensor"][:, 0].abs().max() == 0
    step = (states[:, 0].max() - states[:, 0].min()) / 255
    assert (outputs["per_feature"][:, 0] - states[:, 0]).abs().max() <= step


def test_observations_of_images_per_channel():
    images = torch.rand(30, 4, 9, 9, generator=torch.Generator().manual_seed(0))
    quantized = quantize_policy(make_cnn(), "int8", observation="per_feature", calibration=images)
    assert torch.isfinite(quantized(images)).all()


class TwoBranches(nn.Module):
    """A policy whose two branches both begin at the observation."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.unused = nn.Linear(4, 2), nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.left(x) + self.right(x)


def test_every_branch_that_begins_at_the_observation_follows_the_option():
    policy = TwoBranches()
    kept = quantize_policy(policy, "int8", observation="none", calibration=observations())
    assert not kept.left._forward_pre_hooks
    assert not kept.right._forward_pre_hooks
    lost = quantize_policy(policy, "int8", observation="per_tensor", calibration=observations())
    assert lost.left._forward_pre_hooks
    assert lost.right._forward_pre_hooks


def test_weights_alone_without_calibration():
    quantized = quantize_policy(make_mlp(), "int8")
    assert not any(module._forward_pre_hooks for module in quantized.modules())


def test_errors_name_the_layer():
    policy = make_mlp()
    policy[2].weight.data[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"2\.weight"):
        quantize_policy(policy, "int8")
    policy = make_mlp()
    policy[4].weight.data[0, 0] = 1e5
    with pytest.raises(ValueError, match=r"4\.weight: .*overflows fp16"):
        quantize_policy(policy, "fp16")
    states = observations()
    states[7, 1] = float("inf")
    with pytest.raises(ValueError, match="input of 0"):
        quantize_policy(make_mlp(), "int8", calibration=states)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "int1"}, "precision='int1'"),
        ({"precision": "int8", "quantizer": "papr"}, "quantizer='papr'"),
        ({"precision": "int8", "quantizer": None}, "quantizer=None"),
        ({"precision": "int8", "observation": "feature"}, "observation='feature'"),
        ({"precision": "int8", "calibration": torch.empty(0, 4)}, "calibration of shape"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        quantize_policy(make_mlp(), **options)


def test_precisions():
    assert [precision_bits(p) for p in ("fp32", "fp16", "int8", "int16")] == [None, None, 8, 16]
    assert [storage_bits(p) for p in ("fp32", "fp16", "int4")] == [32, 16, 4]
