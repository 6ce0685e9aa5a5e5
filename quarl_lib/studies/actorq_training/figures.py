"""Figures of ActorQ training: convergence over time and steps, ratios beside the paper's, a lone actor's speed."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from quarl_lib.studies.actorq_training.speed import of_one_environment
from quarl_lib.studies.common.grid import legend_above
from quarl_lib.studies.common.theme import CYCLE, PRECISION_COLORS, PRECISION_MARKERS, axes_or_new, better

CLOCKS = {"wall_time_s": "time since the start [s]", "actor_steps": "actor steps, all actors together"}
GRID_POINTS = 200
PAPER_GREY = "#999999"


def convergence_panels(curves: pd.DataFrame, thresholds: dict[str, float], clock: str = "wall_time_s") -> Figure:
    """Draw return over time or steps, a panel per task: mean over seeds, band from the worst to the best seed.

    A seed that ended, its threshold confirmed, stays where it ended; the curve stops with the last seed.
    """
    tasks = list(dict.fromkeys(curves.task))
    columns = min(2, len(tasks))
    lines = -(-len(tasks) // columns)
    figure, grid = plt.subplots(lines, columns, figsize=(4.8 * columns, 3.3 * lines + 0.4), squeeze=False)
    axes = list(grid.flat)
    for ax in axes[len(tasks) :]:
        ax.axis("off")
    for task, ax in zip(tasks, axes, strict=False):
        for precision in _present(curves[curves.task == task]):
            rows = curves[(curves.task == task) & (curves.precision == precision)]
            x, values = _on_one_grid(rows, clock)
            color = PRECISION_COLORS[precision]
            ax.fill_between(x, values.min(0), values.max(0), color=color, alpha=0.15, lw=0)
            marks = {"marker": PRECISION_MARKERS[precision], "markevery": GRID_POINTS // 8, "ms": 5}
            ax.plot(x, values.mean(0), color=color, label=precision, **marks)
        ax.axhline(thresholds[task], color=PAPER_GREY, ls="--", lw=1, label="threshold")
        ax.set(title=task, xlabel=CLOCKS[clock], ylabel="return (10 episodes)", xlim=(0, None))
        better(ax, "higher")
    legend_above(figure, axes)
    return figure


def so_far(episodes: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the running mean of ten of the actors' noisy episodes over time, a line a run, as far as it has come."""
    ax = axes_or_new(ax, figsize=(7.5, 3.2))
    for index, (run, rows) in enumerate(episodes.groupby("run", sort=False)):
        rows = rows.sort_values("wall_time_s")
        smooth = rows.episode_return.rolling(10, min_periods=1).mean()
        ax.plot(rows.wall_time_s, smooth, color=CYCLE[index % len(CYCLE)], lw=1.4, label=run)
    ax.set(xlabel=CLOCKS["wall_time_s"], ylabel="return (10 noisy episodes)", title="so far")
    ax.legend(fontsize=8)
    return better(ax, "higher")


def _present(rows: pd.DataFrame) -> list[str]:
    return [name for name in PRECISION_COLORS if name in set(rows.precision)]


