"""What stands over all agents, and what is said of those that were refused, by hand-worked numbers."""

from __future__ import annotations

import pandas as pd
import pytest

from quarl_lib.studies.ptq_study import sentences, study
from quarl_lib.studies.ptq_study.aggregate import aggregate, native


def episodes(agent: str, engine: str, precision: str, quantizer: str, returns: list[float]) -> pd.DataFrame:
    seeds = list(range(len(returns)))
    return pd.DataFrame({"seed": seeds, "episode_return": returns}).assign(
        agent=agent, env_id="E-v0", algorithm="PPO", engine=engine, precision=precision, quantizer=quantizer,
        observation="none", error="", warning="", normalisation="none", trained_on="", disturbance="none",
    )  # fmt: skip


@pytest.fixture
def table() -> pd.DataFrame:
    return pd.concat(
        [
            episodes("a", "random", "fp32", "random", [10.0, 10.0, 10.0, 10.0]),
            episodes("a", "simulated", "fp32", "none", [110.0, 110.0, 110.0, 110.0]),
            episodes("a", "simulated", "int8", "paper", [10.0, 60.0, 110.0, 160.0]),
            episodes("b", "simulated", "fp32", "none", [5.0, 5.0, 5.0, 5.0]),
            episodes("b", "simulated", "int8", "paper", [5.0, 5.0, 5.0, 5.0]),
            episodes("a", "native", "int8", "native", [108.0, 109.0, 110.0, 109.0]),
        ],
        ignore_index=True,
    )


def test_normalized_returns_by_hand(table):
    scores = aggregate(table).set_index("precision")
    # (10, 60, 110, 160) become (0, 0.5, 1, 1.5); a quarter at each end is cut, (0.5 + 1) / 2 stays.
    assert scores.iqm["int8"] == 0.75
    assert scores.ci_low["int8"] < 0.75 < scores.ci_high["int8"]
    assert (scores.iqm["fp32"], scores.ci_low["fp32"], scores.ci_high["fp32"]) == (1.0, 1.0, 1.0)
    assert (scores.agents["int8"], scores.episodes["int8"], scores.left_out["int8"]) == (1, 4, 1)
    assert "1 agents, 4 episodes a point; 1 not known to be better than random" in sentences.aggregate_caption(scores)


def test_the_native_engine_is_paired_with_the_simulated_fp32(table):
    (row,) = native(table).itertuples()
    assert (row.mean_return, row.fp32_return, row.paired_difference) == (109.0, 110.0, -1.0)


def test_the_worst_agent_is_named(table):
    summary = study.summarize(table.reindex(columns=list(study.TABLE_COLUMNS)).fillna({"kl_kind": ""}))
    assert "The worst, a, loses 22.7%." in sentences.key_figure(summary)
