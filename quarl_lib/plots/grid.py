"""Small multiples: a grid of panels, labels on its outer edge only, one legend above it."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLUMNS = 3


def panels(count: int, columns: int = COLUMNS) -> tuple[Figure, Sequence[Axes]]:
    """Return a figure with `count` panels, row by row, and no empty ones."""
    columns = min(columns, count)
    lines = -(-count // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(max(3.3 * columns, 5), 2.7 * lines + 0.4), squeeze=False, layout="constrained"
    )
    for ax in axes.flat[count:]:
        ax.remove()
    return figure, list(axes.flat[:count])


def outer_labels(figure: Figure, x: str, y: str) -> None:
    """Label both axes once for all panels."""
    figure.supxlabel(x, size="medium")
    figure.supylabel(y, size="medium")


def legend_above(figure: Figure, axes: Sequence[Axes]) -> None:
    """Put one legend of all panels' lines above the figure."""
    handles = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=3)
