"""The study of the inference engines, tiny: its tables are consistent and its sentences come from them."""

from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd
import pytest
from scipy import stats

from quarl_lib.inference import PRECISIONS
from quarl_lib.inference.example_policies import example_observations, example_policy, hidden_sizes
from quarl_lib.studies.inference_engines import figures, sentences, study

matplotlib.use("agg")
REQUIRED = {
    "policy", "backend", "precision", "regime", "us_median", "us_min", "ratio_to_torch_fp32", "limit_us",
    "mean_relative_error", "max_abs_error", "payload_bytes", "pack_ms", "load_ms",
}  # fmt: skip


@pytest.fixture(scope="module")
def config() -> study.Config:
    return study.Config(
        policies=["3-32x2-2", "5-48x32-6"],
        backends=["native", "torch", "torch-frozen", "numpy", "onnxruntime"],
        batch_sizes=[1, 5, 16],
        rounds=3,
        calls_per_block=3,
        block_ms=1.0,
        cold_megabytes=0.5,
        update_repeats=1,
        error_observations=16,
    )


@pytest.fixture(scope="module")
def steps() -> list[tuple[int, int, str]]:
    return []


@pytest.fixture(scope="module")
def table(config, steps) -> pd.DataFrame:
    pytest.importorskip("onnxruntime")
    return study.run(config, progress=lambda *step: steps.append(step))


@pytest.fixture(scope="module")
def summary(table) -> pd.DataFrame:
    return study.summarize(table)


def test_every_engine_is_measured_in_both_regimes(config, table, summary, steps):
    assert set(summary.columns) >= REQUIRED
    assert tuple(summary.columns) == study.SUMMARY_COLUMNS
    assert set(summary.policy) == set(config.policies)
    assert not summary.drop(columns=["load_in_place_ms", "load_ratio_low", "load_ratio_high"]).isna().any().any()
    single = summary[summary.batch == 1]
    assert (single.groupby(["policy", "backend", "precision"]).regime.apply(set).map(len) == 2).all()
    batches = summary.groupby(["backend", "precision"]).batch.apply(set)
    assert batches["torch", "fp32"] == batches["onnxruntime", "int8"] == batches["native", "int4"] == {1, 5, 16}
    assert batches["numpy", "fp32"] == batches["torch-frozen", "fp32"] == {1}
    assert summary.groupby("policy").batch.is_monotonic_increasing.all()
    pairs = set(zip(summary.backend, summary.precision, strict=True))
    assert {("torch", "fp32"), ("torch", "int8"), ("torch-frozen", "fp32"), ("onnxruntime", "int8")} <= pairs
    assert set(summary.precision) <= set(PRECISIONS)
    timed = table[table.quantity == "us"]
    assert len(timed) == config.rounds * len(summary)
    done, total, _ = zip(*steps, strict=True)
    assert list(done) == sorted(done)
    assert done[-1] == total[-1] == study.STEPS * len(config.policies)


def test_ratios_follow_from_the_rounds(table, summary):
    row = summary[(summary.backend == "onnxruntime") & (summary.precision == "int8")].iloc[0]
    keys = (table.policy == row.policy) & (table.backend == row.backend) & (table.precision == row.precision)
    here = keys & (table.regime == row.regime) & (table.batch == row.batch)
    rounds = table[here].pivot(index="round", columns="quantity", values="value")
    assert row.ratio_to_torch_fp32 == pytest.approx(stats.gmean(rounds.torch_fp32_us / rounds.us))
    assert row.over_limit == pytest.approx(stats.gmean(rounds.us / rounds.limit_us))
    assert row.us_median == pytest.approx(np.median(rounds.us))
    assert row.us_min == pytest.approx(rounds.us_best.min())
    assert (summary.us_min <= summary.us_median).all()
    assert (summary.ratio_ci_low <= summary.ratio_to_torch_fp32).all()
    assert (summary.ratio_to_torch_fp32 <= summary.ratio_ci_high).all()
    torch = summary[(summary.policy == row.policy) & (summary.backend == "torch") & (summary.precision == "fp32")].iloc[
        0
    ]
    assert row.load_ratio == pytest.approx(row.load_ms / torch.load_ms)  # one repeat
    assert np.isnan(row.load_ratio_low)
    fp32 = summary[summary.precision == "fp32"]
    assert (fp32.groupby(["policy", "regime", "batch"]).ratio_to_best_fp32.max() == 1.0).all()
    best = fp32.groupby(["policy", "regime", "batch"]).ratio_to_torch_fp32.max()
    assert row.ratio_to_best_fp32 == pytest.approx(row.ratio_to_torch_fp32 / best[row.policy, row.regime, row.batch])


