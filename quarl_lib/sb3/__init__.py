"""Trained agents: find, load, evaluate and train them, and turn them into what an inference engine runs."""

from quarl_lib.sb3.agents import SHIPPED_AGENTS, Agent, AgentFile, find_agents, load_agent
from quarl_lib.sb3.archive import AgentError
from quarl_lib.sb3.evaluate import evaluate, rollout
from quarl_lib.sb3.policy import ActingPolicy

__all__ = [
    "SHIPPED_AGENTS",
    "ActingPolicy",
    "Agent",
    "AgentError",
    "AgentFile",
    "evaluate",
    "find_agents",
    "load_agent",
    "rollout",
]
