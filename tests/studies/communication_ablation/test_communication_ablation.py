"""The communication ablation: arithmetic by hand, publications against packed buffers, a tiny run end to end."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from quarl_lib.actorq.weights import publications
from quarl_lib.inference import Layer, LayerWeights, PolicySpec, Weights, pack
from quarl_lib.inference.layout import layout_of
from quarl_lib.studies.communication_ablation import figures, sentences, study

TINY = study.Config(
    hidden=[16], pairs=["fp32/fp32", "int8/fp32", "int8/int8"], transports=["shared_memory"], update_periods=[30],
    steps=30, rounds=2, curve_periods=[20], curve_actor_steps=300, policy_hidden=[16], critic_hidden=[16],
    batch_size=16, samples_per_insert=4.0, min_replay=100, publish_period=1, eval_period=150, eval_episodes=1,
)  # fmt: skip


def block(precision: str, communication: str, number: int, acting: float, pulling: float, size: int) -> list[dict]:
    """Write one block of 100 steps by hand: seconds acting, seconds pulling, one message."""
    common = {"record": "block", "design": "packed", "transport": "reverb", "update_period": 50, "precision": precision,
              "communication_precision": communication, "round": number, "steps": 100, "wall_s": acting + pulling,
              "cpu_s": acting, "pulls": 2, "messages": 1, "payload_bytes": size}  # fmt: skip
    return [
        {**common, "stage": "select_action", "seconds": acting},
        {**common, "stage": "pull", "seconds": pulling},
    ] + [
        {**common, "stage": stage, "seconds": 0.0}
        for stage in ("env_step", "observe", "deserialize", "load_weights", "other")
    ]


def test_summary_by_hand():
    rows = block("fp32", "same", 1, 0.9, 0.1, 800) + block("fp32", "same", 2, 1.8, 0.2, 800)
    rows += block("int8", "same", 1, 0.45, 0.05, 200) + block("int8", "same", 2, 0.9, 0.1, 200)
    summary = study.summarize(pd.DataFrame(rows))
    assert tuple(summary.columns) == study.SUMMARY_COLUMNS
    fp32, int8 = summary.itertuples()
    assert (fp32.speedup, fp32.fewer_bytes) == (1.0, 1.0)
    # Both rounds are twice as fast although the machine was twice as slow in the second: pairs have no spread.
    assert (int8.speedup, int8.speedup_low, int8.speedup_high) == pytest.approx((2.0, 2.0, 2.0))
    assert math.isnan(int8.over_fp32_sent)  # int8 fed with fp32 was not measured
    assert int8.seconds_per_1000_steps == pytest.approx(7.5)  # the median of 5 and 10
    assert int8.pull_share == pytest.approx(0.1)
    assert int8.pull_ms == pytest.approx(37.5)  # the median of 25 and 50
    assert int8.fewer_bytes == 4
    assert int8.messages_per_pull == 0.5
    assert int8.communication_precision == "int8"
    assert "Reverb, update period 50**, int8 over fp32: both 2.00 × [2.00, 2.00]" in sentences.verdict(summary)
    plt.close(figures.ablation_panels(summary))


def test_what_int8_messages_gain_is_paired_by_round():
    rows = block("fp32", "same", 1, 0.9, 0.1, 800) + block("fp32", "same", 2, 0.9, 0.1, 800)
    rows += block("int8", "fp32", 1, 0.5, 0.1, 800) + block("int8", "fp32", 2, 1.6, 0.0, 800)
    rows += block("int8", "same", 1, 0.5, 0.1, 200) + block("int8", "same", 2, 0.3, 0.1, 200)
    summary = study.summarize(pd.DataFrame(rows))
    # Ratios 1 and 4: logarithms 0 and 2 in units of log 2; mean 1, deviation 1.414, over the root of two 1.
    gain = sentences.communication_gain(summary).iloc[0]
    assert gain.gain == pytest.approx(2.0)
    assert (gain.ci_low, gain.ci_high) == pytest.approx((2 ** (1 - 12.7062), 2 ** (1 + 12.7062)), rel=1e-4)
    assert sentences.beside_paper(summary).ci_high.tolist() == [gain.ci_high]


def test_one_round_has_no_interval_and_that_is_said():
    rows = block("fp32", "same", 1, 0.9, 0.1, 800) + block("int8", "same", 1, 0.45, 0.05, 200)
    summary = study.summarize(pd.DataFrame(rows))
    assert "both 2.00 × (one round: no interval)" in sentences.verdict(summary)
    assert "2.00 × (one round: no interval) the steps of fp32 actors that are sent fp32" in sentences.key_figure(
        summary
    )
    figure = figures.ablation_panels(summary)
    assert " 2.00× (one round: no interval), new: 50%" in [text.get_text() for text in figure.axes[0].texts]
    plt.close(figure)


def test_changed_share_counts_codes():
    spec = PolicySpec((Layer(3, 4, "relu"), Layer(4, 2)))
    rng = np.random.default_rng(0)
    first, second = (
        LayerWeights(rng.uniform(-1, 1, (layer.out_features, layer.in_features)).astype(np.float32),
                     np.zeros(layer.out_features, np.float32))
        for layer in spec.layers
    )  # fmt: skip
    moved = first.weight.copy()
    smallest = np.unravel_index(np.abs(moved).argmin(), moved.shape)  # no row's scale depends on it
    moved[smallest] += 0.1
    layout = layout_of(spec, "int8")
    before = np.frombuffer(pack(spec, Weights((first, second)), "int8"), np.uint8)
    after = np.frombuffer(pack(spec, Weights((LayerWeights(moved, first.bias), second)), "int8"), np.uint8)
    assert publications.changed_share(layout, spec.num_weights, before, before) == 0
    assert publications.changed_share(layout, spec.num_weights, after, before) == 1 / 20


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "int4", "int4g128", "int2"])
def test_changed_share_counts_codes_where_a_byte_holds_several(precision):
    spec = PolicySpec((Layer(4, 8, "relu"), Layer(8, 8, "relu"), Layer(8, 2)))  # 32 + 64 + 16 weights
    rng = np.random.default_rng(0)
    first, middle, last = (
        LayerWeights(rng.uniform(-0.5, 0.5, (layer.out_features, layer.in_features)).astype(np.float32),
                     np.zeros(layer.out_features, np.float32))
        for layer in spec.layers
    )  # fmt: skip
    middle.weight[:, 0] = 1.0  # each row's scale, in every code the same
    moved = middle.weight.copy()
    moved[3, 1:5] *= -1  # four neighbours of one row: in the same bytes of int4 and int2 ...
    moved[5, 7] *= -1  # ... and one more
    layout = layout_of(spec, precision)
    before = np.frombuffer(pack(spec, Weights((first, middle, last)), precision), np.uint8)
    after = np.frombuffer(pack(spec, Weights((first, LayerWeights(moved, middle.bias), last)), precision), np.uint8)
    assert publications.changed_share(layout, spec.num_weights, after, before) == 5 / 112
    assert publications.changed_share(layout, spec.num_weights, before, before) == 0


@pytest.mark.slow
def test_a_tiny_run_end_to_end():
    table = study.run(TINY)
    summary = study.summarize(table)
    assert len(summary) == 3
    assert (summary.messages_per_pull == 1).all()
    assert summary.set_index(["compute_precision", "communication_precision"]).fewer_bytes[("int8", "int8")] > 1.5
    curves, seen = study.curves(table), study.publications(table)
    assert curves.actor_steps.max() >= 300
    assert seen.changed_share.between(0, 1).all()
    assert (seen.version > 1).all()
    assert "computation alone" in sentences.verdict(summary)
    assert sentences.beside_paper(summary).paper.tolist() == ["up to 1.3"]
    assert "× smaller" in sentences.key_figure(summary)
    assert "successive publications" in sentences.publication_verdict(seen)
    assert "actor steps the mean return" in sentences.curve_verdict(curves)
    for drawn in (figures.ablation_panels(summary), figures.return_over_steps(curves), figures.codes_changed(seen)):
        plt.close(getattr(drawn, "figure", drawn))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"update_periods": [0]}, "update_period=0"),
        ({"n_actors": 0}, "n_actors=0"),
        ({"pairs": ["fp32/fp32", "int7/int7"]}, "precision='int7'"),
        ({"pairs": ["fp32/fp32", "int8"]}, "pairs has 'int8'"),
        ({"pairs": ["int8/int8"]}, "leave fp32/fp32 in"),
        ({"transports": ["pigeon"]}, "transport='pigeon'"),
        ({"steps": 10}, "steps=10"),
        ({"curve_periods": []}, "curve_periods="),
    ],
)
def test_bad_parameters_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        study.Config(**changes)
