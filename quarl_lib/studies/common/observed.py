"""An agent with what it sees: observations to calibrate a quantizer on, and others to compare policies on."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch

from quarl_lib.sb3 import Agent, AgentFile, load_agent, rollout

# Ranges are set, and divergences measured, on episodes that none of the evaluated ones repeats.
CALIBRATION_SEED, STATES_SEED = 10_000_000, 20_000_000
BATCH = 500


@lru_cache(maxsize=1)  # the frames of one Atari agent fill half a gigabyte
def prepare(
    file: AgentFile, calibration_steps: int, states: int, seed: int
) -> tuple[Agent, torch.Tensor, torch.Tensor]:
    """Load an agent with the observations that calibrate it and, apart from them, the states to compare policies on."""
    agent = load_agent(file)
    calibration = rollout(agent, agent.policy, calibration_steps, CALIBRATION_SEED + seed)
    compared = rollout(agent, agent.policy, states, STATES_SEED + seed)
    return agent, torch.from_numpy(calibration), torch.from_numpy(compared)


@torch.no_grad()
def in_batches(function: Callable[[torch.Tensor], torch.Tensor], states: torch.Tensor) -> torch.Tensor:
    """Return `function(states)` computed a batch at a time, as convolutions over thousands of frames need."""
    return torch.cat([function(batch) for batch in states.split(BATCH)])
