"""`quarl recommend`: which precision is named, by hand, and when a finished run's returns are taken."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from quarl_lib import cli, provenance
from quarl_lib.files import write_json
from quarl_lib.inference.pack import packed_size
from quarl_lib.sb3 import SHIPPED_AGENTS, content_hash, find_agents, load_agent
from quarl_lib.sb3.spec import agent_spec
from quarl_lib.studies.ptq_study import recommend as module
from quarl_lib.studies.ptq_study import study
from quarl_lib.studies.ptq_study.recommend import line, recommend

pytest.importorskip("quarl_lib.inference._native")
AGENT = SHIPPED_AGENTS / "ppo" / "CartPole-v1"
RETURNS = {
    "fp32": [500.0, 480.0, 490.0, 490.0],  # 490: up to 24.5 may be lost at 0.95
    "int2": [100.0, 480.0, 490.0, 490.0],
    "int4": [490.0, 470.0, 480.0, 478.0],  # 10, 10, 10, 12 less: at most 12.1
    "int8": [500.0, 480.0, 490.0, 490.0],
    "fp16": [500.0, 480.0, 490.0, 490.0],
    "int3": [200.0, 480.0, 490.0, 490.0],
}


def finished(root: Path, returns: dict[str, list[float]] = RETURNS, **about: Any) -> Path:
    """Write what a finished PTQ run of the agent in the package leaves."""
    run = root / "laptop" / "ptq_study" / "one"
    run.mkdir(parents=True)
    facts = {"commit": provenance.commit(), "versions": provenance.versions(), **about}
    write_json(run / "provenance.json", facts)
    write_json(run / "run.json", {"state": "ok", "study": "ptq_study"})
    tables = [
        pd.DataFrame({"seed": range(7, 7 + len(values)), "episode_return": values}).assign(
            precision=precision, engine="simulated" if precision == "fp32" else "native", disturbance="none", error="",
            agent_hash=content_hash(find_agents(AGENT)[0]),
        )
        for precision, values in returns.items()
    ]  # fmt: skip
    worse = tables[2].assign(disturbance="action_delay=1", episode_return=0.0)
    pd.concat([*tables, worse]).reindex(columns=list(study.TABLE_COLUMNS)).to_parquet(run / "results.parquet")
    return run


@pytest.fixture
def nothing_plays(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: Any) -> None:
        raise AssertionError("played, though a finished run has it")

    monkeypatch.setattr(module, "evaluate", never)
    monkeypatch.setattr(module, "evaluate_engine", never)


def test_a_finished_run_answers_without_an_episode(tmp_path: Path, nothing_plays: None) -> None:
    run = finished(tmp_path)
    (row,) = recommend(AGENT, 0.95, episodes=4, runs=[tmp_path / "no_run", run])
    spec, _ = agent_spec(load_agent(find_agents(AGENT)[0]))
    assert (row["precision"], row["backend"], row["reused"]) == ("int4", "native", str(run))
    assert row["payload_bytes"] == packed_size(spec, "int4")
    assert 0 < row["microseconds"] < 1e4
    assert (row["mean_return"], row["fp32_return"], row["episodes"]) == (479.5, 490.0, 4)
    # Differences -10, -10, -10, -12: mean -10.5, deviation 1, t of three degrees of freedom 3.1824.
    assert row["paired_low"] == pytest.approx(-10.5 - 3.182446 / 2)
    assert row["tried"] == {"int2": 390.0, "int3": 415.0, "int4": 479.5}
    assert line(row).startswith(f"ppo/CartPole-v1: int4, {row['payload_bytes']} bytes, ")
    assert "difference at least -12.1 (95 %, 4 paired episodes)" in line(row)
    (strict,) = recommend(AGENT, 0.99, episodes=4, runs=[run])
    assert strict["precision"] == "int8"


def test_none_where_no_interval_keeps_it(tmp_path: Path, nothing_plays: None) -> None:
    noisy = {precision: [490.0, 480.0, 200.0, 490.0] for precision in RETURNS} | {"fp32": RETURNS["fp32"]}
    (row,) = recommend(AGENT, 0.95, episodes=4, runs=[finished(tmp_path, noisy)])
    assert (row["precision"], row["payload_bytes"], row["microseconds"]) == ("none", None, None)
    assert line(row).startswith(
        "ppo/CartPole-v1: none keeps 95% of fp32's 490 (int2 415, int3 415, int4 415, int8 415, fp16 415)"
    )


@pytest.mark.parametrize("reason", ["other code", "other versions", "too few episodes", "another agent", "damaged"])
def test_a_run_that_does_not_fit_is_not_used(
    reason: str, tmp_path: Path, nothing_plays: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    about: dict[str, Any] = {"commit": "0123456789"} if reason == "other code" else {}
    about |= {"versions": {"torch": "0.1"}} if reason == "other versions" else {}
    run, agent = finished(tmp_path / "runs", **about), tmp_path / "agents" / "ppo" / "CartPole-v1"
    shutil.copytree(AGENT, agent)
    if reason == "another agent":
        (agent / "config.yml").write_text("normalize: false")  # decides how it plays, so it is another one
    if reason == "damaged":
        (run / "results.parquet").write_bytes(b"no parquet")
    (row,) = recommend(tmp_path / "agents", episodes=5 if reason == "too few episodes" else 4, runs=[run])
    assert row["refused"] == "played, though a finished run has it"  # it tried to


def test_what_a_run_has_not_measured_is_played_on_its_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def played(agent: Any, engine: Any, episodes: int, seed: int) -> pd.DataFrame:
        asked.append((engine.precision, episodes, seed))
        return pd.DataFrame({"seed": range(seed, seed + episodes), "episode_return": RETURNS["int8"]})

    monkeypatch.setattr(module, "evaluate_engine", played)
    known = {precision: RETURNS[precision] for precision in ("fp32", "int8", "fp16")}
    (row,) = recommend(AGENT, 0.95, episodes=3, runs=[finished(tmp_path, known)])
    assert asked == [("int2", 4, 7)]
    assert row["precision"] == "int2"


def test_the_command_finds_runs_and_prints_json(
    tmp_path: Path, nothing_plays: None, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished(tmp_path)
    arguments = ["recommend", str(AGENT), "--episodes", "4", "--runs", str(tmp_path)]
    assert cli.main([*arguments, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert tuple(row) == module.KEYS
    assert (row["precision"], row["reused"], row["refused"]) == ("int4", str(run), None)
    write_json(run / "run.json", {"state": "failed"})
    assert cli.main(arguments) == 1  # it would have to be played
    assert "refused: played" in capsys.readouterr().out
    with pytest.raises(ValueError, match="retain=0"):
        recommend(AGENT, 0.0)


def test_the_real_thing_is_played_where_no_run_fits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["recommend", str(AGENT), "--episodes", "2", "--retain", "0.5", "--runs", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("ppo/CartPole-v1: int")
    assert "2 paired episodes" in said
