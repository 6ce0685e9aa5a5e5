"""The PTQ study on the agents in the package: real policies, few episodes."""

# mypy: disable-error-code="arg-type, operator"
from __future__ import annotations

import dataclasses
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import PAPER_TABLE2
from matplotlib import pyplot as plt
from torch import nn

from quarl_lib.sb3 import SHIPPED_AGENTS, ActingPolicy, load_agent
from quarl_lib.sb3.policy import ConstantSpread, StateDependentSpread
from quarl_lib.studies.common import observed
from quarl_lib.studies.ptq_study import figures, paper_table2, sentences, study
from quarl_lib.studies.ptq_study.cells import compare

TINY: dict[str, Any] = {"episodes": 3, "calibration_steps": 200, "kl_states": 100, "disturbances": [], "workers": 1}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    config = study.Config(
        env_ids=["CartPole-v1", "Pendulum-v1"], algorithms=["PPO", "DQN", "DDPG"], quantizers=["paper", "mse_clip"],
        precisions=["fp32", "fp16", "int8", "int2"], **TINY,
    )  # fmt: skip
    return study.run(config)


@pytest.fixture(scope="module")
def summary(table: pd.DataFrame) -> pd.DataFrame:
    return study.summarize(table)


def test_summary_has_its_columns_and_a_row_for_every_cell(summary):
    assert tuple(summary.columns) == study.SUMMARY_COLUMNS
    assert set(summary.agent) == {"ppo/CartPole-v1", "dqn/CartPole-v1", "ppo/Pendulum-v1", "ddpg/Pendulum-v1"}
    cells = {("fp32", "none"), ("fp16", "cast")} | {(p, q) for p in ("int8", "int2") for q in ("paper", "mse_clip")}
    for _, rows in summary.groupby("agent"):
        assert set(zip(rows.precision, rows.quantizer, strict=True)) == cells
        assert len(rows) == len(cells)
    assert (summary.episodes == 3).all()
    assert (summary.error == "").all()


def test_every_precision_plays_the_same_seeds(table):
    for _, rows in table.groupby(["agent", "precision", "quantizer"]):
        assert sorted(rows.seed) == [0, 1, 2]


def test_fp32_is_its_own_reference_exactly(summary):
    fp32 = summary[summary.precision == "fp32"]
    for column in ("kl_divergence", "paired_difference", "paired_ci_low", "paired_ci_high", "relative_error"):
        assert (fp32[column] == 0).all()
    assert not fp32.differs.any()


def test_divergence_is_never_nan_named_by_kind_and_grows_as_bits_go(summary):
    assert not summary.kl_divergence.isna().any()
    kinds = summary.groupby("agent").kl_kind.unique().str[0].to_dict()
    assert kinds == {
        "ppo/CartPole-v1": "categorical",
        "dqn/CartPole-v1": "softmax(Q)",
        "ppo/Pendulum-v1": "gaussian",
        "ddpg/Pendulum-v1": "equal-variance gaussian, std 0.1",
    }
    paper = summary[summary.quantizer.isin(["paper", "cast"])].pivot_table("kl_divergence", "agent", "precision")
    for agent in ("ppo/CartPole-v1", "ppo/Pendulum-v1", "ddpg/Pendulum-v1"):
        assert 0 < paper.loc[agent, "fp16"] < paper.loc[agent, "int8"] < paper.loc[agent, "int2"]


def test_actions_are_compared_in_the_way_that_suits_them(summary):
    discrete = summary.env_id == "CartPole-v1"
    assert summary[discrete].same_action_rate.between(0, 1).all()
    assert summary[discrete].mean_abs_action_difference.isna().all()
    assert summary[~discrete].same_action_rate.isna().all()
    assert (summary[~discrete].mean_abs_action_difference >= 0).all()


def test_intervals_hold_their_estimates(summary):
    assert (summary.ci_low <= summary.mean_return).all()
    assert (summary.mean_return <= summary.ci_high).all()
    assert (summary.relative_error_low <= summary.relative_error).all()
    assert (summary.relative_error <= summary.relative_error_high).all()


