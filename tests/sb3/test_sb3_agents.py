"""Finding and loading agents: what acts here chooses what Stable-Baselines3 chooses."""

# mypy: disable-error-code="arg-type, dict-item"
from __future__ import annotations

import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from quarl_lib.sb3 import Agent, AgentError, AgentFile, find_agents, load_agent
from quarl_lib.sb3.archive import read_archive
from quarl_lib.sb3.build import policy_from_archive

SHARED = Path(__file__).parents[3] / "shared" / "agents"
SHARED_SB3 = sorted((SHARED / "sb3").glob("*/*/*.zip"))
SMALL = {"net_arch": [8, 8]}
MODELS = {
    "a2c": ("A2C", "CartPole-v1", "MlpPolicy", SMALL, {}),
    "ppo-relu-one-layer": ("PPO", "Pendulum-v1", "MlpPolicy", {"net_arch": [8], "activation_fn": nn.ReLU}, {}),
    "ppo-gsde": ("PPO", "Pendulum-v1", "MlpPolicy", SMALL, {"use_sde": True}),
    "ppo-gsde-squashed": ("PPO", "Pendulum-v1", "MlpPolicy", {**SMALL, "squash_output": True}, {"use_sde": True}),
    "a2c-no-hidden": ("A2C", "CartPole-v1", "MlpPolicy", {"net_arch": []}, {}),
    "dqn": ("DQN", "CartPole-v1", "MlpPolicy", SMALL, {}),
    "ddpg": ("DDPG", "Pendulum-v1", "MlpPolicy", SMALL, {}),
    "td3": ("TD3", "Pendulum-v1", "MlpPolicy", SMALL, {}),
    "sac": ("SAC", "Pendulum-v1", "MlpPolicy", SMALL, {}),
    "sac-gsde": ("SAC", "Pendulum-v1", "MlpPolicy", SMALL, {"use_sde": True}),
}


def make_model(algorithm: str, env: object, policy: str, policy_kwargs: dict, options: dict):
    if algorithm not in ("A2C", "PPO"):
        options = {**options, "buffer_size": 10}
    model_class = getattr(stable_baselines3, algorithm)
    model = model_class(policy, env, policy_kwargs=dict(policy_kwargs), seed=0, device="cpu", **options)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # actions of an untrained agent hardly differ from one another
        for parameter in model.policy.parameters():
            parameter.normal_(0, 0.5, generator=generator)
    return model


def observations(space: spaces.Box, count: int = 200) -> np.ndarray:
    values = np.random.default_rng(0).normal(size=(count, *space.shape)).astype(np.float32)
    return values * np.where(np.isfinite(space.high) & (space.high < 100), space.high, 1.0).astype(np.float32)


def saved_agent(model, folder: Path, algorithm: str, env_id: str) -> Agent:
    path = folder / algorithm.lower() / env_id / f"{env_id}.zip"
    path.parent.mkdir(parents=True)
    model.save(path)
    (file,) = find_agents(folder)
    assert file == AgentFile(algorithm, env_id, path, "sb3")
    return load_agent(file)


@pytest.mark.parametrize("name", MODELS)
def test_a_loaded_agent_acts_as_stable_baselines3_does(name: str, tmp_path: Path) -> None:
    algorithm, env_id, policy, policy_kwargs, options = MODELS[name]
    env = gymnasium.make(env_id)
    model = make_model(algorithm, env, policy, policy_kwargs, options)
    agent = saved_agent(model, tmp_path, algorithm, env_id)
    met = observations(env.observation_space)
    expected = model.predict(met, deterministic=True)[0]
    np.testing.assert_allclose(agent.policy.act(agent.normalize(met)), expected, atol=1e-5)
    assert len(np.unique(expected.round(3), axis=0)) > 1
    assert_same_distribution(model, agent, torch.from_numpy(met))
    assert sum(isinstance(module, nn.Linear) for module in agent.policy.modules()) >= 1


def assert_same_distribution(model, agent: Agent, met: torch.Tensor) -> None:
    """Hold outputs and standard deviations against Stable-Baselines3's own distribution objects."""
    policy = agent.policy
    with torch.no_grad():
        if isinstance(model, stable_baselines3.DQN):
            assert policy.kind == "q_values"
            torch.testing.assert_close(policy(met), model.q_net(met))
        elif isinstance(model, stable_baselines3.TD3):  # DDPG too
            assert policy.kind == "deterministic"
            torch.testing.assert_close(policy(met), model.actor(met))
        elif isinstance(model, stable_baselines3.SAC):
            mean, log_std, kwargs = model.actor.get_action_dist_params(met)
            gaussian = model.actor.action_dist.proba_distribution(mean, log_std, **kwargs).distribution
            assert policy.kind == "gaussian"
            torch.testing.assert_close(policy(met), gaussian.mean)
            torch.testing.assert_close(policy.std(met), gaussian.stddev)
        elif policy.kind == "categorical":
            expected = model.policy.get_distribution(met).distribution.logits
            torch.testing.assert_close(policy(met).log_softmax(-1), expected)
        else:
            gaussian = model.policy.get_distribution(met).distribution
            torch.testing.assert_close(policy(met), gaussian.mean)
            torch.testing.assert_close(policy.std(met), gaussian.stddev)


