"""The parts of a run, built once from a plain config; any launcher can run them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quarl_lib.actorq.broadcast import SharedMemoryBroadcast
from quarl_lib.actorq.config import Config
from quarl_lib.actorq.link import Link
from quarl_lib.envs import control


@dataclass(frozen=True)
class Part:
    """A function for a process of its own; it is called with its arguments and ends by returning.

    role: "learner", "evaluator" or "actor". Only actors are replaced when they die; a replacement's function takes
    `generation`, how many died before it.
    """

    name: str
    role: str
    function: Callable[..., None]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Program:
    """All parts of one run, and what joins them."""

    config: Config
    link: Link
    parts: tuple[Part, ...]


def build(config: Config, directory: Path) -> Program:
    """Build the parts of a run; nothing is started and no port is opened.

    Raises:
        ValueError: an environment cannot be made, or no backend runs the policy at the actors' precision.
    """
    from quarl_lib.actorq import actor, evaluator, learner  # a launcher need not wait for torch and Acme

    weights = None
    if config.transport == "shared_memory":
        weights = SharedMemoryBroadcast(weights_bytes(config), config.n_actors)
    link = Link(directory, config.n_actors, weights)
    parts = [Part("learner", "learner", learner.run, (config, link))]
    parts += [Part(f"actor-{i}", "actor", actor.run, (config, link, i)) for i in range(config.n_actors)]
    parts.append(Part("evaluator", "evaluator", evaluator.run, (config, link)))
    return Program(config, link, tuple(parts))


def weights_bytes(config: Config) -> int:
    """Return the size of one published buffer, and find out beforehand whether the actors can run the policy."""
    from acme import specs

    from quarl_lib.inference import make_engine
    from quarl_lib.inference.pack import packed_size
    from quarl_lib.networks import policy_spec

    environment = control.make(config.task, config.seed)
    environment.reset()
    spec = policy_spec(config, specs.make_environment_spec(environment))
    environment.close()
    make_engine(spec, config.precision, config.backend)
    return packed_size(spec, config.weights_precision)
