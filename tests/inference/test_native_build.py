"""The package without the extension: not built, or turned off; and which kernels an environment variable picks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from quarl_lib.inference import extension

ROOT = Path(__file__).parents[2]
ACT = """
import numpy as np
from quarl_lib.inference import Layer, LayerWeights, PolicySpec, Weights, make_engine, pack
spec = PolicySpec((Layer(2, 1),))
weights = Weights((LayerWeights(np.array([[1, 2]], np.float32), np.array([3], np.float32)),))
engine = make_engine(spec, "int8")
if engine.backend in ("native", "numpy"):
    engine.load(pack(spec, weights, "int8"))
    assert abs(engine(np.array([1, 1], np.float32))[0] - 6) < 0.02
print(engine.backend, getattr(engine, "isa", ""), engine.reason)
"""


def act(**environment: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, "-c", ACT], cwd=ROOT, env=environment, text=True, capture_output=True, timeout=60, check=False
    )


def test_turned_off_it_says_so_once_and_acts_on():
    result = act(QUARL_NATIVE="0")
    assert result.returncode == 0, result.stderr
    assert "native: turned off by QUARL_NATIVE=0" in result.stdout
    assert not result.stdout.startswith("native")
    assert result.stderr.count("Native kernels unavailable") == 1


def test_kernels_of_another_layout_are_not_used(tmp_path):
    fake = tmp_path / "old.py"
    fake.write_text(
        "import sys, types\n"
        "sys.modules['quarl_lib.inference._native'] = types.ModuleType('old')\n"
        "from quarl_lib.inference import extension\nassert extension.native() is None\nprint(extension.missing)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, str(fake)], env=environment, text=True, capture_output=True, timeout=60, check=False
    )
    assert result.stdout.startswith("the C extension is of another version than the rest: build it anew"), result.stderr


@pytest.mark.skipif(extension.native() is None, reason=extension.missing or "built")
def test_an_environment_variable_picks_the_kernels():
    assert act(QUARL_NATIVE_ISA="portable").stdout.startswith("native portable")
    wrong = act(QUARL_NATIVE_ISA="mmx")
    assert "isa 'mmx' is unknown: choose auto, avx512" in wrong.stderr


def test_without_a_compiler_the_build_succeeds_without_the_extension(tmp_path):
    command = [sys.executable, "setup.py", "build_ext", "-b", str(tmp_path / "lib"), "-t", str(tmp_path / "obj")]
    environment = {**os.environ, "CC": "no-such-compiler"}
    result = subprocess.run(
        command, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    assert 'building extension "quarl_lib.inference._native" failed' in result.stdout + result.stderr
    assert not list(tmp_path.rglob("*.so"))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("aarch64-linux-gnu-gcc") is None, reason="no cross compiler for AArch64")
def test_kernels_compile_for_aarch64_with_the_portable_set_alone(tmp_path):
    """Only Python's headers are this machine's: their sizes are those of any 64-bit Linux."""
    flags = ["-O1", "-std=c11", "-ffp-contract=off", "-Wall", "-Werror=implicit-function-declaration", "-fsyntax-only"]
    headers = ["-isystem", sysconfig.get_paths()["include"], "-idirafter", "/usr/include"]
    for source in sorted((ROOT / "quarl_lib/inference/kernels").glob("*.c")):
        call = ["aarch64-linux-gnu-gcc", *flags, *headers, str(source)]
        done = subprocess.run(call, capture_output=True, text=True)
        assert done.returncode == 0, f"{source.name}: {done.stderr}"
