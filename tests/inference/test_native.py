"""The C kernels against the numpy reference: codes, sums and floats bit for bit, on every instruction set here."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from inference_cases import both_engines, bounds, mlp, random_spec, random_weights, with_static_inputs

from quarl_lib.inference import PRECISIONS, Head, LayerWeights, Weights, extension, make_engine, pack
from quarl_lib.inference.backends import native as native_backend
from quarl_lib.inference.backends.reference import NumpyEngine
from quarl_lib.inference.layout import layout_of

pytestmark = pytest.mark.skipif(extension.native() is None, reason=extension.missing or "built")
ISAS = [name for name, state in native_backend.instruction_sets().items() if state == "ok"]
INTEGER = [p for p in PRECISIONS if p.startswith("int")]


def assert_layers_equal(native, reference: NumpyEngine, x: np.ndarray) -> None:
    """Walk through the layers with the reference's activations; hold codes, sums and outputs to its bits."""
    for i, layout in enumerate(layout_of(reference.spec, reference.precision).layers):
        codes, sums, y = reference.run_layer(i, x)
        got = native.layer(i, x)
        np.testing.assert_array_equal(np.frombuffer(got[0], np.int16), codes)
        got_sums = np.frombuffer(got[1], np.int32).reshape(-1, layout.rows_padded)[:, : layout.rows]
        np.testing.assert_array_equal(got_sums, np.atleast_2d(sums))
        np.testing.assert_array_equal(np.frombuffer(got[2], np.float32), y)
        x = y


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("seed", range(20))
def test_integer_paths_equal_the_reference(seed, isa):
    rng = np.random.default_rng(seed)
    spec = random_spec(rng)
    weights = random_weights(spec, rng)
    x = (rng.standard_normal((5, spec.layers[0].in_features)) * 3).astype(np.float32)
    for precision in INTEGER:
        learned = with_static_inputs(spec, weights, precision, rng) if seed % 2 else weights
        native, reference = both_engines(spec, learned, precision, isa, seed)
        assert native.isa == isa
        assert_layers_equal(native, reference, x[0])
        np.testing.assert_array_equal([native(row) for row in x], reference(x))
        np.testing.assert_array_equal(native(x), reference(x))


@pytest.mark.parametrize("sizes", [[400, 4096, 1, 64], [3, 1000, 4095, 7], [1, 4096, 33, 4096, 17, 128, 64]])
def test_large_policies_equal_the_reference(sizes):
    rng = np.random.default_rng(0)
    spec = mlp(sizes, Head("tanh", **bounds(sizes[-1])))
    weights = random_weights(spec, rng)
    x = rng.standard_normal(sizes[0]).astype(np.float32)
    for precision in ("int8", "int4g128", "int3", "int2"):
        native, reference = both_engines(spec, weights, precision)
        assert_layers_equal(native, reference, x)
        np.testing.assert_array_equal(native(x), reference(x))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activation", ["relu", "identity"])
