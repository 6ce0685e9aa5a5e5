"""Figures of the PTQ study; each takes its summary table."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from quarl_lib.studies.common.grid import legend_above, outer_labels, panels
from quarl_lib.studies.common.intervals import band, bars
from quarl_lib.studies.common.theme import CYCLE, MARKERS, PRECISION_COLORS, PRECISION_MARKERS, axes_or_new, better

LEAST_KEPT, MOST_KEPT = -0.5, 1.5  # beyond, a policy is lost, or fp32's return is too small to divide by


def return_panels(summary: pd.DataFrame, by: str = "quantizer") -> Figure:
    """Draw one panel an agent: mean return over bits, a line per quantizer or `by="observation"`; fp32 as a band.

    The other of the two is held at the first that was measured.
    """
    measured = summary[summary.error == ""]
    held = "observation" if by == "quantizer" else "quantizer"
    integers = measured[~measured.precision.isin(["fp32", "fp16"])]
    first = integers[integers[held].isin(integers[held].head(1))]
    measured = pd.concat([measured[measured.precision.isin(["fp32", "fp16"])], first])
    agents = list(dict.fromkeys(measured.agent))
    figure, axes = panels(len(agents))
    for ax, agent in zip(axes, agents, strict=True):
        draw_returns(measured[measured.agent == agent], by, ax)
        ax.set_title(agent, size="small")
    outer_labels(figure, "bits of weights and activations", "episode return  (↑ better)")
    legend_above(figure, axes)
    return figure


def aggregate(scores: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the interquartile mean of normalized returns over bits, one line a quantizer, fp32 at 1 and random at 0."""
    ax = axes_or_new(ax)
    ax.axhline(1, color=PRECISION_COLORS["fp32"], lw=1, label="fp32")
    ax.axhline(0, color="black", lw=0.8, ls=":", label="random")
    lines = scores[scores.precision != "fp32"].groupby("quantizer", sort=False)
    for index, (name, line) in enumerate(lines):
        line = line.sort_values("num_bits")
        bits = line.num_bits * 2 ** (0.05 * (index - (len(lines) - 1) / 2))
        ax.errorbar(
            bits, line.iqm, bars(line.iqm, line.ci_low, line.ci_high), label="fp16" if name == "cast" else name,
            color=CYCLE[index % len(CYCLE)], marker=MARKERS[index % len(MARKERS)], ms=5, lw=1.2, capsize=2,
        )  # fmt: skip
    _bit_axis(ax, scores)
    ax.set_xlabel("bits of weights and activations")
    ax.set_ylabel("normalized return, IQM  (↑ better)")
    ax.legend(fontsize=8)
    return ax


def draw_returns(rows: pd.DataFrame, by: str = "quantizer", ax: Axes | None = None) -> Axes:
    """Draw one agent's mean returns with intervals over bits, a line per value of the column `by`."""
    ax = axes_or_new(ax)
    for fp32 in rows[rows.precision == "fp32"].itertuples():  # one, or none where it could not be played
        known = band(ax, fp32.ci_low, fp32.ci_high)
        label = "fp32 and its interval" if known else "fp32"
        ax.axhline(fp32.mean_return, color=PRECISION_COLORS["fp32"], lw=1, label=label)
    names = rows[by].where(rows.precision != "fp16", "fp16")
    lines = rows[rows.precision != "fp32"].groupby(names, sort=False)
    for index, (name, line) in enumerate(lines):
        line = line.sort_values("num_bits")
        # Lines that share their bits would hide each other's intervals.
        bits = line.num_bits * 2 ** (0.05 * (index - (len(lines) - 1) / 2))
        spread = bars(line.mean_return, line.ci_low, line.ci_high)
        ax.errorbar(
            bits, line.mean_return, spread, label=name, color=CYCLE[index % len(CYCLE)],
            marker=MARKERS[index % len(MARKERS)], ms=5, lw=1.2, capsize=2,
        )  # fmt: skip
    _bit_axis(ax, rows)
    return ax


