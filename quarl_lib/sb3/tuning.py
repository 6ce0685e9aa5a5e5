"""Mend a policy that loses return when it is quantized: train it on under fake quantization, from its archive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Env
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from quarl_lib.envs import gym as environments
from quarl_lib.quantization.qat import QATConfig
from quarl_lib.sb3.agents import Agent, AgentFile, load_agent
from quarl_lib.sb3.archive import AgentError, read_archive
from quarl_lib.sb3.build import ON_POLICY
from quarl_lib.sb3.keep_best import KeepBest
from quarl_lib.sb3.logs import log_nowhere
from quarl_lib.sb3.qat_policies import QuantDelay
from quarl_lib.sb3.rebuild import rebuild_model

TRIALS = 10  # how often the policy is tried on episodes of their own, of which the best weights are kept
MORE_TRIALS = {"DQN": 2}  # times as many: its greedy policy swings from one update to the next
REPLAY, MOST_ENVS = 100_000, 32
# What leaves a model that is only looked at small and silent.
SMALL: dict[str, dict[str, Any]] = {"PPO": {"batch_size": 32}, "A2C": {}}
# Stable-Baselines3's own, where an archive keeps an object in their place.
DQN_TRAINED_BY = {"learning_rate": 1e-4, "batch_size": 32, "gamma": 0.99}
SETTLED = 1e9  # statistics that stand for so many observations hardly move


def fine_tune(
    agent: AgentFile,
    env: str | Env | VecEnv | None,
    precision: str | QATConfig,
    steps: int,
    *,
    seed: int = 0,
    hyperparameters: Mapping[str, Any] | None = None,
    callback: list[BaseCallback] | None = None,
) -> BaseAlgorithm:
    """Train an archived agent on for `steps` environment steps with the bits that it will run at; return the model.

    `precision` is an engine's ("int8", "int4", "int3", "int2"), whose very grid is trained on, or a QATConfig. `env` is
    the agent's own where it is None. Ten times on the way (DQN: twenty) the policy plays episodes of their own, and the
    weights that did best are kept: the result is never worse there than rounding alone.
    `QuantizedPolicy.from_sb3(model, "int4")` takes it from here.

    Raises:
        ValueError: steps below 1, or an unknown precision.
        AgentError: an agent of plain arrays, which has no critic; or the archive cannot be trained on, with the reason.
    """
    if steps < 1:
        raise ValueError(f"steps={steps}: give at least 1")
    config = precision if isinstance(precision, QATConfig) else QATConfig.for_engine(precision)
    loaded = _loaded(agent)
    settings = dict(hyperparameters or {})
    own_env = env is None or isinstance(env, str)
    vec_env = training_env(loaded, env, int(settings.pop("n_envs", _n_envs(agent))), seed)
    try:
        model = log_nowhere(rebuild_model(
            agent.path, agent.algorithm, vec_env, quantization=config,
            hyperparameters={**_defaults(agent), **settings}, seed=seed,
        ))  # fmt: skip
        # Running ranges need a look at the data before they quantize; the engines' grid takes each sample's own.
        delay = 0 if config.grid == "engine" else max(1, steps // 20)
        every = max(1, steps // trials_of(agent.algorithm))
        keep = KeepBest(loaded, delay - every, every)  # the first trial is of rounding alone
        if isinstance(model, OffPolicyAlgorithm):
            _fill_replay(model, max(1000, min(steps // 4, 10_000)))
        model.learn(steps, callback=[QuantDelay(delay), keep, *(callback or [])])
    finally:
        if own_env:
            vec_env.close()
    return model


def trials_of(algorithm: str) -> int:
    """Return how often fine-tuning tries its policy, but for the first trial of rounding alone."""
    return TRIALS * MORE_TRIALS.get(algorithm, 1)


def check_tunable(agent: AgentFile) -> None:
    """Raise what `fine_tune` would for this agent, without training.

    Raises:
        AgentError: it cannot be trained on, with the reason.
    """
    env = training_env(_loaded(agent), None)
    try:
        rebuild_model(agent.path, agent.algorithm, env, hyperparameters=SMALL.get(agent.algorithm, {"buffer_size": 1}))
    finally:
        env.close()


def _loaded(agent: AgentFile) -> Agent:
    if agent.layout != "sb3":
        raise AgentError(f"{agent.name} lies as plain arrays without a critic: give a Stable-Baselines3 archive")
    loaded = load_agent(agent)
    if loaded.flat is not None:
        raise AgentError(f"{agent.name}: observations are {loaded.flat}: what trains on are policies of one array")
    return loaded


def _n_envs(agent: AgentFile) -> int:
    """Return in how many environments an on-policy agent was trained: its batches are so many times its steps."""
    stored = read_archive(agent.path).settings.get("n_envs")
    return stored if agent.algorithm in ON_POLICY and isinstance(stored, int) and 0 < stored <= MOST_ENVS else 1


def training_env(agent: Agent, env: str | Env | VecEnv | None, n_envs: int = 1, seed: int = 0) -> VecEnv:
    """Return environments to train in, normalised as the agent was trained; its observation statistics stand still."""
    if isinstance(env, VecEnv):
        vec_env = env
    elif isinstance(env, Env):
        vec_env = DummyVecEnv([lambda: Monitor(env)])
    else:
        env_id = env or agent.env_id
        options = agent.env_kwargs if env is None else {}
        make = lambda: Monitor(environments.make(env_id, time_feature=agent.time_feature, **options))  # noqa: E731
        vec_env = DummyVecEnv([make for _ in range(n_envs)])
    vec_env.seed(seed)
    if agent.normalization is None or isinstance(vec_env, VecNormalize):
        return vec_env
    wrapped = VecNormalize(vec_env, clip_obs=float(agent.normalization.clip))
    statistics: Any = wrapped.obs_rms
    statistics.mean = np.array(agent.normalization.mean, np.float64)
    statistics.var = np.array(agent.normalization.std, np.float64) ** 2 - wrapped.epsilon
    statistics.count = SETTLED
    return wrapped


def _defaults(agent: AgentFile) -> dict[str, Any]:
    """Return what a run that goes on from a trained policy does otherwise than one that begins."""
    if agent.algorithm in ON_POLICY:
        return {}
    start: dict[str, Any] = {"learning_starts": 0, "buffer_size": REPLAY}
    if agent.algorithm == "DQN":
        own = read_archive(agent.path).settings
        rate, batch, discount = (_number(own, name, default) for name, default in DQN_TRAINED_BY.items())
        # At its training's own pace Q-learning forgets within some hundred updates what it came with: coarse targets
        # that follow at once feed the grid's errors back. Here steps are small and end at 0, batches are large, and
        # targets follow slowly. Looking twice as far ahead makes what a wrong action costs larger than those errors.
        start |= {
            "exploration_initial_eps": 0.05,
            "exploration_final_eps": 0.05,
            "learning_rate": LinearSchedule(0.3 * rate, 0.0, 1.0),
            "batch_size": int(4 * batch),
            "tau": 0.01,
            "target_update_interval": 4,
            "gamma": (1 + discount) / 2,
        }
    return start


def _number(settings: Mapping[str, Any], name: str, default: float) -> float:
    value = settings.get(name)
    return value if isinstance(value, int | float) and value > 0 else default


def _fill_replay(model: Any, steps: int) -> None:
    """Let the policy itself fill the replay buffer: learning from a handful of transitions would ruin it."""
    total, callback = model._setup_learn(steps, None)
    callback.on_training_start(locals(), globals())
    model.collect_rollouts(
        model.env,
        callback,
        TrainFreq(steps, TrainFrequencyUnit.STEP),
        model.replay_buffer,
        model.action_noise,
        learning_starts=0,
    )
