"""Measure what the stages of actors and learner cost on this machine: a table for the virtual clock.

Costs are those of a part that has a core to itself. Each call is timed alone, and calls that took three times as long
as the quick ones are left out: other work had the core or its caches meanwhile. But those that wait for a server take
long by themselves.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from quarl_lib import results
from quarl_lib.actorq.bench.setups import DESIGNS, Setup
from quarl_lib.actorq.config import Config
from quarl_lib.actorq.launch import program
from quarl_lib.actorq.launch.costs import BEHIND, OF_A_MESSAGE, OF_AN_ACTOR, OF_THE_LEARNER, SECTIONS
from quarl_lib.actorq.link import Link
from quarl_lib.actorq.timing import StageTimer
from quarl_lib.envs import control, specs

AUTHORS = ("fp32", "fp16", "int8")  # what torch.ao runs
PERIOD = 30  # steps between two pulls while actors are timed
UPDATES = 60
UNDISTURBED = 3.0  # times as long as a quick call: as much as calls differ by themselves
QUICK = 0.1  # of the calls are as quick or quicker
KEPT = 8  # values in a list


class Laps(StageTimer):
    """A timer that keeps every lap."""

    __slots__ = ("laps", "waiting")

    def __init__(self) -> None:
        self.laps: defaultdict[str, list[float]] = defaultdict(list)
        self.waiting: set[str] = set()  # stages of which some calls wait for a server
        super().__init__()

    def lap(self, stage: str, num_bytes: int = 0) -> float:
        """Book the time since the last mark, and keep it."""
        elapsed = super().lap(stage, num_bytes)
        self.laps[stage].append(elapsed)
        return elapsed

    def cost(self, stage: str) -> list[float]:
        """Return the values of a stage in a table of costs."""
        return undisturbed(self.laps[stage], stage in self.waiting)


def algorithm_of(task: str) -> str:
    """Return the algorithm that suits a task's actions."""
    return "dqn" if control.is_discrete(task) else "d4pg"


def measure(
    machine: str, tasks: Sequence[str], hidden: Sequence[int], precisions: Sequence[str], config: Config,
    designs: Sequence[str] = DESIGNS, steps: int = 300, progress: results.Progress = results.no_progress,
) -> dict[str, Any]:  # fmt: skip
    """Return the table as plain values: what a call took, each eighth of the calls by its mean.

    Args:
        machine: what the table says of where it was measured.
        tasks: whose env_step is wanted; the first one's policy, with `hidden`, gives the other stages.
        config: the learner's options: its task, networks, batch size and replay.
        steps: of each actor.
    """
    setups = [
        Setup(task=tasks[0], hidden=tuple(hidden), precision=precision, update_period=PERIOD, design=design,
              replay=config.replay if design == "packed" else "reverb",
              transport="shared_memory" if design == "packed" else "reverb")
        for design in designs for precision in precisions if design == "packed" or precision in AUTHORS
    ]  # fmt: skip
    setups += [Setup(task=task, hidden=(64,), replay=config.replay, update_period=PERIOD) for task in tasks[1:]]
    actor: dict[str, dict[str, Any]] = {}
    messages: dict[str, dict[str, Any]] = {}
    env_step: dict[str, Any] = {}
    for number, setup in enumerate(setups):
        progress(number, len(setups) + 1, f"{setup.design} {setup.precision} on {setup.task}")
        timer, behind = _actor(setup, steps)
        if setup.task not in env_step:
            env_step[setup.task] = timer.cost("env_step")
        if setup.task == tasks[0]:
            stages: dict[str, Any] = {name: timer.cost(name) for name in OF_AN_ACTOR}
            actor.setdefault(setup.design, {})[setup.precision] = {**stages, BEHIND["observe"]: behind}
            paid = {name: timer.cost(name) for name in OF_A_MESSAGE}
            messages.setdefault(setup.design, {})[setup.precision] = paid
    progress(len(setups), len(setups) + 1, "the learner")
    learner, behind = learner_laps(config)
    progress(len(setups) + 1, len(setups) + 1, "measured")
    return {
        "machine": machine,
        "source": dict.fromkeys(SECTIONS, "measured"),
        "policy": f"{'x'.join(map(str, hidden))} on {tasks[0]}; learner {'x'.join(map(str, config.policy_hidden))}, "
        f"critic {'x'.join(map(str, config.critic_hidden))}, batch {config.batch_size}",
        "env_step": env_step,
        "actor": actor,
        "learner": {
            **{name: learner.cost(name) for name in OF_THE_LEARNER},
            BEHIND["sample"]: behind,
            "message": messages,
        },
    }


