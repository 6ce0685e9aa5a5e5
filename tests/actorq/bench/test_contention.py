"""What actors on several cores take from each other: the ratio by hand, real actors side by side."""

from __future__ import annotations

import pandas as pd
import pytest

from quarl_lib.actorq.bench import contention
from quarl_lib.actorq.config import Config

CONFIGS = [
    Config(task="dm_control:cartpole:balance", algorithm="d4pg", policy_hidden=(64, 64), precision=precision)
    for precision in ("fp32", "int8")
]


def test_slowdown_by_hand():
    rows = []
    for number, alone, beside in ((0, 100.0, (120.0, 130.0)), (1, 200.0, (220.0, 220.0)), (2, 100.0, (150.0, 150.0))):
        for n_actors, cpu_us in ((1, (alone,)), (2, beside)):
            for actor_id, one in enumerate(cpu_us):
                rows.append(
                    {"round": number, "precision": "fp32", "n_actors": n_actors, "actor_id": actor_id, "cpu_us": one}
                )
                rows.append({**rows[-1], "precision": "int8", "cpu_us": 50.0 - n_actors})
    slowdown = contention.slowdown(pd.DataFrame(rows))
    assert slowdown["fp32", 2] == pytest.approx((1.25 * 1.1 * 1.5) ** (1 / 3))  # the geometric mean
    assert slowdown["fp32", 1] == 1.0
    assert slowdown["int8", 2] == 1.0  # 48 / 49: noise


@pytest.mark.slow
def test_actors_side_by_side():
    table = contention.measure(CONFIGS, counts=[2], rounds=3, seconds=0.05)
    blocks = table.groupby(["round", "precision", "n_actors"]).actor_id.agg(list)
    assert len(blocks) == 3 * 2 * 2
    assert blocks.xs(1, level="n_actors").map(len).eq(1).all()
    assert blocks.xs(2, level="n_actors").map(lambda ids: ids == [0, 1]).all()
    # Blocks end by the clock, and a step's CPU time is this thread's: the two multiply to at most a block.
    busy_s = table.steps * table.cpu_us / 1e6
    assert (busy_s > 0).all()
    assert busy_s.median() < 0.06
    assert set(contention.slowdown(table).index) == {(name, count) for name in ("fp32", "int8") for count in (1, 2)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"counts": []}, r"counts=\[\]"),
        ({"counts": [1, 0]}, r"counts=\[1, 0\]"),
        ({"rounds": 0}, "rounds=0"),
        ({"seconds": 0.0}, "seconds=0.0"),
    ],
)
def test_bad_arguments_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        contention.measure(CONFIGS, **{"counts": [1], "rounds": 1, **changes})
