"""How much the PTQ study has to do: episodes of every agent in every cell."""

from __future__ import annotations

from quarl_lib.studies.common.agents import expected_agents
from quarl_lib.studies.common.work import Account, Measured, Work, core_seconds
from quarl_lib.studies.ptq_study.study import Config, tasks_of


def account(config: Config, finished: Measured | None) -> Account:
    """Return the episodes of every cell, and the seconds of an episode of each agent in a finished run.

    A step of the environment takes as long with every agent: the run's whole time over all steps that it played.
    """
    files, training = expected_agents(
        config.agents_dir, config.algorithms, config.env_ids, config.retrain, config.import_modules, config.run_pickles
    )
    tasks = tasks_of(files, config)
    cells = [Work(f"{task.file.algorithm}/{task.file.env_id}", task.episodes) for task in tasks]
    left_out = f"training {training}" if training else ""
    if finished is None:
        return Account(cells, {}, "no finished run", left_out=left_out)
    played = finished.table[finished.table.error == ""]
    named = played.groupby(["algorithm", "env_id", "agent", "precision", "quantizer", "observation", "engine",
                            "disturbance"], dropna=False)  # fmt: skip
    took = core_seconds(finished, named.ngroups)
    if isinstance(took, str) or finished.record["parameters"]["retrain"]:
        return Account(
            cells, {}, took if isinstance(took, str) else "the finished run trained its agents", left_out=left_out
        )
    per_step = took / played.episode_length.sum()
    lengths = played.groupby(["algorithm", "env_id"]).episode_length.mean()
    seconds = {"/".join(key): float(length) * per_step for key, length in lengths.items()}
    return Account(cells, seconds, "whole run over its environment steps", took / len(played), left_out)