@pytest.mark.parametrize("algorithm", ["A2C", "DQN"])
def test_a_convolutional_agent_acts_as_stable_baselines3_does(algorithm: str, tmp_path: Path) -> None:
    image = spaces.Box(0, 255, (4, 40, 40), np.uint8)

    class Screen(gymnasium.Env):
        observation_space, action_space = image, spaces.Discrete(5)

        def reset(self, **kwargs):
            return image.sample(), {}

    model = make_model(algorithm, Screen(), "CnnPolicy", {}, {})
    path = tmp_path / "agent.zip"
    model.save(path)
    policy = policy_from_archive(read_archive(path), algorithm, Screen.action_space)
    agent = Agent(algorithm, "Screen", "screen", policy, image)
    met = np.random.default_rng(0).integers(0, 256, (30, 4, 40, 40), dtype=np.uint8)
    outputs = policy(torch.from_numpy(agent.normalize(met)))
    with torch.no_grad():
        if algorithm == "DQN":
            torch.testing.assert_close(outputs, model.q_net(torch.from_numpy(met)))
        else:
            expected = model.policy.get_distribution(torch.from_numpy(met)).distribution.logits
            torch.testing.assert_close(outputs.log_softmax(-1), expected)
    assert [type(m).__name__ for m in policy.modules() if isinstance(m, nn.Linear | nn.Conv2d)] == [
        *("Conv2d", "Conv2d", "Conv2d", "Linear", "Linear"),
    ]


class Doubler(BaseFeaturesExtractor):
    """A features extractor of one's own."""

    def __init__(self, observation_space: spaces.Box, path: str = "") -> None:
        super().__init__(observation_space, features_dim=2 * observation_space.shape[0])
        self.layer = nn.Linear(observation_space.shape[0], self.features_dim)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return torch.sin(self.layer(observations))


@pytest.mark.parametrize("name", ["a2c", "ppo-gsde", "dqn", "td3", "sac", "sac-gsde"])
def test_what_weights_do_not_tell_is_loaded_by_stable_baselines3_on_request_only(name: str, tmp_path: Path) -> None:
    algorithm, env_id, policy, policy_kwargs, options = MODELS[name]
    env = gymnasium.make(env_id)
    model = make_model(algorithm, env, policy, {**policy_kwargs, "features_extractor_class": Doubler}, options)
    path = tmp_path / algorithm.lower() / env_id / f"{env_id}.zip"
    path.parent.mkdir(parents=True)
    model.save(path)
    (file,) = find_agents(tmp_path)
    with pytest.raises(AgentError, match=r"features extractor .*Doubler.* is not one"):
        load_agent(file)
    agent = load_agent(file, run_pickles=True)
    met = observations(env.observation_space)
    expected = model.predict(met, deterministic=True)[0]
    np.testing.assert_allclose(agent.policy.act(agent.normalize(met)), expected, atol=1e-5)
    assert_same_distribution(model, agent, torch.from_numpy(met))


@pytest.mark.skipif(not SHARED_SB3, reason="../shared/agents is not there")
@pytest.mark.parametrize("path", SHARED_SB3, ids=lambda path: f"{path.parts[-3]}-{path.parts[-2]}")
@pytest.mark.filterwarnings("ignore::UserWarning")  # Stable-Baselines3 on what it leaves out
def test_old_archives_act_as_when_stable_baselines3_loads_them(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, env_id = path.parts[-3].upper(), path.parts[-2]
    agent = load_agent(AgentFile(algorithm, env_id, path, "sb3"))
    assert agent.warning == ""
    env = agent.make_env()
    custom = {"observation_space": env.observation_space, "action_space": env.action_space, "buffer_size": 1}
    model = getattr(stable_baselines3, algorithm).load(path, custom_objects=custom, device="cpu")
    met = observations(env.observation_space)
    statistics = path.parent / "vecnormalize.pkl"
    assert (agent.normalization is not None) == statistics.exists()
    normalized = normalize_by_stable_baselines3(statistics, met, monkeypatch) if statistics.exists() else met
    np.testing.assert_allclose(agent.normalize(met), normalized, rtol=1e-6)
    expected = model.predict(normalized.astype(np.float32), deterministic=True)[0]
    np.testing.assert_allclose(agent.policy.act(agent.normalize(met)), expected, atol=1e-5)


def normalize_by_stable_baselines3(path: Path, met: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    from stable_baselines3.common.save_util import load_from_pkl

    for name in ("gym", "gym.spaces", "gym.spaces.box", "gym.spaces.discrete"):
        monkeypatch.setitem(sys.modules, name, sys.modules[name.replace("gym", "gymnasium", 1)])
    return load_from_pkl(path).normalize_obs(met)
