"""What the QAT sweep says in words and beside the paper, from its summary alone."""

from __future__ import annotations

from typing import Any

import pandas as pd

from quarl_lib.sb3.recipes import recipe_for
from quarl_lib.sb3.tuning import trials_of
from quarl_lib.studies.common.intervals import brackets
from quarl_lib.studies.qat_bit_sweep.summary import AGENT, BITS, METHODS, SCRATCH, TUNED, TWIN

PAPER_FEWEST_BITS = "5 to 6"  # appendix A, over all of its environments
NAMES = {
    "ptq": "PTQ", "fine_tune": "fine-tuned", "fine_tune_lsq": "fine-tuned with learned steps",
    "qat": "QAT from scratch", "lsq": "QAT from scratch with learned steps",
}  # fmt: skip
ALL_BITS = [name for name in BITS if name.endswith("_bits")]


def verdict(summary: pd.DataFrame) -> str:
    """Say per environment and algorithm how few bits each method needs without losing return."""
    sentences = []
    for env_id, rows in summary.groupby("env_id", sort=False):
        parts = []
        for algorithm, cells in rows.groupby("algorithm", sort=False):
            fewest = cells[cells.method.isin(NAMES)].groupby("method", sort=False).fewest_bits_without_loss.first()
            said = [f"{NAMES[str(method)]} {_width(count)}" for method, count in fewest.items()]
            parts.append(f"{algorithm}: {', '.join(said)}")
        sentences.append(f"- **{env_id}**, {'; '.join(parts)}.")
    return "Fewest bits of a weight without loss, in any cell of the sweep:\n\n" + "\n".join(sentences)


def not_converged(summary: pd.DataFrame) -> str:
    """Say which agents the figure leaves out, since fp32 itself does not reach what counts as solved."""
    fp32 = summary[summary.method.isin(["fp32", TWIN]) & ~summary.converged]
    left_out = [
        f"{row.algorithm} {row.env_id}{'' if row.start else ' trained here'} "
        f"({row.mean_return:.0f} {brackets(row.ci_low, row.ci_high, 'seed', '.0f')})"
        for row in fp32.itertuples()
    ]
    if not left_out:
        return "Every fp32 policy is solved on every seed, where somebody says what that is."
    return (
        f"Not in the figure, since fp32 does not count as solved on every seed: {', '.join(left_out)}. What "
        "quantization costs a policy that has not learned its task says nothing."
    )


def at_eight_bits(summary: pd.DataFrame) -> str:
    """Say how many agents keep fp32's return when everything is trained at 8 bits."""
    rows = summary[(summary.method == "qat") & summary[ALL_BITS].eq(8).all(axis=1)]
    if not len(rows):
        return "No agent trained from scratch at 8 bits everywhere here, where the paper finds no loss."
    lost = [
        f"{row.algorithm} {row.env_id} ({row.mean_return:.0f} {brackets(row.ci_low, row.ci_high, 'seed', '.0f')})"
        for _, row in rows[~rows.without_loss].iterrows()
    ]
    return f"Trained at 8 bits everywhere, {len(rows) - len(lost)} of {len(rows)} agents lose nothing{_listed(lost)}."


def against_ptq(summary: pd.DataFrame) -> str:
    """Say where the interval of the difference to rounding, paired by seed, leaves 0 out for training with the bits."""
    sentences = []
    for method in METHODS:
        rows = summary[(summary.method == method) & summary.over_ptq.notna()]
        if not len(rows):
            continue
        better, worse = rows[rows.over_ptq_low > 0], rows[rows.over_ptq_high < 0]
        sentences.append(
            f"{NAMES[method]} wins {len(better)} of {len(rows)}{_listed(list(map(_gain, better.itertuples())))} "
            f"and loses {len(worse)}{_listed(list(map(_gain, worse.itertuples())))}"
        )
    said = "Against PTQ at the same bits, beyond the interval of the difference paired by seed: "
    return said + "; ".join(sentences) + ("; one seed: no interval." if (summary.seeds == 1).all() else ".")


def _gain(row: Any) -> str:
    bits = f"int{row.weight_bits}" if row.grid == "engine" else f"{row.weight_bits} bits"
    return f"{row.algorithm} {row.env_id} {bits}: {row.mean_return:.0f} against {row.mean_return - row.over_ptq:.0f}"


