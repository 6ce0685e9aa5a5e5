"""The learner: sample, update, publish. One loop for both algorithms; it also hosts the replay server."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from quarl_lib.actorq.actor.evaluator import leave_snapshot
from quarl_lib.actorq.actor.policy import policy_spec, policy_weights
from quarl_lib.actorq.config import Config
from quarl_lib.actorq.learner import checkpoint, d4pg, dqn
from quarl_lib.actorq.learner.state import State, device_of
from quarl_lib.actorq.link import BROADCAST, CHECKPOINT, END, LEARNER_STEP, SAMPLE, Link
from quarl_lib.actorq.replay.choice import Replay, open_replay
from quarl_lib.actorq.replay.transitions import Batch
from quarl_lib.actorq.weights.broadcast import publisher_of
from quarl_lib.actorq.weights.publications import changed_share
from quarl_lib.envs import control, specs
from quarl_lib.inference.layout import layout_of
from quarl_lib.inference.pack import pack

ALGORITHMS: dict[str, ModuleType] = {"d4pg": d4pg, "dqn": dqn}
LOG_EVERY_S = 0.5
END_LOOK_EVERY_S = 0.02


def run(config: Config, link: Link) -> None:
    """Serve replay and learn until the run stops, the actors took their steps, or time is up.

    Raises:
        FloatingPointError: the loss is no longer finite.
    """
    torch.set_num_threads(config.learner_threads)
    torch.manual_seed(config.seed)
    spec = specs.make_environment_spec(control.make(config.task, config.seed, flat=config.adder != "acme"))
    state = ALGORITHMS[config.algorithm].init(config, spec, device_of(config))
    saved = checkpoint.latest(link.directory) if config.resume else None
    if saved is not None:
        state.restore(checkpoint.read_learner(saved))
        link.set_learner_steps(state.learner_steps)
    spool = checkpoint.spool(link.directory) if config.checkpoint_every or saved is not None else None
    replay = open_replay(config, link, spec, spool, checkpoint.replay_of(saved) if saved is not None else None)
    try:
        if replay.address:
            link.set_address(replay.address)
        learner = Learner(config, link, spec, state, replay)
        with contextlib.closing(replay.batches(learner.sampling)) as batches:  # an open one would hold the server up
            try:
                learner.learn(batches)
            finally:
                link.beat(END)
    finally:
        link.set_learner_done()
        replay.stop()


class Learner:
    """The loop's state between two steps: what to publish, leave, save and log next."""

    def __init__(self, config: Config, link: Link, spec: specs.EnvironmentSpec, state: State, replay: Replay) -> None:
        self.config, self.link, self.state = config, link, state
        self.timer = link.timer()
        self._replay = replay
        self._spec = policy_spec(config, spec)
        self._device = device_of(config)
        self._publisher = publisher_of(link)
        self._logged_at = link.now()
        self._next_snapshot = link.actor_steps() // config.eval_period * config.eval_period
        self._layout = layout_of(self._spec, config.weights_precision)
        self._before: np.ndarray | None = None  # the last publication, where the next is to be compared with it
        self._changed: float | None = None
        self._last_snapshot = -1  # learner steps of the policy left last
        self._metrics: dict[str, torch.Tensor] = {}
        self._step = threading.Lock()  # held during a step, free while the sampler is waited for
        self._over = threading.Event()

    def sampling(self) -> bool:
        """Say by a heartbeat that batches are sampled, and whether none is needed any more."""
        self.link.beat(SAMPLE)
        return self.finished()

    def finished(self) -> bool:
        """Say whether the run stops, the actors took their steps, or time is up."""
        limit = self.config.max_seconds
        late = bool(limit) and self.link.wall_time_s() > limit
        return late or self.link.should_stop() or self.link.actor_steps() >= self.config.actor_steps

    def learn(self, batches: Iterator[Batch]) -> None:
        """Publish the first policy, take a step for every batch, and leave the last policy."""
        self.publish()
        self.leave_snapshot_if_due()
        self.timer.reset()
        # Only a server's sampler waits for long, and a thread would have no place under a virtual clock.
        with self._watching_the_end() if self._replay.address else contextlib.nullcontext():
            for batch in batches:
                with self._step:
                    if self._over.is_set():
                        break
                    self.step(batch)
        self.leave_last_snapshot()
        self.write_rows()

    def step(self, batch: Batch) -> None:
        """Update on a batch, then publish, leave, save and log what is due."""
        config, timer, state = self.config, self.timer, self.state
        batch = self._to_device(batch)
        timer.lap("sample")
        self.link.beat(LEARNER_STEP)
        self._metrics = ALGORITHMS[config.algorithm].update(config, state, batch)
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        timer.lap("learner_step")
        self.link.set_learner_steps(state.learner_steps)
        if state.learner_steps % config.publish_period == 0:
            self.link.beat(BROADCAST)  # not the first time: what comes before a step is starting up
            self.publish()
        self.leave_snapshot_if_due()
        if config.checkpoint_every and state.learner_steps % config.checkpoint_every == 0:
            self.save()
        if self.link.now() - self._logged_at > LOG_EVERY_S:
            self.write_rows()

    @contextlib.contextmanager
    def _watching_the_end(self) -> Iterator[None]:
        watch = threading.Thread(target=self._watch_the_end, daemon=True)
        watch.start()
        try:
            yield
        finally:
            self._over.set()
            watch.join()

    def _watch_the_end(self) -> None:
        """Leave the last policy when the run ends, in a thread: the sampler may wait for seconds then."""
        while not self._over.wait(END_LOOK_EVERY_S):
            if self.finished():
                with contextlib.suppress(Exception):  # `learn` meets it again, and raises it
                    self.leave_last_snapshot()

    def leave_last_snapshot(self) -> None:
        """Leave the policy that the run ends with, and say that no further one comes."""
        with self._step:
            self._over.set()
            if not self.link.aborted():
                self.leave_snapshot()
            self.link.set_learner_done()

    def publish(self) -> None:
        """Quantize the online policy and make it the newest."""
        self.timer.start()
        self.check_finite()
        version = self.state.learner_steps + 1
        buffer = self._pack(self.config.weights_precision, version)
        self.timer.lap("quantize")
        num_bytes = self._publisher.publish(buffer)
        self.link.note_publication()
        self.timer.lap("broadcast", num_bytes)
        self._note_change(buffer)

    def _note_change(self, buffer: memoryview) -> None:
        """Compare two publications in a row, once between two rows: 8 MB of codes take milliseconds."""
        codes = np.frombuffer(buffer, np.uint8)
        if self._before is not None:
            self._changed = changed_share(self._layout, self._spec.num_weights, codes, self._before)
            self._before = None
        elif self._changed is None:
            self._before = codes.copy()
        self.timer.start()

    def leave_snapshot_if_due(self) -> None:
        """Leave the fp32 policy for the evaluator when the actors passed the next multiple of `eval_period`."""
        steps = self.link.actor_steps()
        if steps >= self._next_snapshot:
            self.leave_snapshot()
            self._next_snapshot = (steps // self.config.eval_period + 1) * self.config.eval_period

    def leave_snapshot(self) -> None:
        """Leave the fp32 policy for the evaluator, with the time at which it was taken; never the same one twice."""
        if self.state.learner_steps == self._last_snapshot:
            return
        self.check_finite()
        steps, taken_at = self.link.actor_steps(), self.link.wall_time_s()
        buffer = self._pack("fp32", self.state.learner_steps)
        leave_snapshot(self.link.directory, buffer, steps, self.state.learner_steps, taken_at)
        self._last_snapshot = self.state.learner_steps
        self.timer.start()

    def save(self) -> Path:
        """Write a checkpoint; never one of a learner that diverged.

        Raises:
            FloatingPointError: the loss is no longer finite.
        """
        link = self.link
        link.beat(CHECKPOINT)
        self.check_finite()
        counters = checkpoint.Counters(link.actor_steps(), self.state.learner_steps, link.wall_time_s())
        spool = checkpoint.folder(link.directory) / ".replay"
        path = checkpoint.write(link.directory, counters, self.state.save(), lambda: self._replay.save(spool))
        self.timer.start()
        return path

    def write_rows(self) -> None:
        """Log what was measured since the last time."""
        link = self.link
        now: dict[str, Any] = {
            "actor_steps": link.actor_steps(),
            "learner_steps": self.state.learner_steps,
            "wall_time_s": link.wall_time_s(),
        }
        if self._metrics:
            metrics = {name: float(value) for name, value in self._metrics.items()}
            inserted, sampled = self._replay.counts()
            link.log(
                "learner",
                [{**now, **metrics, "inserted": inserted, "sampled": sampled, "changed_share": self._changed}],
            )
            self._changed = None
        link.log("timing", self.timer.rows(part="learner", actor_id=-1, precision=self.config.precision, **now))
        self.check_finite()
        self._logged_at = link.now()
        self.timer.reset()

    def check_finite(self) -> None:
        """Raise FloatingPointError if the last step's loss or norms are not finite."""
        metrics = {name: float(value) for name, value in self._metrics.items()}
        if not all(map(math.isfinite, metrics.values())):
            raise FloatingPointError(
                f"the learner diverged at step {self.state.learner_steps}: {metrics}; lower the learning rates"
            )

    def _pack(self, precision: str, version: int) -> memoryview:
        return pack(self._spec, policy_weights(self.state.policy), precision, weights_version=version)

    def _to_device(self, batch: Batch) -> Batch:
        if self._device.type == "cpu":
            return batch
        return Batch(*(part.to(self._device) for part in batch))
