"""Put weights into one contiguous buffer in the layout that the kernels read, and check such a buffer."""

from __future__ import annotations

import numpy as np

from quarl_lib.inference import tiles
from quarl_lib.inference.extension import native
from quarl_lib.inference.layout import (
    HEADER,
    KINDS,
    LAYOUT_VERSION,
    MAGIC,
    LayerLayout,
    Layout,
    Section,
    layout_of,
)
from quarl_lib.inference.packer import (
    HEADER_FIELD,
    PAYLOAD_FIELD,
    Packer,
    aligned_empty,
    as_bytes,
    check_precision,
    checksum,
    writable,
)
from quarl_lib.inference.spec import PRECISIONS, LayerWeights, PolicySpec, Weights

_UNSEALED = 0xDEADBEEF  # in place of a payload's checksum that was not taken


def packed_size(spec: PolicySpec, precision: str) -> int:
    """Return the bytes of a packed buffer, fixed by spec and precision."""
    check_precision(precision)
    return layout_of(spec, precision).num_bytes


def pack(
    spec: PolicySpec, weights: Weights, precision: str, weights_version: int = 0, out: object = None
) -> memoryview:
    """Quantize `weights` into one buffer that an engine loads; its bytes are a function of the arguments alone.

    `out` is a writable buffer of `packed_size` bytes, such as a slot of shared memory; the header is written last.
    Raise ValueError for weights of a wrong shape or dtype, or where one is not finite (or beyond 65504 at fp16).
    """
    return Packer(spec, weights, precision, out)(weights_version)


def unpack(spec: PolicySpec, buffer: object) -> Weights:
    """Return the weights of a packed buffer as float32, dequantized: for engines with a format of their own.

    Learned steps are left out: what is packed of it again takes its own.
    """
    data = as_bytes(buffer)
    precision = read_precision(data)
    check_buffer(spec, precision, data)
    layout = layout_of(spec, precision)

    def vector(section: Section | None, length: int) -> np.ndarray | None:
        return None if section is None else section.view(data)[:length].copy()

    extension = native() if data.ctypes.data % 4 == 0 else None

    def layer(part: LayerLayout, shape: tuple[int, ...]) -> LayerWeights:
        if extension is not None:
            matrix = np.empty((part.rows, part.cols), np.float32)
            extension.convert(part.rows, part.cols, _sections(part, data), matrix)
        else:
            matrix = _matrix(part, data)
        norm_scale, norm_offset = vector(part.norm_scale, part.rows), vector(part.norm_offset, part.rows)
        bias = part.bias.view(data)[: part.rows].copy()
        return LayerWeights(matrix.reshape(shape), bias, norm_scale, norm_offset)

    conv_shapes = [(c.out_channels, c.in_channels, c.kernel, c.kernel) for c in spec.conv]
    return Weights(
        layers=tuple(layer(part, (part.rows, part.cols)) for part in layout.layers),
        conv=tuple(layer(part, shape) for part, shape in zip(layout.conv, conv_shapes, strict=True)),
        observation_mean=vector(layout.observation_mean, spec.layers[0].in_features),
        observation_inverse_std=vector(layout.observation_inverse_std, spec.layers[0].in_features),
        log_std=vector(layout.log_std, spec.action_dim),
    )


def _matrix(part: LayerLayout, data: np.ndarray) -> np.ndarray:
    matrix = tiles.decode(part, part.weights.view(data))
    if part.scales is None:
        return matrix
    if part.kind == "w4g128a8":
        scales = tiles.ungroup_scales(part, part.scales.view(data)).T
        return matrix * np.repeat(scales, tiles.GROUP, axis=1)[:, : part.cols]
    return matrix * part.scales.view(data)[: part.rows, None]


def convert(spec: PolicySpec, buffer: object, precision: str, out: object = None, *, seal: bool = True) -> memoryview:
    """Return a packed buffer's weights at another precision, under the same version: `pack` of its `unpack`, in place.

    `out` is a writable buffer of `packed_size` bytes. Without `seal` the payload's checksum, a read of all bytes, is
    left out: for an engine in the same process that reads `out` where it lies; verified, such a buffer is refused.
    Raise ValueError as `unpack` and `pack` do.
    """
    check_precision(precision)
    data = as_bytes(buffer)
    own = read_precision(data)
    check_buffer(spec, own, data, verify=False)
    extension = native()
    if extension is None or data.ctypes.data % 4:
        return pack(spec, unpack(spec, buffer), precision, read_version(data), out)
    source, target = layout_of(spec, own), layout_of(spec, precision)
    result = aligned_empty(target.num_bytes) if out is None else writable(out, target.num_bytes)
    for before, after in zip((*source.conv, *source.layers), (*target.conv, *target.layers), strict=True):
        if not extension.convert(after.rows, after.cols, _sections(before, data), _sections(after, result)):
            return pack(spec, unpack(spec, buffer), precision, read_version(data), out)  # which names the weight
        for name in ("bias", "norm_scale", "norm_offset"):
            _copy(getattr(before, name), getattr(after, name), data, result)
        if after.input_step is not None:
            after.input_step.view(result)[:] = 0  # a learned one is of the other precision
    for name in ("observation_mean", "observation_inverse_std", "log_std"):
        _copy(getattr(source, name), getattr(target, name), data, result)
    write_header(target, read_version(data), result, seal)
    return result.data


