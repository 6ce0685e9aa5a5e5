"""Train an agent by its recipe and store it in the zoo's layout, small and without anything it does not need to act."""

from __future__ import annotations

import dataclasses
import json
import tempfile
import time
from collections.abc import Callable, Collection
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import stable_baselines3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.noise import ActionNoise, NormalActionNoise, OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack, VecNormalize

from quarl_lib.envs import gym as environments
from quarl_lib.sb3.agents import load_agent
from quarl_lib.sb3.episodes import evaluate
from quarl_lib.sb3.folders import AgentFile
from quarl_lib.sb3.logs import log_nowhere
from quarl_lib.sb3.recipes import RECIPES, Recipe, recipe_for

EVALUATION_EPISODES = 20
EVALUATION_SEED = 1_000_000  # far from any seed used in training
PACKAGES = ("stable-baselines3", "gymnasium", "torch", "numpy")
# What only a training that goes on would need.
NOT_STORED = (
    *("ep_info_buffer", "ep_success_buffer", "action_noise", "_last_obs", "_last_original_obs"),
    *("_last_episode_starts", "replay_buffer_kwargs", "rollout_buffer_kwargs", "start_time"),
)


def train(
    algorithm: str,
    env_id: str,
    seed: int,
    steps: int | None = None,
    progress: Callable[[int, int, str], None] = lambda done, total, what: None,
    agents_dir: str | Path = "agents",
) -> Path:
    """Train one agent and return its archive `<agents_dir>/<algorithm>/<environment>/<environment>.zip`.

    `vecnormalize.pkl` (if the recipe normalises) and `recipe.json` (recipe, seed, versions, return reached) stand
    beside it. Stable-Baselines3 can load the archive and go on from it with a fresh optimizer.

    Raises:
        ValueError: no such recipe, or steps below 1.
        EnvironmentMissing: names the extra to install.
    """
    recipe = recipe_for(algorithm, env_id)
    if steps is not None:
        if steps < 1:
            raise ValueError(f"steps={steps} must be at least 1; leave it out for the recipe's own number")
        recipe = dataclasses.replace(recipe, total_steps=steps)
    folder = _folder(Path(agents_dir), recipe)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.json").unlink(missing_ok=True)
    path = folder / f"{recipe.env_id}.zip"

    begin = time.monotonic()
    env = make_training_env(recipe, seed)
    try:
        model = make_model(recipe, env, seed)
        learn(model, recipe, seed, progress)
        save(model, path)
        if isinstance(env, VecNormalize):
            env.save(str(folder / "vecnormalize.pkl"))
    finally:
        env.close()
    wall_time_s = time.monotonic() - begin

    agent = load_agent(AgentFile(recipe.algorithm, recipe.env_id, path, "sb3"))
    returns = evaluate(agent, agent.policy, EVALUATION_EPISODES, EVALUATION_SEED).episode_return
    _write_record(folder / "recipe.json", recipe, seed, model.num_timesteps, wall_time_s, returns.to_numpy())
    return path


def train_agents(
    agents_dir: str | Path,
    algorithms: Collection[str],
    env_ids: Collection[str],
    seed: int,
    progress: Callable[[int, int, str], None] = lambda done, total, what: None,
    steps: int | None = None,
) -> list[tuple[Recipe, str]]:
    """Train every recipe of these algorithms and environments into one folder; go on where one cannot be trained.

    An agent that stands there already, finished, from the same recipe and seed, is kept: an interrupted training of
    many agents goes on with the next one. Returns the recipes that could not be trained, each with the reason.

    Raises:
        ValueError: there is no recipe for any of them.
    """
    wanted = {(algorithm.upper(), environments.current_name(env_id)) for algorithm in algorithms for env_id in env_ids}
    recipes = [recipe for key, recipe in RECIPES.items() if key in wanted]
    if not recipes:
        raise ValueError(f"no recipe for algorithms={list(algorithms)} on env_ids={list(env_ids)}")
    failures: list[tuple[Recipe, str]] = []
    for number, recipe in enumerate(recipes, start=1):

        def report(done: int, total: int, what: str, number: int = number) -> None:
            progress(done, total, f"agent {number} of {len(recipes)}, {what}")

        if _is_trained(Path(agents_dir), recipe, seed, steps):
            continue
        try:
            train(recipe.algorithm, recipe.env_id, seed, steps, report, agents_dir)
        except environments.EnvironmentMissing as error:
            failures.append((recipe, str(error)))
    return failures


