"""The QAT sweep: real tiny trainings, cells that are never trained twice, and summaries by hand."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from importlib import metadata

import numpy as np
import pandas as pd
import pytest

from quarl_lib.inference.pack import packed_size
from quarl_lib.sb3 import SHIPPED_AGENTS, load_agent, tuning
from quarl_lib.sb3.spec import agent_spec
from quarl_lib.studies.qat_bit_sweep import cells, figures, sentences, study
from quarl_lib.studies.qat_bit_sweep.bits import Bits
from quarl_lib.studies.qat_bit_sweep.costs import of_agents
from quarl_lib.studies.qat_bit_sweep.summary import SUMMARY_COLUMNS, summarize

BITS = ("weight_bits", "activation_bits", "observation_bits", "edge_bits")


def tiny(tmp_path, **options) -> study.Config:
    defaults = {
        "agents": ["A2C/CartPole-v1/400"], "start_from": "", "bits": ["2"], "methods": ["qat"], "fine_tune_steps": 40,
        "episodes": 2, "calibration_steps": 50, "workers": 1,
    }  # fmt: skip
    return study.Config(**{**defaults, "cells_dir": str(tmp_path / "cells"), **options})


def stamps_of(tmp_path) -> dict[str, int]:
    """Return when each finished cell was written."""
    return {path.parent.name: path.stat().st_mtime_ns for path in tmp_path.glob("cells/*/episodes.parquet")}


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Return config and table of a sweep over every method, all trained here."""
    config = tiny(
        tmp_path_factory.mktemp("sweep"), methods=list(study.METHODS), bits=["4", "2/2/8"], fine_tune_steps=400
    )
    return config, study.run(config)


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """Return config and table of a sweep over archives: for one of two agents there is training from scratch too."""
    folder = tmp_path_factory.mktemp("started")
    agents = ["A2C/CartPole-v1/400", "DDPG/Pendulum-v1"]
    config = tiny(folder, agents=agents, start_from="shipped", bits=["int4"], methods=["qat", "fine_tune"], seeds=[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "TRIALS", 1)
        return config, study.run(config)


def test_every_policy_is_a_cell_and_methods_play_the_same_episodes(swept):
    _, table = swept
    cells = table.groupby(["method", *BITS]).size()
    assert (cells == 2 * 2).all()  # seeds, episodes
    assert sorted(set(table.method)) == ["fine_tune", "fine_tune_lsq", "fp32", "lsq", "ptq", "qat", "random"]
    for method in ("qat", "lsq", "fine_tune", "fine_tune_lsq", "ptq"):
        assert {key[1:] for key in cells.index if key[0] == method} == {(4, 4, 4, 4), (2, 2, 8, 2)}
    played = table.groupby(["seed", "method", *BITS]).episode_seed.apply(tuple)
    assert (played.groupby("seed").nunique() == 1).all()
    assert played.nunique() == 2  # each training seed has episodes of its own
    assert (table.training_cpu_s.isna() == table.method.isin(["ptq", "random"])).all()


def test_archives_are_the_fp32_that_is_rounded_and_tuned_beside_training_from_scratch(started):
    config, table = started
    summary = summarize(table)
    a2c, ddpg = (rows.set_index("method") for _, rows in summary.groupby("algorithm"))
    assert set(a2c.index) == {"fp32", "fp32_scratch", "ptq", "qat", "fine_tune"}
    assert set(ddpg.index) == {"fp32", "ptq", "fine_tune"}
    assert (a2c.start == ["a2c/CartPole-v1" if m in ("fp32", "ptq", "fine_tune") else "" for m in a2c.index]).all()
    assert a2c.mean_return["fp32"] == 500  # the archive's, not that of 400 steps
    assert a2c.mean_return["fp32_scratch"] < 100
    assert a2c.actor_steps.to_dict() == {"fp32": 0, "fp32_scratch": 400, "ptq": 0, "qat": 400, "fine_tune": 40}
    assert a2c[list(BITS)].loc["fine_tune"].tolist() == [4, 8, 16, 8]
    assert a2c.training_time_ratio.notna().to_dict() == {
        "fp32": False, "fp32_scratch": True, "ptq": False, "qat": True, "fine_tune": True,
    }  # fmt: skip
    assert ddpg.training_time_ratio.isna().all()
    assert "A2C CartPole-v1 500, DDPG Pendulum-v1 -1" in sentences.starts(summary)
    assert "Trained here in fp32 by the recipes: A2C CartPole-v1 " in sentences.starts(summary)
    assert a2c.converged.to_dict() == {
        "fp32": True, "fp32_scratch": False, "ptq": True, "qat": False, "fine_tune": True,
    }  # fmt: skip
    assert ddpg.converged.all()  # -200 and above
    assert sentences.not_converged(summary).startswith(
        "Not in the figure, since fp32 does not count as solved on every seed: A2C CartPole-v1 trained here ("
    )
    first, second = figures.return_panels(summary).axes
    assert {first.get_title(), second.get_title()} == {"CartPole-v1\nA2C, 1 seeds", "Pendulum-v1\nDDPG, 1 seeds"}
    levels = study.weight_levels(config)
    assert set(levels.method) == {"fp32", "qat", "fine_tune"}
    assert set(levels.layer) == {1, 2, 3}  # an archive's layers and a training's have one name
    assert (levels[levels.layer == 2].groupby("method")["count"].sum() == 64 * 64).all()


def test_what_a_policy_takes_stands_beside_its_return(started):
    config, table = started
    costs = of_agents(config)
    assert list(zip(costs.algorithm, costs.precision, strict=True)) == [
        ("A2C", "fp32"), ("A2C", "int4"), ("DDPG", "fp32"), ("DDPG", "int4"),
    ]  # fmt: skip
    archive = study.starts_of(config)[1].archive
    assert archive is not None
    spec, _ = agent_spec(load_agent(archive))
    assert list(costs.payload_bytes[2:]) == [packed_size(spec, "fp32"), packed_size(spec, "int4")]
    assert (costs.microseconds > 0).all()
    summary = summarize(table).assign(converged=True, without_loss=True)
    said = sentences.against_cost(summary, costs)
    assert f"A2C CartPole-v1 int4 (PTQ): {costs.payload_bytes[1]} bytes" in said
    assert "No policy on the engines' grid" in sentences.against_cost(summary.assign(without_loss=False), costs)
    panels = figures.cost_panels(summary, costs).axes
    assert [panel.get_title() for panel in panels] == ["CartPole-v1\nA2C, 1 seeds", "Pendulum-v1\nDDPG, 1 seeds"]
    (empty,) = figures.cost_panels(summary.assign(converged=False), costs).axes
    assert empty.get_title() == "no converged policy runs on an engine at these bits"


def test_trained_weights_have_as_many_levels_as_their_bits_allow(swept):
    config, _ = swept
    levels = study.weight_levels(config)
    for (method, bits, layer), rows in levels.groupby(["method", "weight_bits", "layer"]):
        if method != "fp32":
            assert 2 <= len(rows) <= 2**bits, (method, bits, layer)
    assert levels[levels.method == "fp32"].groupby("layer").size().max() > 4000
    assert (levels.groupby(["method", "bits"])["count"].sum() == 4 * 64 + 64 * 64 + 64 * 2).all()


def test_summary_verdict_and_figures_come_from_one_table(swept):
    config, table = swept
    summary = summarize(table)
    assert tuple(summary.columns) == SUMMARY_COLUMNS
    of_some = ["training_time_ratio", "ratio_low", "ratio_high", "fewest_bits_without_loss"]
    of_some += ["over_ptq", "over_ptq_low", "over_ptq_high", "normalized", "normalized_low", "normalized_high"]
    assert not summary.drop(columns=of_some).isna().any(axis=None)
    assert (summary[summary.method == "fp32"].training_time_ratio == 1).all()
    for words in (sentences.verdict, sentences.starts, sentences.cost, sentences.weights_kept):
        assert "CartPole" in words(summary)
    assert "fine-tuned wins" in sentences.against_ptq(summary)
    assert {"item", "paper", "ours", "setting"} <= set(sentences.beside_paper(summary).columns)
    assert not summary.converged.any()  # 400 steps
    assert "A2C CartPole-v1 trained here (" in sentences.not_converged(summary)
    (panel,) = figures.return_panels(summary).axes
    assert panel.get_title() == "no fp32 policy counts as solved on every seed"
    (panel,) = figures.return_panels(summary.assign(converged=True)).axes
    assert panel.get_title() == "CartPole-v1\nA2C, 2 seeds"
    assert [tick.get_text() for tick in panel.get_xticklabels()] == ["2", "4"]
    assert "without loss are 0 at 4 bits, 0 at 3 bits, 0 at 2 bits, of 1 agents" in sentences.beside_literature(summary)
    assert len(figures.weight_level_panels(study.weight_levels(config)).axes) == 1 + 2 * len(study.METHODS)
    assert figures.training_time(summary).get_xlabel().endswith("(← better)")


def test_a_finished_cell_is_never_trained_twice(tmp_path):
    first = study.run(tiny(tmp_path, seeds=[0]))
    stamps = stamps_of(tmp_path)
    pd.testing.assert_frame_equal(study.run(tiny(tmp_path, seeds=[0])), first)
    assert stamps_of(tmp_path) == stamps
    wider = tiny(tmp_path, seeds=[0, 1], bits=["2", "3"])
    study.run(wider)
    after = stamps_of(tmp_path)
    assert stamps.items() <= after.items()
    trained = study.cells_of(wider).trained
    assert sorted(cell.name for cell in trained if cell.directory.name not in stamps) == [
        "A2C CartPole-v1 fp32 seed 1", "A2C CartPole-v1 qat 2 bits seed 1",
        "A2C CartPole-v1 qat 3 bits seed 0", "A2C CartPole-v1 qat 3 bits seed 1",
    ]  # fmt: skip


def test_another_recipe_delay_or_code_is_another_cell(tmp_path):
    fp32, qat = study.cells_of(tiny(tmp_path, seeds=[0])).trained
    same_fp32, other_qat = study.cells_of(tiny(tmp_path, seeds=[0], delay_share=0.25)).trained
    assert fp32.directory == same_fp32.directory  # fp32 knows no delay
    assert qat.directory != other_qat.directory
    assert cells.dataclasses.replace(qat, sources="changed").directory != qat.directory


def test_another_archive_is_another_cell_and_fp32_from_scratch_is_not(tmp_path):
    folder = tmp_path / "agents" / "a2c" / "CartPole-v1"
    shutil.copytree(SHIPPED_AGENTS / "a2c" / "CartPole-v1", folder)

    def directories(**options):
        found = study.cells_of(tiny(tmp_path, **options))
        return [cell.directory for cell in found.trained], {cell.directory for cell in found.started}

    trained, started = directories(start_from=str(tmp_path / "agents"))
    (folder / "CartPole-v1.zip").write_bytes((SHIPPED_AGENTS / "ppo/CartPole-v1/CartPole-v1.zip").read_bytes())
    still_trained, otherwise_started = directories(start_from=str(tmp_path / "agents"))
    assert still_trained == trained == directories()[0]
    assert not started & otherwise_started


@pytest.mark.parametrize("library", ["torch", "stable-baselines3", "gymnasium", "numpy"])
def test_another_version_of_a_library_is_another_cell(tmp_path, monkeypatch, library):
    first = study.cells_of(tiny(tmp_path, seeds=[0]))
    installed = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "99.9" if name == library else installed(name))
    second = study.cells_of(tiny(tmp_path, seeds=[0]))
    for cell, other in zip((*first.trained, *first.started), (*second.trained, *second.started), strict=True):
        assert other.directory != cell.directory
        assert f"{library} 99.9" in other.versions


