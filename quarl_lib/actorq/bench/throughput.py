"""How fast one actor runs when nothing holds it back: several set-ups in turn, in one process, on one core.

Actor-bound by design: no learner competes for the core. A publisher on another core brings new weights for every
pull, as far as the transport lets it. Blocks of steps of all set-ups alternate, so that what slows the machine for a
while slows all of them.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from multiprocessing import Pipe
from pathlib import Path

import numpy as np
import pandas as pd

from quarl_lib import results
from quarl_lib.actorq.bench import throughput_parts
from quarl_lib.actorq.bench.setups import Setup
from quarl_lib.actorq.launch.program import Part, Program, weights_bytes
from quarl_lib.actorq.link import Link, read
from quarl_lib.actorq.weights.broadcast import SharedMemoryBroadcast

__all__ = ["Setup", "measure"]


def measure(
    setups: list[Setup],
    steps: int,
    rounds: int,
    seed: int = 0,
    progress: results.Progress = results.no_progress,
) -> pd.DataFrame:
    """Run `rounds` blocks of `steps` actor steps of every set-up in turn, after one block each that is not kept.

    Returns:
        One row per set-up, round and stage: the set-up's columns, `round`, `steps`, `stage`, `seconds`; and, the same
        for all stages of a block, `wall_s`, `cpu_s`, `payload_bytes` (of one message), `messages`, `pulls`. The
        stage "other" is what no stage holds.

    Raises:
        ValueError: no set-ups, or blocks in which a set-up would never pull.
        local.RunFailed: a process died.
    """
    from quarl_lib.actorq.launch import local

    if not setups:
        raise ValueError("setups=[]: give at least one")
    longest = max(setup.update_period for setup in setups)
    if steps < longest:
        raise ValueError(f"steps={steps}: a block must hold at least one pull; give {longest} or more")
    if rounds < 1:
        raise ValueError(f"rounds={rounds}: give at least 1")
    rng = np.random.default_rng(seed)
    order = [int(i) for _ in range(rounds + 1) for i in rng.permutation(len(setups))]
    broadcasts = [_broadcast(setup) for setup in setups]
    ours, theirs = Pipe()
    local.warm_up()
    with tempfile.TemporaryDirectory(prefix="quarl-") as directory:
        link = Link(Path(directory), 1)
        parts = (
            Part("publisher", throughput_parts.publish, (setups, broadcasts, seed, theirs, link)),
            Part("actor", throughput_parts.act, (setups, broadcasts, seed, ours, link, order, steps), ends_run=True),
        )
        with local.signals_as_exceptions():
            local.supervise(Program(parts, link, len(order) * steps, "actor steps"), progress)
        blocks = read(link.directory, "blocks")
    table = pd.DataFrame([asdict(setup) for setup in setups]).drop(columns="hidden")
    table["hidden"] = ["x".join(map(str, setup.hidden)) for setup in setups]
    return blocks[blocks["round"] > 0].merge(table, left_on="setup", right_index=True).reset_index(drop=True)


def _broadcast(setup: Setup) -> SharedMemoryBroadcast | None:
    if setup.transport != "shared_memory":
        return None
    return SharedMemoryBroadcast(weights_bytes(setup.config()), num_readers=1)
