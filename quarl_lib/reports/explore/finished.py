"""Finished runs and their tables, read from the disk alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from quarl_lib.files import read_json
from quarl_lib.suite import states
from quarl_lib.suite.display import spelled

WHAT_TO_RUN = (
    "There is no finished run in {folder}. In a terminal of the project's folder, `quarl run ptq_study --preset smoke` "
    "makes one in half a minute, and `make run PRESET=smoke` one of every study in about five minutes."
)


@dataclass(frozen=True)
class FinishedRun:
    """A run that ended well, with its long-form table."""

    directory: Path

    @cached_property
    def record(self) -> dict[str, Any]:
        """What `run.json` says of it."""
        return states.read(self.directory)

    @property
    def suite(self) -> str:
        """The suite's name."""
        return self.directory.parents[1].name

    @property
    def study(self) -> str:
        """The study's name."""
        return str(self.record.get("study", self.directory.parent.name))

    @property
    def label(self) -> str:
        """The run's name, with the values in which it differs from its preset."""
        values = self.record.get("parameters", {})
        changed = ", ".join(f"{name} = {spelled(values.get(name))}" for name in self.record.get("changed", []))
        return f"{self.directory.name}{f' ({changed})' if changed else ''}"[:90]

    @cached_property
    def table(self) -> pd.DataFrame:
        """The long-form table, a row an observation."""
        return pd.read_parquet(self.directory / "results.parquet")

    def saved(self, name: str) -> pd.DataFrame:
        """Return a table that the run saved as `<name>.csv`; a text that was empty is one again, not NaN.

        Raises:
            ValueError: there is none.
        """
        path = self.directory / f"{name}.csv"
        if not path.exists():
            raise ValueError(f"this run did not save {path.name}")
        table = pd.read_csv(path)
        for column in table:
            texts = self.table[column].dtype if column in self.table else table[column].dtype
            if not pd.api.types.is_numeric_dtype(texts) and table[column].isna().any():
                table[column] = table[column].astype(object).fillna("")
        return table


def finished_runs(outputs: Path) -> list[FinishedRun]:
    """Return every run under `outputs/<suite>/<study>/` that ended well, newest first."""
    found = [path.parent for path in outputs.glob("*/*/*/run.json") if not path.parent.name.startswith(".")]
    runs = [
        FinishedRun(folder)
        for folder in found
        if read_json(folder / "run.json").get("state") == "ok" and (folder / "results.parquet").exists()
    ]
    return sorted(runs, key=lambda run: run.record.get("started", 0.0), reverse=True)
