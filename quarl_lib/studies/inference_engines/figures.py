"""Figures of the inference engines: time per action, speed against error, the cost of a weight update."""

from __future__ import annotations

from collections.abc import Callable

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from quarl_lib.studies.common.intervals import bars
from quarl_lib.studies.common.theme import CYCLE, PRECISION_COLORS, PRECISION_MARKERS, axes_or_new, better
from quarl_lib.studies.inference_engines.sentences import batched

BATCH_LINES = {"native": "-", "onnxruntime": "--", "torch": ":"}
BATCH_DRAWN = ("fp32", "int8", "int4")
BACKENDS = ("native", "onnxruntime", "torch", "torch-frozen", "numpy")


def action_time(summary: pd.DataFrame, policy: str, ax: Axes | None = None) -> Axes:
    """Draw microseconds per action of one policy: a line per engine and precision, hollow where cold.

    The vertical ticks are the limit: the time that reading the same number of bytes once takes on this machine.
    """
    ax = axes_or_new(ax)
    rows = summary[(summary.policy == policy) & (summary.batch == 1)]
    top, labels = 0, {}
    for backend in [name for name in BACKENDS if name in set(rows.backend)]:
        here = rows[rows.backend == backend]
        precisions = [name for name in PRECISION_COLORS if name in set(here.precision)]
        for y, precision in enumerate(precisions, start=top):
            color, marker = PRECISION_COLORS[precision], PRECISION_MARKERS[precision]
            for regime, face in (("cold", "none"), ("hot", color)):
                cell = here[(here.precision == precision) & (here.regime == regime)]
                ax.plot(cell.us_median, [y] * len(cell), marker, color=color, mfc=face, ms=5.5, zorder=3)
                if regime == "hot":
                    ax.plot(cell.limit_us, [y] * len(cell), "|", color=color, ms=8, mew=2, alpha=0.6)
        labels[top + (len(precisions) - 1) / 2] = backend
        top += len(precisions) + 1  # an empty line between engines
        ax.axhline(top - 1, color="#DDDDDD", lw=1)
    ax.set(xscale="log", title=policy, ylim=(top - 1, -1))
    ax.set_yticks(list(labels), list(labels.values()))
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("time per action [µs]")
    _plain_log_ticks(ax.xaxis, *ax.get_xlim())
    return better(ax, "lower", axis="x")


