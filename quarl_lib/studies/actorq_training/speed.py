"""The study's second part: environment steps a second of a lone actor that nothing holds back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from quarl_lib.actorq.config import PRECISIONS
from quarl_lib.metrics import paired_ratio

if TYPE_CHECKING:
    from quarl_lib.actorq.bench.throughput import Setup

BALANCE, CARTPOLE = "dm_control:cartpole:balance", "gym:CartPole-v0"
LONG_PERIOD, SHORT_PERIOD = 300, 30
LONGEST_PERIOD = LONG_PERIOD
KEYS = ["task", "hidden", "design", "precision", "update_period"]


def setups(hidden: list[int]) -> list[Setup]:
    """Name what takes turns: our precisions on two tasks, and the authors' recipe at int8 with two update periods."""
    from quarl_lib.actorq.bench.throughput import Setup

    ours = [
        Setup(task=task, hidden=tuple(hidden), precision=precision, update_period=LONG_PERIOD)
        for task in (BALANCE, CARTPOLE)
        for precision in ("fp32", "int8", "int4")
    ]
    short = Setup(task=BALANCE, hidden=tuple(hidden), precision="int8", update_period=SHORT_PERIOD)
    theirs = [
        Setup(
            task=BALANCE,
            hidden=tuple(hidden),
            precision="int8",
            update_period=period,
            design="authors",
            transport="reverb",
        )
        for period in (LONG_PERIOD, SHORT_PERIOD)
    ]
    return [*ours, short, *theirs]


def measure(hidden: list[int], steps: int, rounds: int) -> pd.DataFrame:
    """Run every set-up in interleaved blocks; return rows with record "throughput"."""
    from quarl_lib.actorq.bench import throughput

    table = throughput.measure(setups(hidden), steps, rounds)
    return table.assign(record="throughput")


def summarize(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per set-up: steps a second, and ratios to two baselines of the same rounds with 95 % intervals.

    `over_fp32` compares with fp32 in our design (its fastest engine), `over_authors` with the authors' recipe at int8
    and the same period; both NaN where there is none.
    """
    rows = table[table.record == "throughput"] if "record" in table else table
    blocks = rows.drop_duplicates([*KEYS, "round"]).assign(seconds_per_step=lambda t: t.wall_s / t.steps)
    times = {key: group.set_index("round").seconds_per_step for key, group in blocks.groupby(KEYS, sort=False)}
    summary = []
    for key, seconds in times.items():
        task, hidden, design, _, period = key
        row: dict[str, object] = dict(zip(KEYS, key, strict=True))
        row["steps_per_s"] = 1 / seconds.median()
        for name, baseline in (
            ("over_fp32", (task, hidden, "packed", "fp32", period)),
            ("over_authors", (task, hidden, "authors", "int8", period)),
        ):
            known = baseline in times and design == "packed"
            ratio = paired_ratio(times[baseline].loc[seconds.index], seconds) if known else (np.nan,) * 3
            row.update(zip((name, f"{name}_low", f"{name}_high"), ratio, strict=True))
        summary.append(row)
    return (
        pd.DataFrame(summary)
        .astype({"update_period": int})
        .sort_values(
            ["task", "design", "update_period", "precision"],
            key=lambda column: column.map(PRECISIONS.index) if column.name == "precision" else column,
            ascending=[True, False, False, True],
            ignore_index=True,
        )
    )
