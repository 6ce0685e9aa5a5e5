"""The study as the command line runs it, killed at a random moment, and the same command again."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import psutil
import pytest
from fault_runs import MOMENTS, SEED, wait_until

from quarl_lib.actorq.learner import checkpoint
from quarl_lib.actorq.link import read
from quarl_lib.provenance import PROJECT
from quarl_lib.suite import processes, states

EVERY = 100  # learner steps between two checkpoints; a cell takes 1250
PARAMETERS = {
    "tasks": "[gym:CartPole-v0]", "precisions": "[fp32, int8]", "seeds": "[0]", "thresholds": "[150.0]",
    "actor_steps": "[10000]", "update_periods": "[50]", "samples_per_insert": "4.0", "batch_size": "32",
    "min_replay": "200", "policy_hidden": "[32, 32]", "stop_at_threshold": "false", "max_seconds": "600.0",
    "checkpoint_every": str(EVERY), "throughput_rounds": "0",
}  # fmt: skip
CELLS = [f"gym-CartPole-v0_{precision}_seed0" for precision in ("fp32", "int8")]


def start(project: Path) -> subprocess.Popen[bytes]:
    words = [word for name, value in PARAMETERS.items() for word in ("-p", f"{name}={value}")]
    call = [sys.executable, "-m", "quarl_lib.cli", "run", "actorq_training", "--preset", "smoke", *words]
    return subprocess.Popen(call, env={**os.environ, "QUARL_PROJECT": str(project)}, start_new_session=True)


def learned(cell: Path) -> int:
    """Return the last learner step that a cell's log tells of."""
    rows = read(cell, "learner")
    return int(rows.learner_steps.iloc[-1]) if len(rows) else 0


def folder_of_the_run(project: Path) -> Path:
    runs = project / "outputs" / "smoke" / "actorq_training"
    wait_until(lambda: list(runs.glob("[!.]*/runs")), 180)
    return next(runs.glob("[!.]*/runs")).parent


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(MOMENTS))
def test_killed_study_goes_on_from_its_newest_checkpoint(tmp_path, record_property, moment):
    rng = random.Random(f"{SEED} study {moment}")
    interrupted, steps, who = rng.randrange(2), rng.randrange(2 * EVERY, 11 * EVERY), moment % 3
    for name in ("notebooks", "params"):
        shutil.copytree(PROJECT / name, tmp_path / name)
    killed = start(tmp_path)
    directory = folder_of_the_run(tmp_path)
    cells = [directory / "runs" / name for name in CELLS]
    wait_until(lambda: learned(cells[interrupted]) >= steps, 180)
    victims = [psutil.Process(killed.pid)]
    if who > 0:  # the runner, or with it the process of the run, or all at once
        victims += victims[0].children() if who == 1 else processes.of_run(directory)
    for process in victims:
        process.send_signal(signal.SIGKILL)
    killed.wait()
    wait_until(lambda: not processes.of_run(directory), 60)
    assert states.read(directory)["state"] == "interrupted"
    saved, damaged = checkpoint.newest_good(cells[interrupted])
    assert saved is not None
    assert not damaged
    kept, reached = checkpoint.read_counters(saved), learned(cells[interrupted])
    record_property("outcome", f"kill {len(victims)} of the study|{interrupted}|0|0|{kept.learner_steps} of {reached}")
    assert reached - kept.learner_steps <= EVERY
    finished = {path: path.stat().st_mtime_ns for cell in cells[:interrupted] for path in cell.rglob("*")}

    again = start(tmp_path)
    assert again.wait(600) == 0
    assert states.read(directory)["state"] == "ok"
    assert {path: path.stat().st_mtime_ns for path in finished} == finished  # a finished cell is not touched
    table = pd.read_parquet(directory / "results.parquet")
    (resumed,) = table[table.record == "resumed"].to_dict("records")
    assert resumed["precision"] == ("fp32", "int8")[interrupted]
    assert (resumed["learner_steps"], resumed["actor_steps"]) == (kept.learner_steps, kept.actor_steps)
    for _, cell in table.groupby("precision"):
        evaluations = cell[(cell.record == "evaluation") & (cell.policy == "learner")].sort_values("learner_steps")
        assert evaluations.wall_time_s.is_monotonic_increasing
        assert evaluations.actor_steps.max() >= 10_000
        assert cell[cell.record == "learner"].learner_steps.is_monotonic_increasing
