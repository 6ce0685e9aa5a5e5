"""The sentences and small tables of the action study's report, made from its summary."""

from __future__ import annotations

import pandas as pd


def verdict(summary: pd.DataFrame) -> str:
    """Say per precision how often discrete actions stay the same and how far continuous ones move; Markdown."""
    measured = summary[summary.error == ""]
    lines = []
    for precision, rows in measured.groupby("precision", sort=False):
        said = []
        discrete = rows.dropna(subset="same_action_rate")
        if len(discrete):
            worst = discrete.loc[discrete.same_action_rate.idxmin()]
            said.append(
                f"the same discrete action in {worst.same_action_rate:.1%} of states or more ({worst.agent} least)"
            )
        continuous = rows.dropna(subset="mean_abs_difference")
        if len(continuous):
            worst = continuous.loc[continuous.mean_abs_difference.idxmax()]
            said.append(
                f"continuous actions {worst.mean_abs_difference:.2g} off on average at most ({worst.agent}, dimension "
                f"{int(worst.dimension)})"
            )
        lines.append(f"- **{precision}**: " + "; ".join(said) + ".")
    failed = summary[summary.error != ""]
    if len(failed):
        lines.append(f"- {len(failed)} could not be measured; the table gives the reasons.")
    return "\n".join(lines)


def agreement(summary: pd.DataFrame) -> pd.DataFrame:
    """Return one row per agent and action dimension, one column per precision: same actions, or mean |difference|."""
    rows = summary[summary.error == ""]
    same = rows.same_action_rate.map("{:.1%}".format)
    text = same.where(rows.same_action_rate.notna(), rows.mean_abs_difference.map("{:.2g}".format))
    measure = pd.Series("same action", rows.index).where(rows.same_action_rate.notna(), "mean |difference|")
    table = rows.assign(text=text, measure=measure, dimension=rows.dimension.astype(int))
    keys = ["agent", "dimension", "measure"]
    order = table[keys].drop_duplicates()
    wide = table.pivot(index=keys, columns="precision", values="text").reindex(columns=rows.precision.unique())
    return order.merge(wide.rename_axis(columns=None).reset_index(), on=keys)


def beside_paper(summary: pd.DataFrame, precision: str = "int8") -> pd.DataFrame:
    """Return what stands beside Figure 3: it draws densities and states no number; ours is their distance."""
    rows = summary[(summary.error == "") & (summary.precision == precision)]
    rows = rows.astype({"agent": str, "dimension": float})
    return pd.DataFrame(
        {
            "item": "Figure 3, appendix C",
            "what": rows.agent
            + " ["
            + rows.dimension.map("{:.0f}".format).astype(str)
            + f"] {precision}, histogram distance",
            "paper": "densities that overlap, no number",
            "ours": rows.histogram_distance,
            "setting": "total variation between action histograms, 0 is the same, 1 nothing in common",
        }
    )


def key_figure(summary: pd.DataFrame, precision: str = "int8") -> str:
    """Return the run's one line: agreement of discrete actions at one precision, or what there is.

    Raises:
        ValueError: no agent was measured, with the reasons.
    """
    if not (summary.error == "").any():
        failed = summary.drop_duplicates("agent").head(3)
        reasons = "; ".join(f"{row.agent}: {row.error}" for row in failed.itertuples())
        raise ValueError(f"no agent was measured. {reasons}")
    rows = summary[(summary.precision == precision) & (summary.error == "")]
    if rows.empty:
        return f"{summary.agent.nunique()} agents, no {precision}"
    parts = []
    discrete, continuous = rows[rows.same_action_rate.notna()], rows[rows.mean_abs_difference.notna()]
    if len(discrete):
        low, high = discrete.same_action_rate.min(), discrete.same_action_rate.max()
        parts.append(
            f"agents with discrete actions choose the same action as at fp32 in {low:.1%} to {high:.1%} of "
            f"{discrete.states.min():,} states ({discrete.agent.nunique()} agents)"
        )
    if len(continuous):
        most = continuous.loc[continuous.median_abs_difference.idxmax()]
        parts.append(
            f"continuous actions move by a median of {most.median_abs_difference:.2g} at most, in the action's own "
            f"units ({most.agent}, of {continuous.agent.nunique()} agents)"
        )
    return f"At {precision}, " + ", and ".join(parts) + "."


def head_figure(summary: pd.DataFrame) -> str:
    """Return the name of the figure that shows the claim: shares of discrete actions where there are any."""
    return "discrete_actions" if summary.same_action_rate.notna().any() else "action_difference"
