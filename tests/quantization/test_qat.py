"""Fake-quantized layers: values and gradients against hand-worked numbers and the other implementations."""

# mypy: disable-error-code="arg-type, operator, union-attr"
from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import nn

from quarl_lib.inference.backends.reference import quantize_activations
from quarl_lib.inference.modules import spec_from_module
from quarl_lib.inference.pack import pack, unpack
from quarl_lib.quantization import affine
from quarl_lib.quantization.engine_grid import EngineInput, EngineWeight
from quarl_lib.quantization.lsq import LearnedEngineInput, LearnedEngineStep, LearnedInputStep, LearnedWeightStep
from quarl_lib.quantization.observers import ChannelRange, RunningRange, TensorRange
from quarl_lib.quantization.ptq import quantize_policy
from quarl_lib.quantization.qat import (
    FakeQuantConv2d,
    FakeQuantLinear,
    QATConfig,
    bake_weights,
    fake_quant_layers,
    insert_fake_quant,
    quantize_trained,
    start_quantization,
)

values = st.floats(-100, 100, width=32)
matrices = hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9), elements=values)
bits = st.integers(2, 8)


def small_mlp(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))


def fake_quantized(config: QATConfig, module: nn.Sequential | None = None) -> nn.Sequential:
    module = copy.deepcopy(module or small_mlp())
    insert_fake_quant(module, [name for name, _ in module.named_children()], config)
    return module


def test_the_estimators_gradient_ends_where_a_code_is_clamped():
    # Range [-1, 1] at 2 bits: step 2/3, zero point round(1.5) = 2, grid -4/3 -2/3 0 2/3.
    quantizer = RunningRange(2)
    quantizer.observe(torch.tensor([-1.0, 1.0]))
    x = torch.tensor([-2.0, -1.5, -0.2, 0.9, 1.2], requires_grad=True)  # in steps: -3 -2.25 -0.3 1.35 1.8
    y = quantizer(x)
    y.backward(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]))
    assert y.tolist() == pytest.approx([-4 / 3, -4 / 3, 0, 2 / 3, 2 / 3])
    assert x.grad.tolist() == [0, 2, 3, 4, 0]
    assert x.tolist() == pytest.approx([-2.0, -1.5, -0.2, 0.9, 1.2])  # the input itself is not overwritten


def test_the_running_range_widens_at_once_and_narrows_by_a_thousandth():
    quantizer = RunningRange(8)
    assert torch.equal(quantizer(torch.tensor([3.0])), torch.tensor([3.0]))  # nothing seen: nothing changed
    quantizer.observe(torch.tensor([-1.0, 2.0]))
    assert quantizer.running_range.tolist() == [-1, 2, 1]
    quantizer.observe(torch.tensor([-3.0, 0.0]))
    assert quantizer.running_range.tolist() == pytest.approx([-3, 1.998, 2])
    quantizer.observe(torch.tensor([-1.0, 0.998]))
    assert quantizer.running_range.tolist() == pytest.approx([-2.998, 1.997, 3])


@settings(max_examples=50, deadline=None)
@given(matrices, bits)
@example(
    np.array([[1e-45, 0], [0, 0], [3, -1e-45]], np.float32), 2
)  # a channel so narrow that a third of it is 0 in float32
def test_ranges_agree_with_the_formulas(matrix, num_bits):
    for quantizer, axis in ((TensorRange(num_bits), None), (ChannelRange(num_bits), 0)):
        ours, theirs = (torch.from_numpy(matrix.copy()).requires_grad_() for _ in range(2))
        y = quantizer(ours)
        params = affine.affine_params(theirs, num_bits, "standard", axis)
        expected = affine.fake_quantize(theirs, *params, num_bits)
        # One step apart where float32 and float64 scales round a value at half a step differently; next to never.
        step = torch.as_tensor(params[0]).expand_as(y)
        close = (y - expected).abs() <= 1e-5 * expected.abs().max() + 1e-30
        assert (close | ((y - expected).abs() <= 1.001 * step)).all()
        assert close.float().mean() >= 0.9 or matrix.size < 10
        y.sum().backward()
        assert (ours.grad == 1).all()


