"""The study on tables with numbers worked out by hand, and once for real."""

# mypy: disable-error-code="attr-defined, index"
from __future__ import annotations

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest

from quarl_lib.studies.actorq_training import figures, sentences, study
from quarl_lib.studies.actorq_training import runs as training_runs
from quarl_lib.studies.actorq_training import speed as training_speed
from quarl_lib.studies.actorq_training.summary import SUMMARY_COLUMNS, summarize
from quarl_lib.studies.common import trained

BALANCE = "dm_control:cartpole:balance"


def run_rows(precision, seed, curve, step_us, watts=3600.0):
    """Return one run's rows: `curve` maps seconds to return; a second is 100 steps; constant `watts` of CPU and RAM."""
    keys = {"task": BALANCE, "algorithm": "d4pg", "precision": precision, "seed": seed}
    rows = [{"record": "run", "threshold": 900.0, "needed": 2, "reason": "", "n_actors": 2}]
    for seconds, value in curve.items():
        for episode in range(2):
            rows.append({"record": "evaluation", "wall_time_s": seconds, "actor_steps": 100 * seconds,
                         "learner_steps": 25 * seconds, "episode": episode, "episode_return": value})  # fmt: skip
        # 1 Wh a second from CPU, half of that from RAM; the evaluator burns a CPU second every ten.
        cpu, ram = watts * seconds / 3.6e6, watts * seconds / 7.2e6
        rows.append({"record": "emission", "wall_time_s": seconds, "cpu_energy_kwh": cpu, "ram_energy_kwh": ram,
                     "gpu_energy_kwh": 0.0, "energy_kwh": cpu + ram, "emissions_kg": 0.5 * (cpu + ram),
                     "cpu_source": "modelled", "energy_source": "modelled", "watts_per_core": 50.0})  # fmt: skip
        rows.append({"record": "evaluator", "wall_time_s": seconds, "cpu_seconds": 0.3 + seconds / 10})
        rows.append({"record": "episode", "wall_time_s": seconds, "actor_steps": 100 * seconds, "actor_id": 0,
                     "episode_steps": 10, "episode_return": value - 1})  # fmt: skip
    stages = {("learner", "sample"): (2.0, 100), ("learner", "learner_step"): (8.0, 100),
              ("actor", "env_step"): (1000 * step_us * 0.5e-6, 1000), ("actor", "observe"): (9.0, 1000),
              ("actor", "select_action"): (1000 * step_us * 0.5e-6, 1000)}  # fmt: skip
    for (part, stage), (seconds, count) in stages.items():
        rows.append({"record": "timing", "part": part, "stage": stage, "seconds": seconds, "count": count})
    return pd.DataFrame([{**keys, **row} for row in rows])


@pytest.fixture(scope="module")
def table():
    slow, fast = {0: 700, 10: 850, 20: 920, 30: 990}, {0: 700, 10: 910, 20: 950, 30: 980}
    hopeless = {0: 700, 10: 950, 20: 100, 30: 950}
    return pd.concat(
        [
            run_rows("fp32", 0, slow, step_us=1000.0),
            run_rows("int8", 0, fast, step_us=250.0),
            run_rows("int8", 1, hopeless, step_us=250.0),
            run_rows("fp32", 1, slow, step_us=1000.0),
        ],
        ignore_index=True,
    )


@pytest.fixture(scope="module")
def summary(table):
    return summarize(table)


def test_summary_by_hand(summary):
    assert tuple(summary.columns) == SUMMARY_COLUMNS
    fp32, int8 = summary.set_index("precision").loc[["fp32", "int8"]].itertuples()
    assert (fp32.seeds, fp32.seeds_reached, int8.seeds, int8.seeds_reached) == (2, 2, 2, 1)
    assert (fp32.steps_to_threshold, fp32.seconds_to_threshold) == (2000, 20)
    assert (int8.steps_to_threshold, int8.seconds_to_threshold) == (1000, 10)
    assert (int8.speedup, int8.time_ratio) == (2.0, 2.0)  # of seed 0 alone, which both reached
    assert math.isnan(int8.speedup_low)  # one pair has no interval
    assert (int8.paper_speedup, int8.paper_co2_ratio, fp32.paper_seconds) == (3.12, 2.39, 870.91)
    assert set(summary.energy_source) == {"modelled"}
    assert summary.algorithm.tolist() == ["D4PG", "D4PG"]


