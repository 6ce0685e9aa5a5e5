"""The sentences and small tables of the PTQ study's report, made from its summary."""

from __future__ import annotations

import pandas as pd

from quarl_lib.studies.ptq_study.cells import UNDISTURBED, UNQUANTIZED

LARGE = 0.01


def verdict(summary: pd.DataFrame, confidence: float = 0.95) -> str:
    """Say which cells differ from fp32 beyond noise: those whose paired interval leaves 0 out."""
    quantized = summary[(summary.error == "") & (summary.precision != "fp32")]
    failed = summary[summary.error != ""]
    reasons = f" {len(failed)} could not be measured; the table gives the reasons." if len(failed) else ""
    if quantized.empty:
        return f"Nothing was quantized, so there is nothing to compare with fp32.{reasons}"
    differs = quantized[quantized.differs]
    num_large = int((differs.relative_error.abs() > LARGE).sum())
    return (
        f"**{len(differs)} of {len(quantized)} quantized cells differ from fp32 beyond noise** (the {confidence:.0%} "
        f"interval of the difference, paired by episode seed, leaves 0 out; chance alone would give about "
        f"{(1 - confidence) * len(quantized):.0f}), {num_large} of them by more than {LARGE:.0%} of fp32's return."
        f"{reasons}"
    )


def overview(summary: pd.DataFrame, quantizer: str, observation: str = "none") -> pd.DataFrame:
    """Return one row per agent, one column per precision: mean return, marked * where it differs from fp32."""
    rows = _cells_of(summary, quantizer, observation)
    text = [f"{mean:.4g}{'*' if differs else ''}" for mean, differs in zip(rows.mean_return, rows.differs, strict=True)]
    table = rows.assign(text=text).pivot(index="agent", columns="precision", values="text")
    table = table.reindex(index=rows.agent.unique(), columns=rows.precision.unique())
    return table.rename_axis(columns=None).reset_index()


def refused(summary: pd.DataFrame) -> pd.DataFrame:
    """Return every agent or cell that could not be measured, with the reason."""
    return summary.loc[summary.error != "", ["agent", "precision", "quantizer", "error"]].reset_index(drop=True)


def quantizer_verdict(summary: pd.DataFrame) -> str:
    """Say per quantizer, under the first treatment of the observation, how many bits agents need."""
    integers = summary[~summary.quantizer.isin(UNQUANTIZED.values())]
    return _fewest_bits(integers[integers.observation.isin(integers.observation.head(1))], "quantizer")


def observation_verdict(summary: pd.DataFrame) -> str:
    """Say per treatment of the observation, under the first quantizer, how many bits agents need."""
    integers = summary[~summary.quantizer.isin(UNQUANTIZED.values())]
    return _fewest_bits(integers[integers.quantizer.isin(integers.quantizer.head(1))], "observation")


def typical(summary: pd.DataFrame) -> pd.DataFrame:
    """Return per precision, quantizer and observation the median relative error over agents, and how many differ."""
    rows = summary[(summary.error == "") & (summary.precision != "fp32")]
    grouped = rows.groupby(["precision", "quantizer", "observation"], sort=False)
    return grouped.agg(
        agents=("agent", "nunique"), median_relative_error=("relative_error", "median"), differ=("differs", "sum")
    ).reset_index()


def played(summary: pd.DataFrame) -> pd.DataFrame:
    """Return per measured agent what was played: environment, version trained on, source of statistics."""
    rows = summary[summary.error == ""].drop_duplicates("agent")
    table = rows[["agent", "algorithm", "env_id", "trained_on", "normalisation", "warning"]]
    return table.assign(actions="deterministic")


def robustness_verdict(robustness: pd.DataFrame) -> str:
    """Say per disturbance what it costs fp32, and what each precision keeps of fp32's return under it; Markdown."""
    measured = robustness[robustness.error == ""]
    plain = measured[(measured.disturbance == UNDISTURBED) & (measured.precision == "fp32")]
    alone = plain.set_index("agent").mean_return
    lines = []
    for name, rows in measured[measured.disturbance != UNDISTURBED].groupby("disturbance", sort=False):
        fp32 = rows[rows.precision == "fp32"].set_index("agent").mean_return
        share = 1 - (alone.reindex(fp32.index) - fp32) / alone.reindex(fp32.index).abs()
        said = [
            f"{precision} {cells.kept.median():.1%} ({int(cells.differs.sum())} of {len(cells)} differ)"
            for precision, cells in rows[rows.precision != "fp32"].groupby("precision", sort=False)
            if cells.kept.notna().any()
        ]
        lines.append(
            f"- **{name}**, {_agents(len(fp32))}: fp32 keeps {share.median():.1%} of its undisturbed return; of fp32's "
            f"under the same keep {', '.join(said) or 'nothing else was measured'}"
        )
    if not lines:
        return "No disturbance was measured."
    return "\n".join(["Medians over agents; a cell differs if its paired interval leaves fp32 out:", "", *lines])


