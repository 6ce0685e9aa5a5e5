"""Find agents on disk: folders by algorithm and environment, the zoo's and the hub's, or a single archive."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Literal

from quarl_lib.envs import gym as environments
from quarl_lib.sb3.archive import AgentError, read_yaml
from quarl_lib.sb3.declared import ALGORITHMS

ARRAYS = ("actor.npz", "actor.json")
STATISTICS = ("vecnormalize.pkl", "vec_normalize.pkl")
SIDE = (*STATISTICS, "config.yml", "recipe.json", "env_kwargs.yml")
LAYOUTS = "<algorithm>/<environment>/*.zip, <algorithm>-<environment>/*.zip or actor.npz"


@dataclass(frozen=True)
class AgentFile:
    """Where one agent lies, and how to load it: an archive (`layout` "sb3") or a folder of plain arrays ("arrays").

    `run` tells apart several runs of one environment. `import_modules` register environments of the user's own.
    """

    algorithm: str
    env_id: str  # as trained
    path: Path
    layout: Literal["sb3", "arrays"]
    run: str = ""
    import_modules: tuple[str, ...] = ()
    run_pickles: bool = False

    @property
    def parts(self) -> list[Path]:
        """All files that decide how it acts, whether they are there or not: what another machine needs to load it."""
        if self.layout == "arrays":
            return [self.path / name for name in ARRAYS]
        return [self.path, *(beside(self, name) for name in SIDE)]

    @property
    def name(self) -> str:
        """A short name that tells agents of one folder apart, e.g. `a2c/CartPole-v1`."""
        parts = [self.algorithm.lower(), self.env_id + self.run]
        if self.layout == "sb3" and self.path.stem not in (self.env_id, self.path.parent.name):
            parts.append(self.path.stem)
        return "/".join(parts)


def find_agents(
    agents_dir: str | Path,
    algorithms: Collection[str] | None = None,
    env_ids: Collection[str] | None = None,
    import_modules: Collection[str] = (),
    run_pickles: bool = False,
) -> list[AgentFile]:
    """List the agents of a folder, sorted; an environment may be named as of old or as of today.

    The folder may be one agent's, hold `<algorithm>/<environment>/` or hub folders `<algorithm>-<environment>/`; or
    give one archive.

    Raises:
        ValueError: the folder is missing, or holds no agent at all.
    """
    root = Path(agents_dir).expanduser()
    if not root.exists() or not (root.is_dir() or root.suffix == ".zip"):
        raise ValueError(
            f"agents_dir={str(agents_dir)!r} is no folder; give one laid out as <algorithm>/<environment>/"
        )
    found = [_agent(root.resolve(), [root.resolve()])] if root.is_file() else list(_below(root))
    if not found:
        raise ValueError(f"agents_dir={str(agents_dir)!r} holds no {LAYOUTS}")
    same = Counter(file.name for file in found)
    found = _apart([replace(file, run=_run(file)) if same[file.name] > 1 else file for file in found])
    wanted = None if algorithms is None else {_algorithm(name) for name in algorithms}
    names = None if env_ids is None else {environments.current_name(name) for name in env_ids}
    return [
        replace(file, import_modules=tuple(import_modules), run_pickles=run_pickles)
        for file in found
        if (wanted is None or file.algorithm in wanted)
        and (names is None or environments.current_name(file.env_id) in names)
    ]


def beside(file: AgentFile, name: str) -> Path:
    """Return where a file of an agent's lies, or would: beside the archive, or in a folder named after it."""
    # The zoo keeps the configuration in the latter.
    folders = (file.path.parent, file.path.parent / file.path.stem, file.path.parent / file.env_id)
    return next((folder / name for folder in folders if (folder / name).exists()), folders[0] / name)


def content_hash(file: AgentFile) -> str:
    """Return 64 bits, in hexadecimal, of all files that decide how an agent acts; "" where they cannot be read."""
    digest = blake2b(f"{file.algorithm} {file.env_id}".encode(), digest_size=8)
    try:
        for path in file.parts:
            content = path.read_bytes() if path.exists() else b""
            digest.update(f" {path.name} {len(content)} ".encode() + content)
    except OSError:
        return ""
    return digest.hexdigest()


def folders_without_agent(agents_dir: str | Path) -> list[str]:
    """Return the folders `<algorithm>/<environment>` in which no archive lies, by their names."""
    root = Path(agents_dir).expanduser()
    if not root.is_dir() or _files_in(root):
        return []
    empty = []
    for child in _folders(root):
        inner = _folders(child)
        if not _files_in(child) and not inner:
            empty.append(child.name)
        if not _files_in(child):
            empty += [f"{child.name}/{folder.name}" for folder in inner if not _files_in(folder)]
    return empty


def _apart(files: list[AgentFile]) -> list[AgentFile]:
    """Number agents that still share a name (`ppo/X` and `ppo-X` in one folder): results of two are never one's."""
    seen: Counter[str] = Counter()
    named = []
    for file in files:
        seen[file.name] += 1
        number = seen[file.name]
        named.append(replace(file, run=f"{file.run}#{number}") if number > 1 else file)
    return named


def _below(root: Path) -> Iterator[AgentFile]:
    if _files_in(root):
        yield from _agents_in(root.resolve())
        return
    for child in _folders(root):
        if _files_in(child):
            yield from _agents_in(child)
        else:
            for folder in _folders(child):
                yield from _agents_in(folder)


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def _files_in(folder: Path) -> list[Path]:
    """Return what an agent can be loaded from: the archives, or the folder itself where arrays lie in it."""
    if all((folder / name).exists() for name in ARRAYS):
        return [folder]
    return sorted(folder.glob("*.zip"))


def _agents_in(folder: Path) -> Iterator[AgentFile]:
    files = _files_in(folder)
    for path in files:
        agent = _agent(path, files)
        if agent.layout == "arrays" or path.stem in (agent.env_id, folder.name):
            yield agent  # the final one; checkpoints beside it are not asked for
            return
    for path in files:
        yield _agent(path, files)


def _agent(path: Path, files: list[Path]) -> AgentFile:
    folder = path if path.is_dir() else path.parent
    layout: Literal["sb3", "arrays"] = "arrays" if path.is_dir() else "sb3"
    algorithm, env_id = _named(folder.name, path.stem)
    if not algorithm:
        algorithm, env_id = folder.parent.name, folder.name
        if _algorithm(algorithm) not in ALGORITHMS:
            try:
                arguments = read_yaml(folder / "args.yml")
            except AgentError:
                arguments = {}
            if arguments.get("algo") and arguments.get("env"):
                algorithm, env_id = str(arguments["algo"]), str(arguments["env"])
    env_id = re.sub(r"_\d+$", "", env_id).replace("ALE-", "ALE/")  # the zoo numbers its runs
    return AgentFile(_algorithm(algorithm), env_id, path, layout)


def _named(*names: str) -> tuple[str, str]:
    """Read the hub's `<algorithm>-<environment>`."""
    for name in names:
        match = re.fullmatch(r"([A-Za-z0-9_]+)-(.+)", name)
        if match and _algorithm(match[1]) in ALGORITHMS:
            return match[1], match[2]
    return "", ""


def _run(file: AgentFile) -> str:
    folder = file.path.name if file.layout == "arrays" else file.path.parent.name
    match = re.search(r"_\d+$", folder)
    return match[0] if match else ""


def _algorithm(folder_name: str) -> str:
    name = folder_name.upper()
    return "PPO" if name == "PPO2" else name  # Stable-Baselines 2 called it so
