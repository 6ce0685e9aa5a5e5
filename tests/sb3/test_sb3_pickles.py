"""Archives that the user trusts: code pickled into them runs, and what acts is the library's own predict or refused."""

# mypy: disable-error-code="arg-type"
from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import stable_baselines3
import torch
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch import nn

from quarl_lib.sb3 import Agent, AgentError, AgentFile, load_agent

contrib = pytest.importorskip("sb3_contrib")


class NegatedFlattenExtractor(FlattenExtractor):
    """A user's own, which merely inherits from Stable-Baselines3's."""

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return -super().forward(observations)


class Tanh(nn.Tanh):
    """A user's own, which is not torch's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x)


class Contrary(ActorCriticPolicy):
    """A policy whose actions are not those of its network."""

    def _predict(self, observation: Any, deterministic: bool = False) -> torch.Tensor:
        return 1 - super()._predict(observation, deterministic)


MODELS = {
    "PPO": (stable_baselines3.PPO, "CartPole-v1", {"n_steps": 8, "batch_size": 8}),
    "TRPO": (contrib.TRPO, "Pendulum-v1", {"n_steps": 8, "batch_size": 8}),
    "QRDQN": (contrib.QRDQN, "CartPole-v1", {"buffer_size": 16}),
    "TD3": (stable_baselines3.TD3, "Pendulum-v1", {"buffer_size": 16}),
    "TQC": (contrib.TQC, "Pendulum-v1", {"buffer_size": 16}),
    "ARS": (contrib.ARS, "Pendulum-v1", {"n_delta": 1}),
}


def saved(folder: Path, algorithm: str, policy: Any = "MlpPolicy", **options: Any) -> tuple[Any, AgentFile]:
    library, env_id, settings = MODELS[algorithm]
    model = library(policy, gymnasium.make(env_id), policy_kwargs=options or None, seed=0, device="cpu", **settings)
    path = folder / f"{env_id}.zip"
    model.save(path)
    return model, AgentFile(algorithm, env_id, path, "sb3")


def actions(model: Any, agent: Agent) -> tuple[np.ndarray, np.ndarray]:
    shape = agent.observation_space.shape or ()
    met = np.random.default_rng(0).normal(size=(200, *shape)).astype(np.float32)
    return agent.policy.act(agent.normalize(met)), model.predict(met, deterministic=True)[0]


@pytest.mark.parametrize(
    ("algorithm", "own"),
    [(algorithm, "activation") for algorithm in MODELS] + [(a, "extractor") for a in MODELS if a != "ARS"],
)
def test_code_of_the_users_own_acts_as_in_the_library_where_it_may_run(
    algorithm: str, own: str, tmp_path: Path
) -> None:
    if own == "extractor":
        options: dict[str, Any] = {"features_extractor_class": NegatedFlattenExtractor, "net_arch": [8]}
    else:
        options = {"activation_fn": Tanh, "net_arch": [8]}
    model, file = saved(tmp_path, algorithm, **options)
    with pytest.raises(AgentError, match=r"(NegatedFlattenExtractor|Tanh).*run_pickles"):
        load_agent(file)
    actual, expected = actions(model, load_agent(file, run_pickles=True))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_a_policy_that_does_not_act_as_its_network_is_refused(tmp_path: Path) -> None:
    _, file = saved(tmp_path, "PPO", Contrary)
    with pytest.raises(AgentError, match=r"policy class .*Contrary.* run_pickles"):
        load_agent(file)
    with pytest.raises(AgentError, match="100% of the actions for 200 observations are not those of the library"):
        load_agent(file, run_pickles=True)


def test_recurrent_policies_are_refused_wherever_they_lie(tmp_path: Path) -> None:
    settings = {"n_steps": 8, "batch_size": 8, "device": "cpu"}
    model = contrib.RecurrentPPO("MlpLstmPolicy", gymnasium.make("CartPole-v1"), **settings)
    path = tmp_path / "CartPole-v1.zip"
    model.save(path)
    for algorithm in ("PPO", "A2C", "RECURRENTPPO", "PPO_LSTM"):
        for run_pickles in (False, True):
            with pytest.raises(AgentError, match="recurrent policies"):
                load_agent(AgentFile(algorithm, "CartPole-v1", path, "sb3"), run_pickles)
