"""What the commands print, from a card or a table."""

from __future__ import annotations

from typing import Any

import pandas as pd


def parity(card: dict[str, Any]) -> str:
    """Say how the export acts beside the original."""
    found = card["parity"]
    apart = ""
    if found["max_abs_difference"] is not None:
        apart = (
            f", apart by {found['mean_abs_difference']:.3g} on average and {found['max_abs_difference']:.3g} at most"
        )
    low, high = found["paired_ci_low"], found["paired_ci_high"]
    return (
        f"same action in {found['same_action_rate']:.2%} of {found['observations']} observations{apart}\n"
        f"mean return {found['mean_return_exported']:.4g}, original {found['mean_return_original']:.4g}, over "
        f"{found['episodes']} paired episodes: difference within [{low:.3g}, {high:.3g}]"
    )


def times(card: dict[str, Any]) -> str:
    """Say what an action takes, in microseconds: median, and lowest and highest round."""
    rows = []
    for name, spread in card["timing"].items():
        what = name.removesuffix("_us").replace("_", " ")
        rows.append(f"{what} {spread['median']:.3g} us ({spread['low']:.3g} to {spread['high']:.3g})")
    return f"{card['payload_bytes']:,} bytes; an action: " + ", ".join(rows)


def bench_table(table: pd.DataFrame) -> str:
    """Lay out the bench as text, one line a way to act."""
    lines = [f"{'':34}{'us an action':>22}{'times faster':>22}{'same action':>13}{'mean error':>12}"]
    for row in table.itertuples():
        if row.reason:
            lines.append(f"{row.name:34}{row.reason}")
            continue
        us = f"{row.microseconds:.3g} [{row.us_low:.3g}, {row.us_high:.3g}]"
        ratio = f"{row.speedup:.3g} [{row.speedup_low:.3g}, {row.speedup_high:.3g}]"
        error = "" if pd.isna(row.mean_abs_difference) else f"{row.mean_abs_difference:.2g}"
        lines.append(f"{row.name:34}{us:>22}{ratio:>22}{row.same_action_rate:>12.1%} {error:>12}")
    return "\n".join(lines)
