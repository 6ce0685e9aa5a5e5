"""How far is the mean of a few rolls from the expected one? The smallest study there can be: copy it to begin."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from quarl_lib import results

SUMMARY_COLUMNS = ("sides", "rolls", "mean", "expected", "relative_error")


@dataclass(frozen=True)
class Config:
    sides: list[int] = field(default_factory=lambda: [4, 6])
    rolls: int = 50
    bias: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rolls < 1:
            raise ValueError(f"rolls={self.rolls}: roll at least once")


def run(config: Config, progress: results.Progress = results.no_progress) -> pd.DataFrame:
    """Roll every die; one row per roll."""
    rng = np.random.default_rng(config.seed)
    tables = []
    for done, sides in enumerate(config.sides, start=1):
        rolled = rng.integers(1, sides + 1, config.rolls) + config.bias
        tables.append(pd.DataFrame({"sides": sides, "roll": np.arange(config.rolls), "eyes": rolled}))
        progress(done, len(config.sides), "dice")
    return pd.concat(tables, ignore_index=True)


def summarize(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per die: the mean, the expected mean, the relative error."""
    summary = table.groupby("sides").agg(rolls=("eyes", "size"), mean=("eyes", "mean")).reset_index()
    summary["expected"] = (summary.sides + 1) / 2
    summary["relative_error"] = (summary["mean"] - summary.expected) / summary.expected
    return summary[list(SUMMARY_COLUMNS)]
