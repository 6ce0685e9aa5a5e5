"""The paper's Table 2 (arXiv 1910.01055), to stand beside our own numbers."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

import pandas as pd

PAPER_PRECISIONS = ("fp32", "fp16", "int8")
PAPER_QUANTIZER = "paper"


@lru_cache(maxsize=1)
def load() -> pd.DataFrame:
    """Return Table 2, one row per environment and algorithm, with the environment's registered name in `env_id`."""
    return pd.read_csv(Path(__file__).with_suffix(".csv"))


def values_for(algorithm: str, env_id: str, precision: str, quantizer: str) -> tuple[float, float]:
    """Return the paper's (return, KL divergence) of a cell, NaN where it has none; it states a KL for int8 only."""
    game = re.sub(r"^ALE/(.*)-v5$", r"\1NoFrameskip-v4", env_id)
    rows = load()[(load().algorithm == algorithm) & (load().env_id == game)]
    if rows.empty or precision not in PAPER_PRECISIONS or (precision == "int8" and quantizer != PAPER_QUANTIZER):
        return float("nan"), float("nan")
    row = rows.iloc[0]
    kl = row.paper_int8_kl if precision == "int8" else float("nan")
    return float(row[f"paper_{precision}_return"]), float(kl)
