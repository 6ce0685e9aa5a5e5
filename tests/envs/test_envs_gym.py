"""Environments under old and new names, missing packages, and wrappers against independent implementations."""

# mypy: disable-error-code="assignment, attr-defined"
from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from quarl_lib.envs import gym as environments

MADE_TODAY = {
    "Pendulum-v0": "Pendulum-v1",
    "LunarLander-v2": "LunarLander-v3",
    "LunarLanderContinuous-v2": "LunarLanderContinuous-v3",
    "BipedalWalker-v2": "BipedalWalker-v3",
    "HalfCheetah-v3": "HalfCheetah-v5",
    "Walker2d-v3": "Walker2d-v5",
    "CartPole-v1": "CartPole-v1",
    "HalfCheetahBulletEnv-v0": "HalfCheetahBulletEnv-v0",
}


@pytest.mark.parametrize(("old", "now"), MADE_TODAY.items())
def test_old_names_are_mapped(old: str, now: str) -> None:
    assert environments.current_name(old) == now


def test_every_target_of_the_map_is_registered_and_every_source_is_obsolete() -> None:
    registered = {spec.id: spec for spec in gymnasium.registry.values()}
    for old, now in environments.RENAMED.items():
        assert now in registered, now
        assert old not in registered or registered[old].entry_point != registered[now].entry_point


def test_an_old_name_makes_todays_environment() -> None:
    env = environments.make("Pendulum-v0")
    assert env.spec is not None
    assert env.spec.id == "Pendulum-v1"
    assert env.spec.max_episode_steps == 200


@pytest.mark.parametrize(
    ("env_id", "package", "extra"),
    [
        ("Walker2DBulletEnv-v0", "pybullet_envs_gymnasium", "bullet"),
        ("PongNoFrameskip-v4", "ale_py", "atari"),
        ("ALE/Pong-v5", "cv2", "atari"),
        ("LunarLander-v2", "Box2D", "box2d"),
        ("HalfCheetah-v3", "mujoco", "mujoco"),
    ],
)
def test_a_missing_package_is_an_error_that_names_the_extra(
    env_id: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_import = environments.importlib.import_module

    def import_all_but(name: str) -> object:
        if name == package:
            raise ImportError(f"No module named {name}")
        return real_import(name)

    monkeypatch.setattr(environments.importlib, "import_module", import_all_but)
    with pytest.raises(environments.EnvironmentMissing, match=rf"needs {package}: pip install 'quarl-lib\[{extra}\]'"):
        environments.make(env_id)


def test_an_unknown_environment_is_an_error_that_names_it() -> None:
    with pytest.raises(environments.EnvironmentMissing, match="NoSuchTask-v0"):
        environments.make("NoSuchTask-v0")


class _Counter(gymnasium.Env):
    """Observes how many steps were made."""

    observation_space = spaces.Box(0, 10, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, **kwargs):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(1, self.steps, np.float32), 1.0, False, False, {}


def test_time_feature_falls_from_one_to_zero_over_the_time_limit() -> None:
    env = environments.TimeFeature(_Counter())
    env._limit = 4
    assert env.reset()[0].tolist() == [0.0, 1.0]
    assert [env.step(0)[0].tolist() for _ in range(4)] == [[1.0, 0.75], [2.0, 0.5], [3.0, 0.25], [4.0, 0.0]]
    assert env.observation_space.shape == (2,)
    assert environments.make("Pendulum-v1", time_feature=True)._limit == 200


class _Screen(gymnasium.Env):
    """A game of two lives; its frame shows the number of the step."""

    observation_space = spaces.Box(0, 255, (84, 84, 1), np.uint8)
    action_space = spaces.Discrete(2)
    was_real_done = True

    def __init__(self) -> None:
        self.steps = self.resets = 0

    def _frame(self) -> np.ndarray:
        return np.full((84, 84, 1), self.steps, np.uint8)

    def reset(self, **kwargs):
        self.resets += 1
        return self._frame(), {}

    def step(self, action):
        self.steps += 1
        lost = self.steps % 3 == 0
        self.was_real_done = self.steps == 6
        return self._frame(), 2.0, lost, False, {}


def test_frames_are_stacked_oldest_first_and_cleared_with_a_new_life() -> None:
    env = environments.WholeGame(environments.stack_frames(_Screen(), 4))
    assert env.reset()[0][:, 0, 0].tolist() == [0, 0, 0, 0]
    seen = [env.step(0) for _ in range(6)]
    assert seen[1][0][:, 5, 5].tolist() == [0, 0, 1, 2]
    assert seen[2][0][:, 5, 5].tolist() == [0, 0, 0, 3]  # a life was lost: the old frames are gone
    assert [bool(step[2]) for step in seen] == [False] * 5 + [True]  # the episode is the whole game
    assert env.unwrapped.resets == 2


def test_atari_observations_are_those_of_stable_baselines3() -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack, VecTransposeImage

    env = environments.make("PongNoFrameskip-v4")
    theirs = VecTransposeImage(VecFrameStack(make_atari_env("PongNoFrameskip-v4", 1, seed=3), 4))
    observation, _ = env.reset(seed=3)
    expected = theirs.reset()
    for action in (2, 2, 3, 0, 5, 4, 1, 1):
        np.testing.assert_array_equal(observation, expected[0])
        observation = env.step(action)[0]
        expected = theirs.step(np.array([action]))[0]
    assert observation.shape == (4, 84, 84)
    assert observation.max() > 0


@pytest.mark.parametrize(
    ("env_id", "package"),
    [
        ("LunarLander-v3", "Box2D"),
        ("HalfCheetah-v5", "mujoco"),
        ("HalfCheetahBulletEnv-v0", "pybullet_envs_gymnasium"),
    ],
)
def test_the_same_seed_gives_the_same_episode_after_another_one(env_id: str, package: str) -> None:
    """`evaluate` uses an environment for one episode after another."""
    pytest.importorskip(package)

    def play(env: gymnasium.Env, seed: int, steps: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        space = env.action_space
        met = [env.reset(seed=seed)[0]]
        for _ in range(steps):
            action = rng.integers(space.n) if isinstance(space, spaces.Discrete) else rng.uniform(space.low, space.high)
            met.append(env.step(action)[0])
        return np.array(met)

    used, fresh = environments.make(env_id), environments.make(env_id)
    play(used, seed=1, steps=60)
    np.testing.assert_array_equal(play(used, seed=2, steps=60), play(fresh, seed=2, steps=60))


def test_making_mujoco_environments_leaves_no_log_behind(tmp_path, monkeypatch) -> None:
    pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)
    environments.make("HalfCheetah-v5").close()
    assert list(tmp_path.iterdir()) == []
