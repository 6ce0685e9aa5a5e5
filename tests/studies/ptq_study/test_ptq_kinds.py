"""Agents of every kind of observation and action go through both studies that load agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import matplotlib.pyplot as plt
import numpy as np
import pytest
from toy_agents import make_model

from quarl_lib.studies import action_distributions
from quarl_lib.studies.action_distributions import figures as action_figures
from quarl_lib.studies.action_distributions import sentences as action_sentences
from quarl_lib.studies.ptq_study import cells, study

AGENTS = {
    "Toy_dict_multi-discrete-v0": ("PPO", "categorical"),
    "Toy_vector_multi-binary-v0": ("A2C", "bernoulli"),
    "Toy_dict_discrete-v0": ("MaskablePPO", "categorical"),
    "Toy_vector_unbounded-v0": ("ARS", "equal-variance gaussian, std 0.1"),
    "Toy_dict-mixed_discrete-v0": ("QRDQN", "softmax(Q)"),
}


@pytest.fixture(scope="module")
def agents_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("kinds")
    for env_id, (algorithm, _) in AGENTS.items():
        trained_on = env_id.replace("unbounded", "box")
        env = gymnasium.make(trained_on, disable_env_checker=True)
        options: dict[str, Any] = {"net_arch": [8]} | ({"squash_output": False} if algorithm == "ARS" else {})
        model = make_model(algorithm, env, options)
        folder = root / algorithm.lower() / env_id
        folder.mkdir(parents=True)
        model.save(folder / f"{env_id}.zip")
    return str(root)


def test_each_has_returns_and_divergences(agents_dir: str) -> None:
    config = study.Config(
        agents_dir=agents_dir, import_modules=["toy_agents"], precisions=["fp32", "int8"], quantizers=["paper"],
        engines=["simulated", "native"], disturbances=[], episodes=2, calibration_steps=20, kl_states=20, workers=1,
    )  # fmt: skip
    table = study.run(config)
    summary = study.summarize(table)
    assert summary.error.tolist() == [""] * 10
    assert (summary.mean_return == 4).all()  # a toy's episode pays 1 in each of four steps
    for env_id, (_, kind) in AGENTS.items():
        int8 = summary[(summary.env_id == env_id) & (summary.precision == "int8")].iloc[0]
        assert int8.kl_kind == kind
        assert np.isfinite(int8.kl_divergence)
        assert (summary[(summary.env_id == env_id) & (summary.precision == "fp32")].kl_divergence == 0).all()
    refused = table[(table.engine == "native") & (table.error != "")].groupby("env_id").error.first()
    assert set(refused.index) == set(AGENTS) - {"Toy_vector_unbounded-v0"}
    assert "actions are masked" in refused["Toy_dict_discrete-v0"]
    assert "several indices" in refused["Toy_dict_multi-discrete-v0"]
    assert "images among other observations" in refused["Toy_dict-mixed_discrete-v0"]


def test_each_has_actions_compared(agents_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = action_distributions.Config(
        agents_dir=agents_dir, import_modules=["toy_agents"], precisions=["int8"], steps=30, calibration_steps=20,
        workers=1,
    )  # fmt: skip
    table = action_distributions.run(config)
    summary = action_distributions.summarize(table)
    assert (summary.error == "").all()
    assert summary.groupby("env_id").dimension.nunique().to_dict() == {
        "Toy_dict_multi-discrete-v0": 2, "Toy_vector_multi-binary-v0": 3, "Toy_dict_discrete-v0": 1,
        "Toy_vector_unbounded-v0": 2, "Toy_dict-mixed_discrete-v0": 1,
    }  # fmt: skip
    unbounded = summary[summary.env_id == "Toy_vector_unbounded-v0"]
    assert np.isfinite(unbounded.histogram_distance).all()
    assert (unbounded.share_at_bounds == 0).all()
    for draw in (action_figures.discrete_panels, action_figures.continuous_panels, action_figures.difference_panels):
        plt.close(draw(table))
    assert action_sentences.key_figure(summary)


def test_random_actions_keep_to_the_mask(agents_dir: str) -> None:
    from quarl_lib.sb3 import find_agents, load_agent

    (file,) = find_agents(Path(agents_dir) / "maskableppo")
    agent = load_agent(file)
    mask = np.tile([[0, 1, 0, 1, 0, 0, 0, 0, 0]], (100, 1))
    drawn = cells._Random(agent, 0).act(mask)
    assert sorted(set(drawn.tolist())) == [1, 3]