@pytest.mark.parametrize("precision", INTEGER)
def test_extreme_weights_and_activations_never_saturate(precision, activation, isa):
    width = 4096
    spec = mlp([1, width, 48, 2], activation=activation)
    signs = np.where(np.arange(48) % 3 == 0, -1, 1).astype(np.float32)
    middle = np.repeat(signs[:, None], width, 1)
    middle[1::3, ::2] *= -1
    first = np.ones((width, 1), np.float32)
    first[::2] *= -1 if activation == "identity" else 1
    parts = [first, middle, np.ones((2, 48), np.float32)]
    weights = Weights(tuple(LayerWeights(w, np.zeros(len(w), np.float32)) for w in parts))
    native, reference = both_engines(spec, weights, precision, isa)
    hidden = reference.run_layer(0, np.array([1], np.float32))[2]
    for x in (hidden, -hidden if activation == "identity" else hidden):
        codes, sums, _ = reference.run_layer(1, x)
        kind = layout_of(spec, precision).layers[1].kind
        limit = {"w8u8": 255, "w8a16": 4128}.get(kind, 127)
        assert np.abs(codes).max() == limit
        largest = {"w8": 127, "w4": 15, "w3": 7, "w2": 3}[kind[:2]] * limit * width
        assert np.abs(np.sum(np.atleast_2d(sums), axis=0, dtype=np.int64)).max() == largest
        direct = np.sign(middle).astype(np.int64) @ codes.astype(np.int64) * (largest // limit // width)
        np.testing.assert_array_equal(np.atleast_2d(sums).sum(axis=0), direct)
        got = np.frombuffer(native.layer(1, x)[1], np.int32).reshape(-1, 48)
        np.testing.assert_array_equal(got, np.atleast_2d(sums))


@pytest.mark.parametrize("isa", ISAS)
def test_random_codes_give_the_sums_of_plain_integers(isa):
    rng = np.random.default_rng(5)
    spec = mlp([1, 777, 99, 2], activation="identity")
    weights = random_weights(spec, rng)
    for precision, levels in (("int8", None), ("int4", 15), ("int3", 7), ("int2", 3)):
        native, _ = both_engines(spec, weights, precision, isa)
        x = rng.standard_normal(777).astype(np.float32)
        codes, sums, _ = (np.frombuffer(part, kind) for part, kind in zip(native.layer(1, x), "hif", strict=True))
        matrix = weights.layers[1].weight.astype(np.float64)
        largest = np.abs(matrix).max(axis=1, keepdims=True)
        largest[largest == 0] = np.inf
        if levels is None:
            integers = np.rint((matrix / largest * 127).astype(np.float32))
        else:
            half = (levels + 1) // 2
            integers = 2 * np.clip(np.floor(matrix / largest * half + half), 0, levels) - levels
        dead = ~np.isfinite(largest[:, 0])
        expected = integers.astype(np.int64) @ codes.astype(np.int64)
        wrong = np.abs(sums[:99].astype(np.int64) - expected)[~dead]
        assert (wrong <= 2 * 127).all()  # at most one weight on the edge between two codes
        assert np.median(wrong) == 0


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_float_paths_are_close_to_float64(precision, isa):
    rng = np.random.default_rng(0)
    for sizes in ([3, 64, 64, 2], [400, 1000, 37, 16], [24, 17, 5]):
        spec = mlp(sizes)
        weights = random_weights(spec, rng)
        native, _ = both_engines(spec, weights, precision, isa)
        x = rng.standard_normal(sizes[0])
        y, scale = np.float32(x).astype(np.float64), np.abs(np.float32(x)).astype(np.float64)
        for i, part in enumerate(weights.layers):
            matrix = part.weight.astype(np.float16 if precision == "fp16" else np.float32).astype(np.float64)
            y, scale = matrix @ y + part.bias, np.abs(matrix) @ scale + np.abs(part.bias)
            y = np.maximum(y, 0) if i + 1 < len(weights.layers) else y
        assert (np.abs(native(np.float32(x)) - y) <= 2e-6 * scale).all()


@pytest.mark.parametrize("kind", ["categorical", "gaussian"])
def test_draws_follow_the_seed_and_the_distribution(kind):
    spec = mlp([2, 3], Head(kind))
    bias = np.array([0, 1, -1], np.float32)
    log_std = np.array([-1, 0, 0.5], np.float32) if kind == "gaussian" else None
    weights = Weights((LayerWeights(np.zeros((3, 2), np.float32), bias),), log_std=log_std)
    native, reference = both_engines(spec, weights, "int8", seed=11)
    x = np.zeros((4000, 2), np.float32)
    draws = native(x)
    np.testing.assert_array_equal(draws, reference(x))
    again, other = both_engines(spec, weights, "int8", seed=11)[0], both_engines(spec, weights, "int8", seed=12)[0]
    np.testing.assert_array_equal(again(x), draws)
    assert (other(x) != draws).any()
    if kind == "categorical":
        expected = np.exp(bias) / np.exp(bias).sum()
        np.testing.assert_allclose(np.bincount(draws) / 4000, expected, atol=0.03)
    else:
        np.testing.assert_allclose(draws.mean(axis=0), bias, atol=0.1)
        np.testing.assert_allclose(draws.std(axis=0), np.exp(log_std), rtol=0.05)  # type: ignore[arg-type]


def test_error_on_default_initialisation_is_small():
    import torch
    from torch import nn

    from quarl_lib.inference.modules import spec_from_module

    torch.manual_seed(1)
    sizes = [24, 2048, 2048, 2048, 6]
    parts = [part for pair in pairwise(sizes) for part in (nn.Linear(*pair), nn.ReLU())]
    spec, weights = spec_from_module(nn.Sequential(*parts[:-1]))
    x = np.random.default_rng(0).standard_normal((40, 24)).astype(np.float32)
    with torch.inference_mode():
        exact = nn.Sequential(*parts[:-1])(torch.from_numpy(x)).numpy()
    for precision, limit in (("fp16", 0.002), ("int8", 0.02), ("int8a16", 0.01), ("int4", 0.1), ("int4g128", 0.1)):
        engine = make_engine(spec, precision, "native")
        engine.load(pack(spec, weights, precision))
        assert np.abs(engine(x) - exact).sum() / np.abs(exact).sum() < limit, precision
