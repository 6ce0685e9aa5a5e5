"""What joins the learner's machine to the other nodes of a cluster; see `node.Node` for their side."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from quarl_lib.actorq.config import Config
from quarl_lib.actorq.launch import cluster
from quarl_lib.actorq.launch.node import OWN_WORDS, Ahead, Down, Node, Up
from quarl_lib.actorq.launch.program import Part, Program, weights_bytes
from quarl_lib.actorq.launch.supervisor import DEATHS_WITHIN_S, MAX_DEATHS, RunFailed
from quarl_lib.actorq.link import Link
from quarl_lib.actorq.replay import relay

EXCHANGE_EVERY_S = 0.05  # also between two publications to one node
LOOK_EVERY_S = 0.005
START_TIMEOUT_S = 120.0  # a node imports torch and dm_control once, 5 s on a machine that has nothing else to do
SILENT_S = 10.0  # without an answer a node is lost; Ray's own detector takes up to 15 s
CLOSE_TIMEOUT_S = 15.0


class Remote:
    """A node as seen from here: its handle, its actors, what it was asked and has not answered."""

    def __init__(self, name: str, handle: Any) -> None:
        self.name, self.handle, self.actors = name, handle, list[Part]()
        self.exchange: Any = None
        self.asked_at, self.answered = time.monotonic(), False
        self.offer: tuple[Any, ...] | None = None  # the newest publication, as long as it was not sent
        self.calls: list[Any] = []
        self.running = 0


@contextlib.contextmanager
def exchanging(ray: Any, config: Config, program: Program, node_ids: list[str]) -> Iterator[Exchange]:
    """Keep the other nodes in step while the block runs, then end what is there; `node_ids` has one for each actor."""
    exchange = Exchange(ray, config, program, node_ids)
    exchange.wait_for_nodes()
    thread = threading.Thread(target=exchange.run, daemon=True)
    thread.start()
    try:
        yield exchange
    finally:
        exchange.over.set()
        thread.join()
        exchange.close()


class Exchange:
    """Starts the actors that run elsewhere, and carries weights, counters, transitions and rows between the nodes."""

    def __init__(self, ray: Any, config: Config, program: Program, node_ids: list[str]) -> None:
        self._ray, self._config, self._program = ray, config, program
        link: Link = program.link
        self._link, self.over = link, threading.Event()
        self._failed: BaseException | None = None
        self._machines, own = cluster.machines(ray), cluster.own_node(ray)
        self._own_id, self.own_name = own, self._machines[own].name
        self._weights = link.weights.subscriber(link.weights.num_readers - 1) if link.weights else None
        self._version, self._published_at, self._ref = 0, 0.0, None
        self._remotes: dict[str, Remote] = {}
        self._generations: dict[str, int] = {}
        self._waiting: list[tuple[Part, Remote]] = []
        self._losses: deque[float] = deque(maxlen=MAX_DEATHS)
        for part in program.parts:
            if part.actor_id is not None:
                node_id = node_ids[part.actor_id]
                assigned = self._row("actor", self._machines[node_id].name, part.name)
                link.log("nodes", [{**assigned, "wall_time_s": 0.0}])  # the clock has not started
                if node_id != own:
                    self._waiting.append((part, self._remote(node_id)))

    def wait_for_nodes(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until every node can start its actors, so that the run begins with all of them.

        Raises:
            TimeoutError: one does not answer.
            ValueError: one cannot do what it is to do; the text says why.
        """
        asked = {remote.name: remote.handle.ready.remote() for remote in self._remotes.values()}
        for name, ready in asked.items():
            try:
                self._ray.get(ready, timeout=timeout_s)
            except self._ray.exceptions.GetTimeoutError as error:
                raise TimeoutError(f"node {name} was not ready within {timeout_s:g} s") from error
            except self._ray.exceptions.RayError as error:
                raise ValueError(f"node {name} cannot run actors: {error}") from error

    def run(self) -> None:
        """Go on until `over` is set or something cannot be mended; `check` says what."""
        try:
            while not self.over.wait(LOOK_EVERY_S):
                self._look_for_weights()
                for remote in list(self._remotes.values()):
                    self._turn(remote)
                if self._link.published() and not self._link.should_stop():
                    self._start_waiting()
        except BaseException as error:  # the main thread raises it again
            self._failed = error

    def check(self) -> None:
        """Raise what ended the exchange, if anything did.

        Raises:
            RunFailed: actors died too often, nodes were lost too often, or a node could not go on.
        """
        if self._failed is not None:
            raise self._failed

    def close(self) -> None:
        """Let the actors elsewhere end, fetch what they wrote last, and end the nodes' processes."""
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        with contextlib.suppress(RunFailed):
            while self._failed is None and any(one.running for one in self._remotes.values()):
                for remote in list(self._remotes.values()):
                    self._turn(remote)
                if time.monotonic() > deadline:
                    break
                time.sleep(LOOK_EVERY_S)
        closing = [(remote, remote.handle.close.remote()) for remote in self._remotes.values()]
        for remote, last in closing:
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._write(remote.name, self._ray.get(last, timeout=CLOSE_TIMEOUT_S))
            self._ray.kill(remote.handle)

    def _row(self, event: str, node: str, part: str = "", reason: str = "") -> dict[str, object]:
        return {"event": event, "node": node, "part": part, "reason": reason, "wall_time_s": self._link.wall_time_s()}

    def _remote(self, node_id: str) -> Remote:
        """Return the node's side, made when it is first asked for."""
        if node_id not in self._remotes:
            strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id, soft=False)
            name = self._machines[node_id].name
            host = self._ray.util.get_node_ip_address()
            made = self._ray.remote(Node).options(num_cpus=0, max_restarts=0, scheduling_strategy=strategy)
            size = weights_bytes(self._config)
            handle = made.remote(self._config, name, host, size, self._program.prepare)
            self._remotes[node_id] = Remote(name, handle)
            if self._ref is not None:
                self._remotes[node_id].offer = self._offer()
        return self._remotes[node_id]

    def _look_for_weights(self) -> None:
        """Put the newest publication into the object store, once for all nodes."""
        if self._weights is None or not self._remotes or self._weights.version() == self._version:
            return
        if (now := time.monotonic()) - self._published_at >= EXCHANGE_EVERY_S:
            self._version, self._published_at = self._weights.version(), now
            self._ref = self._ray.put(self._weights.fetch())
            for remote in self._remotes.values():
                remote.offer = self._offer()

    def _offer(self) -> tuple[Any, ...]:
        _, published_at_s, steps = self._publication()
        return self._ref, self._version, published_at_s, steps

    def _publication(self) -> tuple[int, float, int]:
        number, at_ns, steps = self._link.publication()
        return number, at_ns / 1e9 - self._link.started_at, steps

    def _turn(self, remote: Remote) -> None:
        """Send a node what it lacks and take what it answered."""
        ray, now = self._ray, time.monotonic()
        try:
            waits = [*remote.calls, *([remote.exchange] if remote.exchange else [])]
            ready = ray.wait(waits, num_returns=len(waits), timeout=0)[0] if waits else []
            for call in ready:
                answer = ray.get(call)
                if call == remote.exchange:
                    remote.exchange, remote.answered = None, True
                    self._take(remote, answer)
                else:
                    remote.calls.remove(call)
            if remote.offer is not None and not remote.calls:
                remote.calls.append(remote.handle.publish.remote(*remote.offer))
                remote.offer = None
            if remote.exchange is None and now - remote.asked_at >= EXCHANGE_EVERY_S:
                remote.exchange, remote.asked_at = remote.handle.exchange.remote(self._down()), now
            patience = SILENT_S if remote.answered else START_TIMEOUT_S
            if remote.exchange is not None and now - remote.asked_at > patience:
                raise TimeoutError(f"no answer for {patience:.0f} s")
        except (ray.exceptions.RayActorError, TimeoutError) as error:
            self._lost(remote, str(error).strip().splitlines()[0])
        except ray.exceptions.RayTaskError as error:
            raise RunFailed(f"node {remote.name}: {error.cause}") from error

    def _down(self) -> Down:
        link = self._link
        replay = np.array(link.replay.counts()) if link.replay is not None else None
        steps = tuple(link.actor_steps_of(actor_id) for actor_id in range(link.num_actors))
        return Down(tuple(link.board[word] for word in OWN_WORDS), self._publication(), steps, replay)

    def _take(self, remote: Remote, up: Up) -> None:
        for actor_id, steps in up.actor_steps.items():
            self._link.set_actor_steps(actor_id, steps)
            self._link.set_pulled(actor_id, up.pulled[actor_id])
        for actor_id, vectors in up.transitions.items():
            relay.extend(self._link.replay, actor_id, vectors)
        self._write(remote.name, up.written)
        remote.running = up.running
        if up.failed:
            raise RunFailed(up.failed)

    def _write(self, node: str, written: dict[str, bytes]) -> None:
        """Append what a node wrote to this run's own files, each row with the node's name."""
        for name, lines in written.items():
            if name.endswith(".jsonl"):
                rows = [json.dumps({**json.loads(line), "node": node}) + "\n" for line in lines.splitlines()]
                lines = "".join(rows).encode()
            with (self._link.directory / "logs" / name).open("ab") as file:
                file.write(lines)

    def _start_waiting(self) -> None:
        """Start the actors that have no process yet, where their predecessors stood."""
        for part, remote in self._waiting:
            assert part.actor_id is not None
            generation = self._generations[part.name] = self._generations.get(part.name, -1) + 1
            replay = self._link.replay
            inserted = relay.inserted_by(replay, part.actor_id) if replay is not None else 0
            ahead = Ahead(generation, self._link.actor_steps_of(part.actor_id), inserted)
            config, _, *others = part.arguments
            sent = replace(part, arguments=(config, None, *others))  # a link stays on its machine
            remote.calls.append(remote.handle.start.remote([(sent, ahead)], self._link.wall_time_s()))
            remote.actors.append(part)
            remote.running += 1
        self._waiting.clear()

    def _lost(self, remote: Remote, reason: str) -> None:
        """Note that a node is gone, and let its actors go on where the fewest are.

        Raises:
            RunFailed: it was one too many.
        """
        ray, link = self._ray, self._link
        self._remotes = {node_id: one for node_id, one in self._remotes.items() if one is not remote}
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(remote.handle)
        link.log("nodes", [self._row("lost", remote.name, reason=reason)])
        if link.should_stop():
            return
        self._losses.append(time.monotonic())
        if len(self._losses) == MAX_DEATHS and self._losses[-1] - self._losses[0] < DEATHS_WITHIN_S:
            raise RunFailed(f"nodes were lost {MAX_DEATHS} times within {DEATHS_WITHIN_S:g} s; the last: {reason}")
        orphans = [*remote.actors, *(part for part, one in self._waiting if one is remote)]
        self._waiting = [(part, one) for part, one in self._waiting if one is not remote]
        self._machines = cluster.machines(ray)
        for part in orphans:
            others = self._remotes.values()
            fewest = min(others, key=lambda one: len(one.actors), default=None) or self._remote(self._own_id)
            self._waiting.append((part, fewest))
            link.log("nodes", [self._row("actor", fewest.name, part.name)])
