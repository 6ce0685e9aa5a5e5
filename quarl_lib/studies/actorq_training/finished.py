"""Finished cells of an interrupted study: each leaves its table, and by which options it came about."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd

from quarl_lib.files import read_json, write_atomically, write_json

TABLE, MARK = "table.parquet", "done.json"


def save(folder: Path, options: Any, table: pd.DataFrame, how: str = "local") -> None:
    """Keep a cell's table, then say that it is there; its checkpoints are needed no more."""
    write_atomically(folder / TABLE, lambda path: table.to_parquet(path, index=False))
    write_json(folder / MARK, _plain(options, how))
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def load(folder: Path, options: Any, how: str = "local") -> pd.DataFrame | None:
    """Return the table of a cell that was finished by the same options, None where there is none to be read."""
    if read_json(folder / MARK) != _plain(options, how):
        return None
    try:
        return pd.read_parquet(folder / TABLE)
    except (OSError, ValueError):
        return None


def _plain(options: Any, how: str) -> dict[str, object]:
    return json.loads(json.dumps({**dataclasses.asdict(options), "launched": how}))
