"""Environments of one's own: a module by name, or a registration that another process can or cannot repeat."""

from __future__ import annotations

import math

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from quarl_lib.envs import control, registry

MODULE = """\
import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

class Mine(CartPoleEnv):
    pass

gymnasium.register("MineOf{name}-v0", Mine, max_episode_steps=7)
"""


class NanReward(CartPoleEnv):
    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, math.nan, *rest


class TwoCounts(CartPoleEnv):
    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.action_space = gymnasium.spaces.MultiDiscrete([2, 3])


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_by_name.py").write_text(MODULE.format(name="Name"))
    (tmp_path / "own_by_list.py").write_text(MODULE.format(name="List"))


def test_module_in_the_tasks_name_is_imported(own):
    environment = control.make("gym:own_by_name:MineOfName-v0", seed=0)
    steps, timestep = 0, environment.reset()
    while not timestep.last():
        timestep, steps = environment.step(steps % 2), steps + 1
    assert steps == 7
    assert control.is_discrete("gym:own_by_name:MineOfName-v0")
    assert registry.own_registration("gym:own_by_name:MineOfName-v0") is None  # another process imports it as well


def test_listed_modules_are_imported(own):
    registry.import_modules(["own_by_list"])
    control.check_task("gym:MineOfList-v0")
    assert registry.own_registration("gym:MineOfList-v0", ["own_by_list"]) is None


def test_what_is_missing_is_named_with_its_remedy():
    with pytest.raises(ValueError, match=r"'no_such_module'.*install its package"):
        control.check_task("gym:no_such_module:X-v0")
    with pytest.raises(ValueError, match=r"import_modules=.*no_such_module"):
        registry.import_modules(["no_such_module"])
    with pytest.raises(ValueError, match=r"does not know 'X-v0'.*gym:<module>:<id>"):
        control.check_task("gym:X-v0")


def test_registration_of_this_process_is_handed_on_or_refused_with_advice():
    import pickle

    gymnasium.register("NanReward-v0", NanReward, max_episode_steps=5)  # type: ignore[arg-type]
    spec = registry.own_registration("gym:NanReward-v0")
    handed_on = pickle.loads(pickle.dumps(spec))
    del gymnasium.registry["NanReward-v0"]
    registry.prepare([], handed_on)
    assert control.make("gym:NanReward-v0", 0).reset().first()

    class Local(CartPoleEnv):
        pass

    gymnasium.register("Local-v0", Local)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"in this process alone.*gym:<module>:Local-v0"):
        registry.own_registration("gym:Local-v0")
    assert registry.own_registration("gym:CartPole-v1") is None
    assert registry.own_registration("dm_control:cartpole:balance") is None


def test_reward_that_is_no_number_blames_the_environment():
    gymnasium.register("NanReward-v1", NanReward)  # type: ignore[arg-type]
    environment = control.make("gym:NanReward-v1", 0)
    environment.reset()
    with pytest.raises(ValueError, match=r"gym:NanReward-v1.*its reward is nan; mend the environment"):
        environment.step(0)


def test_several_counts_at_once_are_called_that():
    gymnasium.register("TwoCounts-v0", TwoCounts)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"actions are MultiDiscrete.*give a task with Discrete"):
        control.is_discrete("gym:TwoCounts-v0")


def test_atari_is_registered_when_it_is_named():
    pytest.importorskip("ale_py")
    control.check_task("gym:ALE/Pong-v5")
    assert control.is_discrete("gym:ALE/Pong-v5")
    assert control.make("gym:ALE/Pong-v5", 0).reset().observation.dtype == np.float32
