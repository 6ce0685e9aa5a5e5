"""One recipe and seed: the same training with and without an engine, in turns on one core."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import stable_baselines3
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv

from quarl_lib.actorq.carbon import modelled_kwh
from quarl_lib.envs import gym as environments
from quarl_lib.provenance import usable_cores
from quarl_lib.sb3.logs import log_nowhere
from quarl_lib.sb3.rollouts import quantized_rollouts
from quarl_lib.sb3.rollouts.patches import Patches
from quarl_lib.studies.quantized_rollouts.turns import Pause, in_turns

ALGORITHMS = ("PPO", "A2C", "DQN", "DDPG", "TD3", "SAC")
ON_POLICY = ("PPO", "A2C")
PLAIN = "plain"
TURN_S = 0.02  # of processor time; short enough that what slows the core falls on all alike
# The library's defaults, but for algorithms that would not begin to learn within the steps of a short run.
HYPERPARAMETERS: dict[str, dict[str, Any]] = {
    "DQN": {
        **{"learning_rate": 2.3e-3, "batch_size": 64, "learning_starts": 1000, "target_update_interval": 10},
        **{"train_freq": 64, "gradient_steps": 32, "exploration_fraction": 0.16, "exploration_final_eps": 0.04},
    },
    "SAC": {"learning_starts": 500, "batch_size": 64, "learning_rate": 1e-3},
    "TD3": {"learning_starts": 500, "batch_size": 64, "learning_rate": 1e-3},
    "DDPG": {"learning_starts": 500, "batch_size": 64, "learning_rate": 1e-3},
}


@dataclass(frozen=True)
class RolloutRecipe:
    """What is trained, for how many steps of all environments together, and on how many seeds (0: all)."""

    algorithm: str
    env_id: str
    actor_steps: int
    n_envs: int
    hidden: str  # widths, "64-64"
    seeds: int = 0

    @classmethod
    def parse(cls, text: str) -> RolloutRecipe:
        """Read "PPO/CartPole-v1/16384/1/64-64" or, with the number of seeds, "TD3/Pendulum-v1/3000/1/64-64/2".

        Raises:
            ValueError: the text has another form, or an unknown algorithm.
        """
        parts = text.split("/")
        form = f"recipes={text!r}: give algorithm/environment/steps/environments/widths, and seeds if not all"
        if len(parts) not in (5, 6) or not all(part.isdigit() for part in (*parts[2:4], *parts[5:])):
            raise ValueError(form)
        widths = parts[4].split("-")
        if not all(width.isdigit() and int(width) for width in widths) or not int(parts[2]) or not int(parts[3]):
            raise ValueError(form)
        if parts[0].upper() not in ALGORITHMS:
            raise ValueError(f"recipes={text!r}: choose an algorithm among {', '.join(ALGORITHMS)}")
        return cls(parts[0].upper(), parts[1], int(parts[2]), int(parts[3]), parts[4], *map(int, parts[5:]))

    @property
    def name(self) -> str:
        """Return a short name for a progress line and a figure."""
        envs = f"{self.n_envs} env{'s' if self.n_envs > 1 else ''}"
        return f"{self.algorithm} {self.env_id}, {envs}, {self.hidden}"

    def make(self, seed: int) -> BaseAlgorithm:
        """Return the untrained model with its environments."""
        env = DummyVecEnv([partial(_monitored, self.env_id)] * self.n_envs)
        env.seed(seed)
        options = dict(HYPERPARAMETERS.get(self.algorithm, {}))
        if self.algorithm == "PPO" and self.n_envs > 1:
            options |= {"n_steps": 2048 // self.n_envs, "batch_size": 256}
        if self.algorithm in ("TD3", "DDPG"):
            size = env.action_space.shape[0]  # type: ignore[index]
            options["action_noise"] = NormalActionNoise(np.zeros(size), 0.1 * np.ones(size))
        options["policy_kwargs"] = {"net_arch": [int(width) for width in self.hidden.split("-")]}
        kind = getattr(stable_baselines3, self.algorithm)
        return log_nowhere(kind("MlpPolicy", env, seed=seed, device="cpu", **options))


@dataclass(frozen=True)
class Variant:
    """How the rollouts of a training act."""

    precision: str
    correction: str

    def __str__(self) -> str:
        return self.precision if self.correction == "behaviour" else f"{self.precision} {self.correction}"


@dataclass(frozen=True)
class TrainingTask:
    """One recipe and seed in all variants."""

    recipe: RolloutRecipe
    variants: tuple[Variant, ...]
    seed: int
    watts_per_core: float


def measure(task: TrainingTask) -> pd.DataFrame:
    """Train every variant in turns on one core and return one row per training and per episode, column `record`."""
    pins = hasattr(os, "sched_setaffinity")  # macOS and Windows let no process choose its core
    allowed = os.sched_getaffinity(0) if pins else set()
    if pins:
        os.sched_setaffinity(0, {sorted(allowed)[_worker_number() % len(allowed)]})
    try:
        # Another order each seed: whoever goes first finds other caches.
        order = np.roll(np.arange(len(task.variants)), task.seed).tolist()
        jobs = [partial(_train, task, task.variants[index]) for index in order]
        tables = in_turns(jobs)
    finally:
        if pins:
            os.sched_setaffinity(0, allowed)
    return pd.concat(tables, ignore_index=True)


def _train(task: TrainingTask, variant: Variant, pause: Pause) -> pd.DataFrame:
    recipe = task.recipe
    model = recipe.make(task.seed)
    watch = _Watch(pause)
    extra: dict[str, float] = {}
    begin = time.thread_time()
    if variant.precision == PLAIN:
        with _TimedInference(model) as inference:
            model.learn(recipe.actor_steps, callback=watch)
        seconds = time.thread_time() - begin
        extra["inference_share"] = inference.seconds / seconds
    else:
        with quantized_rollouts(model, variant.precision, correction=variant.correction) as handle:
            model.learn(recipe.actor_steps, callback=watch)
        seconds = time.thread_time() - begin
        report = handle.report()
        extra |= {"updates": report.updates, "payload_bytes": report.payload_bytes, "age_steps": report.age_steps}
    assert model.env is not None
    model.env.close()
    keys = {"algorithm": recipe.algorithm, "env_id": recipe.env_id, "actor_steps": recipe.actor_steps}
    keys |= {"n_envs": recipe.n_envs, "hidden": recipe.hidden, "precision": variant.precision}
    keys |= {"correction": variant.correction, "seed": task.seed}
    energy = modelled_kwh(seconds, task.watts_per_core)
    training = pd.DataFrame([{"record": "training", "seconds": seconds, "energy_kwh": energy, **extra}])
    episodes = pd.DataFrame(watch.episodes, columns=["step", "episode_return"]).assign(record="episode")
    return pd.concat([training, episodes], ignore_index=True).assign(**keys)


class _Watch(BaseCallback):
    """Notes every episode's return, and lets the others go on every few milliseconds of its own processor time."""

    def __init__(self, pause: Pause) -> None:
        super().__init__()
        self._pause, self._since = pause, time.thread_time()
        self.episodes: list[tuple[int, float]] = []

    def _on_training_start(self) -> None:
        parts: list[Any] = [
            self.model.policy,
            *(getattr(self.model.policy, name, None) for name in ("actor", "critic")),
        ]
        for part in parts:
            if isinstance(getattr(part, "optimizer", None), torch.optim.Optimizer):
                part.optimizer.register_step_post_hook(self._take_turns)

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self.episodes.append((self.num_timesteps, float(info["episode"]["r"])))
        self._take_turns()
        return True

    def _take_turns(self, *_: object) -> None:
        if time.thread_time() - self._since > TURN_S:
            self._pause()
            self._since = time.thread_time()


class _TimedInference:
    """Sums the processor time of what the engine would take over: forward of A2C and PPO, predict of the others."""

    def __init__(self, model: BaseAlgorithm) -> None:
        self.seconds = 0.0
        self._patches = Patches()
        name = "forward" if isinstance(model, OnPolicyAlgorithm) else "predict"
        self._original: Callable[..., Any] = self._patches.replace(model.policy, name, self._timed)

    def _timed(self, *args: Any, **kwargs: Any) -> Any:
        begin = time.thread_time()
        answer = self._original(*args, **kwargs)
        self.seconds += time.thread_time() - begin
        return answer

    def __enter__(self) -> _TimedInference:
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.restore()


def _worker_number() -> int:
    """Return this process's place among a pool's workers, which are numbered one after the other; 0 outside a pool."""
    number = multiprocessing.current_process().name.rpartition("-")[2]
    return int(number) if number.isdigit() else 0


def _monitored(env_id: str) -> Monitor:
    return Monitor(environments.make(env_id))


def watts_per_core(cpu_watts: float) -> float:
    """Return the power that one busy core is booked with, of a processor's `cpu_watts` at full load."""
    return cpu_watts / max(os.cpu_count() or 1, usable_cores())