def _a_panel_a_policy(
    draw: Callable[[pd.DataFrame, str, Axes], Axes], summary: pd.DataFrame, policies: list[str], height: float
) -> tuple[Figure, list[Axes]]:
    """Return a figure with a panel for each policy, and empty ones behind them, the first of which is for a legend."""
    columns = min(3, len(policies) + 1)
    rows = -(-(len(policies) + 1) // columns)
    figure, grid = plt.subplots(rows, columns, figsize=(4.3 * columns, height * rows), squeeze=False)
    panels = list(grid.flat)
    for ax, policy in zip(panels, policies, strict=False):
        draw(summary, policy, ax)
    for ax in panels[len(policies) :]:
        ax.axis("off")
    return figure, panels


def action_time_panels(summary: pd.DataFrame) -> Figure:
    """Draw `action_time` for every policy of the table, with one legend."""
    policies = list(dict.fromkeys(summary.policy))
    figure, panels = _a_panel_a_policy(action_time, summary, policies, height=4.3)
    precisions = [name for name in PRECISION_COLORS if name in set(summary.precision)]
    handles = [_dot(PRECISION_MARKERS[name], PRECISION_COLORS[name], name) for name in precisions]
    handles += [
        _dot("o", "grey", "filled: hot"),
        Line2D([], [], marker="o", ls="", color="grey", mfc="none", label="hollow: cold"),
        Line2D([], [], marker="|", ls="", color="grey", ms=9, mew=2, label="tick: reading every weight once, hot"),
    ]
    panels[len(policies)].legend(handles=handles, loc="center", ncols=1)
    return figure


def _plain_log_ticks(axis: Axis, low: float, high: float) -> None:
    """Label a logarithmic axis with plain numbers: every decade, and 2 and 5 between where few decades show."""
    axis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 300 else (1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def speed_against_error(summary: pd.DataFrame, policy: str, ax: Axes | None = None) -> Axes:
    """Draw speed over torch fp32 (hot, with its interval) against the mean relative action error of one policy."""
    ax = axes_or_new(ax)
    rows = summary[(summary.policy == policy) & (summary.regime == "hot") & (summary.batch == 1)]
    backends = [name for name in BACKENDS if name in set(rows.backend)]
    for index, row in rows.iterrows():
        color = CYCLE[backends.index(row.backend) % len(CYCLE)]
        error = max(row.mean_relative_error, 1e-7)
        marker = PRECISION_MARKERS[row.precision]
        one = rows.loc[[index]]
        spread = bars(one.ratio_to_torch_fp32, one.ratio_ci_low, one.ratio_ci_high)
        ax.errorbar(error, row.ratio_to_torch_fp32, yerr=spread, fmt=marker, color=color, ms=7, capsize=2, alpha=0.9)
    best = rows[rows.precision == "fp32"].ratio_to_torch_fp32.max()
    ax.axhline(1.0, color="grey", lw=1)
    ax.axhline(best, color="grey", lw=1, ls="--")
    ax.text(
        1.0, best, "best fp32 ", ha="right", va="bottom", fontsize=8, color="grey", transform=ax.get_yaxis_transform()
    )
    ax.set(xscale="log", yscale="log", title=f"{policy}, hot", ylabel="times torch fp32's speed")
    ax.set_xlabel("mean relative error of the action against fp32")
    _plain_log_ticks(ax.yaxis, *ax.get_ylim())
    handles: list[Artist] = [Patch(color=CYCLE[i % len(CYCLE)], label=name) for i, name in enumerate(backends)]
    handles += [_dot(PRECISION_MARKERS[p], "grey", p) for p in PRECISION_COLORS if p in set(rows.precision)]
    ax.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9)
    return better(better(ax, "higher"), "lower", axis="x")


def update_cost_panels(summary: pd.DataFrame, policy: str) -> Figure:
    """Draw what new weights cost by backend and precision: pack at the learner, load at the actor, and the bytes."""
    rows = summary[(summary.policy == policy) & (summary.regime == "hot") & (summary.batch == 1)]
    rows = rows.dropna(subset=["pack_ms", "load_ms"])
    rows = rows.sort_values("pack_ms", key=lambda _: -(rows.pack_ms + rows.load_ms))
    labels = [f"{backend} {precision}" for backend, precision in zip(rows.backend, rows.precision, strict=True)]
    figure, (times, sizes) = plt.subplots(1, 2, sharey=True, figsize=(9.5, 0.36 * len(rows) + 1.4), width_ratios=[3, 2])
    times.barh(labels, rows.pack_ms, color=CYCLE[0], label="quantize and pack (learner)")
    times.barh(labels, rows.load_ms, left=rows.pack_ms, color=CYCLE[1], label="load (actor)")
    for y, total in enumerate(rows.pack_ms + rows.load_ms):
        times.text(total, y, f" {total:.3g}", va="center", fontsize=8)
    times.margins(x=0.12)
    times.set(title=f"{policy}: time per update", xlabel="milliseconds")
    times.legend(loc="upper right", fontsize=9)
    sizes.barh(labels, rows.payload_bytes / 1e6, color=CYCLE[2])
    sizes.set(title="message", xlabel="megabytes")
    for ax in (times, sizes):
        better(ax, "lower", axis="x")
        ax.grid(axis="y", visible=False)
    return figure


def time_over_batch(summary: pd.DataFrame, policy: str, ax: Axes | None = None) -> Axes:
    """Draw microseconds an action of one policy over the batch, hot; the band lies between int8's and fp32's limit."""
    ax = axes_or_new(ax)
    rows = summary[(summary.policy == policy) & (summary.regime == "hot")].sort_values("batch")
    for backend, style in BATCH_LINES.items():
        for precision in BATCH_DRAWN:
            line = rows[(rows.backend == backend) & (rows.precision == precision)]
            if len(line):
                (drawn,) = ax.plot(line.batch, line.us_median, style, marker="o", ms=3, label=f"{backend} {precision}")
                drawn.set_color(PRECISION_COLORS[precision])
    low, high = (rows[rows.precision == precision].groupby("batch").limit_us.median() for precision in ("int8", "fp32"))
    if len(low):
        ax.fill_between(low.index, low, high.loc[low.index], color="grey", alpha=0.2, lw=0, label="limit, int8 to fp32")
    ax.set_xscale("log", base=2)
    ax.set(yscale="log", title=policy, xlabel="observations in a call", ylabel="time per action [µs]")
    sizes = sorted(set(rows.batch))
    ax.set_xticks(sizes, [str(size) for size in sizes])
    _plain_log_ticks(ax.yaxis, *ax.get_ylim())
    return better(ax, "lower")


def time_over_batch_panels(summary: pd.DataFrame) -> Figure:
    """Draw `time_over_batch` for every policy that has batches, with one legend."""
    policies = list(batched(summary)) or list(dict.fromkeys(summary.policy))[:1]
    figure, panels = _a_panel_a_policy(time_over_batch, summary, policies, height=3.6)
    panels[len(policies)].legend(*panels[0].get_legend_handles_labels(), loc="center", ncols=1)
    return figure


def _dot(marker: str, color: str, label: str) -> Line2D:
    return Line2D([], [], marker=marker, color=color, ls="", label=label)
