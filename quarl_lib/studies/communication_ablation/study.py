"""What does quantizing the weights on their way to the actors gain, beside quantizing the actors' computation?"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from quarl_lib.actorq import config as actorq
from quarl_lib.actorq.bench.setups import Setup
from quarl_lib.actorq.link import read
from quarl_lib.metrics import running_mean
from quarl_lib.results import Progress, no_progress
from quarl_lib.studies.common.blocks import SETUP_KEYS, blocks, by_setup, check_blocks, in_order, paired_speedup
from quarl_lib.studies.common.checks import check_each_once
from quarl_lib.studies.common.replays import runnable
from quarl_lib.studies.common.training import training_options

SUMMARY_COLUMNS = (
    "transport", "update_period", "compute_precision", "communication_precision", "rounds", "seconds_per_1000_steps",
    "speedup", "speedup_low", "speedup_high", "over_fp32_sent", "over_fp32_sent_low", "over_fp32_sent_high",
    "payload_bytes", "fewer_bytes", "pull_share", "pull_ms", "messages_per_pull",
)  # fmt: skip
BASELINE = "fp32/fp32"
PULL_STAGES = ["pull", "deserialize", "load_weights"]


@dataclass(frozen=True)
class Config:
    """What to combine, and the training runs of Figure 7."""

    task: str = "dm_control:cartpole:balance"
    hidden: list[int] = field(default_factory=lambda: [512, 512, 512])
    pairs: list[str] = field(default_factory=lambda: ["fp32/fp32", "fp32/int8", "int8/fp32", "int8/int8", "int4/int4"])
    transports: list[str] = field(default_factory=lambda: ["shared_memory", "reverb"])
    update_periods: list[int] = field(default_factory=lambda: [30, 300])
    steps: int = 300
    rounds: int = 2
    curve_task: str = "dm_control:cartpole:balance"
    curve_precision: str = "int8"
    curve_periods: list[int] = field(default_factory=lambda: [10, 1000])
    curve_seeds: list[int] = field(default_factory=lambda: [0])
    curve_actor_steps: int = 1200
    curve_seconds: float = 4.0
    policy_hidden: list[int] = field(default_factory=lambda: [64, 64])
    critic_hidden: list[int] = field(default_factory=lambda: [64, 64])
    n_actors: int = 2
    batch_size: int = 64
    samples_per_insert: float = 16.0
    min_replay: int = 500
    policy_learning_rate: float = 0.0003
    critic_learning_rate: float = 0.001
    publish_period: int = 5
    sigma_max: float = 0.6
    vmin: float = 0.0
    vmax: float = 100.0
    eval_period: int = 500
    eval_episodes: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("pairs", "transports", "update_periods", "curve_periods", "curve_seeds"):
            check_each_once(name, getattr(self, name))
        for pair in self.pairs:
            if pair.count("/") != 1:
                raise ValueError(f"pairs has {pair!r}: write compute/communication, such as int8/fp32")
        if BASELINE not in self.pairs:
            raise ValueError(f"pairs={self.pairs}: leave {BASELINE} in, every speedup is taken to it")
        check_blocks(self.rounds, self.steps, self.update_periods)
        setups(self)
        list(curve_options(self))


def setups(config: Config) -> list[Setup]:
    """Return every combination, each an actor that nothing holds back."""
    return [
        Setup(
            task=config.task,
            hidden=tuple(config.hidden),
            precision=pair.partition("/")[0],
            communication_precision=pair.partition("/")[2],
            transport=transport,
            update_period=period,
        )
        for transport in runnable(config.transports, "reverb")
        for period in config.update_periods
        for pair in config.pairs
    ]


def curve_options(config: Config) -> Iterator[actorq.Config]:
    """Yield the ActorQ options of every training run of Figure 7."""
    for period in config.curve_periods:
        for seed in config.curve_seeds:
            yield training_options(
                config, task=config.curve_task, seed=seed, precision=config.curve_precision, update_period=period,
                actor_steps=config.curve_actor_steps, max_seconds=config.curve_seconds,
            )  # fmt: skip


def run(config: Config, progress: Progress = no_progress) -> pd.DataFrame:
    """Measure every combination, then train with every update period.

    Returns:
        Long form, by `record`: "block" (a set-up's columns, round, stage, seconds, ...; see `throughput.measure`),
        "evaluation" (update_period, seed, actor_steps, episode_return) and "publication" (changed_share).
    """
    from quarl_lib.actorq.actor.policy import task_policy
    from quarl_lib.actorq.bench import throughput
    from quarl_lib.actorq.launch import local
    from quarl_lib.actorq.weights.publications import watch

    runs = list(curve_options(config))
    total = 100 * (1 + len(runs))

    def part(number: int) -> Progress:
        return lambda done, of, what: progress(100 * number + 100 * done // max(of, 1), total, what)

    measured = throughput.measure(setups(config), config.steps, config.rounds, config.seed, part(0))
    tables = [measured.assign(record="block")]
    for number, options in enumerate(runs, start=1):
        watcher = partial(watch, task_policy(options))
        with tempfile.TemporaryDirectory(prefix="quarl-") as directory:
            logged = local.run(options, Path(directory), part(number), [watcher], metered=False)
            seen = read(Path(directory), "publications")
        learned = logged["evaluations"].query("policy == 'learner'")
        for record, rows in (("evaluation", learned), ("publication", seen)):
            tables.append(rows.assign(record=record, update_period=options.update_period, seed=options.seed))
    progress(total, total, "measured")
    return pd.concat(tables, ignore_index=True)


def summarize(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per combination: medians over blocks; ratios paired by round, with 95 % intervals.

    `speedup` is over fp32/fp32, `over_fp32_sent` over the same computation fed with fp32 (NaN where that was not
    measured). `pull_share` is the share of the actor's time in pull, deserialize and load_weights; `pull_ms` the same
    in milliseconds a pull; `fewer_bytes` how many times smaller a message is than at fp32.
    """
    groups = by_setup(blocks(table))
    rows = []
    for key, group in groups.items():
        values = dict(zip(SETUP_KEYS, key, strict=True))
        baseline = groups[tuple({**values, "precision": "fp32", "communication_precision": "fp32"}.values())]
        ratio = paired_speedup(baseline, group)
        sent_fp32 = groups.get(tuple({**values, "communication_precision": "fp32"}.values()))
        over_sent = (np.nan,) * 3 if sent_fp32 is None else paired_speedup(sent_fp32, group)
        pulling = group[PULL_STAGES].sum(axis=1)
        messages = group[group.messages > 0]
        rows.append(
            {
                "transport": values["transport"],
                "update_period": values["update_period"],
                "compute_precision": values["precision"],
                "communication_precision": values["communication_precision"],
                "rounds": len(group),
                "seconds_per_1000_steps": (1000 * group.wall_s / group.steps).median(),
                **dict(zip(("speedup", "speedup_low", "speedup_high"), ratio, strict=True)),
                **dict(zip(("over_fp32_sent", "over_fp32_sent_low", "over_fp32_sent_high"), over_sent, strict=True)),
                "payload_bytes": messages.payload_bytes.median(),
                "fewer_bytes": baseline[baseline.messages > 0].payload_bytes.median() / messages.payload_bytes.median(),
                "pull_share": (pulling / group.wall_s).median(),
                "pull_ms": (1000 * pulling / group.pulls).median(),
                "messages_per_pull": group.messages.sum() / group.pulls.sum(),
            }
        )
    order = {"transport": False, "update_period": True, "compute_precision": True, "communication_precision": True}
    return in_order(pd.DataFrame(rows).reindex(columns=list(SUMMARY_COLUMNS)), order)


def curves(table: pd.DataFrame, window: int = 10) -> pd.DataFrame:
    """Return the evaluator's episodes of every training run with their running mean."""
    rows = table[table.record == "evaluation"].dropna(axis=1, how="all").astype({"update_period": int, "seed": int})
    rows = rows.sort_values(["update_period", "seed", "actor_steps"], ignore_index=True)
    grouped = rows.groupby(["update_period", "seed"]).episode_return
    return rows.assign(running_return=grouped.transform(lambda values: running_mean(values, window)))


def publications(table: pd.DataFrame) -> pd.DataFrame:
    """Return the share of codes that changed with each publication that was seen right after the one before."""
    columns = ["update_period", "seed", "version", "actor_steps", "learner_steps", "wall_time_s", "changed_share"]
    return table[table.record == "publication"].reindex(columns=columns).reset_index(drop=True)
