"""How the native engine takes observations and buffers, and what it refuses."""

from __future__ import annotations

import mmap
import threading

import numpy as np
import pytest
from inference_cases import both_engines, mlp, random_weights

from quarl_lib.inference import Head, LayerWeights, Weights, extension, make_engine, pack, packed_size
from quarl_lib.inference.backends import native
from quarl_lib.inference.backends.reference import NumpyEngine

pytestmark = pytest.mark.skipif(extension.native() is None, reason=extension.missing or "built")


@pytest.fixture
def engine():
    spec = mlp([3, 20, 2], Head("tanh", (-1, -1), (1, 1)))
    engine = make_engine(spec, "int8", "native")
    engine.load(pack(spec, random_weights(spec, np.random.default_rng(0)), "int8", 4))
    return engine


def test_an_action_is_the_callers_to_keep(engine):
    first = engine(np.array([1, 2, 3], np.float32))
    kept, view = first.copy(), first[:1]
    del first
    second = engine(np.array([-3, 2, 1], np.float32))
    assert view[0] == kept[0]
    assert not np.shares_memory(view, second)
    address = second.ctypes.data
    del second
    assert engine(np.array([1, 2, 3], np.float32)).ctypes.data == address  # dropped, so its memory is used again
    np.testing.assert_array_equal(engine(np.array([1, 2, 3], np.float32)), kept)


def test_discrete_actions_are_ints():
    spec = mlp([3, 20, 5], Head("argmax"))
    engine, reference = both_engines(spec, random_weights(spec, np.random.default_rng(0)), "int8")
    x = np.random.default_rng(1).standard_normal((70, 3)).astype(np.float32)
    assert isinstance(engine(x[0]), int)
    batch = engine(x)
    assert batch.dtype == np.int64
    assert batch.tolist() == [engine(row) for row in x] == reference(x).tolist()


@pytest.mark.parametrize(
    "convert",
    [lambda x: x.astype(np.float64), lambda x: np.stack([x, x], 1)[:, 0], lambda x: x.tolist(), lambda x: x[:]],
)
def test_other_real_observations_are_converted(engine, convert):
    x = np.array([1, 2, 3], np.float32)
    np.testing.assert_array_equal(engine(convert(x)), engine(x))
    assert engine(np.arange(3)).dtype == np.float32
    np.testing.assert_array_equal(engine(np.asfortranarray(np.stack([x, 2 * x])))[0], engine(x))


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        (np.zeros(4, np.float32), r"shape \(4,\): give \(3,\) or \(n, 3\)"),
        (np.zeros((0, 3), np.float32), r"shape \(0, 3\)"),
        (np.zeros((1, 1, 3), np.float32), "shape"),
        (np.float32(1), "shape"),
        (np.zeros(3, np.complex64), "dtype complex64"),
        (np.array(["a", "b", "c"]), "dtype <U1"),
        (np.array([1, np.nan, 2], np.float32), r"observation\[1\] is nan"),
        (np.array([[1, 1, 1], [1, 2, -np.inf]], np.float32), r"observation\[1, 2\] is -inf"),
        (np.float64([1e300, 0, 0]), r"observation\[0\] is inf"),  # type: ignore[arg-type]
    ],
)
def test_other_observations_are_refused(engine, observation, message):
    for candidate in (engine, _numpy_twin(engine)):
        with pytest.raises(ValueError, match=message):
            candidate(observation)


def _numpy_twin(engine) -> NumpyEngine:
    twin = NumpyEngine(engine.spec, engine.precision)
    twin.load(pack(engine.spec, random_weights(engine.spec, np.random.default_rng(0)), "int8", 4))
    return twin


def test_a_bad_row_far_into_a_batch_is_named(engine):
    x = np.ones((100, 3), np.float32)
    x[77, 1] = np.nan
    with pytest.raises(ValueError, match=r"observation\[77, 1\] is nan"):
        engine(x)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_an_overflow_inside_names_its_layer(precision):
    spec = mlp([1, 1, 1, 1])
    huge = LayerWeights(np.array([[3e38]], np.float32), np.array([0], np.float32))
    for candidate in both_engines(spec, Weights((huge, huge, huge)), precision):
        with pytest.raises(ValueError, match=r"layers\[[012]\]\[0\] is (inf|nan): it must be finite"):
            candidate(np.array([10], np.float32))


