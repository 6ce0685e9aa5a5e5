"""The sentences and small tables of the communication ablation's report, made from its summary."""

from __future__ import annotations

import pandas as pd

from quarl_lib.studies.common.intervals import brackets

PAPER_COMMUNICATION_SPEEDUP = (
    1.3  # "may yield up to 30 % speedup" at update period 30 (the paper's section on Figure 8)
)
NAMES = {"shared_memory": "shared memory", "reverb": "Reverb"}


def cell(summary: pd.DataFrame, transport: str, period: int, compute: str, communication: str) -> pd.Series | None:
    """Return one combination's row, None where it was not measured."""
    rows = summary[
        (summary.transport == transport)
        & (summary.update_period == period)
        & (summary.compute_precision == compute)
        & (summary.communication_precision == communication)
    ]
    return rows.iloc[0] if len(rows) else None


def communication_gain(summary: pd.DataFrame) -> pd.DataFrame:
    """Return what sending int8 instead of fp32 gains int8 actors: time with fp32 sent over time with int8 sent.

    The 95 % interval is NaN where one round was measured.
    """
    rows = []
    for transport in dict.fromkeys(summary.transport):
        for period in sorted(set(summary.update_period)):
            sent_fp32, sent_int8 = (cell(summary, transport, period, "int8", sent) for sent in ("fp32", "int8"))
            if sent_fp32 is None or sent_int8 is None:
                continue
            rows.append(
                {
                    "transport": transport,
                    "update_period": period,
                    "gain": sent_int8.over_fp32_sent,
                    "ci_low": sent_int8.over_fp32_sent_low,
                    "ci_high": sent_int8.over_fp32_sent_high,
                    "fewer_bytes": sent_int8.fewer_bytes,
                    "pull_share_fp32_sent": sent_fp32.pull_share,
                    "pull_share_int8_sent": sent_int8.pull_share,
                }
            )
    return pd.DataFrame(rows)


def verdict(summary: pd.DataFrame) -> str:
    """Say what quantizing computation, communication and both gain, per transport and period."""
    lines = []
    for transport in dict.fromkeys(summary.transport):
        for period in sorted(set(summary.update_period)):
            parts = []
            for name, pair in (
                ("computation alone", ("int8", "fp32")),
                ("communication alone", ("fp32", "int8")),
                ("both", ("int8", "int8")),
            ):
                row = cell(summary, transport, period, *pair)
                if row is not None:
                    parts.append(f"{name} {row.speedup:.2f} × {brackets(row.speedup_low, row.speedup_high)}")
            lines.append(f"- **{NAMES[transport]}, update period {period}**, int8 over fp32: {', '.join(parts)}.")
    return "\n".join(lines)


def pull_verdict(summary: pd.DataFrame) -> str:
    """Say how many bytes int8 saves and what share of an int8 actor's time goes into pulls."""
    parts = []
    for row in summary[
        (summary.compute_precision == "int8") & (summary.communication_precision == "int8")
    ].itertuples():
        cost = f"{row.pull_ms:.3g} ms a pull, {row.pull_share:.1%} of the time"
        parts.append(f"{NAMES[row.transport]}, period {row.update_period}: {cost}")
    if not parts:
        return "No int8 actor was fed with int8 weights in this run."
    fewer = summary[summary.communication_precision == "int8"].fewer_bytes.median()
    return (
        f"An int8 message is {fewer:.2f} times smaller than an fp32 one. Int8 actors fed with int8: {'; '.join(parts)}."
    )


def returns_side_by_side(curves: pd.DataFrame) -> pd.DataFrame:
    """Return per period the running return, a mean over seeds, at the last actor step that every run reached."""
    common = int(curves.groupby(["update_period", "seed"]).actor_steps.max().min())
    last = curves[curves.actor_steps <= common].groupby(["update_period", "seed"]).running_return.last()
    table = last.groupby("update_period").agg(mean_return="mean", seeds="size").reset_index()
    return table.assign(actor_steps=common)


def curve_verdict(curves: pd.DataFrame) -> str:
    """Say where the running return stood at the last actor step that every period reached."""
    rows = returns_side_by_side(curves)
    parts = [f"{row.mean_return:.0f} pulling every {row.update_period} steps" for row in rows.itertuples()]
    common, seeds = rows.actor_steps.iloc[0], rows.seeds.max()
    return f"At {common} actor steps the mean return over {seeds} seed{'s' * (seeds > 1)} was {', '.join(parts)}."


def changes(publications: pd.DataFrame) -> pd.DataFrame:
    """Return medians of the share of codes that a publication changed: of all, and of the first and last tenth."""
    ordered = publications.sort_values("learner_steps").changed_share
    tenth = max(1, len(ordered) // 10)
    parts = {"all": ordered, "first tenth": ordered.iloc[:tenth], "last tenth": ordered.iloc[-tenth:]}
    rows = [(name, len(part), part.median()) for name, part in parts.items()]
    return pd.DataFrame(rows, columns=["part", "publications", "median_changed_share"])


def publication_verdict(publications: pd.DataFrame) -> str:
    """Say how many codes a publication changed early and late in training."""
    if publications.empty:
        return "No two successive publications were seen."
    every, first, last = changes(publications).itertuples()
    return (
        f"Of {every.publications} successive publications seen, one changed {every.median_changed_share:.1%} of the "
        f"codes (median); {first.median_changed_share:.1%} in the first tenth of the learner's steps, "
        f"{last.median_changed_share:.1%} in the last. The other codes stood still: updates smaller than a step "
        "of the int8 grid do not reach the actors until they add up."
    )


def beside_paper(summary: pd.DataFrame) -> pd.DataFrame:
    """Return the gain from quantized communication beside what the paper's text says of its Figure 8."""
    claims = {30: ("Figure 8(a)", f"up to {PAPER_COMMUNICATION_SPEEDUP}"), 300: ("Figure 8(b)", "little")}
    rows = []
    for row in communication_gain(summary).itertuples():
        item, paper = claims.get(row.update_period, ("Figure 8", "not measured"))
        rows.append(
            {
                "item": item,
                "what": f"int8 actors, period {row.update_period}: int8 over fp32 messages",
                "paper": paper,
                "ours": f"{row.gain:.2f}",
                "ci_low": row.ci_low,
                "ci_high": row.ci_high,
                "setting": f"{NAMES[row.transport]}, version asked for first; there Reverb, fetched at every pull",
            }
        )
    return pd.DataFrame(rows)


def key_figure(summary: pd.DataFrame) -> str:
    """Return the run's one line in the index."""
    row = cell(summary, summary.transport.iloc[0], int(summary.update_period.min()), "int8", "int8")
    if row is None:
        return f"Quantized actors make up to {summary.speedup.max():.2f} × the steps of fp32 actors sent fp32."
    return (
        f"Actors that compute in int8 and are sent int8 weights make {row.speedup:.2f} × "
        f"{brackets(row.speedup_low, row.speedup_high)} the steps of fp32 actors that are sent fp32, in equal time, "
        f"when they pull weights every {row.update_period} steps; a message is {row.fewer_bytes:.2f} × smaller, and "
        f"pulls take {row.pull_share:.1%} of the time."
    )


def first_panel(summary: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the first transport at the shortest update period, where communication weighs most."""
    return summary[
        (summary.transport == summary.transport.iloc[0]) & (summary.update_period == summary.update_period.min())
    ]