def test_energy_of_the_same_interval_without_the_evaluator(summary):
    fp32, int8 = summary.set_index("precision").loc[["fp32", "int8"]].itertuples()
    # CPU: 1 Wh a second, less the evaluator's 0.1 CPU seconds a second at 50 W; RAM half of the CPU's.
    cpu = {seconds: seconds * (3600 - 0.1 * 50) / 3.6e6 for seconds in (10, 20)}
    ram = {seconds: seconds * 1800 / 3.6e6 for seconds in (10, 20)}
    assert fp32.energy_kwh == pytest.approx(cpu[20] + ram[20])
    assert int8.energy_kwh == pytest.approx(cpu[10] + ram[10])
    assert int8.emissions_kg == pytest.approx(0.5 * int8.energy_kwh)
    assert int8.co2_ratio == pytest.approx(2.0)
    assert int8.co2_ratio_cpu == pytest.approx(2.0)


def test_who_was_busy(summary):
    fp32, int8 = summary.set_index("precision").loc[["fp32", "int8"]].itertuples()
    assert fp32.learner_busy == pytest.approx(0.8)
    assert fp32.actor_busy == pytest.approx(1.0 / 10.0)
    assert int8.actor_busy == pytest.approx(0.25 / 9.25)
    assert fp32.actor_us_per_step == pytest.approx(1000)
    assert int8.speedup_if_actor_bound == pytest.approx(4.0)
    assert int8.bound_by == "learner"
    assert "4.00 x" in sentences.bottleneck(summary)


@pytest.mark.parametrize(
    ("values", "needed", "expected"),
    [
        ([1, 9, 9, 9], 2, 1.0),
        ([9, 1, 9, 9], 2, 2.0),
        ([1, 9, 1, 9], 2, math.nan),
        ([1, 1, 9], 1, 2.0),
        ([8.99, 8.99], 1, math.nan),
    ],
)
def test_first_of_so_many_in_a_row(values, needed, expected):
    seconds = np.arange(len(values), dtype=float)
    evaluations = pd.DataFrame({"actor_steps": 10 * seconds, "wall_time_s": seconds, "episode_return": values})
    steps, reached = training_runs.reached(evaluations, 9.0, needed)
    np.testing.assert_equal((steps, reached), (10 * expected, expected))


def test_threshold_0_is_95_percent_of_the_best_fp32_return(table):
    without = table.assign(threshold=table.threshold.where(table.threshold.isna(), 0.0))
    best = training_runs.curves(table).query("precision == 'fp32'").running_return.max()
    assert summarize(without).threshold.tolist() == [pytest.approx(0.95 * best)] * 2
    assert (
        training_runs._paper_threshold(
            pd.Series({("t", "dqn", "fp32", 0): -100.0}).rename_axis(training_runs.RUN_KEYS), "t"
        )
        == -105.0
    )


def test_speedup_is_paired_by_seed():
    # fp32 takes 20 s with both seeds, int8 10 s and 20 s: ratios 2 and 1, logarithms 1 and 0 in units of log 2.
    slow, fast = {0: 700, 10: 850, 20: 920, 30: 990}, {0: 700, 10: 910, 20: 950, 30: 980}
    rows = [run_rows("fp32", seed, slow, 1000.0 + 1000.0 * seed) for seed in (0, 1)]
    rows += [run_rows("int8", 0, fast, 250.0), run_rows("int8", 1, slow, 250.0)]
    summary = summarize(pd.concat(rows, ignore_index=True))
    int8 = summary.set_index("precision").loc["int8"]
    assert int8.speedup == pytest.approx(2**0.5)
    assert (int8.speedup_low, int8.speedup_high) == pytest.approx(
        (2 ** (0.5 - 0.5 * 12.7062), 2 ** (0.5 + 0.5 * 12.7062)), rel=1e-4
    )
    assert int8.speedup_if_actor_bound == pytest.approx((4 * 8) ** 0.5)
    assert (int8.co2_ratio, int8.co2_ratio_low) == pytest.approx((int8.speedup, int8.speedup_low))  # constant power
    assert "0.71 x as much CO2 as with fp32 actors [0.01, 57.80]" in sentences.energy(summary)
    assert "]: no difference is shown." in sentences.verdict(summary)