def test_the_report_says_whose_weights_were_kept():
    agents = [("PPO", "CartPole-v1"), ("DQN", "CartPole-v1"), ("DQN", "CartPole-v1")]
    of_recipes = pd.DataFrame(agents, columns=["algorithm", "env_id"]).assign(method="qat", start="")
    said = sentences.weights_kept(of_recipes)
    last, best = said.split(". ")
    assert last.endswith("last weights, not the best, for PPO CartPole-v1")
    assert best.endswith("for DQN CartPole-v1 (every 2,000 steps).")
    assert "best in trials" not in sentences.weights_kept(of_recipes[:1])
    archives = [(name, "Mine-v0", "fine_tune", f"{name}/Mine-v0") for name in ("SAC", "DQN")]
    said = sentences.weights_kept(pd.DataFrame(archives, columns=of_recipes.columns))
    assert said.startswith("Fine-tuned: the best of 11 trials (SAC), 21 trials (DQN) of their own")  # no recipe missed


def test_the_same_cell_gives_the_same_numbers(tmp_path):
    tables = [study.run(tiny(tmp_path / name, seeds=[3])) for name in ("one", "two")]
    pd.testing.assert_frame_equal(*(table.drop(columns="training_cpu_s") for table in tables))


@pytest.mark.slow
def test_an_interrupted_sweep_goes_on_where_it_stood(tmp_path):
    code = (
        "from quarl_lib.studies import qat_bit_sweep as s\n"
        "if __name__ == '__main__':\n"
        f"    s.run(s.Config(agents=['A2C/CartPole-v1/6000'], start_from='', methods=['qat'], bits=['2', '3', '4'],"
        f" episodes=2, workers=2, cells_dir={str(tmp_path)!r}),"
        f" progress=lambda done, total, what: print(done, total, what, flush=True))\n"
    )
    script = tmp_path / "sweep.py"
    script.write_text(code)
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, start_new_session=True)
    while not process.stdout.readline().startswith("2 "):  # type: ignore[union-attr]
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(0.5)
    finished = {path.parent.name: path.stat().st_mtime_ns for path in tmp_path.glob("*/episodes.parquet")}
    assert len(finished) >= 2
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{len(finished)} 16 cells, finished earlier")
    assert "16 16 cells, about 0.0 min left" in done.stdout
    after = {path.parent.name: path.stat().st_mtime_ns for path in tmp_path.glob("*/episodes.parquet")}
    assert len(after) == 16
    assert all(after[name] == stamp for name, stamp in finished.items())
    assert not list(tmp_path.glob("*/*.part.*"))


