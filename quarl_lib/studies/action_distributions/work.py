"""How much the study of actions has to do: states that every agent meets."""

from __future__ import annotations

from quarl_lib.studies.action_distributions.study import Config
from quarl_lib.studies.common.agents import expected_agents
from quarl_lib.studies.common.work import Account, Measured, Work, core_seconds


def account(config: Config, finished: Measured | None) -> Account:
    """Return the states of every agent, and the seconds of a state in a finished run, alike for its agents."""
    files, training = expected_agents(
        config.agents_dir, config.algorithms, config.env_ids, config.retrain, config.import_modules, config.run_pickles
    )
    cells = [Work(f"{file.algorithm}/{file.env_id}", config.steps + config.calibration_steps) for file in files]
    left_out = f"training {training}" if training else ""
    if finished is None:
        return Account(cells, {}, "no finished run", left_out=left_out)
    shown = finished.table[finished.table.error == ""]
    agents = shown[["algorithm", "env_id", "agent"]].drop_duplicates()
    took, given = core_seconds(finished, len(agents)), finished.record["parameters"]
    if isinstance(took, str) or given["retrain"]:
        return Account(
            cells, {}, took if isinstance(took, str) else "the finished run trained its agents", left_out=left_out
        )
    per_state = took / (len(agents) * (given["steps"] + given["calibration_steps"]))
    seconds = {f"{algorithm}/{env_id}": per_state for algorithm, env_id, _ in agents.itertuples(index=False)}
    return Account(cells, seconds, "whole run over its states", per_state, left_out)