def test_energy_that_the_meter_did_not_see_is_in_no_ratio():
    curve = {10: 950, 20: 950, 30: 950}  # at its threshold before the meter's second reading
    rows = [run_rows(precision, 0, curve, 250.0) for precision in ("fp32", "int8")]
    int8 = summarize(pd.concat(rows, ignore_index=True)).set_index("precision").loc["int8"]
    assert int8.speedup == 1.0
    assert math.isnan(int8.co2_ratio)
    assert math.isnan(int8.energy_kwh)
    assert int8.energy_source == "not measured"
    assert sentences.energy(int8.to_frame().T).startswith("Energy was not measured: the runs were over before")


def test_curves_and_episodes(table):
    curves = training_runs.curves(table)
    one = curves[(curves.precision == "fp32") & (curves.seed == 0)]
    assert one.running_return.iloc[-1] == pytest.approx((700 + 850 + 920 + 990) / 4)
    episodes = training_runs.episodes(table)
    assert set(episodes.actor_id) == {-1, 0}
    assert len(episodes) == 4 * (8 + 4)
    assert set(training_runs.stages(table).stage) == {"sample", "learner_step", "env_step", "observe", "select_action"}
    assert training_runs.emissions(table).energy_kwh.tolist() == [pytest.approx(30 * 5400 / 3.6e6)] * 4


def throughput_table(factor_by_precision):
    rows = []
    for setup in study.lone_actors(study.Config(throughput_hidden=[8])):
        slower = 6.0 if setup.design == "authors" else 1.0 if setup.envs_per_actor == 1 else 0.4
        for turn, noise in enumerate((1.0, 1.3, 0.9), start=1):
            wall_s = noise * slower * factor_by_precision[setup.precision]
            common = {"task": setup.task, "hidden": "8", "design": setup.design, "precision": setup.precision,
                      "update_period": setup.update_period, "replay": setup.replay, "round": turn, "steps": 100,
                      "envs_per_actor": setup.envs_per_actor, "wall_s": wall_s}  # fmt: skip
            rows += [{**common, "stage": stage} for stage in ("env_step", "other")]
    return pd.DataFrame(rows)


def test_lone_actor_by_hand():
    speed = training_speed.summarize(throughput_table({"fp32": 1.0, "int8": 0.25, "int4": 0.2}))
    several = speed[speed.envs_per_actor == 8].set_index(["task", "replay", "precision"])
    replays, names = ("reverb", "local"), ("fp32", "int8")
    assert several.index.tolist() == [(t, r, n) for t in (BALANCE, "gym:CartPole-v0") for r in replays for n in names]
    for ratio, expected in (("over_one_env", 2.5), ("over_one_env_low", 2.5), ("over_one_env_high", 2.5)):
        assert several[ratio].tolist() == [pytest.approx(expected)] * 8
    assert several.over_fp32[BALANCE, "local", "int8"] == pytest.approx(4.0)
    assert several.over_authors.isna().all()
    said = sentences.copies_verdict(speed)
    assert f"{BALANCE}, Reverb: with 8 environments over one, fp32 2.50 x" in said
    assert "gym:CartPole-v0, shared memory: with 8 environments over one, fp32 2.50 x" in said
    assert "there int8 takes 4.00 x" in said
    alone = training_speed.of_one_environment(speed)
    ours = alone[alone.design == "packed"].set_index(["task", "precision", "update_period"])
    assert ours.loc[(BALANCE, "fp32", 300)].steps_per_s == pytest.approx(100)
    assert ours.loc[(BALANCE, "int8", 300)].over_fp32 == pytest.approx(4.0)
    assert ours.loc[(BALANCE, "int4", 300)].over_fp32 == pytest.approx(5.0)
    assert ours.loc[(BALANCE, "int8", 30)].over_authors == pytest.approx(6.0)
    assert math.isnan(ours.loc[("gym:CartPole-v0", "int8", 300)].over_authors)
    low, high = ours.loc[(BALANCE, "int8", 300)][["over_fp32_low", "over_fp32_high"]]
    assert low == pytest.approx(4.0) == high  # noise that hits both sides of a round cancels
    assert "int8 4.00 x" in sentences.speed_verdict(speed)


