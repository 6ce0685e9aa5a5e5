"""Random policies for the tests of specs, buffers and engines."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from quarl_lib.inference import pack
from quarl_lib.inference.backends import native
from quarl_lib.inference.backends.reference import NumpyEngine
from quarl_lib.inference.layout import activation_limit, layout_of
from quarl_lib.inference.spec import Head, Layer, LayerWeights, PolicySpec, Weights


def bounds(n: int) -> dict[str, tuple[float, ...]]:
    return {"low": tuple(-1.0 - i for i in range(n)), "high": tuple(2.0 + i for i in range(n))}


def mlp(sizes: list[int], head: Head | None = None, activation: str = "relu", **options: object) -> PolicySpec:
    """Describe an MLP with one activation and an identity at the end."""
    names = [activation] * (len(sizes) - 2) + ["identity"]
    layers = [Layer(*pair, name) for pair, name in zip(pairwise(sizes), names, strict=True)]
    return PolicySpec(tuple(layers), head or Head(), **options)  # type: ignore[arg-type]


def random_spec(rng: np.random.Generator, max_hidden: int = 300, max_layers: int = 6) -> PolicySpec:
    """Draw 1 to 6 layers, hidden sizes on a log scale, any activation, head, LayerNorm and normalisation."""
    num_layers = int(rng.integers(1, max_layers + 1))
    hidden = np.exp(rng.uniform(0, np.log(max_hidden), num_layers - 1)).astype(int)
    sizes = [int(rng.integers(1, 401)), *map(int, hidden), int(rng.integers(1, 65))]
    activations = [*rng.choice(["relu", "relu", "tanh", "elu", "silu", "identity"], num_layers - 1), "identity"]
    layers = [
        Layer(sizes[i], sizes[i + 1], str(activations[i]), layer_norm=bool(i + 1 < num_layers and rng.random() < 0.2))
        for i in range(num_layers)
    ]
    kind = str(rng.choice(["none", "tanh", "clip", "argmax", "categorical", "gaussian"]))
    head = Head(kind, **(bounds(sizes[-1]) if kind in ("tanh", "clip", "gaussian") else {}))
    normalized = bool(rng.random() < 0.3)
    return PolicySpec(tuple(layers), head, normalized, 5.0 if normalized else float("inf"))


def random_weights(spec: PolicySpec, rng: np.random.Generator) -> Weights:
    """Draw weights whose rows differ in size by two orders of magnitude; one row in ten is zero."""

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    layers = []
    for layer in spec.layers:
        weight = normal(layer.out_features, layer.in_features) * np.exp(normal(layer.out_features, 1))
        weight *= np.float32(layer.in_features**-0.5) * (rng.random((layer.out_features, 1)) > 0.1)
        norms = (normal(layer.out_features), normal(layer.out_features)) if layer.layer_norm else (None, None)
        layers.append(LayerWeights(weight.astype(np.float32), normal(layer.out_features), *norms))
    inputs = spec.layers[0].in_features
    return Weights(
        layers=tuple(layers),
        observation_mean=normal(inputs).astype(np.float64) if spec.normalize_observation else None,
        observation_inverse_std=np.abs(normal(inputs)).astype(np.float64) if spec.normalize_observation else None,
        log_std=normal(spec.action_dim) / 4 if spec.head.kind == "gaussian" else None,
    )


def with_static_inputs(spec: PolicySpec, weights: Weights, precision: str, rng: np.random.Generator) -> Weights:
    """Give three layers in four a learned step of their input, so small that many values lie beyond the last code."""
    layers = []
    for one, layer in zip(weights.layers, layout_of(spec, precision).layers, strict=True):
        limit = activation_limit(layer.kind, layer.cols_padded)
        step = np.array([rng.uniform(0.3, 3.0) / limit], np.float32)
        learned = rng.random() < 0.75
        layers.append(replace(one, input_step=step, input_limit=limit) if learned else one)
    return replace(weights, layers=tuple(layers))


def both_engines(spec: PolicySpec, weights: Weights, precision: str, isa: str | None = None, seed: int = 0):
    """Return (native, numpy) engines over the same buffer."""
    buffer = pack(spec, weights, precision, 1)
    engines = native.create(spec, precision, seed, isa), NumpyEngine(spec, precision, seed)
    for engine in engines:
        engine.load(buffer)
    return engines
