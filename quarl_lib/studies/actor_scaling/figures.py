"""Figures of actor scaling: time over the number of actors with the model's prediction, and its projection."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from quarl_lib.studies.common.intervals import bars
from quarl_lib.studies.common.theme import PRECISION_COLORS, PRECISION_MARKERS, axes_or_new, better


def time_over_actors(summary: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw microseconds per step of all actors together, measured (with interval) and predicted (dashed)."""
    ax = axes_or_new(ax)
    for precision in [name for name in PRECISION_COLORS if name in set(summary.precision)]:
        rows = summary[summary.precision == precision]
        color = PRECISION_COLORS[precision]
        spread = bars(rows.us_per_step, rows.us_low, rows.us_high)
        marks: dict[str, Any] = {"marker": PRECISION_MARKERS[precision], "ms": 6, "capsize": 3, "lw": 1.6}
        ax.errorbar(rows.n_actors, rows.us_per_step, yerr=spread, color=color, label=f"{precision} measured", **marks)
        ax.plot(rows.n_actors, rows.predicted_us, color=color, ls="--", lw=1.2, label=f"{precision} predicted")
    past = summary[~summary.fits.astype(bool)].n_actors
    if len(past):
        ax.axvspan(past.min() - 0.5, summary.n_actors.max() + 0.5, color="#EEEEEE", zorder=0, label="more than cores")
    ax.set(xlabel="actors", ylabel="µs per actor step, all together", ylim=(0, None))
    ax.set_xlim(summary.n_actors.min() - 0.3, summary.n_actors.max() + 0.3)
    ax.set_xticks(sorted(set(summary.n_actors)))
    by_label = sorted(zip(*ax.get_legend_handles_labels(), strict=True), key=lambda entry: entry[1])
    ax.legend(*zip(*by_label, strict=True), loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=3)
    return better(ax, "lower")


def projection_panels(table: pd.DataFrame) -> Figure:
    """Draw projected steps a second on one machine over cores for actors, a panel per learner speed."""
    return _panels_over(table[table.nodes == 1], "actor_cores", "cores for actors")


def network_panels(table: pd.DataFrame) -> Figure:
    """Draw the same for the most cores over the nodes that they are spread over; hollow: the network binds."""
    return _panels_over(table[table.actor_cores == table.actor_cores.max()], "nodes", "nodes, the learner's included")


def _panels_over(table: pd.DataFrame, column: str, label: str) -> Figure:
    speeds, ticks = sorted(set(table.learner_ms)), sorted(set(table[column]))
    figure, line = plt.subplots(1, len(speeds), figsize=(3.4 * len(speeds), 3.4), squeeze=False, sharey=True)
    for learner_ms, ax in zip(speeds, line[0], strict=True):
        for precision in [name for name in PRECISION_COLORS if name in set(table.precision)]:
            rows = table[(table.learner_ms == learner_ms) & (table.precision == precision)].sort_values(column)
            color, marks = PRECISION_COLORS[precision], {"marker": PRECISION_MARKERS[precision], "ms": 5}
            ax.plot(rows[column], rows.steps_per_s, label=precision, color=color, **marks)
            hollow = rows[rows.bound_by == "network"]
            ax.plot(hollow[column], hollow.steps_per_s, ls="", mec=color, mfc="white", **marks)
        ax.set(title=f"learner step {learner_ms:g} ms", xlabel=label, xscale="log", yscale="log")
        ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        ax.minorticks_off()
    line[0][0].set_ylabel("projected steps/s")
    better(line[0][0], "higher")
    line[0][-1].legend()
    return figure
