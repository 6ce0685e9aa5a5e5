"""Buffers that must be refused: foreign, truncated, of another version, or changed anywhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inference_cases import mlp, random_weights

from quarl_lib.inference import PRECISIONS, Head, extension, make_engine, pack
from quarl_lib.inference.layout import HEADER, LAYOUT_VERSION, layout_of
from quarl_lib.inference.pack import aligned_empty, check_buffer, checksum

SPEC = mlp([5, 40, 24, 3], Head("argmax"))
WEIGHTS = random_weights(SPEC, np.random.default_rng(0))
BACKENDS = [b for b in ("native", "numpy") if b == "numpy" or extension.native() is not None]
FIELDS = (
    "magic", "layout", "precision", "fingerprint", "total", "version", "layers", "header", "payload", "header_sum",
)  # fmt: skip


def forge(buffer: object, **fields: int | bytes) -> np.ndarray:
    """Return a copy with header fields changed and the header's checksum made right again."""
    data = aligned_empty(len(buffer))  # type: ignore[arg-type]
    data[:] = np.frombuffer(buffer, np.uint8)  # type: ignore[call-overload]
    values = dict(zip(FIELDS, HEADER.unpack_from(data), strict=True)) | fields  # type: ignore[arg-type]
    size = len(layout_of(SPEC, "int8").header)
    data[: HEADER.size] = np.frombuffer(HEADER.pack(*(values | {"header_sum": 0}).values()), np.uint8)
    total = checksum(data[:size])
    data[: HEADER.size] = np.frombuffer(HEADER.pack(*(values | {"header_sum": total}).values()), np.uint8)
    return data


BUFFER = pack(SPEC, WEIGHTS, "int8", 7)


@pytest.fixture(params=BACKENDS)
def engine(request):
    """Return an engine at version 7, and hold it to its weights whatever a test tries to load."""
    engine = make_engine(SPEC, "int8", request.param)
    engine.load(BUFFER)
    action = engine(np.ones(5, np.float32))
    yield engine
    assert engine.weights_version == 7
    assert engine(np.ones(5, np.float32)) == action


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"magic": b"ELSEWISE"}, "no packed policy"),
        ({"layout": LAYOUT_VERSION - 1}, f"layout version {LAYOUT_VERSION - 1}: this library reads {LAYOUT_VERSION}"),
        ({"precision": 99}, "unknown precision number 99"),
        ({"precision": 0}, "holds fp32 weights: this engine runs int8"),
        ({"fingerprint": 1}, "another policy"),
        ({"total": 2**63}, "another policy"),
        ({"layers": 4}, "another policy"),
        ({"header": 128}, "another policy"),
    ],
)
def test_a_foreign_header_is_refused(engine, fields, message):
    with pytest.raises(ValueError, match=message):
        engine.load(forge(BUFFER, **fields))


def test_a_right_header_is_accepted_after_forging(engine):
    engine.load(forge(BUFFER, version=123))
    assert engine.weights_version == 123
    engine.load(BUFFER)


def test_another_specs_buffer_is_refused(engine):
    spec = mlp([5, 40, 24, 3], Head("argmax"), "tanh")
    with pytest.raises(ValueError, match="another policy"):
        engine.load(pack(spec, WEIGHTS, "int8"))


@pytest.mark.parametrize("size", [0, 1, 63, 64, 100, 255, 256, len(BUFFER) - 64, len(BUFFER) - 1])
def test_a_truncated_buffer_is_refused(engine, size):
    with pytest.raises(ValueError, match="truncated"):
        engine.load(bytes(BUFFER)[:size])


@pytest.mark.parametrize("copy", [False, True])
def test_a_changed_payload_is_found_when_asked(engine, copy):
    data = forge(BUFFER)
    data[-100] ^= 4
    with pytest.raises(ValueError, match="corrupted: its payload"):
        engine.load(data, copy=copy, verify=True)
    if copy:
        with pytest.raises(ValueError, match="corrupted: its payload"):
            engine.load(data, copy=True)


@settings(max_examples=150, deadline=None)
@given(position=st.integers(0, len(BUFFER) - 1), change=st.integers(1, 255), cut=st.integers(0, len(BUFFER)))
def test_no_changed_or_cut_buffer_passes(position, change, cut):
    data = forge(BUFFER)
    data[position] ^= change
    for backend in BACKENDS:
        engine = make_engine(SPEC, "int8", backend)
        with pytest.raises(ValueError):
            engine.load(data, verify=True)
        if position < len(layout_of(SPEC, "int8").header):
            with pytest.raises(ValueError):
                engine.load(data, verify=False)
        if cut < len(BUFFER):
            with pytest.raises(ValueError):
                engine.load(BUFFER[:cut])
        assert engine.weights_version == -1


@settings(max_examples=80, deadline=None)
@given(data=st.binary(max_size=600), keep=st.integers(0, 256))
def test_no_foreign_bytes_pass(data, keep):
    for backend in BACKENDS:
        with pytest.raises(ValueError):
            make_engine(SPEC, "int8", backend).load(bytes(BUFFER)[:keep] + data)


def test_check_buffer_accepts_what_pack_made():
    for precision in PRECISIONS:
        check_buffer(SPEC, precision, pack(SPEC, WEIGHTS, precision))