def episodes(method: str, bits: int, returns: list[list[float]], seconds: float = float("nan")) -> pd.DataFrame:
    rows = [
        {"seed": seed, "episode": episode, "episode_return": value}
        for seed, line in enumerate(returns)
        for episode, value in enumerate(line)
    ]
    return pd.DataFrame(rows).assign(
        algorithm="PPO",
        env_id="CartPole-v1",
        start="",
        variant="",
        method=method,
        grid="affine",
        actor_steps=10,
        training_cpu_s=seconds,
        **dict.fromkeys(BITS, bits),
    )


def test_without_loss_means_not_inferior_and_differences_are_paired_by_seed():
    table = pd.concat(
        [
            episodes("random", 32, [[20, 20], [20, 20]]),
            episodes("fp32", 32, [[500, 500], [520, 520]], 10.0),
            episodes("qat", 8, [[496, 496], [516, 516]], 14.0),  # 4 below with no spread: within 5 % of 490
            episodes("qat", 4, [[450, 450], [470, 470]], 13.0),  # 50 below, surely
            episodes("qat", 3, [[100, 100], [900, 900]], 12.0),  # no worse on average, but nothing is shown
            episodes("ptq", 4, [[100, 120], [90, 80]]),
        ]
    )
    summary = summarize(table).set_index(["method", "weight_bits"])
    assert summary.without_loss.to_dict() == {
        ("fp32", 32): True, ("qat", 8): True, ("qat", 4): False, ("qat", 3): False, ("ptq", 4): False,
    }  # fmt: skip
    qat3, qat4 = summary.loc[("qat", 3)], summary.loc[("qat", 4)]
    assert qat3.paired_difference == -10
    assert (qat4.mean_return, qat4.relative_error, qat4.training_time_ratio) == pytest.approx((460, 50 / 510, 1.3))
    # Two seeds of 450 and 470: deviation 14.14, over the root of two 10, times 12.706 (t of one degree of freedom).
    assert (qat4.ci_low, qat4.ci_high) == pytest.approx((460 - 127.06, 460 + 127.06), abs=0.01)
    assert (qat4.paired_difference, qat4.paired_ci_low, qat4.paired_ci_high) == (-50, -50, -50)
    assert (qat4.normalized, qat4.normalized_low) == pytest.approx((1 - 50 / 490, 1 - 50 / 490))
    assert qat3.normalized == pytest.approx(1 - 10 / 490)
    # PTQ's seeds have 110 and 85: differences 340 and 385, mean 362.5, over the root of two 22.5.
    assert qat4.over_ptq == 362.5
    assert (qat4.over_ptq_low, qat4.over_ptq_high) == pytest.approx((362.5 - 285.9, 362.5 + 285.9), abs=0.1)
    assert np.isnan(summary.loc[("qat", 8)].over_ptq)  # no PTQ at 8 bits
    assert (qat4.ratio_low, qat4.ratio_high) == pytest.approx((1.3, 1.3))
    assert summary.loc[("qat", 8)].fewest_bits_without_loss == 8
    assert np.isnan(summary.loc[("ptq", 4)].fewest_bits_without_loss)
    assert summarize(table, 0.11).set_index(["method", "weight_bits"]).without_loss[("qat", 4)]
    summary = summary.reset_index()
    assert "QAT from scratch 8, PTQ at no width" in sentences.verdict(summary)
    assert "QAT from scratch wins 1 of 1 (PPO CartPole-v1 4 bits: 460 against 98) and" in sentences.against_ptq(summary)
    said = sentences.key_figure(summary)
    assert said.startswith("PPO on CartPole-v1 at 4 bits of a weight returns 460 (QAT from scratch) and 98 rounded")
    assert sentences.at_eight_bits(summary) == "Trained at 8 bits everywhere, 1 of 1 agents lose nothing."
    assert "1.20 to 1.40 times" in sentences.cost(summary)


