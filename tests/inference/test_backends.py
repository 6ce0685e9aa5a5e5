"""torch and onnxruntime behind the Engine interface: equal at fp32, close at int8, one message, plain refusals."""

# mypy: disable-error-code="arg-type, assignment, attr-defined, misc, union-attr"
from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from quarl_lib.inference import BACKENDS, PRECISIONS, Head, benchmark, choice, make_engine
from quarl_lib.inference.backends import torch as torch_backend
from quarl_lib.inference.benchmark import Schedule, one_thread, paired
from quarl_lib.inference.modules import spec_from_module
from quarl_lib.inference.observations import ObservationCheck
from quarl_lib.inference.pack import pack

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
onnx_backend = pytest.importorskip("quarl_lib.inference.backends.onnx", exc_type=ImportError)
onnx_graph = pytest.importorskip("quarl_lib.inference.backends.onnx_graph", exc_type=ImportError)

BOUNDS = Head("tanh", (-2.0, -1.0, 0.0), (2.0, 1.0, 3.0))


def mlp(*sizes: int, activation: type[nn.Module] = nn.ReLU, norm: bool = False) -> nn.Sequential:
    parts: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        parts += [nn.Linear(before, after), *([nn.LayerNorm(after)] if norm else []), activation()]
    return nn.Sequential(*parts[: -2 if norm else -1])


def small_cnn() -> nn.Sequential:
    front = [nn.Conv2d(2, 8, 4, 2), nn.ReLU(), nn.Conv2d(8, 16, 3, 1), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*front, nn.Linear(16 * 7 * 7, 32), nn.ReLU(), nn.Linear(32, 4))


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(3)


@pytest.mark.parametrize("backend", ["torch", "onnxruntime", "frozen"])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.ELU, nn.SiLU])
@pytest.mark.parametrize("norm", [False, True])
def test_fp32_equals_the_module(backend, activation, norm):
    module = mlp(5, 33, 17, 3, activation=activation, norm=norm)
    mean, inverse_std = np.linspace(-1, 1, 5, dtype=np.float32), np.linspace(0.5, 2, 5, dtype=np.float32)
    spec, weights = spec_from_module(
        module, BOUNDS, observation_mean=mean, observation_inverse_std=inverse_std, observation_clip=1.5
    )
    engine = torch_backend.TorchEngine(spec, "fp32", frozen=True) if backend == "frozen" else None
    engine = engine or make_engine(spec, "fp32", backend)
    engine.load(pack(spec, weights, "fp32", weights_version=7))
    observations = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32)
    with torch.no_grad():
        normal = np.clip((observations - mean) * inverse_std, -1.5, 1.5)
        raw = module(torch.from_numpy(normal)).numpy()
    expected = np.tanh(raw) * [2.0, 1.0, 1.5] + [0.0, 0.0, 1.5]
    np.testing.assert_allclose(engine(observations), expected, atol=1e-5)
    np.testing.assert_allclose(engine(observations[4]), expected[4], atol=1e-5)
    assert engine.weights_version == 7


@pytest.mark.parametrize("backend", ["torch", "onnxruntime"])
def test_discrete_heads_and_clip(backend):
    module = mlp(4, 16, 3)
    observations = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)
    with torch.no_grad():
        raw = module(torch.from_numpy(observations)).numpy()
    spec, weights = spec_from_module(module, Head("argmax"))
    engine = make_engine(spec, "fp32", backend)
    engine.load(pack(spec, weights, "fp32"))
    assert engine(observations).tolist() == raw.argmax(1).tolist()
    assert engine(observations[2]) == raw[2].argmax()
    assert type(engine(observations[2])) is int
    spec, weights = spec_from_module(module, Head("clip", (-0.1, -0.1, -0.1), (0.05, 0.05, 0.05)))
    engine = make_engine(spec, "fp32", backend)
    engine.load(pack(spec, weights, "fp32"))
    np.testing.assert_allclose(engine(observations), raw.clip(-0.1, 0.05), atol=1e-6)


