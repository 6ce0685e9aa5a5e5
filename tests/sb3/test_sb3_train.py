"""Tiny trainings by the real recipes; what is stored loads here and in Stable-Baselines3."""

# mypy: disable-error-code="func-returns-value, operator, union-attr"
from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import stable_baselines3
import torch

from quarl_lib.envs import gym as environments
from quarl_lib.sb3 import SHIPPED_AGENTS, Agent, evaluate, find_agents, load_agent
from quarl_lib.sb3 import train as training
from quarl_lib.sb3.recipes import RECIPES, SHIPPED, Recipe, recipe_for
from quarl_lib.studies.ptq_study import paper_table2


@pytest.fixture(autouse=True)
def few_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "EVALUATION_EPISODES", 2)


def trained(tmp_path: Path, algorithm: str, env_id: str, steps: int, seed: int = 0) -> tuple[Path, Agent]:
    path = training.train(algorithm, env_id, seed, steps, agents_dir=tmp_path)
    (file,) = find_agents(tmp_path, [algorithm], [env_id])
    assert file.path == path
    return path, load_agent(file)


@pytest.mark.parametrize(
    ("algorithm", "env_id", "steps"),
    [("A2C", "CartPole-v1", 400), ("DQN", "CartPole-v1", 1500), ("DDPG", "Pendulum-v1", 2010)],
)
def test_a_stored_agent_is_the_trained_one_and_loads_in_stable_baselines3(
    algorithm: str, env_id: str, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = []
    monkeypatch.setattr(
        training, "save", lambda model, path, save=training.save: (models.append(model), save(model, path))
    )
    path, agent = trained(tmp_path, algorithm, env_id, steps)
    met = agent.make_env().observation_space.sample()[None].repeat(50, 0) * np.linspace(-1, 1, 50)[:, None]
    met = np.clip(met, -10, 10).astype(np.float32)
    expected = models[0].predict(met, deterministic=True)[0]
    np.testing.assert_allclose(agent.policy.act(agent.normalize(met)), expected, atol=1e-5)
    again = getattr(stable_baselines3, algorithm).load(path, env=agent.make_env(), device="cpu")
    np.testing.assert_allclose(again.predict(met, deterministic=True)[0], expected, atol=1e-6)
    again.learn(20)  # and goes on from there
    assert path.stat().st_size < 120_000


def test_training_changes_the_agent_and_a_seed_repeats_it(tmp_path: Path) -> None:
    agents = [trained(tmp_path / str(i), "A2C", "CartPole-v1", steps, seed)[1] for i, (steps, seed) in enumerate(
        [(200, 0), (200, 0), (400, 0), (200, 1)]
    )]  # fmt: skip
    met = torch.linspace(-1, 1, 40).reshape(10, 4)
    outputs = [agent.policy(met) for agent in agents]
    torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=0)
    assert not torch.allclose(outputs[0], outputs[2])
    assert not torch.allclose(outputs[0], outputs[3])


def test_statistics_and_record_stand_beside_the_archive(tmp_path: Path) -> None:
    path, agent = trained(tmp_path, "A2C", "MountainCarContinuous-v0", 800)
    assert agent.normalization is not None
    # The start lies between -0.6 and -0.4 and an untrained car stays near: the statistics saw that.
    assert -0.7 < agent.normalization.mean[0] < -0.3
    record = json.loads((path.parent / "recipe.json").read_text())
    recipe = recipe_for("A2C", "MountainCarContinuous-v0")
    assert record["hyperparameters"] == recipe.hyperparameters
    assert (record["seed"], record["total_steps"], record["actor_steps"]) == (0, 800, 800)
    assert set(record["versions"]) == {"stable-baselines3", "gymnasium", "torch", "numpy"}
    table = evaluate(agent, agent.policy, 2, training.EVALUATION_SEED)
    assert record["mean_return"] == pytest.approx(table.episode_return.mean(), abs=1e-3)
    (path.parent / "vecnormalize.pkl").unlink()
    (file,) = find_agents(tmp_path)
    assert "vecnormalize.pkl is missing" in load_agent(file).warning


def test_selection_goes_back_to_the_best_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = dataclasses.replace(recipe_for("A2C", "CartPole-v1"), total_steps=240, num_envs=1, select_every_steps=80)
    env = training.make_training_env(recipe, 0)
    model = training.make_model(recipe, env, 0)
    weights, trial_returns = [], iter([30.0, 90.0, 10.0])

    def play(model, env, **options):
        weights.append(model.policy.action_net.weight.detach().clone())
        return [next(trial_returns)], [1]

    monkeypatch.setattr("stable_baselines3.common.callbacks.evaluate_policy", play)
    training.learn(model, recipe, 0, lambda *call: None)
    assert len(weights) == 3
    torch.testing.assert_close(model.policy.action_net.weight.detach(), weights[1], rtol=0, atol=0)
    assert not torch.equal(weights[1], weights[2])


