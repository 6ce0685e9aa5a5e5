"""The parts of a run, built once from a plain config; any launcher can run them."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from quarl_lib.actorq.config import Config
from quarl_lib.actorq.launch.children import nothing
from quarl_lib.actorq.link import Link
from quarl_lib.actorq.weights.broadcast import SharedMemoryBroadcast
from quarl_lib.envs import control, registry

Watcher = Callable[[Config, Link, int], None]


@dataclass(frozen=True)
class Part:
    """A function for a process of its own; it is called with its arguments and ends by returning.

    replaceable: when it dies it is started again, with one argument more: how many died before it. Where a part that
        is not replaceable dies, the run has failed.
    ends_run: the run is over when it returns. The run is over as well when no replaceable part is left.
    grace_s: how long it may take to end once the run is over.
    stall_s: how long its heartbeat may stand still, once it began; infinite for a part without one.
    actor_id: of a part that acts, so that the weights it runs can be looked at.
    environment: the task that it steps, to be named where a step does not return.
    background: it takes only what the others leave of the cores.
    """

    name: str
    function: Callable[..., None]
    arguments: tuple[Any, ...]
    replaceable: bool = False
    ends_run: bool = False
    grace_s: float = 10.0
    stall_s: float = math.inf
    actor_id: int | None = None
    environment: str = ""
    background: bool = False


@dataclass(frozen=True)
class Program:
    """All parts of one run in the order in which they start, what joins them, and what its progress is called.

    update_period: actor steps between two pulls; 0 where no actor pulls.
    prepare: called first in every process; brings the environment's registration.
    """

    parts: tuple[Part, ...]
    link: Link
    actor_steps: int
    label: str
    update_period: int = 0
    prepare: Callable[[], None] = nothing


def build(
    config: Config,
    directory: Path,
    watchers: Sequence[Watcher] = (),
    evaluated: bool = True,
    make_link: Callable[..., Link] = Link,
    own_readers: int = 0,
) -> Program:
    """Build the parts of a run; nothing is started and no port is opened.

    Args:
        watchers: called with (config, link, subscriber's number), each in a process of its own that sees every
            published version; they end when the run does.
        evaluated: whether an evaluator plays the learner's policy; it takes what the others leave of the cores.
        make_link: called as `Link` is; a launcher's own kind of link.
        own_readers: how many further readers of the weights the caller is; they have the last numbers.

    Raises:
        ValueError: an environment cannot be made, or no backend runs the policy at the actors' precision.
    """
    from quarl_lib.actorq.actor import evaluator
    from quarl_lib.actorq.actor import loop as actor  # a launcher need not wait for torch and Acme
    from quarl_lib.actorq.launch import folder
    from quarl_lib.actorq.learner import checkpoint
    from quarl_lib.actorq.learner import loop as learner

    registration = registry.own_registration(config.task, config.import_modules)
    prepare = partial(registry.prepare, config.import_modules, registration)
    num_bytes = weights_bytes(config)
    readers = config.n_actors + len(watchers) + own_readers
    weights = SharedMemoryBroadcast(num_bytes, readers) if config.transport == "shared_memory" else None
    link = make_link(directory, config.n_actors, weights)
    if config.local_replay:
        link.replay = replay_memory(config)
    saved, bad = checkpoint.newest_good(directory) if config.resume else (None, {})
    for path, wrong in bad.items():
        warnings.warn(f"checkpoint {path}: {wrong}; falling back to the one before", RuntimeWarning, stacklevel=2)
    if saved is None:
        folder.begin(link.directory)
    else:
        folder.resume(link.directory, saved)
        counters = checkpoint.read_counters(saved)
        link.resume(counters.actor_steps, counters.wall_time_s)
        said = {"checkpoint": saved.name, "damaged": ", ".join(f"{path.name}: {wrong}" for path, wrong in bad.items())}
        link.log("resumed", [{**dataclasses.asdict(counters), **said}])
    watched: dict[str, Any] = {"stall_s": config.stall_s, "environment": config.task}
    acting = [
        Part(f"actor-{i}", actor.run, (config, link, i), replaceable=True, actor_id=i, **watched)
        for i in range(config.n_actors)
    ]
    parts = (
        Part("learner", learner.run, (config, link), ends_run=True, grace_s=30.0, **watched),
        *acting,
        *(
            [Part("evaluator", evaluator.run, (config, link), grace_s=math.inf, background=True, **watched)]
            if evaluated
            else []
        ),
        *(Part(f"watcher-{i}", watcher, (config, link, config.n_actors + i)) for i, watcher in enumerate(watchers)),
    )
    return Program(parts, link, config.actor_steps, f"{config.task} {config.precision}", config.update_period, prepare)


def replay_memory(config: Config) -> Any:
    """Return the shared memory of a local replay, a ring for each actor."""
    from quarl_lib.actorq.replay.local import Memory
    from quarl_lib.envs import specs

    return Memory(config, specs.make_environment_spec(control.make(config.task, config.seed)), config.n_actors)


def weights_bytes(config: Config) -> int:
    """Return the size of one published buffer, and find out beforehand whether the actors can run the policy."""
    from quarl_lib.actorq.actor.policy import policy_spec
    from quarl_lib.envs import specs
    from quarl_lib.inference import make_engine
    from quarl_lib.inference.pack import packed_size

    environment = control.make(config.task, config.seed)
    environment.reset()
    spec = policy_spec(config, specs.make_environment_spec(environment))
    environment.close()
    make_engine(spec, config.precision, config.backend)
    return packed_size(spec, config.weights_precision)
