"""A floor under the native engine's speed, far below what it reaches, so that only a broken kernel falls through."""

from __future__ import annotations

from itertools import pairwise
from time import perf_counter

import numpy as np
import pytest
import torch
from torch import nn

from quarl_lib.inference import extension, make_engine, pack
from quarl_lib.inference.backends import native
from quarl_lib.inference.modules import spec_from_module


@pytest.mark.slow
@pytest.mark.skipif(
    extension.native() is None or native.instruction_sets().get("avx2") != "ok", reason="no native kernels with AVX2"
)
@pytest.mark.parametrize(("hidden", "calls", "floor"), [(64, 200, 4), (512, 60, 4), (2048, 6, 4)])
def test_int8_is_at_least_four_times_as_fast_as_torch_fp32(hidden, calls, floor):
    torch.set_num_threads(1)
    parts = [p for pair in pairwise([24, hidden, hidden, hidden, 6]) for p in (nn.Linear(*pair), nn.ReLU())]
    module = nn.Sequential(*parts[:-1])
    spec, weights = spec_from_module(module)
    engine = make_engine(spec, "int8", "native")
    engine.load(pack(spec, weights, "int8"))
    observations = np.random.default_rng(0).standard_normal((calls, 24)).astype(np.float32)

    def by_torch(x: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return module(torch.from_numpy(x)).numpy()

    def seconds(act) -> float:
        begin = perf_counter()
        for x in observations:
            act(x)
        return perf_counter() - begin

    ratios = [seconds(by_torch) / seconds(engine) for _ in range(11)]
    assert np.median(ratios) >= floor, ratios


@pytest.mark.slow
@pytest.mark.skipif(native.instruction_sets().get("avx512") != "ok", reason="no kernels with AVX-512 VNNI")
@pytest.mark.parametrize(("hidden", "batch"), [(64, 64), (512, 8), (512, 64), (2048, 8)])
def test_int8_in_batches_keeps_up_with_onnxruntime(hidden, batch):
    pytest.importorskip("onnxruntime")
    torch.set_num_threads(1)
    parts = [p for pair in pairwise([24, hidden, hidden, hidden, 6]) for p in (nn.Linear(*pair), nn.ReLU())]
    spec, weights = spec_from_module(nn.Sequential(*parts[:-1]))
    packed = pack(spec, weights, "int8")
    engines = [make_engine(spec, "int8", name) for name in ("onnxruntime", "native")]
    x = np.random.default_rng(0).standard_normal((batch, 24)).astype(np.float32)
    for engine in engines:
        engine.load(packed)
        engine(x)

    def seconds(engine, calls: int = 3) -> float:
        begin = perf_counter()
        for _ in range(calls):
            engine(x)
        return perf_counter() - begin

    times = np.array([[seconds(engine) for engine in engines] for _ in range(25)])
    peer, own = times.min(axis=0)  # work beside this test adds to both: the least disturbed of each
    assert peer / own >= 0.7, times
