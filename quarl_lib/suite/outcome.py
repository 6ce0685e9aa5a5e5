"""Decide how a run ended from what lies in its folder, and write it down."""

from __future__ import annotations

import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from quarl_lib.files import read_json
from quarl_lib.suite import states
from quarl_lib.suite.execution import PARTIAL_NOTEBOOK
from quarl_lib.suite.plan import Task


def settle(directory: Path, code: int, stopped: tuple[str, str] | None) -> dict[str, Any]:
    """Decide from what lies in the folder how a run ended; only a last cell reached and results written are ok."""
    outcome = read_json(directory / ".outcome.json")
    finished = read_json(directory / "finished.json")
    missing = [name for name in ("results.parquet", "summary.csv") if not (directory / name).exists()]
    cell = outcome.get("cell", read_json(directory / ".cell.json").get("index"))
    if outcome.get("kind") == "done" and finished and not missing:
        return {"state": "ok", "key_figure": finished.get("key_figure", ""), "reason": "", "cell": None}
    if stopped:
        return {"state": stopped[0], "reason": stopped[1], "cell": cell}
    if not outcome:
        died = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        full = " The disk is full." if shutil.disk_usage(directory).free < 2**20 else ""
        return {"state": "failed", "reason": f"the process that ran the notebook {died}.{full}", "cell": cell}
    if outcome["kind"] == "done":
        reason = "the last cell, run.finish(), was not reached: a cell ended the notebook early (sys.exit?)"
        if finished:
            reason = f"the notebook ended without {' and '.join(missing)}"
        return {"state": "failed", "reason": reason, "cell": cell}
    state = "interrupted" if outcome["kind"] == "interrupted" else "failed"
    return {"state": state, "reason": outcome["reason"], "cell": cell, "kind": outcome["kind"]}


RESERVE, RESERVE_BYTES = ".reserve", 1 << 16  # given back for the record where the disk is full


def reserve(directory: Path) -> None:
    """Keep room for the record of a run's end."""
    (directory / RESERVE).write_bytes(b"\0" * RESERVE_BYTES)


def record_end(task: Task, outcome: dict[str, Any], begin: float) -> dict[str, Any]:
    """Put the notebook in its place and the end into `run.json`; on a full disk make room for the record first.

    Args:
        begin: when the run began, by the monotonic clock.
    """
    directory, end = task.directory, time.time()
    partial = directory / PARTIAL_NOTEBOOK
    if not read_json(partial).get("cells"):
        with suppress(OSError):
            shutil.copyfile(task.notebook, partial)
    with suppress(OSError):
        os.replace(partial, directory / "notebook.ipynb")
    facts = {**outcome, "ended": end, "duration_s": round(time.monotonic() - begin, 2)}
    state = facts.pop("state")
    try:
        record = states.change(directory, state, **facts)
    except OSError:
        (directory / RESERVE).unlink(missing_ok=True)
        try:
            record = states.change(directory, state, **facts)
        except OSError:
            with suppress(OSError):
                os.truncate(directory / "log.txt", 0)
            try:
                record = states.change(directory, state, **facts)
            except OSError:
                record = {**facts, **states.change_in_place(directory, state, "the disk is full")}
    for name in (".cell.json", ".outcome.json", "progress.json"):
        (directory / name).unlink(missing_ok=True)
    return record
