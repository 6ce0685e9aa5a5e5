"""Figures of the QAT bit sweep."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from quarl_lib.studies.common.grid import legend_above, outer_labels, panels
from quarl_lib.studies.common.intervals import bars
from quarl_lib.studies.common.theme import CYCLE, PRECISION_COLORS, axes_or_new, better

STYLES: dict[str, dict[str, Any]] = {
    "ptq": {"color": CYCLE[1], "marker": "s", "label": "PTQ"},
    "fine_tune": {"color": CYCLE[2], "marker": "^", "label": "fine-tuned"},
    "fine_tune_lsq": {"color": CYCLE[4], "marker": "v", "label": "fine-tuned, learned steps"},
    "qat": {"color": CYCLE[0], "marker": "o", "label": "QAT from scratch"},
    "lsq": {"color": CYCLE[3], "marker": "D", "label": "QAT from scratch, learned steps"},
}
GRIDS = {"engine": ("-", ""), "affine": ("--", ", paper's grid")}
DODGE = 0.06  # doublings of bits between methods: intervals side by side
MARGIN = 0.15


def return_panels(summary: pd.DataFrame) -> Figure:
    """Draw Figure 10, one panel per environment and algorithm: normalized return over weight bits, a line a method.

    Only where fp32 converged. Filled and joined where everything has the same bits, and on the engines' grid; hollow
    where activations or observation have others.
    """
    agents = list(summary[summary.converged].groupby(["env_id", "algorithm"], sort=False))
    if not agents:
        figure, (ax,) = panels(1)
        ax.set_title("no fp32 policy counts as solved on every seed")
        return figure
    figure, axes = panels(len(agents))
    for ax, ((env_id, algorithm), rows) in zip(axes, agents, strict=True):
        draw_returns(rows, ax)
        ax.set_title(f"{env_id}\n{algorithm}, {rows.seeds.max()} seeds")
    outer_labels(figure, "bits of a weight", "return, random 0,\nfp32 1  (↑ better)")
    legend_above(figure, axes)
    figure.set_figwidth(max(figure.get_figwidth(), 7.5))
    return figure


def cost_panels(summary: pd.DataFrame, costs: pd.DataFrame) -> Figure:
    """Draw normalized return at each engine's precision, its bytes and microseconds below; a panel per converged agent.

    From the smallest policy to fp32, evenly: a small policy's precisions differ by few bytes.
    """
    rows = summary[summary.converged & (summary.grid == "engine") & (summary.activation_bits == 8)]
    priced = rows.merge(costs, on=["algorithm", "env_id", "weight_bits"])
    agents = list(priced.groupby(["env_id", "algorithm"], sort=False))
    if not agents:
        figure, (ax,) = panels(1)
        ax.set_title("no converged policy runs on an engine at these bits")
        return figure
    figure, axes = panels(len(agents))
    for ax, ((env_id, algorithm), cells) in zip(axes, agents, strict=True):
        own = costs[(costs.env_id == env_id) & (costs.algorithm == algorithm)].sort_values("payload_bytes")
        place = {precision: index for index, precision in enumerate(own.precision)}
        ax.plot([place["fp32"]], [1], "o", color=PRECISION_COLORS["fp32"], label="fp32")
        for index, (method, style) in enumerate(STYLES.items()):
            line = cells[cells.method == method].sort_values("payload_bytes")
            if len(line):
                spread = bars(line.normalized, line.normalized_low, line.normalized_high)
                x = line.precision.map(place) + 0.12 * (index - 1.5)
                ax.errorbar(x, line.normalized, spread, ms=6, lw=1.2, capsize=2, **style)
        labels = [f"{c.precision}\n{c.payload_bytes / 1024:.3g} KiB\n{c.microseconds:.2g} us" for c in own.itertuples()]
        ax.set_xticks(range(len(own)), labels, fontsize="x-small")
        low, high = min(0.0, cells.normalized.min()), max(1.0, cells.normalized.max())
        ax.set_ylim(low - MARGIN * (high - low), high + MARGIN * (high - low))
        ax.set_title(f"{env_id}\n{algorithm}, {cells.seeds.max()} seeds")
    outer_labels(
        figure, "a policy on its engine: memory, and time of an action", "return, random 0,\nfp32 1  (↑ better)"
    )
    legend_above(figure, axes)
    figure.set_figwidth(max(figure.get_figwidth(), 7.5))
    return figure


def first_agent(summary: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw one panel, the first agent's."""
    _, rows = next(iter(summary.groupby(["env_id", "algorithm"], sort=False)))
    ax = draw_returns(rows, axes_or_new(ax))
    ax.set(xlabel="bits of a weight", ylabel="return, fp32 1", title=f"{rows.env_id.iloc[0]}, {rows.algorithm.iloc[0]}")
    if isinstance(ax.figure, Figure):
        legend_above(ax.figure, [ax])
    return ax


