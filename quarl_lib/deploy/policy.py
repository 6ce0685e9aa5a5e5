"""A quantized policy as one object: raw observations in, the environment's actions out. Knows no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from quarl_lib import __version__
from quarl_lib.deploy import container
from quarl_lib.deploy.draws import Draws
from quarl_lib.files import write_atomically
from quarl_lib.inference.engines import Engine, make_engine
from quarl_lib.inference.layout import LAYOUT_VERSION
from quarl_lib.inference.pack import check_buffer, pack
from quarl_lib.inference.spec import PolicySpec, Weights

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm

    from quarl_lib.deploy.source import Source
    from quarl_lib.sb3 import Agent, AgentFile


class QuantizedPolicy:
    """A policy packed for an engine, with normalisation before it and action scaling behind it.

    Attributes:
        spec, precision: what the engine runs.
        card: what it is and where it comes from; `quarl export` adds the parity measured.
        engine: the engine; `predict` costs a few microseconds more.
    """

    def __init__(
        self,
        spec: PolicySpec,
        buffer: Any,
        precision: str,
        *,
        observation_shape: tuple[int, ...] | None = None,
        action_shape: tuple[int, ...] | None = None,
        draws: Draws | None = None,
        card: dict[str, Any] | None = None,
        backend: str = "auto",
        seed: int = 0,
    ) -> None:
        """Make a policy from a packed buffer; shapes are the environment's where they differ from the spec's.

        Raises:
            ValueError: the buffer or a shape does not fit the spec, or no backend runs it.
        """
        self.spec, self.precision, self.backend = spec, precision, backend
        self.observation_shape = spec.observation_shape if observation_shape is None else tuple(observation_shape)
        own_actions = () if spec.head.discrete else (spec.action_dim,)
        self.action_shape = own_actions if action_shape is None else tuple(action_shape)
        if np.prod(self.action_shape, dtype=int) != np.prod(own_actions, dtype=int):
            raise ValueError(f"action_shape={self.action_shape}: the policy gives {own_actions}")
        if np.prod(self.observation_shape, dtype=int) != np.prod(spec.observation_shape, dtype=int):
            raise ValueError(f"observation_shape={self.observation_shape}: the policy takes {spec.observation_shape}")
        self.draws = draws or Draws("")
        self.card = {**_blank_card(spec, precision, len(memoryview(buffer).cast("B"))), **(card or {})}
        self.engine: Engine = make_engine(spec, precision, backend)
        self.engine.load(buffer, copy=True)
        self._buffer = np.frombuffer(buffer, np.uint8).copy()
        self._plain = (
            not spec.conv and self.observation_shape == spec.observation_shape and self.action_shape == own_actions
        )
        self._discrete = spec.head.discrete
        self.set_random_seed(seed)

    @classmethod
    def from_sb3(
        cls,
        model_or_path: BaseAlgorithm | Agent | AgentFile | str | Path,
        precision: str = "int8",
        *,
        vec_normalize: Any = None,
        env_id: str | None = None,
        backend: str = "auto",
        seed: int = 0,
    ) -> QuantizedPolicy:
        """Quantize a live Stable-Baselines3 model, an archive, a hub folder, or one of a study's agents.

        `vec_normalize` (a VecNormalize or its pickle) stands in for what lies beside the archive or wraps the model's
        environment; `env_id` is needed where neither the file's name nor the model says it. A model that `fine_tune`
        returned runs at the precision that it trained for, and at no other.

        Raises:
            ValueError: no engine runs this policy, or the path leads to no agent; the message says what to do.
            AgentError: the archive cannot be used, with the reason.
        """
        from quarl_lib.deploy.source import read_source  # imports torch

        source = read_source(model_or_path, vec_normalize=vec_normalize, env_id=env_id)
        return cls.of_source(source, precision, backend, seed)

    @classmethod
    def of_source(cls, source: Source, precision: str, backend: str = "auto", seed: int = 0) -> QuantizedPolicy:
        """Quantize what `read_source` found.

        Raises:
            ValueError: a model that trained under fake quantization is to run at another precision.
        """
        source.check_precision(precision)
        buffer = pack(source.spec, source.weights, precision)
        return cls(
            source.spec, buffer, precision, observation_shape=source.observation_shape,
            action_shape=source.action_shape, draws=source.draws, card=source.card, backend=backend, seed=seed,
        )  # fmt: skip

    def predict(
        self,
        observation: np.ndarray,
        state: Any = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = True,
    ) -> tuple[np.ndarray, None]:
        """Return the action for an observation as the environment gives it, or the actions for a batch; and None.

        Shapes and types are those of Stable-Baselines3's `predict`. `deterministic=False` draws from the generator
        that `set_random_seed` starts.

        Raises:
            ValueError: the observation has another shape, or holds NaN or infinity; or drawing is not possible.
        """
        if self._plain and deterministic and state is None:
            action = self.engine(observation)
            return (np.array(action) if type(action) is int else action), None  # type: ignore[return-value]
        if state is not None:
            raise ValueError("state is given: this policy has no memory, leave it out")
        return self._general(observation, deterministic), None

    def set_random_seed(self, seed: int | None = None) -> None:
        """Start the draws of `deterministic=False` anew."""
        self._rng = np.random.default_rng(seed)
        self._drawing: Engine | None = None

    def load_weights(self, model: BaseAlgorithm | Agent | AgentFile | str | Path, **where: Any) -> None:
        """Take newer weights of the same shape; `where` is `vec_normalize` or `env_id` as in `from_sb3`.

        Raises:
            ValueError: the policy has another shape; the old weights stay.
        """
        from quarl_lib.deploy.source import read_source

        source = read_source(model, **where)
        if source.spec != self.spec:
            raise ValueError(f"the new weights are those of {source.spec}; this policy is {self.spec}")
        source.check_precision(self.precision)
        self.set_weights(source.weights, source.draws)

    def set_weights(self, weights: Weights, draws: Draws | None = None) -> None:
        """Take float32 weights and pack them; the engine goes on with them."""
        buffer = pack(self.spec, weights, self.precision)
        self.engine.load(buffer, copy=True)
        self._buffer[:] = np.frombuffer(buffer, np.uint8)
        self.draws, self._drawing = draws or self.draws, None
        self.card = {**self.card, "parity": None, "timing": None}

    @property
    def packed(self) -> memoryview:
        """Return the packed weights in use, read-only."""
        return self._buffer.data.toreadonly()

    def save(self, path: str | Path) -> None:
        """Write one file with spec, packed weights, checksum and card; `load` needs neither torch nor the archive."""
        write_atomically(Path(path), lambda aside: aside.write_bytes(self.to_bytes()))

    @classmethod
    def load(cls, path: str | Path, *, backend: str = "auto", seed: int = 0) -> QuantizedPolicy:
        """Read a file of `save`.

        Raises:
            ValueError: it is no such file, of another version, or damaged.
        """
        return cls.from_bytes(Path(path).read_bytes(), str(path), backend, seed)

    def to_bytes(self) -> bytes:
        """Return what `save` writes."""
        description = {
            "precision": self.precision,
            "spec": container.spec_to_json(self.spec),
            "observation_shape": self.observation_shape,
            "action_shape": self.action_shape,
            "draws": self.draws.to_json(),
            "card": self.card,
        }
        return container.to_bytes(description, self._buffer)

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "the file", backend: str = "auto", seed: int = 0) -> QuantizedPolicy:
        """Read what `to_bytes` gives; `name` stands in messages."""
        plain, buffer = container.from_bytes(data, name)
        try:
            spec, precision = container.spec_from_json(plain["spec"]), str(plain["precision"])
            shapes = {key: tuple(map(int, plain[key])) for key in ("observation_shape", "action_shape")}
            draws, card = Draws.from_json(plain["draws"]), dict(plain["card"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{name}: its description cannot be read: {error}") from error
        check_buffer(spec, precision, buffer)
        return cls(spec, buffer, precision, **shapes, draws=draws, card=card, backend=backend, seed=seed)  # type: ignore[arg-type]

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.to_bytes(), self.backend, self._rng)

    def __repr__(self) -> str:
        layers = "-".join(str(layer.out_features) for layer in self.spec.layers)
        return f"QuantizedPolicy({self.card['source']}, {self.spec.observation_shape}-{layers}, {self.precision})"

    def _general(self, observation: np.ndarray, deterministic: bool) -> np.ndarray:
        """Predict where shapes differ from the spec's, or where an action is drawn."""
        if isinstance(observation, dict | tuple):
            raise ValueError(f"observation is a {type(observation).__name__}: give the array alone")
        array = np.asarray(observation)
        batched = array.ndim == len(self.observation_shape) + 1
        shape = array.shape[1:] if batched else array.shape
        if batched and not len(array):
            raise ValueError("observation is an empty batch: give at least one")
        channels_last = (*self.spec.observation_shape[1:], self.spec.observation_shape[0])
        if self.spec.conv and shape == channels_last != self.observation_shape:
            array = np.moveaxis(array, -1, -3)
        elif shape != self.observation_shape:
            raise ValueError(
                f"observation has shape {array.shape}: the policy takes {self.observation_shape}, or a batch of such"
            )
        batch = np.ascontiguousarray(array.reshape(-1, *self.spec.observation_shape))
        actions = np.asarray(self.engine(batch) if deterministic else self._drawn(batch))
        actions = actions.reshape(len(batch), *self.action_shape)
        return actions if batched else actions.squeeze(axis=0)

    def _drawn(self, batch: np.ndarray) -> np.ndarray:
        if self._drawing is None:
            self._drawing = self.draws.engine(self.spec, self._buffer, self.precision, self.backend)
        return self.draws.actions(np.asarray(self._drawing(batch)), self.spec, self._rng)


def _blank_card(spec: PolicySpec, precision: str, num_bytes: int) -> dict[str, Any]:
    return {
        "kind": "policy",
        "source": "",
        "algorithm": "",
        "env_id": "",
        "precision": precision,
        "spec": json.loads(json.dumps(container.spec_to_json(spec))),
        "payload_bytes": num_bytes,
        "layout_version": LAYOUT_VERSION,
        "library_version": __version__,
        "parity": None,
        "timing": None,
    }


def _unpickled(data: bytes, backend: str, rng: np.random.Generator) -> QuantizedPolicy:
    policy = QuantizedPolicy.from_bytes(data, "the pickled policy", backend)
    policy._rng = rng
    return policy
