"""The sentences and small tables of actor scaling's report, made from its summary."""

from __future__ import annotations

import pandas as pd

from quarl_lib.studies.common.intervals import brackets

BUSY_SHARE = 0.85


def verdict(summary: pd.DataFrame) -> str:
    """Say how each precision scales to the machine's cores, and int8 against fp32 there."""
    lines = []
    for precision, rows in summary.groupby("precision", sort=False):
        most = rows[rows.fits].iloc[-1]
        line = (
            f"- **{precision}**: {most.n_actors} actor{'s' * (most.n_actors > 1)} take a step every "
            f"{most.us_per_step:.0f} µs"
        )
        if most.n_actors > 1:
            interval = brackets(most.speedup_over_one_low, most.speedup_over_one_high)
            line += f", {most.speedup_over_one:.2f} × {interval} one actor's pace"
        if precision != "fp32":
            interval = brackets(most.speedup_over_fp32_low, most.speedup_over_fp32_high)
            line += f", {most.speedup_over_fp32:.2f} × {interval} as many steps as at fp32"
        past = rows[~rows.fits]
        if len(past):
            line += (
                f"; {past.iloc[-1].n_actors} actors on the same cores give {past.iloc[-1].over_most_fitting:.2f} × that"
            )
        lines.append(line + ".")
    return "\n".join(lines)


def model_verdict(summary: pd.DataFrame) -> str:
    """Say how far the cost model is off, on the points that fit on the cores and on the others."""
    error, beside, fits = summary.prediction_error.abs(), summary.n_actors > 1, summary.fits.astype(bool)
    parts = [
        f"{where} by {error[points].max():.0%} at most ({points.sum()} points)"
        for where, points in (("where every actor has a core", beside & fits), ("past the cores", ~fits))
        if points.any()
    ]
    off = f"The model is off {', '.join(parts)}; its" if parts else "There is nothing to predict; the model's"
    text = f"{off} parameters come from the runs with one actor"
    sides = ", ".join(f"{count} by the {side}" for side, count in summary.bound_by.value_counts().items())
    text += f". Of all points, {sides} set the pace, says the model."
    text += contention_verdict(summary)
    crowded = summary[fits & (summary.cores_used < BUSY_SHARE * summary.n_actors)]
    if len(crowded):
        text += (
            f" At {len(crowded)} of the {fits.sum()} points that fit, other work left each actor less than "
            f"{BUSY_SHARE:.0%} of a core; no prediction can hold there."
        )
    return text


def contention_verdict(summary: pd.DataFrame) -> str:
    """Say what actors on all cores take from each other; nothing where one core was all there was."""
    most = summary[summary.fits & (summary.n_actors > 1)].groupby("precision", sort=False).tail(1)
    if most.empty:
        return ""
    slower = ", ".join(f"{row.slowdown:.2f} × at {row.precision}" for row in most.itertuples())
    return f" With {most.n_actors.max()} actors at once a step takes, of a lone actor's CPU time, {slower}."


def projection_verdict(table: pd.DataFrame) -> str:
    """Say from which number of cores on the learner binds quantized actors on one machine, per learner speed."""
    parts = []
    one_machine = table[(table.nodes == 1) & (table.precision != "fp32")]
    for learner_ms, rows in one_machine.groupby("learner_ms"):
        bound = rows[rows.bound_by == "learner"]
        best = rows.speedup_over_fp32.max()
        where = (
            f"from {bound.actor_cores.min():g} cores on the learner binds" if len(bound) else "actors bind throughout"
        )
        parts.append(f"with a learner step of {learner_ms:g} ms {where}, and quantized actors gain up to {best:.2f} ×")
    return f"Projected, not measured: {'; '.join(parts)}."


def network_verdict(table: pd.DataFrame, gigabytes_per_s: float) -> str:
    """Say, for the fastest learner and the most cores, from how many nodes and below which bandwidth the network binds.

    Nothing where one machine is all that was projected.
    """
    fastest = table[(table.learner_ms == table.learner_ms.min()) & (table.actor_cores == table.actor_cores.max())]
    if fastest.nodes.max() == 1:
        return ""
    binds, enough = [], []
    for precision, rows in fastest.groupby("precision", sort=False):
        bound = rows[rows.bound_by == "network"].nodes
        binds.append(f"{f'from {bound.min()} nodes on' if len(bound) else 'on no number of them'} at {precision}")
        least = rows.loc[rows.nodes.idxmax(), "least_gigabytes_per_s"]
        enough.append(f"{least:.3g} GB/s on at {precision}")
    link = f"over a link of {gigabytes_per_s:g} GB/s the network binds {', '.join(binds)}"
    return (
        f"Projected, not measured: with {fastest.actor_cores.max()} cores for actors and a learner step of "
        f"{fastest.learner_ms.max():g} ms, {link if gigabytes_per_s else 'no network was given'}; on "
        f"{fastest.nodes.max()} nodes it leaves the pace to the others from {', '.join(enough)}."
    )


def beside_paper(summary: pd.DataFrame) -> pd.DataFrame:
    """Return our ratios beside what Figure 11 shows: training time falls with actors until the learner is busy."""
    rows = []
    for row in summary[summary.fits & (summary.n_actors > 1)].itertuples():
        rows.append(
            {
                "item": "Figure 11",
                "what": f"{row.precision}, {row.n_actors} actors over one",
                "paper": "falls with actors, then levels off",
                "ours": f"{row.speedup_over_one:.2f} ×",
                "ci_low": row.speedup_over_one_low,
                "ci_high": row.speedup_over_one_high,
                "setting": "steps a second at a low ratio on this machine's cores; there training time, a GPU learner",
            }
        )
    return pd.DataFrame(rows, columns=["item", "what", "paper", "ours", "ci_low", "ci_high", "setting"])


def key_figure(summary: pd.DataFrame) -> str:
    """Return the run's one line in the index."""
    error = summary[summary.fits].prediction_error.abs().max()
    most = summary[summary.fits].iloc[-1]
    if most.n_actors == 1:
        gain = f"One {most.precision} actor is all that has a core here"
    else:
        interval = brackets(most.speedup_over_one_low, most.speedup_over_one_high)
        gain = (
            f"{most.n_actors} {most.precision} actors, one a core, make {most.speedup_over_one:.2f} × {interval} the "
            "steps a second of one"
        )
    return f"{gain}; where every actor has a core, the cost model's prediction is off by {error:.0%} at most."
