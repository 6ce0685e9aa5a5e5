"""Transitions and counts between the rings of two machines."""

from __future__ import annotations

import numpy as np
import pytest
from test_local_replay import CONFIG, SPEC, write

from quarl_lib.actorq.link import Stopped
from quarl_lib.actorq.replay import local, relay


def test_transitions_of_another_machine_arrive_whole_in_order_and_once():
    config = CONFIG.replace(max_replay=10)
    here, there = local.Memory(config, SPEC, 2), local.Memory(config, SPEC, 2)
    relay.begin_at(there, 1, 3)  # its predecessor, on a machine that was lost, had written three
    relay.begin_at(here, 1, 3)
    adder = local.LocalAdder(config, there, SPEC, 1)
    handed = 3
    for values in ([1, 2], [], [3, 4, 5]):
        write(adder, values)
        vectors = relay.inserted_since(there, 1, handed)
        assert vectors[:, 0].tolist() == values
        relay.extend(here, 1, vectors)
        handed += len(vectors)
    assert relay.inserted_by(here, 1) == 8
    assert sorted(here.rings()[1, :, 0].tolist()) == [1, 2, 3, 4, 5]  # a ring of five, its slots 3, 4, 0, 1, 2
    assert here.rings()[1, 3:, 0].tolist() == [1, 2]


def test_transitions_that_were_overwritten_before_they_were_fetched_are_an_error():
    memory = local.Memory(CONFIG.replace(max_replay=5), SPEC, 1)
    write(local.LocalAdder(CONFIG, memory, SPEC, 0), range(6))
    with pytest.raises(BufferError, match="6 transitions waited in a ring of 5"):
        relay.inserted_since(memory, 0, 0)
    assert relay.inserted_since(memory, 0, 1)[:, 0].tolist() == [1, 2, 3, 4, 5]


def test_the_ratio_is_held_over_all_machines():
    config = CONFIG.replace(samples_per_insert=2.0, min_replay=4, error_buffer=8.0)
    here, there = (local.Memory(config, SPEC, 2) for _ in range(2))
    write(local.LocalAdder(config, here, SPEC, 0), range(6))
    relay.mirror(there, np.array(here.counts()), but={1})
    adder = local.LocalAdder(config, there, SPEC, 1, should_stop=lambda: True)
    # 2 a transition, nothing sampled, 2 * 4 + 8 in the middle and buffer: eight fit, and six are there.
    with pytest.raises(Stopped):
        write(adder, range(10))
    assert relay.inserted_by(there, 1) == 2
    here.counts()[local.SAMPLED] = 6
    relay.mirror(there, np.array(here.counts()), but={1})
    with pytest.raises(Stopped):
        write(adder, range(10))
    assert relay.inserted_by(there, 1) == 5
