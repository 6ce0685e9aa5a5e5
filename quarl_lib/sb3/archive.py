"""Read agents from disk without running what was pickled into them: settings as JSON, weights as tensors."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
import yaml
from gymnasium import spaces

MOST_SETTINGS_BYTES, MOST_WEIGHTS_BYTES = 2**27, 2**31  # what is larger is no agent's
MOST_SIDE_BYTES, MOST_NODES = 2**18, 20_000  # of a configuration beside an archive
MOST_INFLATION = 64  # times its stored size; weights hardly compress


class AgentError(ValueError):
    """An agent cannot be used; the message is the reason in words for a table."""


@dataclass(frozen=True)
class Archive:
    """What a Stable-Baselines3 archive says in plain data: settings and weights."""

    settings: dict[str, Any]
    weights: dict[str, torch.Tensor]
    version: str


@dataclass(frozen=True)
class Normalization:
    """Statistics of the observations a policy was trained on: clip((x - mean) / std), `clip` one for all or each's."""

    mean: np.ndarray
    std: np.ndarray
    clip: float | np.ndarray

    def __call__(self, observation: np.ndarray) -> np.ndarray:
        """Normalise observations [n, ...] in double precision and return float32."""
        return np.clip((observation - self.mean) / self.std, -self.clip, self.clip).astype(np.float32)

    def behind(self, count: int) -> Normalization:
        """Return the same for vectors that begin with `count` values to be left alone."""
        clip = np.broadcast_to(self.clip, self.mean.shape)
        return Normalization(
            np.append(np.zeros(count), self.mean), np.append(np.ones(count), self.std),
            np.append(np.full(count, np.inf), clip),
        )  # fmt: skip


