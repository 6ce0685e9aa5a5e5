"""Trainings leave no folder in the temporary directory, as Stable-Baselines3's own logger does."""

from __future__ import annotations

import tempfile

import pytest
import stable_baselines3

from quarl_lib.sb3 import SHIPPED_AGENTS, find_agents, fine_tune, rollouts
from quarl_lib.sb3.recipes import recipe_for
from quarl_lib.sb3.train import make_model, make_training_env


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_no_training_of_ours_leaves_a_folder(temporary):
    model = stable_baselines3.A2C("MlpPolicy", "CartPole-v1", seed=0, device="cpu")
    rollouts.gain(model)
    recipe = recipe_for("A2C", "CartPole-v1")
    make_model(recipe, make_training_env(recipe, 0), 0).learn(100)
    (file,) = (file for file in find_agents(SHIPPED_AGENTS) if file.name == "a2c/CartPole-v1")
    fine_tune(file, None, "int8", 200)
    assert list(temporary.glob("SB3-*")) == []
    model.learn(10)  # the user's own, on the other hand, does
    assert len(list(temporary.glob("SB3-*"))) == 1