@pytest.mark.parametrize(
    ("backend", "precision", "bound"),
    [
        ("torch", "int8", 0.03),
        ("torch", "fp16", 0.003),
        ("onnxruntime", "int8", 0.03),
        ("onnxruntime", "int4g128", 0.2),
    ],
)
def test_quantized_action_error(backend, precision, bound):
    module = mlp(24, 256, 256, 6)
    spec, weights = spec_from_module(module)
    engine = make_engine(spec, precision, backend)
    engine.load(pack(spec, weights, precision))
    observations = np.random.default_rng(2).normal(size=(64, 24)).astype(np.float32)
    with torch.no_grad():
        exact = module(torch.from_numpy(observations)).numpy()
    error = np.abs(engine(observations) - exact).mean() / np.abs(exact).mean()
    assert 1e-6 < error < bound  # not exact either: it did quantize


@pytest.mark.parametrize("code_max", [63, 127])
def test_convolutions_run_in_int8_once_calibrated(code_max, monkeypatch):
    monkeypatch.setattr(onnx_backend, "weight_code_max", lambda: code_max)
    module = small_cnn()
    spec, weights = spec_from_module(module, image_shape=(2, 20, 20))
    images = np.random.default_rng(4).integers(0, 256, (32, 2, 20, 20)).astype(np.uint8)
    with torch.no_grad():
        exact = module(torch.from_numpy(images) / 255.0).numpy()
    engine = make_engine(spec, "int8", "onnxruntime")
    engine.load(pack(spec, weights, "int8", weights_version=5))
    uncalibrated = engine(images)
    engine.calibrate(images)
    for actions in (uncalibrated, engine(images)):
        assert 1e-5 < np.abs(actions - exact).mean() / np.abs(exact).mean() < 0.05
    assert engine.weights_version == 5
    assert not np.array_equal(uncalibrated, engine(images))
    plain = make_engine(spec, "fp32", "onnxruntime")
    plain.load(pack(spec, weights, "fp32"))
    np.testing.assert_allclose(plain(images), exact, atol=1e-5)
    with pytest.raises(ValueError, match="calibrate at fp32"):
        plain.calibrate(images)


def test_onnxruntime_recognises_every_quantized_layer(tmp_path):
    """A pattern that it does not recognise still gives right actions, but in fp32 and up to 20 times slower."""
    spec, weights = spec_from_module(small_cnn(), image_shape=(2, 20, 20))
    images = np.random.default_rng(4).integers(0, 256, (4, 2, 20, 20)).astype(np.uint8)
    ranges = onnx_backend.input_ranges(spec, weights, images)
    assert len(ranges) == 4
    assert ranges[0] == (pytest.approx(images.min() / 255), pytest.approx(images.max() / 255))
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(onnx_backend.export(spec, weights, "int8", ranges), options)
    operators = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert operators.count("QLinearConv") == 2
    assert operators.count("QGemm") == 2
    assert not {"Conv", "FusedConv", "Gemm"} & set(operators)


def test_folding_the_first_convolution_changes_no_sum(monkeypatch):
    spec, weights = spec_from_module(small_cnn(), image_shape=(2, 20, 20))
    assert onnx_graph.foldable(spec.conv[0], spec.image_shape)
    assert not onnx_graph.foldable(spec.conv[0], (2, 21, 20))
    assert not onnx_graph.foldable(spec.conv[1], (2, 20, 20))
    images = np.random.default_rng(4).integers(0, 256, (8, 2, 20, 20)).astype(np.uint8)
    ranges = onnx_backend.input_ranges(spec, weights, images)
    outputs = []
    for fold in (True, False):
        monkeypatch.setattr(onnx_graph, "foldable", lambda *_, fold=fold: fold)
        engine = make_engine(spec, "int8", "onnxruntime")
        engine.load_export(onnx_backend.export(spec, weights, "int8", ranges), weights_version=0)
        outputs.append(engine(images))
    assert np.array_equal(*outputs)