def read_archive(path: Path) -> Archive:
    """Read settings and weights of a Stable-Baselines3 archive; pickled objects in it stay bytes.

    Raises:
        AgentError: the archive is damaged, or holds more than weights where weights belong.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
            missing = {"data", "policy.pth"} - names
            if missing:
                raise AgentError(
                    f"{path.name} is no Stable-Baselines3 archive: {' and '.join(sorted(missing))} missing"
                )
            settings = json.loads(_member(archive, "data", MOST_SETTINGS_BYTES))
            stored = _member(archive, "policy.pth", MOST_WEIGHTS_BYTES)
            version_file = "_stable_baselines3_version"
            version = _member(archive, version_file, 1000).decode() if version_file in names else "unknown"
    except AgentError:
        raise
    except RuntimeError as error:  # zipfile's word for a password
        raise AgentError(f"{path.name} cannot be opened: {error}") from error
    except (ValueError, RecursionError) as error:
        raise AgentError(f"{path.name}: the settings are not JSON: {error}") from error
    except Exception as error:  # a damaged zip raises almost anything
        raise AgentError(f"{path.name} is damaged or cut short: {error}") from error
    if not isinstance(settings, dict):
        raise AgentError(f"{path.name}: the settings are a {type(settings).__name__}, not a dictionary")
    return Archive(settings, _weights(stored, path.name), version.strip())


def _member(archive: zipfile.ZipFile, name: str, most_bytes: int) -> bytes:
    size = archive.getinfo(name).file_size
    if size > most_bytes or size > 2**20 + MOST_INFLATION * archive.getinfo(name).compress_size:
        raise AgentError(f"{name} in the archive would unfold to {size} bytes, more than an agent's has")
    return archive.read(name)


def check_inflation(path: Path) -> None:
    """Raise AgentError where a zip of arrays would unfold to more than an agent has."""
    with zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
    if size > min(MOST_WEIGHTS_BYTES, 2**20 + MOST_INFLATION * path.stat().st_size):
        raise AgentError(f"{path.name} would unfold to {size} bytes, more than an agent's has")


def _weights(stored: bytes, name: str) -> dict[str, torch.Tensor]:
    """Return the tensors of a policy.pth by name, float32; a compiled policy's under the names it had before."""
    if zipfile.is_zipfile(io.BytesIO(stored)):
        with zipfile.ZipFile(io.BytesIO(stored)) as parts:
            if sum(part.file_size for part in parts.infolist()) > 2**20 + 2 * len(stored):
                raise AgentError(f"{name}: policy.pth would unfold to more than it holds")
    try:
        weights = torch.load(io.BytesIO(stored), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise AgentError(f"{name}: policy.pth holds more than weights and was not run") from error
    except Exception as error:  # a damaged file raises almost anything
        raise AgentError(f"{name}: policy.pth is damaged: {error}") from error
    if not isinstance(weights, dict) or not all(
        isinstance(key, str) and isinstance(value, torch.Tensor) for key, value in weights.items()
    ):
        raise AgentError(f"{name}: policy.pth is not a dictionary of tensors")
    for key, value in weights.items():
        if value.layout != torch.strided or value.is_quantized or value.numel() > len(stored) or value.is_complex():
            raise AgentError(f"{name}: {key} in policy.pth is no plain tensor of the size that is stored")
    return {key.replace("_orig_mod.", ""): value.float() for key, value in weights.items()}


def read_normalization(path: Path, flat: spaces.Space | None = None) -> Normalization | None:
    """Read the observation statistics of a pickled VecNormalize; None where it leaves observations alone.

    Those of a Dict are joined into statistics of the vector that `flat` becomes.

    Raises:
        AgentError: the pickle is damaged, or asks for anything but arrays, statistics and spaces.
    """
    try:
        if path.stat().st_size > MOST_SETTINGS_BYTES:
            raise AgentError(f"{path.name} has {path.stat().st_size} bytes, more than statistics have")
        with path.open("rb") as file:
            state = vars(_StatisticsUnpickler(file).load())
        if not state.get("norm_obs", True):
            return None
        statistics: Any = state["obs_rms"]
        epsilon, clip = float(state.get("epsilon", 1e-8)), float(state.get("clip_obs", 10.0))
        by_key = (
            {str(key): _moments(value, path) for key, value in statistics.items()}
            if isinstance(statistics, dict)
            else {}
        )
        mean, variance = (np.empty(0), np.empty(0)) if isinstance(statistics, dict) else _moments(statistics, path)
    except AgentError:
        raise
    except Exception as error:  # a damaged pickle raises almost anything
        raise AgentError(f"{path.name} cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(statistics, dict):
        return _normalization(path.name, mean, variance, epsilon, clip)
    if not isinstance(flat, spaces.Dict):
        raise AgentError(f"{path.name} has statistics by key, the environment's observations are no Dict")
    return _joined(path.name, by_key, flat, epsilon, clip)


def _moments(statistics: object, path: Path) -> tuple[np.ndarray, np.ndarray]:
    state = vars(statistics)
    if any(np.size(state[name]) > path.stat().st_size for name in ("mean", "var")):
        raise AgentError(f"{path.name} has statistics larger than itself")
    return np.asarray(state["mean"], np.float64), np.asarray(state["var"], np.float64)


def _normalization(name: str, mean: np.ndarray, variance: np.ndarray, epsilon: float, clip: float) -> Normalization:
    if not (np.isfinite(mean).all() and np.isfinite(variance).all() and (variance >= 0).all() and clip > 0):
        raise AgentError(f"{name}: its statistics are not finite or negative; save them anew")
    with np.errstate(all="ignore"):
        std = np.sqrt(variance + epsilon)
    if not (np.isfinite(std).all() and (std > 0).all()):
        raise AgentError(f"{name}: epsilon is {epsilon}: a deviation of 0 leaves nothing to divide by")
    return Normalization(mean, std, clip)


def _joined(
    name: str, by_key: dict[str, tuple[np.ndarray, np.ndarray]], flat: spaces.Dict, epsilon: float, clip: float
) -> Normalization:
    if unknown := sorted(set(by_key) - set(flat.spaces)):
        raise AgentError(f"{name} has statistics of {unknown[0]!r}, observations have {', '.join(flat.spaces)}")
    parts = []
    for key, space in flat.spaces.items():
        if key not in by_key:
            size = spaces.flatdim(space)
            parts.append((np.zeros(size), np.ones(size), np.full(size, np.inf)))
            continue
        part = _normalization(name, *by_key[key], epsilon, clip)
        if not isinstance(space, spaces.Box) or len(space.shape) > 2 or part.mean.shape != space.shape:
            raise AgentError(
                f"{name}: the statistics of {key!r} have shape {part.mean.shape}, which does not fit {space}"
            )
        parts.append((part.mean.ravel(), part.std.ravel(), np.full(part.mean.size, clip)))
    return Normalization(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


class _Stub:
    """Stands for a class whose code is not needed: keeps the state, does nothing."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


class _StatisticsUnpickler(pickle.Unpickler):
    """Rebuild numpy arrays; replace VecNormalize, RunningMeanStd, spaces and generators by stubs; refuse the rest."""

    _ARRAYS = frozenset(
        {
            ("numpy", "dtype"),
            ("numpy", "ndarray"),
            ("multiarray", "_reconstruct"),
            ("multiarray", "scalar"),
            ("numeric", "_frombuffer"),
        }
    )
    _STUBS = ("stable_baselines3.common.", "gym.spaces.", "gymnasium.spaces.", "numpy.random.")

    def __init__(self, file: BinaryIO) -> None:
        # Pickles of Python 2 and 3.6 name things in ASCII; latin1 keeps their array bytes as they are.
        super().__init__(file, encoding="latin1")

    def find_class(self, module: str, name: str) -> Any:
        short = module.removeprefix("numpy.core.").removeprefix("numpy._core.")
        if (short, name) in self._ARRAYS and module.startswith("numpy"):
            return super().find_class(module, name)
        if module.startswith(self._STUBS):
            return type(name, (_Stub,), {})
        raise AgentError(f"the pickled statistics ask for {module}.{name}, which was not run")


class _PlainLoader(yaml.SafeLoader):
    """YAML without objects: the zoo's OrderedDict becomes its list of pairs."""


_PlainLoader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, _, node: _plain(loader, node))


def _plain(loader: yaml.SafeLoader, node: yaml.Node) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    return loader.construct_scalar(node)  # type: ignore[arg-type]


def _unfolded(node: yaml.Node | None, sizes: dict[int, int], name: str) -> int:
    """Count the nodes of a YAML tree as often as aliases name them; raise AgentError for more than anyone writes."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) not in sizes:
        sizes[id(node)] = MOST_NODES  # what holds itself has no end
        parts = [part for pair in node.value for part in (pair if isinstance(pair, tuple) else (pair,))]
        sizes[id(node)] = 1 + sum(_unfolded(part, sizes, name) for part in parts)
    if sizes[id(node)] > MOST_NODES:
        raise AgentError(f"{name} names the same parts so often that it would unfold to more than {MOST_NODES} values")
    return sizes[id(node)]


def read_yaml(path: Path) -> dict[str, Any]:
    """Read one of the zoo's YAML files as a dictionary without building Python objects; {} where there is none.

    Raises:
        AgentError: the file is not YAML of that form.
    """
    if not path.exists():
        return {}
    try:
        if path.stat().st_size > MOST_SIDE_BYTES:
            raise AgentError(f"{path.name} has {path.stat().st_size} bytes, more than a configuration has")
        text = path.read_text()
        _unfolded(yaml.compose(text, Loader=_PlainLoader), {}, path.name)
        content = yaml.load(text, Loader=_PlainLoader) or {}
        if isinstance(content, list):  # OrderedDict: [[[key, value], ...]]
            content = dict(content[0] if content and isinstance(content[0][0], list) else content)
    except AgentError:
        raise
    except Exception as error:  # yaml's own errors, and what a foreign structure makes of it
        raise AgentError(f"{path.name} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise AgentError(f"{path.name} holds {str(content)[:50]!r}, not names with values; correct or remove it")
    return {str(name): value for name, value in content.items()}
