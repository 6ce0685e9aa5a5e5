"""Core hours: the model and every study's account by hand, and the command on a finished run."""

from __future__ import annotations

import importlib
import json
import math
import re
import types
from pathlib import Path

import pandas as pd
import pytest

from quarl_lib import cli
from quarl_lib.actorq.config import Config
from quarl_lib.results import PROJECT
from quarl_lib.studies.actor_scaling import work as actor_scaling
from quarl_lib.studies.common import work
from quarl_lib.studies.common.agents import expected_agents
from quarl_lib.studies.common.estimate import Estimate, columns, estimate, row, total
from quarl_lib.studies.common.work import Account, Work, core_seconds, trainings, updates
from quarl_lib.studies.ptq_study import work as ptq_study
from quarl_lib.studies.qat_bit_sweep import work as qat_bit_sweep
from quarl_lib.suite import catalog

STUDIES = catalog.find_studies(PROJECT)


def finished(tmp_path, table=None, summary=None, cores=2, **record):
    """Return a finished run that says what a test wants."""
    (tmp_path / "provenance.json").write_text(json.dumps({"cores": cores}))
    record = {"parameters": {"workers": 0, "retrain": False}, "duration_s": 100.0, **record}
    return types.SimpleNamespace(directory=tmp_path, record=record, table=table, saved=lambda name: summary)


def test_hours_by_hand():
    # Ten hours of a core in eight cells of an hour and one of two.
    cells = [Work("step", 3600.0)] * 8 + [Work("step", 7200.0)]
    found = estimate(Account(cells, {"step": 1.0}, "by hand"), nodes=[1, 2, 16], cores=2)
    assert found == Estimate(9, 0, 0, 10.0, (5.0, 2.5, 2.0))  # never below the longest cell
    phases = [Work("step", 3600.0), Work("step", 3600.0, phase=1)]
    assert estimate(Account(phases, {"step": 1.0}, ""), [1], 8).hours == (2.0,)  # the second waits for the first
    # A training holds three cores of two: it takes half as long again. On one machine, one after the other.
    held = Account([Work("update", 3600.0, cores=3)] * 2, {"update": 1.0}, "", one_machine=True)
    assert estimate(held, [1, 4], 2) == Estimate(2, 0, 0, 6.0, (3.0, 3.0))
    assert estimate(held, [1], 4).hours == (2.0,)
    with pytest.raises(ValueError, match=r"nodes=\[0\], cores=2: give whole numbers"):
        estimate(held, [0], 2)


def test_what_was_not_measured_is_at_the_mean_or_left_out_and_both_are_said():
    cells = [Work("known", 3600.0), Work("new", 3600.0)]
    at_mean = Account(cells, {"known": 1.0}, "timed", mean=3.0)
    found = estimate(at_mean, [1, 2], 1)
    assert found == Estimate(2, 1, 0, 4.0, (4.0, 3.0))
    line = row("study", found, [1, 2], at_mean)
    assert [line[name] for name in columns([1, 2])] == ["study", "2", "~ 4", "~ 4", "~ 3"]
    assert line["note"] == "timed; cells of kinds that were not measured: 1, at the mean of those that were"
    without = Account(cells, {"known": 1.0}, "timed", left_out="starts", one_machine=True)
    found = estimate(without, [1], 1)
    assert found == Estimate(2, 0, 1, 1.0, (1.0,))
    line = row("study", found, [1], without)
    assert line["core hours"] == "≥ 1"
    assert line["note"].endswith("1, left out; stays on one machine, one cell after the other; not in it: starts")
    assert row("study", Estimate(1, 0, 0, 1234.4, (0.0123,)), [1])["core hours"] == "1,234"
    assert row("study", Estimate(1, 0, 0, 1234.4, (0.0123,)), [1])["1 node"] == "0.012"
    nothing = estimate(Account(cells, {}, "no finished run"), [1], 1)
    assert row("study", nothing, [1])["core hours"] == "-"
    assert total([found, nothing]) == Estimate(4, 0, 3, 1.0, (1.0,))


def test_trainings_by_hand():
    config = Config(actor_steps=40_000, samples_per_insert=16.0, batch_size=256, n_actors=4, max_replay=50_000)
    assert updates(config) == 2500
    runs = [config, config.replace(seed=1), config.replace(batch_size=64), config.replace(max_seconds=100.0)]
    asked: list[int] = []

    def seconds(options):
        asked.append(options.batch_size)
        return 0.5

    cells, took = trainings(runs, seconds)
    assert asked == [256, 64]  # once for every kind
    assert [cell.units for cell in cells] == [2500, 2500, 10_000, 200]  # a run of 100 s holds 200 updates
    assert {cell.cores for cell in cells} == {5}
    assert took == {
        "d4pg 128x128x128, critic 256x256, batch 256": 0.5,
        "d4pg 128x128x128, critic 256x256, batch 64": 0.5,
    }


