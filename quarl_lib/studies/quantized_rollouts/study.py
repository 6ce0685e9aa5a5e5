"""How much faster does one's own Stable-Baselines3 training get with an engine in its rollouts, and does it learn?"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pandas as pd

from quarl_lib import metrics
from quarl_lib.inference import PRECISIONS
from quarl_lib.results import Progress, no_progress
from quarl_lib.sb3.rollouts.corrections import CORRECTIONS
from quarl_lib.studies.common.checks import check_each_once
from quarl_lib.studies.common.pool import map_tasks
from quarl_lib.studies.quantized_rollouts.cells import (
    PLAIN,
    RolloutRecipe,
    TrainingTask,
    Variant,
    measure,
    watts_per_core,
)

RECIPE = ["algorithm", "env_id", "n_envs", "hidden"]
CELL = [*RECIPE, "precision", "correction"]
SUMMARY_COLUMNS = (
    *RECIPE, "precision", "correction", "seeds", "actor_steps", "seconds", "speedup", "speedup_low", "speedup_high",
    "inference_share", "limit_speedup", "mean_return", "return_range", "paired_difference", "paired_ci_low",
    "paired_ci_high", "learns_alike", "tells_a_fifth", "energy_kwh",
)  # fmt: skip
TAIL = 0.25  # of a training: its episodes' mean is the final return
TELLING = 0.2  # of the range of returns: a loss that the interval must be able to show


@dataclass(frozen=True)
class Config:
    """Parameters of the study; the defaults are those of the smoke preset."""

    # algorithm/environment/steps/environments/widths, and the number of seeds where not all
    recipes: list[str] = field(default_factory=lambda: ["PPO/CartPole-v1/2048/1/64-64", "A2C/CartPole-v1/1000/1/64-64"])
    precisions: list[str] = field(default_factory=lambda: ["plain", "fp32", "int8"])
    corrections: list[str] = field(default_factory=lambda: ["behaviour", "none"])
    seeds: list[int] = field(default_factory=lambda: [0, 1])
    cpu_watts: float = 100.0
    workers: int = 0

    def __post_init__(self) -> None:
        for name in ("recipes", "precisions", "corrections", "seeds"):
            check_each_once(name, getattr(self, name))
        for text in self.recipes:
            RolloutRecipe.parse(text)
        if PLAIN not in self.precisions or len(self.precisions) < 2:
            raise ValueError(
                f"precisions={self.precisions}: leave {PLAIN} in, every ratio is taken to it, and an engine's beside it"
            )
        for precision in self.precisions:
            if precision not in (PLAIN, *PRECISIONS):
                raise ValueError(f"precisions={precision!r}: choose {PLAIN}, {', '.join(PRECISIONS)}")
        if "behaviour" not in self.corrections:
            raise ValueError(f"corrections={self.corrections}: leave behaviour in, it is what the library does")
        for correction in self.corrections:
            if correction not in CORRECTIONS:
                raise ValueError(f"corrections={correction!r}: choose among {', '.join(CORRECTIONS)}")
        if not (math.isfinite(self.cpu_watts) and self.cpu_watts > 0):
            raise ValueError(f"cpu_watts={self.cpu_watts}: give a positive number")
        if self.workers < 0:
            raise ValueError(f"workers={self.workers}: give at least 0")


def variants_of(config: Config, recipe: RolloutRecipe) -> tuple[Variant, ...]:
    """Return how a recipe's rollouts act; corrections other than the library's only where they show most.

    That is on A2C and PPO at the coarsest precision, and importance weights on A2C, whose loss has no ratio.
    """
    engines = sorted((p for p in config.precisions if p != PLAIN), key=PRECISIONS.index)
    variants = [Variant(PLAIN, "behaviour"), *(Variant(precision, "behaviour") for precision in engines)]
    for correction in config.corrections:
        fits = recipe.algorithm == "A2C" if correction == "truncated" else recipe.algorithm == "PPO"
        if correction != "behaviour" and fits and engines:
            variants.append(Variant(engines[-1], correction))
    return tuple(variants)


def run(config: Config, progress: Progress = no_progress) -> pd.DataFrame:
    """Train every recipe and seed, all variants of one in turns on one core.

    Returns:
        One row per training (`record` "training": seconds, energy) and per episode ("episode": step and return).
    """
    tasks: list[TrainingTask] = []
    watts = watts_per_core(config.cpu_watts)
    for text in config.recipes:
        recipe = RolloutRecipe.parse(text)
        for seed in config.seeds[: recipe.seeds or None]:
            tasks.append(TrainingTask(recipe, variants_of(config, recipe), seed, watts))
    tables = map_tasks(measure, tasks, config.workers, progress, lambda task: f"{task.recipe.name}, seed {task.seed}")
    return pd.concat(tables, ignore_index=True)


def final_returns(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per training: `final_return`, the mean over episodes that ended in the last quarter of its steps.

    A training without such an episode gives its last one's return.
    """
    keys = [*CELL, "seed"]

    def final(episodes: pd.DataFrame) -> float:
        late = episodes[episodes.step > (1 - TAIL) * episodes.actor_steps]
        return float((late if len(late) else episodes.tail(1)).episode_return.mean())

    episodes = table[table.record == "episode"]
    return episodes.groupby(keys, sort=False).apply(final).rename("final_return").reset_index()


