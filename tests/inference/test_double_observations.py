"""Observations far from zero in units of their deviation: every engine subtracts the mean in double."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from inference_cases import mlp, random_weights

from quarl_lib.inference import Head, extension
from quarl_lib.inference.backends import native
from quarl_lib.inference.engines import BACKENDS, make_engine, unsupported
from quarl_lib.inference.pack import pack
from quarl_lib.inference.spec import PRECISIONS

MEAN, DEVIATION, CLIP = 1e4, 1e-3, 1.5
PLAIN = mlp([7, 40, 40, 3], Head("clip", (-5, -5, -5), (5, 5, 5)))
SPEC = dataclasses.replace(PLAIN, normalize_observation=True, observation_clip=CLIP)
RNG = np.random.default_rng(0)
PLAIN_WEIGHTS = random_weights(PLAIN, RNG)
STATISTICS = MEAN * RNG.uniform(0.5, 1, 7), 1 / (DEVIATION * RNG.uniform(1, 2, 7))
WEIGHTS = dataclasses.replace(
    PLAIN_WEIGHTS, observation_mean=STATISTICS[0], observation_inverse_std=STATISTICS[1]
)  # fmt: skip
MET = STATISTICS[0] + RNG.normal(size=(50, 7)) / STATISTICS[1]


def normalized(met: np.ndarray) -> np.ndarray:
    """Return what Stable-Baselines3's VecNormalize makes of observations."""
    return np.clip((met - STATISTICS[0]) * STATISTICS[1], -CLIP, CLIP).astype(np.float32)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_each_engine_acts_as_on_what_was_normalised_before(backend: str, precision: str) -> None:
    if reason := unsupported(SPEC, precision, backend):
        pytest.skip(reason)
    engine, plain = (make_engine(spec, precision, backend) for spec in (SPEC, PLAIN))
    engine.load(pack(SPEC, WEIGHTS, precision))
    plain.load(pack(PLAIN, PLAIN_WEIGHTS, precision))
    np.testing.assert_array_equal(engine(MET), plain(normalized(MET)))
    assert np.unique(engine(MET), axis=0).shape == (50, 3)
    np.testing.assert_array_equal(engine(MET[7]), plain(normalized(MET[7])))
    for other in (np.asfortranarray(MET), MET.astype(np.float32), np.rint(MET).astype(np.int64)):
        np.testing.assert_array_equal(engine(other), plain(normalized(np.asarray(other, np.float64))))


@pytest.mark.skipif(extension.native() is None, reason=extension.missing or "built")
@pytest.mark.parametrize("isa", [name for name, state in native.instruction_sets().items() if state == "ok"])
def test_kernels_of_every_instruction_set_give_the_references_bits(isa: str) -> None:
    for precision in ("fp32", "int8"):
        buffer = pack(SPEC, WEIGHTS, precision)
        engines = native.create(SPEC, precision, 0, isa), make_engine(SPEC, precision, "numpy")
        for engine in engines:
            engine.load(buffer)
        for met in (MET, MET.astype(np.float32)):
            first, second = (np.asarray(engine(met)) for engine in engines)
            if precision == "int8":
                np.testing.assert_array_equal(first, second)
            np.testing.assert_allclose(first, second, atol=1e-5)


@pytest.mark.parametrize("backend", [name for name in BACKENDS if not unsupported(SPEC, "fp32", name)])
def test_what_is_not_finite_is_named_and_what_is_large_is_clipped(backend: str) -> None:
    engine = make_engine(SPEC, "fp32", backend)
    engine.load(pack(SPEC, WEIGHTS, "fp32"))
    for value in (np.nan, np.inf, -np.inf):
        met = MET.copy()
        met[33, 4] = value
        with pytest.raises(ValueError, match=r"observation\[33, 4\] is -?(nan|inf)"):
            engine(met)
    met = MET[:1].copy()
    met[0, 2], same = 1e200, MET[:1].copy()
    same[0, 2] = STATISTICS[0][2] + 1
    np.testing.assert_array_equal(engine(met), engine(same))
