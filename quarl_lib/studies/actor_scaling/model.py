"""The cost model: the time that actors, learner, cores and network each need for a step; the slowest sets the pace."""

from __future__ import annotations

import math
from dataclasses import dataclass

from quarl_lib.actorq.launch.exchange import EXCHANGE_EVERY_S

EXCHANGE_EVERY_US = 1e6 * EXCHANGE_EVERY_S  # between two publications to a node, at least


def bounds(
    actor: float,
    n_actors: int,
    learner_step: float,
    samples_per_insert: float,
    batch_size: int,
    learner_cores: int = 1,
    cpu: float = 0.0,
    cores: int = 1,
    slowdown: float = 1.0,
    network: float = 0.0,
) -> dict[str, float]:
    """Return the time of each side for one step of all actors together, in the unit of its arguments.

    actors: actor / n, as n of them share the steps. learner: learner_step * samples_per_insert / batch_size / k, as it
    makes samples_per_insert / batch_size updates for each step, on k cores of its own. cores: cpu / cores, the CPU time
    of all processes for a step where they share so many cores. network: what the learner's link takes: `Traffic`.
    The slowest side sets the pace. `slowdown` is what cores that work at once take from each other's caches and
    memory: a factor on the first side and on the third.
    """
    return {
        "actors": slowdown * actor / n_actors,
        "learner": learner_step * samples_per_insert / batch_size / learner_cores,
        "cores": slowdown * cpu / cores,
        "network": network,
    }


def slowest(sides: dict[str, float]) -> str:
    """Return the side that sets the pace."""
    return max(sides, key=lambda side: sides[side])


@dataclass(frozen=True)
class Traffic:
    """What an actor step sends over the link of the learner's node, both ways over one bandwidth.

    transition_bytes: of a step, to the learner. weights_bytes: of a publication, to every other node.
    publications_per_step: samples_per_insert / batch_size / publish_period.
    other_nodes: machines with actors, without the learner's; 0: nothing is sent.
    share_elsewhere: of all steps, those of actors on them.
    """

    transition_bytes: float
    weights_bytes: float
    publications_per_step: float
    other_nodes: int
    share_elsewhere: float

    def us_per_step(self, gigabytes_per_s: float) -> float:
        """Return the microseconds that a step takes on the link; 0 without a network (bandwidth 0).

        t = (T + W * min(p, t / EXCHANGE_EVERY_S)) / bandwidth, with T bytes in for a step, W out for a publication and
        p publications a step. Actors that are faster are not held up at once: publications are left out, and weights
        are older.
        """
        if not gigabytes_per_s or not self.other_nodes:
            return 0.0
        per_us = gigabytes_per_s * 1e3  # bytes a microsecond
        left = per_us - self._out / EXCHANGE_EVERY_US  # beside as many publications as ever leave
        every = (self._in + self._out * self.publications_per_step) / per_us
        return min(every, self._in / left if left > 0 else math.inf)

    def least_gigabytes_per_s(self, us_per_step: float) -> float:
        """Return the bandwidth from which on the network lets a pace be."""
        sent = self._out * min(self.publications_per_step, us_per_step / EXCHANGE_EVERY_US)
        return (self._in + sent) / us_per_step * 1e-3

    @property
    def _in(self) -> float:
        return self.transition_bytes * self.share_elsewhere

    @property
    def _out(self) -> float:
        return self.weights_bytes * self.other_nodes
