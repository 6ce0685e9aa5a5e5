"""A Ray cluster: joined or started here, looked over before anything runs, left as it was found."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from quarl_lib.actorq.launch import node
from quarl_lib.extras import install_line

START_TIMEOUT_S = 60.0
TOKEN = "RAY_AUTH_TOKEN"
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "120"}


def import_ray() -> Any:
    """Return the package.

    Raises:
        ValueError: it is not installed.
    """
    os.environ.update({name: value for name, value in QUIET.items() if name not in os.environ})
    try:
        import ray
        import ray.exceptions
        import ray.util
    except ImportError as error:
        raise ValueError(f"launcher='ray': Ray cannot be imported ({error}); {install_line('ray')}") from error
    return ray


def check_address(address: str) -> None:
    """Raise ValueError unless it is "" (start one here), "auto", or host:port."""
    if address not in ("", "auto") and not re.fullmatch(r"(ray://)?[^\s:/]+:\d{1,5}", address):
        raise ValueError(f"ray_address={address!r}: give '' to start Ray on this machine, 'auto', or host:port")


@contextlib.contextmanager
def joined(address: str, num_cpus: int) -> Iterator[Any]:
    """Join the cluster at `address`, or start one of `num_cpus` on this machine that ends with the block.

    Raises:
        ValueError: Ray is not installed, or the address is none.
        ConnectionError: no cluster answers there.
    """
    check_address(address)
    ray = import_ray()
    if ray.is_initialized():  # the caller's own
        yield ray
        return
    quiet = {"logging_level": "error", "log_to_driver": False, "namespace": "quarl"}
    scratch, token = tempfile.mkdtemp(prefix="quarl-ray-"), os.environ.get(TOKEN)
    try:
        if address:
            try:
                ray.init(address, **quiet)
            except (ConnectionError, RuntimeError, TimeoutError) as error:
                raise ConnectionError(
                    f"ray_address={address!r}: no cluster answers ({error}); start one with `ray start --head`, or "
                    "give '' to start Ray on this machine"
                ) from error
        else:
            os.environ.setdefault(TOKEN, _token())  # else Ray leaves one in the user's home
            ray.init("local", num_cpus=num_cpus, num_gpus=0, include_dashboard=False, _temp_dir=scratch, **quiet)
        yield ray
    finally:
        ray.shutdown()
        if token is None:
            os.environ.pop(TOKEN, None)
        shutil.rmtree(scratch, ignore_errors=True)


@functools.cache
def _token() -> str:
    """Return the secret of every cluster that this process starts: Ray reads it once in a process's life."""
    return secrets.token_hex()


@dataclass(frozen=True)
class Machine:
    """A node of the cluster, by the name that it has in tables."""

    node_id: str
    name: str


def machines(ray: Any) -> dict[str, Machine]:
    """Return the nodes that live, by their ids; those of one host are told apart by the beginning of the id."""
    alive = [one for one in ray.nodes() if one["Alive"]]
    hosts = [one["NodeManagerHostname"] for one in alive]
    found = {}
    for one, host in zip(alive, hosts, strict=True):
        name = host if hosts.count(host) == 1 else f"{host}-{one['NodeID'][:6]}"
        found[one["NodeID"]] = Machine(one["NodeID"], name)
    return found


def own_node(ray: Any) -> str:
    """Return the id of the node that this process is on."""
    return ray.get_runtime_context().get_node_id()


def check_alike(ray: Any, here: dict[str, str], timeout_s: float = START_TIMEOUT_S) -> None:
    """Make sure that every node has the versions that are `here`, as of `node.versions`.

    Raises:
        ValueError: one has not, or cannot import the package at all.
        TimeoutError: one does not answer.
    """
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    ask = ray.remote(node.versions)
    asked = {}
    for node_id, machine in machines(ray).items():
        asked[machine.name] = ask.options(num_cpus=0, scheduling_strategy=strategy(node_id, soft=False)).remote()
    for name, answer in asked.items():
        try:
            there = ray.get(answer, timeout=timeout_s)
        except ray.exceptions.GetTimeoutError as error:
            raise TimeoutError(f"node {name} did not answer within {timeout_s:g} s") from error
        except ray.exceptions.RayTaskError as error:
            raise ValueError(f"node {name} cannot import quarl ({error.cause}); install the same version") from error
        if differs := {key: (there.get(key), here[key]) for key in here if there.get(key) != here[key]}:
            said = ", ".join(f"{key} {theirs} (here {ours})" for key, (theirs, ours) in differs.items())
            raise ValueError(f"node {name} has {said}; install the same versions on every node")


@contextlib.contextmanager
def placed(ray: Any, num_actors: int, timeout_s: float = START_TIMEOUT_S) -> Iterator[list[str]]:
    """Reserve a CPU for the learner, on this node, and for each actor, spread; give the actors' node ids.

    Raises:
        ValueError: the cluster has too few CPUs.
        TimeoutError: they are in use.
    """
    needed, has = num_actors + 1, int(ray.cluster_resources().get("CPU", 0))
    deadline, groups = time.monotonic() + timeout_s, []
    # The learner's first, in a group of its own: in one group Ray may give this node's only CPU to an actor, for ever.
    wanted = [([{"CPU": 1}], [{"ray.io/node-id": own_node(ray)}]), ([{"CPU": 1}] * num_actors, [{}] * num_actors)]
    try:
        for bundles, labels in wanted:
            groups.append(ray.util.placement_group(bundles, "SPREAD", bundle_label_selector=labels))
            while not groups[-1].wait(1.0):
                if time.monotonic() > deadline:
                    has, free = (
                        int(what().get("CPU", 0)) for what in (ray.cluster_resources, ray.available_resources)
                    )  # fmt: skip
                    said = f"n_actors={num_actors}: learner and actors need {needed} CPUs, a CPU of them on this node; "
                    if has < needed:
                        raise ValueError(f"{said}the cluster has {has}; add nodes, or give fewer actors")
                    raise TimeoutError(f"{said}{free} of the cluster's {has} were free within {timeout_s:g} s")
        nodes = ray.util.placement_group_table(groups[-1])["bundles_to_node_id"]
        yield [nodes[index] for index in range(num_actors)]
    finally:
        for group in groups:
            ray.util.remove_placement_group(group)