def test_differences_are_paired_by_episode_seed_by_hand(table):
    cell = table[(table.agent == "ppo/CartPole-v1") & (table.engine == "simulated")]
    cell = cell[cell.precision.isin(["fp32", "fp16"])].copy()
    cell.loc[cell.precision == "fp32", "episode_return"] = [400.0, 200.0, 300.0]
    cell.loc[cell.precision == "fp16", "episode_return"] = [401.0, 202.0, 303.0]
    fp16 = study.summarize(cell).set_index("precision").loc["fp16"]
    # Differences 1, 2, 3: mean 2, deviation 1, t of two degrees of freedom 4.3027.
    half = 4.3026527 / 3**0.5
    assert (fp16.paired_difference, fp16.paired_ci_low, fp16.paired_ci_high) == pytest.approx((2, 2 - half, 2 + half))
    assert (fp16.relative_error_low, fp16.relative_error_high) == pytest.approx((-(2 + half) / 300, -(2 - half) / 300))
    assert (fp16.mean_return, fp16.ci_high - 302) == pytest.approx((302, half * 99.5038), rel=1e-4)
    assert not fp16.differs


def test_two_bits_break_ddpg_and_the_words_say_so(summary):
    row = summary.query("agent == 'ddpg/Pendulum-v1' and precision == 'int2' and quantizer == 'paper'").iloc[0]
    assert row.differs
    assert row.paired_ci_high < -300
    said = sentences.verdict(summary)
    assert f"{int(summary.differs.sum())} of {(summary.precision != 'fp32').sum()} quantized cells" in said
    figure = figures.loss_panels(summary)
    panel = next(ax for ax in figure.axes if ax.get_title() == "paper")
    agents, columns = ([label.get_text() for label in axis.get_ticklabels()] for axis in (panel.yaxis, panel.xaxis))
    assert columns == ["fp16", "int8", "int2"]
    at = (columns.index("int2"), agents.index("ddpg/Pendulum-v1"))
    (cell,) = [text for text in panel.texts if text.get_position() == at]
    assert cell.get_text() == f"{row.relative_error:.0%}*"
    assert cell.get_fontweight() == "bold"
    table = sentences.overview(summary, "paper").set_index("agent")
    assert table.loc["ddpg/Pendulum-v1", "int2"] == f"{row.mean_return:.4g}*"
    assert list(table.columns) == ["fp32", "fp16", "int8", "int2"]


def test_words_count_the_bits_that_each_quantizer_needs():
    rows = [
        {"agent": agent, "quantizer": quantizer, "observation": "none", "num_bits": bits, "precision": f"int{bits}",
         "without_loss": loss == 0, "error": ""}
        for agent, quantizer, losses in (
            ("a", "paper", {8: 0, 4: 0.5, 2: 0}),
            ("b", "paper", {8: 0, 4: 0, 2: 0}),
            ("a", "standard", {8: 0.2, 4: 0, 2: 1}),
        )
        for bits, loss in losses.items()
    ]  # fmt: skip
    said = sentences.quantizer_verdict(pd.DataFrame(rows))
    assert (
        "**paper**: 1 agent at 2 bits and more, 1 agent at 8 bits and more; **standard**: 1 agent at no width" in said
    )


def test_the_paper_stands_beside_ours(summary):
    row = summary.query("agent == 'dqn/CartPole-v1' and precision == 'int8' and quantizer == 'paper'").iloc[0]
    assert (row.paper_return, row.paper_kl) == (500, 0.1019)
    assert summary.query("env_id == 'Pendulum-v1'").paper_return.isna().all()
    beside = sentences.beside_paper(summary, "the package's").set_index("what")
    assert beside.loc["dqn/CartPole-v1 int8, KL from fp32", "paper"] == 0.1019
    assert beside.loc["ppo/CartPole-v1 fp16, return", "paper"] == 500
    assert not [what for what in beside.index if "Pendulum" in what]


def test_paper_table_by_registered_name():
    assert paper_table2.values_for("DQN", "ALE/Breakout-v5", "int8", "paper") == (78, 0.06045)
    assert paper_table2.values_for("PPO", "Walker2DBulletEnv-v0", "fp32", "none")[0] == 2274
    assert math.isnan(paper_table2.values_for("PPO", "CartPole-v1", "int8", "mse_clip")[0])
    assert math.isnan(paper_table2.values_for("PPO", "CartPole-v1", "int4", "paper")[0])
    printed, ours = pd.read_csv(PAPER_TABLE2), paper_table2.load()
    assert printed.iloc[:, 2:].to_numpy().tolist() == ours.iloc[:, 3:].to_numpy().tolist()
    assert printed.environment.tolist() == ours.paper_environment.tolist()


