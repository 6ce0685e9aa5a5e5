"""Inputs quantized on a step that was learned: packed, computed, refused; `test_native*` hold the kernels to it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from inference_cases import both_engines, mlp, random_weights, with_static_inputs

from quarl_lib.inference import LayerWeights, Weights, extension, make_engine
from quarl_lib.inference.arithmetic import quantize_activations
from quarl_lib.inference.backends.reference import NumpyEngine
from quarl_lib.inference.pack import pack, unpack

SPEC = mlp([3, 4, 5, 2])


def test_codes_by_hand():
    x = np.array([0.1, 0.125, 0.375, -9, 0.75, 0.76], np.float32)  # half a step goes to the even code
    codes, scale = quantize_activations(x, 3, np.float32(0.25))
    assert codes.tolist() == [0, 0, 2, -3, 3, 3]
    assert scale == 0.25


finite = st.floats(-(2.0**90), 2.0**90, width=32)


@settings(max_examples=60, deadline=None)
@given(hnp.arrays(np.float32, st.integers(1, 30), elements=finite), st.floats(2.0**-90, 2.0**60, width=32))
@example(np.array([3e38], np.float32), 3e38)  # the last code's value is infinite
def test_a_code_is_within_half_a_step_or_the_last_one(x, step):
    step = np.float32(step)
    codes, scale = quantize_activations(x, 127, step)
    assert scale == step
    exact = x.astype(np.float64) / float(step)
    np.testing.assert_allclose(codes, np.clip(exact, -127, 127), atol=0.5 + 1e-4)


def test_a_layer_by_hand():
    """Input 2, 0.25 and -100 on steps of 0.5, codes 4, 0 (half to even) and -127; weights are whole steps."""
    spec = mlp([3, 3, 1, 1], activation="identity")
    ones = np.zeros(1, np.float32)
    first = LayerWeights(np.eye(3, dtype=np.float32), np.zeros(3, np.float32))
    middle = LayerWeights(
        np.array([[1, 3, -1]], np.float32), ones, step=np.full(1, 2, np.float32), step_bits=2,
        input_step=np.full(1, 0.5, np.float32), input_limit=127,
    )  # fmt: skip
    last = LayerWeights(np.ones((1, 1), np.float32), ones)
    engine = NumpyEngine(spec, "int2")
    engine.load(pack(spec, Weights((first, middle, last)), "int2"))
    codes, sums, y = engine.run_layer(1, np.array([2, 0.25, -100], np.float32))
    assert codes.tolist() == [4, 0, -127]
    assert sums.tolist() == [4 * 1 + 0 * 3 + 127 * 1]  # in halves of the weights' step: 1, 3, -1
    assert y.tolist() == [131 * (2 / 2) * 0.5]


@pytest.mark.parametrize("precision", ["int8", "int4", "int3", "int2"])
def test_it_is_used_at_the_precision_that_learned_it_alone(precision):
    rng = np.random.default_rng(0)
    plain = random_weights(SPEC, rng)
    middle = replace(plain.layers[1], step=np.full(5, 0.1, np.float32), step_bits=int(precision[3:]))
    plain = replace(plain, layers=(plain.layers[0], middle, plain.layers[2]))
    middle = replace(middle, input_step=np.full(1, 0.01, np.float32), input_limit=255 if precision == "int8" else 127)
    learned = replace(plain, layers=(plain.layers[0], middle, plain.layers[2]))
    for other in ("fp32", "fp16", "int8", "int8a16", "int4", "int4g128", "int3", "int2"):
        assert (bytes(pack(SPEC, learned, other)) == bytes(pack(SPEC, plain, other))) == (other != precision)
    assert unpack(SPEC, pack(SPEC, learned, precision)).layers[1].input_step is None


@pytest.mark.parametrize("precision", ["int8", "int4", "int3", "int2"])
def test_both_packers_write_the_same_bytes(precision, monkeypatch):
    rng = np.random.default_rng(1)
    weights = with_static_inputs(SPEC, random_weights(SPEC, rng), precision, rng)
    native = bytes(pack(SPEC, weights, precision))
    monkeypatch.setattr(extension, "loaded", None)
    assert bytes(pack(SPEC, weights, precision)) == native


def test_another_step_is_another_action():
    if extension.native() is None:
        pytest.skip(extension.missing)
    rng = np.random.default_rng(2)
    weights = random_weights(SPEC, rng)
    x = rng.standard_normal((40, 3)).astype(np.float32)
    dynamic, _ = both_engines(SPEC, weights, "int4")
    static, reference = both_engines(SPEC, with_static_inputs(SPEC, weights, "int4", rng), "int4")
    assert (dynamic(x) != static(x)).any()
    np.testing.assert_array_equal(static(x), reference(x))
    with pytest.raises(ValueError, match="is nan: it must be finite"):
        static(np.full(3, np.nan, np.float32))


@pytest.mark.parametrize("step", [0.0, -1.0, np.nan, 2.0**-101])
def test_a_step_that_is_none_is_refused(step):
    weights = random_weights(SPEC, np.random.default_rng(3))
    bad = replace(weights.layers[1], input_step=np.array([step], np.float32), input_limit=127)
    with pytest.raises(ValueError, match=r"layers\[1\].input_step"):
        pack(SPEC, replace(weights, layers=(weights.layers[0], bad, weights.layers[2])), "int4")


def test_it_changes_in_place_as_weights_do():
    """As a learner publishes: the same arrays again and again."""
    rng = np.random.default_rng(4)
    weights = random_weights(SPEC, rng)
    step = np.full(1, 0.01, np.float32)
    middle = replace(weights.layers[1], input_step=step, input_limit=127)
    weights = replace(weights, layers=(weights.layers[0], middle, weights.layers[2]))
    engine = make_engine(SPEC, "int4", "numpy")
    x = np.ones(3, np.float32)
    engine.load(pack(SPEC, weights, "int4"))
    before = engine(x)
    step[0] = 0.05
    engine.load(pack(SPEC, weights, "int4"))
    assert np.any(engine(x) != before)