def summarize(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per recipe, precision and correction: time, its ratio to plain, and the paired final return.

    Speed-ups are geometric means over seeds of plain's processor time over the variant's, differences of final returns
    are paired by seed; both with 95 % intervals. `learns_alike`: that of the difference holds 0, which one cell in
    twenty misses by chance. `tells_a_fifth`: it would not, had a fifth of the returns' range been lost; the range goes
    from the recipe's worst episode to the best variant's final return.
    """
    trainings = table[table.record == "training"].merge(
        final_returns(table), on=[*RECIPE, "precision", "correction", "seed"]
    )
    cells = trainings.groupby(CELL, sort=False)
    rows = []
    for key, cell in cells:
        recipe = dict(zip(RECIPE, key, strict=False))
        own = (trainings[RECIPE] == pd.Series(recipe)).all(axis=1)
        plain = trainings[own & (trainings.precision == PLAIN)].set_index("seed").loc[cell.seed]
        share = float(plain.inference_share.mean())
        best = trainings[own].groupby(["precision", "correction"]).final_return.mean().max()
        span = float(best - table[(table[RECIPE] == pd.Series(recipe)).all(axis=1)].episode_return.min())
        row = {
            **recipe,
            "precision": key[-2],
            "correction": key[-1],
            "seeds": len(cell),
            "actor_steps": cell.actor_steps.iloc[0],
            "seconds": cell.seconds.mean(),
            "inference_share": share,
            "limit_speedup": 1 / (1 - share),
            "mean_return": cell.final_return.mean(),
            "return_range": span,
            "energy_kwh": cell.energy_kwh.mean(),
        }
        if key[-2] != PLAIN:
            ratio = metrics.paired_ratio(plain.seconds, cell.seconds)
            change = metrics.paired_difference(cell.final_return, plain.final_return)
            row |= {"speedup": ratio.estimate, "speedup_low": ratio.low, "speedup_high": ratio.high}
            row |= {"paired_difference": change.estimate, "paired_ci_low": change.low, "paired_ci_high": change.high}
            known = not math.isnan(change.low)
            row["learns_alike"] = known and change.low <= 0 <= change.high
            row["tells_a_fifth"] = known and change.high - change.estimate < TELLING * span
        else:
            row |= {"speedup": 1.0, "learns_alike": True, "tells_a_fifth": True, "paired_difference": 0.0}
        rows.append(row)
    return pd.DataFrame(rows).reindex(columns=list(SUMMARY_COLUMNS))
