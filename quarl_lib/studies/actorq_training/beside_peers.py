"""Our time to the threshold beside the peers' of the same study: a row a run, and ratios paired by seed."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from quarl_lib.metrics import paired_ratio
from quarl_lib.studies.actorq_training.runs import reached, records

RUN_COLUMNS = ["task", "who", "seed", "seconds", "reached"]
RATIO_COLUMNS = ["task", "precision", "peer", "pairs", "peer_seeds_reached", "peer_seconds", "over_peer",
                 "over_peer_low", "over_peer_high", "over_peer_is"]  # fmt: skip
MEASURED, BOUND = "measured", "lower bound"


def peer_runs(table: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per peer and seed: seconds to the threshold of our runs, or, not `reached`, to where it ended."""
    ends, evaluations = records(table, "peer"), records(table, "peer_evaluation")
    thresholds, rows = runs.groupby("task").threshold.first(), []
    for end in ends.itertuples():
        mine = evaluations
        for name in ("task", "peer", "seed") if len(evaluations) else ():
            mine = mine[mine[name] == getattr(end, name)]
        seconds = reached(mine, thresholds[end.task], int(end.needed))[1] if len(mine) else math.nan
        known = not math.isnan(seconds)
        rows.append((end.task, end.peer, int(end.seed), seconds if known else end.wall_time_s, known))
    return pd.DataFrame(rows, columns=RUN_COLUMNS)


def all_runs(table: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return `peer_runs` and, of the tasks that have peers, our runs that reached the threshold, by precision."""
    theirs = peer_runs(table, runs)
    ours = runs[runs.seconds.notna() & runs.task.isin(theirs.task)].assign(reached=True)
    return pd.concat([ours.rename(columns={"precision": "who"})[RUN_COLUMNS], theirs], ignore_index=True)


def ratios(table: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per task, precision and peer: the peer's seconds over ours, paired by seed.

    Where a peer did not get to the threshold in its time, its seconds are too few: the ratio is a lower bound, without
    an interval. A seed with which ours did not get there is left out.
    """
    theirs, rows = peer_runs(table, runs), []
    for (task, peer), group in theirs.groupby(["task", "who"], sort=False):
        for precision, ours in runs[runs.task == task].groupby("precision", sort=False):
            pairs = ours[ours.seconds.notna()].merge(group, on="seed", suffixes=("_ours", ""))
            whole = bool(pairs.reached.all())
            ratio = paired_ratio(pairs.seconds, pairs.seconds_ours)
            ends = (ratio.low, ratio.high) if whole else (np.nan, np.nan)
            rows.append((task, precision, peer, len(pairs), int(pairs.reached.sum()), pairs.seconds.median(),
                         ratio.estimate, *ends, (MEASURED if whole else BOUND) if len(pairs) else ""))  # fmt: skip
    return pd.DataFrame(rows, columns=RATIO_COLUMNS)


def nearest(table: pd.DataFrame) -> pd.DataFrame:
    """Return, of `ratios`, each task's and precision's fastest peer."""
    known = table[table.over_peer.notna()]
    return known.loc[known.groupby(["task", "precision"]).over_peer.idxmin()]
