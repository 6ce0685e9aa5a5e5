"""Make Gymnasium environments by today's or yesterday's name: classic control, Box2D, MuJoCo, Atari, Bullet."""

from __future__ import annotations

import importlib
import math
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation, ReshapeObservation

ATARI_FRAMES = 4

# Same task, same observations and actions, another version number; reward constants may differ a little.
RENAMED = {
    "Pendulum-v0": "Pendulum-v1",
    "LunarLander-v2": "LunarLander-v3",
    "LunarLanderContinuous-v2": "LunarLanderContinuous-v3",
    "BipedalWalker-v2": "BipedalWalker-v3",
    "BipedalWalkerHardcore-v2": "BipedalWalkerHardcore-v3",
    **{
        f"{name}-v{version}": f"{name}-v5"
        for name in ("HalfCheetah", "Walker2d", "Hopper", "Swimmer", "Reacher", "InvertedPendulum", "Ant", "Humanoid")
        for version in (2, 3)
    },
}

# What Gymnasium names no reward threshold for.
SOLVED = {"Pendulum-v1": -200.0}

_BOX2D = re.compile(r"^(LunarLander|BipedalWalker|CarRacing)")
_MUJOCO = re.compile(
    r"^(HalfCheetah|Walker2d|Hopper|Swimmer|Reacher|Pusher|Ant|Humanoid|HumanoidStandup|Inverted(Double)?Pendulum)-v\d"
)
_BULLET = re.compile(r"BulletEnv-v\d+$")
_ATARI = re.compile(r"(NoFrameskip-v\d+$)|(^ALE/)")


class EnvironmentMissing(RuntimeError):
    """The environment, or the package that holds it, is not installed; the message says what to install."""


def current_name(env_id: str) -> str:
    """Return the name under which an environment is registered today, e.g. LunarLander-v2 -> LunarLander-v3."""
    return RENAMED.get(env_id, env_id)


def reward_threshold(env_id: str) -> float:
    """Return the mean return from which an environment counts as solved, -infinity where nobody says."""
    if env_id in SOLVED:
        return SOLVED[env_id]
    known = gymnasium.registry.get(current_name(env_id))
    return -math.inf if known is None or known.reward_threshold is None else known.reward_threshold


def import_modules(names: Iterable[str]) -> None:
    """Import modules that register environments of the user's own; call it in every process that makes one.

    Raises:
        EnvironmentMissing: a module cannot be imported.
    """
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # code of the user's own
            raise EnvironmentMissing(
                f"import_modules: {name} cannot be imported: {type(error).__name__}: {error}"
            ) from error


def is_atari(env_id: str) -> bool:
    """Say whether a name means an Atari game (`BreakoutNoFrameskip-v4`, `ALE/Breakout-v5`)."""
    return bool(_ATARI.search(env_id))


def make(env_id: str, time_feature: bool = False, **kwargs: Any) -> gymnasium.Env:
    """Make an environment for evaluation, with its time limit; Atari games as agents see them, played to the end.

    Raises:
        EnvironmentMissing: names the extra to install.
    """
    env_id = current_name(env_id)
    _import_package_of(env_id)
    try:
        with _known_warnings_silenced(env_id):
            env = make_atari(env_id, **kwargs) if is_atari(env_id) else gymnasium.make(env_id, **kwargs)
    except (gymnasium.error.Error, ImportError) as error:
        raise EnvironmentMissing(f"{env_id}: {error}") from error
    if _BULLET.search(env_id):
        env.reset(seed=0)  # the first episode after building the scene differs in the last digits from all later ones
    return TimeFeature(env) if time_feature else env


def make_atari(env_id: str, **kwargs: Any) -> gymnasium.Env:
    """Make an Atari game whose observations are the last four grey 84 x 84 frames, uint8 [4, 84, 84].

    The frames are those of Stable-Baselines3's `AtariWrapper` (Mnih et al., 2015); unlike there, an episode is a whole
    game and rewards are not clipped.
    """
    from stable_baselines3.common.atari_wrappers import AtariWrapper

    if env_id.startswith("ALE/"):  # AtariWrapper skips frames itself and expects no sticky actions
        kwargs = {"frameskip": 1, "repeat_action_probability": 0.0, **kwargs}
    env = AtariWrapper(gymnasium.make(env_id, **kwargs), clip_reward=False)
    return WholeGame(stack_frames(env, ATARI_FRAMES))


def stack_frames(env: gymnasium.Env, num_frames: int) -> gymnasium.Env:
    """Stack the last frames [height, width, 1], oldest first, as [frames, height, width]; zeros before the first."""
    frame = env.observation_space.shape
    assert frame is not None
    return FrameStackObservation(ReshapeObservation(env, frame[:2]), num_frames, padding_type="zero")


class TimeFeature(gymnasium.Wrapper):
    """Append the remaining share of the episode, from 1 to 0, to the observation (sb3-contrib's TimeFeatureWrapper)."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        box = env.observation_space
        assert isinstance(box, spaces.Box)
        low, high = (np.append(bound, share).astype(box.dtype) for bound, share in ((box.low, 0.0), (box.high, 1.0)))
        self.observation_space = spaces.Box(low, high, dtype=low.dtype.type)
        self._limit = (env.spec.max_episode_steps if env.spec else None) or 1000
        self._elapsed = 0

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        observation, info = self.env.reset(**kwargs)
        self._elapsed = 0
        return np.append(observation, 1.0), info

    def step(self, action: Any) -> tuple[np.ndarray, SupportsFloat, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._elapsed += 1
        return np.append(observation, 1.0 - self._elapsed / self._limit), reward, terminated, truncated, info


class WholeGame(gymnasium.Wrapper):
    """Go on after a lost life as in training (reset, press FIRE), so that an episode is a whole game."""

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated and not self.env.get_wrapper_attr("was_real_done"):
            observation, info = self.env.reset()
            terminated = False
        return observation, reward, terminated, truncated, info


@contextmanager
def _known_warnings_silenced(env_id: str) -> Iterator[None]:
    """Keep MuJoCo from writing MUJOCO_LOG.TXT about an attribute in gymnasium's own models while they are built."""
    if not _MUJOCO.match(env_id):
        yield
        return
    import mujoco

    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def _import_package_of(env_id: str) -> None:
    if _BULLET.search(env_id):
        _require("pybullet_envs_gymnasium", "bullet", env_id)
    elif _ATARI.search(env_id):
        _require("cv2", "atari", env_id)
        gymnasium.register_envs(_require("ale_py", "atari", env_id))
    elif _BOX2D.match(env_id):
        _require("Box2D", "box2d", env_id)
    elif _MUJOCO.match(env_id):
        os.environ.setdefault("MUJOCO_GL", "egl")  # nothing is drawn; without a display the default warns
        _require("mujoco", "mujoco", env_id)
        _require("imageio", "mujoco", env_id)  # gymnasium's MuJoCo environments import it even if nothing is drawn


def _require(package: str, extra: str, env_id: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise EnvironmentMissing(f"{env_id} needs {package}: pip install 'quarl-lib[{extra}]'") from error