def test_set_ups_of_the_lone_actor_follow_the_parameters():
    config = study.Config(
        throughput_tasks=["gym:CartPole-v0"], throughput_precisions=["fp32", "int2", "fp16"],
        throughput_update_periods=[50, 20], throughput_authors_precision="fp16", throughput_hidden=[8, 4],
        throughput_steps=50, throughput_envs=[1, 4],
    )  # fmt: skip
    turns = study.lone_actors(config)
    found = [(one.design, one.precision, one.update_period) for one in turns if one.replay == "reverb"]
    assert found == [
        ("packed", "fp32", 50), ("packed", "int2", 50), ("packed", "fp16", 50), ("packed", "fp16", 20),
        ("packed", "fp32", 50), ("packed", "fp16", 50), ("authors", "fp16", 50), ("authors", "fp16", 20),
    ]  # fmt: skip
    assert [one.envs_per_actor for one in turns] == [1] * 4 + [4, 1, 4] * 2 + [1] * 2
    config = dataclasses.replace(config, throughput_envs=[1])
    assert [(one.replay, one.envs_per_actor) for one in study.lone_actors(config)] == [("reverb", 1)] * 6
    assert {(one.task, one.hidden) for one in study.lone_actors(config)} == {("gym:CartPole-v0", (8, 4))}


def test_what_is_said_of_the_lone_actor_stands_in_the_table(table, monkeypatch):
    from quarl_lib.actorq.bench import throughput

    blocks = throughput_table({"fp32": 1.0, "int8": 0.25, "int4": 0.2})
    monkeypatch.setattr(throughput, "measure", lambda turns, steps, rounds: blocks)
    measured = training_speed.measure(study.lone_actors(study.Config()), 300, 3)
    whole = pd.concat([table, measured], ignore_index=True)
    pd.testing.assert_frame_equal(training_speed.lone_actor(whole), training_speed.summarize(blocks), check_dtype=False)
    pd.testing.assert_frame_equal(summarize(whole), summarize(table))  # trained runs alone


def test_without_the_lone_actor_the_report_says_so(table, summary):
    none = training_speed.lone_actor(table)
    assert not len(none)
    assert "left out" in sentences.speed_verdict(none)
    said = sentences.key_figure(summary, none)
    assert said.startswith("Training with int8 actors is not shorter by more than chance")
    assert "it runs at 2.00 x the speed with fp32 actors (one seed: no interval)" in said
    assert said.endswith("; 3 of 4 runs reached their threshold.")
    assert "left out" in figures.lone_actor_panels(none).axes[0].texts[0].get_text()
    assert "left out" in figures.copies_panels(none).axes[0].texts[0].get_text()
    assert sentences.copies_verdict(none) == "The lone actor played one environment."