@pytest.mark.parametrize("code_max", [63, 127])
def test_dynamic_int8_holds_with_and_without_the_spare_bit(code_max):
    spec, weights = spec_from_module(mlp(24, 256, 256, 6))
    engine = make_engine(spec, "int8", "onnxruntime")
    plain = make_engine(spec, "fp32", "onnxruntime")
    plain.set_weights(weights)
    engine.load_export(onnx_backend.export(spec, weights, "int8", code_max=code_max))
    observations = np.random.default_rng(2).normal(size=(64, 24)).astype(np.float32)
    error = np.abs(engine(observations) - plain(observations)).mean() / np.abs(plain(observations)).mean()
    assert 1e-4 < error < 0.03


@pytest.mark.parametrize(("backend", "precision"), [("torch", "int8"), ("torch", "fp32"), ("onnxruntime", "int8")])
def test_a_frameworks_own_message_carries_the_weights(backend, precision):
    spec, weights = spec_from_module(mlp(4, 16, 2))
    sender, receiver = (make_engine(spec, precision, backend) for _ in range(2))
    sender.set_weights(weights)
    receiver.set_weights(spec_from_module(mlp(4, 16, 2))[1])
    observation = np.array([0.1, -2.0, 0.3, 1.0], np.float32)
    assert not np.array_equal(receiver(observation), sender(observation))
    if backend == "torch":
        message = torch_backend.export(torch_backend.module_from_spec(spec, weights), precision)
    else:
        message = onnx_backend.export(spec, weights, precision)
    receiver.load_export(message, weights_version=9)
    assert np.array_equal(receiver(observation), sender(observation))
    assert receiver.weights_version == 9


def test_four_bit_groups_by_hand():
    weight = np.zeros((1, 130), np.float32)
    weight[0, :3] = [7.0, -7.0, 2.4]  # first group: scale 1
    weight[0, 128:] = [14.0, -2.0]  # second: scale 2
    packed, scale = onnx_graph.pack_groups_of_4_bit(weight)
    assert scale.tolist() == [1.0, 2.0]
    assert packed.shape == (1, 2, 64)
    assert packed[0, 0, :2].tolist() == [(7 + 8) | (-7 + 8) << 4, (2 + 8) | 8 << 4]
    assert packed[0, 1, 0] == (7 + 8) | (-1 + 8) << 4


def test_codes_per_channel_by_hand():
    weight = np.array([[6.3, -3.1], [0.0, 0.0], [-12.6, 12.6]], np.float32)
    codes, scale = onnx_graph.quantize_per_channel(weight, 0, 63)
    assert codes.tolist() == [[63, -31], [0, 0], [-63, 63]]
    np.testing.assert_allclose(scale, [0.1, 1.0, 0.2], rtol=1e-6)


@pytest.mark.parametrize("backend", ["torch", "onnxruntime"])
def test_refusals_name_the_place_and_keep_the_old_weights(backend):
    spec, weights = spec_from_module(mlp(3, 8, 2))
    engine = make_engine(spec, "fp32", backend)
    with pytest.raises(ValueError, match="no weights"):
        engine(np.zeros(3, np.float32))
    engine.load(pack(spec, weights, "fp32", weights_version=1))
    before = engine(np.ones(3, np.float32))
    with pytest.raises(ValueError, match="holds int8"):
        engine.load(pack(spec, weights, "int8", weights_version=2))
    damaged = bytearray(pack(spec, weights, "fp32", weights_version=2))
    damaged[-70] ^= 255
    with pytest.raises(ValueError, match="corrupted"):
        engine.load(damaged)
    assert engine.weights_version == 1
    assert np.array_equal(engine(np.ones(3, np.float32)), before)
    for bad, message in [
        (np.array([0, np.nan, 0], np.float32), r"observation\[1\] is nan"),
        (np.array([[0, 0, 0], [0, 0, -np.inf]], np.float32), r"observation\[1, 2\] is -inf"),
        (np.zeros(4, np.float32), r"shape \(4,\)"),
        (np.zeros((0, 3), np.float32), r"shape \(0, 3\)"),
        (np.array(["a", "b", "c"]), "takes float32"),
    ]:
        with pytest.raises(ValueError, match=message):
            engine(bad)
    assert np.array_equal(engine(np.ones(3)), before)  # float64 and strided observations are converted
    assert np.array_equal(engine(np.ones(6, np.float32)[::2]), before)


