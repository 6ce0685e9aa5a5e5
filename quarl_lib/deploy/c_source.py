"""Write a policy as one C99 source and one header without any dependency: what a robot's firmware compiles.

The integers are those of `inference/backends/reference.py`, code for code; weights are const arrays, and a call keeps
its scratch on the stack or takes it from the caller.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from quarl_lib.deploy import c_parts
from quarl_lib.deploy.c_values import float_text, packed_codes
from quarl_lib.inference import tiles
from quarl_lib.inference.heads import middle_and_half_width
from quarl_lib.inference.layout import BITS, LayerLayout, Section, activation_limit, layout_of
from quarl_lib.inference.pack import as_bytes, check_buffer
from quarl_lib.inference.spec import Layer, PolicySpec

SUPPORTED = ("fp32", "fp16", "int8", "int4", "int3", "int2")


@dataclass(frozen=True)
class CSource:
    """The two files' text; `constant_bytes` are those of the arrays, `ram_bytes` those of a call's scratch."""

    name: str
    source: str
    header: str
    constant_bytes: int
    ram_bytes: int


def unsupported(spec: PolicySpec, precision: str) -> str | None:
    """Return why there is no C source of this policy at this precision, None if there is."""
    if precision not in SUPPORTED:
        return f"precision {precision!r}: C knows {', '.join(SUPPORTED)}"
    if spec.conv:
        return "a policy on images does not fit a microcontroller; export it to ONNX"
    if spec.head.kind in ("categorical", "gaussian"):
        return f"a {spec.head.kind} head draws, and a C file has no generator; export the deterministic policy"
    return None


def identifier(stem: str) -> str:
    """Return a C identifier for a file's name: letters, digits and underscores, a letter first."""
    name = re.sub(r"\W", "_", stem, flags=re.ASCII).strip("_")
    return name if re.match(r"[A-Za-z]", name) else f"policy_{name}".rstrip("_")


def write_c(spec: PolicySpec, buffer: object, precision: str, name: str, about: Iterable[str] = ()) -> CSource:
    """Return source and header of a packed policy; `about` are lines for the comment on top.

    Raises:
        ValueError: C has no such policy or precision, in words, or `name` is no identifier.
    """
    reason = unsupported(spec, precision)
    if reason:
        raise ValueError(reason)
    if name != identifier(name):
        raise ValueError(f"name={name!r}: give a C identifier, such as {identifier(name)}")
    data = as_bytes(buffer)
    check_buffer(spec, precision, data)
    writer = _Writer(spec, precision, data)
    arrays, steps = writer.arrays_and_steps()
    ram = 4 * writer.width * (1 if writer.integer else 2) + 2 * writer.code_width * writer.integer
    top = "".join(f" * {line}\n" for line in about)
    header = _header(writer, top, ram)
    source = (
        f"/* {name}.c: generated, see {name}.h.\n{top} */\n#include \"{name}.h\"\n\n{c_parts.GUARDS}\n"
        + "\n".join([*arrays, *writer.functions(), _act(writer, steps)]) + c_parts.END
    )  # fmt: skip
    source, header = (
        re.sub(r"\bNAME_(?=[A-Z])", f"{name.upper()}_", text).replace("NAME", name) for text in (source, header)
    )
    return CSource(name, source, header, writer.constant_bytes, ram)


