"""Figures of the study of quantized rollouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from quarl_lib.studies.common.grid import legend_above, outer_labels, panels
from quarl_lib.studies.common.intervals import bars
from quarl_lib.studies.common.theme import CYCLE, PRECISION_COLORS, PRECISION_MARKERS, axes_or_new, better

RECIPE = ["algorithm", "env_id", "n_envs", "hidden"]
PLAIN_COLOR = CYCLE[0]
BINS = 12  # of a training's steps
CORRECTION_STYLES = {"behaviour": (CYCLE[1], "o"), "none": (CYCLE[3], "s"), "truncated": (CYCLE[4], "^")}


def _title(key: tuple) -> str:
    """Return a recipe in a few words."""
    algorithm, env_id, n_envs, hidden = key
    return f"{algorithm} {env_id.removesuffix('-v1')}, {n_envs} env{'s' if n_envs > 1 else ''}, {hidden}"


def return_panels(table: pd.DataFrame, precisions: tuple[str, ...] = ("plain", "fp32", "int8")) -> Figure:
    """Draw one panel per recipe: mean episode return over processor time, seeds averaged, for plain and two engines."""
    recipes = list(table.groupby(RECIPE, sort=False))
    figure, axes = panels(len(recipes))
    for ax, (key, rows) in zip(axes, recipes, strict=True):
        seconds = rows[rows.record == "training"].groupby(["precision", "correction"]).seconds.mean()
        for precision in precisions:
            episodes = rows[
                (rows.record == "episode") & (rows.precision == precision) & (rows.correction == "behaviour")
            ]
            if len(episodes):
                share = np.ceil(BINS * episodes.step / episodes.actor_steps).clip(1, BINS) / BINS
                curve = episodes.groupby(["seed", share]).episode_return.mean().groupby(level=1).mean()
                color = PRECISION_COLORS.get(precision, PLAIN_COLOR)
                label = "plain Stable-Baselines3" if precision == "plain" else f"{precision} engine"
                options: dict[str, Any] = {
                    "color": color,
                    "marker": PRECISION_MARKERS.get(precision, "."),
                    "ms": 4,
                    "lw": 1.2,
                }
                ax.plot(curve.index * seconds[precision, "behaviour"], curve, label=label, **options)
        ax.set_title(_title(key), fontsize="small")
        ax.set_xlim(left=0)
    outer_labels(figure, "processor time, s", "episode return  (↑ better)")
    legend_above(figure, axes)
    return figure


def speedup_over_share(summary: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw every recipe's speed-up with its interval over the share of inference, and the limit 1 / (1 - share)."""
    ax = axes_or_new(ax, figsize=(7.5, 4.6))
    rows = summary[(summary.precision != "plain") & (summary.correction == "behaviour")]
    highest = max(0.5, float(rows.inference_share.max()) * 1.1)
    share = np.linspace(0, min(highest, 0.9), 100)
    ax.plot(share, 1 / (1 - share), color="#777777", lw=1.2, label="limit: inference for nothing")
    ax.axhline(1, color="#BBBBBB", lw=1)
    recipes = list(rows.groupby(RECIPE, sort=False))
    for precision, cells in rows.groupby("precision", sort=False):
        spread = bars(cells.speedup, cells.speedup_low, cells.speedup_high)
        options: dict[str, Any] = {"color": PRECISION_COLORS[str(precision)]}
        options |= {"marker": PRECISION_MARKERS[str(precision)], "ls": "", "ms": 6, "capsize": 2, "lw": 1}
        ax.errorbar(cells.inference_share, cells.speedup, spread, label=precision, **options)
    recipes.sort(key=lambda recipe: recipe[1].inference_share.iloc[0])
    for index, (key, cells) in enumerate(recipes):
        best = cells.loc[cells.speedup.idxmax()]
        options = {"textcoords": "offset points", "size": 7, "va": "center"}
        ax.annotate(_title(key), (best.inference_share, best.speedup), (7, 7 - 14 * (index % 2)), **options)  # type: ignore[arg-type]
    ax.set_xlabel("share of inference in plain Stable-Baselines3's processor time")
    ax.set_ylabel("speed-up of learn()")
    ax.set_xlim(0, highest * 1.25)
    # Two seeds have intervals that reach far beyond any speed-up: they are cut.
    ax.set_ylim(0.7, 1.3 * max(rows.speedup.max(), rows.limit_speedup.max()))
    better(ax, "higher")
    ax.legend(loc="upper left")
    return ax


def correction_effect(summary: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw final returns less plain's with their intervals, in shares of the returns' range, by correction."""
    corrected = summary[summary.correction != "behaviour"]
    keys = [*RECIPE, "precision"]
    rows = summary.merge(corrected[keys].drop_duplicates(), on=keys)
    recipes = list(dict.fromkeys(zip(*(rows[name] for name in RECIPE), strict=True)))
    ax = axes_or_new(ax, figsize=(7.5, 1.4 + 0.6 * max(len(recipes), 1)))
    for index, (correction, (color, marker)) in enumerate(CORRECTION_STYLES.items()):
        cells = rows[rows.correction == correction]
        if len(cells):
            height = [recipes.index(tuple(key)) + 0.15 * (index - 1) for key in cells[RECIPE].itertuples(index=False)]
            span = cells.return_range
            share = cells.paired_difference / span
            spread = bars(share, cells.paired_ci_low / span, cells.paired_ci_high / span)
            options: dict[str, Any] = {"color": color, "marker": marker, "ls": "", "ms": 6, "capsize": 2, "lw": 1}
            ax.errorbar(share, height, xerr=spread, label=correction, **options)
    ax.axvline(0, color="#777777", lw=1)
    precision = rows.precision.iloc[0] if len(rows) else "no precision"
    ax.set_yticks(range(len(recipes)), [_title(key) for key in recipes])
    ax.set_ylim(max(len(recipes), 1) - 0.5, -0.5)
    ax.set_xlabel(f"final return at {precision} less plain's, share of the range")
    better(ax, "higher", axis="x")
    if len(rows):
        ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return ax
