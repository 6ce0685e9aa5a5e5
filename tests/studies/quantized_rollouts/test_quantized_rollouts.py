"""The study of quantized rollouts: trainings in turns, paired by seed, on hand-made tables and tiny runs."""

from __future__ import annotations

import random
import time

import numpy as np
import pandas as pd
import pytest
import torch

from quarl_lib.studies.quantized_rollouts import Config, figures, run, sentences, summarize
from quarl_lib.studies.quantized_rollouts.cells import RolloutRecipe, TrainingTask, Variant, measure
from quarl_lib.studies.quantized_rollouts.study import SUMMARY_COLUMNS, final_returns, variants_of
from quarl_lib.studies.quantized_rollouts.turns import in_turns

PPO = "PPO/CartPole-v1/400/128/8-8"  # a rollout takes 2048 steps: side by side they are quick


def drawing(seed: int, log: list[int]):
    def job(pause):
        random.seed(seed), np.random.seed(seed), torch.manual_seed(seed)  # noqa: NPY002
        drawn = []
        for _ in range(3):
            log.append(seed)
            drawn.append((random.random(), np.random.rand(), torch.rand(1).item()))  # noqa: NPY002
            pause()
        return drawn

    return job


def test_turns_alternate_and_each_draws_as_if_alone():
    together: list[int] = []
    answers = in_turns([drawing(seed, together) for seed in (1, 2, 3)])
    assert together == [1, 2, 3] * 3
    for seed, answer in zip((1, 2, 3), answers, strict=True):
        assert answer == in_turns([drawing(seed, [])])[0]


def test_turns_raise_what_one_raised_after_the_others_ended():
    ended = []

    def fails(pause):
        pause()
        raise ValueError("gone")

    def goes_on(pause):
        for _ in range(4):
            pause()
        ended.append(True)

    with pytest.raises(ValueError, match="gone"):
        in_turns([fails, goes_on])
    assert ended == [True]


def test_thread_time_counts_only_ones_own_turns():
    def job(rounds):
        def work(pause):
            begin = time.thread_time()
            for _ in range(rounds):
                sum(range(60_000))
                pause()
            return time.thread_time() - begin

        return work

    little, much = in_turns([job(2), job(40)])
    assert little < 0.5 * much


def test_every_variant_is_the_training_that_it_would_be_alone():
    recipe = RolloutRecipe.parse(PPO)
    both = measure(TrainingTask(recipe, (Variant("plain", "behaviour"), Variant("int4", "none")), 0, 10.0))
    alone = measure(TrainingTask(recipe, (Variant("int4", "none"),), 0, 10.0))
    one = both[(both.precision == "int4") & (both.record == "episode")][["step", "episode_return"]]
    two = alone[alone.record == "episode"][["step", "episode_return"]]
    pd.testing.assert_frame_equal(one.reset_index(drop=True), two.reset_index(drop=True))
    training = both[both.record == "training"].set_index("precision")
    assert 0 < training.inference_share["plain"] < 1
    assert (training.energy_kwh / training.seconds).to_numpy() == pytest.approx(10 / 3.6e6)
    assert training.payload_bytes["int4"] > 0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"recipes": ["PPO/CartPole-v1/0/1/64"]}, "give algorithm/environment"),
        ({"recipes": ["PPO/CartPole-v1/100/1/64-x"]}, "give algorithm/environment"),
        ({"recipes": ["TRPO/CartPole-v1/100/1/64"]}, "choose an algorithm"),
        ({"precisions": ["fp32"]}, "leave plain in"),
        ({"precisions": ["plain"]}, "and an engine's beside it"),
        ({"precisions": ["plain", "int5"]}, "int5"),
        ({"corrections": ["none"]}, "leave behaviour in"),
        ({"corrections": ["behaviour", "all"]}, "all"),
        ({"seeds": []}, "seeds"),
        ({"cpu_watts": 0.0}, "cpu_watts"),
        ({"workers": -1}, "workers"),
    ],
)
def test_config_names_what_is_wrong(options, why):
    with pytest.raises(ValueError, match=why):
        Config(**options)


def test_corrections_are_measured_where_they_show():
    config = Config(precisions=["plain", "int4", "int8"], corrections=["behaviour", "none", "truncated"])
    names = {text: [str(v) for v in variants_of(config, RolloutRecipe.parse(text))] for text in (PPO, "A2C" + PPO[3:])}
    assert names[PPO] == ["plain", "int8", "int4", "int4 none"]
    assert names["A2C" + PPO[3:]] == ["plain", "int8", "int4", "int4 truncated"]
    dqn = RolloutRecipe.parse("DQN/CartPole-v1/100/1/64-64/2")
    assert [str(v) for v in variants_of(config, dqn)] == ["plain", "int8", "int4"]
    assert dqn.seeds == 2


