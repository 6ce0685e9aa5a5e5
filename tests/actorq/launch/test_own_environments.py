"""Environments of one's own in real programs: the parts run in processes that never saw the caller's registry."""

from __future__ import annotations

import math

import gymnasium
import numpy as np
import pytest

from quarl_lib.actorq.config import Config
from quarl_lib.actorq.launch import local
from quarl_lib.envs import control

MODULE = """\
import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

class Mine(CartPoleEnv):
    pass

gymnasium.register("ActorQ{name}-v0", Mine, max_episode_steps=9)
"""
CONFIG = dict(algorithm="dqn", actor_steps=300, min_replay=50, samples_per_insert=1.0, batch_size=8, n_actors=2,
              policy_hidden=(8,), eval_period=200, eval_episodes=1, replay="local")  # fmt: skip


@pytest.fixture
def own(tmp_path, monkeypatch):
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    for name in ("Named", "Listed", "Registered"):
        (folder / f"actorq_{name.lower()}.py").write_text(MODULE.format(name=name))
    return folder


def check(config: Config, directory) -> None:
    tables = local.run(config, directory, metered=False)
    assert tables["deaths"].empty
    steps = np.array(tables["episodes"].episode_steps)
    assert len(steps) > 20
    assert steps.max() == 9  # of the environment's own limit
    assert not math.isnan(tables["evaluations"].episode_return.max())


@pytest.mark.slow
def test_module_in_the_tasks_name_and_module_in_the_list(tmp_path, own):
    check(Config(task="gym:actorq_named:ActorQNamed-v0", **CONFIG), tmp_path / "named")  # type: ignore[arg-type]
    options = {**CONFIG, "import_modules": ("actorq_listed",)}
    check(Config(task="gym:ActorQListed-v0", **options), tmp_path / "listed")  # type: ignore[arg-type]


@pytest.mark.slow
def test_what_only_the_callers_process_registered(tmp_path, own):
    import actorq_registered

    gymnasium.register("Elsewhere-v0", actorq_registered.Mine, max_episode_steps=9)
    check(Config(task="gym:Elsewhere-v0", **CONFIG), tmp_path / "class")  # type: ignore[arg-type]

    gymnasium.register("Lambda-v0", lambda: control.gymnasium.make("CartPole-v1"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"registered in this process alone.*import_modules"):
        local.run(Config(task="gym:Lambda-v0", **CONFIG), tmp_path / "lambda")  # type: ignore[arg-type]
    assert not (tmp_path / "lambda").exists()  # refused before anything starts
