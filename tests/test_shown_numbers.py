"""The check itself: a number is found to its last digit and at its scale, another one is not."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import shown_numbers


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("took 2.35 × [1.20, 4.60] as long", []),
        ("**2.36 x** the best", [2.36]),
        ("23.5% of the time; int8 and PPO/CartPole-v1 are names", []),
        ("24.5% of the time", [24.5]),
        ("12,346 steps, 1.23e+04 of them", []),
        ("12,347 steps", [12347.0]),
        ("-4.6 at worst", []),
        ("3 of 7 agents", []),  # counts of rows
        ("31 of them", [31.0]),
    ],
)
def test_strangers(text, missing):
    values = np.array([1.2, 2.349, 0.2349, 4.6, 12345.7])
    assert shown_numbers.strangers(text, np.sort(values), counts_to=10) == missing


def test_raw_measurements_vouch_for_nothing(tmp_path):
    raw = pd.DataFrame({"raw": np.arange(shown_numbers.MOST + 1) / 7, "few": 0.125, "text": "at 0.75 or so"})
    raw.to_parquet(tmp_path / "results.parquet")
    pd.DataFrame({"ratio": [1.5, np.nan]}).to_csv(tmp_path / "summary.csv", index=False)
    assert shown_numbers.stored(tmp_path).tolist() == [0.125, 0.75, 1.5]
