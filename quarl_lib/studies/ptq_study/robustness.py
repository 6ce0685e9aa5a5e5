"""What quantization costs an agent whose world is not quite that of its training."""

from __future__ import annotations

from typing import Any

import pandas as pd

from quarl_lib.quantization.quantizers import storage_bits
from quarl_lib.studies.ptq_study.cells import UNDISTURBED
from quarl_lib.studies.ptq_study.study import against_fp32

COLUMNS = (
    "agent", "env_id", "disturbance", "precision", "quantizer", "num_bits", "episodes", "mean_return", "ci_low",
    "ci_high", "kept", "kept_low", "kept_high", "paired_difference", "paired_ci_low", "paired_ci_high", "differs",
    "error",
)  # fmt: skip
_LOST = {"kept": "relative_error", "kept_low": "relative_error_high", "kept_high": "relative_error_low"}


def robustness(table: pd.DataFrame, confidence: float = 0.95, seed: int = 0) -> pd.DataFrame:
    """Return a row per agent, disturbance ("none" first) and precision: return, and the share of fp32's that it keeps.

    fp32 plays under the same disturbance, the same noise in the same episodes: `kept` is 1 less the loss over the size
    of fp32's return, its interval from the difference paired by episode seed. What an environment cannot take is
    one row of precision "none" with the reason.
    """
    table = table[(table.engine == "simulated") & (table.precision != "none")]
    disturbed = table[table.disturbance != UNDISTURBED]
    first = disturbed[["agent", "precision", "quantizer", "observation"]].drop_duplicates()
    plain = table[table.disturbance == UNDISTURBED].merge(first, on=list(first.columns))
    rows = []
    for (agent, env_id), played in pd.concat([plain, disturbed]).groupby(["agent", "env_id"], sort=False):
        for name, cells in played.groupby("disturbance", sort=False):
            about = {"agent": agent, "env_id": env_id, "disturbance": name}
            rows += [{**about, **row} for row in _rows(cells, confidence, seed)]
    summary = pd.DataFrame(rows).reindex(columns=[*COLUMNS, *_LOST.values()])
    return summary.assign(**{kept: 1 - summary[lost] for kept, lost in _LOST.items()})[list(COLUMNS)]


def _rows(cells: pd.DataFrame, confidence: float, seed: int) -> list[dict[str, Any]]:
    """Return one agent's rows under one disturbance."""
    if len(reasons := cells.error.unique()) == 1 and reasons[0]:
        return [{"precision": "none", "quantizer": "none", "error": reasons[0], "differs": False}]
    fp32 = cells[(cells.precision == "fp32") & (cells.error == "")].set_index("seed").episode_return
    rows = []
    for (precision, quantizer), episodes in cells.groupby(["precision", "quantizer"], sort=False):
        row = {"precision": precision, "quantizer": quantizer, "num_bits": storage_bits(precision)}
        row |= {"error": episodes.error.iloc[0], "episodes": 0, "differs": False}
        if not row["error"]:
            returns = episodes.set_index("seed").episode_return
            row |= against_fp32(returns, fp32 if len(fp32) else None, confidence, seed)
        rows.append(row)
    return rows