def undisturbed(seconds: Sequence[float], waiting: bool = False) -> list[float]:
    """Return microseconds of the calls that nothing interrupted, the mean of each eighth; [0.0] where there were none.

    So they keep the mean of all, in which a few long ones may be most. `waiting`: some calls are of another kind,
    longer by themselves; of them, too, those count that nothing interrupted.
    """
    values = np.sort(np.asarray(seconds)) * 1e6
    if not values.size:
        return [0.0]
    kept = values[values <= UNDISTURBED * np.quantile(values, QUICK)]
    longer = values[len(kept) :]
    if waiting and longer.size:
        kept = np.concatenate([kept, longer[longer <= UNDISTURBED * np.median(longer)]])
    return [round(float(part.mean()), 2) for part in np.array_split(kept, min(KEPT, len(kept)))]


class _Behind:
    """Measures the CPU time of this process's other threads."""

    def __init__(self) -> None:
        self._began_at = self._now()

    def us_each(self, calls: int) -> float:
        """Return the microseconds since the start, for each of so many calls."""
        return round(1e6 * max(self._now() - self._began_at, 0.0) / max(calls, 1), 2)

    def _now(self) -> float:
        return time.process_time() - time.thread_time()


def _actor(setup: Setup, steps: int) -> tuple[Laps, float]:
    """Run one actor beside a learner that only publishes, in this process; return every lap of both, and what other
    threads took for a step in microseconds."""
    from quarl_lib.actorq.actor.loop import run_episode
    from quarl_lib.actorq.replay.choice import make_adder, open_replay

    config = setup.config().replace(max_replay=steps + 1000)
    environment = control.make(setup.task, 0, flat=setup.design == "packed")
    spec = specs.make_environment_spec(environment)
    timer, taken = Laps(), 0
    with tempfile.TemporaryDirectory(prefix="quarl-") as directory:
        link = Link(Path(directory), 1)
        if config.local_replay:
            link.replay = program.replay_memory(config)
        replay = open_replay(config, link, spec)
        if replay.address:
            link.set_address(replay.address)
            timer.waiting.add("observe")  # every flush_period steps
        adder = make_adder(config, link, spec, 0)
        select_action, publish, pull = _sides(setup, config, link, timer)
        publish()
        pull(timer)
        timer.laps.clear()

        def after_step() -> bool:
            nonlocal taken
            taken += 1
            if taken % PERIOD == 0:
                publish()
                timer.start()
                pull(timer)
            return taken < steps

        behind = _Behind()
        timer.start()
        while taken < steps:
            run_episode(environment, select_action, adder, timer, after_step)
        adder.flush()  # type: ignore[attr-defined]
        of_others = behind.us_each(taken)
        replay.stop()
    return timer, of_others


