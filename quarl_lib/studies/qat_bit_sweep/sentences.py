"""What the QAT sweep says in words and beside the paper, from its summary alone."""

from __future__ import annotations

import pandas as pd

from quarl_lib.sb3.recipes import recipe_for
from quarl_lib.studies.common.intervals import brackets
from quarl_lib.studies.qat_bit_sweep.study import AGENT, BITS, METHODS, ptq_of

PAPER_FEWEST_BITS = "5 to 6"  # appendix A, over all of its environments
NAMES = {
    "qat": "QAT", "qat_lsq": "QAT with learned steps", "qat_engine": "QAT on the engines' grid",
    "ptq": "PTQ", "ptq_engine": "PTQ on the engines' grid",
}  # fmt: skip


def verdict(summary: pd.DataFrame) -> str:
    """Say per environment and algorithm how few bits each method needs without losing return."""
    sentences = []
    for env_id, rows in summary.groupby("env_id", sort=False):
        parts = []
        for algorithm, cells in rows.groupby("algorithm", sort=False):
            fewest = cells[cells.method != "fp32"].groupby("method", sort=False).fewest_bits_without_loss.first()
            said = [f"{NAMES[str(method)]} {_width(count)}" for method, count in fewest.items()]
            parts.append(f"{algorithm}: {', '.join(said)}")
        sentences.append(f"- **{env_id}**, {'; '.join(parts)}.")
    return "Fewest bits of a weight without loss, in any cell of the sweep:\n\n" + "\n".join(sentences)


def at_eight_bits(summary: pd.DataFrame) -> str:
    """Say how many agents keep fp32's return when everything is trained at 8 bits."""
    rows = summary[(summary.method == "qat") & summary[BITS].eq(8).all(axis=1)]
    lost = [
        f"{row.algorithm} {row.env_id} ({row.mean_return:.0f} {brackets(row.ci_low, row.ci_high, 'seed', '.0f')})"
        for _, row in rows[~rows.without_loss].iterrows()
    ]
    return f"Trained at 8 bits everywhere, {len(rows) - len(lost)} of {len(rows)} agents lose nothing{_listed(lost)}."


def against_ptq(summary: pd.DataFrame) -> str:
    """Say where the interval of the difference to rounding, paired by seed, leaves 0 out for training with the bits."""
    better, worse, total = [], [], 0
    for method in METHODS:
        both = summary[summary.method == method].merge(summary[summary.method == ptq_of(method)], on=[*AGENT, *BITS])
        total += len(both)
        for _, row in both.iterrows():
            bits = "/".join(str(row[name]) for name in BITS[:3])
            said = f"{row.algorithm} {row.env_id} {bits} ({row.mean_return_x:.0f} against {row.mean_return_y:.0f})"
            if row.over_ptq_low_x > 0:
                better.append(said)
            elif row.over_ptq_high_x < 0:
                worse.append(said)
    said = (
        f"Of {total} pairs at the same bits (weights/activations/observation), training with them wins {len(better)}"
        f"{_listed(better)} and loses {len(worse)}{_listed(worse)} beyond the interval of the difference, "
        "paired by seed"
    )
    return said + ("; one seed: no interval." if (summary.seeds == 1).all() else ".")


def cost(summary: pd.DataFrame) -> str:
    """Say what QAT costs in training time at most."""
    rows = summary[summary.method.isin(METHODS)]
    most = rows.loc[rows.training_time_ratio.idxmax()]
    return (
        f"Training under fake quantization took {rows.training_time_ratio.min():.2f} to {most.training_time_ratio:.2f} "
        f"times fp32's processor time over the same seeds; most for {most.algorithm} on {most.env_id} at "
        f"{most.weight_bits} bits {brackets(most.ratio_low, most.ratio_high, 'seed')}."
    )


def weights_kept(summary: pd.DataFrame) -> str:
    """Say which agents are their training's last weights, and which the best of its trials."""
    agents = summary[AGENT].drop_duplicates().itertuples(index=False)
    recipes = [recipe_for(algorithm, env_id) for algorithm, env_id in agents]
    last = [f"{recipe.algorithm} {recipe.env_id}" for recipe in recipes if not recipe.select_every_steps]
    best = [
        f"{recipe.algorithm} {recipe.env_id} (every {recipe.select_every_steps:,} steps)"
        for recipe in recipes
        if recipe.select_every_steps
    ]
    said = []
    if last:
        said.append(f"The weights measured are the training's last, not its best, for {', '.join(last)}.")
    if best:
        said.append(f"They are those that did best in trials of their own, fp32 and QAT alike, for {', '.join(best)}.")
    return " ".join(said)


def key_figure(summary: pd.DataFrame) -> str:
    """Return the run's one line: return of the first agent under QAT and PTQ where they differ most."""
    rows = summary.merge(summary[summary.method == "ptq"], on=[*AGENT, *BITS])
    rows = rows[rows.method_x.isin(METHODS)]
    if not len(rows):
        return "QAT on the engines' grid only"
    best = rows.loc[((rows.mean_return_x - rows.mean_return_y) / rows.mean_return_y.abs()).idxmax()]
    return (
        f"Trained in {best.weight_bits} bits (QAT), {best.algorithm} on {best.env_id} returns "
        f"{best.mean_return_x:.0f}; trained in fp32 and quantized to {best.weight_bits} bits afterwards (PTQ), "
        f"it returns {best.mean_return_y:.0f} (means over seeds, simulated; the cell where they differ most)."
    )


def beside_paper(summary: pd.DataFrame) -> pd.DataFrame:
    """Return the paper's findings on QAT beside ours, one row per agent and finding."""
    rows = []
    for (algorithm, env_id), cells in summary[summary.method == "qat"].groupby(AGENT, sort=False):
        setting = f"{cells.actor_steps.iloc[0]:,} steps instead of 10 M, {cells.seeds.iloc[0]} seeds"
        common = {"item": "Figure 10", "ci_low": float("nan"), "ci_high": float("nan"), "setting": setting}
        fewest = cells.fewest_bits_without_loss.iloc[0]
        what = f"{algorithm} {env_id}: fewest bits without loss"
        rows.append({**common, "what": what, "paper": PAPER_FEWEST_BITS, "ours": _width(fewest)})
        at_8 = cells[cells[BITS].eq(8).all(axis=1)]
        for _, cell in at_8.iterrows():
            what = f"{algorithm} {env_id}: return at 8 bits"
            ours = {"ours": f"{cell.mean_return:.1f}", "ci_low": cell.ci_low, "ci_high": cell.ci_high}
            rows.append({**common, "what": what, "paper": "as fp32", **ours})
    return pd.DataFrame(rows)[["item", "what", "paper", "ours", "ci_low", "ci_high", "setting"]]


def _width(count: float) -> str:
    return "at no width" if pd.isna(count) else f"{count:.0f}"


def _listed(parts: list[str]) -> str:
    return f" ({'; '.join(parts)})" if parts else ""
