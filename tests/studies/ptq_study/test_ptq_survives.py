"""One agent never costs the others: faulty environments, processes that die, cells that fail, broken files."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest

from quarl_lib.sb3 import SHIPPED_AGENTS
from quarl_lib.studies import action_distributions
from quarl_lib.studies.action_distributions import sentences as action_words
from quarl_lib.studies.ptq_study import cells, figures, sentences, study
from quarl_lib.studies.ptq_study.aggregate import aggregate, native

GOOD = SHIPPED_AGENTS / "ppo" / "CartPole-v1"
RAISING = {"Raises-v0": "ZeroDivisionError: a wheel came off", "WantsAnArray-v0": "reshape"}
FAULTY = {**RAISING, "Dies-v0": "died"}


def folder_of(root: Path, *env_ids: str) -> str:
    for env_id in env_ids:
        folder = root / "ppo" / env_id
        folder.mkdir(parents=True)
        shutil.copy(GOOD / "CartPole-v1.zip", folder / f"{env_id.split(':')[-1]}.zip")
    return str(root)


def config(agents_dir: str, **options: Any) -> study.Config:
    tiny: dict[str, Any] = {"episodes": 2, "calibration_steps": 20, "kl_states": 20, "engines": ["simulated"]}
    tiny |= {"precisions": ["fp32", "int8"], "quantizers": ["paper"], "disturbances": []}
    return study.Config(agents_dir=agents_dir, **{**tiny, **options})


def check_rows(root: str, faulty: dict[str, str], workers: int) -> None:
    table = study.run(config(root, import_modules=["faulty_agents"], workers=workers))
    summary = study.summarize(table)
    for env_id, reason in faulty.items():
        (row,) = summary[summary.env_id == env_id].to_dict("records")
        assert reason in row["error"]
        assert row["precision"] == "none"
    assert summary[summary.env_id == "Sound-v0"].error.tolist() == ["", ""]
    report(table, summary)
    options: Any = {"precisions": ["int8"], "steps": 20, "calibration_steps": 20, "workers": workers}
    actions_table = action_distributions.run(
        action_distributions.Config(agents_dir=root, import_modules=["faulty_agents"], **options)
    )
    actions = action_distributions.summarize(actions_table)
    assert set(actions[actions.error != ""].env_id) == set(faulty)


def test_environments_that_fail_are_rows(tmp_path: Path) -> None:
    check_rows(folder_of(tmp_path, "Sound-v0", *RAISING), RAISING, workers=1)


@pytest.mark.slow
def test_a_process_that_dies_is_a_row(tmp_path: Path) -> None:
    check_rows(folder_of(tmp_path, "Sound-v0", *FAULTY), FAULTY, workers=2)


def test_environments_by_module_and_id_need_no_parameter(tmp_path: Path) -> None:
    root = folder_of(tmp_path, "faulty_agents:Sound-v0")
    summary = study.summarize(study.run(config(root, workers=1)))
    assert summary.agent.unique().tolist() == ["ppo/faulty_agents:Sound-v0/Sound-v0"]
    assert summary.error.tolist() == ["", ""]


def test_a_module_that_cannot_be_imported_is_the_reason(tmp_path: Path) -> None:
    root = folder_of(tmp_path, "Sound-v0")
    summary = study.summarize(study.run(config(root, import_modules=["no_such_module"], workers=1)))
    assert "import_modules: no_such_module cannot be imported" in summary.error.iloc[0]
    with pytest.raises(ValueError, match="no agent was measured"):
        sentences.key_figure(summary)
    options: Any = {"import_modules": ["no_such_module"], "workers": 1}
    table = action_distributions.run(action_distributions.Config(agents_dir=root, **options))
    actions = action_distributions.summarize(table)
    action_words.agreement(actions)
    action_words.beside_paper(actions)
    assert "1 could not be measured" in action_words.verdict(actions)
    with pytest.raises(ValueError, match=r"no agent was measured\. ppo/Sound-v0: import_modules: no_such_module"):
        action_words.key_figure(actions)


def test_where_fp32_fails_int8_has_its_return_and_no_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantize = cells.quantize_policy

    def failing(policy: Any, precision: str, *options: Any) -> Any:
        if precision == "fp32":
            raise ValueError("fp32 fails")
        return quantize(policy, precision, *options)

    monkeypatch.setattr(cells, "quantize_policy", failing)
    root = folder_of(tmp_path, "CartPole-v1")
    table = study.run(config(root, workers=1, engines=["simulated", "native"]))
    summary = study.summarize(table)
    fp32, int8 = (summary[summary.precision == precision].iloc[0] for precision in ("fp32", "int8"))
    assert fp32.error == "fp32 fails"
    assert int8.mean_return > 0
    assert np.isnan(int8.relative_error)
    assert not int8.differs
    report(table, summary)


def report(table: Any, summary: Any) -> None:
    """Draw and say all that the notebook does."""
    scores = aggregate(table)
    axes = figures.aggregate(scores), figures.relative_error(summary, "paper")
    drawn = [figures.return_panels(summary), figures.return_panels(summary, by="observation")]
    plt.close("all")
    assert len(axes) == len(drawn) == 2
    plt.close(figures.kl_panels(summary, "paper"))
    for words in (sentences.verdict, sentences.quantizer_verdict, sentences.observation_verdict, sentences.key_figure):
        assert words(summary)
    for made in (sentences.refused, sentences.played, sentences.typical):
        assert made(summary) is not None
    sentences.overview(summary, "paper", "none")
    sentences.beside_paper(summary, "", "none")
    sentences.aggregate_caption(scores)
    native(table)


def broken(folder: Path, kind: int) -> None:
    """Write one of five kinds of file that cannot be played."""
    folder.mkdir(parents=True)
    path, whole = folder / "CartPole-v1.zip", (GOOD / "CartPole-v1.zip").read_bytes()
    if kind == 0:
        path.write_bytes(b"no archive")
    elif kind == 1:
        path.write_bytes(whole[: len(whole) // 2])
    elif kind == 2:
        path.write_bytes(whole)
        (folder / "config.yml").write_text("42")
    elif kind == 3:
        path.write_bytes(whole)
        (folder / "vec_normalize.pkl").write_bytes(b"no pickle")
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("data", "{}")
            archive.writestr("policy.pth", b"")


@pytest.mark.slow
def test_of_25_good_and_25_broken_archives_each_has_its_rows(tmp_path: Path) -> None:
    for number in range(25):
        shutil.copytree(GOOD, tmp_path / "ppo" / f"CartPole-v1_{number}")
        broken(tmp_path / "ppo" / f"CartPole-v1_{25 + number}", number % 5)
    summary = study.summarize(study.run(config(str(tmp_path), precisions=["fp32"])))
    assert len(summary) == summary.agent.nunique() == 50
    assert (summary.error == "").sum() == 25
    assert summary[summary.error == ""].mean_return.min() > 400
    assert summary[summary.error != ""].error.str.len().min() > 10
