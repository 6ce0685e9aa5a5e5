"""How fast one actor runs when nothing holds it back: several set-ups in turn, in one process, on one core.

Actor-bound by design: no learner competes for the core. A publisher on another core brings new weights for every
pull, as far as the transport lets it. Blocks of steps of all set-ups alternate, so that what slows the machine for a
while slows all of them.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from dataclasses import asdict, dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from quarl_lib import results
from quarl_lib.actorq.broadcast import ReverbPublisher, ReverbSubscriber, SharedMemoryBroadcast, Subscriber
from quarl_lib.actorq.config import TRANSPORTS, Config
from quarl_lib.actorq.link import Link, read
from quarl_lib.actorq.program import Part, Program, weights_bytes
from quarl_lib.envs import control
from quarl_lib.timing import StageTimer

DESIGNS = ("packed", "authors")
ACTOR_STAGES = ("env_step", "select_action", "observe", "pull", "deserialize", "load_weights", "other")
VERSIONS = 3  # buffers that the publisher takes turns with
FIRST_WEIGHTS_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Setup:
    """One way to run an actor.

    design: "packed" is ours (one float32 vector a transition, a packed buffer, the version asked for first);
        "authors" is the paper's recipe (Acme's adder, torch.ao, a state_dict through Reverb at every pull).
    communication_precision: "same" as `precision`, or another that the actor converts.

    Raises:
        ValueError: a combination that the design does not have.
    """

    task: str = "dm_control:cartpole:balance"
    hidden: tuple[int, ...] = (2048, 2048, 2048)
    precision: str = "int8"
    update_period: int = 300
    design: str = "packed"
    communication_precision: str = "same"
    transport: str = "shared_memory"
    backend: str = "auto"

    def __post_init__(self) -> None:
        if self.design not in DESIGNS:
            raise ValueError(f"design={self.design!r}: choose one of {', '.join(DESIGNS)}")
        if self.design == "authors":
            from quarl_lib.actorq.baseline import PRECISIONS

            if self.precision not in PRECISIONS:
                raise ValueError(f"precision={self.precision!r}: the authors' recipe has {', '.join(PRECISIONS)}")
            if self.transport != "reverb" or self.communication_precision != "same":
                raise ValueError(
                    f"transport={self.transport!r}, communication_precision={self.communication_precision!r}: "
                    "the authors' recipe sends the actor's own state_dict through reverb"
                )
        self.config()

    def config(self) -> Config:
        """Return the options of an actor that works alone."""
        return Config(
            task=self.task,
            algorithm="dqn" if control.is_discrete(self.task) else "d4pg",
            precision=self.precision,
            communication_precision=self.communication_precision,
            transport=self.transport,
            backend=self.backend,
            update_period=self.update_period,
            policy_hidden=self.hidden,
            adder="structured" if self.design == "packed" else "acme",
            n_actors=1,
            actor_steps=1 << 40,
            samples_per_insert=0.0,
            min_replay=1,
        )


def measure(
    setups: list[Setup],
    steps: int,
    rounds: int,
    seed: int = 0,
    progress: results.Progress = results.no_progress,
) -> pd.DataFrame:
    """Run `rounds` blocks of `steps` actor steps of every set-up in turn, after one block each that is not kept.

    Returns:
        One row per set-up, round and stage: the set-up's columns, `round`, `steps`, `stage`, `seconds`; and, the same
        for all stages of a block, `wall_s`, `cpu_s`, `payload_bytes` (of one message), `messages`, `pulls`. The
        stage "other" is what no stage holds.

    Raises:
        ValueError: no set-ups, or blocks in which a set-up would never pull.
        launch_local.RunFailed: a process died.
    """
    from quarl_lib.actorq import launch_local

    if not setups:
        raise ValueError("setups=[]: give at least one")
    longest = max(setup.update_period for setup in setups)
    if steps < longest:
        raise ValueError(f"steps={steps}: a block must hold at least one pull; give {longest} or more")
    if rounds < 1:
        raise ValueError(f"rounds={rounds}: give at least 1")
    rng = np.random.default_rng(seed)
    order = [int(i) for _ in range(rounds + 1) for i in rng.permutation(len(setups))]
    broadcasts = [_broadcast(setup) for setup in setups]
    ours, theirs = Pipe()
    launch_local.warm_up()
    with tempfile.TemporaryDirectory(prefix="quarl-") as directory:
        link = Link(Path(directory), 1)
        parts = (
            Part("publisher", _publish, (setups, broadcasts, seed, theirs, link)),
            Part("actor", _act, (setups, broadcasts, seed, ours, link, order, steps), ends_run=True),
        )
        with launch_local.signals_as_exceptions():
            launch_local.supervise(Program(parts, link, len(order) * steps, "actor steps"), progress)
        blocks = read(link.directory, "blocks")
    table = pd.DataFrame([asdict(setup) for setup in setups]).drop(columns="hidden")
    table["hidden"] = ["x".join(map(str, setup.hidden)) for setup in setups]
    return blocks[blocks["round"] > 0].merge(table, left_on="setup", right_index=True).reset_index(drop=True)


def _broadcast(setup: Setup) -> SharedMemoryBroadcast | None:
    if setup.transport != TRANSPORTS[0]:
        return None
    return SharedMemoryBroadcast(weights_bytes(setup.config()), num_readers=1)


def _pin(last: bool) -> None:
    """Keep the actor on the last core and everything else off it."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) > 1:
        os.sched_setaffinity(0, cores[-1:] if last else cores[:-1])


