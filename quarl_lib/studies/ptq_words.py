"""The sentences of the PTQ study's report, made from its summary."""

from __future__ import annotations

import pandas as pd

NAMED = 8
LARGE = 0.01


def verdict(summary: pd.DataFrame, confidence: float = 0.95) -> str:
    """Say which cells differ from fp32 beyond noise: those whose paired interval leaves 0 out."""
    quantized = summary[(summary.error == "") & (summary.precision != "fp32")]
    if quantized.empty:
        return "Nothing was quantized, so there is nothing to compare with fp32."
    differs = quantized[quantized.differs]
    large = differs[differs.relative_error.abs() > LARGE].sort_values("relative_error", ascending=False)
    worse, better = large[large.relative_error > 0], large[large.relative_error < 0]
    parts = [
        f"**{len(differs)} of {len(quantized)} quantized cells differ from fp32 beyond noise** (the {confidence:.0%} "
        f"interval of the difference, paired by episode seed, leaves 0 out; chance alone would give about "
        f"{(1 - confidence) * len(quantized):.0f}), {len(large)} of them by more than {LARGE:.0%} of fp32's return."
    ]
    if len(worse):
        parts.append(f"Worse: {_listed(worse)}.")
    if len(better):
        parts.append(f"Better: {_listed(better)}.")
    same = [p for p, rows in quantized.groupby("precision", sort=False) if not rows.differs.any()]
    if same:
        parts.append(f"No cell differs at {', '.join(same)}.")
    failed = summary[summary.error != ""]
    if len(failed):
        parts.append(f"{len(failed)} could not be measured; the table gives the reasons.")
    return " ".join(parts)


def overview(summary: pd.DataFrame, quantizer: str, observation: str = "none") -> pd.DataFrame:
    """Return one row per agent, one column per precision: mean return, marked * where it differs from fp32."""
    rows = summary[(summary.error == "") & summary.quantizer.isin(["none", "cast", quantizer])]
    rows = rows[(rows.precision == "fp32") | (rows.observation == observation)]
    text = [f"{mean:.4g}{'*' if differs else ''}" for mean, differs in zip(rows.mean_return, rows.differs, strict=True)]
    table = rows.assign(text=text).pivot(index="agent", columns="precision", values="text")
    return table.reindex(index=rows.agent.unique(), columns=rows.precision.unique()).reset_index()


def quantizer_verdict(summary: pd.DataFrame) -> str:
    """Say per quantizer how many bits the median agent needs to stay within fp32's noise or a percent."""
    return _fewest_bits(summary, "quantizer", "Fewest bits from which on a policy keeps its return")


def observation_verdict(summary: pd.DataFrame) -> str:
    """Say per treatment of the observation from how many bits on policies keep their return."""
    first = summary[~summary.quantizer.isin(["none", "cast"])].quantizer.head(1)
    return _fewest_bits(summary[summary.quantizer.isin(first)], "observation", "With the observation treated so")


def _fewest_bits(summary: pd.DataFrame, by: str, opening: str) -> str:
    """List per value of `by` the agents' fewest integer bits from which no cell loses more than noise and a percent."""
    cells = summary[(summary.error == "") & ~summary.quantizer.isin(["none", "cast"])]
    parts = []
    for name, rows in cells.groupby(by, sort=False):
        needed = []
        for _, agent in rows.groupby("agent"):
            lost = agent[agent.differs & (agent.relative_error > LARGE)]
            kept = agent[agent.num_bits > (lost.num_bits.max() if len(lost) else 0)]
            needed.append(int(kept.num_bits.min()) if len(kept) else None)
        counts = pd.Series(needed, dtype=object).map(lambda bits: "more than measured" if bits is None else f"{bits}")
        listed = ", ".join(f"{count} at {bits}" for bits, count in counts.value_counts().sort_index().items())
        parts.append(f"**{name}**: {listed}")
    return f"{opening}, loss below noise or {LARGE:.0%} (agents at bits): " + "; ".join(parts) + "." if parts else ""


def key_figure(summary: pd.DataFrame, precision: str = "int8", quantizer: str = "paper") -> str:
    """Return the run's one line: the median relative error at one precision, and how many cells differ there."""
    rows = summary[(summary.precision == precision) & (summary.quantizer == quantizer) & (summary.error == "")]
    if rows.empty:
        return f"{int((summary.precision == 'fp32').sum())} agents, no {precision} cell"
    median = round(rows.relative_error.median(), 3) + 0.0  # no "-0.0%"
    return (
        f"{precision}: median relative error {median:.1%} over {rows.agent.nunique()} agents, "
        f"{int(rows.differs.sum())} of {len(rows)} beyond noise"
    )


def beside_paper(summary: pd.DataFrame) -> pd.DataFrame:
    """Return the cells that Table 2 has too: our return and KL beside the paper's."""
    columns = [
        "algorithm",
        "env_id",
        "precision",
        "mean_return",
        "ci_low",
        "ci_high",
        "paper_return",
        "kl_divergence",
        "paper_kl",
    ]
    return summary.loc[summary.paper_return.notna() & (summary.error == ""), columns].reset_index(drop=True)


def _listed(rows: pd.DataFrame) -> str:
    named = [
        f"{row.agent} {row.precision}{'' if row.quantizer in ('none', 'cast') else ' ' + row.quantizer} "
        f"({row.paired_difference:+.3g} [{row.paired_ci_low:.3g}, {row.paired_ci_high:.3g}])"
        for row in rows.head(NAMED).itertuples()
    ]
    rest = len(rows) - len(named)
    return ", ".join(named) + (f" and {rest} more" if rest > 0 else "")
