"""Trained agents: find, load, evaluate and train them, and turn them into what an inference engine runs."""

import sys
from types import ModuleType
from typing import Any

from quarl_lib.sb3.agents import SHIPPED_AGENTS, Agent, load_agent
from quarl_lib.sb3.archive import AgentError
from quarl_lib.sb3.episodes import evaluate, met_observations, rollout
from quarl_lib.sb3.folders import AgentFile, content_hash, find_agents, folders_without_agent
from quarl_lib.sb3.policy import ActingPolicy

# Stable-Baselines3 imports TensorBoard, which would import TensorFlow (4 s, 500 MB) wherever that is installed.
# TensorBoard looks for a module of this name first and then makes do with a stub.
sys.modules.setdefault("tensorboard.compat.notf", ModuleType("tensorboard.compat.notf"))


def __getattr__(name: str) -> Any:
    if name == "fine_tune":  # imports Stable-Baselines3, which loading does without
        from quarl_lib.sb3.tuning import fine_tune

        return fine_tune
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "SHIPPED_AGENTS",
    "ActingPolicy",
    "Agent",
    "AgentError",
    "AgentFile",
    "content_hash",
    "evaluate",
    "find_agents",
    "fine_tune",
    "folders_without_agent",
    "load_agent",
    "met_observations",
    "rollout",
]