def _on_one_grid(rows: pd.DataFrame, clock: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the grid [points] and every seed's running return on it [seeds, points]."""
    points = [seed.groupby(clock).running_return.last() for _, seed in rows.groupby("seed")]
    grid = np.linspace(max(p.index[0] for p in points), max(p.index[-1] for p in points), GRID_POINTS)
    return grid, np.stack([np.interp(grid, p.index, p.to_numpy()) for p in points])


def ratio_panels(summary: pd.DataFrame) -> Figure:
    """Draw speedup and CO2 ratio over fp32 as bars, the paper's as diamonds, a panel each; 1 is no gain."""
    rows = summary[summary.precision != "fp32"]
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 1.4 + 0.55 * max(len(rows), 1)), sharey=True)
    for ax, (title, name, paper) in zip(
        axes,
        (
            ("time to the threshold, fp32 / quantized", "speedup", "paper_speedup"),
            ("CO2 to the threshold, fp32 / quantized", "co2_ratio", "paper_co2_ratio"),
        ),
        strict=True,
    ):
        for y, row in enumerate(rows.itertuples()):
            color = PRECISION_COLORS[row.precision]
            ax.barh(y, getattr(row, name), color=color, alpha=0.75, height=0.6)
            ends = [getattr(row, f"{name}_low"), getattr(row, f"{name}_high")]
            if np.isfinite(ends).all():
                ax.plot(ends, [y, y], color="black", lw=1.5)
            if name == "co2_ratio":
                ax.plot(row.co2_ratio_cpu, y, "|", color="black", ms=14, mew=2, label="CPU alone" if y == 0 else None)
            ax.plot(getattr(row, paper), y, "D", color=PAPER_GREY, mec="black", label="the paper" if y == 0 else None)
        ax.axvline(1.0, color="black", lw=0.8)
        # An interval of two seeds can reach into the hundreds; it may run out of the picture, the bars may not.
        widest = np.nanmax([2.0, *rows[name], *rows[paper].fillna(0.0)])
        ax.set(title=title, xlabel="ratio", xlim=(0, 1.15 * widest))
        better(ax, "higher", axis="x")
    labels = [f"{row.task}\n{row.precision}" for row in rows.itertuples()]
    axes[0].set(yticks=range(len(rows)), yticklabels=labels, ylim=(len(rows) - 0.5, -0.5))
    legend_above(figure, list(axes))
    return figure


def busy_panels(summary: pd.DataFrame) -> Figure:
    """Draw which share of its time the learner and an actor worked; the side near 1 is what bounds the run."""
    figure, ax = plt.subplots(figsize=(7.5, 1.2 + 0.45 * len(summary)))
    for y, row in enumerate(summary.itertuples()):
        color = PRECISION_COLORS[row.precision]
        ax.plot([row.actor_busy, row.learner_busy], [y, y], color="#CCCCCC", lw=3, zorder=1)
        ax.plot(row.actor_busy, y, PRECISION_MARKERS[row.precision], color=color, mfc="white", ms=9)
        ax.plot(row.learner_busy, y, PRECISION_MARKERS[row.precision], color=color, ms=9)
    labels = [f"{row.task} {row.precision}" for row in summary.itertuples()]
    ax.set(yticks=range(len(summary)), yticklabels=labels, ylim=(len(summary) - 0.5, -0.5), xlim=(0, 1.02))
    ax.set(xlabel="share of time at work")
    shown = [Line2D([], [], color="grey", marker="o", ls="", mfc=face) for face in ("white", "grey")]
    figure.legend(shown, ["an actor", "the learner"], loc="outside upper center", ncols=2)
    return figure


def lone_actor_panels(speed: pd.DataFrame) -> Figure:
    """Draw steps a second of a lone actor, a panel per task, with each ratio to fp32 (or to the authors' recipe)."""
    speed = of_one_environment(speed)
    tasks = list(dict.fromkeys(speed.task))
    if not tasks:
        return _left_out("throughput_rounds is 0")
    figure, axes = plt.subplots(len(tasks), 1, figsize=(7.5, 1.0 + 0.5 * len(speed)), squeeze=False,
                                height_ratios=[int((speed.task == task).sum()) for task in tasks])  # fmt: skip
    for task, ax in zip(tasks, axes[:, 0], strict=True):
        _speed_bars(speed[speed.task == task], ax)
        ax.set_title(f"{task}, policy {speed.hidden.iloc[0]}")
    axes[-1, 0].set_xlabel("environment steps per second")
    better(axes[-1, 0], "higher", axis="x")
    return figure


def _speed_bars(rows: pd.DataFrame, ax: Axes) -> None:
    labels: Sequence[str] = [
        f"{'authors’ recipe' if row.design == 'authors' else 'ours'}, {row.precision}, pull every {row.update_period}"
        for row in rows.itertuples()
    ]
    ax.grid(axis="y", visible=False)
    for y, row in enumerate(rows.itertuples()):
        hatch = "//" if row.design == "authors" else None
        ax.barh(y, row.steps_per_s, color=PRECISION_COLORS[row.precision], alpha=0.75, height=0.65, hatch=hatch)
        said = [
            f"×{ratio:.2g} {name}"
            for ratio, name in ((row.over_fp32, "fp32"), (row.over_authors, "authors’"))
            if np.isfinite(ratio) and ratio != 1.0
        ]
        ax.annotate(
            ", ".join(said), (row.steps_per_s, y), (4, 0), textcoords="offset points", va="center", size="small"
        )
    ax.set(
        yticks=range(len(rows)),
        yticklabels=labels,
        ylim=(len(rows) - 0.5, -0.5),
        xlim=(0, 1.8 * rows.steps_per_s.max()),
    )


