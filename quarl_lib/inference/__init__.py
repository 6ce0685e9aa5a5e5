"""Quantized policies in microseconds: describe one (spec), pack its weights, run it (engines)."""

from quarl_lib.inference.engines import BACKENDS, Engine, make_engine
from quarl_lib.inference.pack import pack, packed_size, read_version, unpack
from quarl_lib.inference.spec import PRECISIONS, Conv, Head, Layer, LayerWeights, PolicySpec, Weights

__all__ = [
    "BACKENDS",
    "PRECISIONS",
    "Conv",
    "Engine",
    "Head",
    "Layer",
    "LayerWeights",
    "PolicySpec",
    "Weights",
    "make_engine",
    "pack",
    "packed_size",
    "read_version",
    "unpack",
]
