"""What a model's training could gain, measured on copies: one rollout and one update, or a few hundred steps."""

from __future__ import annotations

import copy
import io
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.vec_normalize import VecNormalize

from quarl_lib.sb3.logs import log_nowhere
from quarl_lib.sb3.rollouts.handle import RolloutsHandle
from quarl_lib.sb3.rollouts.report import Gain

OFF_POLICY_STEPS = 200
SMALL_BUFFER = 10_000


def gain(model: BaseAlgorithm, env: VecEnv | None = None) -> Gain:
    """Return where the time of this model's training goes, and so the most that faster inference can gain.

    A copy of the model trains for one rollout and update (off-policy: 200 steps) in a copy of its environments; the
    model, its environments and the random state stay as they are.

    Args:
        env: environments to use instead, where the model's cannot be copied (processes, open files).

    Raises:
        ValueError: the environments cannot be copied; the message says what to give.
    """
    if env is None:
        if model.env is None:
            raise ValueError("model has no environment: give one, gain(model, env)")
        try:
            env = _copy_of(model.env)
        except Exception as error:  # what strangers' environments raise when they are copied
            name = type(model.env.unwrapped).__name__
            raise ValueError(f"{name} cannot be copied ({error}): give others like it, gain(model, env)") from error
    with _random_state_kept():
        twin = _twin(model, env)
        handle = RolloutsHandle(twin, "fp32", update_period=1, correction="behaviour")
        steps = twin.n_steps * twin.n_envs if isinstance(twin, OnPolicyAlgorithm) else OFF_POLICY_STEPS
        handle.open()
        try:
            twin.learn(steps)
        finally:
            handle.close()
    return handle.report().before


def _twin(model: BaseAlgorithm, env: VecEnv) -> Any:
    archive = io.BytesIO()
    model.save(archive)
    archive.seek(0)
    quiet = {"verbose": 0, "tensorboard_log": None}
    if not isinstance(model, OnPolicyAlgorithm):
        quiet |= {"learning_starts": 0, "buffer_size": SMALL_BUFFER}
    twin: Any = log_nowhere(type(model).load(archive, env=env, device=model.device, custom_objects=quiet))
    if hasattr(twin, "exploration_schedule"):  # what DQN comes down to, not the random actions that it begins with
        twin.exploration_schedule = _Constant(twin.exploration_final_eps)
        twin.exploration_rate = twin.exploration_final_eps
    return twin


class _Constant:
    def __init__(self, value: float) -> None:
        self.value = value

    def __call__(self, progress_remaining: float) -> float:
        return self.value


def _copy_of(env: VecEnv) -> VecEnv:
    """Copy environments and their wrappers; VecNormalize leaves what it wraps out of its copies."""
    if not isinstance(env, VecEnvWrapper):
        return copy.deepcopy(env)
    inner = _copy_of(env.venv)
    wrapper = copy.deepcopy(env, {id(env.venv): inner})
    if isinstance(wrapper, VecNormalize):
        wrapper.set_venv(inner)
    return wrapper


@contextmanager
def _random_state_kept() -> Iterator[None]:
    own, numpys = random.getstate(), np.random.get_state()  # noqa: NPY002  the state that Stable-Baselines3 draws from
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(own)
            np.random.set_state(numpys)  # noqa: NPY002
