"""Sentences and small tables that the notebook builds from what was measured."""

from __future__ import annotations

import numpy as np
import pandas as pd

from quarl_lib.actorq.carbon import NOT_MEASURED
from quarl_lib.extras import install_line
from quarl_lib.studies.actorq_training.speed import of_one_environment
from quarl_lib.studies.common.intervals import brackets
from quarl_lib.studies.common.paper_tables import PAPER_TASKS

REPLAYS = {"reverb": "Reverb", "local": "shared memory"}
SETTING = "policy, learner, threshold and machine differ: see the parameters"


def verdict(summary: pd.DataFrame) -> str:
    """Say who reached its threshold, and how the times compare."""
    missed = summary[summary.seeds_reached < summary.seeds]
    parts = []
    if len(missed):
        cells = ", ".join(f"{r.task} {r.precision} ({r.seeds_reached} of {r.seeds} seeds)" for r in missed.itertuples())
        parts.append(f"Not every seed reached its threshold: {cells}.")
    else:
        parts.append(f"All {int(summary.seeds.sum())} runs reached their threshold.")
    for row in summary[(summary.precision != "fp32") & summary.speedup.notna()].itertuples():
        interval = f" {brackets(row.speedup_low, row.speedup_high, 'seed')}"
        interval += ": no difference is shown." if row.speedup_low <= 1 <= row.speedup_high else "."
        seconds = "virtual s" if row.clock == "virtual" else "s"
        parts.append(
            f"{row.task}: with {row.precision} actors training took {row.seconds_to_threshold:.1f} {seconds}, "
            f"{row.speedup:.2f} x the speed with fp32 actors{interval}"
        )
    return " ".join(parts)


def bottleneck(summary: pd.DataFrame) -> str:
    """Say which side bound the runs, and what the actors' precision would bring if they were the bound."""
    parts = []
    for row in summary[summary.precision != "fp32"].itertuples():
        if row.bound_by == "unknown":
            parts.append(f"{row.task} {row.precision}: the runs ended before the learner's first step.")
            continue
        said = (
            f"{row.task} {row.precision}: the {row.bound_by} was the bottleneck "
            f"(learner at work {row.learner_busy:.0%} of its time, an actor {row.actor_busy:.0%})"
        )
        if row.bound_by == "learner":
            said += (
                ", so the actors' precision cannot help here; with this policy it would have been worth "
                f"{row.speedup_if_actor_bound:.2f} x if the actors were"
            )
        parts.append(said + ".")
    return " ".join(parts)


def beside_peers(ratios: pd.DataFrame, summary: pd.DataFrame) -> str:
    """Say how long Stable-Baselines3 takes to the same return, and where it did not get there in its time."""
    if ratios.empty:
        return "Nothing else was trained beside ActorQ: peers are left out."
    parts = []
    ours = summary.set_index(["task", "precision"]).seconds_to_threshold
    for row in ratios.itertuples():
        name, seconds = f"Stable-Baselines3's {row.peer.removeprefix('sb3_').upper()}", ours[row.task, row.precision]
        if not row.pairs:
            parts.append(f"{row.task} {row.precision}: no seed of ours reached the threshold beside {name}.")
        elif row.over_peer_is == "measured":
            interval = brackets(row.over_peer_low, row.over_peer_high, "seed")
            parts.append(f"{row.task}: ActorQ with {row.precision} actors took {seconds:.1f} s, {name} "
                         f"{row.peer_seconds:.1f} s, {row.over_peer:.2f} x as long {interval}.")  # fmt: skip
        else:
            parts.append(f"{row.task}: ActorQ with {row.precision} actors took {seconds:.1f} s; {name} got there with "
                         f"{row.peer_seeds_reached} of {row.pairs} seeds within {row.peer_seconds:.1f} s, which is at "
                         f"least {row.over_peer:.2f} x as long.")  # fmt: skip
    return " ".join(parts)


def energy(summary: pd.DataFrame) -> str:
    """Say how CO2 compares, CPU alone, with RAM, and over time, and whether it was measured."""
    sources = [source for source in summary.energy_source.unique() if source != NOT_MEASURED]
    if not sources:
        return "Energy was not measured: the runs were over before the meter's second reading."
    parts = [f"Energy is {sources[0]}; all three ratios cover the same interval, from the start to the threshold."]
    for row in beside_fp32(summary).itertuples():
        parts.append(
            f"{row.task}: with {row.precision} actors training emitted {row.co2:.2f} x as much CO2 as with fp32 actors "
            f"{brackets(row.co2_low, row.co2_high, 'seed')} ({row.co2_cpu:.2f} x counting the CPU alone) and took "
            f"{row.time:.2f} x as long."
        )
    return " ".join(parts)


