"""The QAT sweep: real tiny trainings, cells that are never trained twice, and summaries by hand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from importlib import metadata

import numpy as np
import pandas as pd
import pytest

from quarl_lib.studies.qat_bit_sweep import cells, figures, sentences, study
from quarl_lib.studies.qat_bit_sweep.cells import Bits

BITS = ("weight_bits", "activation_bits", "observation_bits", "edge_bits")


def tiny(tmp_path, **options) -> study.Config:
    defaults = {"agents": ["A2C/CartPole-v1/400"], "bits": ["2"], "episodes": 2, "calibration_steps": 50, "workers": 1}
    return study.Config(**{**defaults, "cells_dir": str(tmp_path / "cells"), **options})


def stamps_of(tmp_path) -> dict[str, int]:
    """Return when each finished cell was written."""
    return {path.parent.name: path.stat().st_mtime_ns for path in tmp_path.glob("cells/*/episodes.parquet")}


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Return config and table of a sweep over every method."""
    config = tiny(tmp_path_factory.mktemp("sweep"), methods=list(study.METHODS), bits=["4", "2/2/8"])
    return config, study.run(config)


def test_every_policy_is_a_cell_and_plays_the_same_episodes(swept):
    _, table = swept
    cells = table.groupby(["method", *BITS]).size()
    assert (cells == 2 * 2).all()  # seeds, episodes
    assert sorted(set(table.method)) == ["fp32", "ptq", "ptq_engine", "qat", "qat_engine", "qat_lsq"]
    assert {key[1:] for key in cells.index if key[0] == "qat"} == {(4, 4, 4, 4), (2, 2, 8, 2)}
    assert {key[1:] for key in cells.index if key[0] == "ptq_engine"} == {(4, 8, 16, 8), (2, 8, 16, 8)}
    assert (table.groupby(["method", *BITS, "seed"]).episode_seed.apply(tuple).nunique()) == 1
    assert (table.training_cpu_s.isna() == table.method.str.startswith("ptq")).all()


def test_trained_weights_have_as_many_levels_as_their_bits_allow(swept):
    config, _ = swept
    levels = study.weight_levels(config)
    for (method, bits, layer), rows in levels.groupby(["method", "weight_bits", "layer"]):
        if method in ("qat", "qat_lsq"):
            assert 2 <= len(rows) <= 2**bits, (method, bits, layer)
    assert levels[levels.method == "fp32"].groupby("layer").size().max() > 4000
    assert (levels.groupby(["method", "bits"])["count"].sum() == 4 * 64 + 64 * 64 + 64 * 2).all()


def test_summary_verdict_and_figures_come_from_one_table(swept):
    config, table = swept
    summary = study.summarize(table)
    assert tuple(summary.columns) == study.SUMMARY_COLUMNS
    of_some = ["training_time_ratio", "ratio_low", "ratio_high", "fewest_bits_without_loss"]
    of_some += ["over_ptq", "over_ptq_low", "over_ptq_high"]
    assert not summary.drop(columns=of_some).isna().any(axis=None)
    assert (summary[summary.method == "fp32"].training_time_ratio == 1).all()
    for words in (sentences.verdict, sentences.against_ptq, sentences.cost, sentences.key_figure):
        assert "CartPole" in words(summary) or words is sentences.against_ptq
    assert {"item", "paper", "ours", "setting"} <= set(sentences.beside_paper(summary).columns)
    panel = figures.return_panels(summary).axes[0]
    assert panel.get_title() == "CartPole-v1, A2C"
    assert [tick.get_text() for tick in panel.get_xticklabels()] == ["2", "4"]
    assert len(figures.weight_level_panels(study.weight_levels(config)).axes) == 1 + 2 * len(study.METHODS)
    low, high = panel.get_ylim()  # intervals of two seeds may run out of the picture, means may not
    reach = summary.mean_return.max() - summary.mean_return.min()
    assert low < summary.mean_return.min() <= summary.mean_return.max() < high
    assert high - low == pytest.approx(1.3 * reach)
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
    trained, _ = study.cells_of(wider)
    assert sorted(cell.name for cell in trained if cell.directory.name not in stamps) == [
        "A2C CartPole-v1 fp32 seed 1", "A2C CartPole-v1 qat 2 bits seed 1",
        "A2C CartPole-v1 qat 3 bits seed 0", "A2C CartPole-v1 qat 3 bits seed 1",
    ]  # fmt: skip


