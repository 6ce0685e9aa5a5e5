"""The two processes of a throughput measurement: one publishes weights on demand, one acts in blocks of steps."""

from __future__ import annotations

import gc
import itertools
import os
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from quarl_lib.actorq.bench.setups import Setup
from quarl_lib.actorq.config import Config
from quarl_lib.actorq.link import Link
from quarl_lib.actorq.replay.batched import BatchedNStep
from quarl_lib.actorq.replay.transitions import Adder
from quarl_lib.actorq.timing import StageTimer
from quarl_lib.actorq.weights.broadcast import ReverbPublisher, ReverbSubscriber, SharedMemoryBroadcast, Subscriber
from quarl_lib.envs import control, specs, vectorized

STAGES = ("env_step", "select_action", "observe", "pull", "deserialize", "load_weights", "other")
VERSIONS = 3  # messages that the publisher takes turns with
FIRST_WEIGHTS_TIMEOUT_S = 30.0


def _pin(last: bool) -> None:
    """Keep the actor on the last core and everything else off it."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) > 1:
        os.sched_setaffinity(0, cores[-1:] if last else cores[:-1])


def publish(
    setups: list[Setup], broadcasts: list[SharedMemoryBroadcast | None], seed: int, actor: Connection, link: Link
) -> None:
    """Serve replay, and publish a set-up's next weights whenever the actor asks; requests that piled up count once."""
    _pin(last=False)
    addresses: dict[str, str] = {}
    servers, publishers, messages = [], [], []
    cache: dict[Any, list[Any]] = {}
    for setup, broadcast in zip(setups, broadcasts, strict=True):
        config = setup.config()
        key = f"{setup.task} {config.adder}"
        if key not in addresses and not config.local_replay:
            from quarl_lib.actorq.replay import reverb as replay

            environment = control.make(setup.task, seed, flat=setup.design == "packed")
            servers.append(replay.serve(config, specs.make_environment_spec(environment)))
            addresses[key] = servers[-1].address
        publishers.append(broadcast.publisher() if broadcast else ReverbPublisher(addresses[key]))
        content = (setup.task, setup.hidden, setup.design, config.weights_precision)
        if content not in cache:
            cache[content] = [_message(setup, seed + version) for version in range(VERSIONS)]
        messages.append(itertools.cycle(cache[content]))
    actor.send(addresses)
    while not link.should_stop():
        if actor.poll(0.2):
            wanted, ticket = actor.recv()
            while actor.poll():
                wanted, ticket = actor.recv()
            publishers[wanted].publish(next(messages[wanted]))
            actor.send(ticket)
    for server in servers:
        server.stop()


def _message(setup: Setup, seed: int) -> Any:
    """Make one message of a set-up: a policy with PyTorch's default initialisation."""
    from quarl_lib.actorq.bench import authors as baseline
    from quarl_lib.actorq.learner.networks import initial_policy
    from quarl_lib.inference.pack import pack

    config = setup.config()
    spec, weights = initial_policy(config, seed)
    if setup.design == "authors":
        return baseline.serialize(baseline.make_module(spec, weights, setup.precision))
    return pack(spec, weights, config.weights_precision, weights_version=seed)


class _Request:
    """Asks the publisher for a set-up's next weights; set-ups may share a table, so what is waited for has a number."""

    def __init__(self, publisher: Connection, setup: int, tickets: Iterator[int]) -> None:
        self._publisher, self._setup, self._tickets, self._asked = publisher, setup, tickets, 0

    def __call__(self) -> None:
        """Ask, and go on."""
        self._asked = next(self._tickets)
        self._publisher.send((self._setup, self._asked))

    def wait(self) -> None:
        """Wait until what was asked for last is published."""
        deadline = time.monotonic() + FIRST_WEIGHTS_TIMEOUT_S
        while not (self._publisher.poll(0.5) and self._publisher.recv() == self._asked):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no new weights within {FIRST_WEIGHTS_TIMEOUT_S:g} s; see the publisher's log")


def _adder_maker(config: Config, address: str, spec: specs.EnvironmentSpec, link: Link) -> Callable[[], Adder]:
    """Return what makes an actor's adder: into Reverb's server, or into memory of its own that nobody samples."""
    if config.local_replay:
        from quarl_lib.actorq.replay.local import LocalAdder, Memory

        memory = Memory(config, spec, num_writers=1)
        return lambda: LocalAdder(config, memory, spec, 0, link.should_stop)
    from quarl_lib.actorq.replay import reverb

    return lambda: reverb.make_adder(config, address, spec, link.should_stop)