def beside_fp32(summary: pd.DataFrame) -> pd.DataFrame:
    """Return what training with quantized actors took of time and CO2 as a multiple of fp32's: below 1 is less."""
    rows = summary[(summary.precision != "fp32") & summary.co2_ratio.notna()]
    return pd.DataFrame(
        {
            "task": rows.task, "precision": rows.precision, "time": 1 / rows.time_ratio, "co2": 1 / rows.co2_ratio,
            "co2_low": 1 / rows.co2_ratio_high, "co2_high": 1 / rows.co2_ratio_low, "co2_cpu": 1 / rows.co2_ratio_cpu,
        }
    )  # fmt: skip


def deployed(summary: pd.DataFrame) -> str:
    """Say how old the weights were that actors ran, and what the policy is worth at their precision."""
    parts = []
    for row in summary.itertuples():
        reached = row.seconds_to_threshold_quantized
        when = f"after {reached:.1f} s" if reached == reached else "not twice in a row"
        parts.append(
            f"{row.task} {row.precision}: as deployed, best return {row.best_return_quantized:.4g} (learned: "
            f"{row.best_return:.4g}), threshold reached {when}; actors' weights were {row.weights_age_steps:.0f} steps "
            f"({row.weights_age_s:.2f} s) old at the median, {row.changed_share:.0%} of their codes new each time; the "
            f"last were version {row.weights_version:.0f}."
        )
    return " ".join(parts)


def beside_paper(summary: pd.DataFrame) -> pd.DataFrame:
    """Return what the paper's Table 4 has of these runs, a row per figure: the paper's, ours, and what differs."""
    rows = []
    for row in summary[summary.paper_seconds.notna()].itertuples():
        figures = [
            ("best return", row.paper_return, row.best_return, np.nan, np.nan),
            ("seconds", row.paper_seconds, row.seconds_to_threshold, np.nan, np.nan),
        ]
        if row.precision != "fp32":
            figures += [
                ("speedup over fp32", row.paper_speedup, row.speedup, row.speedup_low, row.speedup_high),
                ("CO2 ratio", row.paper_co2_ratio, row.co2_ratio, row.co2_ratio_low, row.co2_ratio_high),
            ]
        for name, *values in figures:
            rows.append(("Table 4", f"{row.task} {row.precision}: {name}", row.clock, *values, SETTING))
    return pd.DataFrame(rows, columns=["item", "what", "clock", "paper", "ours", "ci_low", "ci_high", "setting"])


def paper_tasks() -> pd.DataFrame:
    """Return the paper's Tables 3 and 4 as one table."""
    return pd.DataFrame(PAPER_TASKS)


def speed_verdict(speed: pd.DataFrame) -> str:
    """Say how much faster a lone actor is than with fp32, and than with the authors' recipe."""
    if not len(speed):
        return "The lone actor was left out."
    alone = of_one_environment(speed)
    ours, theirs = alone[alone.design == "packed"], alone[alone.design == "authors"]
    parts = []
    for task, rows in ours[(ours.precision != "fp32") & ours.over_fp32.notna()].groupby("task", sort=False):
        gains = [f"{row.precision} {_interval(row, 'over_fp32')}" for _, row in rows.iterrows()]
        parts.append(f"{task}: over fp32, {' and '.join(gains)}.")
    if theirs.empty:
        parts.append(f"The authors' recipe was left out: it needs Reverb ({install_line('reverb')}).")
        return " ".join(parts)
    precision = theirs.precision.iloc[0]
    over = [
        f"{_interval(row, 'over_authors')} with a pull every {row.update_period} steps"
        for _, row in ours[(ours.precision == precision) & ours.over_authors.notna()].iterrows()
    ]
    return " ".join([*parts, f"Over the authors' recipe, {precision} on both sides: {' and '.join(over)}."])