@settings(max_examples=30, deadline=None)
@given(hnp.arrays(np.float32, st.tuples(st.integers(1, 9), st.integers(1, 40)), elements=values))
@example(
    np.array([[45.698612, 57.631542]], np.float32)
)  # half a step at limit 9000: one code apart if 1 / x were rounded first
def test_the_engines_activations_are_simulated_digit_for_digit(rows):
    for num_bits, limit in ((8, 127), (8, 255), (16, 32767), (16, 9000)):
        simulated = EngineInput(num_bits, limit)(torch.from_numpy(rows)).numpy()
        expected = [codes * scale for codes, scale in (quantize_activations(row, limit) for row in rows)]
        np.testing.assert_array_equal(simulated, np.float32(expected))


@settings(max_examples=30, deadline=None)
@given(
    hnp.arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 20)), elements=values),
    st.floats(2.0**-10, 8.0, width=32),
)
def test_the_engines_static_inputs_are_simulated_digit_for_digit(rows, step):
    for num_bits, limit in ((8, 127), (8, 255)):
        quantizer = LearnedEngineInput(num_bits, limit)
        quantizer.running_range.fill_(1.0)
        quantizer.running_step.fill_(step)
        expected = [
            codes * scale for codes, scale in (quantize_activations(row, limit, np.float32(step)) for row in rows)
        ]
        with torch.no_grad():
            np.testing.assert_array_equal(quantizer(torch.from_numpy(rows)).numpy(), np.float32(expected))


def test_a_static_input_starts_at_what_was_seen_and_learns():
    quantizer = LearnedEngineInput(8, 127)
    x = torch.tensor([[0.5, -2.54]])
    assert quantizer(x) is x  # nothing was seen
    quantizer.observe(x)
    y = quantizer(torch.tensor([[0.5, 9.0]], requires_grad=True))
    assert quantizer.step().item() == pytest.approx(0.02)
    np.testing.assert_allclose(y.detach(), [[0.5, 2.54]], rtol=1e-6)
    y.sum().backward()  # the value beyond the last code wants a larger step: d y / d step = 127, by its scale
    assert quantizer.log_gain.grad.item() == pytest.approx(0.02 * 127 / (2 * 127) ** 0.5, rel=1e-3)


@pytest.mark.parametrize("precision", ["int8", "int4", "int3", "int2"])
def test_the_engines_take_learned_steps_digit_for_digit(precision):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(37, 65), nn.ReLU(), nn.Linear(65, 50), nn.ReLU(), nn.Linear(50, 7))
    module[2].weight.data[3] = 0  # a dead channel
    simulated = fake_quantized(replace(QATConfig.for_engine(precision), method="lsq"), module)
    start_quantization(simulated)
    simulated(torch.randn(4, 37))
    simulated[2].weight_quantizer.log_gain.data.uniform_(-4 if precision == "int8" else -1.5, 0.5)
    # So that many weights lie beyond the outermost code.
    spec, weights = spec_from_module(simulated)
    packed = unpack(spec, pack(spec, weights, precision))
    for index, (_, layer) in enumerate(fake_quant_layers(simulated)):
        ours, exact = (w.detach().numpy() for w in (layer.quantized_weight(), layer.weight))
        residual = 0 if index == 1 else (exact - packed.layers[index].weight).mean(axis=1, keepdims=True)
        expected = packed.layers[index].weight + residual
        np.testing.assert_allclose(ours, expected, rtol=0, atol=3e-7 * np.abs(ours).max())
    first, middle, _ = weights.layers
    assert first.step is None
    assert middle.step is not None
    outermost = middle.step * {"int8": 127, "int4": 7.5, "int3": 3.5, "int2": 1.5}[precision]
    clamped = np.abs(middle.weight).max(axis=1) > outermost
    assert clamped.sum() > 5
    np.testing.assert_allclose(np.abs(packed.layers[1].weight).max(axis=1)[clamped], outermost[clamped], rtol=1e-6)
    other = pack(spec, weights, "int4" if precision == "int2" else "int2")  # learned for another number of bits
    plain = replace(weights, layers=tuple(replace(one, step=None) for one in weights.layers))
    assert bytes(other) == bytes(pack(spec, plain, "int4" if precision == "int2" else "int2"))


