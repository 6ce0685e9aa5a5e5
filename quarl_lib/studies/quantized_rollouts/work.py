"""How much the study of rollouts has to do: environment steps of every training, in all its variants."""

from __future__ import annotations

from quarl_lib.studies.common.work import Account, Measured, Work
from quarl_lib.studies.quantized_rollouts.cells import RolloutRecipe
from quarl_lib.studies.quantized_rollouts.study import RECIPE, Config, variants_of


def account(config: Config, finished: Measured | None) -> Account:
    """Return the steps of every recipe and seed, and a step's processor time in a finished run."""
    cells = []
    for recipe in map(RolloutRecipe.parse, config.recipes):
        kind = "/".join(str(getattr(recipe, name)) for name in RECIPE)
        steps = recipe.actor_steps * len(variants_of(config, recipe))
        cells += [Work(kind, steps) for _ in config.seeds[: recipe.seeds or None]]
    if finished is None:
        return Account(cells, {}, "no finished run")
    done = finished.table[finished.table.record == "training"]
    of_kind = done.groupby(RECIPE)[["seconds", "actor_steps"]].sum()
    seconds = {"/".join(map(str, key)): float(row.seconds / row.actor_steps) for key, row in of_kind.iterrows()}  # type: ignore[arg-type]
    mean = float(of_kind.seconds.sum() / of_kind.actor_steps.sum())
    return Account(cells, seconds, "processor time of the finished run's trainings, by environment steps", mean)
