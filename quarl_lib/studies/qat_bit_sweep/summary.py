"""One row per policy and bits of the sweep: return, loss and training time with intervals over training seeds."""

from __future__ import annotations

from typing import Any

import pandas as pd

from quarl_lib import metrics
from quarl_lib.envs.gym import reward_threshold

SCRATCH = ("qat", "lsq")
TUNED = ("fine_tune", "fine_tune_lsq")
METHODS = (*SCRATCH, *TUNED)
TWIN = "fp32_scratch"  # the fp32 training beside those from scratch, where an archive is the agent's fp32
AGENT = ["algorithm", "env_id"]
BITS = ["grid", "weight_bits", "activation_bits", "observation_bits", "edge_bits"]
SUMMARY_COLUMNS = (
    *AGENT, "start", "method", *BITS, "actor_steps", "seeds", "episodes", "mean_return", "ci_low", "ci_high",
    "random_return", "converged", "normalized", "normalized_low", "normalized_high", "relative_error",
    "paired_difference", "paired_ci_low", "paired_ci_high", "over_ptq", "over_ptq_low", "over_ptq_high",
    "without_loss", "fewest_bits_without_loss", "training_time_ratio", "ratio_low", "ratio_high",
)  # fmt: skip


def summarize(table: pd.DataFrame, tolerated_loss: float = 0.05) -> pd.DataFrame:
    """Return one row per policy and bits: return with its interval over training seeds, loss, and training time.

    One value a seed, the mean of its episodes: episodes of one policy say nothing of another training. Paired by seed
    are `paired_difference` (to fp32), `over_ptq` (to PTQ at the same bits) and `training_time_ratio` (the processor's
    seconds over those of fp32 by the same recipe). Normalized is 0 where a random policy is and 1 where fp32 is.

    Without loss means not inferior: the lower end of the paired difference's interval lies above -`tolerated_loss`
    (5 %) of the range from the random policy to fp32. A wide interval, as of few seeds, shows nothing and passes
    nothing; one seed has none. Converged means that fp32, by the same recipe where a row trains from scratch, reaches
    what counts as solved on every seed. Variants of a training stand in a table of their own.
    """
    rows = []
    for agent, cells in table[table.variant == ""].groupby(AGENT, sort=False):
        of_method = {str(method): part for method, part in cells.groupby("method", sort=False)}
        fp32 = of_method["fp32"]
        reference, random = _of_seeds(fp32), _of_seeds(of_method["random"])
        span = float(reference.mean() - random.mean())
        own = of_method.get(TWIN, of_method["fp32"])
        threshold = reward_threshold(str(agent[1]))
        twin = own.groupby("seed").training_cpu_s.first()
        for key, cell in cells[cells.method != "random"].groupby(["method", *BITS], sort=False):
            returns = _of_seeds(cell)
            mean = metrics.mean_interval(returns)
            paired = metrics.paired_difference(returns, reference.loc[returns.index])
            row = dict(zip([*AGENT, "method", *BITS], [*agent, *key], strict=True)) | {
                "start": cell.start.iloc[0],
                "actor_steps": cell.actor_steps.iloc[0],
                "seeds": cell.seed.nunique(),
                "episodes": len(cell),
                "mean_return": mean.estimate,
                "ci_low": mean.low,
                "ci_high": mean.high,
                "random_return": random.mean(),
                "relative_error": metrics.relative_error(mean.estimate, float(reference.mean())),
                **dict(zip(("paired_difference", "paired_ci_low", "paired_ci_high"), paired, strict=True)),
                "converged": bool(_of_seeds(own if key[0] in (TWIN, *SCRATCH) else fp32).min() >= threshold),
                "without_loss": metrics.not_inferior(paired.low, reference.mean(), random.mean(), tolerated_loss),
            }
            if span > 0:
                shares = [1 + value / span for value in paired]
                row |= dict(zip(("normalized", "normalized_low", "normalized_high"), shares, strict=True))
            if "ptq" in of_method and key[0] not in ("fp32", TWIN, "ptq"):
                rounded = of_method["ptq"]
                rounded = rounded[(rounded[BITS] == list(key[1:])).all(axis=1)]
                if len(rounded):
                    over = metrics.paired_difference(returns, _of_seeds(rounded).loc[returns.index])
                    row |= dict(zip(("over_ptq", "over_ptq_low", "over_ptq_high"), over, strict=True))
            rows.append(row | _time(cell, twin))
    summary = pd.DataFrame(rows)
    kept = (
        summary[summary.without_loss].groupby([*AGENT, "method"]).weight_bits.min().rename("fewest_bits_without_loss")
    )
    summary = summary.merge(kept.reset_index(), how="left", on=[*AGENT, "method"])
    return summary.reindex(columns=list(SUMMARY_COLUMNS))


def _time(cell: pd.DataFrame, fp32: pd.Series) -> dict[str, Any]:
    """Return the training's time as a ratio to fp32's of the same seed, where both trained here."""
    own = cell.groupby("seed").training_cpu_s.first()
    if own.isna().any() or fp32.isna().any():
        return {}
    ratio = metrics.paired_ratio(own, fp32.loc[own.index])
    return {"training_time_ratio": ratio.estimate, "ratio_low": ratio.low, "ratio_high": ratio.high}


def _of_seeds(cell: pd.DataFrame) -> pd.Series:
    """Return the mean return of each training seed."""
    return cell.groupby("seed").episode_return.mean()