def draw_returns(rows: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw one agent's normalized returns with intervals over weight bits."""
    ax = axes_or_new(ax)
    ax.axhline(1, color=PRECISION_COLORS["fp32"], lw=1, label="fp32")
    drawn = rows[~rows.method.str.startswith("fp32")]
    lines = [
        (method, grid) for grid in GRIDS for method in STYLES if ((drawn.method == method) & (drawn.grid == grid)).any()
    ]
    for index, (method, grid) in enumerate(lines):
        shift = 2 ** (DODGE * (index - (len(lines) - 1) / 2))
        cells = drawn[(drawn.method == method) & (drawn.grid == grid)].sort_values("weight_bits")
        alike = (cells.activation_bits == cells.weight_bits) & (cells.observation_bits == cells.weight_bits)
        alike |= cells.grid == "engine"  # this grid has one choice of the others
        line, words = GRIDS[grid]
        style = {**STYLES[method], "label": STYLES[method]["label"] + words}
        _errorbars(ax, cells[alike], shift, **style, ls=line)
        _errorbars(ax, cells[~alike], shift, **{**style, "label": f"{style['label']}, mixed bits"}, ls="", mfc="white")
    bits = sorted(int(b) for b in drawn.weight_bits.unique())
    ax.set_xscale("log", base=2)
    ax.set_xticks(bits, [str(b) for b in bits])
    ax.minorticks_off()
    # An interval of two seeds can reach far beyond any return; it may run out of the picture, the means may not.
    low, high = min(0.0, drawn.normalized.min()), max(1.0, drawn.normalized.max())
    if low < high:  # NaN where fp32 is no better than a random policy
        ax.set_ylim(low - MARGIN * (high - low), high + MARGIN * (high - low))
    ax.yaxis.set_major_locator(MaxNLocator(5))
    return ax


def _errorbars(ax: Axes, cells: pd.DataFrame, shift: float, **style: Any) -> None:
    if len(cells):
        spread = bars(cells.normalized, cells.normalized_low, cells.normalized_high)
        ax.errorbar(cells.weight_bits * shift, cells.normalized, spread, ms=6, lw=1.2, capsize=2, **style)


def weight_level_panels(levels: pd.DataFrame) -> Figure:
    """Draw one panel per method and bits: how many weights of the first agent's largest layer hold which value."""
    first = levels[(levels.algorithm == levels.algorithm.iloc[0]) & (levels.env_id == levels.env_id.iloc[0])]
    layer = first.groupby("layer")["count"].sum().idxmax()
    rows = first[first.layer == layer].sort_values("weight_bits", ascending=False, kind="stable")
    groups = list(rows.groupby(["method", "bits"], sort=False))
    limit = rows.weight.abs().max() * 1.05
    figure, axes = panels(len(groups), columns=4)
    for ax, ((method, bits), group) in zip(axes, groups, strict=True):
        if method == "fp32":
            options: dict[str, Any] = {"bins": 60, "range": (-limit, limit), "histtype": "stepfilled"}
            ax.hist(group.weight, weights=group["count"], color=PRECISION_COLORS["fp32"], **options)
            ax.set_title(f"fp32, {first.algorithm.iloc[0]} {first.env_id.iloc[0]}", fontsize="small")
        else:
            style = STYLES[method]
            ax.vlines(group.weight, 0, group["count"], color=style["color"], lw=1.5)
            ax.set_title(f"{style['label']}, {bits} bits: {len(group)} levels", fontsize="small")
        ax.set_xlim(-limit, limit)
        ax.set_ylim(bottom=0)
        ax.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    outer_labels(figure, f"weight of layer {layer}", "number of weights")
    return figure


def training_time(summary: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw training's processor time with the bits as a ratio to fp32's per agent, one marker per bits."""
    rows = summary[summary.method.isin(STYLES) & summary.training_time_ratio.notna()]
    agents = list(dict.fromkeys(zip(rows.algorithm, rows.env_id, strict=True)))
    ax = axes_or_new(ax, figsize=(7.5, 1.4 + 0.7 * len(agents)))
    for index, (method, line) in enumerate(rows.groupby("method", sort=False)):
        height = [agents.index(agent) for agent in zip(line.algorithm, line.env_id, strict=True)]
        rank = line.groupby(["algorithm", "env_id"]).cumcount()
        offset = 0.22 * (rank - rank.max() / 2) + 0.05 * index
        spread = bars(line.training_time_ratio, line.ratio_low, line.ratio_high)
        style = STYLES[str(method)]
        ax.errorbar(line.training_time_ratio, height + offset, xerr=spread, ls="", ms=5, capsize=2, **style)
        for ratio, y, bits in zip(
            line.ratio_high.fillna(line.training_time_ratio), height + offset, line.weight_bits, strict=True
        ):
            ax.annotate(f"{bits} bits", (ratio, y), (6, 0), textcoords="offset points", va="center", size=8)
    ax.axvline(1, color=PRECISION_COLORS["fp32"], lw=1, label="fp32")
    ax.set_yticks(range(len(agents)), [f"{algorithm}, {env_id}" for algorithm, env_id in agents])
    ax.set_ylim(len(agents) - 0.5, -0.5)
    ax.set_xlabel("processor time of training, as a multiple of fp32's")
    better(ax, "lower", axis="x")
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return ax
