"""One look for every figure: a palette that colour-blind readers can tell apart, markers beside it."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.axes import Axes

# Okabe and Ito's palette, one colour and one marker a precision, the same in every study.
PRECISION_COLORS = {
    "fp32": "#000000",
    "fp16": "#0072B2",
    "int8": "#D55E00",
    "int8a16": "#CC79A7",
    "int7": "#8C564B",
    "int6": "#E69F00",
    "int5": "#7F7F7F",
    "int4": "#009E73",
    "int4g128": "#005F45",
    "int3": "#56B4E9",
    "int2": "#B2A000",
}
PRECISION_MARKERS = {
    "fp32": "o", "fp16": "s", "int8": "D", "int8a16": "P", "int7": "<",
    "int6": "v", "int5": ">", "int4": "^", "int4g128": "p", "int3": "h", "int2": "X",
}  # fmt: skip
CYCLE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X"]


def apply() -> None:
    """Set the project's figure style: white, light grid, 110 dpi, readable at a report's width."""
    sns.set_theme(context="notebook", style="whitegrid", palette=CYCLE)
    mpl.rcParams.update(
        {
            "figure.dpi": 110,
            "savefig.dpi": 110,
            "figure.figsize": (7.5, 4.2),
            "figure.constrained_layout.use": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "grid.color": "#DDDDDD",
            "axes.titlesize": "medium",
            "axes.titlelocation": "left",
            "legend.frameon": False,
        }
    )


def axes_or_new(ax: Axes | None = None, **figure_options: Any) -> Axes:
    """Return `ax`, or the Axes of a new figure."""
    return plt.subplots(**figure_options)[1] if ax is None else ax


def better(ax: Axes, direction: str, axis: str = "y") -> Axes:
    """Append to an axis label which way is better: `direction` is "higher" or "lower"."""
    arrows = {("y", "higher"): "↑", ("y", "lower"): "↓", ("x", "higher"): "→", ("x", "lower"): "←"}
    label = getattr(ax, f"get_{axis}label")()
    getattr(ax, f"set_{axis}label")(f"{label}  ({arrows[axis, direction]} better)")
    return ax
