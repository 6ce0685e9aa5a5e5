"""Figures of training at scale: time to the threshold, speed-ups with intervals, the border where the learner binds."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from quarl_lib.studies.common.grid import legend_above, outer_labels, panels
from quarl_lib.studies.common.theme import PRECISION_COLORS, PRECISION_MARKERS, better
from quarl_lib.studies.training_at_scale.labels import DESIGN_NAMES, label_of

GREY = "#999999"


def time_panels(summary: pd.DataFrame) -> Figure:
    """Draw virtual seconds to the threshold, a panel per task, a bar per set-up."""
    rows = summary[summary.clock == "virtual"]
    tasks = list(dict.fromkeys(rows.task))
    figure, axes = plt.subplots(len(tasks), 1, figsize=(7.5, 0.8 + 0.36 * len(rows)), squeeze=False,
                                height_ratios=[int((rows.task == task).sum()) for task in tasks])  # fmt: skip
    for task, ax in zip(tasks, axes[:, 0], strict=True):
        shown = rows[rows.task == task]
        for y, row in enumerate(shown.itertuples()):
            hatch = "//" if row.design == "authors" else None
            ax.barh(y, row.seconds_to_threshold, color=PRECISION_COLORS[row.precision], alpha=0.75, hatch=hatch)
        ax.set(yticks=range(len(shown)), yticklabels=[label_of(row) for row in shown.itertuples()])
        ax.set(ylim=(len(shown) - 0.5, -0.5), title=f"{task}, return {shown.threshold.iloc[0]:g}")
        ax.grid(axis="y", visible=False)
    axes[-1, 0].set_xlabel("virtual seconds to the threshold, median of seeds")
    better(axes[-1, 0], "lower", axis="x")
    return figure


def speedup_panels(summary: pd.DataFrame, paper: dict[str, float]) -> Figure:
    """Draw speed-ups in virtual time with 95 % intervals, over fp32 of the same design and over the authors' fp32.

    `paper`: its Table 4 by task, drawn beside the authors' int8.
    """
    rows = summary[(summary.clock == "virtual") & ~((summary.design == "authors") & (summary.precision == "fp32"))]
    figure, axes = plt.subplots(1, 2, figsize=(10, 1.2 + 0.4 * len(rows)), sharey=True)
    for ax, name, title in zip(
        axes, ("speedup", "over_authors_fp32"), ("over fp32, same design", "over the authors’ fp32"), strict=True
    ):
        for y, row in enumerate(rows.itertuples()):
            color = PRECISION_COLORS[row.precision]
            ends = [getattr(row, f"{name}_low"), getattr(row, f"{name}_high")]
            ax.plot(ends, [y, y], color=color, lw=2)
            ax.plot(getattr(row, name), y, PRECISION_MARKERS[row.precision], color=color, ms=7)
            if row.design == "authors" and row.precision == "int8" and row.task in paper:
                ax.plot(paper[row.task], y, "D", color=GREY, mec="black", label="the paper’s Table 4")
        ax.axvline(1.0, color="black", lw=0.8)
        ax.set(title=title, xlabel="speed-up in virtual time", xscale="log")
        better(ax, "higher", axis="x")
    names = [f"{row.task}\n{label_of(row)}" for row in rows.itertuples()]
    axes[0].set(yticks=range(len(rows)), ylim=(len(rows) - 0.5, -0.5))
    axes[0].set_yticklabels(names, size="small")
    legend_above(figure, list(axes))
    return figure


def border_panels(border: pd.DataFrame) -> Figure:
    """Draw the speed-up over fp32 as a map, actors by learner milliseconds; a framed cell: the learner binds."""
    rows = border[border.precision != "fp32"]
    groups = list(rows.groupby(["machine", "design", "precision"], sort=False))
    figure, axes = panels(len(groups))
    top = max(2.0, float(rows.speedup.max())) if len(rows) else 2.0
    for ((machine, design, precision), cells), ax in zip(groups, axes, strict=True):
        grid = cells.pivot(index="learner_ms", columns="n_actors", values="speedup")
        bound = cells.pivot(index="learner_ms", columns="n_actors", values="bound_by")
        ax.imshow(grid.to_numpy(), aspect="auto", cmap="cividis", vmin=1.0, vmax=top, origin="lower")
        for (y, x), value in np.ndenumerate(grid.to_numpy()):
            learner = bound.to_numpy()[y, x] == "learner"
            color = "white" if value < (1 + top) / 2 else "black"
            ax.text(
                x, y, f"{value:.2f}" + ("*" if learner else ""), ha="center", va="center", size="small", color=color
            )
        ax.set_xticks(range(len(grid.columns)), [f"{value:g}" for value in grid.columns])
        ax.set_yticks(range(len(grid.index)), [f"{value:g}" for value in grid.index])
        ax.set_title(f"{DESIGN_NAMES[design]}, {precision}\n{machine}", size="small")
        ax.grid(visible=False)
    outer_labels(figure, "actors (*: the learner binds)", "milliseconds of an update")
    return figure


def pace_panels(border: pd.DataFrame) -> Figure:
    """Draw actor steps a virtual second over actors, a panel per learner; flat: the learner binds."""
    speeds = sorted(set(border.learner_ms))
    figure, axes = panels(len(speeds))
    for learner_ms, ax in zip(speeds, axes, strict=True):
        for (machine, design, precision), rows in border[border.learner_ms == learner_ms].groupby(
            ["machine", "design", "precision"], sort=False
        ):
            style = {"packed": "-", "authors": ":"}[design]
            marker, color = PRECISION_MARKERS[precision], PRECISION_COLORS[precision]
            label = f"{DESIGN_NAMES[design]} {precision} ({machine})"
            ax.plot(rows.n_actors, rows.steps_per_s, style, marker=marker, color=color, ms=5, label=label)
        ax.set(title=f"an update in {learner_ms:g} ms", xscale="log", yscale="log")
        _whole_ticks(ax, sorted(set(border.n_actors)))
    outer_labels(figure, "actors", "actor steps a virtual second")
    legend_above(figure, axes)
    return figure


def _whole_ticks(ax: Axes, values: list[int]) -> None:
    ax.set_xticks(values, [f"{value:g}" for value in values])
    ax.set_xticks([], minor=True)


def curve_panels(table: pd.DataFrame, thresholds: dict[str, float]) -> Figure:
    """Draw return over virtual time, a panel per task and learner: all seeds' evaluations, and their mean by set-up."""
    rows = table[table.record == "evaluation"]
    groups = list(rows.groupby(["task", "learner_ms"], sort=False))
    figure, axes = panels(len(groups), columns=2)
    for ((task, learner_ms), cells), ax in zip(groups, axes, strict=True):
        for (design, precision), one in cells.groupby(["design", "precision"], sort=False):
            color = PRECISION_COLORS[precision]
            style = {"packed": "-", "authors": ":"}[design]
            for number, (_, seed) in enumerate(one.groupby("seed")):
                label = f"{DESIGN_NAMES[design]}, {precision}" if not number else None
                ax.plot(seed.wall_time_s, seed.episode_return, style, color=color, lw=1.2, alpha=0.7, label=label)
        ax.axhline(thresholds[task], color=GREY, ls="--", lw=1)
        ax.set(title=f"{task}, {learner_ms:g} ms", xlim=(0, None))
    outer_labels(figure, "virtual seconds", "return of an evaluation")
    legend_above(figure, axes)
    return figure


def validation_panels(validation: pd.DataFrame) -> Figure:
    """Draw virtual over real time, a bar per set-up, with the 15 % that it may be off."""
    figure, ax = plt.subplots(figsize=(7.5, 1.2 + 0.4 * max(1, len(validation))))
    if not len(validation):
        ax.set_axis_off()
        ax.text(0.5, 0.5, "left out: validation_steps is 0", ha="center", va="center")
        return figure
    ax.axvspan(0.85, 1.18, color="#DDDDDD", zorder=0)
    ax.axvline(1.0, color="black", lw=0.8)
    ax.plot(validation.virtual_over_real, range(len(validation)), "o", color=PRECISION_COLORS["int8"], ms=8)
    ax.set(yticks=range(len(validation)), yticklabels=validation.setup, ylim=(len(validation) - 0.5, -0.5))
    ax.set(xlabel="virtual seconds / real seconds for the same steps", xlim=(0.5, 1.5))
    return figure
