"""One file for one policy: a header, JSON that says what it is, and the packed weights as an engine reads them.

magic 8 bytes, version u32, bytes of JSON u32, BLAKE2b of all that follows 32 bytes; JSON; zeros up to a multiple of
64; the packed buffer (see inference/layout.py). Little-endian. Nothing in it is code.
"""

from __future__ import annotations

import dataclasses
import json
import math
import struct
from hashlib import blake2b
from typing import Any

import numpy as np

from quarl_lib.inference.layout import ALIGN, round_up
from quarl_lib.inference.pack import aligned_empty
from quarl_lib.inference.spec import Conv, Head, Layer, PolicySpec

MAGIC, VERSION = b"QUARLPOL", 1
START = struct.Struct("<8sII32s")


def spec_to_json(spec: PolicySpec) -> dict[str, Any]:
    """Return a spec as plain values; no clip is None, because JSON has no infinity."""
    plain = dataclasses.asdict(spec)
    return {**plain, "observation_clip": None if math.isinf(spec.observation_clip) else spec.observation_clip}


def spec_from_json(plain: dict[str, Any]) -> PolicySpec:
    """Return the spec of `spec_to_json`'s values.

    Raises:
        ValueError: a field is missing, unknown or of another type.
    """
    try:
        clip, image = plain["observation_clip"], plain["image_shape"]
        return PolicySpec(
            layers=tuple(Layer(**layer) for layer in plain["layers"]),
            head=Head(**plain["head"]),
            normalize_observation=bool(plain["normalize_observation"]),
            observation_clip=math.inf if clip is None else float(clip),
            conv=tuple(Conv(**conv) for conv in plain["conv"]),
            image_shape=None if image is None else (int(image[0]), int(image[1]), int(image[2])),
        )
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"the policy's description cannot be read: {type(error).__name__}: {error}") from error


def to_bytes(description: dict[str, Any], buffer: np.ndarray) -> bytes:
    """Return the file's bytes."""
    text = json.dumps(description, allow_nan=False).encode()
    padding = bytes(round_up(START.size + len(text), ALIGN) - START.size - len(text))
    body = b"".join([text, padding, buffer.tobytes()])
    return START.pack(MAGIC, VERSION, len(text), blake2b(body, digest_size=32).digest()) + body


def from_bytes(data: bytes, name: str) -> tuple[dict[str, Any], np.ndarray]:
    """Return description and packed buffer, aligned; `name` is the file's, for messages.

    Raises:
        ValueError: it is no such file, of another version, cut short, or a byte of it was changed.
    """
    if len(data) < START.size or data[:8] != MAGIC:
        raise ValueError(f"{name} is no policy of this library: it starts with {data[:8]!r}")
    _, version, size, digest = START.unpack_from(data)
    if version != VERSION:
        raise ValueError(f"{name} has file version {version}: this library reads {VERSION}; export it anew")
    body = memoryview(data)[START.size :]
    if blake2b(body, digest_size=32).digest() != digest:
        raise ValueError(f"{name} is damaged or cut short: its bytes do not match their checksum")
    try:
        description = json.loads(bytes(body[:size]))
    except ValueError as error:
        raise ValueError(f"{name}: its description is not JSON: {error}") from error
    if not isinstance(description, dict):
        raise ValueError(f"{name}: its description is a {type(description).__name__}")
    packed = np.frombuffer(data, np.uint8)[round_up(START.size + size, ALIGN) :]
    buffer = aligned_empty(len(packed))
    buffer[:] = packed
    return description, buffer
