"""Intervals in sentences and figures: in brackets, as error bars, as a band; where there is none, said or left out."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import NDArray


def brackets(low: float, high: float, pair: str = "round", digits: str = ".2f") -> str:
    """Return "[1.20, 1.40]", or, as one pair has no interval, "(one round: no interval)"; `pair` may be "seed"."""
    if math.isnan(low):
        return f"(one {pair}: no interval)"
    return f"[{low:{digits}}, {high:{digits}}]"


def bars(estimate: pd.Series, low: pd.Series, high: pd.Series) -> NDArray[np.float64] | None:
    """Return matplotlib's distances below and above [2, n], NaN where there is no interval, None if there is none."""
    distances = np.stack([estimate - low, high - estimate]).astype(np.float64)
    return None if np.isnan(distances).all() else distances


def band(ax: Axes, low: float, high: float) -> bool:
    """Shade a reference's interval across the axes; return False where there is none."""
    if math.isnan(low):
        return False
    ax.axhspan(low, high, color="#BBBBBB", alpha=0.5, lw=0)
    return True


def spread(low: pd.Series, over: str, confidence: float = 0.95, what: str = "Bars") -> str:
    """Say for a caption what the bars are: "Bars are 95 % intervals over seeds", or that one seed has none."""
    if low.isna().all():
        return f"One {over.split()[-1].removesuffix('s')}: no interval"
    return f"{what} are {100 * confidence:g} % intervals over {over}"


def worst_to_best(seeds: int) -> str:
    """Say for a caption what the bands over seeds are."""
    return f"Bands go from the worst to the best of {seeds} seeds" if seeds > 1 else "One seed: no band"
