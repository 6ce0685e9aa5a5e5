"""How to train each agent: hyperparameters and steps, for the shipped agents and for all of the paper's Table 2.

The networks are the paper's: two hidden layers of 64 on vectors, three convolutions on Atari frames. Hyperparameters
start from rl-baselines3-zoo's and are what Stable-Baselines3 takes; `linear:x` is a schedule from x to 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quarl_lib.envs.gym import current_name, is_atari

TABLE2_ATARI = ("Breakout", "SpaceInvaders", "BeamRider", "MsPacman", "Qbert", "Seaquest", "Pong")
SHIPPED = (
    ("A2C", "CartPole-v1"),
    ("PPO", "CartPole-v1"),
    ("DQN", "CartPole-v1"),
    ("A2C", "MountainCarContinuous-v0"),
    ("PPO", "Pendulum-v1"),
    ("DDPG", "Pendulum-v1"),
)


@dataclass(frozen=True)
class Recipe:
    """What `train` needs to make one agent."""

    algorithm: str
    env_id: str
    total_steps: int
    hyperparameters: Mapping[str, Any]
    num_envs: int = 1
    normalize: bool = False  # observations and rewards, by running statistics
    policy_kwargs: Mapping[str, Any] = field(default_factory=lambda: {"net_arch": [64, 64]})
    select_every_steps: int = 0  # keep the weights that did best when tried every so often; 0 keeps the last

    def __post_init__(self) -> None:
        if self.select_every_steps and self.normalize:
            raise ValueError(f"{self.algorithm} {self.env_id}: selecting would mix statistics of several moments")

    @property
    def policy(self) -> str:
        """The name under which Stable-Baselines3 knows the network."""
        return "CnnPolicy" if is_atari(self.env_id) else "MlpPolicy"


_GSDE = {"net_arch": [64, 64], "ortho_init": False}
_REPLAY = {"buffer_size": 200_000, "learning_starts": 10_000, "learning_rate": 1e-3, "gamma": 0.98, "noise_std": 0.1}
_OFF_POLICY_EPISODES = {**_REPLAY, "train_freq": (1, "episode"), "gradient_steps": -1}

_RECIPES = [
    Recipe("A2C", "CartPole-v1", 500_000, {"ent_coef": 0.0, "learning_rate": "linear:7e-4"}, num_envs=8),
    Recipe(
        "PPO",
        "CartPole-v1",
        100_000,
        {
            "n_steps": 32,
            "batch_size": 256,
            "gae_lambda": 0.8,
            "gamma": 0.98,
            "n_epochs": 20,
            "learning_rate": "linear:1e-3",
            "clip_range": "linear:0.2",
        },
        num_envs=8,
    ),
    Recipe(
        "DQN",
        "CartPole-v1",
        60_000,
        {
            "learning_rate": 1e-3,
            "gamma": 0.98,
            "batch_size": 64,
            "buffer_size": 100_000,
            "learning_starts": 1000,
            "target_update_interval": 10,
            "train_freq": 256,
            "gradient_steps": 128,
            "exploration_fraction": 0.16,
            "exploration_final_eps": 0.04,
        },
        select_every_steps=2000,  # Q-learning forgets: the last weights are rarely the best
    ),
    Recipe(
        "A2C",
        "MountainCarContinuous-v0",
        100_000,
        {"n_steps": 100, "ent_coef": 0.0, "use_sde": True, "sde_sample_freq": 16},
        num_envs=4,
        normalize=True,
        policy_kwargs={**_GSDE, "log_std_init": 0.0},
    ),
    Recipe(
        "PPO",
        "MountainCarContinuous-v0",
        20_000,
        {
            "n_steps": 8,
            "batch_size": 256,
            "gamma": 0.9999,
            "learning_rate": 7.77e-5,
            "ent_coef": 0.00429,
            "clip_range": 0.1,
            "n_epochs": 10,
            "gae_lambda": 0.9,
            "max_grad_norm": 5.0,
            "vf_coef": 0.19,
            "use_sde": True,
        },
        normalize=True,
        policy_kwargs={**_GSDE, "log_std_init": -3.29},
    ),
    Recipe("DDPG", "MountainCarContinuous-v0", 300_000, {"noise_std": 0.5, "noise": "ornstein-uhlenbeck"}),
    Recipe(
        "PPO",
        "Pendulum-v1",
        100_000,
        {"n_steps": 1024, "gamma": 0.9, "learning_rate": 1e-3, "use_sde": True, "sde_sample_freq": 4},
        num_envs=4,
    ),
    Recipe("DDPG", "Pendulum-v1", 20_000, {**_REPLAY, "learning_starts": 2000}),
    Recipe(
        "A2C",
        "BipedalWalker-v3",
        5_000_000,
        {"n_steps": 8, "gae_lambda": 0.9, "vf_coef": 0.4, "learning_rate": "linear:9.6e-4", "use_sde": True},
        num_envs=16,
        normalize=True,
        policy_kwargs={**_GSDE, "log_std_init": -2.0},
    ),
    Recipe(
        "PPO",
        "BipedalWalker-v3",
        5_000_000,
        {"n_steps": 2048, "batch_size": 64, "gamma": 0.999, "clip_range": 0.18},
        num_envs=32,
        normalize=True,
    ),
    Recipe("DDPG", "BipedalWalker-v3", 1_000_000, _OFF_POLICY_EPISODES),
    *(
        recipe
        for env_id in ("Walker2DBulletEnv-v0", "HalfCheetahBulletEnv-v0")
        for recipe in (
            Recipe(
                "A2C",
                env_id,
                2_000_000,
                {"n_steps": 32, "ent_coef": 0.0, "learning_rate": "linear:7e-4"},
                num_envs=4,
                normalize=True,
            ),
            Recipe(
                "PPO",
                env_id,
                2_000_000,
                {"n_steps": 2048, "batch_size": 64, "learning_rate": "linear:2.5e-4"},
                normalize=True,
            ),
            Recipe("DDPG", env_id, 1_000_000, _OFF_POLICY_EPISODES),
        )
    ),
    *(
        recipe
        for env_id in (f"{game}NoFrameskip-v4" for game in TABLE2_ATARI)
        for recipe in (
            Recipe(
                "A2C",
                env_id,
                10_000_000,
                {"ent_coef": 0.01, "vf_coef": 0.25, "rms_prop_eps": 1e-5},
                num_envs=16,
                policy_kwargs={},
            ),
            Recipe(
                "PPO",
                env_id,
                10_000_000,
                {
                    "n_steps": 128,
                    "n_epochs": 4,
                    "batch_size": 256,
                    "learning_rate": "linear:2.5e-4",
                    "clip_range": "linear:0.1",
                    "ent_coef": 0.01,
                },
                num_envs=8,
                policy_kwargs={},
            ),
            Recipe(
                "DQN",
                env_id,
                10_000_000,
                {
                    "buffer_size": 100_000,
                    "learning_starts": 100_000,
                    "learning_rate": 1e-4,
                    "target_update_interval": 1000,
                    "train_freq": 4,
                    "exploration_final_eps": 0.01,
                    # Storing each frame once halves the 5.6 GB of this buffer.
                    "optimize_memory_usage": True,
                    "replay_buffer_kwargs": {"handle_timeout_termination": False},
                },
                policy_kwargs={},
            ),
        )
    ),
]
RECIPES = {(recipe.algorithm, recipe.env_id): recipe for recipe in _RECIPES}


def recipe_for(algorithm: str, env_id: str) -> Recipe:
    """Return the recipe of one agent; the environment may be named as of old.

    Raises:
        ValueError: there is none; the message lists the environments of that algorithm.
    """
    key = (algorithm.upper(), current_name(env_id))
    if key not in RECIPES:
        known = ", ".join(sorted(env for algo, env in RECIPES if algo == key[0])) or "no environment"
        raise ValueError(f"no recipe for algorithm={algorithm!r}, env_id={env_id!r}; {key[0]} has {known}")
    return RECIPES[key]
