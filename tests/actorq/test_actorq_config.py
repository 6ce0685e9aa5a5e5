"""Every impossible setting is refused with the parameter's name, its value and a way out."""

from __future__ import annotations

import importlib
import pickle
import sys

import pytest

from quarl_lib.actorq import config
from quarl_lib.actorq.config import Config


@pytest.mark.parametrize(
    ("changes", "name", "remedy"),
    [
        ({"task": "dm_control:cartpole:swingdown"}, "task", "swingup"),
        ({"algorithm": "ppo"}, "algorithm", "d4pg"),
        ({"algorithm": "dqn"}, "algorithm", "continuous"),
        ({"precision": "int9"}, "precision", "int8"),
        ({"communication_precision": "fp8"}, "communication_precision", "same"),
        ({"transport": "http"}, "transport", "shared_memory"),
        ({"adder": "mine"}, "adder", "acme"),
        ({"n_actors": 0}, "n_actors", "at least 1"),
        ({"update_period": 0}, "update_period", "at least 1"),
        ({"min_replay": 200_000, "actor_steps": 300_000}, "min_replay", "max_replay=100000"),
        ({"min_replay": 2_000, "actor_steps": 1_500}, "min_replay", "actor_steps=1500"),
        ({"error_buffer": 20.0}, "error_buffer", "at least 32"),
        ({"error_buffer": 32.0, "batch_size": 256}, "error_buffer", "batch_size=256"),
        ({"num_atoms": 1}, "num_atoms", "51"),
        ({"num_atoms": 5000}, "num_atoms", "51"),
        ({"vmin": 100.0}, "vmin", "vmax=100"),
        ({"vmax": float("nan")}, "vmin", "vmax=nan"),
        ({"samples_per_insert": -1.0}, "samples_per_insert", "at least 0"),
        ({"policy_learning_rate": 0.0}, "policy_learning_rate", "above 0"),
        ({"discount": 1.5}, "discount", r"\[0, 1\]"),
        ({"epsilon_min": 0.5}, "epsilon_min", "epsilon_max=0.4"),
        ({"policy_hidden": ()}, "policy_hidden", "at least one layer"),
        ({"critic_hidden": [256]}, "critic_hidden", "tuple"),
        ({"max_seconds": float("inf")}, "max_seconds", "at least 0"),
        ({"seed": -1}, "seed", "at least 0"),
        ({"batch_size": 6.4}, "batch_size", "whole number"),
        ({"backend": "warp"}, "backend", "onnxruntime"),
        ({"device": "gpu"}, "device", "cuda"),
        ({"device": "cuda:99"}, "device", "choose auto or cpu"),
        ({"n_actors": 1_000_000}, "n_actors", "at most 10000"),
        ({"stop_return": float("nan")}, "stop_return", "inf for none"),
        ({"stall_s": 0.0}, "stall_s", "above 0"),
        ({"stop_return": "900"}, "stop_return", "give a number"),
        ({"stall_s": "30"}, "stall_s", "give a number"),
        ({"max_seconds": None}, "max_seconds", "give a number"),
        ({"n_actors": True}, "n_actors", "whole number"),
        ({"task": 3}, "task", "give a text"),
        ({"resume": "false"}, "resume", "True or False"),
        ({"import_modules": "mypkg"}, "import_modules", "give a tuple"),
        ({"import_modules": ("no_such_module",)}, "import_modules", "install its package"),
    ],
)
def test_refused(changes, name, remedy):
    with pytest.raises(ValueError, match=remedy) as raised:
        Config(**changes)
    assert str(raised.value).startswith(f"{name}=")


def test_error_buffer_covers_what_is_in_flight():
    options = Config(samples_per_insert=16.0, batch_size=64, flush_period=32, n_actors=2)
    assert options.replay_error_buffer == 4 * 64 + 16 * 32 * 2
    assert Config(error_buffer=500.0).replay_error_buffer == 500.0
    assert Config(samples_per_insert=0.5, batch_size=1, flush_period=1, n_actors=1).replay_error_buffer >= 2.0


def test_weights_travel_as_the_actors_compute_unless_told():
    assert Config(precision="int8").weights_precision == "int8"
    assert Config(precision="int8", communication_precision="fp32").weights_precision == "fp32"


def test_what_needs_reverb_is_refused_where_it_is_not_installed(monkeypatch):
    monkeypatch.setattr(config, "find_spec", lambda name: None)
    assert Config().local_replay
    for name, value in (("replay", "reverb"), ("adder", "acme"), ("transport", "reverb")):
        with pytest.raises(ValueError, match=rf"{name}='{value}': Reverb is not installed; give .*\[reverb\]"):
            Config(**{name: value})  # type: ignore[arg-type]


def test_any_process_can_unpickle_it():
    options = Config(seed=7)
    assert pickle.loads(pickle.dumps(options)) == options
    assert options.replace(seed=8).seed == 8
    with pytest.raises(ValueError, match="num_atoms"):
        options.replace(num_atoms=0)


def test_parts_start_where_reverb_or_mujoco_is_not_installed(monkeypatch):
    from quarl_lib.actorq.launch import preload

    def missing(task: str) -> None:
        raise ValueError("dm_control cannot be imported")

    monkeypatch.setattr(preload.control, "check_task", missing)
    monkeypatch.setitem(sys.modules, "quarl_lib.actorq.replay.acme_adder", None)
    assert importlib.reload(preload).learner  # an error here ends the server that forks the parts
