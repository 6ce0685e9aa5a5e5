"""The convergence curve: noise-free episodes of the learner's fp32 policy at fixed actor steps.

The learner leaves a snapshot and the wall time at which it stood there; this process plays them as they come,
at the lowest priority, so that evaluation neither stops the clock nor takes cores from what is timed.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dm_env
from acme import specs

from quarl_lib.actorq.actor.policy import policy_spec
from quarl_lib.actorq.config import Config
from quarl_lib.actorq.link import Link
from quarl_lib.envs import control
from quarl_lib.inference import Engine, make_engine
from quarl_lib.results import write_atomically

EVALUATION_SEED = 20_191_001  # the same starting states for every snapshot, precision and seed: paired comparisons
LOOK_EVERY_S = 0.1
ABORT_CHECK_STEPS = 64


@dataclass(frozen=True)
class Snapshot:
    """A packed fp32 policy on disk, named by when it was taken."""

    path: Path
    actor_steps: int
    learner_steps: int
    wall_time_s: float


def leave_snapshot(directory: Path, buffer: Any, actor_steps: int, learner_steps: int, wall_time_s: float) -> None:
    """Write a packed policy where the evaluator looks, whole or not at all."""
    path = directory / "snapshots" / f"{actor_steps:012d}_{learner_steps}_{wall_time_s:.6f}.policy"
    write_atomically(path, lambda aside: aside.write_bytes(buffer))


def waiting_snapshots(directory: Path) -> list[Snapshot]:
    """Return the snapshots not yet played, oldest first."""
    found = []
    for path in sorted((directory / "snapshots").glob("[0-9]*.policy")):
        actor_steps, learner_steps, wall_time_s = path.stem.split("_")
        found.append(Snapshot(path, int(actor_steps), int(learner_steps), float(wall_time_s)))
    return found


class Threshold:
    """Says when `needed` evaluations in a row had a mean return of at least `stop_return`."""

    def __init__(self, stop_return: float, needed: int) -> None:
        self._stop_return, self._needed, self._in_a_row = stop_return, needed, 0

    def confirmed(self, mean_return: float) -> bool:
        """Take the next evaluation in."""
        self._in_a_row = self._in_a_row + 1 if mean_return >= self._stop_return else 0
        return self._in_a_row >= self._needed


def play_episode(environment: dm_env.Environment, engine: Engine, link: Link) -> float | None:
    """Return the return of one episode, None if the run was aborted meanwhile."""
    timestep, episode_return, steps = environment.reset(), 0.0, 0
    while not timestep.last():
        timestep = environment.step(engine(timestep.observation))
        episode_return += float(timestep.reward)
        steps += 1
        if steps % ABORT_CHECK_STEPS == 0 and link.aborted():
            return None
    return episode_return


def run(config: Config, link: Link) -> None:
    """Play every snapshot that the learner leaves; end the run once its threshold is confirmed."""
    os.nice(19)
    environment = control.make(config.task, EVALUATION_SEED)
    engine = make_engine(policy_spec(config, specs.make_environment_spec(environment)), "fp32", config.backend)
    _log_cpu_seconds(link)
    threshold = Threshold(config.stop_return, config.stop_evaluations)
    while not link.aborted():
        stopping = link.should_stop()  # before looking: what is left after a stop is still played
        waiting = waiting_snapshots(link.directory)
        for snapshot in waiting:
            returns = _play(config, link, engine, snapshot)
            if link.aborted():
                return
            if threshold.confirmed(sum(returns) / len(returns)):
                link.request_stop(f"mean return of at least {config.stop_return:g} at {snapshot.actor_steps} steps")
        if not waiting:
            if stopping:
                return
            time.sleep(LOOK_EVERY_S)


def _play(config: Config, link: Link, engine: Engine, snapshot: Snapshot) -> list[float]:
    engine.load(bytearray(snapshot.path.read_bytes()), copy=True)
    environment = control.make(config.task, EVALUATION_SEED)
    returns: list[float] = []
    for _ in range(config.eval_episodes):
        played = play_episode(environment, engine, link)
        if played is None:
            return returns
        returns.append(played)
    environment.close()
    link.log(
        "evaluations",
        [
            {
                "actor_steps": snapshot.actor_steps,
                "learner_steps": snapshot.learner_steps,
                "wall_time_s": snapshot.wall_time_s,
                "episode": episode,
                "episode_return": episode_return,
            }
            for episode, episode_return in enumerate(returns)
        ],
    )
    _log_cpu_seconds(link)
    snapshot.path.unlink()
    return returns


def _log_cpu_seconds(link: Link) -> None:
    # By the clock, so that they can be taken out of the energy of what is timed.
    link.log("evaluator", [{"wall_time_s": link.wall_time_s(), "cpu_seconds": time.process_time()}])