def _publish(
    setups: list[Setup], broadcasts: list[SharedMemoryBroadcast | None], seed: int, actor: Connection, link: Link
) -> None:
    """Serve replay, and publish a set-up's next weights whenever the actor asks; requests that piled up count once."""
    from acme import specs

    from quarl_lib.actorq import replay

    _pin(last=False)
    addresses: dict[str, str] = {}
    servers, publishers, payloads = [], [], []
    cache: dict[Any, list[Any]] = {}
    for setup, broadcast in zip(setups, broadcasts, strict=True):
        config = setup.config()
        key = f"{setup.task} {config.adder}"
        if key not in addresses:
            environment = control.make(setup.task, seed, flat=setup.design == "packed")
            servers.append(replay.serve(config, specs.make_environment_spec(environment)))
            addresses[key] = servers[-1].address
        publishers.append(broadcast.publisher() if broadcast else ReverbPublisher(addresses[key]))
        content = (setup.task, setup.hidden, setup.design, config.weights_precision)
        if content not in cache:
            cache[content] = [_payload(setup, seed + version) for version in range(VERSIONS)]
        payloads.append(itertools.cycle(cache[content]))
    actor.send(addresses)
    while not link.should_stop():
        if actor.poll(0.2):
            wanted = actor.recv()
            while actor.poll():
                wanted = actor.recv()
            publishers[wanted].publish(next(payloads[wanted]))
    for server in servers:
        server.stop()


def _payload(setup: Setup, seed: int) -> Any:
    """Make one message of a set-up: a policy with PyTorch's default initialisation."""
    from quarl_lib.actorq import baseline
    from quarl_lib.inference.pack import pack

    spec, weights = _policy(setup, seed)
    if setup.design == "authors":
        return baseline.serialize(baseline.make_module(spec, weights, setup.precision))
    return pack(spec, weights, setup.config().weights_precision, weights_version=seed)


def _policy(setup: Setup, seed: int) -> Any:
    import torch
    from acme import specs

    from quarl_lib.actorq.policy import policy_spec, policy_weights
    from quarl_lib.networks import mlp

    spec = policy_spec(setup.config(), specs.make_environment_spec(control.make(setup.task, seed)))
    torch.manual_seed(seed)
    return spec, policy_weights(mlp(spec.layers[0].in_features, setup.hidden, spec.action_dim))


class _Runner:
    """One set-up's actor, ready to run blocks of steps."""

    def __init__(
        self, setup: Setup, broadcast: SharedMemoryBroadcast | None, address: str, seed: int, link: Link
    ) -> None:
        from acme import specs

        from quarl_lib.actorq import actor, baseline, replay
        from quarl_lib.actorq.exploration import make_exploration
        from quarl_lib.inference import make_engine

        config = setup.config()
        self.environment = control.make(setup.task, seed, flat=setup.design == "packed")
        environment_spec = specs.make_environment_spec(self.environment)
        self.update_period = setup.update_period
        self.subscriber: Subscriber = broadcast.subscriber(0) if broadcast else ReverbSubscriber(address)
        self.make_adder = lambda: replay.make_adder(config, address, environment_spec, link.should_stop)
        spec, weights = _policy(setup, seed)
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

    def block(self, steps: int, request: Any) -> list[dict[str, object]]:
        """Run one block and return a row per stage; `request` asks the publisher for new weights."""
        from quarl_lib.actorq.actor import run_episode

        before = self.subscriber.version()
        request()
        deadline = time.monotonic() + FIRST_WEIGHTS_TIMEOUT_S
        while self.subscriber.version() == before:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no new weights within {FIRST_WEIGHTS_TIMEOUT_S:g} s; see the publisher's log")
            time.sleep(0.001)
        timer = StageTimer()
        self.pull(timer)
        adder = self.make_adder()  # a block leaves an episode unfinished, which Acme's adder cannot forget
        taken = pulls = 0
        messages, num_bytes = self.pull.fetched, self.pull.fetched_bytes

        def after_step() -> bool:
            nonlocal taken, pulls
            taken += 1
            if taken % self.update_period == 0:
                pulls += 1
                self.pull(timer)
                request()
                timer.start()  # asking is the measurement's doing, not the actor's: it goes to "other"
            return taken < steps

        request()
        cpu, begin = time.process_time(), time.perf_counter()
        timer.reset()
        while taken < steps:
            run_episode(self.environment, self.select_action, adder, timer, after_step)
        wall_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
        adder.flush()
        messages, num_bytes = self.pull.fetched - messages, self.pull.fetched_bytes - num_bytes
        timer.seconds["other"] = wall_s - sum(timer.seconds.values())
        block = {"steps": steps, "wall_s": wall_s, "cpu_s": cpu_s, "pulls": pulls, "messages": messages,
                 "payload_bytes": num_bytes // max(messages, 1)}  # fmt: skip
        return [{**block, "stage": stage, "seconds": timer.seconds.get(stage, 0.0)} for stage in ACTOR_STAGES]


def _act(
    setups: list[Setup],
    broadcasts: list[SharedMemoryBroadcast | None],
    seed: int,
    publisher: Connection,
    link: Link,
    order: list[int],
    steps: int,
) -> None:
    """Run the blocks in their order."""
    import gc

    import torch

    torch.set_num_threads(1)
    _pin(last=True)
    while not publisher.poll(0.2):
        if link.should_stop():
            return
    addresses = publisher.recv()
    runners = [
        _Runner(setup, broadcast, addresses[f"{setup.task} {setup.config().adder}"], seed, link)
        for setup, broadcast in zip(setups, broadcasts, strict=True)
    ]
    done = [0] * len(setups)
    for number, index in enumerate(order):
        if link.should_stop():
            return
        gc.collect()
        rows = runners[index].block(steps, lambda index=index: publisher.send(index))
        link.log("blocks", [{"setup": index, "round": done[index], **row} for row in rows])
        done[index] += 1
        link.set_actor_steps(0, (number + 1) * steps)
