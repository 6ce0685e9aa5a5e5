"""Put an engine into a model's rollouts and take it out again: as a context, or as a callback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from types import FrameType
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from torch import Tensor

from quarl_lib.inference.pack import check_precision
from quarl_lib.sb3.rollouts.actor import EngineActor
from quarl_lib.sb3.rollouts.corrections import CORRECTIONS, finish_rollout
from quarl_lib.sb3.rollouts.draws import off_policy_draw, on_policy_draw
from quarl_lib.sb3.rollouts.patches import Patches
from quarl_lib.sb3.rollouts.reliance import COLLECTING, LEARNING, check_model, check_version
from quarl_lib.sb3.rollouts.report import Report, shares
from quarl_lib.sb3.rollouts.stopwatch import Stopwatch

TORCH_MODULE = torch.nn.Module.__call__.__code__.co_filename


@contextmanager
def quantized_rollouts(
    model: BaseAlgorithm, precision: str = "int8", update_period: int = 1, correction: str = "behaviour"
) -> Iterator[RolloutsHandle]:
    """Let an engine at `precision` act whenever `model.learn` collects experience; afterwards the model is as before.

    PPO and A2C record the log-probabilities of the policy that acted; values are fp32, of a whole rollout in one batch.
    DQN, DDPG, TD3 and SAC keep their own exploration. Evaluation and `model.predict` elsewhere stay fp32.

    Args:
        update_period: how often the engine gets new weights if they changed: every so many rollouts of PPO and A2C,
            environment steps of the others.
        correction: of PPO and A2C. "behaviour": ratios are taken to the policy that acted. "none": to fp32, as if it
            had acted. "truncated": to fp32, and advantages are weighted by min(2, fp32's probability over the actor's).

    Raises:
        RuntimeError: another version of Stable-Baselines3, which works otherwise.
        ValueError: a parameter is wrong, or the model is one whose rollouts or layers are not understood.
    """
    handle = RolloutsHandle(model, precision, update_period, correction)
    handle.open()
    try:
        yield handle
    finally:
        handle.close()


class QuantizedRollouts(BaseCallback):
    """The same as a callback: `model.learn(100_000, callback=QuantizedRollouts("int8"))`; `handle` has the report.

    A callback is not told when `learn` raises: the replaced methods then do nothing any more but hand calls on to
    the model's own, and go with the next rollout. The context leaves nothing in any case.
    """

    handle: RolloutsHandle

    def __init__(self, precision: str = "int8", update_period: int = 1, correction: str = "behaviour") -> None:
        super().__init__()
        self._settings = (precision, update_period, correction)

    def _init_callback(self) -> None:
        if "handle" in vars(self):
            self.handle.close()
        self.handle = RolloutsHandle(self.model, *self._settings)

    def _on_training_start(self) -> None:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code not in LEARNING:
            frame = frame.f_back
        self.handle.open(frame)

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        self.handle.close()


class RolloutsHandle:
    """The engine of one model while it acts in its rollouts; see `quantized_rollouts`."""

    def __init__(self, model: BaseAlgorithm, precision: str, update_period: int, correction: str) -> None:
        check_version()
        check_precision(precision)
        if update_period < 1:
            raise ValueError(f"update_period={update_period}: give at least 1")
        if correction not in CORRECTIONS:
            raise ValueError(f"correction={correction!r}: choose one of {', '.join(CORRECTIONS)}")
        check_model(model)
        self.on_policy = isinstance(model, OnPolicyAlgorithm)
        if not self.on_policy and correction != "behaviour":
            name = type(model).__name__
            raise ValueError(f"correction={correction!r}: {name} learns from any policy's actions; leave it out")
        self.model, self.precision, self.update_period, self.correction = model, precision, update_period, correction
        self._policy: Any = model.policy
        self.actor = EngineActor(model, precision)
        self.steps = self._age = 0
        self._updated_at, self._rollouts = model.num_timesteps, 0
        self._patches = Patches()
        self._learn_frame: FrameType | None = None
        self._watch = Stopwatch([])

    @property
    def backend(self) -> str:
        """Return the engine's backend."""
        return self.actor.engine.backend

    def open(self, learn_frame: FrameType | None = None) -> None:
        """Replace methods of policy and rollout buffer; with a frame, only for what that call of `learn` does."""
        policy = self._policy
        own = self._patches.replace
        self._learn_frame = learn_frame
        try:
            self._set_mode = own(policy, "set_training_mode", self._turn)
            if self.on_policy:
                self._draw_on = on_policy_draw(self.model)
                self._forward = own(policy, "forward", self._act)
                buffer = self.model.rollout_buffer  # type: ignore[attr-defined]
                self._advantages = own(buffer, "compute_returns_and_advantage", self._end_rollout)
            else:
                self._draw_off = off_policy_draw(self.model)
                self._predict = own(policy, "predict", self._choose)
        except BaseException:
            self.close()
            raise
        parts = [policy, *(getattr(policy, name, None) for name in ("actor", "critic"))]
        self._watch = Stopwatch([part.optimizer for part in parts if getattr(part, "optimizer", None) is not None])

    def close(self) -> None:
        """Put everything back; the report stays."""
        self._patches.restore()
        self._watch.close()
        self._learn_frame = None

    def report(self) -> Report:
        """Return where the time went, with the engine and without it; raise ValueError before the first rollout."""
        inference, environment, learning = self._watch.times()
        now = shares(inference, environment, learning)
        if not self._watch.actions:
            raise ValueError("the engine has not acted yet: let model.learn run first")
        actor = self.actor
        return Report(
            precision=self.precision,
            backend=self.backend,
            steps=self.steps,
            total_s=inference + environment + learning,
            inference_share=now.inference_share,
            environment_share=now.environment_share,
            learning_share=now.learning_share,
            before=shares(self._watch.own_inference_s(), environment, learning),
            updates=actor.updates,
            payload_bytes=actor.payload_bytes,
            update_us=1e6 * actor.update_s / actor.updates,
            age_steps=self._age / max(self.steps, 1),
        )

    # --- what stands in for the model's own methods ----------------------------------------------------------------

    def _turn(self, mode: bool) -> None:
        """Stand in for `policy.set_training_mode`, which rollouts and training call first."""
        self._set_mode(mode)
        caller = sys._getframe(2)
        if caller.f_code in COLLECTING:
            if self._learn_frame is not None and caller.f_back is not self._learn_frame:
                self.close()  # a `learn` that raised left the callback behind
                return
            self._watch.collecting()
            if self.on_policy:
                # What learning left there holds its graph, and nobody who copies a policy in a rollout could.
                self._policy.action_dist.distribution = None
                if self._rollouts % self.update_period == 0 and self.actor.changed():
                    self._update()
                self._rollouts += 1
        elif mode:
            self._watch.learning()

    def _update(self) -> None:
        begin = perf_counter()
        self.actor.refresh()
        self._updated_at = self.model.num_timesteps
        self._watch.inference_s += perf_counter() - begin

    def _collects(self, frame: FrameType | None) -> bool:
        """Tell whether a frame is the rollout of the `learn` that this handle is for."""
        if frame is None or frame.f_code not in COLLECTING:
            return False
        return self._learn_frame is None or frame.f_back is self._learn_frame

    def _act(self, obs: Tensor, deterministic: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Stand in for `policy.forward` of A2C and PPO; values follow at the rollout's end and are NaN until then."""
        begin = perf_counter()
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename == TORCH_MODULE:
            frame = frame.f_back
        if not self._collects(frame):
            return self._forward(obs, deterministic)
        outputs = self.actor(obs.cpu().numpy())
        actions, log_probs = self._draw_on(outputs, self.actor.log_std, deterministic)
        n = len(actions)
        answer = (
            torch.from_numpy(actions.reshape(n, *self.model.action_space.shape)),  # type: ignore[misc]
            torch.full((n, 1), np.nan),
            torch.from_numpy(log_probs),
        )
        self._count(n, begin)
        self._watch.probe(lambda: self._forward(obs, deterministic))
        return answer

    def _end_rollout(self, last_values: Tensor, dones: np.ndarray) -> None:
        """Stand in for `rollout_buffer.compute_returns_and_advantage`."""
        self._watch.inference_s += finish_rollout(self.model, self.correction, self._advantages, last_values, dones)

    def _choose(
        self,
        observation: Any,
        state: Any = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, Any]:
        """Stand in for `policy.predict` of the off-policy algorithms; the engine acts only in rollouts."""
        begin = perf_counter()
        frame: FrameType | None = sys._getframe(2)
        for _ in range(3):  # model.predict (DQN's own), _sample_action, then the rollout
            if frame is None or frame.f_code in COLLECTING:
                break
            frame = frame.f_back
        if observation is not self.model._last_obs or not self._collects(frame):
            return self._predict(observation, state, episode_start, deterministic)
        if self.model.num_timesteps - self._updated_at >= self.update_period and self.actor.changed():
            self._update()
            begin = perf_counter()
        actions = self._draw_off(self.actor(np.asarray(observation)), deterministic)
        self._count(len(actions), begin)
        self._watch.probe(lambda: self._predict(observation, state, episode_start, deterministic))
        return actions, state

    def _count(self, n: int, begin: float) -> None:
        self.steps += n
        self._age += n * (self.model.num_timesteps - self._updated_at)
        self._watch.acted(begin)
