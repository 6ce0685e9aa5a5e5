"""Packed buffers: numbers worked out by hand, round trips, and everything that must be refused."""

# mypy: disable-error-code="arg-type"
from __future__ import annotations

import tracemalloc
import warnings
from dataclasses import replace

import numpy as np
import pytest
from inference_cases import mlp, random_spec, random_weights

from quarl_lib.inference import PRECISIONS, Head, Layer, LayerWeights, PolicySpec, Weights, make_engine, pack
from quarl_lib.inference import extension as extension_module
from quarl_lib.inference.layout import kinds_of, layout_of
from quarl_lib.inference.pack import Packer, checksum, packed_size, read_version, unpack

SPEC = mlp([5, 40, 24, 3], Head("argmax"))
WEIGHTS = random_weights(SPEC, np.random.default_rng(0))


@pytest.fixture
def no_extension(monkeypatch):
    monkeypatch.setattr(extension_module, "loaded", None)
    monkeypatch.setattr(extension_module, "missing", "taken away")


def middle_layer(rows: list[list[float]], precision: str) -> np.ndarray:
    """Pack the rows as the middle one of three layers and return what they became."""
    weight = np.array(rows, np.float32)
    out, inputs = weight.shape
    spec = mlp([1, inputs, out, 1])
    ones = [np.ones(shape, np.float32) for shape in ((inputs, 1), (1, out))]
    parts = [LayerWeights(w, np.zeros(len(w), np.float32)) for w in (ones[0], weight, ones[1])]
    return unpack(spec, pack(spec, Weights(tuple(parts)), precision)).layers[1].weight


def test_int8_by_hand():
    # scale 1/127; codes -127, 0, round(63.5) = 64 (half to even), 127; a zero row stays zero
    rows = [[-1, 0, 0.5, 1], [0, 0, 0, 0], [254, 1, 2.9, -3.1]]
    expected = [[-1, 0, 64 / 127, 1], [0, 0, 0, 0], [254, 0, 2, -4]]  # 0.5 -> 0, 1.45 -> 1, -1.55 -> -2 steps of 2
    np.testing.assert_allclose(middle_layer(rows, "int8"), expected, rtol=1e-6)


def test_few_bits_by_hand():
    # int4: 16 levels, odd sixteenths of the largest; int3: 8 levels, odd eighths; int2: 4 levels, odd quarters
    rows = [[-1, 0, 0.5, 1], [0, 0, 0, 0], [8, -7.9, 0.9, 1.1]]
    np.testing.assert_array_equal(
        middle_layer(rows, "int4"),
        np.array([[-15 / 16, 1 / 16, 9 / 16, 15 / 16], [0, 0, 0, 0], [7.5, -7.5, 0.5, 1.5]], np.float32),
    )
    np.testing.assert_array_equal(
        middle_layer(rows, "int3"),
        np.array([[-7 / 8, 1 / 8, 5 / 8, 7 / 8], [0, 0, 0, 0], [7, -7, 1, 1]], np.float32),
    )
    np.testing.assert_array_equal(
        middle_layer(rows, "int2"), np.array([[-0.75, 0.25, 0.75, 0.75], [0, 0, 0, 0], [6, -6, 2, 2]], np.float32)
    )


def test_the_words_of_int3_by_hand():
    # Column 4 p + j has code p, in row 1 code 7; the largest weight is 8, so the scale 1 and code c 2 c - 7.
    spec = mlp([1, 32, 2, 1])
    codes = np.repeat(np.arange(8), 4)[None].repeat(2, 0)
    codes[1] = 7
    weight = (2.0 * codes - 7).astype(np.float32)
    weight[:, 31] = 8  # code 7, too
    parts = [np.ones((32, 1), np.float32), weight, np.ones((1, 2), np.float32)]
    weights = Weights(tuple(LayerWeights(w, np.zeros(len(w), np.float32)) for w in parts))
    layer = layout_of(spec, "int3").layers[1]
    packed = np.frombuffer(pack(spec, weights, "int3"), np.uint8)
    words = layer.weights.view(packed).reshape(3, 16, 4)
    # runs 0 and 1, and above them run 6 (binary 110) without its lowest bit; 2, 3 and 7; 4, 5 and the lowest bits
    first = [0 | 1 << 3 | 0b11 << 6, 2 | 3 << 3 | 0b11 << 6, 4 | 5 << 3 | 0 << 6 | 1 << 7]
    np.testing.assert_array_equal(words[:, 0], np.array(first, np.uint8)[:, None].repeat(4, 1))
    assert (words[:, 1] == 255).all()
    assert (words[:, 2:] == 0).all()
    assert layer.scales is not None
    np.testing.assert_array_equal(layer.scales.view(packed)[:3], [1, 1, 0])