@pytest.mark.parametrize("precision", ["int8", "int8a16", "int4", "int3", "int2"])
def test_the_engines_weights_are_simulated_digit_for_digit(precision):
    module = nn.Sequential(nn.Linear(37, 65), nn.ReLU(), nn.Linear(65, 50), nn.ReLU(), nn.Linear(50, 7))
    module[2].weight.data[3] = 0  # a dead channel
    spec, weights = spec_from_module(module)
    packed = unpack(spec, pack(spec, weights, precision))
    simulated = fake_quantized(QATConfig.for_engine(precision), module)
    start_quantization(simulated)
    for (_, layer), expected in zip(fake_quant_layers(simulated), packed.layers, strict=True):
        ours, exact = (w.detach().numpy() for w in (layer.quantized_weight(), layer.weight))
        residual = (exact - expected.weight).mean(axis=1, keepdims=True)  # kept beside the codes, added by the kernels
        np.testing.assert_allclose(ours, expected.weight + residual, rtol=0, atol=3e-7 * np.abs(ours).max())
    if precision != "int8a16":
        _, middle, last = (layer.input_quantizer.limit for _, layer in fake_quant_layers(simulated))
        assert (middle, last) == (255 if precision == "int8" else 127, 32767)  # behind a ReLU


def test_a_weight_a_hair_below_a_whole_step_gets_the_engines_code():
    module = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1), nn.ReLU(), nn.Linear(1, 1))
    # At 4 bits the step from code to code is 1/8: -0.375 - 3e-8 lies 3.0000002 steps below 0 and 4.9999998 above the
    # lowest code, which float32 makes 5, so it stands for -2.5 steps and not for -3.5.
    module[2].weight.data = torch.tensor([[1.0, np.nextafter(np.float32(-0.375), np.float32(-1))]])
    spec, weights = spec_from_module(module)
    _, layer, _ = unpack(spec, pack(spec, weights, "int4")).layers
    simulated = EngineWeight(4)(module[2].weight).detach().numpy()
    residual = np.mean([1 - 7.5 / 8, -0.375 + 2.5 / 8])
    np.testing.assert_allclose(layer.weight, [[7.5 / 8, -2.5 / 8]])
    np.testing.assert_allclose(simulated, [[7.5 / 8 + residual, -2.5 / 8 + residual]], rtol=1e-6)