def of_variants(tried: pd.DataFrame) -> str:
    """Say which changes of a training from scratch pay at the fewest bits, and which cost."""
    if not len(tried):
        return "Nothing else was tried: see the parameter `variants`."
    first = tried.iloc[0]
    where = f"{first.algorithm} on {first.env_id} at {first.weight_bits} bits of a weight"
    known = tried[tried.difference_low.notna()]
    if not len(known):
        return f"For {where}, one seed: no interval, so nothing is shown to pay."
    pays, costs = known[known.pays], known[known.difference_high < 0]
    return (
        f"For {where}, beyond the interval of the difference paired by seed, of {len(known)} changes {len(pays)} pay"
        f"{_listed(list(map(_change, pays.itertuples())))} and {len(costs)} cost"
        f"{_listed(list(map(_change, costs.itertuples())))}; without them it returns {first.without:.0f}."
    )


def _change(row: Any) -> str:
    return f"{row.about}: {row.difference:+.0f} {brackets(row.difference_low, row.difference_high, 'seed', '+.0f')}"


def against_cost(summary: pd.DataFrame, costs: pd.DataFrame) -> str:
    """Say per agent the cheapest policy without loss, in bytes and microseconds, beside fp32."""
    kept = summary[summary.without_loss & summary.method.isin(NAMES) & (summary.grid == "engine")]
    priced = kept.merge(costs, on=[*AGENT, "weight_bits"])
    said = []
    for agent, rows in priced.groupby(AGENT, sort=False):
        by_effort = rows.sort_values("method", key=lambda names: names.map(list(NAMES).index), kind="stable")
        best = rows.loc[by_effort.payload_bytes.idxmin()]  # the least effort of those as small
        own = costs[(costs[AGENT] == list(agent)).all(axis=1) & (costs.precision == "fp32")].iloc[0]
        said.append(
            f"{best.algorithm} {best.env_id} {best.precision} ({NAMES[best.method]}): {best.payload_bytes} bytes and "
            f"{best.microseconds:.2g} us an action, fp32 {own.payload_bytes} and {own.microseconds:.2g}"
        )
    if not said:
        return "No policy on the engines' grid is without loss here."
    return f"The smallest policies without loss, timed on this machine: {'; '.join(said)}."


def beside_literature(summary: pd.DataFrame) -> str:
    """Hold the fewest bits against what Kresse and Lampert (arXiv 2511.07046) found, and say what differs."""
    trained = summary[summary.method.isin(METHODS)]
    agents = len(trained[AGENT].drop_duplicates())
    kept = {bits: trained[(trained.weight_bits == bits) & trained.without_loss][AGENT] for bits in (4, 3, 2)}
    ours = ", ".join(f"{len(rows.drop_duplicates())} at {bits} bits" for bits, rows in kept.items())
    return (
        "Kresse and Lampert (2025, arXiv 2511.07046) report no loss for SAC on MuJoCo at 3 bits and mostly none at 2, "
        "with HalfCheetah where 2 bits fail, and that the input's precision decides. Here, with the bits trained in "
        f"some way, without loss are {ours}, of {agents} agents: other tasks and algorithms, shorter trainings, and on "
        "the engines' grid activations of 8 bits and an observation of 16."
    )


def cost(summary: pd.DataFrame) -> str:
    """Say what training with the bits costs at most, as a multiple of fp32's training."""
    rows = summary[summary.method.isin(METHODS) & summary.training_time_ratio.notna()]
    if not len(rows):
        return "No fp32 policy trained here: there is no training time to hold against."
    sentences = []
    for method, line in rows.groupby("method", sort=False):
        most = line.loc[line.training_time_ratio.idxmax()]
        sentences.append(
            f"{NAMES[str(method)]} took {line.training_time_ratio.min():.2f} to {most.training_time_ratio:.2f} "
            f"times fp32's processor time over the same seeds; most for {most.algorithm} on {most.env_id} at "
            f"{most.weight_bits} bits {brackets(most.ratio_low, most.ratio_high, 'seed')}."
        )
    return " ".join(sentences)