def test_words_and_figures_take_what_the_study_gives(table, summary):
    speed = training_speed.summarize(throughput_table({"fp32": 1.0, "int8": 0.25, "int4": 0.2}))
    assert "1 of 2 seeds" in sentences.verdict(summary)
    assert "2.00 x the speed with fp32 actors (one seed: no interval)." in sentences.verdict(summary)
    assert "modelled" in sentences.energy(summary)
    beside = sentences.beside_paper(summary).set_index("what")
    assert beside.loc[f"{BALANCE} int8: speedup over fp32", ["paper", "ours"]].tolist() == [3.12, 2.0]
    assert "3 of 4" in sentences.key_figure(summary, speed)
    curves = training_runs.curves(table)
    for clock in figures.CLOCKS:
        figure = figures.convergence_panels(curves, {BALANCE: 900.0}, clock)
        line = next(line for line in figure.axes[0].lines if line.get_label() == "fp32")
        assert line.get_ydata()[-1] == pytest.approx(curves[curves.precision == "fp32"].running_return.iloc[-1])
    bars = figures.ratio_panels(summary).axes[0].patches
    assert [bar.get_width() for bar in bars] == [2.0]
    drawn = [line.get_xdata() for line in figures.ratio_panels(summary).axes[0].lines]
    assert all(np.isfinite(np.asarray(x, float)).all() for x in drawn)  # one seed: no interval, no line
    assert len(figures.busy_panels(summary).axes[0].get_yticklabels()) == 2
    assert len(figures.lone_actor_panels(speed).axes) == 2
    panels = figures.copies_panels(speed).axes
    assert [len(ax.lines) for ax in panels] == [4, 4]  # fp32 and int8, each to both replays
    assert np.asarray(panels[0].lines[0].get_ydata(), float).tolist() == pytest.approx([100, 250])


def test_a_claim_says_which_way_and_why(summary):
    none = pd.DataFrame({"precision": [], "over_fp32": [], "envs_per_actor": [], "replay": []})
    shorter = summary.assign(speedup_low=1.5, speedup_high=2.5, bound_by="actor")
    assert sentences.key_figure(shorter, none).startswith(
        "Training with int8 actors is shorter on 1 of 1 tasks: it runs"
    )
    longer = summary.assign(speedup=0.5, speedup_low=0.4, speedup_high=0.6)
    assert "is longer on 1 of 1 tasks" in sentences.key_figure(longer, none)
    bound = summary.assign(bound_by="learner", learner_busy=0.97, actor_busy=0.25)
    said = "because the learner is the bottleneck (at work 97% of its time or more, an actor 25% or less)"
    assert said in sentences.key_figure(bound, none)


def test_what_quantized_actors_took_is_a_multiple_of_fp32s(summary):
    by_hand = summary.assign(co2_ratio=0.8, co2_ratio_low=0.5, co2_ratio_high=2.0, co2_ratio_cpu=1.25, time_ratio=0.5)
    (row,) = sentences.beside_fp32(by_hand).itertuples()
    assert (row.time, row.co2, row.co2_low, row.co2_high, row.co2_cpu) == (2.0, 1.25, 0.5, 2.0, 0.8)
    said = sentences.energy(by_hand)
    assert "with int8 actors training emitted 1.25 x as much CO2 as with fp32 actors [0.50, 2.00]" in said
    assert said.endswith("took 2.00 x as long.")


def test_episodes_so_far_are_read_while_they_are_written(tmp_path):
    for name, returns in (("a_fp32_seed0", [1.0, 3.0]), ("a_int8_seed0", [5.0])):
        logs = tmp_path / "runs" / name / "logs"
        logs.mkdir(parents=True)
        lines = [f'{{"wall_time_s": {n}, "episode_return": {value}}}\n' for n, value in enumerate(returns)]
        (logs / "episodes.actor0.jsonl").write_text("".join(lines) + '{"wall_ti')
    rows = training_runs.so_far(tmp_path)
    assert list(rows.run) == ["a_fp32_seed0", "a_fp32_seed0", "a_int8_seed0"]
    assert np.asarray(figures.so_far(rows).lines[0].get_ydata()).tolist() == [1.0, 2.0]
    assert training_runs.so_far(tmp_path / "nowhere").empty


