"""Over all agents of a run: normalized returns in one number a quantizer and precision, and the engine beside it."""

from __future__ import annotations

import numpy as np
import pandas as pd

from quarl_lib import metrics
from quarl_lib.quantization.quantizers import storage_bits
from quarl_lib.studies.ptq_study.cells import UNDISTURBED

RESAMPLES = 2000
COLUMNS = ("quantizer", "precision", "num_bits", "iqm", "ci_low", "ci_high", "agents", "episodes", "left_out")
NATIVE_COLUMNS = (
    "agent", "precision", "mean_return", "ci_low", "ci_high", "fp32_return", "paired_difference", "paired_ci_low",
    "paired_ci_high", "error",
)  # fmt: skip


def aggregate(table: pd.DataFrame, confidence: float = 0.95, seed: int = 0) -> pd.DataFrame:
    """Return the interquartile mean of returns normalized so that a random policy has 0 and the agent's fp32 has 1.

    Intervals are percentiles of a stratified bootstrap: episodes are drawn anew within each agent, the agents stay
    (Agarwal et al., 2021, and its library rliable). An agent whose fp32 is not better than random has no such scale;
    `left_out` counts those.
    """
    played = table[(table.error == "") & (table.disturbance == UNDISTURBED)]
    random = played[played.engine == "random"].groupby("env_id").episode_return.mean()
    simulated = played[played.engine == "simulated"]
    simulated = simulated[simulated.observation.isin(["none", *simulated.observation.head(1)])]
    fp32 = simulated[simulated.precision == "fp32"].groupby("agent").episode_return.mean()
    rng, rows = np.random.default_rng(seed), []
    for (quantizer, precision), cells in simulated.groupby(["quantizer", "precision"], sort=False):
        scores, left_out = [], 0
        for (agent, env_id), episodes in cells.groupby(["agent", "env_id"]):
            low, high = random.get(env_id, np.nan), fp32.get(agent, np.nan)
            if high > low:
                scores.append((episodes.episode_return.to_numpy() - low) / (high - low))
            else:
                left_out += 1
        if not scores:
            continue
        draws = [[rng.choice(score, len(score)) for score in scores] for _ in range(RESAMPLES)]
        ends = np.percentile(
            [float(metrics.iqm(np.concatenate(draw))) for draw in draws], [50 - 50 * confidence, 50 + 50 * confidence]
        )
        rows.append(
            {
                "quantizer": quantizer, "precision": precision, "num_bits": storage_bits(precision),
                "iqm": float(metrics.iqm(np.concatenate(scores))), "ci_low": ends[0], "ci_high": ends[1],
                "agents": len(scores), "episodes": sum(map(len, scores)), "left_out": left_out,
            }
        )  # fmt: skip
    return pd.DataFrame(rows, columns=list(COLUMNS))


def native(table: pd.DataFrame, confidence: float = 0.95, seed: int = 0) -> pd.DataFrame:
    """Return what each agent's native engine reached, paired by episode seed with the simulation's fp32."""
    table, rows = table[table.disturbance == UNDISTURBED], []
    for (agent, precision), cells in table[table.engine == "native"].groupby(["agent", "precision"], sort=False):
        row = {"agent": agent, "precision": precision, "error": cells.error.iloc[0]}
        others = table[(table.agent == agent) & (table.engine == "simulated") & (table.precision == "fp32")]
        if not row["error"]:
            returns = cells.set_index("seed").episode_return
            mean = metrics.mean_interval(returns, confidence, seed)
            row |= {"mean_return": mean.estimate, "ci_low": mean.low, "ci_high": mean.high}
            if len(others) and (others.error == "").all():
                fp32 = others.set_index("seed").episode_return.loc[returns.index]
                paired = metrics.paired_difference(returns, fp32, confidence, seed)
                row |= {
                    "fp32_return": float(fp32.mean()), "paired_difference": paired.estimate,
                    "paired_ci_low": paired.low, "paired_ci_high": paired.high,
                }  # fmt: skip
        rows.append(row)
    return pd.DataFrame(rows, columns=list(NATIVE_COLUMNS))