def test_an_update_is_measured_and_takes_longer_with_a_larger_network(monkeypatch):
    monkeypatch.setattr(work, "_updates", {})
    small = Config(policy_hidden=(16,), critic_hidden=(16,), min_replay=100, batch_size=64)
    large = small.replace(policy_hidden=(1024, 1024), critic_hidden=(1024, 1024))
    assert 0 < work.measured_update(small) < work.measured_update(large)
    assert work.measured_update(small.replace(seed=1)) == work.measured_update(small)  # the same kind


def test_a_duration_counts_the_cores_that_were_used(tmp_path):
    assert core_seconds(finished(tmp_path), tasks=8) == 200.0
    assert core_seconds(finished(tmp_path), tasks=1) == 100.0
    assert core_seconds(finished(tmp_path, parameters={"workers": 1}), tasks=8) == 100.0
    assert core_seconds(finished(tmp_path, cluster="auto"), tasks=8) == (
        "the finished run was on a cluster, whose cores are not noted"
    )


def test_the_account_of_ptq_by_hand(tmp_path):
    config = ptq_study.Config(
        algorithms=["PPO"], precisions=["fp32", "int8"], quantizers=["paper"], engines=["simulated"], disturbances=[],
        episodes=10,
    )  # fmt: skip
    # 200 s of a core for 400 steps: half a second a step. Ten cells, each of one episode.
    played = {"algorithm": "PPO", "agent": "a", "quantizer": "paper", "observation": "none", "engine": "simulated",
              "disturbance": "none", "error": ""}  # fmt: skip
    rows = [{**played, "env_id": "CartPole-v1", "precision": str(number), "episode_length": 40} for number in range(10)]
    account = ptq_study.account(config, finished(tmp_path, pd.DataFrame(rows)))
    assert account.seconds == {"PPO/CartPole-v1": 20.0}
    assert account.mean == 20.0
    # fp32, int8 and random actions, on CartPole and on Pendulum, which was not played
    assert sorted(cell.kind for cell in account.cells) == ["PPO/CartPole-v1"] * 3 + ["PPO/Pendulum-v1"] * 3
    assert {cell.units for cell in account.cells} == {10}
    found = estimate(account, [1], 1)
    assert (found.cells, found.at_mean, found.core_hours) == (6, 3, pytest.approx(60 * 20 / 3600))
    assert found.hours == pytest.approx((1 / 3,))
    trained = finished(tmp_path, pd.DataFrame(rows), parameters={"workers": 0, "retrain": True})
    assert ptq_study.account(config, trained).seconds == {}


def test_agents_that_are_yet_to_be_trained_are_counted_and_none_is(tmp_path):
    files, training = expected_agents(str(tmp_path), ["PPO", "DQN"], ["CartPole-v1"], retrain=True)
    assert sorted(file.name for file in files) == ["dqn/CartPole-v1", "ppo/CartPole-v1"]
    assert training == "2 agents for 160,000 steps"
    assert not list(tmp_path.iterdir())


def test_the_account_of_the_bit_sweep_by_hand(tmp_path):
    config = qat_bit_sweep.Config(
        agents=["PPO/CartPole-v1/4000"], bits=["int4"], methods=["qat", "fine_tune"], fine_tune_steps=2000
    )
    cell = {"algorithm": "PPO", "env_id": "CartPole-v1", "grid": "engine", "weight_bits": 4, "activation_bits": 4,
            "observation_bits": 8, "edge_bits": 8, "variant": "", "seed": 0, "actor_steps": 1000}  # fmt: skip
    rows = [{**cell, "method": "fp32_scratch", "training_cpu_s": 2.0}] * 3  # a row an episode
    rows += [{**cell, "method": "qat", "training_cpu_s": 4.0}, {**cell, "method": "ptq", "training_cpu_s": math.nan}]
    account = qat_bit_sweep.account(config, finished(tmp_path, pd.DataFrame(rows)))
    assert account.seconds == {"PPO/CartPole-v1 fp32": 0.002, "PPO/CartPole-v1 qat": 0.004}
    assert account.mean == pytest.approx(0.003)
    assert [(one.kind.split()[-1], one.units, one.phase) for one in account.cells] == (
        [("fp32", 4000, 0), ("qat", 4000, 0)] * 2 + [("fine_tune", 2000, 1)] * 2
    )
    # 2 * (8 + 16) s, and fine-tuning at the mean: 2 * 6 s; on many cores the longest of each phase
    found = estimate(account, [1], 64)
    assert (found.cells, found.at_mean, found.core_hours) == (6, 2, pytest.approx(60 / 3600))
    assert found.hours == pytest.approx((22 / 3600,))