def test_what_is_deployed_by_hand(table):
    evaluated = table.record == "evaluation"
    as_learned = table.assign(policy=evaluated.map({True: "learner", False: None}))
    as_run = table[evaluated & (table.precision == "int8")].assign(policy="actors")
    as_run["episode_return"] -= 50.0  # of seed 0: 650, 860, 900, 930
    ages = pd.DataFrame(
        [
            {"record": "timing", "part": "actor", "stage": "pull", "seconds": 0.0, "count": 1, "task": BALANCE,
             "algorithm": "d4pg", "precision": "int8", "seed": seed, "weights_age_steps": 80.0, "weights_age_s": 0.5,
             "weights_version": 7 + 2 * seed}
            for seed in (0, 1)
        ]
    )  # fmt: skip
    summary = summarize(pd.concat([as_learned, as_run, ages], ignore_index=True)).set_index("precision")
    assert summary.loc["int8"].seconds_to_threshold == 10
    assert summary.loc["int8"].seconds_to_threshold_quantized == 20
    assert summary.loc["int8"].best_return == summary.loc["int8"].best_return_quantized + 50
    assert summary.loc["fp32"].best_return == summary.loc["fp32"].best_return_quantized  # it is the learner's own
    assert summary.loc["fp32"].seconds_to_threshold_quantized == 20
    assert (summary.loc["int8"].weights_age_steps, summary.loc["int8"].weights_age_s) == (80.0, 0.5)
    assert summary.loc["int8"].weights_version == 8  # the median over seeds of the newest that ran
    said = sentences.deployed(summary.reset_index())
    assert "80 steps (0.50 s) old" in said
    assert "the last were version 8." in said


def test_a_study_without_lone_actor_or_episodes_ends(table):
    bare = table[table.record != "episode"]
    assert set(training_runs.episodes(bare).actor_id) == {-1}
    speed = training_speed.lone_actor(bare)
    assert speed.empty
    assert "left out" in sentences.speed_verdict(speed)
    figures.lone_actor_panels(speed)
    assert sentences.key_figure(summarize(bare), speed).endswith("3 of 4 runs reached their threshold.")


def test_one_policy_evaluated_twice_counts_once():
    evaluations = pd.DataFrame(
        {"actor_steps": [10, 20, 30], "wall_time_s": [1.0, 2.0, 3.0], "learner_steps": [5, 5, 9],
         "episode_return": [9.0, 9.0, 9.0]}
    )  # fmt: skip
    np.testing.assert_equal(training_runs.reached(evaluations, 9.0, 2), (10.0, 1.0))
    np.testing.assert_equal(training_runs.reached(evaluations[:2], 9.0, 2), (math.nan, math.nan))


def test_finished_cells_are_kept_and_the_others_resumed(tmp_path, monkeypatch, table):
    from quarl_lib.actorq.launch import local

    monkeypatch.setenv("QUARL_RUN_DIR", str(tmp_path))
    monkeypatch.setattr(training_runs, "long_form", lambda logged, options, threshold, folder: logged["it"])
    config = study.Config(throughput_rounds=0)
    called = []

    def train(options, directory, progress):
        called.append((directory.name, options.resume))
        if len(called) == 3:
            raise KeyboardInterrupt
        return {"it": table.assign(precision=options.precision)}

    def train_peer(run, say):
        beside.append(run.name)
        return pd.DataFrame([{"record": "peer", "task": run.options.task}])

    beside: list[str] = []
    monkeypatch.setattr(local, "run", train)
    monkeypatch.setattr(study.peers, "train", train_peer)
    with pytest.raises(KeyboardInterrupt):
        study.run(config)
    names = [cell.name for cell in study.planned_runs(config)]
    study.run(config)
    assert called == [(name, True) for name in (*names[:3], *names[2:])]
    assert beside == ["dm_control-cartpole-balance_sb3_sac_seed0", "gym-CartPole-v0_sb3_dqn_seed0"]
    study.run(dataclasses.replace(config, sigma_max=0.5))  # by other options: nothing of it is taken
    assert [name for name, _ in called[5:]] == names


def test_runs_that_ended_before_the_learners_first_step(table):
    summary = summarize(table[table.get("part") != "learner"])
    assert summary.learner_busy.isna().all()
    assert set(summary.bound_by) == {"unknown"}
    assert "int8: the runs ended before the learner's first step." in sentences.bottleneck(summary)
    figures.busy_panels(summary)