def test_where_quantized_policies_play_as_random_ones_there_is_a_key_figure():
    table = pd.concat([episodes("random", 32, [[20], [30]]), episodes("fp32", 32, [[420], [430]], 10.0),
                       episodes("qat", 8, [[20], [30]], 14.0), episodes("ptq", 8, [[15], [25]])])  # fmt: skip
    assert "a difference of +5" in sentences.key_figure(summarize(table))


def test_an_fp32_that_learned_nothing_is_no_range_to_lose():
    table = pd.concat([episodes("random", 32, [[20], [30]]), episodes("fp32", 32, [[20], [30]], 10.0),
                       episodes("qat", 8, [[400], [300]], 14.0), episodes("ptq", 8, [[200], [100]])])  # fmt: skip
    summary = summarize(table)
    assert not summary.without_loss.any()
    assert summary.normalized.isna().all()
    assert "fp32 learned nothing" in sentences.key_figure(summary)
    assert not summary.converged.any()
    assert not figures.return_panels(summary.assign(converged=True)).axes[0].collections


def test_one_seed_has_no_interval_and_that_is_said_and_drawn():
    table = pd.concat(
        [
            episodes("random", 32, [[20, 20]]),
            episodes("fp32", 32, [[500, 480]], 10.0),
            episodes("qat", 8, [[400, 300]], 14.0),
            episodes("ptq", 8, [[200, 100]]),
        ]
    )
    summary = summarize(table)
    intervals = summary[["ci_low", "ci_high", "paired_ci_low", "ratio_low", "over_ptq_low"]]
    assert intervals.isna().all(axis=None)
    assert not summary.without_loss.any()
    assert summary.paired_difference.tolist() == [0, -140, -340]
    assert "at 8 bits (one seed: no interval)" in sentences.cost(summary)
    assert "(350 (one seed: no interval))" in sentences.at_eight_bits(summary)
    assert "wins 0 of 1 and loses 0" in sentences.against_ptq(summary)
    assert "one seed: no interval" in sentences.against_ptq(summary)
    (panel,) = figures.return_panels(summary.assign(converged=True)).axes
    assert not panel.collections  # no error bar
    assert not figures.training_time(summary).collections


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"agents": ["PPO"]}, "agents='PPO': give algorithm/environment/actor steps"),
        ({"agents": ["PPO/7"]}, "agents='PPO/7': give algorithm/environment/actor steps"),
        ({"agents": ["PPO/Acrobot-v1"]}, "agents='PPO/Acrobot-v1': start_from='shipped' has none; give steps"),
        ({"agents": ["PPO/CartPole-v1", "PPO/CartPole-v1/9"]}, "agents: PPO/CartPole-v1 is there 2 times"),
        ({"agents": [], "start_from": ""}, "agents=[]: name at least one"),
        ({"start_from": "/no/such/folder"}, "start_from='/no/such/folder': "),
        ({"bits": ["int9"]}, "bits='int9': give one number"),
        ({"fine_tune_steps": 0}, "fine_tune_steps=0: give at least 1"),
        ({"agents": ["ARS/Pendulum-v1/10"]}, "agents='ARS/Pendulum-v1/10': choose an algorithm"),
        ({"agents": ["DDPG/CartPole-v1/10"]}, "no recipe for algorithm='DDPG', env_id='CartPole-v1'"),
        ({"bits": ["17"]}, "bits='17': weight_bits=17"),
        ({"bits": ["1"]}, "bits='1': weight_bits=1"),
        ({"bits": ["4/8"]}, "bits='4/8': give one number"),
        ({"bits": ["4/8/1"]}, "bits='4/8/1': observation_bits=1"),
        ({"bits": ["32"]}, "bits='32': fp32 is always"),
        ({"bits": []}, "bits=[]: name at least one"),
        ({"methods": ["ptq"]}, "methods='ptq': choose among qat"),
        ({"delay_share": 1.1}, "delay_share=1.1: the delay ends within training"),
        ({"episodes": 1}, "episodes=1: give at least 2"),
        ({"tolerated_loss": 1.0}, "tolerated_loss=1.0"),
        ({"variants": ["deeper"]}, "variants='deeper': choose among from_start"),
        ({"variants": ["wide"], "methods": ["fine_tune"]}, 'name "qat" in methods'),
        ({"variants": ["wide"], "agents": ["PPO/CartPole-v1"]}, "an agent with steps"),
        ({"variants": ["fp32_targets"]}, "variants='fp32_targets': PPO has no target network"),
        ({"variants": ["static_inputs"], "bits": ["4"]}, "variants='static_inputs': 4 is not on the engines' grid"),
        ({"variants": ["narrow_edges"], "bits": ["4"]}, "variants='narrow_edges': so it is at 4 anyway"),
    ],
)
def test_wrong_settings_name_the_parameter(options, said):
    with pytest.raises(ValueError) as raised:
        study.Config(**options)
    assert said in str(raised.value)