def test_groups_have_scales_of_their_own():
    row = [1.0] * 128 + [0.01] * 130
    packed = middle_layer([row], "int4g128")
    np.testing.assert_allclose(packed, np.array([row], np.float32) * 15 / 16, rtol=1e-6)


def test_int4_error_is_at_most_half_a_step():
    rows = np.random.default_rng(0).standard_normal((50, 300)).astype(np.float32)
    error = np.abs(middle_layer(rows.tolist(), "int4") - rows).max(axis=1)
    assert (error <= np.abs(rows).max(axis=1) / 16 * 1.00001).all()


def test_first_and_last_layer_keep_eight_bits():
    assert kinds_of(["relu"] * 4, "int4") == ("w8a16", "w4a8", "w4a8", "w8a16")
    assert kinds_of(["relu", "tanh", "elu", "relu"], "int8") == ("w8a16", "w8u8", "w8a8", "w8a16")
    assert kinds_of(["relu"], "int2") == ("w8a16",)
    assert kinds_of(["relu"] * 3, "int8a16") == ("w8a16", "w8a16", "w8a16")
    assert kinds_of(["relu"] * 2, "fp16") == ("fp16", "fp16")


def test_the_size_is_the_layouts_and_small():
    spec = mlp([24, 2048, 2048, 2048, 6])
    weights = spec.num_weights
    sizes = {p: packed_size(spec, p) / weights for p in PRECISIONS}
    assert sizes["fp32"] == pytest.approx(4, rel=0.01)
    assert sizes["fp16"] == pytest.approx(2, rel=0.01)
    assert sizes["int8"] == pytest.approx(1, rel=0.02)
    assert sizes["int4"] == pytest.approx(0.5, rel=0.04)
    assert sizes["int3"] == pytest.approx(0.375, rel=0.06)
    assert sizes["int2"] == pytest.approx(0.25, rel=0.08)


@pytest.mark.parametrize("seed", range(12))
def test_native_and_numpy_pack_the_same_bytes(seed, monkeypatch):
    if extension_module.native() is None:
        pytest.skip(extension_module.missing)
    rng = np.random.default_rng(seed)
    spec = random_spec(rng)
    weights = random_weights(spec, rng)
    native = [bytes(pack(spec, weights, p, 3)) for p in PRECISIONS]
    monkeypatch.setattr(extension_module, "loaded", None)
    for precision, buffer in zip(PRECISIONS, native, strict=True):
        assert bytes(pack(spec, weights, precision, 3)) == buffer, precision


def with_steps(weights: Weights, rng: np.random.Generator, step_bits: int) -> Weights:
    """Give every linear layer learned steps, small enough that some weights are clamped."""
    layers = [
        replace(one, step=rng.uniform(0.01, 0.3, len(one.bias)).astype(np.float32), step_bits=step_bits)
        for one in weights.layers
    ]
    return replace(weights, layers=tuple(layers))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("precision", "bits"), [("int8", 8), ("int8a16", 8), ("int4", 4), ("int3", 3), ("int2", 2)])
def test_native_and_numpy_pack_learned_steps_the_same(precision, bits, seed, monkeypatch):
    if extension_module.native() is None:
        pytest.skip(extension_module.missing)
    rng = np.random.default_rng(seed)
    spec = mlp([7, 130, 300, 5])
    weights = with_steps(random_weights(spec, rng), rng, bits)
    native = bytes(pack(spec, weights, precision))
    assert native != bytes(pack(spec, with_steps(weights, rng, 0), precision))
    monkeypatch.setattr(extension_module, "loaded", None)
    assert bytes(pack(spec, weights, precision)) == native


