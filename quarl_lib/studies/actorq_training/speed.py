"""The study's second part: environment steps a second of a lone actor that nothing holds back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from quarl_lib.inference import PRECISIONS
from quarl_lib.metrics import paired_ratio

if TYPE_CHECKING:  # figures read finished tables where nothing heavy is installed
    from quarl_lib.actorq.bench.setups import Setup

KEYS = ["task", "hidden", "design", "precision", "update_period", "replay", "envs_per_actor"]
RATIOS = ["over_fp32", "over_authors", "over_one_env"]
COLUMNS = [*KEYS, "steps_per_s", *(f"{ratio}{end}" for ratio in RATIOS for end in ("", "_low", "_high"))]


def setups(
    tasks: Sequence[str],
    precisions: Sequence[str],
    update_periods: Sequence[int],
    hidden: Sequence[int],
    authors_precision: str,
    envs: Sequence[int],
) -> list[Setup]:
    """Name what takes turns: ours on every task, and beside the authors' recipe on the first with every period.

    Our precisions differ at the first period; at the others there is only the one that the authors' recipe has too.
    Where Reverb is not installed, theirs is left out. fp32 and that precision also play several environments at once,
    into shared memory too, where one write takes all transitions: Reverb takes each by itself.
    """
    from quarl_lib.actorq.bench.setups import Setup
    from quarl_lib.actorq.config import has_reverb

    first, *others = update_periods
    replays = ["reverb", "local"] if has_reverb() else ["local"]

    def ours(task: str, precision: str, period: int, replay: str = replays[0], count: int = 1) -> Setup:
        return Setup(task=task, hidden=tuple(hidden), precision=precision, update_period=period, replay=replay,
                     envs_per_actor=count)  # fmt: skip

    def theirs(period: int) -> Setup:
        return Setup(task=tasks[0], hidden=tuple(hidden), precision=authors_precision, update_period=period,
                     design="authors", transport="reverb", replay="reverb")  # fmt: skip

    return [
        *(ours(task, precision, first) for task in tasks for precision in precisions),
        *(ours(tasks[0], authors_precision, period) for period in others),
        *(
            ours(task, precision, first, replay, count)
            for task in tasks
            for precision in dict.fromkeys(("fp32", authors_precision))
            for replay in replays
            for count in envs
            if count > 1 or (replay != replays[0] and len(envs) > 1)
        ),
        *(theirs(period) for period in update_periods if has_reverb()),
    ]


def measure(turns: Sequence[Setup], steps: int, rounds: int) -> pd.DataFrame:
    """Run every set-up in interleaved blocks; return these as record "throughput", what they say as "lone_actor"."""
    from quarl_lib.actorq.bench import throughput

    blocks = throughput.measure(list(turns), steps, rounds)
    return pd.concat(
        [blocks.assign(record="throughput"), summarize(blocks).assign(record="lone_actor")], ignore_index=True
    )


def of_one_environment(speed: pd.DataFrame) -> pd.DataFrame:
    """Return the set-ups of one environment, all with the replay that ActorQ takes by itself."""
    return speed[(speed.envs_per_actor == 1) & ((speed.replay == "reverb") | (speed.replay != "reverb").all())]


def lone_actor(table: pd.DataFrame) -> pd.DataFrame:
    """Return the study's rows on the lone actor, one per set-up as `summarize` made them; none if it was left out."""
    rows = table[table.record == "lone_actor"].reindex(columns=COLUMNS)
    return rows.astype({"update_period": int, "envs_per_actor": int}).reset_index(drop=True)


def summarize(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per set-up: steps a second, and ratios to three baselines of the same rounds with 95 % intervals.

    `over_fp32` compares with fp32 in our design (its fastest engine), `over_authors` with the authors' recipe at its
    precision and the same period, `over_one_env` with one environment an actor; NaN where there is none.
    """
    blocks = table.drop_duplicates([*KEYS, "round"]).assign(seconds_per_step=lambda t: t.wall_s / t.steps)
    times = {key: group.set_index("round").seconds_per_step for key, group in blocks.groupby(KEYS, sort=False)}
    authors_precision = next((key[3] for key in times if key[2] == "authors"), "")
    summary = []
    for key, seconds in times.items():
        task, hidden, design, precision, period, replay, count = key
        row: dict[str, object] = dict(zip(KEYS, key, strict=True))
        row["steps_per_s"] = 1 / seconds.median()
        for name, baseline in (
            ("over_fp32", (task, hidden, "packed", "fp32", period, replay, count)),
            ("over_authors", (task, hidden, "authors", authors_precision, period, replay, count)),
            ("over_one_env", (task, hidden, "packed", precision, period, replay, 1)),
        ):
            known = baseline in times and design == "packed"
            ratio = paired_ratio(times[baseline].loc[seconds.index], seconds) if known else (np.nan,) * 3
            row.update(zip((name, f"{name}_low", f"{name}_high"), ratio, strict=True))
        summary.append(row)
    return (
        pd.DataFrame(summary)
        .astype({"update_period": int, "envs_per_actor": int})
        .sort_values(
            ["task", "envs_per_actor", "replay", "design", "update_period", "precision"],
            key=lambda column: column.map(PRECISIONS.index) if column.name == "precision" else column,
            ascending=[True, True, False, False, False, True],
            ignore_index=True,
        )
    )