class _Writer:
    """Collects a policy's arrays, the calls that use them, and which functions those need."""

    def __init__(self, spec: PolicySpec, precision: str, data: np.ndarray) -> None:
        self.spec, self.data, self.layout = spec, data, layout_of(spec, precision)
        self.integer = precision.startswith("int")
        self.packs = any(BITS[part.kind] < 8 for part in self.layout.layers)
        widths = [size for layer in spec.layers for size in (layer.in_features, layer.out_features)]
        self.width = max(widths)
        self.code_width = -(-max(layer.in_features for layer in spec.layers) // 8) * 8
        self.constant_bytes = 0
        self.needs: dict[str, str] = {}  # function -> its text, in order

    def arrays_and_steps(self) -> tuple[list[str], list[str]]:
        arrays, steps, x = [], [], "observation"
        if not self.integer or self.layout.observation_mean is not None:  # else the first codes find it
            n = self.spec.layers[0].in_features
            steps.append(
                f"    for (i = 0; i < {n}; i++)\n        if (!(fabsf(observation[i]) <= NAME_LARGEST)) goto bad;\n"
            )
        if self.layout.observation_mean is not None:
            mean, inverse = (self._vector(s, self.spec.layers[0].in_features)
                             for s in (self.layout.observation_mean, self.layout.observation_inverse_std))  # fmt: skip
            arrays += [self._array("double", "mean", mean), self._array("double", "inverse_std", inverse)]
            steps.append(_normalize(self.spec))
            x = "x"
        for index, (layer, part) in enumerate(zip(self.spec.layers, self.layout.layers, strict=True)):
            # Codes are taken before outputs are written: integer layers work in place, the others change sides.
            y = "x" if self.integer or x != "x" else "y"
            arrays += self._layer_arrays(index, part)
            steps += self._layer_steps(index, layer, part, x, y)
            x = y
        head_arrays, head = self._head(x)
        return arrays + head_arrays, [*steps, head]

    def functions(self) -> list[str]:
        return list(self.needs.values())

    def _layer_arrays(self, index: int, part: LayerLayout) -> list[str]:
        matrix = tiles.decode(part, part.weights.view(self.data))
        bias = self._vector(part.bias, part.rows)
        if part.scales is None or part.residuals is None:
            half = part.kind == "fp16"
            values = matrix.T.astype(np.float16).view(np.uint16) if half else np.ascontiguousarray(matrix.T)
            arrays = [self._array("uint16_t" if half else "float", f"w{index}", values),
                      self._array("float", f"b{index}", bias)]  # fmt: skip
        else:
            rows = np.stack([self._vector(part.scales, part.rows), self._vector(part.residuals, part.rows), bias], 1)
            codes = packed_codes(matrix, BITS[part.kind])
            arrays = [self._array("int8_t" if BITS[part.kind] == 8 else "uint8_t", f"w{index}", codes),
                      self._array("float", f"r{index}", rows)]  # fmt: skip
        for name, section in (("n", part.norm_scale), ("o", part.norm_offset)):
            if section is not None:
                arrays.append(self._array("float", f"{name}{index}", self._vector(section, part.rows)))
        return arrays

    def _layer_steps(self, index: int, layer: Layer, part: LayerLayout, x: str, y: str) -> list[str]:
        sizes = f"{part.cols}, {part.rows}"
        if self.integer:
            bits = BITS[part.kind]
            pad = c_parts.PAD if self.packs else ""
            self.needs["quantize"] = c_parts.QUANTIZE.replace("PAD", pad)
            self.needs[f"layer{bits}"] = _integer_layer(bits)
            limit = activation_limit(part.kind, part.cols_padded)
            step = float_text(self._vector(part.input_step, 1)[0])
            call = f"NAME_layer{bits}(NAME_w{index}, NAME_r{index}, {sizes}, {limit}.0f, {step}, {x}, {y}, s->codes)"
            steps = [f"    if (!{call}) goto bad;\n"]
        else:
            if part.kind == "fp16":
                self.needs["half"] = c_parts.HALF
            self.needs["layer"] = _float_layer(part.kind)
            steps = [f"    NAME_layer(NAME_w{index}, NAME_b{index}, {sizes}, {x}, {y});\n"]
        if layer.layer_norm:
            self.needs["norm"] = c_parts.LAYER_NORM
            arrays = f"NAME_n{index}, NAME_o{index}"
            steps.append(f"    NAME_layer_norm({y}, {arrays}, {part.rows}, {layer.layer_norm_eps!r});\n")
        if layer.activation != "identity":
            self._activation(layer.activation)
            steps.append(f"    NAME_{layer.activation}_all({y}, {part.rows});\n")
        return steps

    def _activation(self, kind: str) -> None:
        if kind in ("elu", "silu"):
            self.needs["exp"] = c_parts.EXP
        if kind == "tanh":
            self.needs["tanh"] = c_parts.TANH
        value = c_parts.ACTIVATIONS[kind]
        self.needs[f"{kind}_all"] = c_parts.ACTIVATE.replace("KIND", kind).replace("VALUE", value)

    def _head(self, x: str) -> tuple[list[str], str]:
        n, kind = self.spec.action_dim, self.spec.head.kind
        check = f"if (!(fabsf({x}[i]) <= NAME_LARGEST)) goto bad;\n"
        if self.spec.head.discrete:
            return [], (
                f"    for (i = 0; i < {n}; i++)\n        {check}"
                f"    for (i = 1; i < {n}; i++)\n        if ({x}[i] > {x}[best]) best = i;\n    return best;\n"
            )
        arrays = []
        if kind == "none":
            value = f"{x}[i]"
        elif kind == "tanh":
            self.needs["tanh"] = c_parts.TANH
            arrays = [self._array("float", "bounds", np.stack(middle_and_half_width(self.spec), axis=1))]
            value = f"NAME_bounds[2 * i] + NAME_bounds[2 * i + 1] * NAME_tanh({x}[i])"
        else:
            arrays = [self._array("float", "bounds", np.stack(self._bounds(), axis=1))]
            low, high = "NAME_bounds[2 * i]", "NAME_bounds[2 * i + 1]"
            value = f"{x}[i] < {low} ? {low} : {x}[i] > {high} ? {high} : {x}[i]"
        # Actions written before a bad value is found are overwritten there.
        return arrays, (
            f"    for (i = 0; i < {n}; i++) {{\n        {check}        action[i] = {value};\n    }}\n    return;\n"
        )

    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array(self.spec.head.low, np.float32), np.array(self.spec.head.high, np.float32)

    def _vector(self, section: Section | None, length: int) -> np.ndarray:
        assert section is not None
        return section.view(self.data)[:length]

    def _array(self, kind: str, name: str, values: np.ndarray) -> str:
        self.constant_bytes += values.nbytes
        flat = values.reshape(-1).tolist()
        texts = [float_text(v) for v in flat] if kind == "float" else [str(v) for v in flat]
        per_line = {"float": 8, "double": 4}.get(kind, 24)
        lines = [", ".join(texts[start : start + per_line]) for start in range(0, len(texts), per_line)]
        body = ",\n    ".join(lines)
        return f"static const {kind} NAME_{name}[{len(texts)}] = {{\n    {body}}};\n"


def _integer_layer(bits: int) -> str:
    padded = {8: "columns", 4: "(columns + 1) / 2 * 2", 3: "(columns + 7) / 8 * 8", 2: "(columns + 3) / 4 * 4"}[bits]
    comment = {8: "8-bit codes", 4: "4-bit codes, two a byte, for odd numbers of half steps: 2 code - 15",
               3: "3-bit codes, low pairs of bits, then high bits, for odd numbers of half steps: 2 code - 7",
               2: "2-bit codes, four a byte, for odd numbers of half steps: 2 code - 3"}[bits]  # fmt: skip
    text = c_parts.INTEGER_LAYER.replace("BITS", str(bits)).replace("TYPE", "int8_t" if bits == 8 else "uint8_t")
    return text.replace("PADDED", padded).replace("COMMENT", comment).replace("SUMS", c_parts.INTEGER_SUMS[bits])


def _float_layer(kind: str) -> str:
    names = ("uint16_t", "NAME_half(w[i])") if kind == "fp16" else ("float", "w[i]")
    return c_parts.FLOAT_LAYER.replace("TYPE", names[0]).replace("VALUE", names[1])


def _normalize(spec: PolicySpec) -> str:
    n, clip = spec.layers[0].in_features, spec.observation_clip
    text = f"    for (i = 0; i < {n}; i++) {{\n"
    text += "        x[i] = (float)(((double)observation[i] - NAME_mean[i]) * NAME_inverse_std[i]);\n"
    if np.isfinite(clip):
        bound = float_text(float(np.float32(clip)))
        text += f"        if (x[i] < -{bound}) x[i] = -{bound};\n        if (x[i] > {bound}) x[i] = {bound};\n"
    return text + "    }\n"


def _act(writer: _Writer, steps: list[str]) -> str:
    discrete = writer.spec.head.discrete
    kind, action = ("int", "") if discrete else ("void", ", float *action")
    fail = "    return -1;\n" if discrete else (
        f"    for (i = 0; i < {writer.spec.action_dim}; i++) action[i] = NAN;\n"
    )  # fmt: skip
    uses = "float *x = s->x;" if writer.integer else "float *x = s->x, *y = s->y;"
    body = "".join(steps)
    if not writer.integer and "y" not in re.findall(r"\by\b", body):
        uses = "float *x = s->x;"
    locals_ = f"    {uses}\n    int i{', best = 0' if discrete else ''};\n"
    passed = f"{kind} NAME_act(const float *observation{action}, NAME_scratch *s) {{\n"
    stack = f"{kind} NAME_act(const float *observation{action}) {{\n    NAME_scratch scratch, *s = &scratch;\n"
    start = f"#ifdef NAME_SCRATCH_PASSED\n{passed}#else\n{stack}#endif\n"
    return f"{start}{locals_}{body}bad:\n{fail}}}\n"


def _header(writer: _Writer, top: str, ram: int) -> str:
    spec = writer.spec
    discrete = spec.head.discrete
    result, action = ("int", "") if discrete else ("void", ", float *action")
    what = (
        f"Return the action for an observation, 0 to {spec.action_dim - 1}; -1 if the observation is not finite."
        if discrete else "Write the action for an observation; not-a-numbers if the observation is not finite."
    )  # fmt: skip
    fields = f"    float x[{writer.width}];\n" + ("" if writer.integer else f"    float y[{writer.width}];\n")
    fields += f"    int16_t codes[{writer.code_width}];\n" if writer.integer else ""
    return f"""\
/* NAME.h: a policy in C99, generated.
{top} *
 * Static and re-entrant; the observation is the environment's own, float by float. A call needs NAME_RAM_BYTES
 * bytes of scratch and about 100 bytes of stack. Define NAME_SCRATCH_PASSED (here and for NAME.c) to pass the scratch
 * yourself; otherwise it lies on the stack. Link with -lm where sqrt is used (LayerNorm).
 */
#ifndef NAME_H
#define NAME_H

#include <stdint.h>

#define NAME_OBSERVATIONS {spec.layers[0].in_features}
#define NAME_ACTIONS {spec.action_dim}
#define NAME_RAM_BYTES {ram}
#define NAME_CONSTANT_BYTES {writer.constant_bytes}

typedef struct {{
{fields}}} NAME_scratch;

#ifdef __cplusplus
extern "C" {{
#endif

/* {what} */
#ifdef NAME_SCRATCH_PASSED
{result} NAME_act(const float *observation{action}, NAME_scratch *s);
#else
{result} NAME_act(const float *observation{action});
#endif

#ifdef __cplusplus
}}
#endif

#endif
"""
