"""The study on tables with numbers worked out by hand, and in virtual time twice with the same rows."""

from __future__ import annotations

import dataclasses
from typing import Any

import pandas as pd
import pytest

from quarl_lib.studies.training_at_scale import figures, sentences, study
from quarl_lib.studies.training_at_scale.cells import pace
from quarl_lib.studies.training_at_scale.validation import COLUMNS

BALANCE = "dm_control:cartpole:balance"
TINY: dict[str, Any] = {
    "tasks": ["gym:CartPole-v0"], "thresholds": [1.0], "actor_steps": [500], "update_periods": [100],
    "learner_ms": [2.0], "min_replay": 256, "policy_hidden": [8], "critic_hidden": [8], "n_step": 1,
    "eval_period": 250, "border_actors": [2], "border_learner_ms": [2.0], "border_steps": 1024, "workers": 1,
    "validation_steps": 0, "designs": ["packed"],
}  # fmt: skip


def run_rows(design: str, precision: str, seconds: list[float], learner_busy: float = 0.3) -> list[dict[str, Any]]:
    names = {"task": BALANCE, "design": design, "precision": precision, "n_actors": 4, "learner_ms": 2.0,
             "machine": "laptop", "learner_busy": learner_busy, "actor_busy": 0.9, "weights_age_steps": 80.0,
             "steps_per_s": 1000.0, "threshold": 900.0, "best_return": 950.0}  # fmt: skip
    runs = [{**names, "record": "run", "seed": seed, "seconds": value, "steps": 1000 * value, "energy_kwh": value / 10}
            for seed, value in enumerate(seconds)]  # fmt: skip
    curve = [{**names, "record": "evaluation", "seed": 0, "wall_time_s": t, "actor_steps": 100 * t,
              "episode_return": 500.0 + t} for t in (0.0, 1.0)]  # fmt: skip
    return [*runs, *curve]


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rows = [
        *run_rows("authors", "fp32", [40.0, 60.0]),
        *run_rows("authors", "int8", [20.0, 30.0]),
        *run_rows("packed", "fp32", [5.0, 8.0], learner_busy=0.95),
        *run_rows("packed", "int8", [5.0, float("nan")], learner_busy=1.0),
    ]
    for n_actors, fast, busy in ((1, 300.0, 0.2), (64, 110.0, 1.0)):
        for precision, steps_per_s in (("fp32", 100.0), ("int8", fast)):
            rows.append({"record": "pace", "task": BALANCE, "design": "packed", "precision": precision,
                         "n_actors": n_actors, "learner_ms": 2.0, "machine": "laptop", "steps_per_s": steps_per_s,
                         "learner_busy": busy, "actor_busy": 0.9, "weights_age_steps": 10.0})  # fmt: skip
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def validation() -> pd.DataFrame:
    same = {"task": BALANCE, "design": "packed", "precision": "int8", "n_actors": 1, "seeds": 1, "seeds_reached": 0}
    rows = [
        {"setup": "local replay", "virtual_over_real": 0.95, **same},
        {"setup": "reverb replay", "virtual_over_real": 1.3, **same},
    ]
    return pd.DataFrame(rows).reindex(columns=list(COLUMNS))


def test_speed_ups_by_hand(table, validation):
    summary = study.summarize(table, validation)
    assert tuple(summary.columns) == study.SUMMARY_COLUMNS
    assert summary.clock.tolist() == ["virtual"] * 4 + ["real"] * 2
    by = study.summarize(table).set_index(["design", "precision"]).sort_index()
    theirs, ours = by.loc[("authors", "int8")], by.loc[("packed", "int8")]
    assert theirs.speedup == pytest.approx(2.0) == theirs.over_authors_fp32
    assert theirs.speedup_low == pytest.approx(2.0) == theirs.speedup_high
    assert theirs.energy_ratio == pytest.approx(2.0)
    assert (ours.seeds, ours.seeds_reached, ours.seconds_to_threshold) == (2, 1, 5.0)
    assert ours.speedup == pytest.approx(1.0)
    assert ours.over_authors_fp32 == pytest.approx(8.0)
    assert (ours.bound_by, theirs.bound_by) == ("learner", "actor")


def test_the_border_by_hand(table):
    border = study.border(table).set_index(["precision", "n_actors"])
    assert border.loc[("int8", 1), ["speedup", "bound_by"]].tolist() == [pytest.approx(3.0), "actor"]
    assert border.loc[("int8", 64), ["speedup", "bound_by"]].tolist() == [pytest.approx(1.1), "learner"]


def test_pace_leaves_the_beginning_out():
    rows = pd.DataFrame({"wall_time_s": [0.0, 5.0, 6.0, 7.0], "inserted": [0, 10, 1010, 2010]})
    assert pace(rows) == pytest.approx(1000.0)


def test_words_and_figures_take_what_the_study_gives(table, validation):
    summary, border = study.summarize(table, validation), study.border(table)
    said = sentences.verdict(summary)
    assert "1 of 2 seeds reached" in said
    assert "virtual time" in said
    assert "the learner binds from 64 actors on" in sentences.border_verdict(border)
    assert "1 of 2 set-ups are off by more than 15 %" in sentences.validation_verdict(validation)
    unknown = validation.assign(virtual_over_real=float("nan"))
    assert "raise validation_steps" in sentences.validation_verdict(unknown)
    assert "fp32 takes 2.00 x" in sentences.energy(summary)
    beside = sentences.beside_paper(summary, border)
    assert beside[["paper", "ours"]].to_numpy().tolist() == [[3.12, pytest.approx(2.0)], [3.12, pytest.approx(8.0)]]
    assert sentences.key_figure(summary).startswith("In virtual time, 4 actors beside a learner of 2 ms")
    for drawn in (
        figures.time_panels(summary), figures.speedup_panels(summary, sentences.paper_speedups()),
        figures.border_panels(border), figures.pace_panels(border), figures.validation_panels(validation),
        figures.validation_panels(validation[:0]), figures.curve_panels(table, {BALANCE: 900.0}),
    ):  # fmt: skip
        drawn.canvas.draw()


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"precisions": ["int8"]}, "leave fp32 in"),
        ({"actors": [300]}, "from 1 to 256"),
        ({"designs": ["mine"]}, "choose of packed, authors"),
        ({"thresholds": [1.0]}, "one value for each of the 2 tasks"),
        ({"machine": "nowhere"}, "machine='nowhere'"),
        ({"learner_ms": [0.0]}, "above 0"),
        ({"validation_replays": ["disk"]}, "local, reverb"),
        ({"validation_rounds": 0}, "validation_rounds=0"),
    ],
)
def test_bad_values_are_refused(changed, text):
    with pytest.raises(ValueError, match=text):
        study.Config(**changed)


def test_the_same_config_gives_the_same_rows_and_finished_cells_are_read(tmp_path, monkeypatch):
    config = study.Config(**TINY, cells_dir=str(tmp_path / "one"))
    table = study.run(config)
    pd.testing.assert_frame_equal(
        table, study.run(dataclasses.replace(config, cells_dir=str(tmp_path / "two"))), check_exact=True
    )
    assert set(table.record) == {"run", "evaluation", "pace"}
    assert study.summarize(table).seeds_reached.tolist() == [1, 1]
    from quarl_lib.actorq.launch import virtual

    monkeypatch.setattr(virtual, "run", lambda *arguments, **named: pytest.fail("a finished cell ran again"))
    pd.testing.assert_frame_equal(study.run(config), table)
