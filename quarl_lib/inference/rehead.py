"""The same packed weights under another head."""

from __future__ import annotations

from dataclasses import replace

from quarl_lib.inference.layout import layout_of
from quarl_lib.inference.pack import (
    aligned_empty,
    as_bytes,
    check_buffer,
    read_precision,
    read_version,
    write_header,
)
from quarl_lib.inference.spec import Head, PolicySpec


def with_head(spec: PolicySpec, head: Head, buffer: object) -> tuple[PolicySpec, memoryview]:
    """Return the spec with another head and a copy of its packed buffer that fits it; the weights stay the same bytes.

    Raises:
        ValueError: one of the two heads is gaussian, whose log std lies among the weights.
    """
    if "gaussian" in (spec.head.kind, head.kind):
        raise ValueError(f"head {spec.head.kind!r} to {head.kind!r}: a gaussian head's buffer has another layout")
    precision = read_precision(buffer)
    check_buffer(spec, precision, buffer)
    other = replace(spec, head=head)
    layout = layout_of(other, precision)
    data = aligned_empty(layout.num_bytes)
    data[:] = as_bytes(buffer)[: layout.num_bytes]
    write_header(layout, read_version(buffer), data)
    return other, data.data
