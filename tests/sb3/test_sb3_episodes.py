"""Side-by-side evaluation against a plain loop over one environment."""

# mypy: disable-error-code="operator"
from __future__ import annotations

import gymnasium
import numpy as np
import pandas as pd
import pytest
from gymnasium import spaces

from quarl_lib.sb3 import SHIPPED_AGENTS, Agent, evaluate, find_agents, load_agent, rollout

AGENTS = {file.name: file for file in find_agents(SHIPPED_AGENTS)}


def one_by_one(agent: Agent, episodes: int, seed: int) -> pd.DataFrame:
    """Play one episode after another, each in an environment of its own."""
    rows = []
    for episode in range(episodes):
        env = agent.make_env()
        observation, _ = env.reset(seed=seed + episode)
        episode_return, length, ended = 0.0, 0, False
        while not ended:
            action = agent.policy.act(agent.normalize(np.asarray(observation)[None]))[0]
            observation, reward, terminated, truncated, _ = env.step(action)
            episode_return, length, ended = episode_return + reward, length + 1, terminated or truncated
        rows.append((episode, seed + episode, episode_return, length))
    return pd.DataFrame(rows, columns=["episode", "seed", "episode_return", "episode_length"])


@pytest.mark.parametrize("name", AGENTS)
def test_episodes_side_by_side_are_the_episodes_one_by_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = load_agent(AGENTS[name])
    monkeypatch.setattr("quarl_lib.sb3.episodes.MAX_ENVS", 3)
    table = evaluate(agent, agent.policy, episodes=7, seed=100)  # 3 environments, 3 + 2 + 2 episodes
    expected = one_by_one(agent, episodes=7, seed=100)
    pd.testing.assert_frame_equal(table, expected, check_exact=False, rtol=1e-3)
    assert table.episode_return.nunique() > 1 or table.episode_return.max() == 500


def test_results_do_not_change_from_call_to_call() -> None:
    agent = load_agent(AGENTS["ppo/Pendulum-v1"])
    first, again = (evaluate(agent, agent.policy, episodes=4, seed=7) for _ in range(2))
    pd.testing.assert_frame_equal(first, again, check_exact=True)
    other = evaluate(agent, agent.policy, episodes=4, seed=8)
    assert other.episode_return[0] == pytest.approx(first.episode_return[1], rel=1e-3)  # the same start


@pytest.mark.parametrize("name", AGENTS)
def test_an_episode_is_the_same_however_many_are_played_beside_it(name: str) -> None:
    agent = load_agent(AGENTS[name])
    few, more = (evaluate(agent, agent.policy, episodes, seed=40) for episodes in (3, 11))
    pd.testing.assert_frame_equal(few, more.iloc[:3], check_exact=True)


def test_frames_come_in_small_blocks_of_one_size(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(Countdown):
        def reset(self, **options):
            return super().reset(**options)[0][:, None, None], {}

        def step(self, action):
            observation, *rest = super().step(action)
            return observation[:, None, None], *rest

    class FrameReader(Reader):
        def act(self, observation: np.ndarray) -> np.ndarray:
            return super().act(observation)[:, :, 0, 0]

    monkeypatch.setattr(agent, "make_env", Screen)
    reader = FrameReader()
    table = evaluate(agent, reader, episodes=9, seed=1)
    assert table.episode_length.tolist() == list(range(1, 10))
    assert reader.batches == [8, 8] * 9


class Countdown(gymnasium.Env):
    """Ends after as many steps as its seed says; rewards what is done; observes [seed, steps made]."""

    observation_space = spaces.Box(-100, 100, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        self.seed, self.steps = seed, 0
        return np.array([seed, 0], np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.array([self.seed, self.steps], np.float32), float(action[0]), self.steps == self.seed, False, {}


class Reader:
    """Acts by the seed that it observes and remembers the sizes of its batches."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def act(self, observation: np.ndarray) -> np.ndarray:
        self.batches.append(len(observation))
        return observation[:, :1] / 10


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Agent:
    agent = Agent("A2C", "Countdown", "countdown", None, Countdown.observation_space)  # type: ignore[arg-type]
    monkeypatch.setattr(agent, "make_env", Countdown)
    return agent


def test_every_episode_gets_the_actions_meant_for_it(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quarl_lib.sb3.episodes.MAX_ENVS", 2)
    reader = Reader()
    table = evaluate(agent, reader, episodes=5, seed=2)
    assert table.seed.tolist() == [2, 3, 4, 5, 6]
    assert table.episode_length.tolist() == [2, 3, 4, 5, 6]
    np.testing.assert_allclose(table.episode_return, [0.4, 0.9, 1.6, 2.5, 3.6], rtol=1e-6)
    assert set(reader.batches) == {2}  # one size from first to last, so that rounding does not depend on the others


def test_progress_counts_episodes(agent: Agent) -> None:
    seen: list[tuple[int, int, str]] = []
    evaluate(agent, Reader(), episodes=3, seed=1, progress=lambda *call: seen.append(call))
    assert seen == [(1, 3, "countdown episodes"), (2, 3, "countdown episodes"), (3, 3, "countdown episodes")]


def test_rollout_meets_one_episode_after_another(agent: Agent) -> None:
    met = rollout(agent, Reader(), steps=7, seed=2)
    assert met.tolist() == [[2, 0], [2, 1], [3, 0], [3, 1], [3, 2], [4, 0], [4, 1]]
    assert met.dtype == np.float32


def test_rollout_is_normalised() -> None:
    agent = load_agent(AGENTS["a2c/MountainCarContinuous-v0"])
    assert agent.normalization is not None
    start, _ = agent.make_env().reset(seed=5)
    met = rollout(agent, agent.policy, steps=3, seed=5)
    expected = (start - agent.normalization.mean) / agent.normalization.std
    np.testing.assert_allclose(met[0], expected, rtol=1e-5)


def test_nothing_to_play_is_refused(agent: Agent) -> None:
    with pytest.raises(ValueError, match="episodes=0"):
        evaluate(agent, Reader(), episodes=0, seed=0)
    with pytest.raises(ValueError, match="steps=-1"):
        rollout(agent, Reader(), steps=-1, seed=0)
