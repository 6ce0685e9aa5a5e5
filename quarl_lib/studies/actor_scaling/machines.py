"""Where the study's programs run: this machine, or the nodes of a Ray cluster in one session."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from quarl_lib import provenance
from quarl_lib.actorq import config as actorq
from quarl_lib.actorq.launch import cluster
from quarl_lib.results import Progress

LAUNCHERS = ("local", "ray")
MESSAGES = ("transition_bytes", "weights_bytes")


@dataclass(frozen=True)
class Machines:
    """The cores of every host that actors can be on; nodes of one host share its cores."""

    cores_of_hosts: tuple[int, ...]

    @property
    def cores(self) -> int:
        """How many there are in all."""
        return sum(self.cores_of_hosts)

    def at_once(self, n_actors: int) -> int:
        """Return how many actors act at once on a host, where they are spread evenly."""
        hosts = len(self.cores_of_hosts)
        return min(-(-n_actors // hosts), max(self.cores_of_hosts))


@contextlib.contextmanager
def joined(launcher: str, ray_address: str, n_actors: int) -> Iterator[Machines]:
    """Give the machines; with Ray all programs of the block run in one session, as one takes seconds to start."""
    if launcher == "local":
        yield Machines((provenance.allowed_cores(),))
        return
    with cluster.joined(ray_address, n_actors + 1) as ray:
        yield Machines(_cores_of_hosts(ray))


def _cores_of_hosts(ray: Any) -> tuple[int, ...]:
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    ask = ray.remote(provenance.allowed_cores)
    of_hosts = {one["NodeManagerAddress"]: one["NodeID"] for one in ray.nodes() if one["Alive"]}
    asked = [ask.options(num_cpus=0, scheduling_strategy=strategy(one, soft=False)).remote()
             for one in of_hosts.values()]  # fmt: skip
    return tuple(ray.get(asked, timeout=cluster.START_TIMEOUT_S))


def launch(
    launcher: str, ray_address: str, options: actorq.Config, directory: Path, progress: Progress
) -> dict[str, pd.DataFrame]:
    """Run one program and return its tables."""
    if launcher == "ray":
        from quarl_lib.actorq.launch import ray

        return ray.run(options, directory, progress, metered=False, evaluated=False, address=ray_address)
    from quarl_lib.actorq.launch import local

    return local.run(options, directory, progress, metered=False, evaluated=False)


def spread(logged: dict[str, pd.DataFrame]) -> dict[str, int]:
    """Return over how many `nodes` a run went, the learner's included, and how many `actors_elsewhere` it had."""
    if "nodes" not in logged:
        return {"nodes": 1, "actors_elsewhere": 0}
    processes = logged["processes"]
    own = processes.node[processes.part == "learner"].iloc[0]
    actors = logged["nodes"].query("event == 'actor'").groupby("part").node.last()
    elsewhere = actors[actors != own]
    return {"nodes": 1 + elsewhere.nunique(), "actors_elsewhere": len(elsewhere)}


def message_bytes(options: actorq.Config) -> dict[str, int]:
    """Return the bytes of a transition on its way to the learner, and of the weights on theirs to a node."""
    from quarl_lib.actorq.launch.program import weights_bytes
    from quarl_lib.actorq.replay.transitions import TransitionLayout
    from quarl_lib.envs import control, specs

    spec = specs.make_environment_spec(control.make(options.task, options.seed))
    return dict(zip(MESSAGES, (4 * TransitionLayout(spec).size, weights_bytes(options)), strict=True))