def relative_error(summary: pd.DataFrame, quantizer: str, observation: str = "none", ax: Axes | None = None) -> Axes:
    """Draw each agent's share of the return lost with its paired interval, one marker per precision."""
    rows = summary[(summary.error == "") & (summary.precision != "fp32")]
    rows = rows[rows.quantizer.isin([quantizer, "cast"]) & (rows.observation == observation)]
    agents, precisions = list(dict.fromkeys(rows.agent)), list(dict.fromkeys(rows.precision))
    ax = axes_or_new(ax, figsize=(7.5, 1.2 + 0.12 * len(agents) * (len(precisions) + 1)))
    for index, precision in enumerate(precisions):
        line = rows[rows.precision == precision]
        offset = 0.7 * ((index + 0.5) / len(precisions) - 0.5)
        ax.errorbar(
            line.relative_error, [agents.index(agent) + offset for agent in line.agent],
            xerr=bars(line.relative_error, line.relative_error_low, line.relative_error_high),
            color=PRECISION_COLORS.get(precision, CYCLE[index % len(CYCLE)]),
            marker=PRECISION_MARKERS.get(precision, "o"), ms=5, lw=0, elinewidth=1.2, capsize=2, label=precision,
        )  # fmt: skip
    ax.axvline(0, color="black", lw=0.8)
    ax.set_xscale("symlog", linthresh=0.01)
    ends = rows[["relative_error", "relative_error_low", "relative_error_high"]].abs()
    largest = max(0.01, *ends.max().fillna(0.0))
    ticks = [0.0, *(sign * 10.0**k for k in range(-2, math.ceil(math.log10(largest)) + 1) for sign in (-1, 1))]
    low, high = ax.get_xlim()
    ax.set_xticks([tick for tick in sorted(ticks) if low <= tick <= high])
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    ax.minorticks_off()
    ax.set_yticks(range(len(agents)), agents)
    ax.set_ylim(len(agents) - 0.4, -0.6)
    ax.set_xlabel(f"share of fp32's return lost, {quantizer} (linear within ±1 %)")
    better(ax, "lower", axis="x")
    if precisions:
        ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return ax


def kept_panels(robustness: pd.DataFrame) -> Figure:
    """Draw one panel an agent: the share of fp32's return kept over bits, a line per disturbance, "none" in black."""
    rows = robustness[(robustness.error == "") & robustness.kept.notna()]
    rows = rows[~rows.precision.isin(["fp32", "fp16"])]
    agents, names = list(dict.fromkeys(rows.agent)), list(dict.fromkeys(robustness.disturbance))
    figure, axes = panels(len(agents))
    for ax, agent in zip(axes, agents, strict=True):
        for index, name in enumerate(names):
            line = rows[(rows.agent == agent) & (rows.disturbance == name)].sort_values("num_bits")
            if line.empty:  # this agent's environment does not take it
                continue
            bits = line.num_bits * 2 ** (0.04 * (index - (len(names) - 1) / 2))
            ax.errorbar(
                bits, line.kept, bars(line.kept, line.kept_low, line.kept_high), label=name, ms=4, lw=1.2, capsize=2,
                color="black" if index == 0 else CYCLE[(index - 1) % len(CYCLE)], marker=MARKERS[index % len(MARKERS)],
            )  # fmt: skip
        ax.axhline(1, color=PRECISION_COLORS["fp32"], lw=1)
        ax.set_ylim(max(ax.get_ylim()[0], LEAST_KEPT), min(ax.get_ylim()[1], MOST_KEPT))
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        ax.set_title(agent, size="small")
        _bit_axis(ax, rows)
    outer_labels(figure, "bits of weights and activations", "share of fp32's return kept  (↑ better)")
    legend_above(figure, axes)
    return figure