class _Runner:
    """One set-up's actor, ready to run blocks of steps."""

    def __init__(
        self, setup: Setup, broadcast: SharedMemoryBroadcast | None, address: str, seed: int, link: Link
    ) -> None:
        from quarl_lib.actorq.actor import loop as actor
        from quarl_lib.actorq.actor.exploration import make_exploration
        from quarl_lib.actorq.bench import authors as baseline
        from quarl_lib.actorq.learner.networks import initial_policy
        from quarl_lib.inference import make_engine

        config = setup.config()
        self.transitions: BatchedNStep | None = None
        if setup.envs_per_actor > 1:
            self.environment: Any = vectorized.make(setup.task, range(seed, seed + setup.envs_per_actor))
        else:
            self.environment = control.make(setup.task, seed, flat=setup.design == "packed")
        environment_spec = specs.make_environment_spec(self.environment)
        if setup.envs_per_actor > 1:
            self.transitions = BatchedNStep(environment_spec, setup.envs_per_actor, config.n_step, config.discount)
        self.update_period = setup.update_period
        self.subscriber: Subscriber = broadcast.subscriber(0) if broadcast else ReverbSubscriber(address)
        self.make_adder = _adder_maker(config, address, environment_spec, link)
        spec, weights = initial_policy(config, seed)
        self.policy: Any
        self.pull: Any
        if setup.design == "authors":
            module = baseline.make_module(spec, weights, setup.precision)
            self.policy = baseline.TorchPolicy(spec, module)
            self.pull = baseline.StateDictPuller(module, self.subscriber)
        else:
            self.policy = make_engine(spec, setup.precision, setup.backend)
            self.pull = actor.Puller(spec, self.policy, self.subscriber, config.weights_precision)
        self.explore = make_exploration(config, environment_spec, 0, np.random.default_rng(seed))

    def select_action(self, observation: Any) -> Any:
        return self.explore(self.policy(observation))

    def block(self, steps: int, request: _Request) -> list[dict[str, object]]:
        """Run one block and return a row per stage."""
        from quarl_lib.actorq.actor.copies import play
        from quarl_lib.actorq.actor.loop import run_episode

        request()
        request.wait()
        timer = StageTimer()
        self.pull(timer)
        adder = self.make_adder()  # a block leaves an episode unfinished, which Acme's adder cannot forget
        taken = pulls = 0
        messages, num_bytes = self.pull.fetched, self.pull.fetched_bytes

        def after_step(count: int = 1) -> bool:
            nonlocal taken, pulls
            before, taken = taken, taken + count
            if taken // self.update_period > before // self.update_period:
                pulls += 1
                self.pull(timer)
                request()
                timer.start()  # asking is the measurement's doing, not the actor's: it goes to "other"
            return taken < steps

        request()
        cpu, begin = time.process_time(), time.perf_counter()
        timer.reset()
        if self.transitions is not None:
            writer: Any = adder
            play(
                self.environment, self.select_action, self.transitions, writer, timer, after_step,
                lambda episode_return, length: None,
            )  # fmt: skip
        while taken < steps:
            run_episode(self.environment, self.select_action, adder, timer, after_step)
        wall_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
        adder.flush()
        messages, num_bytes = self.pull.fetched - messages, self.pull.fetched_bytes - num_bytes
        timer.seconds["other"] = wall_s - sum(timer.seconds.values())
        block = {"steps": taken, "wall_s": wall_s, "cpu_s": cpu_s, "pulls": pulls, "messages": messages,
                 "payload_bytes": num_bytes // max(messages, 1)}  # fmt: skip
        return [{**block, "stage": stage, "seconds": timer.seconds.get(stage, 0.0)} for stage in STAGES]


def act(
    setups: list[Setup],
    broadcasts: list[SharedMemoryBroadcast | None],
    seed: int,
    publisher: Connection,
    link: Link,
    order: list[int],
    steps: int,
) -> None:
    """Run the blocks in their order."""
    import torch

    torch.set_num_threads(1)
    _pin(last=True)
    while not publisher.poll(0.2):
        if link.should_stop():
            return
    addresses = publisher.recv()
    runners = [
        _Runner(setup, broadcast, addresses.get(f"{setup.task} {setup.config().adder}", ""), seed, link)
        for setup, broadcast in zip(setups, broadcasts, strict=True)
    ]
    tickets = itertools.count(1)
    requests = [_Request(publisher, index, tickets) for index in range(len(setups))]
    gc.freeze()
    done = [0] * len(setups)
    for number, index in enumerate(order):
        if link.should_stop():
            return
        gc.collect()
        rows = runners[index].block(steps, requests[index])
        link.log("blocks", [{"setup": index, "round": done[index], **row} for row in rows])
        done[index] += 1
        link.set_actor_steps(0, (number + 1) * steps)