def test_progress_counts_actor_steps(tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    training.train("A2C", "CartPole-v1", 0, 80, lambda *call: seen.append(call), tmp_path)
    assert seen[0] == (8, 80, "A2C CartPole-v1 actor steps")  # eight environments a step
    assert seen[-1] == (80, 80, "A2C CartPole-v1 actor steps")


def test_many_agents_are_resumed_and_failures_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, str]] = []
    real_train = training.train

    def train(algorithm, env_id, *arguments):
        calls.append((algorithm, env_id))
        if "Bullet" in env_id:
            raise environments.EnvironmentMissing("install the extra")
        return real_train(algorithm, env_id, *arguments)

    monkeypatch.setattr(training, "train", train)
    wanted = (["a2c", "DDPG"], ["CartPole-v1", "Walker2DBulletEnv-v0"])
    failures = training.train_agents(tmp_path, *wanted, seed=0, steps=80)
    assert calls == [("A2C", "CartPole-v1"), ("A2C", "Walker2DBulletEnv-v0"), ("DDPG", "Walker2DBulletEnv-v0")]
    assert [(r.algorithm, reason) for r, reason in failures] == [
        ("A2C", "install the extra"),
        ("DDPG", "install the extra"),
    ]
    training.train_agents(tmp_path, *wanted, seed=0, steps=80)
    assert calls.count(("A2C", "CartPole-v1")) == 1  # stands there, finished
    training.train_agents(tmp_path, *wanted, seed=1, steps=80)
    assert calls.count(("A2C", "CartPole-v1")) == 2  # another seed is another agent
    with pytest.raises(ValueError, match="no recipe"):
        training.train_agents(tmp_path, ["DQN"], ["BipedalWalker-v3"], seed=0)


def test_recipes_cover_what_is_shipped_and_the_papers_table_2() -> None:
    assert set(SHIPPED) <= set(RECIPES)
    wanted = list(zip(paper_table2.load().algorithm, paper_table2.load().env_id, strict=True))
    assert len(wanted) == 36
    for key in wanted:
        recipe = RECIPES[key]
        assert (recipe.algorithm, recipe.env_id) == key
        if recipe.policy == "MlpPolicy":
            assert recipe.policy_kwargs["net_arch"] == [64, 64]
        else:
            assert recipe.policy_kwargs == {}  # NatureCNN: three convolutions


def test_shipped_agents_come_from_the_recipes_as_they_stand() -> None:
    for key in SHIPPED:
        record = json.loads((SHIPPED_AGENTS / key[0].lower() / key[1] / "recipe.json").read_text())
        assert {name: record[name] for name in dataclasses.asdict(RECIPES[key])} == json.loads(
            json.dumps(dataclasses.asdict(RECIPES[key]))
        )
        assert record["actor_steps"] >= record["total_steps"]


@pytest.mark.parametrize("key", [("PPO", "PongNoFrameskip-v4"), ("DQN", "PongNoFrameskip-v4")])
def test_atari_recipes_train_the_three_layer_network(key: tuple[str, str]) -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    recipe = RECIPES[key]
    small = {**recipe.hyperparameters, **({"buffer_size": 16} if recipe.algorithm == "DQN" else {})}
    recipe = dataclasses.replace(recipe, hyperparameters=small, num_envs=1)
    model = training.make_model(recipe, training.make_training_env(recipe, 0), 0)
    convolutions = [module for module in model.policy.modules() if isinstance(module, torch.nn.Conv2d)]
    assert [layer.kernel_size[0] for layer in convolutions[:3]] == [8, 4, 3]


@pytest.mark.parametrize("key", sorted(key for key in RECIPES if not environments.is_atari(key[1])))
def test_every_recipe_is_understood_by_stable_baselines3(key: tuple[str, str]) -> None:
    recipe: Recipe = dataclasses.replace(RECIPES[key], num_envs=1)
    if "buffer_size" in recipe.hyperparameters or key[0] == "DDPG":
        recipe = dataclasses.replace(recipe, hyperparameters={**recipe.hyperparameters, "buffer_size": 10})
    try:
        env = training.make_training_env(recipe, 0)
    except environments.EnvironmentMissing as error:
        pytest.skip(str(error))
    model = training.make_model(recipe, env, 0)
    rate = recipe.hyperparameters.get("learning_rate")
    if isinstance(rate, str):  # a schedule, from the rate to zero
        assert model.lr_schedule(1.0) == pytest.approx(float(rate.removeprefix("linear:")))
        assert model.lr_schedule(0.0) == pytest.approx(0.0)


def test_what_cannot_be_trained_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="DDPG has BipedalWalker-v3"):
        training.train("DDPG", "CartPole-v1", 0, agents_dir=tmp_path)
    with pytest.raises(ValueError, match="steps=0"):
        training.train("A2C", "CartPole-v1", 0, steps=0, agents_dir=tmp_path)
    with pytest.raises(ValueError, match="mix statistics"):
        dataclasses.replace(recipe_for("A2C", "MountainCarContinuous-v0"), select_every_steps=10)


def test_neither_loading_nor_training_imports_tensorflow() -> None:
    code = (
        "import sys, quarl_lib.sb3; assert 'stable_baselines3' not in sys.modules; "
        "import quarl_lib.sb3.train; assert 'stable_baselines3' in sys.modules; assert 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.slow
def test_a_recipe_makes_an_agent_as_good_as_the_shipped_one(tmp_path: Path) -> None:
    path = training.train("PPO", "CartPole-v1", 1, agents_dir=tmp_path)
    assert path.parents[3] == tmp_path
    (file,) = find_agents(tmp_path)
    agent = load_agent(file)
    assert evaluate(agent, agent.policy, 5, 0).episode_return.min() >= 475


@pytest.mark.slow
def test_an_atari_agent_trains_and_plays_whole_games(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    _, agent = trained(tmp_path, "A2C", "PongNoFrameskip-v4", 80)
    table = evaluate(agent, agent.policy, 1, 0)
    assert -21 <= table.episode_return[0] <= 21
    assert table.episode_length[0] > 700  # a game to 21 points