def test_another_recipe_delay_or_code_is_another_cell(tmp_path):
    (fp32, qat), _ = study.cells_of(tiny(tmp_path, seeds=[0]))
    (same_fp32, other_qat), _ = study.cells_of(tiny(tmp_path, seeds=[0], delay_share=0.25))
    assert fp32.directory == same_fp32.directory  # fp32 knows no delay
    assert qat.directory != other_qat.directory
    assert cells.dataclasses.replace(qat, sources="changed").directory != qat.directory


@pytest.mark.parametrize("library", ["torch", "stable-baselines3", "gymnasium", "numpy"])
def test_another_version_of_a_library_is_another_cell(tmp_path, monkeypatch, library):
    (fp32, qat), (ptq,) = study.cells_of(tiny(tmp_path, seeds=[0]))
    installed = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "99.9" if name == library else installed(name))
    (other_fp32, other_qat), (other_ptq,) = study.cells_of(tiny(tmp_path, seeds=[0]))
    for cell, other in ((fp32, other_fp32), (qat, other_qat), (ptq, other_ptq)):
        assert other.directory != cell.directory
        assert f"{library} 99.9" in other.versions


def test_the_report_says_whose_weights_were_kept():
    agents = [("PPO", "CartPole-v1"), ("DQN", "CartPole-v1"), ("DQN", "CartPole-v1")]
    said = sentences.weights_kept(pd.DataFrame(agents, columns=["algorithm", "env_id"]))
    last, best = said.split(". ")
    assert last.endswith("last, not its best, for PPO CartPole-v1")
    assert best.endswith("for DQN CartPole-v1 (every 2,000 steps).")
    assert "best in trials" not in sentences.weights_kept(pd.DataFrame(agents[:1], columns=["algorithm", "env_id"]))


def test_the_same_cell_gives_the_same_numbers(tmp_path):
    tables = [study.run(tiny(tmp_path / name, seeds=[3])) for name in ("one", "two")]
    pd.testing.assert_frame_equal(*(table.drop(columns="training_cpu_s") for table in tables))


