"""A run's folder holds one run: what begins clears it, what resumes clears all that lies after its checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from quarl_lib.actorq.actor.evaluator import waiting_snapshots
from quarl_lib.actorq.learner import checkpoint

PARTS = ("logs", "snapshots", "checkpoints")


def begin(directory: Path) -> None:
    """Forget an earlier run in the same folder: its rows, snapshots, checkpoints and energy."""
    for name in PARTS:
        shutil.rmtree(directory / name, ignore_errors=True)
    (directory / "emissions.csv").unlink(missing_ok=True)
    (directory / "logs").mkdir(parents=True)


def resume(directory: Path, saved: Path) -> None:
    """Forget what came after a checkpoint: it is played again, and time must not go back."""
    stood = checkpoint.read_counters(saved)
    for path in (directory / "logs").iterdir():
        if path.suffix == ".traceback" or path.name.startswith("stop."):  # it goes on: it neither failed nor stopped
            path.unlink()
        elif path.suffix == ".jsonl":
            lines = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
            kept = [line for line in lines if json.loads(line).get("wall_time_s", 0.0) <= stood.wall_time_s]
            path.write_text("".join(kept))
    for snapshot in waiting_snapshots(directory):
        if snapshot.wall_time_s > stood.wall_time_s:
            snapshot.path.unlink()
    for other in checkpoint.folder(directory).iterdir():
        if other.name.isdigit() and int(other.name) > int(saved.name):
            shutil.rmtree(other)
