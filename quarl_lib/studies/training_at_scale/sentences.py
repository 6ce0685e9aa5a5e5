"""Sentences and small tables that the notebook builds from what was run."""

from __future__ import annotations

import pandas as pd

from quarl_lib.studies.common.intervals import brackets
from quarl_lib.studies.common.paper_tables import PAPER_TASKS
from quarl_lib.studies.training_at_scale.labels import label_of

OFF = (0.85, 1.18)  # within 15 %, either way
PAPER_SETTING = (4, 2.0)  # actors, and milliseconds of an update on its GPU


def paper_speedups() -> dict[str, float]:
    """Return the paper's Table 4: the speed-up of int8 by task."""
    return {row.task: row.speedup for row in PAPER_TASKS}


def verdict(summary: pd.DataFrame) -> str:
    """Say who reached the threshold, and what precision and design bring, in virtual time."""
    rows = summary[summary.clock == "virtual"]
    parts = []
    for row in rows[rows.seeds_reached < rows.seeds].itertuples():
        parts.append(f"{row.task}, {label_of(row)}: {row.seeds_reached} of {row.seeds} seeds reached the threshold.")
    for row in rows[rows.precision != "fp32"].itertuples():
        said = f"In virtual time on {row.task}, {label_of(row)}: {_with(row, 'speedup')} the speed of its fp32"
        if row.design != "authors" and row.over_authors_fp32 == row.over_authors_fp32:
            said += f", {_with(row, 'over_authors_fp32')} that of the authors' fp32"
        parts.append(f"{said}; the {row.bound_by} binds.")
    return " ".join(parts)


def _with(row: object, name: str) -> str:
    low, high = getattr(row, f"{name}_low"), getattr(row, f"{name}_high")
    return f"{getattr(row, name):.2f} x {brackets(low, high, 'seed')}"


def border_verdict(border: pd.DataFrame) -> str:
    """Say from how many actors on the learner binds, and what is left of the gain there."""
    parts = []
    for (machine, design, precision, ms), rows in border[border.precision != "fp32"].groupby(
        ["machine", "design", "precision", "learner_ms"], sort=False
    ):
        bound = rows[rows.bound_by == "learner"].n_actors
        where = f"the learner binds from {bound.min()} actors on" if len(bound) else "the actors bind throughout"
        best = rows.loc[rows.speedup.idxmax()]
        name = "ours" if design == "packed" else "the authors' recipe"
        parts.append(
            f"{name} at {precision} ({machine}), an update in {ms:g} ms: {where}; at most {best.speedup:.2f} x over "
            f"its fp32, with {best.n_actors} actors, and {rows.speedup.iloc[-1]:.2f} x with {rows.n_actors.iloc[-1]}"
        )
    return f"In virtual time: {'; '.join(parts)}."


def energy(summary: pd.DataFrame) -> str:
    """Say what quantized actors do to the energy, by the model."""
    rows = summary[(summary.clock == "virtual") & (summary.precision != "fp32") & summary.energy_ratio.notna()]
    said = [f"{row.task}, {label_of(row)}: fp32 takes {row.energy_ratio:.2f} x" for row in rows.itertuples()]
    if not said:
        return "No pair of runs reached the threshold, so energies are not compared."
    return f"Energy to the threshold, modelled over virtual time: {'; '.join(said)}."


def validation_verdict(validation: pd.DataFrame) -> str:
    """Say how far the virtual clock is from real runs."""
    if not len(validation):
        return "Nothing was validated: validation_steps is 0."
    validation = validation[validation.virtual_over_real.notna()]
    if not len(validation):
        return "No real run had two episodes to take the time between: raise validation_steps."
    off = validation[~validation.virtual_over_real.between(*OFF)]
    worst = validation.loc[(validation.virtual_over_real - 1).abs().idxmax()]
    ratios = validation.virtual_over_real
    said = f"Virtual over real time is {ratios.min():.2f} to {ratios.max():.2f}, the furthest with {worst.setup}"
    return f"{said}. " + (f"{len(off)} of {len(validation)} set-ups are off by more than 15 %." if len(off) else
                          "All set-ups are within 15 %.")  # fmt: skip


def beside_paper(summary: pd.DataFrame, border: pd.DataFrame) -> pd.DataFrame:
    """Return Table 4 beside the authors' recipe and ours in the paper's setting, in virtual time."""
    n_actors, ms = PAPER_SETTING
    rows = []
    setting = f"virtual time, {n_actors} actors, an update in {ms:g} ms (assumed); networks and costs: see the text"
    at = summary[(summary.clock == "virtual") & (summary.n_actors == n_actors) & (summary.learner_ms == ms)]
    for row in at[at.precision == "int8"].itertuples():
        paper = paper_speedups().get(row.task, float("nan"))
        for what, name, beside in (
            ("the authors' int8 over their fp32", "speedup", row.design == "authors"),
            ("our int8 over the authors' fp32", "over_authors_fp32", row.design == "packed"),
        ):
            if beside:
                ends = getattr(row, f"{name}_low"), getattr(row, f"{name}_high")
                rows.append(("Table 4", f"{row.task}: {what}", "virtual", paper, getattr(row, name), *ends, setting))
    theirs = border[(border.design == "authors") & (border.precision == "int8") & (border.n_actors == n_actors)]
    for row in theirs[theirs.learner_ms == ms].itertuples():
        what = f"the authors' int8 over their fp32, steps a second, costs of {row.machine}"
        rows.append(("Table 4", what, "virtual", float("nan"), row.speedup, float("nan"), float("nan"), setting))
    return pd.DataFrame(rows, columns=["item", "what", "clock", "paper", "ours", "ci_low", "ci_high", "setting"])


def key_figure(summary: pd.DataFrame) -> str:
    """Return the run's claim: the paper's setting in virtual time."""
    n_actors, ms = PAPER_SETTING
    rows = summary[(summary.clock == "virtual") & (summary.precision == "int8") & (summary.n_actors == n_actors)]
    rows = rows[rows.learner_ms == ms]
    parts = []
    for design, name, what in (
        ("authors", "speedup", "the authors' int8 actors train at {} the speed of their fp32"),
        ("packed", "over_authors_fp32", "ours at {} that speed"),
    ):
        found = rows[(rows.design == design) & rows[name].notna()][name]
        if len(found):
            parts.append(what.format(" to ".join(dict.fromkeys(f"{x:.1f}" for x in (found.min(), found.max()))) + " x"))
    if not parts:
        return "No pair of runs in the paper's setting reached the threshold in virtual time."
    said = f"In virtual time, {n_actors} actors beside a learner of {ms:g} ms: {', '.join(parts)}"
    return f"{said} ({int(rows.seeds_reached.sum())} of {int(rows.seeds.sum())} int8 runs at their threshold)."
