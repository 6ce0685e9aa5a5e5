"""Load trained agents, ready to act in today's environments."""

from __future__ import annotations

import json
import re
import zipfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from quarl_lib.envs import gym as environments
from quarl_lib.sb3.archive import AgentError, Normalization, read_archive, read_normalization, read_yaml
from quarl_lib.sb3.build import policy_from_archive, policy_from_arrays
from quarl_lib.sb3.declared import ALGORITHMS, check_algorithm, known_algorithm
from quarl_lib.sb3.folders import AgentFile
from quarl_lib.sb3.policy import ActingPolicy

SHIPPED_AGENTS = Path(__file__).parent / "agents"
STATISTICS = ("vecnormalize.pkl", "vec_normalize.pkl")
CHECKED = 200  # observations on which what code of the user's own does is held against the library
TIME_FEATURE, ATARI_WRAPPER = "TimeFeatureWrapper", "AtariWrapper"


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
    statistics: str = "none"  # where the observation's statistics come from
    trained_on: str = ""  # the environment's name in training, where today's differs

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
        if is_image(self.observation_space):
            if channels_last(self.observation_space):
                observation = observation.transpose(0, 3, 1, 2)
            values = observation.astype(np.float32)
            return values / np.float32(255) if self.scale_images else values
        if self.normalization is not None:
            return self.normalization(observation)
        return observation.astype(np.float32)


def is_image(space: spaces.Space) -> bool:
    """Say whether Stable-Baselines3 takes observations for images: uint8, three axes, all of 0 to 255."""
    if not isinstance(space, spaces.Box) or len(space.shape) != 3 or space.dtype != np.uint8:
        return False
    return bool((space.low == 0).all() and (space.high == 255).all())


def channels_last(space: spaces.Space) -> bool:
    """Say whether Stable-Baselines3 turns an image's axes round: the smallest is the channels, and not in front."""
    return is_image(space) and int(np.argmin(space.shape or ())) != 0


def load_agent(agent_file: AgentFile, run_pickles: bool = False) -> Agent:
    """Load an agent without running anything pickled into it.

    Where weights and plain settings do not suffice (a features extractor of one's own), `run_pickles` lets
    Stable-Baselines3 load the archive and run what it holds: only for archives that you trust.

    Raises:
        AgentError: the reason why it cannot be used, in words for a table.
    """
    if "RECURRENT" in agent_file.algorithm or "LSTM" in agent_file.algorithm:
        raise AgentError(
            f"{agent_file.algorithm}: recurrent policies are not supported, their actions depend on the past"
        )
    if agent_file.algorithm not in ALGORITHMS:
        raise AgentError(f"algorithm {agent_file.algorithm} is none of {', '.join(ALGORITHMS)}")
    try:
        environments.import_modules(agent_file.import_modules)
        if agent_file.layout == "arrays":
            return _load_arrays(agent_file)
        return _load_archive(agent_file, run_pickles or agent_file.run_pickles)
    except AgentError:
        raise
    except Exception as error:  # files of strangers: what is not foreseen is a reason as well
        raise AgentError(f"{agent_file.path.name} cannot be used: {type(error).__name__}: {error}") from error


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
    if isinstance(observation_space, spaces.Discrete) and observation_space.start != 0:
        raise AgentError(
            f"observations are {observation_space}: Stable-Baselines3 counts them from 0; wrap the environment so"
        )
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
    if (known := known_algorithm(archive.settings)) is not None:
        check_algorithm(*known, file.algorithm)
    env_id, time_feature = environments.current_name(file.env_id), TIME_FEATURE in wrapper
    observation_space, action_space = _spaces_of(env_id, time_feature, env_kwargs)
    statistics = next((path for name in STATISTICS if (path := beside(name)).exists()), None)
    normalization = None if statistics is None else read_normalization(statistics)
    if normalization is not None:
        _check_statistics(normalization, observation_space)
    warnings = []
    if _normalizes_observations(config) and statistics is None:
        warnings.append("trained on normalised observations (config.yml), but vecnormalize.pkl is missing")
    if isinstance(action_space, spaces.Discrete) and action_space.start != 0:
        warnings.append(
            f"actions start at {action_space.start}, and are played counted from 0, as Stable-Baselines3 does"
        )
    options = archive.settings.get("policy_kwargs")
    scale_images = str((options if isinstance(options, dict) else {}).get("normalize_images", True)) == "True"
    predict = None
    try:
        policy = policy_from_archive(archive, file.algorithm, action_space).eval()
    except AgentError:
        if not run_pickles:
            raise
        from quarl_lib.sb3 import live  # imports Stable-Baselines3

        policy, predict = live.load_by_running_pickles(file.path, file.algorithm, observation_space, action_space)
    agent = Agent(
        file.algorithm,
        env_id,
        file.name,
        policy,
        observation_space,
        normalization,
        time_feature,
        env_kwargs,
        scale_images=scale_images,
        warning="; ".join(warnings),
        statistics="none" if normalization is None or statistics is None else statistics.name,
        trained_on=file.env_id if file.env_id != env_id else "",
    )
    _checked(agent, action_space)
    if predict is not None:
        observation_space.seed(0)
        met = np.stack([np.asarray(observation_space.sample()) for _ in range(CHECKED)])
        live.check_acts_alike(policy, replace(agent, normalization=None).normalize(met), predict(met))
    return agent


def _check_statistics(normalization: Normalization, space: spaces.Space) -> None:
    if is_image(space):
        raise AgentError("statistics of images beside the archive: the engines and Stable-Baselines3 divide by 255")
    for name, array in (("mean", normalization.mean), ("deviation", normalization.std)):
        if array.shape != space.shape:
            raise AgentError(
                f"the statistics' {name} has shape {array.shape}, observations have {space.shape}: "
                "they are another environment's; put the agent's own beside it"
            )


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
    normalization = _array_statistics(arrays, observation_space)
    policy = policy_from_arrays(arrays, description, action_space).eval()
    agent = Agent(
        file.algorithm, env_id, file.name, policy, observation_space, normalization, time_feature,
        statistics="none" if normalization is None else "actor.npz",
        trained_on=file.env_id if file.env_id != env_id else "",
    )  # fmt: skip
    return _checked(agent, action_space)


def _array_statistics(arrays: dict[str, np.ndarray], space: spaces.Space) -> Normalization | None:
    names = ("norm_mean", "norm_std", "norm_clip")
    stored = [name for name in arrays if name.startswith("norm_")]
    if not stored:
        return None
    if set(stored) != set(names):
        raise AgentError(f"the arrays hold {', '.join(sorted(stored))}: statistics are {', '.join(names)}")
    mean, std, clip = (np.asarray(arrays[name], np.float64) for name in names)
    normalization = Normalization(mean, std, float(clip))
    _check_statistics(normalization, space)
    if not (np.isfinite(mean).all() and np.isfinite(std).all() and (std > 0).all() and clip > 0):
        raise AgentError("the statistics in the arrays are not finite, or a deviation or the clip is not positive")
    return normalization


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
