"""What the engines that other people's runtimes drive have in common: checks, loading, the action's shape."""

from __future__ import annotations

from typing import Any

import numpy as np

from quarl_lib.inference.heads import ActionHead
from quarl_lib.inference.observations import ObservationCheck
from quarl_lib.inference.pack import read_precision, read_version, unpack
from quarl_lib.inference.spec import PolicySpec, Weights

IN_GRAPH = ("none", "tanh", "clip")  # heads that the runtime computes; the others choose or draw an index or a number


class FrameworkEngine:
    """Base of an `Engine` whose runtime takes float32 weights and returns outputs: subclasses give those two."""

    backend = ""

    def __init__(self, spec: PolicySpec, precision: str, seed: int = 0) -> None:
        """Make an engine without weights."""
        self.spec, self.precision, self.reason = spec, precision, ""
        self.weights_version = -1
        self._check = ObservationCheck(spec)
        self._head = None if spec.head.kind in IN_GRAPH else ActionHead(spec, seed)
        self._log_std: np.ndarray | None = None
        self._source: Weights | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what the runtime's own objects were built from; they are built anew in the other process."""
        if self._source is None and self.weights_version >= 0:
            raise ValueError("an engine that took a runtime's own message cannot be pickled: load a packed buffer")
        options = {"_head": self._head, "reason": self.reason, **self._options()}
        return _restore, (type(self), self.spec, self.precision, options, self._source, self.weights_version)

    def load(self, buffer: object, *, copy: bool = False, verify: bool | None = None) -> None:
        """Take a packed buffer's weights, dequantized; they are copied and checked whatever the options say."""
        if read_precision(buffer) != self.precision:
            raise ValueError(f"buffer holds {read_precision(buffer)} weights: this engine runs {self.precision}")
        self._take(unpack(self.spec, buffer), read_version(buffer))

    def set_weights(self, weights: Weights, weights_version: int = 0) -> None:
        """Take float32 weights and quantize them the runtime's way."""
        weights.check(self.spec)
        self._take(weights, weights_version)

    def _take(self, weights: Weights, weights_version: int) -> None:
        self._source = weights
        self._build(weights)
        self._log_std = weights.log_std
        self.weights_version = weights_version

    def __call__(self, observation: np.ndarray) -> np.ndarray | int:
        """Return the action for one observation, or the actions for a batch."""
        if self.weights_version < 0:
            raise ValueError("the engine has no weights: call load(buffer) first")
        batch, single = self._check(observation)
        actions = self._outputs(batch)
        if self._head is not None:
            actions = self._head(actions, self._log_std)
            if single and self.spec.head.discrete:
                return int(actions[0])
        return actions[0] if single else actions

    def _options(self) -> dict[str, Any]:
        """Return what `_build` reads beside the weights, as attributes."""
        return {}

    def _build(self, weights: Weights) -> None:
        """Make what `_outputs` needs of these weights."""
        raise NotImplementedError

    def _outputs(self, batch: np.ndarray) -> np.ndarray:
        """Return float32 [n, action_dim]: actions where the head is in the graph, else the last layer's outputs."""
        raise NotImplementedError


def _restore(
    kind: type[FrameworkEngine], spec: PolicySpec, precision: str, options: dict[str, Any], weights: Weights | None,
    weights_version: int,
) -> FrameworkEngine:  # fmt: skip
    engine = kind(spec, precision)
    vars(engine).update(options)
    if weights is not None:
        engine._take(weights, weights_version)
    return engine
