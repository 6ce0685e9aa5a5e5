"""How much the study of engines has to do: timed blocks of every policy."""

from __future__ import annotations

from typing import Any

from quarl_lib.studies.common.work import Account, Measured, Work
from quarl_lib.studies.inference_engines.study import Config


def account(config: Config, finished: Measured | None) -> Account:
    """Return the blocks of every policy in milliseconds, and the seconds of a finished run for one of them."""
    cells = [Work("block", _milliseconds(config)) for _ in config.policies]
    if finished is None:
        return Account(cells, {}, "no finished run", one_machine=True)
    given: dict[str, Any] = finished.record["parameters"]
    done = Config(**given)
    seconds = {"block": float(finished.record["duration_s"]) / (_milliseconds(done) * len(done.policies))}
    return Account(cells, seconds, "whole run over its timed blocks", one_machine=True)


def _milliseconds(config: Config) -> float:
    """Return what a policy's blocks take on one engine: hot, cold, and each batch."""
    batches = len(config.batch_sizes) - 1
    return 2 * config.schedule.rounds * config.block_ms + batches * config.batch_schedule.rounds * config.block_ms / 2