def test_learned_steps_get_the_papers_gradient():
    # Step 0.5, codes -1..1 at 2 bits. x / step: -3 (clamped), 0.4 -> 0, 0.8 -> 1, 5 (clamped).
    quantizer = LearnedWeightStep(2)
    quantizer.running_step.fill_(0.5)
    x = torch.tensor([-1.5, 0.2, 0.4, 2.5], requires_grad=True)
    y = quantizer(x)
    y.backward(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert y.tolist() == [-0.5, 0.0, 0.5, 0.5]
    assert x.grad.tolist() == [0, 2, 3, 0]
    # Equation 3: the limit outside, round(v) - v inside; times step (log-gain) and 1 / sqrt(values * largest code).
    by_step = 1 * -1 + 2 * (0 - 0.4) + 3 * (1 - 0.8) + 4 * 1
    assert quantizer.log_gain.grad.item() == pytest.approx(by_step * 0.5 / np.sqrt(4 * 1), rel=1e-5)


def test_learned_engine_steps_get_the_papers_gradient():
    # Step 0.5, at 2 bits -1.5, -0.5, 0.5, 1.5 steps. x / step: -3 (clamped), 0.4 -> 0.5, 1.2 -> 1.5, 5 (clamped).
    quantizer = LearnedEngineStep(2, channels=1)
    quantizer.running_step.fill_(0.5)
    x = torch.tensor([[-1.5, 0.2, 0.6, 2.5]], requires_grad=True)
    y = quantizer(x)
    y.backward(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    assert y.tolist() == [[-0.75, 0.25, 0.75, 0.75]]
    assert x.grad.tolist() == [[0, 2, 3, 0]]
    by_step = 1 * -1.5 + 2 * (0.5 - 0.4) + 3 * (1.5 - 1.2) + 4 * 1.5
    assert quantizer.log_gain.grad.item() == pytest.approx(by_step * 0.5 / np.sqrt(4 * 2), rel=1e-5)


def test_learned_input_steps_are_unsigned_where_nothing_was_negative():
    for low, codes in ((0.0, 4), (-1.0, 3)):
        quantizer = LearnedInputStep(2)
        quantizer.observe(torch.tensor([low, 3.0]))
        assert len(quantizer(torch.linspace(low, 3, 100)).unique()) <= codes


@pytest.mark.parametrize("num_bits", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("options", [{}, {"method": "lsq"}, {"grid": "engine"}])
def test_every_weight_has_at_most_two_to_the_bits_levels(num_bits, options):
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 200))
    quantized = fake_quantized(QATConfig(num_bits, num_bits, num_bits, **options), module)
    quantized(torch.randn(8, 3, 4, 4))
    start_quantization(quantized)
    (_, conv), (_, linear) = fake_quant_layers(quantized)
    assert isinstance(conv, FakeQuantConv2d)
    assert isinstance(linear, FakeQuantLinear)
    for channel in conv.quantized_weight():
        assert len(channel.unique()) <= 2**num_bits
    weights = linear.quantized_weight() if options.get("grid") == "engine" else [linear.quantized_weight()]
    for tensor in weights:
        assert 2 <= len(tensor.unique()) <= 2**num_bits
    inputs = []
    linear.input_quantizer.register_forward_hook(lambda module, args, output: inputs.append(output))
    quantized(torch.randn(1, 3, 4, 4))
    assert len(inputs[0].unique()) <= 2**num_bits


def test_convolutions_are_quantized_channel_by_channel():
    module = nn.Sequential(nn.Conv2d(1, 2, 2))
    module[0].weight.data = torch.tensor([[[[0.0, 3], [1, 2]]], [[[0.0, 300], [100, 190]]]])
    quantized = fake_quantized(QATConfig(2, 32, 32), module)
    start_quantization(quantized)
    assert quantized[0].quantized_weight().tolist() == [[[[0, 3], [1, 2]]], [[[0, 300], [100, 200]]]]


@pytest.mark.parametrize("options", [{}, {"method": "lsq"}, {"grid": "engine"}])
def test_before_the_start_nothing_differs_from_the_plain_network(options):
    plain = small_mlp()
    state = torch.get_rng_state()
    quantized = fake_quantized(QATConfig(2, 2, 2, **options), plain)
    assert torch.equal(state, torch.get_rng_state())
    x = torch.randn(32, 5)
    assert torch.equal(plain(x), quantized(x))
    quantized(x).square().sum().backward()
    plain(x).square().sum().backward()
    gradients = dict(quantized.named_parameters())
    assert all(torch.equal(p.grad, gradients[name].grad) for name, p in plain.named_parameters())
    start_quantization(quantized)
    assert not torch.allclose(plain(x), quantized(x), atol=1e-2)


def test_parameters_stay_the_same_objects():
    module = small_mlp()
    before = list(module.parameters())
    assert insert_fake_quant(module, ["0", "2", "4"], QATConfig()) == ["0", "2", "4"]
    assert all(a is b for a, b in zip(before, module.parameters(), strict=True))


def test_quantized_weights_are_never_stale():
    quantized = fake_quantized(QATConfig(4, 4, 4))
    x = torch.randn(4, 5)
    quantized(x)
    start_quantization(quantized)
    quantized.eval()
    with torch.no_grad():
        before = quantized(x)
        for parameter in quantized.parameters():
            parameter.data.mul_(2)  # as target networks are updated: past autograd's version counter
        assert not torch.allclose(before, quantized(x), atol=1e-3)


def test_bits_of_edges_observation_and_activations_go_where_they_belong():
    quantized = fake_quantized(QATConfig(weight_bits=2, activation_bits=3, observation_bits=16, edge_bits=8))
    layers = [layer for _, layer in fake_quant_layers(quantized)]
    assert [layer.weight_quantizer.num_bits for layer in layers] == [8, 2, 8]
    assert [layer.input_quantizer.num_bits for layer in layers] == [16, 3, 3]
    full = fake_quantized(QATConfig(32, 32, 32))
    start_quantization(full)
    x = torch.randn(3, 5)
    assert torch.equal(full(x), small_mlp()(x))


@pytest.mark.parametrize("num_bits", [8, 4])
def test_the_grid_without_training_is_that_of_ptq(num_bits):
    module, x = small_mlp(), torch.randn(500, 5)
    ours = quantize_trained(module, ["0", "2", "4"], QATConfig(num_bits, num_bits, num_bits), x)
    theirs = quantize_policy(module, f"int{num_bits}", "standard", observation="per_tensor", calibration=x)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-4)
        assert not torch.allclose(ours(x), module(x), atol=1e-3)


