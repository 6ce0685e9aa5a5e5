"""What each stage of a program costs: tables for the virtual clock, in microseconds, measured, read off or assumed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from quarl_lib.actorq.config import Config

TABLES = Path(__file__).parent / "tables"
SOURCES = ("measured", "read off", "assumed")
SECTIONS = ("env_step", "actor", "learner")
OF_AN_ACTOR = ("select_action", "observe", "pull", "deserialize", "load_weights")
OF_THE_LEARNER = ("sample", "learner_step")
OF_A_MESSAGE = ("quantize", "broadcast")
# CPU time of other threads for a stage: a server's, its client's; it delays nobody who has a core of its own.
BEHIND = {"observe": "behind_observe", "sample": "behind_sample"}
Cost = Callable[[np.random.Generator, int], float]


@dataclass(frozen=True)
class CostTable:
    """One machine's costs. A value is microseconds, or a list of them of which each is as likely as the others.

    machine: whose costs they are. source: of each section, where from (SOURCES). policy: of which networks.
    env_step: by task; "any" stands for those that are not named.
    actor: by design, then by precision, the stages of an actor, and `behind_observe`, other threads' CPU time for one.
    learner: its stages, `behind_sample`, and under "message" by design and precision what a publication takes.
    gigabytes_per_s: what a network adds to a pull for the bytes of new weights; 0: nothing, they are shared memory.

    Raises:
        ValueError: a section has no known source, or the bandwidth is negative.
    """

    machine: str
    source: Mapping[str, str]
    policy: str
    env_step: Mapping[str, Any]
    actor: Mapping[str, Mapping[str, Mapping[str, Any]]]
    learner: Mapping[str, Any] = field(default_factory=dict)
    gigabytes_per_s: float = 0.0

    def __post_init__(self) -> None:
        for section in SECTIONS:
            source = self.source.get(section) if isinstance(self.source, Mapping) else None
            if getattr(self, section) and source not in SOURCES:
                raise ValueError(f"source of {section}={source!r}: say where it is from: {', '.join(SOURCES)}")
        if not self.gigabytes_per_s >= 0:
            raise ValueError(f"gigabytes_per_s={self.gigabytes_per_s}: give at least 0 (0: shared memory)")

    def of(self, config: Config, design: str = "packed", learner_ms: float = 0.0, task: str = "") -> dict[str, Cost]:
        """Return the cost of every stage of a run, in seconds.

        Args:
            design: whose actor: "packed", ours, or "authors", the paper's recipe.
            learner_ms: milliseconds of an update, assumed instead of the table's, its batch fetched meanwhile; 0: the
                table's.
            task: whose environment steps are paid; "": the config's own.

        Raises:
            ValueError: the table lacks the task, the design or the precision, or a cost is no positive number.
        """
        if config.envs_per_actor > 1:
            raise ValueError(
                f"envs_per_actor={config.envs_per_actor}: tables of costs are of one environment an actor; give 1"
            )
        task = task or config.task
        task = "any" if task not in self.env_step and "any" in self.env_step else task
        values = {"env_step": _found(self.env_step, task, "env_step")}
        actor = _found(_found(self.actor, design, "actor"), config.precision, f"actor, {design}")
        values |= {stage: _found(actor, stage, f"actor, {design}, {config.precision}") for stage in OF_AN_ACTOR}
        learner = {**self.learner, "sample": 0.0, "learner_step": 1000.0 * learner_ms} if learner_ms else self.learner
        values |= {stage: _found(learner, stage, "learner") for stage in OF_THE_LEARNER}
        for stage, section in (("behind_observe", actor), ("behind_sample", learner)):
            values[stage] = section.get(stage, 0.0)
        messages = _found(_found(learner, "message", "learner"), design, "learner, message")
        message = _found(messages, config.weights_precision, f"learner, message, {design}")
        values |= {stage: _found(message, stage, "learner, message") for stage in OF_A_MESSAGE}
        costs = {stage: _cost(stage, value) for stage, value in values.items()}
        if self.gigabytes_per_s:
            costs["pull"] = _with_bandwidth(costs["pull"], self.gigabytes_per_s)
        if design == "authors":  # fetches, unpickles and loads at every pull, new or not
            every_pull = [costs[stage] for stage in ("pull", "deserialize", "load_weights")]
            costs["pull"] = lambda rng, num_bytes: sum(cost(rng, num_bytes) for cost in every_pull)
            costs["deserialize"] = costs["load_weights"] = _cost("load_weights", 0.0)
        return costs


def load(name: str | Path) -> CostTable:
    """Return a shipped table by its name, or one from a YAML file.

    Raises:
        ValueError: there is none of that name, or the file lacks something; the text says what and where.
    """
    path = TABLES / f"{name}.yaml" if str(name) in shipped() else Path(name)
    try:
        return CostTable(**yaml.safe_load(path.read_text()))
    except OSError as error:
        raise ValueError(f"machine={str(name)!r}: give one of {', '.join(shipped())}, or a YAML file") from error
    except (TypeError, ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: no table of costs: {error}") from error


def shipped() -> list[str]:
    """Return the names of the tables that come with the package."""
    return sorted(path.stem for path in TABLES.glob("*.yaml"))


def _found(entries: Any, key: str, where: str) -> Any:
    if not isinstance(entries, Mapping) or key not in entries:
        there = ", ".join(map(str, entries)) if isinstance(entries, Mapping) else repr(entries)
        raise ValueError(f"the table of costs has no {key!r} under {where}; it has {there}")
    return entries[key]


def _cost(stage: str, value: Any) -> Cost:
    try:
        seconds = np.atleast_1d(np.asarray(value, np.float64)) * 1e-6
    except (TypeError, ValueError):
        seconds = np.empty(0)
    if seconds.ndim != 1 or not seconds.size or not np.isfinite(seconds).all() or (seconds < 0).any():
        raise ValueError(f"the table of costs says {value!r} for {stage}: give microseconds, or a list of them")
    each = seconds.tolist()
    if len(each) == 1:
        return lambda rng, num_bytes: each[0]
    return lambda rng, num_bytes: each[int(rng.random() * len(each))]


def _with_bandwidth(pull: Cost, gigabytes_per_s: float) -> Cost:
    return lambda rng, num_bytes: pull(rng, num_bytes) + num_bytes / gigabytes_per_s * 1e-9