def test_one_round_has_no_interval_and_that_is_said_and_drawn(config, table):
    summary = study.summarize(table[(table.regime == "") | (table["round"] == 0)])
    assert summary[["ratio_ci_low", "ratio_ci_high"]].isna().all(axis=None)
    assert "x the speed of torch fp32 (one round: no interval)" in sentences.key_figure(summary)
    ax = figures.speed_against_error(summary, config.policies[0])
    assert not ax.collections
    matplotlib.pyplot.close(ax.figure)  # type: ignore[arg-type]


def test_errors_and_messages_are_those_of_the_precision(summary):
    error = summary.groupby("precision").mean_relative_error.max()
    assert error["fp32"] < 1e-5
    assert 1e-4 < error["int8"] < 0.05
    assert (summary.mean_relative_error[summary.precision == "fp16"] > 1e-6).all()
    torch_fp32 = summary[(summary.backend == "torch") & (summary.precision == "fp32")]
    assert (torch_fp32.mean_relative_error == 0).all()
    weights = {"3-32x2-2": 3 * 32 + 32 * 32 + 32 * 2, "5-48x32-6": 5 * 48 + 48 * 32 + 32 * 6}
    assert (torch_fp32.payload_bytes > 4 * torch_fp32.policy.map(weights)).all()
    assert (summary.limit_us > 0).all()


def test_sentences_and_small_tables_come_from_the_summary(config, summary):
    text = sentences.verdict(summary)
    assert text.count("\n") == len(config.policies) - 1
    for policy in config.policies:
        rows = sentences.rows_of(summary, policy)
        fastest = rows[rows.mean_relative_error <= sentences.SMALL_ERROR].nlargest(1, "ratio_to_torch_fp32").iloc[0]
        assert f"**{policy}**" in text
        assert f"{fastest.backend} {fastest.precision} is fastest: {fastest.us_median:.3g} µs" in text
    assert "fp32" in sentences.error_verdict(summary)
    assert all(policy in sentences.limit_verdict(summary) for policy in config.policies)
    assert "torch int8" in sentences.update_verdict(summary, config.policies[0])
    assert config.policies[0] in sentences.key_figure(summary)
    automatic = sentences.automatic(summary)
    assert (automatic.auto_over_fastest <= 1).all()
    assert set(automatic.auto) <= {"native", "onnxruntime", "torch", "numpy"}
    paper = sentences.beside_paper(summary, config.policies[0]).set_index("what")
    row = paper.loc["computation heavy, int8 by torch: inference speed over fp32"]
    assert row.paper == pytest.approx(10.7 / 5.4)
    ours = sentences.rows_of(summary, config.policies[0], "torch", "int8").iloc[0]
    assert (row.ours, row.ci_low) == (ours.ratio_to_torch_fp32, ours.ratio_ci_low)
    assert paper.loc["communication heavy, int8 by torch: time to load weights over fp32's"].ours > 0
    assert set(automatic.batch) == {1, 16}
    ratios = sentences.ratios(summary).set_index(["policy", "backend"])
    assert ratios.loc[(config.policies[0], "torch"), "int8"] == ours.ratio_to_torch_fp32