def test_bits_are_read_and_written_alike():
    for text, parts in {
        "4": (4, 4, 4, 4), "2/3/8": (2, 3, 8, 2), "2/3/8/6": (2, 3, 8, 6), "int3": (3, 8, 16, 8, "engine"),
        "int8a16": (8, 16, 16, 8, "engine"),
    }.items():  # fmt: skip
        assert Bits.parse(text) == Bits(*parts)  # type: ignore[arg-type]
        assert str(Bits.parse(text)) == text
    assert study.parse_agent("ppo/Pendulum-v0/0") == ("PPO", "Pendulum-v1", 100_000)
    assert study.parse_agent("dqn/CartPole-v1") == ("DQN", "CartPole-v1", 0)


def test_without_agents_the_whole_folder_is_swept():
    starts = study.starts_of(study.Config(agents=[], methods=["fine_tune"]))
    assert len(starts) == 6
    assert all(start.archive and not start.actor_steps for start in starts)


def test_an_archive_that_cannot_be_tuned_is_named_before_anything_trains(tmp_path):
    folder = tmp_path / "agents" / "ppo" / "CartPole-v1"
    folder.mkdir(parents=True)
    (folder / "CartPole-v1.zip").write_bytes(b"no archive")
    config = tiny(tmp_path, agents=["PPO/CartPole-v1/40"], start_from=str(tmp_path / "agents"), methods=["fine_tune"])
    with pytest.raises(ValueError, match=r"start_from='.*agents': ppo/CartPole-v1: "):
        study.run(config)
    assert not (tmp_path / "cells").exists()
