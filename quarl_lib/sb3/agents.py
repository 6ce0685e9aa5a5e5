"""Load trained agents, ready to act in today's environments."""

from __future__ import annotations

import json
import re
import zipfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from quarl_lib.envs import gym as environments
from quarl_lib.sb3.archive import (
    AgentError,
    Normalization,
    check_inflation,
    read_archive,
    read_normalization,
    read_yaml,
)
from quarl_lib.sb3.arrays import policy_from_arrays
from quarl_lib.sb3.build import policy_from_archive
from quarl_lib.sb3.declared import ALGORITHMS, MASKABLE, check_algorithm, known_algorithm
from quarl_lib.sb3.flat import channels_last, check_observations, gives_masks, is_image, num_choices, vectorized
from quarl_lib.sb3.folders import STATISTICS, AgentFile, beside
from quarl_lib.sb3.policy import ActingPolicy

SHIPPED_AGENTS = Path(__file__).parent / "agents"
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
    flat: spaces.Space | None = None  # the environment's own observations, where the policy takes them as one vector
    masked: bool = False  # whether the mask of allowed actions stands in front of them

    def make_env(self, seed: int | None = None) -> gymnasium.Env:
        """Make the agent's environment, wrapped as in training; `seed` resets it and seeds its action space."""
        env = environments.make(self.env_id, time_feature=self.time_feature, **self.env_kwargs)
        env = vectorized(env, self.masked)
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
        raise AgentError(
            f"algorithm {agent_file.algorithm} is none of {', '.join(ALGORITHMS)}; name the folders "
            "<algorithm>/<environment>/ or <algorithm>-<environment>/"
        )
    try:
        environments.import_modules(agent_file.import_modules)
        if agent_file.layout == "arrays":
            return _load_arrays(agent_file)
        return _load_archive(agent_file, run_pickles or agent_file.run_pickles)
    except AgentError:
        raise
    except environments.EnvironmentMissing as error:
        raise AgentError(str(error)) from error
    except Exception as error:  # files of strangers: what is not foreseen is a reason as well
        raise AgentError(f"{agent_file.path.name} cannot be used: {type(error).__name__}: {error}") from error


class _Task(NamedTuple):
    """The spaces of an agent's environment, `observations` as the policy takes them, `flat` as in `Agent`."""

    observations: spaces.Space
    actions: spaces.Space
    flat: spaces.Space | None


def _task_of(env_id: str, time_feature: bool, env_kwargs: dict[str, Any], masked: bool = False) -> _Task:
    try:
        env = environments.make(env_id, time_feature=time_feature, **env_kwargs)
    except environments.EnvironmentMissing as error:
        raise AgentError(str(error)) from error
    except Exception as error:  # third-party constructors fail in ways of their own; one agent is not the study
        raise AgentError(f"{env_id} cannot be made: {type(error).__name__}: {error}") from error
    try:
        original, actions = env.observation_space, env.action_space
        if not isinstance(actions, spaces.Box) and not num_choices(actions):
            raise AgentError(f"action space {actions} is none of Discrete, Box, MultiDiscrete [n] and MultiBinary(n)")
        check_observations(original)
        if masked and not gives_masks(env):
            raise AgentError(f"MaskablePPO: {env_id} has no action_masks(), without which the policy acts otherwise")
        env = vectorized(env, masked)
        return _Task(env.observation_space, actions, original if env.observation_space is not original else None)
    finally:
        env.close()


