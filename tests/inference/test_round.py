"""Floats onto an engine's grid and back: what a learner computes with is what the engine makes of the same numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from quarl_lib.inference import Head, Layer, LayerWeights, PolicySpec, Weights, extension, pack
from quarl_lib.inference.backends.native import instruction_sets
from quarl_lib.inference.layout import layout_of
from quarl_lib.inference.pack import unpack
from quarl_lib.quantization.engine_grid import EngineInput, EngineWeight

NATIVE: Any = extension.native()
pytestmark = pytest.mark.skipif(NATIVE is None, reason=extension.missing or "built")
SIZES = [(1, 1), (3, 5), (16, 31), (17, 33), (40, 64), (64, 200)]
PRECISIONS = {8: "int8a16", 4: "int4", 3: "int3", 2: "int2"}


def matrix(rows, cols, seed=0):
    rng = np.random.default_rng(seed)
    values = (rng.normal(size=(rows, cols)) * 10.0 ** rng.integers(-6, 6, (rows, 1))).astype(np.float32)
    values[0] = 0
    values[-1, : cols // 2] = np.round(values[-1, : cols // 2])
    return values


@pytest.mark.parametrize("limit", [127, 255, 263, 32767])
@pytest.mark.parametrize("size", SIZES)
def test_inputs_lie_on_the_grid_of_quantization_aware_training(size, limit):
    x = matrix(*size)
    expected = EngineInput(8, limit)(torch.from_numpy(x)).numpy()
    NATIVE.round_inputs(x, *size, limit)
    np.testing.assert_array_equal(x, expected)


@pytest.mark.parametrize("bits", PRECISIONS)
@pytest.mark.parametrize("size", SIZES)
def test_weights_are_those_that_the_engine_multiplies_by(size, bits):
    weight = matrix(*size)
    rows, cols = size
    rounded = np.full_like(weight, np.nan)
    NATIVE.round_weights(weight, rows, cols, bits, rounded)
    square = np.eye(cols, dtype=np.float32)  # the first and the last layer are at 8 bits whatever the precision
    layers = [(square, cols), (weight, rows), (np.eye(rows, dtype=np.float32), rows)]
    spec = PolicySpec(tuple(Layer(w.shape[1], n) for w, n in layers), Head("none"))
    arrays = Weights(tuple(LayerWeights(w, np.zeros(n, np.float32)) for w, n in layers))
    data = np.frombuffer(pack(spec, arrays, PRECISIONS[bits]), np.uint8)
    section: Any = layout_of(spec, PRECISIONS[bits]).layers[1].residuals
    residuals = section.view(data)[:rows]
    np.testing.assert_array_equal(rounded, unpack(spec, data).layers[1].weight + residuals[:, None])
    in_torch = EngineWeight(bits)(torch.from_numpy(weight)).numpy()
    assert (np.abs(rounded - in_torch) <= 1e-6 * np.abs(weight).max(1, keepdims=True)).all()  # sums in another order


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_becomes_nan(bad):
    x = np.ones((3, 40), np.float32)
    x[1, 7] = bad
    weight = x.copy()
    for bits in PRECISIONS:
        rounded = np.empty_like(weight)
        NATIVE.round_weights(weight, 3, 40, bits, rounded)
        assert np.isnan(rounded[1]).all()
        assert np.isfinite(rounded[[0, 2]]).all()
    NATIVE.round_inputs(x, 3, 40, 127)
    assert np.isnan(x[1]).all()
    assert (x[[0, 2]] == 1).all()


def test_every_instruction_set_rounds_alike():
    program = (
        "import sys, zlib, numpy as np\nfrom quarl_lib.inference.extension import native\n"
        "rng = np.random.default_rng(0)\nx = rng.normal(size=(9, 77)).astype(np.float32)\ntotal = b''\n"
        "for bits in (8, 4, 3, 2):\n    y = x.copy()\n    native().round_weights(x, 9, 77, bits, y)\n"
        "    total += y.tobytes()\nnative().round_inputs(x, 9, 77, 127)\nprint(zlib.crc32(total + x.tobytes()))"
    )
    found = {
        isa: subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "QUARL_NATIVE_ISA": isa},
            capture_output=True,
            check=True,
        ).stdout
        for isa, state in instruction_sets().items()
        if state == "ok"
    }
    assert len(set(found.values())) == 1, found


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("round_inputs", (np.zeros((2, 3), np.float32), 2, 4, 127), "cannot hold 2 x 4"),
        ("round_inputs", (np.zeros((2, 3), np.float32), -1, 3, 127), "cannot hold -1 x 3"),
        ("round_inputs", (np.zeros((2, 3), np.float32), 2**62, 3, 127), "cannot hold"),
        ("round_inputs", (np.zeros((2, 3), np.float32), 2, 3, 0), "limit=0, give 1 to 32767"),
        ("round_weights", (np.zeros((2, 3), np.float32), 2, 3, 5, np.zeros((2, 3), np.float32)), "bits=5, give 8"),
        ("round_weights", (np.zeros((2, 3), np.float32), 2, 3, 4, np.zeros((1, 3), np.float32)), "cannot hold 2 x 3"),
    ],
)
def test_what_does_not_fit_is_refused(name, arguments, said):
    with pytest.raises(ValueError, match=said):
        getattr(NATIVE, name)(*arguments)