def test_batches_say_whether_quantization_pays(config, summary):
    text = sentences.batch_verdict(summary)
    assert text.count("quantization ") == len(config.policies)
    roofline = sentences.roofline_verdict(summary)
    for policy in config.policies:
        rows = sentences.rows_of(summary, policy, batch=16)
        accurate = rows[(rows.mean_relative_error <= sentences.SMALL_ERROR) & rows.precision.str.startswith("int")]
        best = accurate.nsmallest(1, "us_median").iloc[0]
        assert f"{best.ratio_to_best_fp32:.3g} x ({best.backend} {best.precision} over" in text
        native = rows[(rows.backend == "native") & (rows.precision == "int8")].iloc[0]
        assert f"{policy} {native.over_limit:.3g} times" in roofline
    losing = summary.assign(ratio_to_best_fp32=np.where(summary.batch == 16, 0.5, 2.0))
    assert sentences.batch_verdict(losing).count("pays below a batch of 16") == len(config.policies)
    winning = summary.assign(ratio_to_best_fp32=3.0)
    assert sentences.batch_verdict(winning).count("pays up to the largest batch, 16") == len(config.policies)
    assert "No batches" in sentences.batch_verdict(summary[summary.batch == 1])


def test_the_figure_of_batches_has_a_line_an_engine(config, summary):
    axes = figures.time_over_batch(summary, config.policies[0])
    lines = {line.get_label(): line for line in axes.lines}
    row = sentences.rows_of(summary, config.policies[0], "onnxruntime", "int8", batch=5).iloc[0]
    line = lines["onnxruntime int8"]
    assert list(np.asarray(line.get_xdata())) == [1, 5, 16]
    assert np.asarray(line.get_ydata())[1] == row.us_median
    assert {"torch fp32", "onnxruntime fp32"} <= set(lines)
    assert len(figures.time_over_batch_panels(summary).axes) >= len(config.policies) + 1
    matplotlib.pyplot.close("all")


def test_figures_show_what_the_summary_says(config, summary):
    policy = config.policies[0]
    axes = figures.action_time(summary, policy)
    drawn = {float(x) for line in axes.lines for x in np.atleast_1d(line.get_xdata())}
    assert set(sentences.rows_of(summary, policy).us_median) <= drawn
    assert "lower" not in axes.get_xlabel()
    assert "better" in axes.get_xlabel()
    axes = figures.speed_against_error(summary, policy)
    assert axes.get_xscale() == axes.get_yscale() == "log"
    figure = figures.update_cost_panels(summary, policy)
    bars = [patch.get_width() for patch in figure.axes[0].patches]  # type: ignore[attr-defined]
    rows = sentences.rows_of(summary, policy)
    np.testing.assert_allclose(sum(bars), (rows.pack_ms + rows.load_ms).sum())
    assert len(figures.action_time_panels(summary).axes) >= len(config.policies) + 1
    matplotlib.pyplot.close("all")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rounds": 0}, "rounds=0"),
        ({"backends": ["native"]}, "leave torch in"),
        ({"backends": ["torch", "tensorrt"]}, "'tensorrt'"),
        ({"policies": []}, "at least one"),
        ({"policies": ["4-64x64-2", "4-64x64-2"]}, "each once"),
        ({"policies": ["4-64x64-2", "24-2048x3"]}, "'24-2048x3'"),
        ({"batch_sizes": [8]}, "give 1"),
        ({"batch_sizes": [1, 0]}, "give 1"),
        ({"batch_sizes": [1, 8, 8]}, "each once"),
        ({"cold_megabytes": -1.0}, "cold_megabytes=-1.0"),
    ],
)
def test_bad_parameters_are_refused_before_anything_runs(change, message):
    with pytest.raises(ValueError, match=message):
        study.Config(**change)


def test_policies_by_name():
    assert hidden_sizes("2048x3") == [2048, 2048, 2048]
    assert hidden_sizes("64x64") == [64, 64]
    assert hidden_sizes("256x128x64") == [256, 128, 64]
    spec, weights = example_policy("4-64x64-2", seed=0)
    assert [layer.out_features for layer in spec.layers] == [64, 64, 2]
    assert spec.head.discrete
    again = example_policy("4-64x64-2", seed=0)[1]
    assert np.array_equal(weights.layers[1].weight, again.layers[1].weight)
    spec, _ = example_policy("nature-cnn", seed=0)
    assert spec.observation_shape == (4, 84, 84)
    images = example_observations(spec, 3, np.random.default_rng(0))
    assert images.shape == (3, 4, 84, 84)
    assert images.dtype == np.uint8