def starts(summary: pd.DataFrame) -> str:
    """Say what PTQ and fine-tuning start from, and what the same recipe reaches here in fp32 from scratch."""
    fp32 = summary[summary.method == "fp32"]
    said = [f"{row.algorithm} {row.env_id} {row.mean_return:.0f}" for row in fp32[fp32.start != ""].itertuples()]
    sentences = []
    if said:
        sentences.append(
            f"PTQ and fine-tuning start from archives, one policy whatever the seed, which return in fp32: "
            f"{', '.join(said)}. Their intervals are over fine-tuning's seeds and episodes, not over fp32 trainings."
        )
    twins = summary[summary.method.eq(TWIN) | (summary.method.eq("fp32") & summary.start.eq(""))]
    trained = [
        f"{row.algorithm} {row.env_id} {row.mean_return:.0f} {brackets(row.ci_low, row.ci_high, 'seed', '.0f')}"
        for row in twins.itertuples()
    ]
    if trained:
        sentences.append(f"Trained here in fp32 by the recipes: {', '.join(trained)}.")
    return " ".join(sentences)


def weights_kept(summary: pd.DataFrame) -> str:
    """Say which agents are their training's last weights, and which the best of its trials."""
    trained = summary[summary.method.isin([TWIN, *SCRATCH]) | (summary.method.eq("fp32") & summary.start.eq(""))]
    agents = trained[AGENT].drop_duplicates().itertuples(index=False)
    recipes = [recipe_for(algorithm, env_id) for algorithm, env_id in agents]
    last = [f"{recipe.algorithm} {recipe.env_id}" for recipe in recipes if not recipe.select_every_steps]
    best = [
        f"{recipe.algorithm} {recipe.env_id} (every {recipe.select_every_steps:,} steps)"
        for recipe in recipes
        if recipe.select_every_steps
    ]
    said = []
    if last:
        said.append(f"Trained from scratch, measured are the last weights, not the best, for {', '.join(last)}.")
    if best:
        said.append(f"Those that did best in trials of their own, fp32 and QAT alike, for {', '.join(best)}.")
    if summary.method.isin(TUNED).any():
        counts = {name: trials_of(name) + 1 for name in summary[summary.method.isin(TUNED)].algorithm.unique()}
        said.append(
            f"Fine-tuned: the best of {', '.join(f'{count} trials ({name})' for name, count in counts.items())} of "
            "their own, the first of rounding alone."
        )
    return " ".join(said)


def key_figure(summary: pd.DataFrame) -> str:
    """Return the run's one line: where training with the bits gains most over rounding."""
    rows = summary[summary.over_ptq.notna() & summary.normalized.notna()]
    if not len(rows):
        return "fp32 learned nothing: no range to compare in"
    span = rows.mean_return.sub(rows.random_return) / rows.normalized
    gains = rows.over_ptq / span.abs()  # NaN where a policy plays as well as random actions do
    best = rows.loc[(gains if gains.notna().any() else rows.over_ptq).idxmax()]
    return (
        f"{best.algorithm} on {best.env_id} at {best.weight_bits} bits of a weight returns {best.mean_return:.0f} "
        f"({NAMES[best.method]}) and {best.mean_return - best.over_ptq:.0f} rounded (PTQ), a difference of "
        f"{best.over_ptq:+.0f} {brackets(best.over_ptq_low, best.over_ptq_high, 'seed', '+.0f')}: means over "
        f"{best.seeds} {'seed' if best.seeds == 1 else 'seeds'}, simulated; the cell where they differ most."
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
        at_8 = cells[cells[ALL_BITS].eq(8).all(axis=1)]
        for _, cell in at_8.iterrows():
            what = f"{algorithm} {env_id}: return at 8 bits"
            ours = {"ours": f"{cell.mean_return:.1f}", "ci_low": cell.ci_low, "ci_high": cell.ci_high}
            rows.append({**common, "what": what, "paper": "as fp32", **ours})
    return pd.DataFrame(rows, columns=["item", "what", "paper", "ours", "ci_low", "ci_high", "setting"])


def _width(count: float) -> str:
    return "at no width" if pd.isna(count) else f"{count:.0f}"


def _listed(parts: list[str]) -> str:
    return f" ({'; '.join(parts)})" if parts else ""