def test_learned_steps_by_hand():
    spec = mlp([1, 4, 1, 1])
    weights = random_weights(spec, np.random.default_rng(0))
    middle = LayerWeights(np.array([[-1, 0, 0.5, 9]], np.float32), np.zeros(1, np.float32), None, None,
                          np.array([0.5], np.float32), 2)  # fmt: skip
    weights = replace(weights, layers=(weights.layers[0], middle, weights.layers[2]))
    packed = unpack(spec, pack(spec, weights, "int2")).layers[1].weight
    np.testing.assert_array_equal(packed, [[-0.75, 0.25, 0.75, 0.75]])  # -1 lies two steps below 0: the outermost level
    bad = replace(middle, step=np.array([-0.5], np.float32))
    with pytest.raises(ValueError, match=r"layers\[1\].step is -0.5 somewhere: steps must be at least"):
        pack(spec, replace(weights, layers=(weights.layers[0], bad, weights.layers[2])), "int2")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_is_packed_is_unpacked(precision):
    rng = np.random.default_rng(1)
    spec = mlp([7, 130, 300, 5], Head("gaussian"), normalize_observation=True)
    weights = random_weights(spec, rng)
    buffer = pack(spec, weights, precision, weights_version=2**40)
    back = unpack(spec, buffer)
    back.check(spec)
    assert read_version(buffer) == 2**40
    limit = {"fp32": 0, "fp16": 2e-3, "int8": 0.5 / 127, "int8a16": 0.5 / 127}.get(precision, 1 / 16)
    limit = {"int3": 1 / 8, "int2": 1 / 4}.get(precision, limit)
    for before, after in zip(weights.layers, back.layers, strict=True):
        np.testing.assert_array_equal(before.bias, after.bias)
        scale = np.abs(before.weight).max(axis=1, keepdims=True)
        assert (np.abs(before.weight - after.weight) <= limit * scale * 1.0001).all()
    for name in ("observation_mean", "observation_inverse_std", "log_std"):
        np.testing.assert_array_equal(getattr(weights, name), getattr(back, name))


def test_convolutions_are_packed_too():
    from quarl_lib.inference import Conv, Layer

    spec = PolicySpec((Layer(2 * 9, 3),), conv=(Conv(1, 2, 3),), image_shape=(1, 5, 5))
    rng = np.random.default_rng(0)
    conv = LayerWeights(rng.standard_normal((2, 1, 3, 3)).astype(np.float32), np.ones(2, np.float32))
    weights = Weights(random_weights(spec, rng).layers, (conv,))
    np.testing.assert_array_equal(unpack(spec, pack(spec, weights, "fp32")).conv[0].weight, conv.weight)
    packed = unpack(spec, pack(spec, weights, "int8")).conv[0].weight
    np.testing.assert_allclose(packed, conv.weight, atol=np.abs(conv.weight).max() / 200)


def test_packs_into_a_given_buffer():
    size = packed_size(SPEC, "int8")
    slot = np.full(size + 64, 7, np.uint8)
    result = pack(SPEC, WEIGHTS, "int8", 5, out=slot)
    assert np.shares_memory(np.frombuffer(result, np.uint8), slot)
    assert bytes(result) == bytes(pack(SPEC, WEIGHTS, "int8", 5))
    assert (slot[size:] == 7).all()
    with pytest.raises(ValueError, match=f"out is 10 bytes long: give a writable buffer of {size}"):
        pack(SPEC, WEIGHTS, "int8", out=bytearray(10))
    with pytest.raises(ValueError, match="out is read-only"):
        pack(SPEC, WEIGHTS, "int8", out=bytes(size))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("native", [True, False])
def test_a_weight_that_is_not_finite_is_named(precision, value, native, monkeypatch):
    if not native:
        monkeypatch.setattr(extension_module, "loaded", None)
    spec = mlp([3, 70, 2])
    weights = random_weights(spec, np.random.default_rng(0))
    weights.layers[1].weight[1, 65] = value
    with pytest.raises(ValueError, match=rf"layers\[1\].weight\[1, 65\] is {value}: weights must be finite"):
        pack(spec, weights, precision)
    weights.layers[1].weight[1, 65] = 0
    weights.layers[0].bias[69] = value
    with pytest.raises(ValueError, match=rf"layers\[0\].bias\[69\] is {value}"):
        pack(spec, weights, precision)


@pytest.mark.parametrize("native", [True, False])
def test_fp16_refuses_what_it_cannot_hold(native, monkeypatch):
    if not native:
        monkeypatch.setattr(extension_module, "loaded", None)
    spec = mlp([3, 2])
    weights = random_weights(spec, np.random.default_rng(0))
    weights.layers[0].weight[1, 2] = 65519
    assert unpack(spec, pack(spec, weights, "fp16")).layers[0].weight[1, 2] == 65504
    weights.layers[0].weight[1, 2] = -65520
    with pytest.raises(ValueError, match=r"layers\[0\].weight\[1, 2\] is -65520.0: .* below 65520 at fp16"):
        pack(spec, weights, "fp16")


