"""The agents of a study: which are asked for, and why one cannot be trained or loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quarl_lib.envs.gym import current_name
from quarl_lib.results import PROJECT, Progress, no_progress
from quarl_lib.sb3 import SHIPPED_AGENTS, AgentFile, find_agents, folders_without_agent
from quarl_lib.sb3.recipes import RECIPES, SHIPPED

RETRAINED_AGENTS = PROJECT / "outputs" / "agents"


@dataclass(frozen=True)
class Failure:
    """An agent that cannot be loaded or trained, and the reason."""

    algorithm: str
    env_id: str
    name: str
    reason: str

    def row(self) -> dict[str, str]:
        """Return what stands for the agent in a study's table: no precision, no quantizer, the reason in `error`."""
        return {
            "algorithm": self.algorithm,
            "env_id": self.env_id,
            "agent": self.name,
            "precision": "none",
            "quantizer": "none",
            "observation": "none",
            "error": self.reason,
        }


def choose_agents(
    agents_dir: str,
    algorithms: Sequence[str],
    env_ids: Sequence[str],
    retrain: bool = False,
    seed: int = 0,
    progress: Progress = no_progress,
    import_modules: Sequence[str] = (),
    run_pickles: bool = False,
) -> tuple[list[AgentFile], list[Failure]]:
    """List the agents of a folder ("": those in the package), filtered by name; an empty filter lets all pass.

    Nothing is loaded here: whoever measures an agent does so, and `observed.prepare` has the reason if that fails.
    `retrain` first trains by recipe into the folder ("": outputs/agents), keeping agents that stand there finished:
    every recipe of the algorithms and environments named, or those of the agents in the package.

    Raises:
        ValueError: the folder holds no agent, or the filters leave none.
    """
    failures = []
    if retrain:
        folder = Path(agents_dir) if agents_dir else RETRAINED_AGENTS
        failures = _train(folder, algorithms, env_ids, seed, progress)
        if failures and not any(folder.glob("*/*/")):
            return [], failures
    else:
        folder = Path(agents_dir) if agents_dir else SHIPPED_AGENTS
    files = find_agents(folder, algorithms or None, env_ids or None, import_modules, run_pickles)
    failures += [
        Failure(name.split("/")[0].upper(), name.split("/")[-1], name, "the folder holds no archive and no actor.npz")
        for name in (folders_without_agent(folder) if not (algorithms or env_ids) else [])
    ]
    if not files and not failures:
        known = ", ".join(sorted(file.name for file in find_agents(folder)))
        raise ValueError(
            f"algorithms={list(algorithms)} and env_ids={list(env_ids)} leave no agent of {folder}; it has {known}"
        )
    return files, failures


def expected_agents(
    agents_dir: str,
    algorithms: Sequence[str],
    env_ids: Sequence[str],
    retrain: bool,
    import_modules: Sequence[str] = (),
    run_pickles: bool = False,
) -> tuple[list[AgentFile], str]:
    """Return the agents that `choose_agents` would, training none, and in words what would be trained first.

    Raises:
        ValueError: the folder holds no agent.
    """
    if not retrain:
        return choose_agents(
            agents_dir, algorithms, env_ids, import_modules=import_modules, run_pickles=run_pickles
        )[0], ""  # fmt: skip
    if algorithms and env_ids:
        wanted = {(algorithm.upper(), current_name(env_id)) for algorithm in algorithms for env_id in env_ids}
    else:
        wanted = {(a, e) for a, e in SHIPPED if (not algorithms or a in algorithms) and (not env_ids or e in env_ids)}
    recipes = [recipe for key, recipe in RECIPES.items() if key in wanted]
    folder = Path(agents_dir) if agents_dir else RETRAINED_AGENTS
    files = [
        AgentFile(one.algorithm, one.env_id, folder / one.algorithm.lower() / one.env_id / f"{one.env_id}.zip", "sb3")
        for one in recipes
    ]
    return files, f"{len(recipes)} agents for {sum(one.total_steps for one in recipes):,} steps"


def _train(
    folder: Path, algorithms: Sequence[str], env_ids: Sequence[str], seed: int, progress: Progress
) -> list[Failure]:
    from quarl_lib.sb3.train import train_agents  # imports Stable-Baselines3, which loading does without

    if algorithms and env_ids:
        jobs = [(list(algorithms), list(env_ids))]
    else:
        shipped = [(a, e) for a, e in SHIPPED if (not algorithms or a in algorithms) and (not env_ids or e in env_ids)]
        jobs = [([algorithm], [env_id]) for algorithm, env_id in shipped]
    failures = [failure for names, envs in jobs for failure in train_agents(folder, names, envs, seed, progress)]
    return [
        Failure(
            recipe.algorithm, recipe.env_id, f"{recipe.algorithm.lower()}/{recipe.env_id}", f"not trained: {reason}"
        )
        for recipe, reason in failures
    ]
