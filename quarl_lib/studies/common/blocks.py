"""Blocks of a throughput measurement as the studies read them: one row a block, paired ratios over rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from quarl_lib.actorq.bench.throughput_parts import STAGES
from quarl_lib.inference import PRECISIONS
from quarl_lib.metrics import Interval, paired_ratio

SETUP_KEYS = ["design", "transport", "update_period", "precision", "communication_precision"]
_BLOCK = ["round", "steps", "wall_s", "cpu_s", "pulls", "messages", "payload_bytes"]


def check_blocks(rounds: int, steps: int, update_periods: Sequence[int]) -> None:
    """Raise ValueError unless there are rounds, and every block holds the longest update period."""
    if rounds < 1 or steps < max(update_periods):
        raise ValueError(
            f"rounds={rounds}, steps={steps}: give at least 1, and blocks as long as the longest "
            f"update period, {max(update_periods)}"
        )


def blocks(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per set-up and round, each stage's seconds a column; `communication_precision` in full."""
    rows = table[table.record == "block"]
    sent = rows.communication_precision.where(rows.communication_precision != "same", rows.precision)
    wide = rows.assign(communication_precision=sent).pivot(
        index=[*SETUP_KEYS, *_BLOCK], columns="stage", values="seconds"
    )
    wide = wide.reindex(columns=list(STAGES)).reset_index()
    return wide.astype(dict.fromkeys(["update_period", "round", "steps", "pulls", "messages", "payload_bytes"], int))


def by_setup(wide: pd.DataFrame) -> dict[tuple[object, ...], pd.DataFrame]:
    """Return each set-up's blocks in the order of their rounds, so that equal positions make a pair."""
    groups = wide.groupby(SETUP_KEYS, sort=False)
    return {key: group.sort_values("round").reset_index(drop=True) for key, group in groups}


def paired_speedup(baseline: pd.DataFrame, blocks_of_setup: pd.DataFrame) -> Interval:
    """Return baseline time over the set-up's, paired by round."""
    return paired_ratio(baseline.wall_s, blocks_of_setup.wall_s)


def in_order(summary: pd.DataFrame, columns: Mapping[str, bool]) -> pd.DataFrame:
    """Return the rows sorted by columns (True: ascending), precisions from fp32 down."""
    order = {precision: index for index, precision in enumerate(PRECISIONS)}
    return summary.sort_values(
        list(columns),
        ascending=list(columns.values()),
        key=lambda column: column.map(order) if "precision" in str(column.name) else column,
        ignore_index=True,
    )