def test_float16_rounding_is_numpys_in_all_ranges():
    values = np.array(
        [0, 5.9e-8, 2.98e-8, 2.99e-8, 6.09e-5, 6.1e-5, 1, 1.0004883, 1.0014648, 65504, 1e-9, -3e-5], np.float32
    )
    rng = np.random.default_rng(0)
    values = np.concatenate([values, (rng.standard_normal(2000) * np.exp2(rng.uniform(-26, 13, 2000))).astype("f4")])
    spec = mlp([len(values), 1])
    packed = pack(spec, Weights((LayerWeights(values[None], np.zeros(1, np.float32)),)), "fp16")
    np.testing.assert_array_equal(unpack(spec, packed).layers[0].weight[0], values.astype(np.float16))


def test_unknown_precision_and_version_are_refused():
    with pytest.raises(ValueError, match="precision is 'int5': choose one of fp32"):
        pack(SPEC, WEIGHTS, "int5")
    with pytest.raises(ValueError, match="weights_version is -1"):
        pack(SPEC, WEIGHTS, "int8", -1)


def test_the_checksum_is_the_same_in_numpy_and_c(monkeypatch):
    data = np.random.default_rng(0).integers(0, 256, 64 * 5000, np.uint8)
    by_c = checksum(data)
    monkeypatch.setattr(extension_module, "loaded", None)
    assert checksum(data) == by_c
    for bit in range(64):  # each bit of a word, the highest too, in each of eight lanes
        changed = data.copy()
        changed[64 * 7 + 8 * (bit % 8) : 64 * 7 + 8 * (bit % 8) + 8].view(np.uint64)[0] ^= np.uint64(1 << bit)
        assert checksum(changed) != by_c
    swapped = data.copy()
    swapped[:64], swapped[64:128] = data[64:128], data[:64]
    assert checksum(swapped) != by_c


def test_without_the_extension_packing_and_acting_still_work(no_extension, monkeypatch):
    monkeypatch.setattr(extension_module, "missing", "taken away once")  # a reason that no test was warned of before
    with pytest.warns(RuntimeWarning, match="Native kernels unavailable.*taken away once"):
        engine = make_engine(SPEC, "int8")
    assert engine.backend != "native"
    assert "native: taken away" in engine.reason
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_engine(SPEC, "int8")  # warned once
    reference = make_engine(SPEC, "int8", "numpy")
    reference.load(pack(SPEC, WEIGHTS, "int8"))
    assert reference(np.ones(5, np.float32)) in range(3)
    with pytest.raises(ValueError, match="backend 'native' cannot run this policy at int8: taken away"):
        make_engine(SPEC, "int8", "native")


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "int4"])
def test_a_packer_follows_its_arrays_and_gives_the_bytes_of_pack(precision):
    rng = np.random.default_rng(0)
    layers = (Layer(5, 70, "relu"), Layer(70, 33, "tanh", layer_norm=True), Layer(33, 3))
    spec = PolicySpec(layers, Head("gaussian"), normalize_observation=True)
    arrays = []
    for layer in layers:
        weight = rng.standard_normal((layer.in_features, layer.out_features), dtype=np.float32).T  # not in one piece
        norms = [np.ones(layer.out_features, np.float32)] * 2 if layer.layer_norm else [None, None]
        arrays.append(LayerWeights(weight, rng.standard_normal(layer.out_features, dtype=np.float32), *norms))
    five, three = np.ones(5), np.zeros(3, np.float32)
    weights = Weights(tuple(arrays), observation_mean=five, observation_inverse_std=five.copy(), log_std=three)
    packer = Packer(spec, weights, precision)
    for version in range(3):
        for one in arrays:
            one.weight[...] += rng.standard_normal(one.weight.shape, dtype=np.float32)
            one.bias[...] -= 1
        three += 0.5
        assert bytes(packer(version)) == bytes(pack(spec, weights, precision, version))
    arrays[1].bias[2] = np.nan
    with pytest.raises(ValueError, match=r"layers\[1\].bias\[2\] is nan"):
        packer()


def test_a_packer_allocates_nothing_to_speak_of():
    spec = PolicySpec((Layer(3, 400, "relu"), Layer(400, 300, "relu"), Layer(300, 1)), Head("none"))
    arrays = [LayerWeights(np.ones((i.out_features, i.in_features), np.float32), np.ones(i.out_features, np.float32))
              for i in spec.layers]  # fmt: skip
    packer = Packer(spec, Weights(tuple(arrays)), "int8")
    packer(1)
    tracemalloc.start()
    try:
        packer(2)
        assert tracemalloc.get_traced_memory()[1] < 4096
    finally:
        tracemalloc.stop()
