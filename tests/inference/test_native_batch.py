"""Batches on the register-blocked kernels: the reference's bits at every number of observations and shape of panel."""

from __future__ import annotations

import numpy as np
import pytest
from inference_cases import both_engines, bounds, mlp, random_spec, random_weights, with_static_inputs

from quarl_lib.inference import PRECISIONS, Head, LayerWeights, Weights, extension
from quarl_lib.inference.backends import native as native_backend

pytestmark = pytest.mark.skipif(extension.native() is None, reason=extension.missing or "built")
ISAS = [name for name, state in native_backend.instruction_sets().items() if state == "ok"]
INTEGER = [p for p in PRECISIONS if p.startswith("int")]
# Around the first batched one (4 to 16), around a tile of 6, and around the scratch's 128 rows.
SIZES = (1, 3, 4, 5, 6, 7, 8, 13, 16, 17, 31, 127, 128, 129, 260)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("seed", range(8))
def test_every_batch_equals_the_reference(seed, isa):
    rng = np.random.default_rng(seed)
    spec = random_spec(rng, max_hidden=200, max_layers=4)
    weights = random_weights(spec, rng)
    n = SIZES[-seed - 1]
    x = (rng.standard_normal((n, spec.layers[0].in_features)) * 3).astype(np.float32)
    for precision in INTEGER:
        learned = with_static_inputs(spec, weights, precision, rng) if seed % 2 else weights
        native, reference = both_engines(spec, learned, precision, isa, seed)
        np.testing.assert_array_equal(native(x), reference(x))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("precision", INTEGER)
@pytest.mark.parametrize("activation", ["relu", "identity"])
def test_an_observation_does_not_depend_on_those_beside_it(precision, activation, isa):
    """Rows of one block, of a panel, and of one more; more columns than a slab has."""
    rng = np.random.default_rng(3)
    spec = mlp([700, 273, 48, 16], Head("tanh", **bounds(16)), activation)
    native, _ = both_engines(spec, random_weights(spec, rng), precision, isa)
    x = rng.standard_normal((max(SIZES), 700)).astype(np.float32)
    one_by_one = np.stack([native(row) for row in x])
    for n in SIZES:
        np.testing.assert_array_equal(native(x[-n:]), one_by_one[-n:])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activation", ["relu", "identity"])
@pytest.mark.parametrize("precision", INTEGER)
def test_extreme_batches_never_saturate(precision, activation, isa):
    """All weights and activations at their limits, as for a single observation."""
    width = 4096
    spec = mlp([1, width, 48, 2], activation=activation)
    middle = np.repeat(np.where(np.arange(48) % 3 == 0, -1, 1).astype(np.float32)[:, None], width, 1)
    first = np.ones((width, 1), np.float32)
    first[::2] *= -1 if activation == "identity" else 1
    parts = [first, middle, np.ones((2, 48), np.float32)]
    weights = Weights(tuple(LayerWeights(w, np.zeros(len(w), np.float32)) for w in parts))
    native, reference = both_engines(spec, weights, precision, isa)
    values = [1, -1, 0, 1e-30, 2, -3, 1e30 if activation == "relu" else 7, 5]
    x = np.array(3 * values, np.float32)[:, None]
    np.testing.assert_array_equal(native(x), reference(x))


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_a_batch_that_overflows_names_layer_and_row(precision):
    spec = mlp([1, 1, 1, 1])
    huge = LayerWeights(np.full((1, 1), 3e38, np.float32), np.zeros(1, np.float32))
    native, _ = both_engines(spec, Weights((huge, huge, huge)), precision)
    x = np.zeros((20, 1), np.float32)
    x[17] = 10
    with pytest.raises(ValueError, match=r"layers\[[012]\]\[0\] is (inf|nan): it must be finite"):
        native(x)
