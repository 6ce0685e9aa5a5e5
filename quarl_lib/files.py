"""Write files so that no reader ever sees half of one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

# How a runner tells a notebook where its run's folder is, and under which name it will be listed.
RUN_DIR_VARIABLE = "QUARL_RUN_DIR"
RUN_ID_VARIABLE = "QUARL_RUN_ID"
CLUSTER_VARIABLE = "QUARL_CLUSTER"  # address of the machines that a study's independent cells go to
KEPT_FOLDER = "runs"  # of a run's folder: what a study goes on from after it was interrupted


def write_atomically(path: Path, write: Callable[[Path], object]) -> Path:
    """Let `write` fill a file beside `path`, then rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(aside)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    return path


def write_text(path: Path, text: str) -> Path:
    """Write a text file, whole or not at all."""
    return write_atomically(path, lambda aside: aside.write_text(text))


def write_json(path: Path, value: Any) -> Path:
    """Write a JSON file, whole or not at all."""
    return write_text(path, json.dumps(value, indent=1) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Return the mapping in a JSON file; empty where there is none that can be read."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
