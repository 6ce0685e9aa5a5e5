"""Engines run loaded agents: the same actions at fp32, returns at int8 within what fp32 itself scatters."""

# mypy: disable-error-code="misc"
from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from quarl_lib.inference.engines import make_engine
from quarl_lib.inference.pack import pack
from quarl_lib.sb3 import SHIPPED_AGENTS, Agent, evaluate, find_agents, load_agent
from quarl_lib.sb3.policy import ActingPolicy, ConstantSpread
from quarl_lib.sb3.spec import agent_spec, evaluate_engine

FILES = {file.name: file for file in find_agents(SHIPPED_AGENTS)}


def engine_of(agent: Agent, precision: str, backend: str = "auto"):
    spec, weights = agent_spec(agent)
    engine = make_engine(spec, precision, backend)
    engine.load(pack(spec, weights, precision))
    return engine


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("backend", ["auto", "numpy"])
def test_an_engine_at_fp32_acts_as_the_policy(name: str, backend: str) -> None:
    agent = load_agent(FILES[name])
    env = agent.make_env()
    met = np.random.default_rng(0).normal(size=(300, *env.observation_space.shape)).astype(np.float32)
    engine = engine_of(agent, "fp32", backend)
    outputs = agent.policy(torch.from_numpy(agent.normalize(met))).numpy()
    expected = agent.policy.actions(outputs)
    actual = np.asarray(engine(met))
    if agent.policy.discrete:
        best_two = np.sort(outputs, axis=1)[:, -2:]
        clear = best_two[:, 1] - best_two[:, 0] > 1e-4 * np.abs(outputs).max()
        assert clear.mean() > 0.9
        np.testing.assert_array_equal(actual[clear], expected[clear])
        assert engine(met[0]) == actual[0]
    else:
        np.testing.assert_allclose(actual, expected, atol=1e-4)
        np.testing.assert_allclose(engine(met[0]), actual[0], atol=1e-5)
    assert len(np.unique(actual)) > 1


@pytest.mark.parametrize("name", FILES)
def test_mean_return_at_int8_lies_within_the_interval_of_fp32(name: str) -> None:
    agent = load_agent(FILES[name])
    fp32 = evaluate(agent, agent.policy, episodes=20, seed=0).episode_return.to_numpy()
    int8 = evaluate_engine(agent, engine_of(agent, "int8"), episodes=20, seed=0).episode_return.to_numpy()
    means = np.random.default_rng(0).choice(fp32, (2000, len(fp32))).mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    assert low - 1e-9 <= int8.mean() <= high + 1e-9


def test_squashed_and_convolutional_policies_have_specs() -> None:
    policy = ActingPolicy(
        nn.Sequential(nn.Flatten(), nn.Linear(3, 8), nn.ReLU()), nn.Linear(8, 2), "gaussian",
        spread=ConstantSpread(torch.zeros(2)), low=-np.ones(2), high=np.array([1.0, 3.0]), squash=True,
    )  # fmt: skip
    agent = Agent("SAC", "-", "sac", policy, spaces.Box(-1, 1, (3,), np.float32))
    met = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    np.testing.assert_allclose(engine_of(agent, "fp32")(met), policy.act(agent.normalize(met)), atol=1e-5)

    convolutions = [nn.Conv2d(4, 2, 8, 4), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 3 * 3, 8), nn.ReLU()]
    policy = ActingPolicy(nn.Sequential(*convolutions), nn.Linear(8, 5), "q_values")
    agent = Agent("DQN", "-", "dqn", policy, spaces.Box(0, 255, (4, 16, 16), np.uint8))
    frames = np.random.default_rng(0).integers(0, 256, (20, 4, 16, 16), dtype=np.uint8)
    np.testing.assert_array_equal(engine_of(agent, "fp32")(frames), policy.act(agent.normalize(frames)))


def test_what_no_engine_knows_is_refused() -> None:
    policy = ActingPolicy(nn.Linear(4, 2), nn.Linear(2, 2), "q_values")
    with pytest.raises(ValueError, match="observations are indices"):
        agent_spec(Agent("DQN", "Taxi-v3", "taxi", policy, spaces.Discrete(4)))
    image = spaces.Box(0, 255, (4, 16, 16), np.uint8)
    with pytest.raises(ValueError, match="not divided by 255"):
        agent_spec(Agent("DQN", "Screen", "screen", policy, image, scale_images=False))
