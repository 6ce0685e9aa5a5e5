"""quarl bench: every way to act has a time with its interval, and acts as the agent does."""

from __future__ import annotations

from functools import partial

import pytest

from quarl_lib.deploy import bench
from quarl_lib.inference.benchmark import Schedule


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(bench, "Schedule", partial(Schedule, block_ms=1.0))
    monkeypatch.setattr(bench, "OBSERVATIONS", 100)


def test_every_way_has_a_time_and_an_error_and_the_first_is_the_agents_own(quick):
    table = bench.bench("ppo/CartPole-v1", rounds=3).set_index("name")
    assert tuple(table.columns) == bench.COLUMNS[1:]
    assert table.index[0] == bench.SB3
    assert table.speedup[bench.SB3] == pytest.approx(1, rel=0.5)  # against itself, timed twice
    timed = table[table.microseconds.notna()]
    assert (table[table.microseconds.isna()].reason != "").all()
    assert {bench.SB3, bench.ORIGINAL, "TorchScript, frozen", "QuantizedPolicy.predict int8"} <= set(timed.index)
    assert (timed.us_low <= timed.microseconds).all()
    assert (timed.microseconds <= timed.us_high).all()
    assert (timed.microseconds > 0).all()
    exact = [name for name in timed.index if name.endswith("fp32") or name in (bench.SB3, bench.ORIGINAL)]
    assert (timed.same_action_rate[exact] == 1).all()
    assert timed.same_action_rate["QuantizedPolicy.predict int8"] >= 0.95


def test_continuous_actions_have_differences(quick):
    table = bench.bench("ddpg/Pendulum-v1", rounds=2).set_index("name")
    assert table.max_abs_difference["TorchScript, frozen"] <= 1e-5
    assert 0 < table.mean_abs_difference["QuantizedPolicy.predict int8"] <= table.max_abs_difference.max()


def test_one_round_has_no_interval():
    with pytest.raises(ValueError, match="rounds=1"):
        bench.bench("ppo/CartPole-v1", rounds=1)