def test_the_account_of_actor_scaling_by_hand(tmp_path):
    config = actor_scaling.Config(actors=[1, 2], rounds=2, actor_steps=1000, policy_hidden=[64])
    summary = pd.DataFrame(
        {"precision": ["fp32", "fp32", "int8"], "n_actors": [1, 2, 1], "actor_us": [900, 900, 300.0]}
    )
    done = finished(tmp_path, summary=summary, parameters={"policy_hidden": [64]})
    account = actor_scaling.account(config, done)
    # Two rounds of 0.9 + 0.45 s at fp32 and 0.3 + 0.15 s at int8.
    assert estimate(account, [1, 4], 4).hours == pytest.approx((3.6 / 3600,) * 2)
    other = actor_scaling.account(actor_scaling.Config(policy_hidden=[128]), done)
    assert estimate(other, [1], 4).left_out == len(other.cells)  # another network


@pytest.mark.parametrize("study", STUDIES.values(), ids=lambda study: study.name)
def test_every_study_says_what_its_paper_preset_has_to_do(study, monkeypatch):
    module = importlib.import_module(f"quarl_lib.studies.{study.name}.work")
    if hasattr(module, "measured_update"):
        monkeypatch.setattr(module, "measured_update", lambda options: 0.5)
    account = module.account(module.Config(**study.preset("paper")), None)
    assert account.cells
    assert all(cell.units > 0 and cell.cores >= 1 for cell in account.cells)
    leaves = study.name in (
        "ptq_study",
        "action_distributions",
        "qat_bit_sweep",
        "quantized_rollouts",
        "training_at_scale",
    )
    assert account.one_machine != leaves  # these hand their cells to a pool


def suite_with(folder: Path) -> None:
    """Write a finished run of the study of rollouts: 4096 steps in 8 s of a processor."""
    run = folder / "quantized_rollouts" / "laptop-12345678"
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"state": "ok", "started": 1.0, "cpu": "a processor", "parameters": {}}))
    training = {"record": "training", "algorithm": "PPO", "env_id": "CartPole-v1", "n_envs": 1, "hidden": "64-64"}
    rows = [{**training, "seconds": seconds, "actor_steps": 2048} for seconds in (5.0, 3.0)]
    pd.DataFrame(rows).to_parquet(run / "results.parquet")


def test_the_command_of_the_page_on_a_finished_suite(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    suite_with(tmp_path / "outputs" / "laptop")
    page = (PROJECT / "docs" / "cluster.md").read_text()
    (said,) = re.findall(r"^\.venv/bin/quarl (estimate .*)$", page, re.MULTILINE)
    assert f"quarl {said}" in (PROJECT / "README.md").read_text()
    words = said.replace("all", "quantized_rollouts").replace("outputs", str(tmp_path / "outputs")).split()
    recipe = "PPO/CartPole-v1/460800/1/64-64"  # in five variants: plain, fp32, int8, int4, int2
    assert cli.main([*words, "-p", f"recipes={recipe}", "-p", "corrections=behaviour", "-p", "seeds=0,1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Modelled: preset paper; hours on nodes of 16 cores; units of work as in {tmp_path}")
    assert "on a processor\n" in out
    # 5 * 460,800 steps of 8 / 4096 s are 4,500 s a seed.
    assert re.search(r"quantized_rollouts +2 +2\.5 +1\.2 +1\.2 +1\.2\n", out), out
    assert "processor time of the finished run's trainings, by environment steps" in out


def test_the_command_without_a_run_and_for_a_study_of_ones_own(project, tmp_path, capsys):
    assert cli.main(["estimate", "dice", "--preset", "smoke"]) == 0
    out = capsys.readouterr().out
    assert "no finished run in" in out
    assert "no quarl_lib.studies.dice.work says what it has to do" in out
    assert cli.main(["estimate", "dice", "--from", str(tmp_path / "none")]) == 2
    assert "there is no such folder" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["estimate", "--nodes", "1,0"])
    assert "'1,0': write whole numbers such as 1,4,16" in capsys.readouterr().err
