"""Figures of the dice study."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from quarl_lib.studies.common import theme


def error_over_sides(summary: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the relative error of the mean over the number of sides."""
    ax = theme.axes_or_new(ax)
    ax.plot(summary.sides, summary.relative_error, marker="o")
    ax.set(xlabel="sides of the die", ylabel="relative error of the mean")
    return theme.better(ax, "lower")
