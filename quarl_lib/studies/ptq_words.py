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


def key_figure(summary: pd.DataFrame, precision: str = "int8", quantizer: str = "paper") -> str:
    """Return the run's one line: the median relative error at one precision, and how many cells differ there."""
    rows = summary[(summary.precision == precision) & (summary.quantizer == quantizer) & (summary.error == "")]
    if rows.empty:
        return f"{int((summary.precision == 'fp32').sum())} agents, no {precision} cell"
    return (
        f"{precision}: median relative error {rows.relative_error.median():.1%} over {rows.agent.nunique()} agents, "
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
