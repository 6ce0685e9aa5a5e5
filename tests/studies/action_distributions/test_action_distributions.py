"""The action study on agents in the package, and its sums on tables made by hand."""

# mypy: disable-error-code="arg-type, attr-defined, index"
from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

from quarl_lib.studies.action_distributions import figures, sentences, study


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    config = study.Config(
        algorithms=["PPO"], precisions=["fp16", "int8", "int2"], steps=600, calibration_steps=200, workers=1
    )
    return study.run(config)


@pytest.fixture(scope="module")
def summary(table: pd.DataFrame) -> pd.DataFrame:
    return study.summarize(table)


def test_every_precision_sees_the_same_states(table):
    assert set(table.agent) == {"ppo/CartPole-v1", "ppo/Pendulum-v1"}
    for _, rows in table.groupby("agent"):
        reference = [group.action_fp32.to_numpy() for _, group in rows.groupby("precision")]
        assert all(len(actions) == 600 and np.array_equal(actions, reference[0]) for actions in reference)


def test_summary_has_its_columns_and_agreement_falls_with_the_bits(summary):
    assert tuple(summary.columns) == study.SUMMARY_COLUMNS
    assert (summary.states == 600).all()
    discrete = summary[summary.env_id == "CartPole-v1"].set_index("precision")
    assert discrete.same_action_rate["fp16"] >= discrete.same_action_rate["int8"] > discrete.same_action_rate["int2"]
    continuous = summary[summary.env_id == "Pendulum-v1"].set_index("precision")
    differences = continuous.mean_abs_difference
    assert 0 < differences["fp16"] < differences["int8"] < differences["int2"]
    assert continuous.same_action_rate.isna().all()


def by_hand(discrete: bool, fp32: list[float], actions: list[float]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "algorithm": "X", "env_id": "E", "agent": "x/E", "precision": "int8", "quantizer": "paper",
            "discrete": discrete, "dimension": 0, "state": range(len(fp32)), "action_fp32": fp32, "action": actions,
            "low": -1.0, "high": 1.0, "error": "",
        }
    )  # fmt: skip


def test_discrete_agreement_by_hand():
    row = study.summarize(by_hand(True, [0, 1, 1, 2], [0, 1, 2, 2])).iloc[0]
    assert row.same_action_rate == 0.75
    # shares 1/4 1/2 1/4 against 1/4 1/4 1/2
    assert row.histogram_distance == pytest.approx(0.25)


def test_continuous_differences_by_hand():
    row = study.summarize(by_hand(False, [-1, 0.0, 0.5, 1], [-1, 0.1, 0.5, 0.7])).iloc[0]
    assert row.mean_abs_difference == pytest.approx(0.1)
    assert row.median_abs_difference == pytest.approx(0.05)
    assert row.share_identical == 0.5
    assert (row.share_at_bounds_fp32, row.share_at_bounds) == (0.5, 0.25)
    assert row.histogram_distance == pytest.approx(0.5)


def test_words_name_the_worst_of_each_precision(summary):
    said = sentences.verdict(summary)
    rate = summary[summary.precision == "int2"].same_action_rate.min()
    assert f"**int2**: the same discrete action in {rate:.1%}" in said
    assert sentences.key_figure(summary).startswith(
        "At int8, agents with discrete actions choose the same action as at fp32 in "
    )
    table = sentences.agreement(summary).set_index("agent")
    assert list(table.columns) == ["dimension", "measure", "fp16", "int8", "int2"]
    assert table.loc["ppo/CartPole-v1", "int2"] == f"{rate:.1%}"
    assert table.loc["ppo/Pendulum-v1", "measure"] == "mean |difference|"
    beside = sentences.beside_paper(summary)
    assert beside.what.tolist() == [f"ppo/{env} [0] int8, histogram distance" for env in ("CartPole-v1", "Pendulum-v1")]


def test_figures_show_shares_bounds_and_exact_zeros(table):
    figure = figures.discrete_panels(table)
    assert len(figure.axes) == 1
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    assert sum(heights) == pytest.approx(4)  # fp32 and three precisions, shares of one each
    plt.close(figure)
    figure = figures.continuous_panels(table)
    assert figure.axes[0].get_title() == "ppo/Pendulum-v1"
    assert figure.axes[0].get_xlim()[0] <= -2
    plt.close(figure)
    figure = figures.difference_panels(table)
    for line in figure.axes[0].lines:
        assert (np.diff(line.get_ydata()) >= 0).all()
        assert line.get_ydata()[-1] == 1
    plt.close(figure)
    ax = figures.draw_ecdf(by_hand(False, [0.0, 0.5], [0.0, 0.7]))
    assert ax.lines[0].get_ydata()[0] == 0.5  # an exact 0 lies left of every distance
    plt.close(ax.figure)


def test_figures_of_one_kind_of_action_only(table):
    discrete = table[table.env_id == "CartPole-v1"]
    for drawn in (figures.continuous_panels(discrete), figures.difference_panels(discrete)):
        assert "nothing" in drawn.texts[0].get_text()
        plt.close(drawn)


def test_an_archive_that_cannot_be_loaded_is_a_row_with_the_reason(tmp_path):
    broken = tmp_path / "a2c" / "CartPole-v1"
    broken.mkdir(parents=True)
    (broken / "CartPole-v1.zip").write_bytes(b"no archive")
    summary = study.summarize(study.run(study.Config(agents_dir=str(tmp_path), workers=1)))
    assert summary.agent.tolist() == ["a2c/CartPole-v1"]
    assert len(summary.error.iloc[0]) > 10
    assert "1 could not be measured" in sentences.verdict(summary)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precisions": ["fp32", "int8"]}, "fp32 is always beside"),
        ({"precisions": []}, "at least one"),
        ({"quantizer": "papr"}, "quantizer='papr'"),
        ({"observation_quantization": "all"}, "observation_quantization='all'"),
        ({"steps": 0}, "steps=0: give at least 1"),
    ],
)
def test_parameters_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        study.Config(**options)
