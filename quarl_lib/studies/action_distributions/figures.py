"""Figures of the action study; each takes its long-form table."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from quarl_lib.studies.action_distributions.ranges import shown_range
from quarl_lib.studies.common.grid import legend_above, outer_labels, panels
from quarl_lib.studies.common.theme import CYCLE, PRECISION_COLORS, axes_or_new

BINS = 50
ECDF_POINTS = 400


def discrete_panels(table: pd.DataFrame) -> Figure:
    """Draw one panel per agent: how often each discrete action is taken, precisions side by side."""
    measured = _measured(table, discrete=True)
    agents = list(dict.fromkeys(measured.agent))
    figure, axes = panels(len(agents))
    for ax, agent in zip(axes, agents, strict=True):
        draw_bars(measured[measured.agent == agent], ax)
    outer_labels(figure, "action", "share of states")
    legend_above(figure, axes)
    return figure


def first_agent(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw one panel of the first agent: how often it takes each action, or how far its actions move."""
    measured = table[table.error == ""]
    rows = measured[measured.agent == measured.agent.iloc[0]]
    draw = draw_bars if rows.discrete.iloc[0] else draw_ecdf
    ax = draw(rows, axes_or_new(ax))
    labels = ("action", "share of states") if rows.discrete.iloc[0] else ("|action − fp32's|", "share within")
    ax.set(xlabel=labels[0], ylabel=labels[1])
    ax.set_title(rows.agent.iloc[0], size="small")
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return ax


def draw_bars(rows: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw one agent's action shares, fp32 first; above them how often each precision takes fp32's action."""
    ax = axes_or_new(ax)
    first = rows[rows.precision == rows.precision.iloc[0]]
    count = int(max(rows.action.max(), rows.action_fp32.max())) + 1
    series = {"fp32": first.action_fp32} | {p: r.action for p, r in rows.groupby("precision", sort=False)}
    width = 0.84 / len(series)
    for index, (precision, actions) in enumerate(series.items()):
        shares = np.bincount(actions.astype(int), minlength=count) / len(actions)
        at = np.arange(count) + (index - (len(series) - 1) / 2) * width
        ax.bar(at, shares, width * 0.92, color=_color(precision, index), label=precision)
    same = (rows.action == rows.action_fp32).groupby(rows.precision, sort=False).mean()
    said = [f"{precision} {rate:.1%}" for precision, rate in same.items()]
    lines = ["same action as fp32:", *("  ".join(said[k : k + 3]) for k in range(0, len(said), 3))]
    title = f"{rows.agent.iloc[0]}\n" + "\n".join(lines)
    ax.set_title(title, size="x-small")
    ax.set_xticks(range(count))
    return ax


def continuous_panels(table: pd.DataFrame, max_dimensions: int = 3) -> Figure:
    """Draw one panel per agent and action dimension: outlines of the precisions' histograms over fp32's area."""
    measured = _measured(table, discrete=False)
    measured = measured[measured.dimension < max_dimensions]
    cells = list(measured.groupby(["agent", "dimension"], sort=False))
    figure, axes = panels(len(cells))
    several = measured.groupby("agent").dimension.max().to_dict()
    for ax, ((agent, dimension), rows) in zip(axes, cells, strict=True):
        draw_histogram(rows, ax)
        ax.set_title(f"{agent} [{int(dimension)}]" if several[agent] else agent, size="small")
    outer_labels(figure, "action", "share of states")
    legend_above(figure, axes)
    return figure


def draw_histogram(rows: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw one action dimension's histograms over its bounds; mass at a bound shows as a bar at the edge."""
    ax = axes_or_new(ax)
    edges = np.linspace(*shown_range(rows), BINS + 1).tolist()
    first = rows[rows.precision == rows.precision.iloc[0]]
    weights = np.full(len(first), 1 / len(first))
    ax.hist(first.action_fp32, edges, weights=weights, color="#BBBBBB", label="fp32")
    for index, (precision, line) in enumerate(rows.groupby("precision", sort=False)):
        weights = np.full(len(line), 1 / len(line))
        ax.hist(
            line.action,
            edges,
            weights=weights,
            histtype="step",
            lw=1.3,
            color=_color(precision, index),
            label=precision,
        )
    ax.set_yscale("log")
    ax.set_ylim(0.5 / len(first), 1.5)
    return ax


def difference_panels(table: pd.DataFrame) -> Figure:
    """Draw one panel per continuous agent: the share of actions within a distance of fp32's, log distance."""
    measured = _measured(table, discrete=False)
    agents = list(dict.fromkeys(measured.agent))
    figure, axes = panels(len(agents))
    for ax, agent in zip(axes, agents, strict=True):
        draw_ecdf(measured[measured.agent == agent], ax)
        ax.set_title(agent, size="small")
    outer_labels(figure, "|action − fp32's action|, share of the action range  (← better)", "share of actions within")
    legend_above(figure, axes)
    return figure


def draw_ecdf(rows: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the ECDF of |action - fp32's| over the action range; a line's height at the left edge is the share of 0."""
    ax = axes_or_new(ax)
    widths = {dimension: np.ptp(shown_range(cell)) for dimension, cell in rows.groupby("dimension")}
    difference = (rows.action - rows.action_fp32).abs() / rows.dimension.map(widths)
    grid = np.logspace(-7, 0, ECDF_POINTS)
    for index, (precision, line) in enumerate(difference.groupby(rows.precision, sort=False)):
        shares = np.searchsorted(np.sort(line.to_numpy()), grid, side="right") / len(line)
        ax.plot(grid, shares, color=_color(precision, index), lw=1.6, label=precision)
    ax.set_xscale("log")
    ax.set_xlim(grid[0], 1)
    ax.set_ylim(0, 1.02)
    return ax


def _measured(table: pd.DataFrame, discrete: bool) -> pd.DataFrame:
    rows = table[table.error == ""]
    return rows[rows.discrete.astype(bool) == discrete]


def _color(precision: str, index: int) -> str:
    return PRECISION_COLORS.get(precision, CYCLE[index % len(CYCLE)])
