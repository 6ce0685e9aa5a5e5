"""The runtime breakdown: sums and shares by hand, the paper's bars, a tiny run end to end."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from quarl_lib.actorq.bench.throughput_parts import STAGES
from quarl_lib.studies.runtime_breakdown import figures, sentences, study

TINY = study.Config(
    hidden=[16], precisions=["fp32", "int8"], update_periods=[30], steps=30, rounds=2, system_precisions=["int8"],
    system_actor_steps=300, system_policy_hidden=[16], system_critic_hidden=[16], batch_size=16, min_replay=100,
)  # fmt: skip


def block(design: str, precision: str, number: int, seconds: tuple[float, ...]) -> list[dict]:
    """Write one block of 500 steps by hand, `seconds` in the order of the stages, with two messages."""
    common = {"record": "block", "design": design, "transport": "reverb" if design == "authors" else "shared_memory",
              "update_period": 30, "precision": precision, "communication_precision": "same", "round": number,
              "steps": 500, "wall_s": sum(seconds), "cpu_s": sum(seconds), "pulls": 2, "messages": 2,
              "payload_bytes": 100}  # fmt: skip
    return [{**common, "stage": stage, "seconds": value} for stage, value in zip(STAGES, seconds, strict=True)]


@pytest.fixture
def summary() -> pd.DataFrame:
    # env_step, select_action, observe, pull, deserialize, load_weights, other
    rows = []
    for number, slow in ((1, 1.0), (2, 2.0)):  # the machine is twice as slow in the second round
        for design, precision, seconds in (
            ("authors", "fp32", (0.1, 0.4, 0.3, 0.1, 0.05, 0.04, 0.01)),
            ("authors", "int8", (0.1, 0.2, 0.1, 0.04, 0.01, 0.04, 0.01)),
            ("packed", "fp32", (0.1, 0.25, 0.0498, 0.0, 0.0, 0.0002, 0.0)),
            ("packed", "int8", (0.05, 0.02, 0.0298, 0.0, 0.0, 0.0002, 0.0)),
        ):
            rows += block(design, precision, number, tuple(slow * value for value in seconds))
    return study.summarize(pd.DataFrame(rows))


def test_stages_sum_to_the_wall_time(summary):
    assert tuple(summary.columns) == study.SUMMARY_COLUMNS
    stages = summary[[f"{stage}_s" for stage in STAGES]].sum(axis=1)
    np.testing.assert_allclose(stages, summary.seconds_per_1000_steps)
    np.testing.assert_allclose(summary.seconds_per_1000_steps, [3.0, 1.5, 1.2, 0.3])  # means of both rounds
    np.testing.assert_allclose(summary.accounted, [0.99, 0.98, 1.0, 1.0])


def test_ratios_are_paired(summary):
    rows = summary.set_index(["design", "precision"])
    for column, expected in (("speedup", 2.0), ("speedup_low", 2.0), ("speedup_high", 2.0)):
        assert rows.loc[("authors", "int8"), column] == pytest.approx(expected)
    assert rows.loc[("packed", "int8"), "speedup"] == pytest.approx(4.0)
    assert rows.loc[("packed", "int8"), "over_authors"] == pytest.approx(5.0)
    assert np.isnan(rows.loc[("authors", "int8"), "over_authors"])
    assert rows.loc[("authors", "int8"), "load_ms"] == pytest.approx(30.0)  # 0.12 s in 4 messages
    assert "1/200 [200, 200] of it" in sentences.load_verdict(summary)
    assert "ours over the authors' at int8 5.00 × [5.00, 5.00]" in sentences.verdict(summary)


def test_one_round_has_no_interval_and_that_is_said():
    seconds = (0.1, 0.25, 0.05, 0.0, 0.0, 0.0002, 0.0)
    rows = block("packed", "fp32", 1, seconds) + block("packed", "int8", 1, tuple(value / 2 for value in seconds))
    summary = study.summarize(pd.DataFrame(rows))
    assert summary.speedup.tolist() == pytest.approx([1.0, 2.0])
    assert summary[["speedup_low", "speedup_high"]].isna().all(axis=None)
    assert "int8 over fp32 in ours 2.00 × (one round: no interval)." in sentences.verdict(summary)


def test_shares_add_up_and_stand_beside_the_papers_bars(summary):
    shares = sentences.shares(summary)
    totals = shares.groupby(["source", "update_period", "precision"]).share.sum()
    np.testing.assert_allclose(totals, 1.0)
    cells = shares.set_index(["source", "precision", "part"]).share
    assert cells["the paper", "int8", "load"] == pytest.approx(1.9 / 8.9)
    assert cells["the authors' recipe", "int8", "load"] == pytest.approx(0.08)
    beside = sentences.beside_paper(summary)
    assert len(beside) == 8  # two precisions of both, four parts
    assert set(beside.item) == {"Figure 9(a)"}
    for drawn in (figures.stage_panels(summary), figures.share_panels(shares)):
        plt.close(drawn)


def test_system_components_by_hand():
    rows = [
        {"record": "system", "precision": "int8", "part": part, "stage": stage, "seconds": seconds, "count": count}
        for part, stage, seconds, count in (
            ("actor", "select_action", 1.0, 400), ("actor", "select_action", 1.0, 100), ("actor", "env_step", 3.0, 500),
            ("actor", "observe", 2.0, 500), ("actor", "pull", 0.5, 5), ("learner", "broadcast", 0.5, 5),
            ("learner", "sample", 1.0, 9), ("learner", "learner_step", 1.0, 9),
        )
    ]  # fmt: skip
    system = study.system(pd.DataFrame(rows)).set_index("component")
    assert system.share.to_dict() == pytest.approx(
        {"inference": 0.2, "environment": 0.3, "communication": 0.3, "sample": 0.1, "learner step": 0.1}
    )
    assert system.seconds_per_1000_steps["environment"] == 6.0
    assert "environment 30%" in sentences.system_verdict(system.reset_index())
    plt.close(figures.system(system.reset_index()).figure)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_tiny_run_end_to_end():
    table = study.run(TINY)
    summary, system = study.summarize(table), study.system(table)
    assert len(summary) == 4
    assert (summary.accounted > 0.9).all()
    assert set(system.component) == set(study.COMPONENTS.values())
    assert system.share.sum() == pytest.approx(1.0)
    assert "of its time on new weights" in sentences.key_figure(summary)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"update_periods": [0]}, "update_period=0"),
        ({"n_actors": 0}, "n_actors=0"),
        ({"precisions": ["fp32", "int7"]}, "precision='int7'"),
        ({"precisions": ["int8"]}, "leave fp32 in"),
        ({"designs": ["theirs"]}, "designs="),
        ({"rounds": 0}, "rounds=0"),
        ({"system_precisions": []}, "system_precisions="),
    ],
)
def test_bad_parameters_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        study.Config(**changes)
