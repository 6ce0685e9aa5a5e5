"""Run every kernel once on small policies, under valgrind (CONTRIBUTING.md says how)."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
from inference_cases import random_spec, random_weights

from quarl_lib.inference import PRECISIONS, pack, packed_size
from quarl_lib.inference.backends import native


def main() -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        spec = random_spec(rng, max_hidden=90, max_layers=4)
        weights = random_weights(spec, rng)
        x = rng.standard_normal((3, spec.layers[0].in_features)).astype(np.float32)
        for precision in PRECISIONS:
            size = packed_size(spec, precision)
            # A buffer that ends where its allocation ends, at an address that an engine reads in place.
            raw = ctypes.create_string_buffer(size) if seed % 2 else mmap.mmap(-1, size)
            packed = pack(spec, weights, precision, out=raw)
            for isa in (name for name, state in native.instruction_sets().items() if state == "ok"):
                engine = native.create(spec, precision, seed, isa)
                engine.load(packed, verify=True)
                engine(x)
                engine(x[0])
                engine.load(packed, copy=True)
                engine(x[0])


if __name__ == "__main__":
    main()
