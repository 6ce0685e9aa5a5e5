"""Figures of the runtime breakdown: stages of an actor, their shares beside the paper's, the whole system."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from quarl_lib.studies.common.theme import axes_or_new, better

STAGE_COLORS = {
    "env_step": "#999999", "select_action": "#0072B2", "observe": "#56B4E9", "pull": "#E69F00",
    "deserialize": "#F0E442", "load_weights": "#D55E00", "other": "#000000",
}  # fmt: skip
PART_COLORS = {"step": "#0072B2", "pull": "#E69F00", "deserialize": "#F0E442", "load": "#D55E00"}
COMPONENT_COLORS = {
    "inference": "#0072B2", "environment": "#999999", "learner step": "#009E73", "sample": "#CC79A7",
    "communication": "#E69F00",
}  # fmt: skip
DESIGNS = {"authors": "authors", "packed": "ours"}


def stage_panels(summary: pd.DataFrame) -> Figure:
    """Draw seconds per 1000 actor steps, stacked by stage: a panel per period, a bar per design and precision."""
    periods = sorted(set(summary.update_period))
    bars = len(summary) // len(periods)
    size = (5.0 * len(periods), 0.4 * bars + 2.1)
    figure, line = plt.subplots(1, len(periods), figsize=size, squeeze=False, sharey=True)
    for period, ax in zip(periods, line[0], strict=True):
        rows = summary[summary.update_period == period]
        labels = rows.design.map(DESIGNS) + ", " + rows.precision
        left = pd.Series(0.0, rows.index)
        for stage, color in STAGE_COLORS.items():
            ax.barh(labels, rows[f"{stage}_s"], left=left, color=color, height=0.7, label=stage, lw=0)
            left = left + rows[f"{stage}_s"]
        for y, total in enumerate(left):
            ax.text(total, y, f" {total:.2f}", va="center", fontsize=8)
        ax.set(title=f"update period {period}", xlabel="seconds per 1000 actor steps", xlim=(0, 1.12 * left.max()))
        ax.grid(axis="y", visible=False)
        better(ax, "lower", axis="x")
    line[0][0].invert_yaxis()
    handles, names = line[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=min(len(names), 3 * len(periods)))
    return figure


def share_panels(shares: pd.DataFrame) -> Figure:
    """Draw shares of the paper's four parts: a panel per period, bars of the paper, its recipe here, and ours."""
    periods = sorted(set(shares.update_period))
    names = list(dict.fromkeys(shares.precision + ", " + shares.source))
    names = sorted(names, key=lambda name: list(dict.fromkeys(shares.precision)).index(name.partition(",")[0]))
    size = (5.0 * len(periods), 0.33 * len(names) + 1.6)
    figure, line = plt.subplots(1, len(periods), figsize=size, squeeze=False, sharey=True)
    for period, ax in zip(periods, line[0], strict=True):
        rows = shares[shares.update_period == period].assign(name=lambda t: t.precision + ", " + t.source)
        wide = rows.pivot(index="name", columns="part", values="share").reindex(names)
        left = pd.Series(0.0, wide.index)
        for part, color in PART_COLORS.items():
            ax.barh(wide.index, 100 * wide[part], left=left, color=color, height=0.7, label=part, lw=0)
            left = left + 100 * wide[part].fillna(0.0)
        ax.set(title=f"update period {period}", xlabel="share of the actor's time [%]", xlim=(0, 100))
        ax.grid(axis="y", visible=False)
    line[0][0].invert_yaxis()
    handles, labels = line[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    return figure


def system(system: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the seconds of all processes per 1000 actor steps, stacked by component, a bar per precision."""
    ax = axes_or_new(ax, figsize=(7.5, 0.6 * system.precision.nunique() + 2.0))
    wide = system.pivot(index="precision", columns="component", values="seconds_per_1000_steps")
    wide = wide.loc[list(dict.fromkeys(system.precision))].fillna(0.0)
    left = pd.Series(0.0, wide.index)
    for component, color in COMPONENT_COLORS.items():
        if component in wide:
            ax.barh(wide.index, wide[component], left=left, color=color, height=0.65, label=component, lw=0)
            left = left + wide[component]
    ax.invert_yaxis()
    ax.set(xlabel="seconds of all processes per 1000 actor steps")
    ax.grid(axis="y", visible=False)
    ax.figure.legend(loc="outside upper center", ncols=3)
    return better(ax, "lower", axis="x")
