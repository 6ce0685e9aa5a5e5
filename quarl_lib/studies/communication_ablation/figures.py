"""Figures of the communication ablation: speedups by what is quantized, return by update period, codes that change."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from quarl_lib.studies.common.intervals import brackets
from quarl_lib.studies.common.theme import CYCLE, MARKERS, PRECISION_COLORS, axes_or_new, better

TRANSPORTS = {"shared_memory": "shared memory", "reverb": "Reverb"}
GRID_POINTS = 100
PUBLICATIONS_SMOOTHED = 25


def ablation_panels(summary: pd.DataFrame) -> Figure:
    """Draw the time for 1000 actor steps, its part in pulls hatched: a panel per transport and update period."""
    transports, periods = list(dict.fromkeys(summary.transport)), sorted(set(summary.update_period))
    pairs = len(summary) // (len(transports) * len(periods))
    size = (4.6 * len(transports), (0.42 * pairs + 0.9) * len(periods) + 0.5)
    figure, grid = plt.subplots(len(periods), len(transports), figsize=size, squeeze=False, sharex="row")
    for line, period in zip(grid, periods, strict=True):
        for ax, transport in zip(line, transports, strict=True):
            rows = summary[(summary.transport == transport) & (summary.update_period == period)]
            labels = rows.compute_precision + " / " + rows.communication_precision
            seconds, pulling = rows.seconds_per_1000_steps, rows.seconds_per_1000_steps * rows.pull_share
            colors = [PRECISION_COLORS[name] for name in rows.compute_precision]
            ax.barh(labels, seconds - pulling, color=colors, height=0.65, alpha=0.85)
            ax.barh(labels, pulling, left=seconds - pulling, color="white", edgecolor=colors, height=0.65, hatch="////")
            for y, row in enumerate(rows.itertuples()):
                text = f" {row.speedup:.2f}×" + (f" {brackets(row.speedup_low, row.speedup_high)}" if y else "")
                if row.messages_per_pull < 0.95:
                    text += f", new: {row.messages_per_pull:.0%}"
                ax.text(row.seconds_per_1000_steps, y, text, va="center", fontsize=8)
            ax.set(title=f"{TRANSPORTS[transport]}, update period {period}", xlabel="seconds per 1000 actor steps")
            ax.invert_yaxis()
            ax.grid(axis="y", visible=False)
            better(ax, "lower", axis="x")
        right = max(ax.get_xlim()[1] for ax in line)
        line[0].set_xlim(0, 1.6 * right)
    handles = [
        Patch(fc="grey", alpha=0.85, label="acting"),
        Patch(fc="white", ec="grey", hatch="////", label="pulling weights"),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=2)
    return figure


def return_over_steps(curves: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw return over actor steps, a line per update period: mean over seeds, band from the worst to the best."""
    ax = axes_or_new(ax)
    for index, (period, rows) in enumerate(curves.groupby("update_period")):
        points = [seed.groupby("actor_steps").running_return.last() for _, seed in rows.groupby("seed")]
        grid = np.linspace(max(p.index[0] for p in points), min(p.index[-1] for p in points), GRID_POINTS)
        values = np.stack([np.interp(grid, p.index, p.to_numpy()) for p in points])
        ax.fill_between(grid, values.min(0), values.max(0), color=CYCLE[index], alpha=0.15, lw=0)
        marks: dict[str, Any] = {"marker": MARKERS[index], "markevery": GRID_POINTS // 8, "ms": 5}
        ax.plot(grid, values.mean(0), color=CYCLE[index], label=f"{period} steps", **marks)
    ax.set(xlabel="actor steps, all actors together", ylabel="return (10 episodes)", xlim=(0, None))
    ax.legend(title="weights pulled every")
    return better(ax, "higher")


def codes_changed(publications: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the share of weight codes that each publication changed, a line per training run, over learner steps."""
    ax = axes_or_new(ax)
    for index, (period, rows) in enumerate(publications.groupby("update_period")):
        for number, (_, run) in enumerate(rows.groupby("seed")):
            run = run.sort_values("learner_steps")
            smooth = 100 * run.changed_share.rolling(PUBLICATIONS_SMOOTHED, center=True, min_periods=1).mean()
            label = f"{period:g} steps" if not number else None
            ax.plot(run.learner_steps, smooth, color=CYCLE[index], label=label, lw=1.4)
    ax.set(xlabel="learner steps", ylabel="codes changed by a publication [%]", xlim=(0, None), ylim=(0, None))
    if len(publications):
        ax.legend(title="weights pulled every")
    return ax
