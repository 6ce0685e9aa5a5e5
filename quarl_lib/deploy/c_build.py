"""Compile an exported C policy on this machine and run it: for parity, times and tests."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import numpy as np

from quarl_lib.deploy.c_source import CSource

FLAGS = ("-std=c99", "-O3", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror")
# Everything in one translation unit, as a firmware with link-time optimization would have it.
BATCH = """
#include "{name}.c"
void quarl_batch(const float *observations, float *actions, int32_t *indices, int32_t n);
void quarl_batch(const float *observations, float *actions, int32_t *indices, int32_t n) {{
    int32_t i;
    (void)actions, (void)indices;
    for (i = 0; i < n; i++, observations += {upper}_OBSERVATIONS)
        {call};
}}
"""


def compiler() -> str | None:
    """Return this machine's C compiler (CC, else cc, gcc or clang), None without one."""
    return next(
        (found for name in (os.environ.get("CC"), "cc", "gcc", "clang") if name and (found := shutil.which(name))), None
    )


class CompiledPolicy:
    """An exported C policy, built as a shared library with all optimizations of this machine."""

    def __init__(
        self, code: CSource, discrete: bool, num_actions: int, flags: Sequence[str] = ("-march=native",)
    ) -> None:
        """Compile it.

        Raises:
            ValueError: there is no C compiler, or it refuses the file.
        """
        cc = compiler()
        if cc is None:
            raise ValueError(
                "no C compiler: parity and times are measured by running the file; install cc, gcc or clang"
            )
        call = "indices[i] = {0}_act(observations)" if discrete else "{0}_act(observations, actions + i * {1}_ACTIONS)"
        upper = code.name.upper()
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / f"{code.name}.c").write_text(code.source)
            (root / f"{code.name}.h").write_text(code.header)
            (root / "batch.c").write_text(BATCH.format(name=code.name, upper=upper, call=call.format(code.name, upper)))
            build = [cc, *FLAGS, *flags, "-shared", "-fPIC", "batch.c", "-o", "batch.so", "-lm"]
            done = subprocess.run(build, cwd=root, capture_output=True, text=True)
            if done.returncode:
                raise ValueError(f"{cc} refuses the exported C: {done.stderr.strip()[:500]}")
            self._library = ctypes.CDLL(str(root / "batch.so"))  # stays mapped when the file is gone
        self._discrete, self._num_actions = discrete, num_actions

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        """Return the actions for float32 observations [n, obs]: int64 [n] or float32 [n, actions]."""
        batch = np.ascontiguousarray(observations, np.float32)
        n = len(batch)
        actions, indices = np.empty((n, self._num_actions), np.float32), np.empty(n, np.int32)
        self._library.quarl_batch(
            *(ctypes.c_void_p(a.ctypes.data) for a in (batch, actions, indices)), ctypes.c_int32(n)
        )
        return indices.astype(np.int64) if self._discrete else actions

    def microseconds(self, observations: np.ndarray) -> float:
        """Return what one call takes, over all of the observations once."""
        begin = perf_counter()
        self(observations)
        return (perf_counter() - begin) / len(observations) * 1e6