def test_run_that_ended_before_anything_was_timed():
    assert all(map(math.isnan, trained.busy(pd.DataFrame(), 1).values()))
    assert all(map(math.isnan, trained.ages(pd.DataFrame({"record": ["run"]})).values()))


def test_nothing_reached_is_said_and_drawn(table):
    summary = summarize(table.assign(threshold=table.threshold * 2))
    assert summary.seeds_reached.tolist() == [0, 0]
    assert summary.speedup.isna().all()
    assert "0 of 2 seeds" in sentences.verdict(summary)
    figures.ratio_panels(summary)


def test_precisions_take_turns_and_stay_side_by_side():
    config = study.Config(seeds=[0, 1])
    order = [(run.task, run.seed, run.precision) for run in study.planned_runs(config)]
    assert [precision for _, _, precision in order] == ["fp32", "int8", "int8", "fp32"] * 2
    assert [seed for _, seed, _ in order] == [0, 0, 1, 1] * 2


@pytest.mark.parametrize(
    ("changes", "needle"),
    [
        ({"tasks": []}, "tasks"),
        ({"thresholds": [1.0]}, "thresholds"),
        ({"actor_steps": [5000]}, "actor_steps"),
        ({"precisions": ["int8"]}, "fp32"),
        ({"precisions": ["fp32", "int9"]}, "int9"),
        ({"algorithm": "sac"}, "sac"),
        ({"algorithm": "dqn"}, "continuous"),
        ({"thresholds": [0.0, 195.0]}, "stop_at_threshold"),
        ({"throughput_steps": 10}, "throughput_steps"),
        ({"throughput_tasks": []}, "throughput_tasks"),
        ({"throughput_envs": [8]}, r"throughput_envs=\[8\].*leave 1 in"),
        ({"envs_per_actor": 0}, "envs_per_actor=0"),
        ({"throughput_precisions": ["fp32", "int4"]}, "throughput_authors_precision='int8'"),
        ({"throughput_precisions": ["fp32", "int4"], "throughput_authors_precision": "int4"}, "authors' recipe has"),
        ({"min_replay": 10**7}, "min_replay"),
        ({"vmin": 200.0}, "vmin"),
        ({"thresholds": [math.nan, 40.0]}, "thresholds"),
        ({"import_modules": ["no_such_module"]}, "no_such_module"),
        ({"launcher": "virtual", "transport": "reverb"}, "give transport='shared_memory'"),
        ({"launcher": "virtual", "replay": "reverb"}, "give transport='shared_memory'"),
    ],
)
def test_bad_parameters_are_named(changes, needle):
    with pytest.raises(ValueError, match=needle):
        study.Config(**changes)


@pytest.mark.slow
def test_both_algorithms_for_real(tmp_path, monkeypatch):
    monkeypatch.setenv("QUARL_RUN_DIR", str(tmp_path))
    config = dataclasses.replace(
        study.Config(), thresholds=[2000.0, 2000.0], actor_steps=[1600, 1600], throughput_rounds=1, eval_period=800
    )
    seen = []
    table = study.run(config, lambda done, total, what: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]
    summary = summarize(table)
    assert summary.precision.tolist() == ["fp32", "int8", "fp32", "int8"]
    assert summary.seeds_reached.tolist() == [0] * 4
    assert np.isfinite(summary[["best_return", "learner_busy", "actor_us_per_step"]]).all().all()
    stages = training_runs.stages(table)
    assert {"env_step", "select_action", "observe", "pull", "load_weights", "sample", "learner_step", "quantize",
            "broadcast"} <= set(stages.stage)  # fmt: skip
    assert (training_speed.lone_actor(table).steps_per_s > 0).all()
    for run in study.planned_runs(config):
        assert (tmp_path / "runs" / run.name / "emissions.csv").stat().st_size > 100
        assert not list((tmp_path / "runs" / run.name / "snapshots").glob("*"))
