"""Measure what the stages of actors and learner cost on this machine: a table for the virtual clock.

Costs are those of a part that has a core to itself: where other work took the core for a while, a round's times are
scaled down to the CPU time that was spent in it, and the quickest quarter of the rounds is kept.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from quarl_lib import results
from quarl_lib.actorq.bench import throughput
from quarl_lib.actorq.bench.setups import DESIGNS, Setup
from quarl_lib.actorq.config import Config
from quarl_lib.actorq.launch import program
from quarl_lib.actorq.launch.costs import OF_AN_ACTOR, SECTIONS
from quarl_lib.actorq.link import Link
from quarl_lib.envs import control

AUTHORS = ("fp32", "fp16", "int8")  # what torch.ao runs
PER_PULL, PER_MESSAGE = ("pull",), ("deserialize", "load_weights")
PERIOD = 100
UPDATES_A_ROUND = 10


def measure(
    machine: str, tasks: Sequence[str], hidden: Sequence[int], precisions: Sequence[str], config: Config,
    designs: Sequence[str] = DESIGNS, steps: int = 200, rounds: int = 16,
    progress: results.Progress = results.no_progress,
) -> dict[str, Any]:  # fmt: skip
    """Return the table as plain values; a list has a mean for each of the quickest quarter of the rounds.

    Args:
        machine: what the table says of where it was measured.
        tasks: whose env_step is wanted; the first one's policy, with `hidden`, gives the other stages.
        config: the learner's options: its task, networks, batch size and replay.
    """
    setups = [
        Setup(task=tasks[0], hidden=tuple(hidden), precision=precision, update_period=PERIOD, design=design,
              replay=config.replay if design == "packed" else "reverb",
              transport="shared_memory" if design == "packed" else "reverb")
        for design in designs for precision in precisions if design == "packed" or precision in AUTHORS
    ]  # fmt: skip
    others = [Setup(task=task, hidden=(64,), precision="int8", update_period=PERIOD) for task in tasks[1:]]
    blocks = throughput.measure([*setups, *others], steps, rounds, progress=progress)
    actor: dict[str, dict[str, Any]] = {}
    messages: dict[str, dict[str, Any]] = {}
    for number, setup in enumerate(setups):
        rows = blocks[blocks.setup == number]
        actor.setdefault(setup.design, {})[setup.precision] = {name: _per_call(rows, name) for name in OF_AN_ACTOR}
        messages.setdefault(setup.design, {})[setup.precision] = _message(setup, rounds)
    first = {tasks[0]: _per_call(blocks[blocks.setup == 0], "env_step")}
    rest = {s.task: _per_call(blocks[blocks.setup == n], "env_step") for n, s in enumerate(others, start=len(setups))}
    return {
        "machine": machine,
        "source": dict.fromkeys(SECTIONS, "measured"),
        "policy": f"{'x'.join(map(str, hidden))} on {tasks[0]}; learner {'x'.join(map(str, config.policy_hidden))}, "
        f"critic {'x'.join(map(str, config.critic_hidden))}, batch {config.batch_size}",
        "env_step": {**first, **rest},
        "actor": actor,
        "learner": {**_learner(config, rounds), "message": messages},
    }


def _per_call(rows: pd.DataFrame, stage: str) -> list[float]:
    of_stage = rows[rows.stage == stage]
    calls = of_stage.pulls if stage in PER_PULL else of_stage.messages if stage in PER_MESSAGE else of_stage.steps
    on_the_core = (of_stage.cpu_s / of_stage.wall_s).clip(upper=1.0)
    return _undisturbed((1e6 * on_the_core * of_stage.seconds / calls.clip(lower=1)).tolist())


def _undisturbed(microseconds: list[float]) -> list[float]:
    return [round(us, 3) for us in sorted(microseconds)[: -(-len(microseconds) // 4)]]


def _message(setup: Setup, rounds: int) -> dict[str, list[float]]:
    """Return what the learner pays for a publication."""
    from quarl_lib.actorq.learner.networks import initial_policy
    from quarl_lib.actorq.weights.broadcast import SharedMemoryBroadcast
    from quarl_lib.inference.pack import pack

    config = setup.config()
    spec, weights = initial_policy(config, 0)
    if setup.design == "packed":
        buffer = pack(spec, weights, setup.precision)
        publisher = SharedMemoryBroadcast(len(buffer), 1).publisher()
        return {
            "quantize": _timed(partial(pack, spec, weights, setup.precision), rounds),
            "broadcast": _timed(partial(publisher.publish, buffer), rounds),
        }
    from acme import specs

    from quarl_lib.actorq.bench import authors
    from quarl_lib.actorq.replay import reverb

    server = reverb.serve(config, specs.make_environment_spec(control.make(setup.task, 0, flat=False)))
    message = authors.serialize(authors.make_module(spec, weights, setup.precision))
    client = reverb.WeightsClient(server.address)
    times = {
        "quantize": _timed(
            lambda: authors.serialize(authors.make_module(spec, weights, setup.precision)), rounds, calls=1
        ),
        "broadcast": _timed(lambda: client.insert(message), rounds, calls=1),
    }
    server.stop()
    return times


def _learner(config: Config, rounds: int) -> dict[str, list[float]]:
    """Return what the learner pays for a batch and an update, one after the other as in its loop."""
    import torch
    from acme import specs

    from quarl_lib.actorq.learner import loop
    from quarl_lib.actorq.replay.choice import make_adder, open_replay

    threads = torch.get_num_threads()
    torch.set_num_threads(config.learner_threads)
    config = config.replace(samples_per_insert=0.0)
    environment = control.make(config.task, config.seed)
    spec = specs.make_environment_spec(environment)
    stages: dict[str, list[float]] = {"sample": [], "learner_step": []}
    with tempfile.TemporaryDirectory(prefix="quarl-") as directory:
        link = Link(Path(directory), 1)
        if config.local_replay:
            link.replay = program.replay_memory(config)
        replay = open_replay(config, link, spec)
        if replay.address:
            link.set_address(replay.address)
        _fill(make_adder(config, link, spec, 0), environment, config)
        algorithm = loop.ALGORITHMS[config.algorithm]
        state = algorithm.init(config, spec, torch.device("cpu"))
        batches = replay.batches(lambda: False)
        timer = link.timer()
        for number in range(rounds + 1):
            cpu, begin = time.process_time(), time.perf_counter()
            timer.reset()
            for _ in range(UPDATES_A_ROUND):
                batch = next(batches)
                timer.lap("sample")
                algorithm.update(config, state, batch)
                timer.lap("learner_step")
            on_the_core = min(1.0, (time.process_time() - cpu) / (time.perf_counter() - begin))
            if number:  # the first one warms up
                for stage, values in stages.items():
                    values.append(1e6 * on_the_core * timer.seconds[stage] / UPDATES_A_ROUND)
        batches.close()
        replay.stop()
    torch.set_num_threads(threads)
    return {stage: _undisturbed(values) for stage, values in stages.items()}


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


def _timed(call: Callable[[], object], rounds: int, calls: int = 5) -> list[float]:
    """Return microseconds a call, a mean a round, after one that warms up."""
    call()
    means = []
    for _ in range(rounds):
        cpu, begin = time.process_time(), time.perf_counter()
        for _ in range(calls):
            call()
        means.append(1e6 * min(time.process_time() - cpu, time.perf_counter() - begin) / calls)
    return _undisturbed(means)
