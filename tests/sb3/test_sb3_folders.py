"""Folders of agents: what is found, what loads, and the reason where something does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from quarl_lib.envs import gym as environments
from quarl_lib.sb3 import SHIPPED_AGENTS, Agent, AgentError, AgentFile, find_agents, load_agent

SHARED = Path(__file__).parents[3] / "shared" / "agents"


@pytest.mark.skipif(not SHARED.exists(), reason="../shared/agents is not there")
@pytest.mark.parametrize("folder", ["sb3", "paper"])
def test_every_shared_agent_loads_or_gives_a_reason(folder: str) -> None:
    files = find_agents(SHARED / folder)
    assert len(files) == {"sb3": 21, "paper": 26}[folder]
    reasons = {}
    for file in files:
        try:
            load_agent(file)
        except AgentError as error:
            reasons[file.env_id] = str(error)
    assert all("Bullet" in env_id and "quarl-lib[bullet]" in reason for env_id, reason in reasons.items()), reasons


def write_arrays(folder: Path, kind: str = "tanh", **changes: object) -> AgentFile:
    """Store a 3 -> 2 -> 1 actor with a layer norm, weights chosen for a sum by hand."""
    folder.mkdir(parents=True, exist_ok=True)
    description = {"kind": kind, "acts": ["relu", "tanh" if kind == "tanh" else "id"], "time_feature": False, **changes}
    (folder / "actor.json").write_text(json.dumps(description))
    arrays = {
        **{"W0": [[1, 0, 0], [0, 1, 0]], "b0": [0, 1], "ln_gamma0": [1, 2], "ln_beta0": [0, 1]},
        **{"W1": [[0.5, 0.25]], "b1": [0.1], "log_std": [np.log(0.5)]},
    }
    statistics = {"norm_mean": [1.0, 0, 0], "norm_std": [2.0, 1, 1], "norm_clip": 5.0}
    np.savez(
        folder / "actor.npz",
        **{name: np.array(value, np.float32) for name, value in arrays.items()},
        **{name: np.array(value) for name, value in statistics.items()},
    )
    return AgentFile("DDPG", "Pendulum-v0", folder, "arrays")


def test_plain_arrays_by_hand(tmp_path: Path) -> None:
    file = write_arrays(tmp_path / "ddpg" / "Pendulum-v0")
    assert find_agents(tmp_path) == [file]
    agent = load_agent(file)
    assert agent.env_id == "Pendulum-v1"
    observation = np.array([[100.0, 3.0, 9.0]])
    # Normalised: (100 - 1) / 2 clips to 5; 3; 5. Layer: 5 and 3 + 1. Layer norm of (5, 4): (1, -1) -> 1, -2 + 1 = -1.
    # ReLU: 1, 0. Output: tanh(0.5 + 0.1), which the bounds of Pendulum double.
    np.testing.assert_allclose(agent.policy.act(agent.normalize(observation)), [[2 * np.tanh(0.6)]], rtol=1e-6)


def test_plain_arrays_of_a_gaussian(tmp_path: Path) -> None:
    agent = load_agent(write_arrays(tmp_path, kind="gauss"))
    met = torch.from_numpy(agent.normalize(np.array([[100.0, 3.0, 9.0]])))
    assert agent.policy(met).item() == pytest.approx(0.6, rel=1e-6)
    assert agent.policy.std(met).item() == pytest.approx(0.5)


def test_arrays_that_do_not_fit_are_a_reason(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="kind 'poisson'"):
        load_agent(write_arrays(tmp_path, kind="poisson"))
    with pytest.raises(AgentError, match=r"acts is .*softsign"):
        load_agent(write_arrays(tmp_path, acts=["softsign", "tanh"]))
    with pytest.raises(AgentError, match=r"mean has shape \(3,\), observations have \(4,\)"):
        load_agent(write_arrays(tmp_path, time_feature=True))
    with pytest.raises(AgentError, match="a categorical policy does not act in Pendulum-v1"):
        load_agent(write_arrays(tmp_path, kind="cat"))
    file = write_arrays(tmp_path)
    (tmp_path / "actor.npz").write_bytes((tmp_path / "actor.npz").read_bytes()[:200])
    with pytest.raises(AgentError, match="cannot be read"):
        load_agent(file)


def shipped_copy(tmp_path: Path, config: str = "", env_id: str = "MountainCarContinuous-v0") -> AgentFile:
    source = SHIPPED_AGENTS / "a2c" / "MountainCarContinuous-v0" / "MountainCarContinuous-v0.zip"
    folder = tmp_path / "a2c" / env_id
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{env_id}.zip"
    path.write_bytes(source.read_bytes())
    (folder / "config.yml").write_text(config)
    return AgentFile("A2C", env_id, path, "sb3")


@pytest.mark.parametrize(
    ("config", "warned"),
    [
        ("normalize: true", True),
        ("normalize: \"{'norm_obs': True, 'norm_reward': False}\"", True),
        ("normalize: dict(norm_obs=False, norm_reward=True)", False),
        ("normalize: false", False),
        ("", False),
    ],
)
def test_missing_statistics_are_warned_of(config: str, warned: bool, tmp_path: Path) -> None:
    agent = load_agent(shipped_copy(tmp_path, config))
    assert ("vecnormalize.pkl is missing" in agent.warning) == warned


def test_what_cannot_be_loaded_is_a_reason(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match=r"a Gaussian policy .* does not act where actions are Discrete\(2\)"):
        load_agent(shipped_copy(tmp_path, env_id="CartPole-v1"))
    with pytest.raises(AgentError, match="NoSuchTask-v0"):
        load_agent(shipped_copy(tmp_path, env_id="NoSuchTask-v0"))
    with pytest.raises(AgentError, match=r"trained behind my\.Wrapper"):
        load_agent(shipped_copy(tmp_path, "env_wrapper: my.Wrapper"))
    with pytest.raises(AgentError, match="4 stacked observations"):
        load_agent(shipped_copy(tmp_path, "frame_stack: 4"))
    file = shipped_copy(tmp_path)
    with pytest.raises(AgentError, match="algorithm CROSSQ is none of"):
        load_agent(AgentFile("CROSSQ", file.env_id, file.path, "sb3"))


def test_agents_are_found_by_algorithm_and_by_old_or_new_name(tmp_path: Path) -> None:
    for place in ("ppo2/Pendulum-v0", "a2c/CartPole-v1_1", "dqn/LunarLander-v2"):
        folder = tmp_path / place
        folder.mkdir(parents=True)
        (folder / f"{folder.name.removesuffix('_1')}.zip").touch()
    (tmp_path / "a2c" / "CartPole-v1_1" / "best_model.zip").touch()
    (tmp_path / "dqn" / "LunarLander-v2" / "LunarLander-v2.zip").rename(tmp_path / "dqn" / "LunarLander-v2" / "x.zip")

    def names(**wanted: Any) -> list[str]:
        return [file.name for file in find_agents(tmp_path, **wanted)]

    assert names() == ["a2c/CartPole-v1", "dqn/LunarLander-v2/x", "ppo/Pendulum-v0"]
    assert names(algorithms=["PPO", "dqn"]) == ["dqn/LunarLander-v2/x", "ppo/Pendulum-v0"]
    assert names(env_ids=["Pendulum-v1"]) == names(env_ids=["Pendulum-v0"]) == ["ppo/Pendulum-v0"]
    assert names(algorithms=["a2c"], env_ids=["Pendulum-v1"]) == []
    with pytest.raises(ValueError, match=r"agents_dir='.*nowhere' is no folder"):
        find_agents(tmp_path / "nowhere")
    assert [file.name for file in find_agents(tmp_path / "a2c")] == ["a2c/CartPole-v1"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no"):
        find_agents(tmp_path / "empty")


def test_shipped_agents_are_all_there_small_and_good() -> None:
    from quarl_lib.sb3.recipes import SHIPPED

    files = find_agents(SHIPPED_AGENTS)
    assert {(file.algorithm, file.env_id) for file in files} == set(SHIPPED)
    assert sum(path.stat().st_size for path in SHIPPED_AGENTS.rglob("*") if path.is_file()) < 2_000_000
    floor = {"CartPole-v1": 475, "MountainCarContinuous-v0": 90, "Pendulum-v1": -200}
    for file in files:
        record = json.loads((file.path.parent / "recipe.json").read_text())
        assert record["mean_return"] >= floor[file.env_id], file.name
        assert load_agent(file).warning == ""


def test_discrete_observations_become_one_hot() -> None:
    agent = Agent("DQN", "Taxi-v3", "taxi", nn.Identity(), spaces.Discrete(4))  # type: ignore[arg-type]
    assert agent.normalize(np.array([2, 0])).tolist() == [[0, 0, 1, 0], [1, 0, 0, 0]]


def test_images_are_divided_by_255_where_the_agent_was_trained_so() -> None:
    image = spaces.Box(0, 255, (1, 2, 2), np.uint8)
    pixels = np.array([[[[0, 51], [102, 255]]]], np.uint8)
    agent = Agent("DQN", "Screen", "screen", nn.Identity(), image)  # type: ignore[arg-type]
    np.testing.assert_allclose(agent.normalize(pixels).ravel(), [0, 0.2, 0.4, 1.0], rtol=1e-6)
    agent.scale_images = False
    assert agent.normalize(pixels).ravel().tolist() == [0, 51, 102, 255]


def test_a_missing_package_is_a_reason_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*args: object, **kwargs: object) -> None:
        raise environments.EnvironmentMissing("X needs y: pip install 'quarl-lib[z]'")

    monkeypatch.setattr(environments, "make", missing)
    with pytest.raises(AgentError, match=r"quarl-lib\[z\]"):
        load_agent(find_agents(SHIPPED_AGENTS)[0])