def test_the_same_seed_gives_the_same_table_in_one_process_and_in_two():
    config = study.Config(env_ids=["Pendulum-v1"], algorithms=["PPO"], precisions=["fp32", "int4"], **TINY)
    first = study.run(config)
    pd.testing.assert_frame_equal(first, study.run(dataclasses.replace(config, workers=2)))
    other = study.run(dataclasses.replace(config, seed=5))
    assert not np.array_equal(first.episode_return, other.episode_return)


def test_an_archive_that_cannot_be_loaded_is_a_row_with_the_reason(tmp_path):
    source = SHIPPED_AGENTS / "ppo" / "CartPole-v1"
    shutil.copytree(source, tmp_path / "ppo" / "CartPole-v1")
    broken = tmp_path / "a2c" / "CartPole-v1"
    broken.mkdir(parents=True)
    (broken / "CartPole-v1.zip").write_bytes(b"no archive")
    config = study.Config(agents_dir=str(tmp_path), precisions=["fp32", "int8"], quantizers=["paper"], **TINY)
    summary = study.summarize(study.run(config))
    failed = summary[summary.error != ""]
    assert failed.agent.tolist() == ["a2c/CartPole-v1"]
    assert failed.precision.tolist() == ["none"]
    assert len(failed.error.iloc[0]) > 10
    assert summary[summary.error == ""].agent.unique().tolist() == ["ppo/CartPole-v1"]
    assert "1 could not be measured" in sentences.verdict(summary)
    shutil.rmtree(tmp_path / "ppo")
    alone = study.summarize(study.run(config))
    assert alone.agent.tolist() == ["a2c/CartPole-v1"]
    for drawn in (
        figures.return_panels(alone),
        figures.relative_error(alone, "paper").figure,
        figures.kl_panels(alone, "paper"),
    ):
        plt.close(drawn)
    assert "Nothing was quantized" in sentences.verdict(alone)
    with pytest.raises(ValueError, match="no agent was measured"):
        sentences.key_figure(alone)


def test_every_agent_is_loaded_once_broken_ones_too(tmp_path, monkeypatch):
    loaded: list[str] = []

    def noted(file):
        loaded.append(file.name)
        return load_agent(file)

    monkeypatch.setattr(observed, "load_agent", noted)
    observed.prepare.cache_clear()
    for name in ("PPO", "DQN"):
        shutil.copytree(SHIPPED_AGENTS / name.lower() / "CartPole-v1", tmp_path / name.lower() / "CartPole-v1")
    (tmp_path / "a2c" / "CartPole-v1").mkdir(parents=True)
    (tmp_path / "a2c" / "CartPole-v1" / "CartPole-v1.zip").write_bytes(b"no archive")
    config = study.Config(agents_dir=str(tmp_path), precisions=["fp32", "fp16", "int8"], **TINY)
    table = study.run(config)
    assert loaded == ["a2c/CartPole-v1", "dqn/CartPole-v1", "ppo/CartPole-v1"]
    assert table[table.precision == "none"].agent.tolist() == ["a2c/CartPole-v1"]
    assert table.iloc[-1].agent == "a2c/CartPole-v1"  # measured agents first


def test_observations_are_a_treatment_of_their_own():
    config = study.Config(
        env_ids=["CartPole-v1"], algorithms=["PPO"], precisions=["fp32", "int4"], quantizers=["standard"],
        observation_quantization=["none", "per_feature", "per_tensor"], **TINY,
    )  # fmt: skip
    summary = study.summarize(study.run(config))
    kl = summary[summary.precision == "int4"].set_index("observation").kl_divergence
    assert kl["none"] < kl["per_tensor"]
    assert summary[summary.precision == "fp32"].observation.tolist() == ["none"]


def make_policy(kind: str, **options: object) -> ActingPolicy:
    torch.manual_seed(3)
    bounds = {} if kind in ("categorical", "q_values") else {"low": -np.ones(2), "high": np.full(2, 3.0)}
    return ActingPolicy(nn.Sequential(nn.Linear(4, 8), nn.Tanh()), nn.Linear(8, 2), kind, **bounds, **options)


def shifted(policy: ActingPolicy, by: float) -> ActingPolicy:
    import copy

    other = copy.deepcopy(policy)
    other.head.bias.data += torch.tensor([by, 0.0])
    return other


