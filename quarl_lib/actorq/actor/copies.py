"""An actor that plays several copies of its environment: one engine call, one batched insert a step of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from quarl_lib.actorq.replay.batched import BatchedNStep
from quarl_lib.actorq.timing import StageTimer
from quarl_lib.envs.vectorized import FIRST, LAST, Copies


class Writer(Protocol):
    """What writes transitions, several at once."""

    def write(self, vectors: np.ndarray) -> None:
        """Write transitions, float32 [m, size]."""


def play(
    copies: Copies,
    select_actions: Callable[[np.ndarray], np.ndarray],
    transitions: BatchedNStep,
    writer: Writer,
    timer: StageTimer,
    after_steps: Callable[[int], bool],
    after_episode: Callable[[float, int], None],
) -> None:
    """Play episodes in every copy until `after_steps`, told how many steps were taken, says not to go on.

    `after_episode` is told the return and the steps of each that was played to its end.
    """
    timesteps = copies.reset()
    timer.lap("env_step")
    transitions.first(timesteps)
    returns = np.zeros(len(timesteps.reward))
    lengths = [0] * len(returns)
    timer.lap("observe")
    going_on = True
    while going_on:
        actions = select_actions(timesteps.observation)
        timer.lap("select_action")
        timesteps = copies.step(actions)
        timer.lap("env_step")
        writer.write(transitions.step(actions, timesteps))
        timer.lap("observe")
        returns += timesteps.reward
        taken = 0
        for copy, kind in enumerate(timesteps.step_type.tolist()):
            if kind == FIRST:
                continue
            taken += 1
            lengths[copy] += 1
            if kind == LAST:
                after_episode(float(returns[copy]), lengths[copy])
                returns[copy], lengths[copy] = 0.0, 0
        going_on = after_steps(taken)