@pytest.mark.slow
def test_an_interrupted_sweep_goes_on_where_it_stood(tmp_path):
    code = (
        "from quarl_lib.studies import qat_bit_sweep as s\n"
        "if __name__ == '__main__':\n"
        f"    s.run(s.Config(agents=['A2C/CartPole-v1/6000'], bits=['2', '3', '4'], episodes=2, workers=2,"
        f" cells_dir={str(tmp_path)!r}), progress=lambda done, total, what: print(done, total, what, flush=True))\n"
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
    assert done.stdout.startswith(f"{len(finished)} 14 cells, finished earlier")
    assert "14 14 cells, about 0.0 min left" in done.stdout
    after = {path.parent.name: path.stat().st_mtime_ns for path in tmp_path.glob("*/episodes.parquet")}
    assert len(after) == 14
    assert all(after[name] == stamp for name, stamp in finished.items())
    assert not list(tmp_path.glob("*/*.part.*"))


def episodes(method: str, bits: int, returns: list[list[float]], seconds: float) -> pd.DataFrame:
    rows = [
        {"seed": seed, "episode": episode, "episode_return": value}
        for seed, line in enumerate(returns)
        for episode, value in enumerate(line)
    ]
    return pd.DataFrame(rows).assign(
        algorithm="PPO",
        env_id="CartPole-v1",
        method=method,
        actor_steps=10,
        training_cpu_s=seconds,
        **dict.fromkeys(BITS, bits),
    )


def test_loss_is_judged_by_what_is_tolerated_and_differences_are_paired_by_seed():
    table = pd.concat(
        [
            episodes("fp32", 32, [[500, 500], [500, 500]], 10.0),
            episodes("qat", 8, [[496, 496], [497, 497]], 14.0),  # below fp32, but by less than 1 %
            episodes("qat", 4, [[450, 450], [470, 470]], 13.0),
            episodes("qat", 3, [[100, 100], [600, 600]], 12.0),  # a wide interval holds 0 and excuses nothing
            episodes("ptq", 4, [[100, 120], [90, 80]], float("nan")),
        ]
    )
    summary = study.summarize(table, tolerated_loss=0.01).set_index(["method", "weight_bits"])
    assert summary.without_loss.to_dict() == {
        ("fp32", 32): True, ("qat", 8): True, ("qat", 4): False, ("qat", 3): False, ("ptq", 4): False,
    }  # fmt: skip
    qat4 = summary.loc[("qat", 4)]
    assert (qat4.mean_return, qat4.relative_error, qat4.training_time_ratio) == pytest.approx((460, 0.08, 1.3))
    # Two seeds of 450 and 470: deviation 14.14, over the root of two 10, times 12.706 (t of one degree of freedom).
    assert (qat4.ci_low, qat4.ci_high) == pytest.approx((460 - 127.06, 460 + 127.06), abs=0.01)
    assert qat4.paired_difference == -40
    assert (qat4.paired_ci_low, qat4.paired_ci_high) == pytest.approx((-40 - 127.06, -40 + 127.06), abs=0.01)
    # PTQ's seeds have 110 and 85: differences 340 and 385, mean 362.5, over the root of two 22.5.
    assert qat4.over_ptq == 362.5
    assert (qat4.over_ptq_low, qat4.over_ptq_high) == pytest.approx((362.5 - 285.9, 362.5 + 285.9), abs=0.1)
    assert np.isnan(summary.loc[("qat", 8)].over_ptq)  # no PTQ at 8 bits
    assert (qat4.ratio_low, qat4.ratio_high) == pytest.approx((1.3, 1.3))
    assert summary.loc[("qat", 8)].fewest_bits_without_loss == 8
    assert np.isnan(summary.loc[("ptq", 4)].fewest_bits_without_loss)
    assert study.summarize(table, 0.1).set_index(["method", "weight_bits"]).without_loss[("qat", 4)]
    summary = summary.reset_index()
    assert "QAT 8, PTQ at no width" in sentences.verdict(summary)
    assert "wins 1 (PPO CartPole-v1 4/4/4 (460 against 98)) and loses 0 beyond" in sentences.against_ptq(summary)
    said = sentences.key_figure(summary)
    assert said.startswith("Trained in 4 bits (QAT), PPO on CartPole-v1 returns 460; trained in fp32 and quantized")
    assert "afterwards (PTQ), it returns 98 (means over seeds" in said
    assert sentences.at_eight_bits(summary) == "Trained at 8 bits everywhere, 1 of 1 agents lose nothing."
    assert "1.20 to 1.40 times" in sentences.cost(summary)


def test_one_seed_has_no_interval_and_that_is_said_and_drawn():
    table = pd.concat(
        [
            episodes("fp32", 32, [[500, 480]], 10.0),
            episodes("qat", 8, [[400, 300]], 14.0),
            episodes("ptq", 8, [[200, 100]], float("nan")),
        ]
    )
    summary = study.summarize(table)
    intervals = summary[["ci_low", "ci_high", "paired_ci_low", "ratio_low", "over_ptq_low"]]
    assert intervals.isna().all(axis=None)
    assert summary.paired_difference.tolist() == [0, -140, -340]
    assert "at 8 bits (one seed: no interval)" in sentences.cost(summary)
    assert "(350 (one seed: no interval))" in sentences.at_eight_bits(summary)
    assert "wins 0 and loses 0 beyond" in sentences.against_ptq(summary)
    assert "one seed: no interval" in sentences.against_ptq(summary)
    (panel,) = figures.return_panels(summary).axes
    assert not panel.collections  # no error bar
    assert not panel.patches  # no band
    assert not figures.training_time(summary).collections


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"agents": ["PPO/CartPole-v1"]}, "agents='PPO/CartPole-v1': give algorithm/environment/actor steps"),
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
    ],
)
def test_wrong_settings_name_the_parameter(options, said):
    with pytest.raises(ValueError) as raised:
        study.Config(**options)
    assert said in str(raised.value)


def test_bits_are_read_and_written_alike():
    for text, parts in {"4": (4, 4, 4, 4), "2/3/8": (2, 3, 8, 2), "2/3/8/6": (2, 3, 8, 6)}.items():
        assert Bits.parse(text) == Bits(*parts)
        assert str(Bits.parse(text)) == text
    assert study.parse_agent("ppo/Pendulum-v0/0") == ("PPO", "Pendulum-v1", 100_000)
