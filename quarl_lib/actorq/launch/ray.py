"""Run a program on the machines of a Ray cluster: learner, replay and evaluator here, the actors spread.

Every node is a small copy of the local launcher (`node.Node`, a Ray actor): its actors share one memory, weights reach
it through Ray's object store once a publication, and one exchange of messages, twenty times a second, keeps the
counters, the replay and the tables as they are on one machine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from quarl_lib import results
from quarl_lib.actorq.config import Config
from quarl_lib.actorq.launch import cluster, local, node
from quarl_lib.actorq.launch.children import nothing, warm_up
from quarl_lib.actorq.launch.exchange import exchanging
from quarl_lib.actorq.launch.interrupts import signals_as_exceptions
from quarl_lib.actorq.launch.program import Watcher, build


def run(
    config: Config,
    directory: Path,
    progress: results.Progress = results.no_progress,
    watchers: Sequence[Watcher] = (),
    metered: bool = True,
    evaluated: bool = True,
    address: str = "",
) -> dict[str, pd.DataFrame]:
    """Run an ActorQ program on the cluster at `address` ("": one started on this machine); tables as of `local.run`.

    Every table has a column `node`; there is one more, `nodes`: which actors ran where, and which nodes were lost.
    Energy is that of this machine's processes.

    Raises:
        RunFailed: as for `local.run`, or no node is left.
        ValueError: Ray is not installed, the nodes differ in versions or have too few CPUs.
        TimeoutError: not enough CPUs came free.
        ConnectionError: no cluster answers.
    """
    with signals_as_exceptions(), cluster.joined(address, config.n_actors + 1) as ray:
        cluster.check_alike(ray, node.versions())
        with cluster.placed(ray, config.n_actors) as node_ids:
            program = build(config, Path(directory), watchers, evaluated, own_readers=1)
            own = cluster.own_node(ray)
            stays = [part for part in program.parts if part.actor_id is None or node_ids[part.actor_id] == own]
            warm_up()
            metering = local.meter(config, program.link) if metered else contextlib.nullcontext(nothing)
            with metering as note, exchanging(ray, config, program, node_ids) as exchange:

                def every_second() -> None:
                    note()
                    exchange.check()

                local.supervise(replace(program, parts=tuple(stays)), progress, every_second)
    tables = {table: local.read(program.link.directory, table) for table in (*local.TABLES, "nodes")}
    return {name: _with_node(table, exchange.own_name) for name, table in tables.items()}


def _with_node(table: pd.DataFrame, own_name: str) -> pd.DataFrame:
    return table.assign(node=table.node.fillna(own_name) if "node" in table else own_name) if len(table) else table
