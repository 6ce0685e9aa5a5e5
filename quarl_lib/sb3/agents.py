"""Find trained agents in a folder and load them, ready to act in today's environments."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from quarl_lib.envs import gym as environments
from quarl_lib.sb3.archive import AgentError, Normalization, read_archive, read_normalization, read_yaml
from quarl_lib.sb3.build import ALGORITHMS, policy_from_archive, policy_from_arrays
from quarl_lib.sb3.policy import ActingPolicy

SHIPPED_AGENTS = Path(__file__).parent / "agents"
TIME_FEATURE, ATARI_WRAPPER = "TimeFeatureWrapper", "AtariWrapper"


@dataclass(frozen=True)
class AgentFile:
    """Where one agent lies: an archive (`layout` "sb3") or a folder of plain arrays ("arrays")."""

    algorithm: str
    env_id: str  # as trained
    path: Path
    layout: Literal["sb3", "arrays"]

    @property
    def name(self) -> str:
        """A short name that tells agents of one folder apart, e.g. `a2c/CartPole-v1`."""
        parts = [self.algorithm.lower(), self.env_id]
        if self.layout == "sb3" and self.path.stem != self.env_id:
            parts.append(self.path.stem)
        return "/".join(parts)


@dataclass
class Agent:
    """A trained policy with all it needs to act: environment, normalisation, time feature."""

    algorithm: str
    env_id: str  # as registered today
    name: str
    policy: ActingPolicy
    observation_space: spaces.Space
    normalization: Normalization | None = None
    time_feature: bool = False
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    scale_images: bool = True
    warning: str = ""

    def make_env(self, seed: int | None = None) -> gymnasium.Env:
        """Make the agent's environment, wrapped as in training; `seed` resets it and seeds its action space."""
        env = environments.make(self.env_id, time_feature=self.time_feature, **self.env_kwargs)
        if seed is not None:
            env.reset(seed=seed)
            env.action_space.seed(seed)
        return env

    def normalize(self, observation: np.ndarray) -> np.ndarray:
        """Turn the environment's observations [n, ...] into the policy's input, float32."""
        if isinstance(self.observation_space, spaces.Discrete):
            return np.eye(int(self.observation_space.n), dtype=np.float32)[observation]
        if self.normalization is not None:
            return self.normalization(observation)
        values = observation.astype(np.float32)
        return values / np.float32(255) if observation.dtype == np.uint8 and self.scale_images else values


def find_agents(
    agents_dir: str | Path,
    algorithms: Collection[str] | None = None,
    env_ids: Collection[str] | None = None,
) -> list[AgentFile]:
    """List the agents under `<algorithm>/<environment>/`, sorted; an environment may be named as of old or as of today.

    Raises:
        ValueError: the folder is missing, or holds no agent at all.
    """
    root = Path(agents_dir).expanduser()
    if not root.is_dir():
        raise ValueError(
            f"agents_dir={str(agents_dir)!r} is no folder; give one laid out as <algorithm>/<environment>/"
        )
    found = [file for folder in sorted(root.glob("*/*/")) for file in _agents_in(folder)]
    if not found:
        raise ValueError(f"agents_dir={str(agents_dir)!r} holds no <algorithm>/<environment>/*.zip and no actor.npz")
    wanted = None if algorithms is None else {_algorithm(name) for name in algorithms}
    names = None if env_ids is None else {environments.current_name(name) for name in env_ids}
    return [
        file
        for file in found
        if (wanted is None or file.algorithm in wanted)
        and (names is None or environments.current_name(file.env_id) in names)
    ]


def load_agent(agent_file: AgentFile, run_pickles: bool = False) -> Agent:
    """Load an agent without running anything pickled into it.

    Where weights and plain settings do not suffice (a features extractor of one's own), `run_pickles` lets
    Stable-Baselines3 load the archive and run what it holds: only for archives that you trust.

    Raises:
        AgentError: the reason why it cannot be used, in words for a table.
    """
    if agent_file.algorithm not in ALGORITHMS:
        raise AgentError(f"algorithm {agent_file.algorithm} is none of {', '.join(ALGORITHMS)}")
    return _load_arrays(agent_file) if agent_file.layout == "arrays" else _load_archive(agent_file, run_pickles)


def _algorithm(folder_name: str) -> str:
    name = folder_name.upper()
    return "PPO" if name == "PPO2" else name  # Stable-Baselines 2 called it so


def _agents_in(folder: Path) -> list[AgentFile]:
    algorithm = _algorithm(folder.parent.name)
    env_id = re.sub(r"_\d+$", "", folder.name).replace("ALE-", "ALE/")  # the zoo numbers its runs
    if (folder / "actor.npz").exists() and (folder / "actor.json").exists():
        return [AgentFile(algorithm, env_id, folder, "arrays")]
    archives = sorted(folder.glob("*.zip"))
    final = [path for path in archives if path.stem in (env_id, folder.name)]
    return [AgentFile(algorithm, env_id, path, "sb3") for path in final or archives]


