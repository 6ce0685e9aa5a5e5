"""What each stage of a program costs: tables for the virtual clock, in microseconds, measured, read off or assumed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from quarl_lib.actorq.config import Config

TABLES = Path(__file__).parent / "tables"
SOURCES = ("measured", "read off", "assumed")
OF_AN_ACTOR = ("select_action", "observe", "pull", "deserialize", "load_weights")
OF_THE_LEARNER = ("sample", "learner_step")
OF_A_MESSAGE = ("quantize", "broadcast")
Cost = Callable[[np.random.Generator, int], float]


@dataclass(frozen=True)
class CostTable:
    """One machine's costs. A value is microseconds, or a list of them of which each is as likely as the others.

    machine, source, policy: whose costs they are, where from (one of SOURCES), and of which policy.
    env_step: by task. actor: by design, then by precision, the stages of an actor. learner: its stages, and by
    precision those of a message under "message".
    gigabytes_per_s: what a network adds to a pull for the bytes of new weights; 0: nothing, they are shared memory.
    """

    machine: str
    source: str
    policy: str
    env_step: Mapping[str, Any]
    actor: Mapping[str, Mapping[str, Mapping[str, Any]]]
    learner: Mapping[str, Any]
    gigabytes_per_s: float = 0.0

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ValueError(f"source={self.source!r}: say where the costs are from: {', '.join(SOURCES)}")
        if self.gigabytes_per_s < 0:
            raise ValueError(f"gigabytes_per_s={self.gigabytes_per_s}: give at least 0 (0: shared memory)")

    def of(self, config: Config, design: str = "packed", learner_ms: float = 0.0) -> dict[str, Cost]:
        """Return the cost of every stage of a run, in seconds.

        Args:
            design: whose actor: "packed", ours, or "authors", the paper's recipe.
            learner_ms: milliseconds of an update instead of the table's; 0: the table's.

        Raises:
            ValueError: the table lacks the task, the design or the precision, or a cost is no positive number.
        """
        if config.envs_per_actor > 1:
            raise ValueError(
                f"envs_per_actor={config.envs_per_actor}: tables of costs are of one environment an actor; give 1"
            )
        values = {"env_step": _found(self.env_step, config.task, "env_step")}
        actor = _found(_found(self.actor, design, "actor"), config.precision, f"actor, {design}")
        message = _found(_found(self.learner, "message", "learner"), config.weights_precision, "learner, message")
        values |= {stage: _found(actor, stage, f"actor, {design}, {config.precision}") for stage in OF_AN_ACTOR}
        values |= {stage: _found(self.learner, stage, "learner") for stage in OF_THE_LEARNER}
        values |= {stage: _found(message, stage, "learner, message") for stage in OF_A_MESSAGE}
        if learner_ms:
            values["learner_step"] = 1000.0 * learner_ms
        costs = {stage: _cost(stage, value) for stage, value in values.items()}
        if design == "authors":  # fetches, unpickles and loads at every pull, new or not
            every_pull = [costs[stage] for stage in ("pull", "deserialize", "load_weights")]
            costs["pull"] = lambda rng, num_bytes: sum(cost(rng, num_bytes) for cost in every_pull)
            costs["deserialize"] = costs["load_weights"] = _cost("load_weights", 0.0)
        if self.gigabytes_per_s:
            costs["pull"] = _with_bandwidth(costs["pull"], self.gigabytes_per_s)
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
    except (TypeError, yaml.YAMLError) as error:
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
    seconds = np.atleast_1d(np.asarray(value, np.float64)) * 1e-6
    if seconds.ndim != 1 or not seconds.size or not np.isfinite(seconds).all() or (seconds < 0).any():
        raise ValueError(f"the table of costs says {value!r} for {stage}: give microseconds, or a list of them")
    if len(seconds) == 1:
        return lambda rng, num_bytes: float(seconds[0])
    return lambda rng, num_bytes: float(seconds[int(rng.random() * len(seconds))])


def _with_bandwidth(pull: Cost, gigabytes_per_s: float) -> Cost:
    return lambda rng, num_bytes: pull(rng, num_bytes) + num_bytes / gigabytes_per_s * 1e-9
