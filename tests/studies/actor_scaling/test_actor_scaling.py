"""Actor scaling: the model's formula and every reduction by hand, a tiny run end to end."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from quarl_lib.studies.actor_scaling import figures, sentences, study

TINY = study.Config(
    actor_steps=300, policy_hidden=[16], critic_hidden=[16], batch_size=16, min_replay=50, publish_period=1
)  # fmt: skip


def test_the_model_by_hand():
    # 4 actors at 1000 us a step; 20 ms updates of 64 samples, 16 samples a step, on 2 cores; 1200 us of CPU on 6 cores.
    sides = study.bounds(1000.0, 4, 20_000.0, 16.0, 64, learner_cores=2, cpu=1200.0, cores=6)
    assert sides == {"actors": 250.0, "learner": 2500.0, "cores": 200.0}
    assert study.slowest(sides) == "learner"
    assert study.slowest(study.bounds(1000.0, 1, 20_000.0, 0.1, 64)) == "actors"
    # Cores that take a quarter from each other: a learner on its own device does not feel it.
    sides = study.bounds(1000.0, 4, 20_000.0, 16.0, 64, learner_cores=2, cpu=1200.0, cores=6, slowdown=1.25)
    assert sides == {"actors": 312.5, "learner": 2500.0, "cores": 250.0}


def test_the_learner_may_run_ahead_by_one_batch():
    for one in study.options(study.Config(batch_size=64, samples_per_insert=0.01), 0):
        assert one.replay_error_buffer == 64.0
    (*_, smallest) = study.options(study.Config(batch_size=1), 0)
    assert smallest.replay_error_buffer == 2.0  # below this Reverb could block both sides


def test_measured_by_hand():
    def row(part: str, actor_id: int, stage: str, seconds: float, count: int) -> dict:
        return {"part": part, "actor_id": actor_id, "stage": stage, "seconds": seconds, "count": count}

    timing = pd.DataFrame(
        [
            row("actor", 0, "select_action", 0.6, 1000), row("actor", 0, "env_step", 0.4, 1001),
            row("actor", 1, "select_action", 0.5, 500), row("actor", 1, "observe", 0.5, 500),
            row("learner", -1, "sample", 9.0, 10), row("learner", -1, "learner_step", 0.2, 10),
            row("learner", -1, "quantize", 0.1, 2),
        ]
    )  # fmt: skip
    cpu = pd.DataFrame({"part": ["actor-0", "actor-1", "learner"], "cpu_s": [0.9, 0.9, 0.3]})
    assert study.measured(timing, cpu) == pytest.approx(
        # 1000 and 500 steps a second make one every 667 us; 2 s for 1500 steps; 30 ms an update; 2.1 s of CPU
        {"us_per_step": 2000 / 3, "actor_us": 4000 / 3, "actor_steps": 1500, "learner_us": 30_000, "learner_steps": 10,
         "cpu_us": 1400}
    )  # fmt: skip


@pytest.fixture
def summary() -> pd.DataFrame:
    rows = []
    for number, slow in ((0, 1.0), (1, 2.0)):  # the machine is twice as slow in the second round
        for precision, n_actors, us in (
            ("fp32", 1, 900.0), ("fp32", 2, 500.0), ("fp32", 4, 520.0),
            ("int8", 1, 300.0), ("int8", 2, 150.0), ("int8", 4, 140.0),
        ):  # fmt: skip
            rows.append({"round": number, "precision": precision, "n_actors": n_actors, "us_per_step": slow * us,
                         "actor_us": slow * us * n_actors, "actor_steps": 1000, "learner_us": 6400.0, "cores": 2,
                         "learner_steps": 3, "cpu_us": slow * us * n_actors * 1.1,
                         "slowdown": 1.0 if n_actors == 1 or precision == "int8" else 1.1 + number / 10})  # fmt: skip
    return study.summarize(pd.DataFrame(rows), samples_per_insert=1.0, batch_size=64)


def test_summary_by_hand(summary):
    assert tuple(summary.columns) == study.SUMMARY_COLUMNS
    rows = summary.set_index(["precision", "n_actors"])
    assert rows.fits.tolist() == [True, True, False] * 2
    fp32 = rows.loc["fp32", 2]
    root = 2**0.5  # rounds at 1 and 2 times a time: their geometric mean is its root of two
    assert fp32.us_per_step == pytest.approx(500 * root)
    # Logarithms half a log 2 off their mean: deviation over the root of two is 0.5, t of one degree of freedom 12.706.
    assert (fp32.us_low, fp32.us_high) == pytest.approx(
        (500 * root * 2 ** (-0.5 * 12.7062), 500 * root * 2 ** (0.5 * 12.7062)), rel=1e-4
    )
    slower = (1.1 * 1.2) ** 0.5
    assert fp32.slowdown == pytest.approx(slower)
    # CPU over both cores: more than without the factor 1.1
    assert fp32.predicted_us == pytest.approx(slower * 1.1 * 900 * root / 2)
    assert fp32.bound_by == "cores"
    assert fp32.prediction_error == pytest.approx(slower * 1.1 * 900 / 2 / 500 - 1)
    assert rows.loc[("fp32", 1), "bound_by"] == "actors"
    int8 = rows.loc["int8", 2]
    for column in ("speedup_over_fp32", "speedup_over_fp32_low", "speedup_over_fp32_high"):
        assert int8[column] == pytest.approx(500 / 150)  # paired: no spread although the machine's speed halved
    assert int8.speedup_over_one == pytest.approx(2.0)
    assert int8.cores_used == pytest.approx(2.2)
    assert int8.seconds_for_steps == pytest.approx(0.150 * root)


def test_words_figures_and_projection(summary):
    config = study.Config(projected_learner_ms=[1.6], projected_cores=[1, 16], projected_batch_size=256)
    projected = study.project(summary, config)
    cells = projected.set_index(["actor_cores", "precision"])
    # 1.6 ms * 16 / 256 = 100 us a step is the learner's; actors take 900 and 300 us, times the root of two.
    assert cells.loc[(1, "int8"), "steps_per_s"] == pytest.approx(1e6 / (300 * 2**0.5))
    assert cells.loc[(1, "int8"), "speedup_over_fp32"] == pytest.approx(3.0)
    assert cells.loc[(16, "int8"), "steps_per_s"] == pytest.approx(1e4)
    assert cells.bound_by.tolist() == ["actors", "actors", "learner", "learner"]
    assert set(projected.kind) == {"projection"}
    assert (
        "2 actors take a step every 212 µs, 2.00 × [2.00, 2.00] one actor's pace, 3.33 × [3.33, 3.33] as many steps"
        in sentences.verdict(summary)
    )
    assert "from 16 cores on the learner binds" in sentences.projection_verdict(projected)
    said = sentences.model_verdict(summary)
    assert (
        "off where every actor has a core by 14% at most (2 points), past the cores by 18% at most (2 points);" in said
    )
    assert "nothing to predict" in sentences.model_verdict(summary[summary.n_actors == 1])
    assert "of a lone actor's CPU time, 1.15 × at fp32, 1.00 × at int8." in sentences.model_verdict(summary)
    assert sentences.contention_verdict(summary[summary.n_actors == 1]) == ""
    assert "other work" not in sentences.model_verdict(summary)
    crowded = summary.assign(cores_used=[1.0, 1.2, 1.2] * 2)
    assert "At 2 of the 4 points that fit, other work left" in sentences.model_verdict(crowded)
    assert sentences.beside_paper(summary).ours.tolist() == ["1.80 ×", "2.00 ×"]
    plt.close(figures.time_over_actors(summary).figure)  # type: ignore[arg-type]
    plt.close(figures.projection_panels(projected))


def test_one_round_has_no_interval_and_that_is_said_and_drawn(summary):
    row = {"round": 0, "actor_us": 900.0, "actor_steps": 1000, "learner_us": 6400.0, "cores": 2, "learner_steps": 3,
           "cpu_us": 900.0, "slowdown": 1.0, "n_actors": 1}  # fmt: skip
    rows = [{**row, "precision": precision, "us_per_step": us} for precision, us in (("fp32", 900.0), ("int8", 300.0))]
    alone = study.summarize(pd.DataFrame(rows), samples_per_insert=1.0, batch_size=64)
    assert alone.us_per_step.tolist() == pytest.approx([900.0, 300.0])
    assert alone[["us_low", "us_high", "speedup_over_fp32_low"]].isna().all(axis=None)
    assert "3.00 × (one round: no interval) as many steps as at fp32" in sentences.verdict(alone)
    for table, error_bars in ((alone, 0), (summary, 2)):
        ax = figures.time_over_actors(table)
        assert len(ax.collections) == error_bars
        plt.close(ax.figure)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_tiny_run_end_to_end():
    table = study.run(TINY)
    summary = study.summarize(table, TINY.samples_per_insert, TINY.batch_size)
    assert len(summary) == 4
    assert (summary.us_per_step > 0).all()
    assert (summary.cpu_us > 0.5 * summary.actor_us).all()
    assert (summary.slowdown[summary.n_actors == 1] == 1.0).all()
    assert summary.slowdown.between(1.0, 5.0).all()
    assert "the cost model's prediction is off by" in sentences.key_figure(summary)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"update_period": 0}, "update_period=0"),
        ({"actors": []}, "actors="),
        ({"actors": [1, 0]}, "actors="),
        ({"precisions": ["fp32", "int7"]}, "precision='int7'"),
        ({"precisions": ["int8"]}, "leave fp32 and 1 in"),
        ({"samples_per_insert": 0.0}, "samples_per_insert=0.0"),
        ({"contention_rounds": 0}, "contention_rounds=0"),
        ({"projected_cores": [0]}, "projected_cores="),
    ],
)
def test_bad_parameters_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        study.Config(**changes)
