"""The profile: which calls count, and a tiny one that the virtual clock takes."""

from __future__ import annotations

import numpy as np
import pytest

from quarl_lib.actorq.bench import profile
from quarl_lib.actorq.config import Config
from quarl_lib.actorq.launch.costs import CostTable


def test_calls_that_something_interrupted_are_left_out():
    microseconds = [10.0] * 90 + [12.0] * 8 + [500.0, 90_000.0]
    kept = profile.undisturbed([us * 1e-6 for us in microseconds])
    assert len(kept) == profile.KEPT
    assert kept[:7] == [10.0] * 7
    assert kept[7] == pytest.approx((4 * 10 + 8 * 12) / 12, abs=0.01)  # an eighth of the 98 that count
    assert profile.undisturbed([]) == [0.0]
    assert profile.undisturbed([3e-6, 4e-6]) == [3.0, 4.0]


def test_waiting_for_a_server_is_part_of_the_cost():
    """One insert in eight waits; one of those was interrupted."""
    microseconds = [10.0] * 140 + [400.0] * 19 + [90_000.0]
    kept = profile.undisturbed([us * 1e-6 for us in microseconds], waiting=True)
    assert np.mean(kept) == pytest.approx(np.mean(microseconds[:-1]), rel=0.05)
    assert profile.undisturbed([10e-6] * 16, waiting=True) == [10.0] * 8


@pytest.mark.slow
def test_a_tiny_profile_is_a_table():
    config = Config(task="gym:CartPole-v0", algorithm="dqn", replay="local", policy_hidden=(8,), batch_size=16)
    measured = profile.measure("here", ["gym:CartPole-v0"], (8, 8), ["fp32", "int8"], config, ("packed",), steps=100)
    rng = np.random.default_rng(0)
    for precision in ("fp32", "int8"):
        costs = CostTable(**measured).of(config.replace(precision=precision))
        for stage in ("env_step", "select_action", "observe", "pull", "load_weights", "sample", "learner_step",
                      "quantize", "broadcast"):  # fmt: skip
            assert 0 < costs[stage](rng, 0) < 1.0, stage
        assert costs["deserialize"](rng, 0) == 0