def copies_verdict(speed: pd.DataFrame) -> str:
    """Say how many more steps a lone actor takes with several environments, and what its precision brings then."""
    parts = []
    keys = ["task", "envs_per_actor", "replay"]
    for (task, count, replay), rows in speed[speed.envs_per_actor > 1].groupby(keys, sort=False):
        gains = [f"{row.precision} {_interval(row, 'over_one_env')}" for _, row in rows.iterrows()]
        parts.append(f"{task}, {REPLAYS[replay]}: with {count} environments over one, {' and '.join(gains)}")
        for _, row in rows[rows.precision != "fp32"].iterrows():
            parts[-1] += f"; there {row.precision} takes {_interval(row, 'over_fp32')} the steps of fp32"
    return ". ".join(parts) + "." if parts else "The lone actor played one environment."


def _interval(row: pd.Series, name: str) -> str:
    return f"{row[name]:.2f} x {brackets(row[f'{name}_low'], row[f'{name}_high'])}"


def key_figure(summary: pd.DataFrame, speed: pd.DataFrame) -> str:
    """Return the run's claim: what the actors' precision does to the time of training, and why."""
    quantized = of_one_environment(speed[(speed.precision != "fp32") & speed.over_fp32.notna()])
    if "int8" in set(quantized.precision):
        quantized = quantized[quantized.precision == "int8"]
    said = _training_time(summary)
    if len(quantized):
        fastest = quantized.loc[quantized.over_fp32.idxmax()]
        said += (
            f" A lone {fastest.precision} actor, which no learner holds back, makes up to {fastest.over_fp32:.1f} x "
            f"{brackets(fastest.over_fp32_low, fastest.over_fp32_high)} the steps of an fp32 one in equal time."
        )
    return said + _over_peers(summary)


def _over_peers(summary: pd.DataFrame) -> str:
    """Return the sentence on the largest lead over a peer, if any is in the lead."""
    known = summary[summary.over_peer > 1]
    if known.empty:
        return ""
    row = known.loc[known.over_peer.idxmax()]
    measured = row.over_peer_is == "measured"
    interval = f" {brackets(row.over_peer_low, row.over_peer_high, 'seed')}" if measured else ""
    peer, least = row.peer.removeprefix("sb3_").upper(), "" if measured else "at least "
    return (
        f" To {row.threshold:g} on {row.task} Stable-Baselines3's {peer} takes {least}{row.over_peer:.1f} x{interval} "
        f"as long as ActorQ with {row.precision} actors."
    )


def _training_time(summary: pd.DataFrame) -> str:
    """Say whether quantized actors bring the learner to its threshold sooner, and who holds whom back."""
    reached = f"{int(summary.seeds_reached.sum())} of {int(summary.seeds.sum())} runs reached their threshold"
    timed = summary[(summary.precision != "fp32") & summary.speedup.notna()]
    if "int8" in set(timed.precision):
        timed = timed[timed.precision == "int8"]
    if timed.empty:
        return f"No task reached its threshold both at fp32 and below, so training times are not compared ({reached})."
    precision, low, high = timed.precision.iloc[0], timed.speedup.min(), timed.speedup.max()
    span = f"{low:.2f} x" if len(timed) == 1 else f"{low:.2f} to {high:.2f} x"
    faster, slower = int((timed.speedup_low > 1).sum()), int((timed.speedup_high < 1).sum())
    if len(timed) == 1:
        sure = brackets(timed.speedup_low.iloc[0], timed.speedup_high.iloc[0], "seed")
    elif timed.speedup_low.isna().all():
        sure = "on one seed, which leaves no interval"
    else:
        sure = f"on {len(timed)} tasks"
    if faster or slower:
        found = [f"shorter on {faster}"] * (faster > 0) + [f"longer on {slower}"] * (slower > 0)
        said = f"Training with {precision} actors is {' and '.join(found)} of {len(timed)} tasks"
    else:
        said = f"Training with {precision} actors is not shorter by more than chance"
    if (timed.clock == "virtual").all():
        said = f"In virtual time, {said[0].lower()}{said[1:]}"
    bound = timed[timed.bound_by == "learner"]
    why = ""
    if len(bound) == len(timed):
        busy = (
            f"at work {bound.learner_busy.min():.0%} of its time or more, an actor {bound.actor_busy.max():.0%} or less"
        )
        why = f", because the learner is the bottleneck ({busy})"
    return f"{said}: it runs at {span} the speed with fp32 actors {sure}{why}; {reached}."