def test_divergences_of_each_kind_of_policy_by_hand():
    states = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    gaussian = make_policy("gaussian", spread=ConstantSpread(torch.log(torch.tensor([0.5, 2.0]))))
    found = compare(gaussian, shifted(gaussian, 0.25), states, 0.1)
    assert found["kl_divergence"] == pytest.approx(0.25**2 / (2 * 0.5**2), rel=1e-4)
    state_dependent = make_policy("gaussian", spread=StateDependentSpread(torch.full((8, 2), -1.0), 2))
    found = compare(state_dependent, shifted(state_dependent, 0.25), states, 0.1)
    latent = state_dependent.latent(states).detach()
    variance = (latent**2).sum(dim=1) * math.exp(-2) + 1e-6
    assert found["kl_divergence"] == pytest.approx(float((0.25**2 / (2 * variance)).mean()), rel=1e-4)
    deterministic = make_policy("deterministic")
    found = compare(deterministic, shifted(deterministic, 0.02), states, 0.1)
    assert found["kl_divergence"] == pytest.approx(0.02**2 / (2 * 0.1**2), rel=1e-3)
    # one of two dimensions moves by 0.02 of [-1, 1], which is 0.04 of [-1, 3]
    assert found["mean_abs_action_difference"] == pytest.approx(0.04 / 2, rel=1e-3)
    for kind, name in (("categorical", "categorical"), ("q_values", "softmax(Q)")):
        policy = make_policy(kind)
        found = compare(policy, shifted(policy, 100.0), states, 0.1)
        assert found["kl_kind"] == name
        assert found["same_action_rate"] == pytest.approx(float((policy(states).argmax(1) == 0).float().mean()))
        assert compare(policy, policy, states, 0.1)["kl_divergence"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precisions": ["int8"]}, "add fp32"),
        ({"precisions": ["fp32", "int1"]}, "precision='int1'"),
        ({"precisions": []}, r"precisions=\[\]"),
        ({"quantizers": ["papr"]}, "quantizer='papr'"),
        ({"observation_quantization": ["feature"]}, "observation_quantization='feature'"),
        ({"episodes": 1}, "episodes=1: give at least 2"),
        ({"kl_states": 0}, "kl_states=0"),
        ({"confidence": 95.0}, "confidence=95"),
        ({"deterministic_std": 0.0}, "deterministic_std=0"),
    ],
)
def test_parameters_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        study.Config(**options)


def test_filters_that_leave_nothing_say_what_there_is(tmp_path):
    with pytest.raises(ValueError, match=r"leave no agent .*ppo/CartPole-v1"):
        study.run(study.Config(env_ids=["Acrobot-v1"]))
    with pytest.raises(ValueError, match="agents_dir="):
        study.run(study.Config(agents_dir=str(tmp_path / "nowhere")))


def test_figures_draw_what_the_table_says(summary):
    figure = figures.return_panels(summary)
    assert [ax.get_title() for ax in figure.axes] == list(dict.fromkeys(summary.agent))
    assert "better" in figure.get_supylabel()
    plt.close(figure)
    ax = figures.relative_error(summary, "paper")
    assert [label.get_text() for label in ax.get_yticklabels()] == list(dict.fromkeys(summary.agent))
    assert ax.get_xscale() == "symlog"
    plt.close(ax.figure)
    figure = figures.kl_panels(summary, "paper")
    assert {ax.get_title() for ax in figure.axes} == set(summary.kl_kind)
    plt.close(figure)


def test_retrain_trains_the_agents_asked_for_and_measures_them(tmp_path, monkeypatch):
    from quarl_lib.sb3 import train

    trained = []

    def fake(agents_dir, algorithms, env_ids, seed, progress=None, steps=None):
        trained.append((list(algorithms), list(env_ids), seed))
        shutil.copytree(
            SHIPPED_AGENTS / "ppo" / "CartPole-v1", Path(agents_dir) / "ppo" / "CartPole-v1", dirs_exist_ok=True
        )
        return []

    monkeypatch.setattr(train, "train_agents", fake)
    config = study.Config(
        agents_dir=str(tmp_path), algorithms=["PPO"], env_ids=["CartPole-v1"], retrain=True, seed=4,
        precisions=["fp32", "int8"], quantizers=["paper"], **TINY,
    )  # fmt: skip
    assert study.run(config).agent.unique().tolist() == ["ppo/CartPole-v1"]
    assert trained == [(["PPO"], ["CartPole-v1"], 4)]
