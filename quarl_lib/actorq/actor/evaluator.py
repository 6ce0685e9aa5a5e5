"""The convergence curve: noise-free episodes of the learner's fp32 policy at fixed actor steps, and of the same policy
at the actors' precision, by the engine that they run: the one is what is learned, the other what is deployed.

The learner leaves a snapshot and the wall time at which it stood there; this process plays them as they come,
at the lowest priority, so that evaluation neither stops the clock nor takes cores from what is timed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dm_env

from quarl_lib.actorq.actor.policy import policy_spec
from quarl_lib.actorq.config import Config
from quarl_lib.actorq.link import EVALUATE, WAIT, Link, read
from quarl_lib.envs import control, specs
from quarl_lib.inference import Engine, PolicySpec, make_engine
from quarl_lib.inference.pack import pack, unpack
from quarl_lib.results import write_atomically

EVALUATION_SEED = 20_191_001  # the same starting states for every snapshot, precision and seed: paired comparisons
LOOK_EVERY_S = 0.1
ABORT_CHECK_STEPS = 64
LONGEST_EPISODE = 100_000  # steps; Atari's longest takes 27,000
WHEN = ["actor_steps", "learner_steps", "wall_time_s"]
LEARNER, ACTORS = "learner", "actors"  # column `policy` of an evaluation: as it is learned, as it is deployed


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


def play_episode(environment: dm_env.Environment, engine: Engine, link: Link, task: str = "") -> float | None:
    """Return the return of one episode, None if the run was aborted meanwhile.

    Raises:
        RuntimeError: the episode does not end.
    """
    timestep, episode_return, steps = environment.reset(), 0.0, 0
    while not timestep.last():
        action = engine(timestep.observation)
        link.beat(EVALUATE)
        timestep = environment.step(action)
        episode_return += float(timestep.reward)
        steps += 1
        if steps % ABORT_CHECK_STEPS == 0 and link.aborted():
            return None
        if steps == LONGEST_EPISODE:
            raise RuntimeError(
                f"task={task!r}: an episode did not end within {LONGEST_EPISODE} steps; give the environment a limit "
                "(max_episode_steps)"
            )
    return episode_return


def run(config: Config, link: Link) -> None:
    """Play every snapshot that the learner leaves; end the run once its threshold is confirmed."""
    spec = policy_spec(config, specs.make_environment_spec(control.make(config.task, EVALUATION_SEED)))
    player = Player(config, link, spec)
    threshold = Threshold(config.stop_return, config.stop_evaluations)
    evaluated = -1  # learner steps of the policy played last: no policy counts twice
    for (_, learner_steps), rows in player.earlier.groupby(WHEN[:2]) if len(player.earlier) else ():
        threshold.confirmed(rows[rows.policy == LEARNER].episode_return.mean())
        evaluated = learner_steps
    while not link.aborted():
        done = link.learner_done()  # before looking: what is left after that is still played
        link.beat(WAIT)
        waiting = waiting_snapshots(link.directory)
        for snapshot in waiting:
            returns = player.play(snapshot, LEARNER)
            if link.aborted():
                return
            if snapshot.learner_steps != evaluated and threshold.confirmed(sum(returns) / len(returns)):
                link.request_stop(f"mean return of at least {config.stop_return:g} at {snapshot.actor_steps} steps")
            evaluated = snapshot.learner_steps
            if player.quantized is not None:
                player.play(snapshot, ACTORS)
                if link.aborted():
                    return
            snapshot.path.unlink()
        if not waiting:
            if done:
                return
            link.pause(LOOK_EVERY_S)


class Player:
    """Plays a snapshot as the learner has it and as the actors run it, and logs the episodes."""

    def __init__(self, config: Config, link: Link, spec: PolicySpec) -> None:
        self._config, self._link, self._spec = config, link, spec
        # A learner on the actors' grid has no other policy than theirs: what it learns is what is deployed.
        self._one_policy = config.learner_quantization == "engine"
        learned = config.precision if self._one_policy else "fp32"
        self._engine = make_engine(spec, learned, config.backend, EVALUATION_SEED)
        alike = self._one_policy or config.precision == config.weights_precision == "fp32" or not config.eval_deployed
        self.quantized = None if alike else make_engine(spec, config.precision, config.backend, EVALUATION_SEED)
        self._environment: dm_env.Environment | None = None
        self.earlier = read(link.directory, "evaluations")  # of a run that this one resumes
        before = read(link.directory, "evaluator")
        self._cpu_before = float(before.cpu_seconds.iloc[-1]) if len(before) else 0.0
        self._log_cpu_seconds()

    def play(self, snapshot: Snapshot, policy: str) -> list[float]:
        """Return the returns of a snapshot's episodes; those that an interrupted run logged are not played again."""
        config, link, earlier = self._config, self._link, self.earlier
        if len(earlier):
            same = (earlier.actor_steps == snapshot.actor_steps) & (earlier.learner_steps == snapshot.learner_steps)
            if len(found := earlier[same & (earlier.policy == policy)]):
                return found.episode_return.tolist()
        engine = self._engine if policy == LEARNER else self.quantized
        assert engine is not None
        buffer: Any = bytearray(snapshot.path.read_bytes())
        as_learned = policy == LEARNER and not self._one_policy
        engine.load(buffer if as_learned else deployed(self._spec, config, buffer), copy=True)
        made = self._environment
        environment = control.made_anew(made) if made else control.make(config.task, EVALUATION_SEED)
        self._environment = environment
        returns: list[float] = []
        for _ in range(config.eval_episodes):
            link.beat(EVALUATE)
            played = play_episode(environment, engine, link, config.task)
            if played is None:
                return returns
            returns.append(played)
        when = {name: getattr(snapshot, name) for name in WHEN}
        names = (LEARNER, ACTORS) if self._one_policy else (policy,)
        rows = [{**when, "policy": name, "episode": i, "episode_return": value}
                for name in names for i, value in enumerate(returns)]  # fmt: skip
        link.log("evaluations", rows)
        self._log_cpu_seconds()
        return returns

    def _log_cpu_seconds(self) -> None:
        # By the clock, so that they can be taken out of the energy of what is timed.
        spent = self._cpu_before + self._link.cpu_seconds()
        self._link.log("evaluator", [{"wall_time_s": self._link.wall_time_s(), "cpu_seconds": spent}])


def deployed(spec: PolicySpec, config: Config, buffer: Any) -> memoryview:
    """Return an fp32 policy as the actors run it: at the precision that travels, then at their own."""
    weights = unpack(spec, buffer)
    if config.weights_precision != config.precision:
        weights = unpack(spec, pack(spec, weights, config.weights_precision))
    return pack(spec, weights, config.precision)