def _spaces_of(env_id: str, time_feature: bool, env_kwargs: dict[str, Any]) -> tuple[spaces.Space, spaces.Space]:
    try:
        env = environments.make(env_id, time_feature=time_feature, **env_kwargs)
    except environments.EnvironmentMissing as error:
        raise AgentError(str(error)) from error
    except Exception as error:  # third-party constructors fail in ways of their own; one agent is not the study
        raise AgentError(f"{env_id} cannot be made: {type(error).__name__}: {error}") from error
    observation_space, action_space = env.observation_space, env.action_space
    env.close()
    if not isinstance(action_space, spaces.Discrete | spaces.Box):
        raise AgentError(f"action space {action_space} is neither Discrete nor Box")
    if not isinstance(observation_space, spaces.Discrete | spaces.Box):
        raise AgentError(f"observation space {observation_space} is neither Discrete nor Box")
    return observation_space, action_space


def _load_archive(file: AgentFile, run_pickles: bool) -> Agent:
    # The zoo keeps the configuration beside the archive or in a folder named after it.
    folders = (file.path.parent, file.path.parent / file.path.stem, file.path.parent / file.env_id)

    def beside(name: str) -> Path:
        return next((folder / name for folder in folders if (folder / name).exists()), folders[0] / name)

    config = read_yaml(beside("config.yml")) or read_yaml(beside("recipe.json"))  # JSON is YAML
    env_kwargs = read_yaml(beside("env_kwargs.yml"))
    wrapper = str(config.get("env_wrapper") or "")
    if wrapper and not any(known in wrapper for known in (TIME_FEATURE, ATARI_WRAPPER)):
        raise AgentError(f"trained behind {wrapper}, which is not supported")
    if config.get("frame_stack") and not environments.is_atari(file.env_id):
        raise AgentError(f"trained on {config['frame_stack']} stacked observations, which is supported for Atari only")
    archive = read_archive(file.path)
    env_id, time_feature = environments.current_name(file.env_id), TIME_FEATURE in wrapper
    observation_space, action_space = _spaces_of(env_id, time_feature, env_kwargs)
    statistics = beside("vecnormalize.pkl")
    normalization = read_normalization(statistics) if statistics.exists() else None
    warning = ""
    if _normalizes_observations(config) and not statistics.exists():
        warning = "trained on normalised observations (config.yml), but vecnormalize.pkl is missing"
    try:
        policy = policy_from_archive(archive, file.algorithm, action_space).eval()
    except AgentError:
        if not run_pickles:
            raise
        from quarl_lib.sb3.live import load_by_running_pickles  # imports Stable-Baselines3

        policy = load_by_running_pickles(file.path, file.algorithm, observation_space, action_space)
    agent = Agent(
        file.algorithm,
        env_id,
        file.name,
        policy,
        observation_space,
        normalization,
        time_feature,
        env_kwargs,
        scale_images=(archive.settings.get("policy_kwargs") or {}).get("normalize_images", True),
        warning=warning,
    )
    return _checked(agent, action_space)


def _normalizes_observations(config: dict[str, Any]) -> bool:
    setting = config.get("normalize", False)
    if isinstance(setting, str):  # "{'norm_obs': True, 'norm_reward': False}" or dict(norm_obs=False)
        return not re.search(r"norm_obs'?\s*[:=]\s*False", setting) and setting.lower() != "false"
    return bool(setting)


def _load_arrays(file: AgentFile) -> Agent:
    try:
        description = json.loads((file.path / "actor.json").read_text())
        with np.load(file.path / "actor.npz", allow_pickle=False) as stored:
            arrays = dict(stored)
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise AgentError(f"{file.path.name}: the arrays cannot be read: {error}") from error
    env_id, time_feature = environments.current_name(file.env_id), bool(description.get("time_feature"))
    observation_space, action_space = _spaces_of(env_id, time_feature, {})
    normalization = None
    if "norm_mean" in arrays:
        normalization = Normalization(arrays["norm_mean"], arrays["norm_std"], float(arrays["norm_clip"]))
    policy = policy_from_arrays(arrays, description, action_space).eval()
    agent = Agent(file.algorithm, env_id, file.name, policy, observation_space, normalization, time_feature)
    return _checked(agent, action_space)


def _checked(agent: Agent, action_space: spaces.Space) -> Agent:
    """Feed one observation through: an agent of another version of its environment is found here."""
    example = np.asarray(agent.observation_space.sample())[None]
    try:
        with torch.no_grad():
            outputs = agent.policy(torch.from_numpy(agent.normalize(example)))
    except (RuntimeError, ValueError) as error:
        raise AgentError(
            f"the policy does not take {agent.env_id}'s observations of shape {example.shape[1:]}: {error}"
        ) from error
    discrete = isinstance(action_space, spaces.Discrete)
    expected = int(action_space.n) if discrete else int(np.prod(action_space.shape))  # type: ignore[attr-defined, arg-type]
    if outputs.shape != (1, expected):
        raise AgentError(f"the policy has {outputs.shape[-1]} outputs, {agent.env_id} takes {expected}")
    if discrete != agent.policy.discrete:
        raise AgentError(
            f"a {agent.policy.kind} policy does not act in {agent.env_id}, whose actions are {action_space}"
        )
    return agent
