"""The sentences and small tables of the runtime breakdown's report, made from its summary."""

from __future__ import annotations

import math

import pandas as pd

from quarl_lib.studies.common.intervals import brackets

# Seconds read off the bars of the paper's Figure 9 (two digits at best): step, pull, deserialize, load_state_dict.
PAPER_FIGURE_9 = {
    (30, "fp32"): (10.4, 2.9, 1.2, 0.3), (30, "fp16"): (7.5, 2.4, 0.6, 8.5), (30, "int8"): (6.5, 0.4, 0.1, 1.9),
    (300, "fp32"): (10.7, 0.3, 0.1, 0.02), (300, "fp16"): (6.5, 0.2, 0.03, 0.8), (300, "int8"): (5.4, 0.05, 0.02, 0.2),
}  # fmt: skip
PARTS = {
    "step": ("env_step_s", "select_action_s", "observe_s", "other_s"),
    "pull": ("pull_s",),
    "deserialize": ("deserialize_s",),
    "load": ("load_weights_s",),
}
DESIGNS = {"authors": "the authors' recipe", "packed": "ours"}


def shares(summary: pd.DataFrame) -> pd.DataFrame:
    """Return the share of each of the paper's four parts: a row per source, period, precision and part."""
    rows = []
    for (period, precision), seconds in PAPER_FIGURE_9.items():
        for part, value in zip(PARTS, seconds, strict=True):
            rows.append(("the paper", period, precision, part, value / sum(seconds)))
    for row in summary.to_dict("records"):
        for part, columns in PARTS.items():
            share = sum(row[column] for column in columns) / row["seconds_per_1000_steps"]
            rows.append((DESIGNS[row["design"]], row["update_period"], row["precision"], part, share))
    table = pd.DataFrame(rows, columns=["source", "update_period", "precision", "part", "share"])
    return table[table.update_period.isin(set(summary.update_period))].reset_index(drop=True)


def cell(summary: pd.DataFrame, design: str, period: int, precision: str) -> pd.Series | None:
    """Return one row of the summary, None where it was not measured."""
    rows = summary[(summary.design == design) & (summary.update_period == period) & (summary.precision == precision)]
    return rows.iloc[0] if len(rows) else None


def verdict(summary: pd.DataFrame) -> str:
    """Say how much faster each design gets with int8, and ours against the authors' at int8."""
    lines = []
    for period in sorted(set(summary.update_period)):
        parts = []
        for design, name in DESIGNS.items():
            row = cell(summary, design, period, "int8")
            if row is not None:
                interval = brackets(row.speedup_low, row.speedup_high)
                parts.append(f"int8 over fp32 in {name} {row.speedup:.2f} × {interval}")
        row = cell(summary, "packed", period, "int8")
        if row is not None and row.over_authors == row.over_authors:
            interval = brackets(row.over_authors_low, row.over_authors_high)
            parts.append(f"ours over the authors' at int8 {row.over_authors:.2f} × {interval}")
        lines.append(f"- **Update period {period}**: {'; '.join(parts)}.")
    return "\n".join(lines)


def load_verdict(summary: pd.DataFrame) -> str:
    """Say what a new int8 policy costs when it is loaded, and how much of the time all stages account for."""
    period = int(summary.update_period.min())
    theirs, ours = (cell(summary, design, period, "int8") for design in ("authors", "packed"))
    text = f"The stages hold {summary.accounted.min():.1%} of the measured time or more; the rest is `other`."
    if theirs is None or ours is None or math.isnan(ours.load_over_authors):
        return text
    interval = brackets(ours.load_over_authors_low, ours.load_over_authors_high, digits=".0f")
    return (
        f"Loading a new int8 policy takes {theirs.load_ms:.3g} ms in `load_state_dict`, which repacks it, and "
        f"{1000 * ours.load_ms:.3g} µs of the packed buffer where it lies, 1/{ours.load_over_authors:.0f} {interval} "
        f"of it. {text}"
    )


def system_verdict(system: pd.DataFrame) -> str:
    """Say what takes most of the whole system's time at each precision."""
    parts = []
    for precision, rows in system.groupby("precision", sort=False):
        top = rows.nlargest(2, "share")
        named = " and ".join(f"{row.component} {row.share:.0%}" for row in top.itertuples())
        parts.append(f"at {precision} {named}")
    return f"Of the time of all processes together, most goes into: {'; '.join(parts)}."


def beside_paper(summary: pd.DataFrame) -> pd.DataFrame:
    """Return the shares of Figure 9's four parts, the paper's beside the same recipe here and ours."""
    cells = shares(summary).set_index(["source", "update_period", "precision", "part"]).share
    rows = []
    for period, precision in PAPER_FIGURE_9:
        for part in PARTS:
            found = [cells.get((source, period, precision, part)) for source in ("the paper", *DESIGNS.values())]
            if found[0] is None or found[1:] == [None, None]:
                continue
            paper, authors, ours = ("" if share is None else f"{share:.1%}" for share in found)
            rows.append(
                {
                    "item": "Figure 9(a)" if period == 30 else "Figure 9(b)",
                    "what": f"share of {part}, {precision}, period {period}",
                    "paper": paper,
                    "ours": ours,
                    "the_same_recipe_here": authors,
                    "setting": "one actor, another CPU; the paper's task is not given",
                }
            )
    return pd.DataFrame(rows)


def key_figure(summary: pd.DataFrame) -> str:
    """Return the run's one line in the index."""
    period = int(summary.update_period.min())
    row = cell(summary, "packed", period, "int8")
    if row is None:
        return f"The time of {len(summary)} actors was taken apart; none of them is ours at int8."
    text = (
        f"At int8, our actor spends {row.new_weights_share:.1%} of its time on new weights, pulled every {period} steps"
    )
    theirs = cell(summary, "authors", period, "int8")
    if theirs is not None:
        text += f"; the authors' recipe spends {theirs.new_weights_share:.1%}, and ours makes {row.over_authors:.1f} × "
        text += f"{brackets(row.over_authors_low, row.over_authors_high)} its steps in equal time"
    return text + "."
