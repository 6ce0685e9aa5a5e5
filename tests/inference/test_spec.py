"""What a PolicySpec accepts, and how torch modules become one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from inference_cases import mlp, random_weights
from torch import nn

from quarl_lib.inference import Conv, Head, Layer, LayerWeights, PolicySpec, Weights, make_engine, pack
from quarl_lib.inference.modules import spec_from_module


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Layer(0, 3), "Layer.in_features is 0"),
        (lambda: Layer(3, 70000), "Layer.out_features is 70000"),
        (lambda: Layer(3, 4, "gelu"), "Layer.activation is 'gelu': choose one of"),
        (lambda: Layer(3, 4, layer_norm_eps=0.0), "layer_norm_eps is 0.0"),
        (lambda: Head("softmax"), "Head.kind is 'softmax'"),
        (lambda: Head("tanh"), "Head.low is empty"),
        (lambda: Head("argmax", (0,), (1,)), "takes no bounds"),
        (lambda: Head("clip", (0, 0), (1,)), "low has 2 values and Head.high 1"),
        (lambda: Head("clip", (1,), (1,)), r"bounds are \[1.0, 1.0\]"),
        (lambda: Head("clip", (float("nan"),), (1,)), "finite bounds"),
        (lambda: PolicySpec(()), "layers is empty"),
        (lambda: PolicySpec((Layer(3, 4), Layer(5, 2))), r"layers\[1\].in_features is 5: layers\[0\] gives 4"),
        (lambda: PolicySpec((Layer(3, 4),), Head("tanh", (0,), (1,))), "low has 1 values: the last layer gives 4"),
        (lambda: PolicySpec((Layer(3, 4),), observation_clip=0.0), "observation_clip is 0.0"),
        (lambda: PolicySpec((Layer(3, 4),), conv=(Conv(1, 1, 1),)), "go together"),
        (lambda: PolicySpec((Layer(3, 4),), conv=(Conv(3, 2, 3),), image_shape=(1, 9, 9)), "it gets 1"),
        (lambda: PolicySpec((Layer(3, 4),), conv=(Conv(1, 2, 3),), image_shape=(1, 9, 9)), "convolutions give 98"),
        (lambda: PolicySpec((Layer(3, 4),), conv=(Conv(1, 2, 8),), image_shape=(1, 7, 9)), "larger than its input"),
        (lambda: Conv(1, 0, 3), "Conv.out_channels is 0"),
    ],
)
def test_a_wrong_spec_is_refused_by_name_and_value(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_fingerprint_names_every_field():
    base = PolicySpec((Layer(3, 4, "relu"), Layer(4, 2)))
    others = [
        PolicySpec((Layer(3, 4, "tanh"), Layer(4, 2))),
        PolicySpec((Layer(3, 4, "relu"), Layer(4, 2)), Head("argmax")),
        PolicySpec((Layer(3, 4, "relu", True), Layer(4, 2))),
        PolicySpec((Layer(3, 4, "relu"), Layer(4, 2)), normalize_observation=True),
        PolicySpec((Layer(3, 4, "relu"), Layer(4, 2)), observation_clip=1.0),
    ]
    assert len({spec.fingerprint for spec in [base, *others]}) == 6
    assert base.fingerprint == PolicySpec((Layer(3, 4, "relu"), Layer(4, 2))).fingerprint
    assert base.num_weights == 3 * 4 + 4 * 2


def test_weights_are_held_against_the_spec():
    spec = mlp([3, 4, 2])
    good = random_weights(spec, np.random.default_rng(0))
    good.check(spec)
    first = good.layers[0]
    with pytest.raises(ValueError, match=r"Weights\.layers has 1 entries: the spec has 2"):
        Weights(good.layers[:1]).check(spec)
    with pytest.raises(ValueError, match=r"layers\[0\].weight has shape \(3, 4\): the spec says \(4, 3\)"):
        Weights((LayerWeights(first.weight.T, first.bias), good.layers[1])).check(spec)
    with pytest.raises(ValueError, match=r"layers\[0\].bias is float64: give a float32 array"):
        Weights((LayerWeights(first.weight, first.bias.astype(float)), good.layers[1])).check(spec)
    with pytest.raises(ValueError, match="log_std is NoneType"):
        good.check(mlp([3, 4, 2], Head("gaussian")))
    first.weight[2, 1] = np.nan
    with pytest.raises(ValueError, match=r"layers\[0\].weight\[2, 1\] is nan"):
        good.check(spec)


def test_a_module_becomes_a_spec_that_acts_the_same():
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Sequential(nn.Linear(5, 16), nn.LayerNorm(16), nn.Tanh(), nn.Dropout(0.5)),
        nn.Linear(16, 12, bias=False), nn.ELU(), nn.Linear(12, 9), nn.SiLU(), nn.Linear(9, 3), nn.Tanh(),
    )  # fmt: skip
    nn.init.normal_(module[0][1].weight)  # type: ignore[index]
    mean, inverse_std = np.arange(5.0), np.full(5, 0.5)
    head = Head("tanh", (-1, -2, 0), (1, 2, 1))
    spec, weights = spec_from_module(
        module.eval(), head, observation_mean=mean, observation_inverse_std=inverse_std, observation_clip=1.0
    )
    assert [layer.activation for layer in spec.layers] == ["tanh", "elu", "silu", "identity"]
    assert [layer.layer_norm for layer in spec.layers] == [True, False, False, False]
    engine = make_engine(spec, "fp32", "numpy")
    engine.load(pack(spec, weights, "fp32"))
    x = np.random.default_rng(0).uniform(-3, 8, (20, 5)).astype(np.float32)
    with torch.inference_mode():
        raw = module(torch.from_numpy(np.clip((x - mean) * inverse_std, -1, 1).astype(np.float32))).numpy()
    low, high = np.array(head.low), np.array(head.high)
    np.testing.assert_allclose(engine(x), low + (raw + 1) / 2 * (high - low), atol=2e-6)


def test_weights_are_views_that_follow_training():
    module = nn.Sequential(nn.Linear(3, 2))
    _, weights = spec_from_module(module)
    with torch.no_grad():
        module[0].weight.fill_(7.0)  # type: ignore[operator]
    assert (weights.layers[0].weight == 7.0).all()


def test_nature_cnn_becomes_a_spec():
    module = nn.Sequential(
        nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 6),
    )  # fmt: skip
    spec, weights = spec_from_module(module, Head("argmax"), image_shape=(4, 84, 84))
    assert spec.conv == (Conv(4, 32, 8, 4), Conv(32, 64, 4, 2), Conv(64, 64, 3, 1))
    assert spec.observation_shape == (4, 84, 84)
    assert spec.num_weights == 8192 + 32768 + 36864 + 3136 * 512 + 512 * 6
    assert weights.conv[1].weight.shape == (64, 32, 4, 4)
    with pytest.raises(ValueError, match="convolutions run on onnxruntime and torch only"):
        make_engine(spec, "int8", "numpy")


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.ReLU()), "0 is ReLU"),
        (nn.Sequential(nn.Linear(2, 2), nn.GELU()), "1 is GELU"),
        (nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Tanh()), "a second activation in a row"),
        (nn.Sequential(nn.Linear(2, 2), nn.ELU(0.5)), "alpha other than 1"),
        (nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.LayerNorm(2)), "LayerNorm stands between"),
        (nn.Sequential(nn.Sequential(nn.Conv2d(1, 1, 3, padding=1))), "0.0 is Conv2d"),
        (nn.Sequential(nn.Identity()), "no Linear layer"),
        (nn.LSTM(2, 2), "LSTM is LSTM"),
    ],
)
def test_a_module_that_is_no_chain_is_refused(module, message):
    with pytest.raises(ValueError, match=message):
        spec_from_module(module)
