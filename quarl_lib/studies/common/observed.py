"""An agent with what it sees: observations to calibrate a quantizer on, and others to compare policies on."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from quarl_lib.sb3 import Agent, AgentError, AgentFile, load_agent, met_observations, rollout
from quarl_lib.studies.common.agents import Failure

# Ranges are set, and divergences measured, on episodes that none of the evaluated ones repeats.
CALIBRATION_SEED, STATES_SEED = 10_000_000, 20_000_000
BATCH = 500


class Observed(NamedTuple):
    """A loaded agent, normalised observations [n, ...] to calibrate on, and others [m, ...] to compare policies on.

    `deviations` [...] are those of the environment's own observations, feature by feature, on the first of the two.
    """

    agent: Agent
    calibration: torch.Tensor
    states: torch.Tensor
    deviations: np.ndarray


@lru_cache(maxsize=1)  # the frames of one Atari agent fill half a gigabyte
def prepare(file: AgentFile, calibration_steps: int, states: int, seed: int) -> Observed | Failure:
    """Load an agent and let it play for its observations, once for all cells of it that a process measures in a row.

    An agent that cannot be loaded, or whose environment fails, is a Failure with the reason.
    """
    try:
        agent = load_agent(file)
        met = met_observations(agent, agent.policy, calibration_steps, CALIBRATION_SEED + seed)
        calibration = agent.normalize(met)
        compared = rollout(agent, agent.policy, states, STATES_SEED + seed)
    except AgentError as error:
        return Failure(file.algorithm, file.env_id, file.name, str(error))
    except Exception as error:  # an environment of the user's own raises what it likes; one agent is not the study
        return Failure(file.algorithm, file.env_id, file.name, f"{type(error).__name__}: {error}")
    return Observed(agent, torch.from_numpy(calibration), torch.from_numpy(compared), _deviations(met))


def _deviations(observations: np.ndarray) -> np.ndarray:
    # float64 of thousands of frames would fill a gigabyte, and bytes do not need it.
    return observations.std(axis=0, dtype=np.float32 if observations.dtype == np.uint8 else np.float64)


@torch.no_grad()
def in_batches(function: Callable[[torch.Tensor], torch.Tensor], states: torch.Tensor) -> torch.Tensor:
    """Return `function(states)` computed a batch at a time, as convolutions over thousands of frames need."""
    return torch.cat([function(batch) for batch in states.split(BATCH)])
