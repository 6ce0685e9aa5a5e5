"""Trained agents: find, load, evaluate and train them, and turn them into what an inference engine runs."""

import sys
from types import ModuleType

from quarl_lib.sb3.agents import SHIPPED_AGENTS, Agent, load_agent
from quarl_lib.sb3.archive import AgentError
from quarl_lib.sb3.episodes import evaluate, rollout
from quarl_lib.sb3.folders import AgentFile, find_agents, folders_without_agent
from quarl_lib.sb3.policy import ActingPolicy

# Stable-Baselines3 imports TensorBoard, which would import TensorFlow (4 s, 500 MB) wherever that is installed.
# TensorBoard looks for a module of this name first and then makes do with a stub.
sys.modules.setdefault("tensorboard.compat.notf", ModuleType("tensorboard.compat.notf"))

__all__ = [
    "SHIPPED_AGENTS",
    "ActingPolicy",
    "Agent",
    "AgentError",
    "AgentFile",
    "evaluate",
    "find_agents",
    "folders_without_agent",
    "load_agent",
    "rollout",
]
