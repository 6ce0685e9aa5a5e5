"""The agents of a study: which are asked for, which can be loaded, and why the others cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quarl_lib.sb3 import SHIPPED_AGENTS, Agent, AgentError, AgentFile, find_agents, load_agent


@dataclass(frozen=True)
class Failure:
    """An agent that cannot be loaded, and the reason."""

    file: AgentFile
    reason: str


def choose_agents(
    agents_dir: str, algorithms: Sequence[str], env_ids: Sequence[str]
) -> tuple[list[tuple[AgentFile, Agent]], list[Failure]]:
    """Load the agents of a folder ("" means those in the package), filtered by name; an empty filter lets all pass.

    Raises:
        ValueError: the folder holds no agent, or the filters leave none.
    """
    folder = agents_dir or SHIPPED_AGENTS
    files = find_agents(folder, algorithms or None, env_ids or None)
    if not files:
        known = ", ".join(sorted(file.name for file in find_agents(folder)))
        raise ValueError(
            f"algorithms={list(algorithms)} and env_ids={list(env_ids)} leave no agent of {folder}; it has {known}"
        )
    loaded, failures = [], []
    for file in files:
        try:
            loaded.append((file, load_agent(file)))
        except AgentError as error:
            failures.append(Failure(file, str(error)))
    return loaded, failures