def test_tiny_observations_count_as_zero():
    spec = mlp([2, 5, 1])
    engine, reference = both_engines(spec, random_weights(spec, np.random.default_rng(0)), "int8")
    for value in (0.0, 1e-45, 1e-38, -1e-31):
        x = np.array([value, 0], np.float32)
        np.testing.assert_array_equal(engine(x), reference(x))
        np.testing.assert_array_equal(engine(x), engine(np.zeros(2, np.float32)))


def test_calls_before_a_load_or_with_more_arguments_are_refused(engine):
    empty = make_engine(engine.spec, "int8", "native")
    assert empty.weights_version == -1
    with pytest.raises(ValueError, match="no weights: call load"):
        empty(np.zeros(3, np.float32))
    with pytest.raises(TypeError, match="one observation"):
        engine()
    with pytest.raises(TypeError, match="one observation"):
        engine(observation=np.zeros(3, np.float32))


def test_loads_in_place_and_swaps_between_slots(engine):
    spec = engine.spec
    policies = [random_weights(spec, np.random.default_rng(seed)) for seed in (1, 2)]
    packed = [np.frombuffer(pack(spec, p, "int8", v), np.uint8) for v, p in enumerate(policies, 10)]
    expected = []
    for buffer in packed:
        engine.load(bytes(buffer), copy=True)
        expected.append(engine(np.ones(3, np.float32)).copy())
    assert (expected[0] != expected[1]).any()
    for _ in range(3):
        for version, buffer in enumerate(packed, 10):
            engine.load(buffer)
            assert engine.weights_version == version
            np.testing.assert_array_equal(engine(np.ones(3, np.float32)), expected[version - 10])
    packed[1][:] = packed[0]  # in place: the engine reads what lies there now
    np.testing.assert_array_equal(engine(np.ones(3, np.float32)), expected[0])


def test_keeps_a_buffer_alive_while_it_reads_it(engine):
    with mmap.mmap(-1, packed_size(engine.spec, "int8")) as memory:  # starts at a page, so it is read in place
        pack(engine.spec, random_weights(engine.spec, np.random.default_rng(1)), "int8", 9, out=memory)
        engine.load(memory)
        with pytest.raises(BufferError):
            memory.close()
        engine.load(memory, copy=True)  # lets the memory go


def test_an_unaligned_buffer_is_copied(engine):
    packed = pack(engine.spec, random_weights(engine.spec, np.random.default_rng(1)), "int8", 9)
    raw = np.empty(len(packed) + 64, np.uint8)
    start = -raw.ctypes.data % 64 + 4
    shifted = raw[start : start + len(packed)]
    shifted[:] = packed
    engine.load(packed)
    expected = engine(np.ones(3, np.float32))
    engine.load(shifted)
    shifted[:] = 0
    np.testing.assert_array_equal(engine(np.ones(3, np.float32)), expected)


def test_engines_act_side_by_side_in_threads():
    spec = mlp([24, 512, 512, 6])
    engine, reference = both_engines(spec, random_weights(spec, np.random.default_rng(0)), "int8")
    x = np.random.default_rng(1).standard_normal((64, 24)).astype(np.float32)
    expected = reference(x)
    second = both_engines(spec, random_weights(spec, np.random.default_rng(0)), "int8")[0]
    wrong: list[int] = []

    def act(own) -> None:
        wrong.append(sum((own(row) != want).any() for row, want in zip(x, expected, strict=True)))

    threads = [threading.Thread(target=act, args=(e,)) for e in (engine, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [0, 0]


def test_one_engine_in_two_threads_is_an_error_not_a_race():
    spec = mlp([24, 2048, 2048, 6])
    weights = random_weights(spec, np.random.default_rng(0))
    engine, reference = both_engines(spec, weights, "int8")
    x = np.random.default_rng(1).standard_normal((40, 24)).astype(np.float32)
    expected, outcomes = reference(x), []

    def act() -> None:
        for _ in range(20):
            try:
                outcomes.append(bool((engine(x) == expected).all()))
            except RuntimeError as error:
                outcomes.append(str(error))  # type: ignore[arg-type]

    threads = [threading.Thread(target=act) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(outcomes) <= {True, "engine is in use by another thread: give each thread its own"}
    assert True in outcomes


def test_an_unknown_instruction_set_is_refused(engine):
    with pytest.raises(ValueError, match="isa 'sse9' is unknown"):
        native.create(engine.spec, "int8", isa="sse9")
    assert native.instruction_sets()["portable"] == "ok"
