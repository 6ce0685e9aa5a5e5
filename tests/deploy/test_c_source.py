"""The exported C: bit for bit the reference's actions and codes, here and under emulation, in both byte orders."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from inference_cases import mlp, random_spec, random_weights, with_static_inputs

from quarl_lib.deploy.c_build import CompiledPolicy, compiler
from quarl_lib.deploy.c_source import SUPPORTED, CSource, identifier, write_c
from quarl_lib.inference import pack
from quarl_lib.inference.backends.reference import NumpyEngine
from quarl_lib.inference.spec import Conv, Head, Layer, PolicySpec

needs_cc = pytest.mark.skipif(compiler() is None, reason="no C compiler")
STRICT = ["-std=c99", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror"]
TARGETS = {
    "arm": ("arm-linux-gnueabihf-gcc", "qemu-arm"),
    "aarch64": ("aarch64-linux-gnu-gcc", "qemu-aarch64"),
    "mips": ("mips-linux-gnu-gcc", "qemu-mips"),  # big-endian
}
MAIN = """
#define P_SCRATCH_PASSED
#include "p.c"
#include <stdio.h>
static const uint32_t bits[] = {{{bits}}};
int main(void) {{
    int i, k;
    for (i = 0; i < {count}; i++) {{
        union {{ uint32_t b; float f; }} u;
        float o[P_OBSERVATIONS], a[P_ACTIONS];
        p_scratch s;
        for (k = 0; k < P_OBSERVATIONS; k++) {{ u.b = bits[i * P_OBSERVATIONS + k]; o[k] = u.f; }}
        p_act(o, a, &s);
        for (k = 0; k < P_ACTIONS; k++) {{ u.f = a[k]; printf("%lu ", (unsigned long)u.b); }}
        for (k = 0; k < {codes}; k++) printf("%d ", s.codes[k]);
        printf("\\n");
    }}
    return 0;
}}
"""


def case(
    seed: int, precision: str, spec: PolicySpec | None = None
) -> tuple[PolicySpec, NumpyEngine, CSource, np.ndarray]:
    rng = np.random.default_rng(seed)
    spec = spec or random_spec(rng, max_hidden=80, max_layers=4)
    if spec.head.kind in ("categorical", "gaussian"):
        spec = replace(spec, head=Head())
    weights = random_weights(spec, rng)
    if seed % 2 and precision.startswith("int"):
        weights = with_static_inputs(spec, weights, precision, rng)
    buffer = pack(spec, weights, precision)
    engine = NumpyEngine(spec, precision)
    engine.load(buffer)
    observations = rng.standard_normal((40, spec.layers[0].in_features)) * np.exp(rng.standard_normal((40, 1)))
    return spec, engine, write_c(spec, buffer, precision, "p"), observations.astype(np.float32)


@needs_cc
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("precision", SUPPORTED)
def test_actions_are_the_references_bit_for_bit(seed, precision):
    spec, engine, code, observations = case(seed, precision)
    actions = CompiledPolicy(code, spec.head.discrete, spec.action_dim)(observations)
    if precision.startswith("int"):
        np.testing.assert_array_equal(actions, engine(observations))
    else:  # sums of floats in another order
        np.testing.assert_allclose(actions, engine(observations), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@needs_cc
@pytest.mark.parametrize("precision", ["int8", "int4", "int3", "int2"])
def test_fifty_random_policies_are_the_references_bit_for_bit(precision):
    for seed in range(50):
        spec, engine, code, observations = case(1000 + seed, precision)
        actions = CompiledPolicy(code, spec.head.discrete, spec.action_dim)(observations)
        np.testing.assert_array_equal(actions, engine(observations), err_msg=f"{seed} {spec}")


def printed(compile_with: list[str], run_with: list[str], precision: str, folder) -> tuple[np.ndarray, np.ndarray]:
    """Return what a built program prints, actions' bits and the last layer's codes, and what the reference gives."""
    spec, engine, code, observations = case(
        7, precision, mlp([5, 24, 17, 3], Head("tanh", (-1.0,) * 3, (2.0,) * 3), "tanh")
    )
    (folder / "p.c").write_text(code.source)
    (folder / "p.h").write_text(code.header)
    bits = ",".join(f"{value}u" for value in observations.view(np.uint32).reshape(-1))
    (folder / "m.c").write_text(MAIN.format(bits=bits, count=len(observations), codes=17))
    subprocess.run([*compile_with, "m.c", "-o", "m", "-lm"], cwd=folder, check=True)
    text = subprocess.run([*run_with, "./m"], cwd=folder, capture_output=True, text=True, check=True).stdout
    expected = []
    for x in observations:
        action = np.asarray(engine(x)).view(np.uint32)
        for index in range(len(spec.layers)):
            codes, _, x = engine.run_layer(index, x)
        expected.append([*action, *codes])
    return np.array([line.split() for line in text.splitlines()], np.int64), np.array(expected, np.int64)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("precision", ["int8", "int4", "int3", "int2"])
def test_other_processors_compute_the_same_codes(target, precision, tmp_path):
    cross, emulator = TARGETS[target]
    if not (shutil.which(cross) and shutil.which(emulator)):
        pytest.skip(f"{cross} or {emulator} is not installed")
    found, expected = printed([cross, *STRICT, "-O2", "-static"], [emulator], precision, tmp_path)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("cc", ["gcc", "clang"])
@pytest.mark.parametrize("precision", SUPPORTED)
def test_compilers_have_nothing_to_say(cc, precision, tmp_path):
    if not shutil.which(cc):
        pytest.skip(f"{cc} is not installed")
    layers = (Layer(3, 9, "tanh", True), Layer(9, 6, "elu"), Layer(6, 5, "silu"), Layer(5, 4, "relu"), Layer(4, 2))
    for spec in (
        PolicySpec(layers, Head("argmax"), True, 5.0),
        PolicySpec(layers, Head("clip", (-1.0, 0.0), (1.0, 2.0))),
    ):
        _, _, code, _ = case(0, precision, spec)
        (tmp_path / "p.c").write_text(code.source)
        (tmp_path / "p.h").write_text(code.header)
        for options in ([], ["-DP_SCRATCH_PASSED"]):
            subprocess.run([cc, *STRICT, "-O2", *options, "-c", "p.c"], cwd=tmp_path, check=True)


@needs_cc
def test_what_is_not_finite_gives_no_action():
    _, _, code, observations = case(0, "int8", mlp([4, 8, 2], Head("argmax")))
    observations[1, 2] = np.nan
    observations[2, 0] = np.inf
    actions = CompiledPolicy(code, True, 2)(observations)
    assert actions[1] == actions[2] == -1
    assert (actions[3:] >= 0).all()
    spec = mlp([4, 8, 2], Head("argmax"), normalize_observation=True, observation_clip=5.0)
    normalized = CompiledPolicy(case(0, "int8", spec)[2], True, 2)(observations)
    assert normalized[1] == normalized[2] == -1
    _, _, code, observations = case(0, "fp32", mlp([4, 8, 2], Head("clip", (-1.0, -1.0), (1.0, 1.0))))
    observations[1, 2] = np.nan
    actions = CompiledPolicy(code, False, 2)(observations)
    assert np.isnan(actions[1]).all()
    assert np.isfinite(actions[2:]).all()


def test_sizes_stand_in_the_header():
    _, _, code, _ = case(0, "int8", mlp([4, 64, 64, 2], Head("argmax"), "tanh"))
    assert code.constant_bytes == 4 * 64 + 64 * 64 + 64 * 2 + 12 * (64 + 64 + 2)
    assert code.ram_bytes == 64 * 4 + 64 * 2
    assert f"#define P_RAM_BYTES {code.ram_bytes}" in code.header
    assert "malloc" not in code.source


@pytest.mark.skipif(not shutil.which("arm-none-eabi-size"), reason="no arm-none-eabi-gcc")
def test_int8_takes_a_third_of_fp32s_flash(tmp_path):
    flash, constants = {}, {}
    for precision in ("fp32", "int8", "int4"):
        _, _, code, _ = case(0, precision, mlp([24, 64, 64, 6], Head("tanh", (-1.0,) * 6, (1.0,) * 6)))
        (tmp_path / "p.c").write_text(code.source)
        (tmp_path / "p.h").write_text(code.header)
        m4 = ["-mcpu=cortex-m4", "-mthumb", "-mfpu=fpv4-sp-d16", "-mfloat-abi=hard"]
        subprocess.run(["arm-none-eabi-gcc", *STRICT, "-Os", *m4, "-c", "p.c"], cwd=tmp_path, check=True)
        said = subprocess.run(["arm-none-eabi-size", "p.o"], cwd=tmp_path, capture_output=True, text=True, check=True)
        text, data, bss, *_ = said.stdout.splitlines()[1].split()
        assert (data, bss) == ("0", "0")
        flash[precision], constants[precision] = int(text), code.constant_bytes
        assert int(text) - code.constant_bytes < 1000
    assert constants["int8"] <= constants["fp32"] / 3
    assert flash["int8"] <= flash["fp32"] / 3
    assert flash["int4"] < flash["int8"]


def test_what_c_does_not_do_is_refused_in_words():
    spec = mlp([4, 8, 2])
    image = PolicySpec((Layer(16, 2),), Head("argmax"), conv=(Conv(1, 1, 1),), image_shape=(1, 4, 4))
    rng = np.random.default_rng(0)
    buffer = pack(spec, random_weights(spec, rng), "int8")
    for bad, precision, said in ((image, "int8", "images"), (spec, "int4g128", "C knows"), (spec, "banana", "C knows")):
        with pytest.raises(ValueError, match=said):
            write_c(bad, buffer, precision, "p")
    with pytest.raises(ValueError, match="identifier"):
        write_c(spec, buffer, "int8", "my-policy")
    assert identifier("my-policy") == "my_policy"
    assert identifier("2nd") == "policy_2nd"