def copies_panels(speed: pd.DataFrame) -> Figure:
    """Draw steps a second of a lone actor over the environments it plays, a panel per task; dashed: through Reverb."""
    tasks = list(dict.fromkeys(speed[speed.envs_per_actor > 1].task))
    if not tasks:
        return _left_out("no actor of several environments was timed")
    figure, axes = plt.subplots(1, len(tasks), figsize=(4.2 * len(tasks), 3.4), squeeze=False)
    for task, ax in zip(tasks, axes[0], strict=True):
        several = speed[(speed.task == task) & (speed.envs_per_actor > 1)]
        for (precision, replay, period), _ in several.groupby(["precision", "replay", "update_period"], sort=False):
            of_line = (speed.precision == precision) & (speed.replay == replay) & (speed.update_period == period)
            line = speed[(speed.task == task) & (speed.design == "packed") & of_line].sort_values("envs_per_actor")
            style = {"color": PRECISION_COLORS[precision], "marker": PRECISION_MARKERS[precision], "ms": 6}
            label = f"{precision}, Reverb" if replay == "reverb" else f"{precision}, shared memory"
            ax.plot(line.envs_per_actor, line.steps_per_s, ls="--" if replay == "reverb" else "-", label=label, **style)
            last = line.iloc[-1]
            ax.annotate(f"×{last.over_one_env:.2g}", (last.envs_per_actor, last.steps_per_s), (5, 0),
                        textcoords="offset points", va="center", size="small")  # fmt: skip
        ax.set(title=task, xlabel="environments an actor", ylim=(0, None), xticks=sorted({1, *several.envs_per_actor}))
        ax.margins(x=0.2)
    axes[0, 0].set_ylabel("steps per second")
    better(axes[0, 0], "higher")
    legend_above(figure, list(axes[0]))
    return figure


def peer_panels(runs: pd.DataFrame) -> Figure:
    """Draw seconds to the threshold, a dot a seed, a panel per task: ours by precision, then the peers.

    An arrow starts where a run ended that did not get there.
    """
    tasks = list(dict.fromkeys(runs.task))
    if not tasks:
        return _left_out("peers is empty")
    sizes = [runs[runs.task == task].who.nunique() for task in tasks]
    figure, axes = plt.subplots(len(tasks), 1, figsize=(7.5, 0.9 * len(tasks) + 0.4 * sum(sizes)), squeeze=False,
                                height_ratios=sizes, sharex=True)  # fmt: skip
    for task, ax in zip(tasks, axes[:, 0], strict=True):
        rows = runs[runs.task == task]
        names = list(dict.fromkeys(rows.who))
        for y, who in enumerate(names):
            mine, color = rows[rows.who == who], PRECISION_COLORS.get(who, PAPER_GREY)
            ax.plot(mine.seconds, [y] * len(mine), "o", color=color, mec="black", ms=7)
            for seconds in mine[~mine.reached.astype(bool)].seconds:
                ax.annotate("", (1.35 * seconds, y), (seconds, y), arrowprops={"arrowstyle": "->", "lw": 1.5})
        labels = [
            f"ActorQ, {who}" if who in PRECISION_COLORS else f"SB3 {who.removeprefix('sb3_').upper()}" for who in names
        ]
        ax.set(title=task, xscale="log", yticks=range(len(names)), yticklabels=labels, ylim=(len(names) - 0.5, -0.5))
    axes[-1, 0].set(xlabel="seconds to the threshold", xlim=(0.7 * runs.seconds.min(), 1.6 * runs.seconds.max()))
    better(axes[-1, 0], "lower", axis="x")
    return figure


def _left_out(why: str) -> Figure:
    figure, ax = plt.subplots(figsize=(7.5, 1.0))
    ax.set_axis_off()
    ax.text(0.5, 0.5, f"left out: {why}", ha="center", va="center")
    return figure