def made_table() -> pd.DataFrame:
    """Return two seeds of plain and two engines: twice as fast, one of them 50 worse."""
    rows = []
    for seed, slow in ((0, 4.0), (1, 9.0)):
        for precision, seconds, final in (
            ("plain", slow, 100.0),
            ("fp32", slow / 2, 101.0 - 2 * seed),
            ("int8", slow / 2, 50.0),
        ):
            keys = {"algorithm": "PPO", "env_id": "CartPole-v1", "n_envs": 1, "hidden": "64-64", "actor_steps": 1000}
            keys |= {"precision": precision, "correction": "behaviour", "seed": seed}
            share = 0.6 if precision == "plain" else np.nan
            rows.append(
                {**keys, "record": "training", "seconds": seconds, "energy_kwh": seconds, "inference_share": share}
            )
            for step, episode_return in ((100, 10.0), (750, 0.0), (751, final), (1000, final)):
                rows.append({**keys, "record": "episode", "step": step, "episode_return": episode_return})
    return pd.DataFrame(rows)  # fmt: skip


def test_summary_of_a_table_worked_out_by_hand():
    summary = summarize(made_table())
    assert tuple(summary.columns) == SUMMARY_COLUMNS
    by = summary.set_index("precision")
    assert by.speedup.to_dict() == pytest.approx({"plain": 1, "fp32": 2, "int8": 2})
    assert by.speedup_low["int8"] == pytest.approx(2)
    assert by.limit_speedup["fp32"] == pytest.approx(2.5)
    assert by.mean_return.to_dict() == pytest.approx({"plain": 100, "fp32": 100, "int8": 50})
    assert by.return_range.eq(100).all()
    assert by.paired_difference.to_dict() == pytest.approx({"plain": 0, "fp32": 0, "int8": -50})
    assert by.learns_alike.to_dict() == {"plain": True, "fp32": True, "int8": False}
    assert by.tells_a_fifth["fp32"] == (12.71 < 20)  # t of one degree of freedom times 1, against a fifth of 100
    assert by.seconds["int8"] == pytest.approx(3.25)
    assert sentences.learning(summary).startswith("In 1 of 2 cells")
    assert "PPO CartPole-v1, 1 env, 64-64 int8 behaviour -50 [-50, -50]" in sentences.learning(summary)
    assert "int8 over the fp32 engine is 1.00 to 1.00 x" in sentences.bits_beside_engine(summary)
    assert "2.00 x [2.00, 2.00] at int8; inference was 60% of plain's time" in sentences.speed(summary)
    assert "PPO trains on CartPole-v1 at 2.00 x [2.00, 2.00] its plain speed" in sentences.key_figure(summary)
    assert sentences.corrections(summary) == "No other correction was measured."


def test_final_return_of_a_training_without_late_episodes_is_its_last_one():
    table = made_table()
    table = table[~(table.step > 750)]
    assert final_returns(table).final_return.eq(0.0).all()


def test_a_tiny_run_fills_every_column_and_figure():
    config = Config(
        recipes=[PPO, "TD3/Pendulum-v1/510/1/8-8/1"], corrections=["behaviour", "none"], seeds=[0, 1], workers=1,
        precisions=["plain", "int8"],
    )  # fmt: skip
    seen = []
    table = run(config, lambda *call: seen.append(call))
    assert seen[-1][:2] == (3, 3)
    summary = summarize(table)
    assert list(summary.precision) == ["plain", "int8", "int8", "plain", "int8"]
    assert summary.seeds.tolist() == [2, 2, 2, 1, 1]
    needed = [c for c in SUMMARY_COLUMNS if not c.endswith(("_low", "_high"))]
    assert summary[needed].notna().all().all()
    panels = figures.return_panels(table)
    assert [ax.get_title() for ax in panels.axes] == ["PPO CartPole, 128 envs, 8-8", "TD3 Pendulum, 1 env, 8-8"]
    speed = figures.speedup_over_share(summary)
    assert len(speed.containers) == 1
    assert figures.correction_effect(summary).get_yticklabels()[0].get_text() == "PPO CartPole, 128 envs, 8-8"
    assert "no interval" in sentences.speed(summary)
