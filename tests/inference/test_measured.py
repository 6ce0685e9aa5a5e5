"""`auto` by a measured table: the faster engine is taken, the times are named, and nothing is measured twice."""

from __future__ import annotations

import json

import numpy as np
import pytest
from inference_cases import mlp, random_weights

from quarl_lib.inference import engines, extension, make_engine, measured, pack

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(extension.native() is None, reason=extension.missing or "built")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("QUARL_CACHE", str(tmp_path))
    monkeypatch.setattr(measured, "_known", {})
    return tmp_path / "engines.json"


def measure_as(monkeypatch, **times: float) -> list[tuple]:
    calls = []

    def measure(spec, precision, batch, makers):
        calls.append((precision, batch, tuple(layer.out_features for layer in spec.layers)))
        return {name: times[name] for name in makers}

    monkeypatch.setattr(measured, "_measure", measure)
    return calls


@pytest.mark.parametrize(
    ("native", "peer", "taken"), [(1.0, 2.0, "native"), (2.0, 1.0, "onnxruntime"), (1.05, 1.0, "native")]
)
def test_the_faster_engine_is_taken_and_both_times_are_named(monkeypatch, native, peer, taken):
    measure_as(monkeypatch, native=native, onnxruntime=peer)
    engine = make_engine(mlp([4, 64, 2]), "int8", batch=16)
    assert engine.backend == taken
    assert f"batches of 16: native {native:.3g}, onnxruntime {peer:.3g}" in engine.reason


def test_a_size_is_measured_once_and_remembered_on_disk(monkeypatch, cache):
    calls = measure_as(monkeypatch, native=1.0, onnxruntime=2.0)
    for sizes, batch in (([4, 64, 2], 5), ([3, 60, 2], 8), ([4, 64, 2], 8), ([4, 65, 2], 8), ([4, 4000, 2], 9999)):
        make_engine(mlp(sizes), "int8", batch=batch)
    assert calls == [("int8", 8, (64, 2)), ("int8", 8, (128, 2)), ("int8", 256, (1024, 2))]
    monkeypatch.setattr(measured, "_known", {})  # another process
    make_engine(mlp([4, 64, 2]), "int8", batch=8)
    assert len(calls) == 3
    table = json.loads(cache.read_text())
    assert len(table) == 3
    assert all(measured.machine() in name for name in table)
    cache.write_text("{half")  # what cannot be read is measured again
    monkeypatch.setattr(measured, "_known", {})
    make_engine(mlp([4, 64, 2]), "int8", batch=8)
    assert len(calls) == 4


def test_a_folder_that_cannot_be_written_costs_nothing_but_the_memory(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("QUARL_CACHE", str(tmp_path / "file" / "below"))
    calls = measure_as(monkeypatch, native=1.0, onnxruntime=2.0)
    for _ in range(2):
        assert make_engine(mlp([4, 64, 2]), "int8").backend == "native"
    assert len(calls) == 1


def test_real_times_are_positive_and_the_engine_acts():
    spec = mlp([3, 16, 2])
    engine = make_engine(spec, "fp32", batch=4)
    engine.load(pack(spec, random_weights(spec, np.random.default_rng(0)), "fp32"))
    assert np.shape(engine(np.ones((4, 3), np.float32))) == (4, 2)
    (times,) = measured._known.values()
    assert set(times) == {"native", "onnxruntime"}
    assert all(value > 0 for value in times.values())


def test_only_what_the_peer_runs_is_measured(monkeypatch):
    calls = measure_as(monkeypatch, native=1.0, onnxruntime=0.1)
    for precision in ("fp16", "int8a16", "int4", "int2"):
        assert make_engine(mlp([4, 64, 2]), precision).backend == "native"
    assert make_engine(mlp([4, 64, 2]), "int8", "native").reason == "asked for by name"
    assert not calls
    from quarl_lib.inference.backends import onnx

    assert engines.PEER_PRECISIONS == onnx.SUPPORTED


def test_a_peer_that_fails_costs_nothing_but_the_choice(monkeypatch):
    def fail(*_):
        raise RuntimeError("no session")

    monkeypatch.setattr(measured, "_measure", fail)
    engine = make_engine(mlp([4, 64, 2]), "int8")
    assert engine.backend == "native"
    assert "onnxruntime does not run here (no session)" in engine.reason


def test_a_batch_below_one_is_refused():
    with pytest.raises(ValueError, match="batch is 0: give"):
        make_engine(mlp([4, 64, 2]), "int8", batch=0)