def test_huge_but_finite_observations_pass():
    check = ObservationCheck(spec_from_module(mlp(3, 8, 2))[0])
    batch, single = check(np.array([3e38, -3e38, 0], np.float32))
    assert single
    assert batch.shape == (1, 3)


@pytest.mark.parametrize(("backend", "precision"), [("torch", "int4"), ("torch", "int2"), ("onnxruntime", "int8a16")])
def test_unknown_combinations_are_refused_with_a_reason(backend, precision):
    spec, _ = spec_from_module(mlp(3, 8, 2))
    with pytest.raises(ValueError, match="kernels for " + precision):
        make_engine(spec, precision, backend)


def test_choices_name_an_engine_and_a_reason_for_every_precision(monkeypatch):
    rows = {(row["policy"], row["precision"]): row for row in choice.choices()}
    assert len(rows) == 2 * len(PRECISIONS)
    assert all(rows["linear layers", precision]["backend"] in BACKENDS for precision in PRECISIONS)
    assert rows["convolutions", "int8"]["backend"] == "onnxruntime"
    assert rows["convolutions", "int2"]["backend"] == "none"
    assert all(row["reason"] for row in rows.values())
    monkeypatch.setitem(BACKENDS, "onnxruntime", "quarl_lib.inference.not_there")
    assert "not_there" in choice.missing()["onnxruntime"]
    assert {row["policy"]: row["backend"] for row in choice.choices() if row["precision"] == "int8"}[
        "convolutions"
    ] == "torch"


def work(name: str, size: int, calls: list[str]) -> Callable[[], None]:
    """Return a call that notes its name and sums `size` numbers."""
    data = np.ones(size, np.float32)

    def call() -> None:
        calls.append(name)
        data.sum()

    return call


def measured_pairs(calls: list[str]) -> list[benchmark.Pair]:
    schedule, rng = Schedule(rounds=4, calls=5), np.random.default_rng(0)
    return paired({"small": work("small", 100_000, calls)}, work("large", 400_000, calls), schedule, rng)


def test_pairs_alternate():
    calls: list[str] = []
    assert [pair.round for pair in measured_pairs(calls)] == [0, 1, 2, 3]
    firsts = [name for name, before in zip(calls, ["", *calls], strict=False) if name != before]
    assert firsts.count("small") >= 3  # the blocks took turns
    with pytest.raises(ValueError, match="rounds=0"):
        Schedule(rounds=0)


@pytest.mark.slow
def test_pairs_tell_a_known_ratio():
    pairs = measured_pairs([])
    assert 2.0 < np.median([pair.baseline.median_us / pair.candidate.median_us for pair in pairs]) < 8.0


@pytest.mark.slow
def test_a_call_that_waits_is_told_from_one_that_works():
    data = np.ones(200_000, np.float32)
    outcomes = [benchmark._timed(lambda: time.sleep(0.002), 1)[1] for _ in range(3)]
    assert outcomes == [False, False, False]
    assert any(benchmark._timed(lambda: data.sum(), 1)[1] for _ in range(200))
    calls = iter([lambda: time.sleep(0.05), *300 * [lambda: data.sum()]])
    block = benchmark.time_block(lambda: next(calls)(), Schedule(calls=5, block_ms=1e6, warm_calls=0), 1000.0)
    assert block.median_us < 40_000


@pytest.mark.slow
def test_native_int8_beats_torch_fp32_four_times():
    torch_engine = None
    spec, weights = spec_from_module(mlp(24, 2048, 2048, 2048, 6))
    try:
        native = make_engine(spec, "int8", "native")
    except ValueError as error:
        pytest.skip(str(error))
    native.load(pack(spec, weights, "int8"))
    torch_engine = make_engine(spec, "fp32", "torch")
    torch_engine.set_weights(weights)
    observation = np.random.default_rng(0).normal(size=24).astype(np.float32)
    candidates = {"native": lambda: native(observation)}
    with one_thread():
        pairs = paired(candidates, lambda: torch_engine(observation), Schedule(rounds=9), np.random.default_rng(0))
    assert np.median([pair.baseline.median_us / pair.candidate.median_us for pair in pairs]) >= 4.0