def test_baked_weights_fit_the_plain_network():
    quantized = fake_quantized(QATConfig(3, 32, 32))
    start_quantization(quantized)
    plain = small_mlp()
    plain.load_state_dict(bake_weights(quantized))
    x = torch.randn(7, 5)
    assert torch.equal(plain(x), quantized(x))
    assert all(len(layer.weight.unique()) <= 8 for layer in (plain[0], plain[2], plain[4]))


def test_training_on_the_grid_beats_rounding_after_training():
    torch.manual_seed(0)
    x = torch.randn(512, 5)
    y = torch.stack([x[:, 0] * x[:, 1], x[:, 2].sin(), x[:, 3].abs()], 1)

    def fit(module: nn.Module) -> nn.Module:
        optimizer = torch.optim.Adam(module.parameters(), lr=3e-3)
        for _ in range(300):
            optimizer.zero_grad()
            nn.functional.mse_loss(module(x), y).backward()
            optimizer.step()
        return module.eval()

    config = QATConfig(2, 4, 8)
    rounded = quantize_trained(fit(small_mlp()), ["0", "2", "4"], config, x)
    trained = fake_quantized(config)
    start_quantization(trained)
    errors = [nn.functional.mse_loss(module(x), y).item() for module in (fit(trained), rounded)]
    assert errors[0] < 0.7 * errors[1]


@pytest.mark.parametrize("name", ["weight_bits", "activation_bits", "observation_bits", "edge_bits"])
@pytest.mark.parametrize("value", [1, 17, -8, True])
def test_bits_outside_two_to_sixteen_name_the_parameter(name, value):
    with pytest.raises(ValueError, match=f"{name}={value}"):
        QATConfig(**{name: value})


def test_other_wrong_settings_name_the_parameter():
    for options, said in (
        ({"static_inputs": True, "method": "lsq"}, "static_inputs=True with method='lsq', grid='affine'.*engine"),
        ({"method": "dorefa"}, "method='dorefa'.*minmax, lsq"),
        ({"grid": "log"}, "grid='log'.*affine, engine"),
    ):
        with pytest.raises(ValueError, match=said):
            QATConfig(**options)
    with pytest.raises(ValueError, match="precision='int5'"):
        QATConfig.for_engine("int5")
    with pytest.raises(ValueError, match=r"where=.*has no Linear"):
        insert_fake_quant(nn.Sequential(nn.ReLU()), ["0"], QATConfig())
