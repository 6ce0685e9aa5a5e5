"""Transitions of copies that step together against those of each copy alone, and their way into both replays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl_lib.actorq.replay.batched import BatchedNStep
from quarl_lib.actorq.replay.transitions import NStep, TransitionLayout
from quarl_lib.envs import specs
from quarl_lib.envs.vectorized import FIRST, LAST, MID, TimeSteps

CONTINUOUS = specs.EnvironmentSpec(
    specs.Array((3,), np.float32), specs.BoundedArray((2,), np.float32, -1, 1), specs.Array((), np.float32),
    specs.BoundedArray((), np.float32, 0, 1),
)  # fmt: skip
DISCRETE = CONTINUOUS._replace(actions=specs.DiscreteArray(4))


@settings(deadline=None, max_examples=40)
@given(
    lengths=st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=6), min_size=1, max_size=4),
    n_step=st.integers(1, 6),
    spec=st.sampled_from([CONTINUOUS, DISCRETE]),
    seed=st.integers(0, 99),
)
def test_transitions_are_those_of_each_copy_alone(lengths, n_step, spec, seed):
    rng, layout, count = np.random.default_rng(seed), TransitionLayout(spec), len(lengths)
    together, alone = BatchedNStep(spec, count, n_step, 0.97), [NStep(n_step, 0.97) for _ in range(count)]
    observation = rng.normal(size=(count, 3)).astype(np.float32)
    zeros = np.zeros(count, np.float32)
    together.first(TimeSteps(np.full(count, FIRST), zeros, zeros + 1, observation))
    for copy, single in enumerate(alone):
        single.first(observation[copy])
    left = [[*of_copy, 99] for of_copy in lengths]  # steps of each episode; the last one is cut
    began = [False] * count
    for _ in range(30):
        observation = rng.normal(size=(count, 3)).astype(np.float32)
        reward, discount = rng.normal(size=count).astype(np.float32), rng.choice([0.0, 1.0], count).astype(np.float32)
        actions = rng.integers(4, size=count) if spec is DISCRETE else rng.normal(size=(count, 2)).astype(np.float32)
        kinds, expected = [], []
        for copy, single in enumerate(alone):
            if began[copy]:
                kinds.append(FIRST)
                reward[copy], discount[copy], began[copy] = 0.0, 1.0, False
                single.first(observation[copy])
                continue
            left[copy][0] -= 1
            last = left[copy][0] == 0
            kinds.append(LAST if last else MID)
            gained = float(reward[copy]), float(discount[copy])
            for o_tm1, a_tm1, r_t, d_t in single.step(actions[copy], *gained, observation[copy], last):
                expected.append(layout.pack(o_tm1, a_tm1, r_t, d_t, observation[copy]))
            if last:
                left[copy].pop(0)
                began[copy] = True
        vectors = together.step(actions, TimeSteps(np.array(kinds), reward, discount, observation))
        np.testing.assert_array_equal(vectors, np.array(expected, np.float32).reshape(-1, layout.size))


def test_a_step_before_the_first_is_refused():
    with pytest.raises(RuntimeError, match="first"):
        BatchedNStep(CONTINUOUS, 1, 2, 0.9).step(np.zeros((1, 2)), None)  # type: ignore[arg-type]