def loss_panels(summary: pd.DataFrame, observation: str = "none") -> Figure:
    """Draw one panel a quantizer: the share of fp32's return lost by agent (rows) and precision (columns).

    Bold with a star: beyond noise. Colours end at 0 and at a loss of all; cells without a value stay grey.
    """
    rows = summary[(summary.error == "") & (summary.precision != "fp32") & (summary.observation == observation)]
    quantizers = list(dict.fromkeys(rows.quantizer[rows.quantizer != "cast"])) or list(dict.fromkeys(rows.quantizer))
    agents = list(dict.fromkeys(rows.agent))
    precisions = list(dict.fromkeys(rows.sort_values("num_bits", ascending=False).precision))
    figure, axes = panels(len(quantizers), columns=2)
    columns = min(2, max(len(quantizers), 1))
    lines = -(-len(quantizers) // 2)
    figure.set_size_inches(1.6 + (0.56 * len(precisions) + 0.3) * columns, 1.0 + (0.32 * len(agents) + 0.6) * lines)
    for index, (ax, quantizer) in enumerate(zip(axes, quantizers, strict=True)):
        cells = rows[rows.quantizer.isin([quantizer, "cast"])].set_index(["agent", "precision"])
        lost = cells.relative_error.unstack().reindex(index=agents, columns=precisions)
        ax.imshow(lost.clip(0, 1), cmap="Oranges", vmin=0, vmax=1, aspect="auto")
        ax.set_facecolor("#DDDDDD")
        for (agent, precision), row in cells.iterrows():
            if row.relative_error == row.relative_error:
                said = f"{round(row.relative_error, 2) + 0.0:.0%}{'*' * row.differs}"
                at = (precisions.index(precision), agents.index(agent))
                color = "white" if row.relative_error > 0.65 else "black"
                ax.text(
                    *at, said, ha="center", va="center", size=8, color=color, weight=["normal", "bold"][row.differs]
                )
        ax.set_xticks(range(len(precisions)), precisions, size=8)
        ax.set_yticks(range(len(agents)), agents if index % columns == 0 else [""] * len(agents), size=8)
        ax.grid(visible=False)
        ax.set_title(quantizer, size="small")
    figure.suptitle("share of fp32's return lost", size="medium")
    return figure


def kl_panels(summary: pd.DataFrame, quantizer: str, observation: str = "none") -> Figure:
    """Draw one panel per kind of KL: divergence from fp32 over bits, log scale, exact zeros on the lower edge."""
    rows = summary[(summary.error == "") & (summary.precision != "fp32")]
    rows = rows[rows.quantizer.isin([quantizer, "cast"]) & (rows.observation == observation)].sort_values("num_bits")
    kinds = list(dict.fromkeys(rows.kl_kind))
    figure, axes = panels(len(kinds), columns=2)
    positive = rows.kl_divergence[rows.kl_divergence > 0]
    floor = positive.min() / 10 if len(positive) else 1e-12
    for ax, kind in zip(axes, kinds, strict=True):
        for index, (agent, line) in enumerate(rows[rows.kl_kind == kind].groupby("agent", sort=False)):
            color, marker = CYCLE[index % len(CYCLE)], MARKERS[index % len(MARKERS)]
            height = line.kl_divergence.clip(lower=floor)
            integer = line.precision != "fp16"
            ax.plot(line.num_bits[integer], height[integer], color=color, marker=marker, ms=5, lw=1.2, label=agent)
            # fp16 is a cast: no line leads from the integers' grid to it.
            ax.plot(line.num_bits[~integer], height[~integer], color=color, marker=marker, ms=5, lw=0)
        ax.set_yscale("log")
        ax.set_ylim(bottom=floor / 1.5)
        if (rows.kl_divergence == 0).any():
            ax.axhline(floor, color="black", lw=0.6, ls=":")
            ax.annotate("exactly 0", (1, floor), xycoords=("axes fraction", "data"), ha="right", va="bottom", size=8)
        ax.set_title(kind, size="small")
        ax.legend(fontsize=8)
        _bit_axis(ax, rows)
    outer_labels(figure, "bits of weights and activations", "KL from fp32, nats  (↓ better)")
    return figure


def _bit_axis(ax: Axes, rows: pd.DataFrame) -> None:
    bits = sorted({int(value) for value in rows.num_bits if value < 32})
    ax.set_xscale("log", base=2)
    ax.set_xticks(bits, [str(value) if value < 16 else "fp16" for value in bits])
    ax.minorticks_off()
