"""From one precision to another without numpy: what packing anew would give, byte for byte."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from inference_cases import both_engines, mlp, random_spec, random_weights, with_static_inputs

from quarl_lib.inference import PRECISIONS, Head, LayerWeights, Weights, extension, make_engine, pack, packed_size
from quarl_lib.inference.pack import aligned_empty, check_buffer, convert, read_version, unpack

pytestmark = pytest.mark.skipif(extension.native() is None, reason=extension.missing or "built")


def without_extension(monkeypatch, call):
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[convert.__module__], "native", lambda: None)
        return call()


@pytest.mark.parametrize("seed", range(6))
def test_every_pair_gives_the_bytes_of_packing_anew(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    spec = random_spec(rng, max_hidden=300, max_layers=4)
    weights = random_weights(spec, rng)
    for before in PRECISIONS:
        message = pack(spec, with_static_inputs(spec, weights, before, rng), before, 7)
        plain = unpack(spec, message)
        slow = without_extension(monkeypatch, lambda message=message: unpack(spec, message))
        for fast_layer, slow_layer in zip(plain.layers, slow.layers, strict=True):
            np.testing.assert_array_equal(fast_layer.weight.view(np.int32), slow_layer.weight.view(np.int32))
        for after in PRECISIONS:
            out = aligned_empty(packed_size(spec, after))
            out[:] = 0xA5  # nothing may be left of what was there
            expected = pack(spec, plain, after, 7)
            converted = convert(spec, message, after, out)
            assert bytes(converted) == bytes(expected), (before, after)
            check_buffer(spec, after, converted)
            assert read_version(converted) == 7


def test_a_converted_message_acts_as_the_reference_does():
    rng = np.random.default_rng(0)
    spec = mlp([17, 260, 70, 5], Head("tanh", (-1.0,) * 5, (1.0,) * 5))
    weights = random_weights(spec, rng)
    x = rng.standard_normal((9, 17)).astype(np.float32)
    message = convert(spec, pack(spec, weights, "fp32"), "int8")
    engine = make_engine(spec, "int8", "native")
    engine.load(message, verify=True)
    np.testing.assert_array_equal(engine(x), both_engines(spec, weights, "int8")[1](x))


def test_without_a_seal_it_loads_in_place_and_is_refused_when_verified():
    spec = mlp([5, 40, 3])
    message = pack(spec, random_weights(spec, np.random.default_rng(1)), "int8", 3)
    open_buffer = convert(spec, message, "fp32", seal=False)
    engine = make_engine(spec, "fp32", "native")
    engine.load(open_buffer)
    assert engine.weights_version == 3
    sealed = make_engine(spec, "fp32", "native")
    sealed.load(convert(spec, message, "fp32"), verify=True)
    np.testing.assert_array_equal(engine(np.ones(5, np.float32)), sealed(np.ones(5, np.float32)))
    with pytest.raises(ValueError, match="corrupted"):
        engine.load(open_buffer, verify=True)


def test_what_does_not_fit_is_named():
    spec = mlp([2, 3, 1])
    parts = [np.ones((3, 2), np.float32), np.ones((1, 3), np.float32)]
    parts[0][1, 1] = 1e5
    weights = Weights(tuple(LayerWeights(w, np.zeros(len(w), np.float32)) for w in parts))
    with pytest.raises(ValueError, match=r"layers\[0\].weight\[1, 1\] is 100000.0: .* below 65520 at fp16"):
        convert(spec, pack(spec, weights, "fp32"), "fp16")
    good = pack(spec, weights, "fp32")
    with pytest.raises(ValueError, match="another policy"):
        convert(mlp([2, 4, 1]), good, "int8")
    with pytest.raises(ValueError, match="give a writable buffer"):
        convert(spec, good, "int8", bytearray(10))
    with pytest.raises(ValueError, match="precision is 'int7'"):
        convert(spec, good, "int7")


def test_the_extension_holds_sections_to_their_sizes():
    module = extension.native()
    assert module is not None
    convert_layer = module.convert
    tiles, scales = np.zeros(16 * 16, np.uint8), np.zeros(16, np.float32)
    source = (2, tiles, scales, None, None)
    assert convert_layer(16, 16, source, np.empty((16, 16), np.float32))
    with pytest.raises(ValueError, match="section 0 has"):
        convert_layer(16, 17, source, np.empty((16, 17), np.float32))
    with pytest.raises(ValueError, match="cannot hold"):
        convert_layer(16, 16, source, np.empty((15, 16), np.float32))
    with pytest.raises(ValueError, match="kind 9"):
        convert_layer(16, 16, (9, tiles, scales, None, None), np.empty((16, 16), np.float32))
