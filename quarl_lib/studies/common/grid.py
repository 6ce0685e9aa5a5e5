"""Small multiples: a grid of panels, labels on its outer edge only, one legend above it."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLUMNS = 3


def panels(count: int, columns: int = COLUMNS) -> tuple[Figure, Sequence[Axes]]:
    """Return a figure with `count` panels, row by row, and no empty ones; with none it says so."""
    columns = max(1, min(columns, count))
    lines = -(-count // columns)
    figure = plt.figure(figsize=(max(3.3 * columns, 5), 2.7 * lines + 0.5), layout="constrained")
    if not count:
        figure.text(0.5, 0.5, "nothing of this kind was measured", ha="center", va="center")
    return figure, [figure.add_subplot(lines, columns, index + 1) for index in range(count)]


def outer_labels(figure: Figure, x: str, y: str) -> None:
    """Label both axes once for all panels."""
    if not figure.axes:
        return
    figure.supxlabel(x, size="medium")
    figure.supylabel(y, size="medium")


def legend_above(figure: Figure, axes: Sequence[Axes]) -> None:
    """Put one legend of all panels' lines above the figure."""
    handles = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    if not handles:
        return
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=3)
