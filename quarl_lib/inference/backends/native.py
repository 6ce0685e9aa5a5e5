"""The C engine: its table of layers from the layout, and what Python does for it."""

from __future__ import annotations

import copyreg
import os
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from quarl_lib.inference import extension
from quarl_lib.inference.heads import middle_and_half_width
from quarl_lib.inference.interface import Engine
from quarl_lib.inference.layout import KINDS, Section, activation_limit, layout_of
from quarl_lib.inference.observations import check_observation
from quarl_lib.inference.pack import check_buffer
from quarl_lib.inference.spec import ACTIVATIONS, HEADS, PolicySpec

MAX_LAYERS = 64


def unsupported(spec: PolicySpec, precision: str) -> str | None:
    """Return why the C kernels cannot run `spec` here, None if they can."""
    if extension.native() is None:
        return extension.missing
    if spec.conv:
        return "convolutions run on onnxruntime and torch only"
    if len(spec.layers) > MAX_LAYERS:
        return f"{len(spec.layers)} layers, it runs {MAX_LAYERS}"
    return None


def create(spec: PolicySpec, precision: str, seed: int = 0, isa: str | None = None) -> Engine:
    """Return a native engine; `isa` (else QUARL_NATIVE_ISA, else the CPU's best) picks its kernels."""
    layout = layout_of(spec, precision)
    rows = []
    inputs_from = ("", *(layer.activation for layer in spec.layers))
    for layer, part, inputs in zip(spec.layers, layout.layers, inputs_from, strict=False):
        sections = (
            part.weights, part.scales, part.row_sums, part.residuals, part.bias, part.norm_scale, part.norm_offset,
            part.input_step,
        )  # fmt: skip
        limit = activation_limit(part.kind, part.cols_padded)
        rows.append(
            (
                KINDS.index(part.kind), part.rows, part.cols, part.rows_padded, part.cols_padded,
                ACTIVATIONS.index(layer.activation), limit, int(inputs == "relu"), int(layer.layer_norm),
                layer.layer_norm_eps, *map(_offset, sections),
            )
        )  # fmt: skip
    bounds = (spec.head.low, spec.head.high, *middle_and_half_width(spec)) if spec.head.low else ()
    engine = _extension().Engine(
        layers=tuple(rows),
        header=layout.header,
        num_bytes=layout.num_bytes,
        mean=_offset(layout.observation_mean),
        inverse_std=_offset(layout.observation_inverse_std),
        log_std=_offset(layout.log_std),
        clip=spec.observation_clip,
        head=HEADS.index(spec.head.kind),
        bounds=np.array(bounds, np.float32).tobytes(),
        seed=seed % 2**64,
        isa=isa or os.environ.get("QUARL_NATIVE_ISA", "auto"),
        convert=partial(check_observation, spec),
        new_output=partial(_new_output, spec.head.discrete, spec.action_dim),
        explain=partial(check_buffer, spec, precision, verify=False),
    )
    engine.spec, engine.precision = spec, precision
    return engine


def restore(spec: PolicySpec, precision: str, seed: int, isa: str, reason: str, buffer: bytes | None) -> Engine:
    """Return a pickled engine's like; on a machine without its instruction set the best that is there."""
    engine = create(spec, precision, seed, isa if instruction_sets().get(isa) == "ok" else None)
    engine.reason = reason
    if buffer is not None:
        engine.load(buffer, copy=True)
    return engine


def _reduce(engine: Any) -> tuple[Any, ...]:
    state = (engine.spec, engine.precision, engine.random_state, engine.isa, engine.reason, engine.packed())
    return restore, state


def instruction_sets() -> dict[str, str]:
    """Return for every set of kernels `ok`, or why this machine cannot run it; empty without the extension."""
    found = {}
    for name in ("avx512", "avxvnni", "avx2", "portable") if extension.native() else ():
        try:
            found[_extension().isa(name)] = "ok"
        except ValueError as error:
            found[name] = str(error)
    return found


def _extension() -> ModuleType:
    module = extension.native()
    if module is None:
        raise RuntimeError(f"no native kernels: {extension.missing}")
    return module


def _offset(section: Section | None) -> int:
    return section.offset if section else 0


def _new_output(discrete: bool, action_dim: int, n: int | None = None) -> np.ndarray:
    if discrete:
        return np.empty(n or 0, np.int64)
    return np.empty(action_dim if n is None else (n, action_dim), np.float32)


if extension.native() is not None:
    copyreg.pickle(_extension().Engine, _reduce)