def _sections(layer: LayerLayout, data: np.ndarray) -> tuple[object, ...]:
    found = (layer.weights, layer.scales, layer.row_sums, layer.residuals)
    return (KINDS.index(layer.kind), *(None if section is None else section.view(data) for section in found))


def _copy(before: Section | None, after: Section | None, data: np.ndarray, result: np.ndarray) -> None:
    if before is not None and after is not None:
        after.view(result)[:] = before.view(data)


def read_version(buffer: object) -> int:
    """Return the weights version that a packed buffer carries."""
    return HEADER.unpack_from(_with_header(as_bytes(buffer)).data)[5]


def read_precision(buffer: object) -> str:
    """Return the precision of a packed buffer."""
    index = HEADER.unpack_from(_with_header(as_bytes(buffer)).data)[2]
    if index >= len(PRECISIONS):
        raise ValueError(f"buffer has the unknown precision number {index}")
    return PRECISIONS[index]


def check_buffer(spec: PolicySpec, precision: str, buffer: object, verify: bool = True) -> None:
    """Raise ValueError unless the buffer was packed for `spec` at `precision`; nothing past its end is read.

    `verify` sums the payload too, which finds every changed byte; without it only the header's checksum is held.
    """
    data = as_bytes(buffer)
    layout = layout_of(spec, precision)
    fields = HEADER.unpack_from(_with_header(data).data)
    _, _, number, fingerprint, num_bytes, _, _, header_bytes, payload, header = fields
    if number != PRECISIONS.index(precision):
        raise ValueError(f"buffer holds {read_precision(data)} weights: this engine runs {precision}")
    if fingerprint != spec.fingerprint or num_bytes != layout.num_bytes or header_bytes != len(layout.header):
        raise ValueError("buffer was packed for another policy: pack it with this engine's spec")
    if len(data) < num_bytes:
        raise ValueError(f"buffer is truncated: {len(data)} bytes of {num_bytes}")
    own = data[:header_bytes].copy()
    own[HEADER_FIELD : HEADER_FIELD + 8] = 0
    if checksum(own) != header:
        raise ValueError("buffer is corrupted: its header does not match its checksum")
    own[40 - 8 : 40] = own[PAYLOAD_FIELD : PAYLOAD_FIELD + 8] = 0
    if own.tobytes() != layout.header:
        raise ValueError("buffer was packed for another policy: its layer table differs")
    if verify and checksum(data[header_bytes:num_bytes]) != payload:
        raise ValueError("buffer is corrupted: its payload does not match its checksum")


def write_header(layout: Layout, weights_version: int, data: np.ndarray, seal: bool = True) -> None:
    """Write a filled buffer\'s header, checksums included."""
    size = len(layout.header)
    header = np.frombuffer(bytearray(layout.header), np.uint8)
    header[32:40].view("<i8")[0] = weights_version
    header[PAYLOAD_FIELD : PAYLOAD_FIELD + 8].view("<u8")[0] = checksum(data[size:]) if seal else _UNSEALED
    header[HEADER_FIELD : HEADER_FIELD + 8].view("<u8")[0] = checksum(header)
    data[:size] = header


def _with_header(data: np.ndarray) -> np.ndarray:
    """Refuse what does not start with a header of this layout version."""
    if len(data) < HEADER.size:
        raise ValueError(f"buffer is truncated: {len(data)} bytes, a header alone has {HEADER.size}")
    magic, version = HEADER.unpack_from(data.data)[:2]
    if magic != MAGIC:
        raise ValueError(f"buffer is no packed policy: it starts with {magic!r}")
    if version != LAYOUT_VERSION:
        raise ValueError(f"buffer has layout version {version}: this library reads {LAYOUT_VERSION}; pack it anew")
    return data
