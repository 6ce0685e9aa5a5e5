"""The range over which actions of one dimension are compared and drawn."""

from __future__ import annotations

import numpy as np
import pandas as pd


def shown_range(rows: pd.DataFrame) -> tuple[float, float]:
    """Return the bounds of one dimension's actions; where there is none, the end of what fp32 did."""
    low, high = float(rows.low.iloc[0]), float(rows.high.iloc[0])
    low = low if np.isfinite(low) else float(rows.action_fp32.min())
    high = high if np.isfinite(high) else float(rows.action_fp32.max())
    return (low, high) if low < high else (low, low + 1.0)