def undisturbed(robustness: pd.DataFrame) -> pd.DataFrame:
    """Return which disturbances could not be applied, or not played under, and why."""
    columns = ["agent", "disturbance", "precision", "error"]
    failed = robustness[(robustness.error != "") & (robustness.disturbance != UNDISTURBED)]
    return failed[columns].reset_index(drop=True)


def aggregate_caption(scores: pd.DataFrame) -> str:
    """Say over how many agents and episodes the aggregate goes, and how many agents have no scale."""
    if scores.empty:
        return "No agent's fp32 is better than a random policy: nothing to normalize to."
    left_out = (
        f"; {scores.left_out.max()} not known to be better than random at fp32 left out"
        if scores.left_out.max()
        else ""
    )
    return f"{scores.agents.max()} agents, {scores.episodes.max()} episodes a point{left_out}."


def key_figure(summary: pd.DataFrame, precision: str = "int8", quantizer: str = "paper") -> str:
    """Return the run's one line: the median relative error at one precision, and how many cells differ there."""
    rows = summary[(summary.precision == precision) & (summary.quantizer == quantizer) & (summary.error == "")]
    if not (summary.error == "").any():
        reasons = "; ".join(f"{row.agent}: {row.error}" for row in summary.head(5).itertuples())
        raise ValueError(f"no agent was measured. {reasons}")
    if rows.empty:
        return f"{int((summary.precision == 'fp32').sum())} agents, no {precision} cell"
    row = typical(rows).iloc[0]
    known = rows[rows.relative_error.notna()].sort_values("relative_error")
    worst = ""
    if len(known) and known.relative_error.iloc[-1] >= 0.0005:  # else nobody loses what would be seen
        worst = f" The worst, {known.agent.iloc[-1]}, loses {known.relative_error.iloc[-1] + 0.0:.1%}."
    median = round(row.median_relative_error, 3) + 0.0  # no "-0.0%"
    return (
        f"Quantized to {precision} after training, the typical policy loses {median:.1%} of its fp32 return (median of "
        f"{row.agents} agents, simulated); {row.differ} of {row.agents} {'differs' if row.differ == 1 else 'differ'} "
        f"from fp32 by more than noise (episodes paired by seed).{worst}"
    )


def beside_paper(summary: pd.DataFrame, agents: str, observation: str = "none") -> pd.DataFrame:
    """Return Table 2's cells that were measured too, returns first, then divergences; `agents` says whose they are."""
    rows = _cells_of(summary[summary.paper_return.notna()], "paper", observation)
    setting = f"agents: {agents}; simulated"
    returns = [
        {
            "item": "Table 2",
            "what": f"{row.agent} {row.precision}, return",
            "paper": row.paper_return,
            "ours": row.mean_return,
            "ci_low": row.ci_low,
            "ci_high": row.ci_high,
            "setting": setting,
        }
        for row in rows.itertuples()
    ]
    divergences = [
        {
            "item": "Table 2",
            "what": f"{row.agent} {row.precision}, KL from fp32",
            "paper": row.paper_kl,
            "ours": row.kl_divergence,
            "setting": f"{setting}; the paper's is of weight densities, ours of {row.kl_kind}",
        }
        for row in rows[rows.paper_kl.notna()].itertuples()
    ]
    columns = ["item", "what", "paper", "ours", "ci_low", "ci_high", "setting"]
    return pd.DataFrame([*returns, *divergences], columns=columns)


def _cells_of(summary: pd.DataFrame, quantizer: str, observation: str) -> pd.DataFrame:
    rows = summary[(summary.error == "") & summary.quantizer.isin([*UNQUANTIZED.values(), quantizer])]
    return rows[(rows.precision == "fp32") | (rows.observation == observation)]


def _fewest_bits(integers: pd.DataFrame, by: str) -> str:
    """List per value of `by` how many agents keep their return down to how many bits."""
    parts = []
    for name, rows in integers[integers.error == ""].groupby(by, sort=False):
        agents: dict[float, int] = {}
        for _, agent in rows.groupby("agent"):
            lost = agent[~agent.without_loss].num_bits.max()
            kept = agent[~(agent.num_bits <= lost)].num_bits.min()
            agents[kept] = agents.get(kept, 0) + 1
        said = [
            f"{_agents(count)} at {bits:.0f} bits and more" for bits, count in sorted(agents.items()) if bits == bits
        ]
        if never := sum(count for bits, count in agents.items() if bits != bits):
            said.append(f"{_agents(never)} at no width measured")
        parts.append(f"**{name}**: {', '.join(said)}")
    if not parts:
        return "No integer precision was measured."
    kept = (
        "How many agents keep their return (not inferior: the paired interval lies above -5 % of the range from a "
        f"random policy to fp32), by {by}: "
    )
    return kept + "; ".join(parts) + "."


def _agents(count: int) -> str:
    return f"{count} {'agent' if count == 1 else 'agents'}"