def _sides(setup: Setup, config: Config, link: Link, timer: Laps) -> tuple[Any, Callable[[], None], Any]:
    """Return what acts, what publishes the next weights, and what pulls them."""
    import torch

    from quarl_lib.actorq.actor.exploration import make_exploration
    from quarl_lib.actorq.actor.loop import Puller
    from quarl_lib.actorq.bench import authors
    from quarl_lib.actorq.learner.networks import initial_policy
    from quarl_lib.actorq.weights.broadcast import ReverbPublisher, ReverbSubscriber, SharedMemoryBroadcast
    from quarl_lib.inference import make_engine
    from quarl_lib.inference.pack import pack, packed_size

    torch.set_num_threads(1)
    spec, weights = initial_policy(config, 0)
    make: Callable[[], Any]
    policy: Any
    pull: Any
    publisher: Any
    if setup.design == "packed":
        broadcast = SharedMemoryBroadcast(packed_size(spec, setup.precision), 1)
        publisher = broadcast.publisher()
        make = partial(pack, spec, weights, setup.precision)
        policy = make_engine(spec, setup.precision, setup.backend)
        pull = Puller(spec, policy, broadcast.subscriber(0), setup.precision)
    else:
        module = authors.make_module(spec, weights, setup.precision)
        publisher = ReverbPublisher(link.address())
        policy = authors.TorchPolicy(spec, module)
        pull = authors.StateDictPuller(module, ReverbSubscriber(link.address()))

        def make() -> Any:
            return authors.serialize(authors.make_module(spec, weights, setup.precision))

    def publish() -> None:
        timer.start()
        message = make()
        timer.lap("quantize")
        publisher.publish(message)
        timer.lap("broadcast")

    spec_of = _exploration_spec(config)
    explore = make_exploration(config, spec_of, 0, np.random.default_rng(0))
    return lambda observation: explore(policy(observation)), publish, pull


def _exploration_spec(config: Config) -> Any:
    return specs.make_environment_spec(control.make(config.task, 0))


def learner_laps(config: Config, updates: int = UPDATES) -> tuple[Laps, float]:
    """Return every lap of batches and updates, one after the other as in the learner's loop, and what other threads
    took for a batch in microseconds."""
    import torch

    from quarl_lib.actorq.learner import loop
    from quarl_lib.actorq.replay.choice import make_adder, open_replay

    threads = torch.get_num_threads()
    torch.set_num_threads(config.learner_threads)
    config = config.replace(samples_per_insert=0.0, n_actors=1, actor_steps=1 << 40)
    environment = control.make(config.task, config.seed)
    spec, timer = specs.make_environment_spec(environment), Laps()
    with tempfile.TemporaryDirectory(prefix="quarl-") as directory:
        link = Link(Path(directory), 1)
        if config.local_replay:
            link.replay = program.replay_memory(config)
        replay = open_replay(config, link, spec)
        if replay.address:
            link.set_address(replay.address)
        _fill(make_adder(config, link, spec, 0), environment, config)
        algorithm, behind = loop.ALGORITHMS[config.algorithm], _Behind()
        state = algorithm.init(config, spec, torch.device("cpu"))
        end = time.monotonic() + 60.0
        batches = replay.batches(lambda: time.monotonic() > end)
        for number, batch in zip(range(updates + 10), batches, strict=False):
            timer.lap("sample")
            algorithm.update(config, state, batch)
            timer.lap("learner_step")
            if number == 9:
                timer.laps.clear()  # those warmed up
                behind = _Behind()
        of_others = behind.us_each(updates)
        batches.close()
        replay.stop()
    torch.set_num_threads(threads)
    return timer, of_others


def _fill(adder: Any, environment: Any, config: Config) -> None:
    """Play random actions until there is enough to sample."""
    rng = np.random.default_rng(config.seed)
    action = environment.action_spec()
    timestep = None
    for _ in range(config.min_replay + config.batch_size):
        if timestep is None or timestep.last():
            timestep = environment.reset()
            adder.add_first(timestep)
        if control.is_discrete(config.task):
            chosen: Any = int(rng.integers(action.num_values))
        else:
            chosen = rng.uniform(-1, 1, action.shape).astype(np.float32)
        timestep = environment.step(chosen)
        adder.add(chosen, timestep)
    adder.flush()
