"""Training through Reverb beside training through shared memory: the same options in turns, speeds paired by round."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from quarl_lib.actorq.config import Config as Options
from quarl_lib.metrics import paired_ratio
from quarl_lib.results import Progress
from quarl_lib.studies.common.intervals import brackets

COLUMNS = ["replay", "rounds", "updates_per_s", "sample_ms", "observe_us", "over_reverb", "over_reverb_low",
           "over_reverb_high"]  # fmt: skip


def measure(
    options: Options, replays: Sequence[str], rounds: int, part: Callable[[int], Progress]
) -> list[pd.DataFrame]:
    """Train with every replay in every round, the order turned each time; return the timing rows, record "replay"."""
    from quarl_lib.actorq.launch import local

    tables: list[pd.DataFrame] = []
    for number in range(rounds):
        for replay in replays[:: 1 if number % 2 == 0 else -1]:
            one = options.replace(replay=replay, seed=options.seed + number)
            with tempfile.TemporaryDirectory(prefix="quarl-") as directory:
                logged = local.run(one, Path(directory), part(len(tables)), metered=False, evaluated=False)
            tables.append(logged["timing"].assign(record="replay", replay=replay, round=number))
    return tables


def speeds(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per replay: updates a second while the learner ran, a sample's and an insert's time with waiting.

    `over_reverb` is the speed over Reverb's, paired by round, with its 95 % interval.
    """
    rows = table[table.record == "replay"]
    if rows.empty:
        return pd.DataFrame(columns=COLUMNS)
    keys = ["replay", "round"]
    learner, actors = rows[rows.part == "learner"], rows[rows.part == "actor"]
    updates = learner[learner.stage == "learner_step"].groupby(keys)["count"].sum()
    speed = updates / learner.groupby(keys).seconds.sum()
    sampling = 1e3 * learner[learner.stage == "sample"].groupby(keys).seconds.sum() / updates
    observe = actors[actors.stage == "observe"].groupby(keys)[["seconds", "count"]].sum()
    observing = 1e6 * observe.seconds / observe["count"]
    found = []
    for replay in dict.fromkeys(rows.replay):
        mine = speed[replay]
        over = paired_ratio(mine, speed["reverb"].loc[mine.index]) if "reverb" in speed.index else (float("nan"),) * 3
        found.append((replay, len(mine), mine.median(), sampling[replay].median(), observing[replay].median(), *over))
    return pd.DataFrame(found, columns=COLUMNS)


def verdict(speeds: pd.DataFrame) -> str:
    """Say how fast training is through shared memory beside Reverb."""
    rows = speeds[(speeds.replay == "local") & speeds.over_reverb.notna()]
    if rows.empty:
        return "Replays were not compared."
    (row,) = rows.itertuples()
    return (
        f"Training through shared memory makes {row.over_reverb:.2f} x "
        f"{brackets(row.over_reverb_low, row.over_reverb_high)} the updates a second of training through Reverb."
    )
