"""Which of two engines is faster on this machine: timed once per size of policy, precision and batch, then kept."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from time import perf_counter

import numpy as np

from quarl_lib import provenance
from quarl_lib.files import read_json, write_json
from quarl_lib.inference import extension
from quarl_lib.inference.interface import Engine
from quarl_lib.inference.pack import pack
from quarl_lib.inference.spec import Layer, LayerWeights, PolicySpec, Weights

CACHE_VARIABLE = "QUARL_CACHE"  # a folder; else XDG_CACHE_HOME or ~/.cache
LARGEST_WIDTH, LARGEST_BATCH = 1024, 256
ROUNDS, BLOCK_SECONDS = 5, 4e-4
# A peer has to be faster by this much: a choice on the edge would change from one day to the next, and actions with it.
MARGIN = 1.1
_known: dict[str, dict[str, float]] = {}


def microseconds(
    spec: PolicySpec, precision: str, batch: int, makers: Mapping[str, Callable[[PolicySpec], Engine]]
) -> dict[str, float]:
    """Return microseconds an action of each engine, on a policy of about these sizes; 20 to 200 ms the first time.

    The table is kept on disk, for this CPU, these versions and this build of the kernels; where it cannot be written,
    for this process.
    """
    small = _like(spec)
    batch = min(LARGEST_BATCH, _power_of_two(batch))
    sizes = "-".join(str(n) for n in (small.layers[0].in_features, *(layer.out_features for layer in small.layers)))
    name = f"{machine()} | {precision} {sizes} batch {batch}"
    if name not in _known:
        path = table_path()
        stored = read_json(path).get(name)
        if not (isinstance(stored, dict) and set(stored) == set(makers)):
            stored = _measure(small, precision, batch, makers)
            with contextlib.suppress(OSError):  # a home that is read-only: this process knows it
                write_json(path, {**read_json(path), name: stored})
        _known[name] = stored
    return _known[name]


def table_path() -> Path:
    """Return where the table is kept."""
    own = os.environ.get(CACHE_VARIABLE)
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quarl"
    return (Path(own) if own else home) / "engines.json"


@lru_cache(maxsize=1)
def machine() -> str:
    """Return what a time holds for: CPU, features, the kernels' set and build, and the peer's version."""
    name, features = provenance.cpu()
    module = extension.native()
    found = Path(module.__file__).stat() if module is not None and module.__file__ else None
    build = f"{found.st_size}.{found.st_mtime_ns}" if found else "none"
    versions = [f"{package} {metadata.version(package)}" for package in ("numpy", "onnxruntime") if installed(package)]
    return ", ".join([name, *features, os.environ.get("QUARL_NATIVE_ISA", "auto"), build, *versions])


def installed(package: str) -> bool:
    """Tell whether a package is there, without importing it."""
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def _like(spec: PolicySpec) -> PolicySpec:
    """Return a plain policy whose sizes are the next powers of two, up to the largest."""
    sizes = [spec.layers[0].in_features, *(layer.out_features for layer in spec.layers)]
    sizes = [min(LARGEST_WIDTH, _power_of_two(size)) for size in sizes]
    names = [layer.activation for layer in spec.layers]
    return PolicySpec(tuple(Layer(*pair, name) for pair, name in zip(pairwise(sizes), names, strict=True)))


def _measure(
    spec: PolicySpec, precision: str, batch: int, makers: Mapping[str, Callable[[PolicySpec], Engine]]
) -> dict[str, float]:
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32)

    layers = [LayerWeights(normal(one.out_features, one.in_features), normal(one.out_features)) for one in spec.layers]
    packed = pack(spec, Weights(tuple(layers)), precision)
    x = normal(batch, spec.layers[0].in_features)
    x = x if batch > 1 else x[0]
    engines = {backend: make(spec) for backend, make in makers.items()}
    best: dict[str, float] = {}
    for backend, engine in engines.items():
        engine.load(packed)
        engine(x)
        best[backend] = _seconds(engine, x, 1)
    for _ in range(ROUNDS):  # in turns: what slows the machine for a moment slows both, and the best of each counts
        for backend, engine in engines.items():
            calls = max(1, min(50, round(BLOCK_SECONDS / best[backend])))
            best[backend] = min(best[backend], _seconds(engine, x, calls))
    return {backend: seconds / batch * 1e6 for backend, seconds in best.items()}


def _seconds(engine: Engine, x: np.ndarray, calls: int) -> float:
    begin = perf_counter()
    for _ in range(calls):
        engine(x)
    return (perf_counter() - begin) / calls