def make_training_env(recipe: Recipe, seed: int) -> VecEnv:
    """Make the recipe's environments, stepped one after the other in this process."""
    if environments.is_atari(recipe.env_id):
        environments.make(recipe.env_id).close()  # registers the games, or names the extra
        return VecFrameStack(make_atari_env(recipe.env_id, recipe.num_envs, seed), environments.ATARI_FRAMES)
    env: VecEnv = DummyVecEnv([lambda: Monitor(environments.make(recipe.env_id)) for _ in range(recipe.num_envs)])
    env.seed(seed)
    return VecNormalize(env, gamma=float(recipe.hyperparameters.get("gamma", 0.99))) if recipe.normalize else env


def make_model(recipe: Recipe, env: VecEnv, seed: int) -> BaseAlgorithm:
    """Build the untrained Stable-Baselines3 model of a recipe, on the CPU."""
    arguments = {name: _schedule(value) for name, value in recipe.hyperparameters.items()}
    noise = _action_noise(env, arguments.pop("noise", "normal"), arguments.pop("noise_std", None))
    if noise is not None:
        arguments["action_noise"] = noise
    model_class = getattr(stable_baselines3, recipe.algorithm)
    return log_nowhere(
        model_class(recipe.policy, env, policy_kwargs=dict(recipe.policy_kwargs), seed=seed, device="cpu", **arguments)
    )


def learn(model: BaseAlgorithm, recipe: Recipe, seed: int, progress: Callable[[int, int, str], None]) -> None:
    """Train a model; where the recipe says so, go back to the weights that did best on other episodes meanwhile."""
    report = _Report(progress, recipe)
    if not recipe.select_every_steps:
        model.learn(recipe.total_steps, callback=report)
        return
    trial_env = make_training_env(dataclasses.replace(recipe, num_envs=1), seed + 1)
    every = max(1, recipe.select_every_steps // recipe.num_envs)
    with tempfile.TemporaryDirectory() as folder:
        trial = EvalCallback(
            trial_env, n_eval_episodes=EVALUATION_EPISODES, eval_freq=every, best_model_save_path=folder, verbose=0
        )
        model.learn(recipe.total_steps, callback=[report, trial])
        best = Path(folder) / "best_model.zip"
        if best.exists():
            model.set_parameters(str(best), device="cpu")
    trial_env.close()


def save(model: BaseAlgorithm, path: Path) -> None:
    """Store what an agent needs to act, in a form that Stable-Baselines3 itself can load.

    The optimizers' moments go: they are twice the weights, and `load` only asks that an optimizer is there.
    """
    for name in model._get_torch_save_params()[0]:
        owner: Any = model
        for part in name.split("."):
            owner = getattr(owner, part)
        if hasattr(owner, "param_groups"):
            owner.state.clear()
    model.save(path, exclude=NOT_STORED)


class _Report(BaseCallback):
    """Hand the number of steps done to a progress function."""

    def __init__(self, progress: Callable[[int, int, str], None], recipe: Recipe) -> None:
        super().__init__()
        self._progress, self._total = progress, recipe.total_steps
        self._what = f"{recipe.algorithm} {recipe.env_id} actor steps"

    def _on_step(self) -> bool:
        self._progress(min(self.num_timesteps, self._total), self._total, self._what)
        return True


def _is_trained(agents_dir: Path, recipe: Recipe, seed: int, steps: int | None) -> bool:
    """Say whether `recipe.json`, which is written last, describes this very training."""
    record = _folder(agents_dir, recipe) / "recipe.json"
    if not record.exists():
        return False
    wanted = {**dataclasses.asdict(recipe), "total_steps": steps or recipe.total_steps, "seed": seed}
    stored = json.loads(record.read_text())
    return all(stored.get(name) == value for name, value in json.loads(json.dumps(wanted)).items())


def _folder(agents_dir: Path, recipe: Recipe) -> Path:
    return agents_dir / recipe.algorithm.lower() / recipe.env_id


def _schedule(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("linear:"):
        return LinearSchedule(float(value.removeprefix("linear:")), 0.0, 1.0)
    return value


def _action_noise(env: VecEnv, kind: str, std: float | None) -> ActionNoise | None:
    if std is None:
        return None
    size = env.action_space.shape[0]  # type: ignore[index]
    noise_class = {"normal": NormalActionNoise, "ornstein-uhlenbeck": OrnsteinUhlenbeckActionNoise}[kind]
    return noise_class(np.zeros(size), std * np.ones(size))


def _write_record(
    path: Path, recipe: Recipe, seed: int, actor_steps: int, wall_time_s: float, returns: np.ndarray
) -> None:
    record = {
        **dataclasses.asdict(recipe),
        "seed": seed,
        "actor_steps": actor_steps,
        "training_wall_time_s": round(wall_time_s, 1),
        "mean_return": round(float(returns.mean()), 3),
        "lowest_return": round(float(returns.min()), 3),
        "evaluation_episodes": len(returns),
        "versions": {name: version(name) for name in PACKAGES},
    }
    path.write_text(json.dumps(record, indent=2) + "\n")