def _load_archive(file: AgentFile, run_pickles: bool) -> Agent:
    config = read_yaml(beside(file, "config.yml")) or read_yaml(beside(file, "recipe.json"))  # JSON is YAML
    env_kwargs = read_yaml(beside(file, "env_kwargs.yml"))
    wrapper = str(config.get("env_wrapper") or "")
    if wrapper and not any(known in wrapper for known in (TIME_FEATURE, ATARI_WRAPPER)):
        raise AgentError(f"trained behind {wrapper}, which is not supported")
    if config.get("frame_stack") and not environments.is_atari(file.env_id):
        raise AgentError(f"trained on {config['frame_stack']} stacked observations, which is supported for Atari only")
    archive = read_archive(file.path)
    if (known := known_algorithm(archive.settings)) is not None:
        check_algorithm(*known, file.algorithm)
    env_id, time_feature = environments.current_name(file.env_id), TIME_FEATURE in wrapper
    masked = file.algorithm == MASKABLE
    task = _task_of(env_id, time_feature, env_kwargs, masked)
    statistics = next((path for name in STATISTICS if (path := beside(file, name)).exists()), None)
    normalization = None if statistics is None else read_normalization(statistics, task.flat)
    if normalization is not None:
        if masked:
            normalization = normalization.behind(sum(num_choices(task.actions)))
        _check_statistics(normalization, task.observations)
    warnings = []
    if _normalizes_observations(config) and statistics is None:
        warnings.append("trained on normalised observations (config.yml), but vecnormalize.pkl is missing")
    if np.any(start := getattr(task.actions, "start", 0)):
        warnings.append(f"actions start at {start}, and are played counted from 0, as Stable-Baselines3 does")
    options = archive.settings.get("policy_kwargs")
    scale_images = str((options if isinstance(options, dict) else {}).get("normalize_images", True)) == "True"
    model = None
    try:
        policy = policy_from_archive(archive, file.algorithm, task.actions, task.flat).eval()
    except AgentError:
        if not run_pickles:
            raise
        from quarl_lib.sb3 import live  # imports Stable-Baselines3

        policy, model = live.load_by_running_pickles(
            file.path, file.algorithm, task.flat or task.observations, task.actions, task.flat
        )
    agent = Agent(
        file.algorithm,
        env_id,
        file.name,
        policy,
        task.observations,
        normalization,
        time_feature,
        env_kwargs,
        scale_images=scale_images,
        warning="; ".join(warnings),
        statistics="none" if normalization is None or statistics is None else statistics.name,
        trained_on=file.env_id if file.env_id != env_id else "",
        flat=task.flat,
        masked=masked,
    )
    _checked(agent, task.actions)
    if model is not None:
        live.check_acts_alike(replace(agent, normalization=None), model)
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
        check_inflation(file.path / "actor.npz")
        with np.load(file.path / "actor.npz", allow_pickle=False) as stored:
            arrays = dict(stored)
    except AgentError:
        raise
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise AgentError(f"{file.path.name}: the arrays cannot be read: {error}") from error
    if not isinstance(description, dict):
        raise AgentError(f"actor.json holds a {type(description).__name__}, not a dictionary")
    env_id, time_feature = environments.current_name(file.env_id), bool(description.get("time_feature"))
    task = _task_of(env_id, time_feature, {})
    normalization = _array_statistics(arrays, task.observations)
    policy = policy_from_arrays(arrays, description, task.actions).eval()
    agent = Agent(
        file.algorithm, env_id, file.name, policy, task.observations, normalization, time_feature,
        statistics="none" if normalization is None else "actor.npz",
        trained_on=file.env_id if file.env_id != env_id else "", flat=task.flat,
    )  # fmt: skip
    return _checked(agent, task.actions)


def _array_statistics(arrays: dict[str, np.ndarray], space: spaces.Space) -> Normalization | None:
    names = ("norm_mean", "norm_std", "norm_clip")
    stored = [name for name in arrays if name.startswith("norm_")]
    if not stored:
        return None
    if set(stored) != set(names):
        raise AgentError(f"the arrays hold {', '.join(sorted(stored))}: statistics are {', '.join(names)}")
    if bad := [name for name in names if arrays[name].dtype.kind not in "fiu"]:
        raise AgentError(f"{bad[0]} holds {arrays[bad[0]].dtype}, not real numbers")
    if arrays["norm_clip"].size != 1:
        raise AgentError(f"norm_clip has shape {arrays['norm_clip'].shape}: give one number")
    mean, std, clip = (np.asarray(arrays[name], np.float64) for name in names)
    normalization = Normalization(mean, std, float(clip.item()))
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
    if (choices := num_choices(action_space)) and agent.policy.kind == "bernoulli":
        expected = len(choices)
    else:
        expected = sum(choices) or int(np.prod(action_space.shape or ()))
    if outputs.shape != (1, expected):
        raise AgentError(f"the policy has {outputs.shape[-1]} outputs, {agent.env_id} takes {expected}")
    if bool(choices) != agent.policy.discrete or (
        len(choices) > 1 and agent.policy.kind in ("categorical", "q_values")
    ):
        raise AgentError(
            f"a {agent.policy.kind} policy does not act in {agent.env_id}, whose actions are {action_space}"
        )
    return agent
