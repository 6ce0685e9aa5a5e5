"""Say of every agent in a folder what it is and what can run it, or why not."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from quarl_lib.inference.engines import BACKENDS, unsupported
from quarl_lib.inference.spec import PRECISIONS, PolicySpec
from quarl_lib.sb3.agents import Agent, load_agent
from quarl_lib.sb3.archive import AgentError
from quarl_lib.sb3.folders import AgentFile, find_agents, folders_without_agent
from quarl_lib.sb3.spec import agent_spec

KEYS = ("name", "algorithm", "env_id", "trained_on", "observation_space", "action_space", "normalization", "parameters",
        "actions", "engines", "warning", "refused")  # fmt: skip

SHORT = ("agent", "played in", "observations", "actions", "statistics", "parameters", "runs on")
SIMULATION = "simulation only"
_BOX = re.compile(r"Box\(.*?, (\([\d, ]*\)), (\w+)\)", re.DOTALL)


def describe_agents(
    agents_dir: str | Path, import_modules: tuple[str, ...] = (), run_pickles: bool = False
) -> list[dict[str, Any]]:
    """Return one dictionary an agent, its keys `KEYS`; `refused` is None or the reason.

    Raises:
        ValueError: the folder is missing, or holds no agent at all.
    """
    files = find_agents(agents_dir, import_modules=import_modules, run_pickles=run_pickles)
    rows = [_row(file) for file in files]
    for name in folders_without_agent(agents_dir):
        reason = "the folder holds no archive and no actor.npz"
        algorithm, _, env_id = name.partition("/")
        rows.append(dict.fromkeys(KEYS) | {"name": name, "algorithm": algorithm.upper(), "env_id": env_id or name,
                                           "refused": reason})  # fmt: skip
    return rows


def in_short(rows: list[dict[str, Any]]) -> tuple[list[dict[str, str]], list[str]]:
    """Return texts for a table of columns `SHORT`, and what its numbers in "runs on" mean.

    An agent's name tells its algorithm and environment; where that has another name today, it stands in "played in".
    Why an agent is refused, and what is said of it beside the columns, stands in `note`.
    """
    short: list[dict[str, str]] = []
    engines: list[str] = []
    for row in rows:
        if row["refused"]:
            short.append({"agent": row["name"], "note": f"refused: {row['refused']}"})
            continue
        alone, _, reason = row["engines"].partition(f"{SIMULATION}: ")
        if alone and alone not in engines:
            engines.append(alone)
        today = "" if row["trained_on"] == row["env_id"] else row["env_id"]
        values = (
            row["name"], today, _space(row["observation_space"]), _space(row["action_space"]),
            row["normalization"], f"{row['parameters']:,}", f"[{engines.index(alone) + 1}]" if alone else SIMULATION,
        )  # fmt: skip
        note = "; ".join(text for text in (row["warning"], reason.removeprefix(f"{row['name']}: ")) if text)
        short.append({**dict(zip(SHORT, values, strict=True)), "note": note})
    return short, [f"[{number}] {engine}" for number, engine in enumerate(engines, 1)]


def _space(text: str) -> str:
    """Leave out a space's bounds, and its type where that is float32."""
    return _BOX.sub(lambda box: f"Box{box[1]}" + ("" if box[2] == "float32" else f" {box[2]}"), text)


def _row(file: AgentFile) -> dict[str, Any]:
    row = dict.fromkeys(KEYS) | {"name": file.name, "algorithm": file.algorithm, "env_id": file.env_id}
    try:
        agent = load_agent(file)
        env = agent.make_env()
        action_space = str(env.action_space)
        env.close()
    except AgentError as error:
        return row | {"refused": str(error)}
    except Exception as error:  # an environment of the user's own raises what it likes
        return row | {"refused": f"{file.env_id} cannot be made: {type(error).__name__}: {error}"}
    return row | {
        "env_id": agent.env_id,
        "trained_on": agent.trained_on or agent.env_id,
        "observation_space": str(agent.flat or agent.observation_space),
        "action_space": action_space,
        "normalization": agent.statistics,
        "parameters": sum(math.prod(weight.shape) for weight in agent.policy.parameters()),
        "actions": "deterministic",
        "engines": _engines(agent),
        "warning": agent.warning,
    }


def _engines(agent: Agent) -> str:
    """Say which precisions each engine runs, or why none takes the agent."""
    try:
        spec, _ = agent_spec(agent)
    except ValueError as error:
        return f"{SIMULATION}: {error}"
    able = {backend: _precisions(spec, backend) for backend in BACKENDS}
    return "; ".join(f"{backend} {' '.join(names)}" for backend, names in able.items() if names)


def _precisions(spec: PolicySpec, backend: str) -> list[str]:
    return [precision for precision in PRECISIONS if unsupported(spec, precision, backend) is None]
