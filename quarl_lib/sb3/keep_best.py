"""Keep the weights that did best on episodes of their own, for algorithms whose last weights rarely are."""

from __future__ import annotations

import copy
import math
import time
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback

from quarl_lib.quantization.qat import fake_quant_layers
from quarl_lib.sb3.agents import Agent
from quarl_lib.sb3.episodes import evaluate
from quarl_lib.sb3.qat_export import trained_agent

TRIAL_SEED, TRIAL_EPISODES = 3_000_000, 10  # far from the seeds of training and of the evaluation
# Of what does as well as the best so far: ten episodes at the most that a task gives are luck now and then.
PROOF_EPISODES = 30


class KeepBest(BaseCallback):
    """Try the policy every so many steps from a step on, and end with the weights that did best.

    fp32 and QAT get the same trials, from the quantization delay on: nobody may choose among more policies.
    `task` is as of `trained_agent`. `seconds` is the processor's time that the trials took.
    """

    def __init__(self, task: str | Agent, from_step: int, every_steps: int) -> None:
        super().__init__()
        self.task, self.every_steps, self.next_trial = task, every_steps, from_step + every_steps
        self.best, self.seconds = -math.inf, 0.0
        self.weights: dict[str, Any] = {}

    def _on_rollout_start(self) -> None:
        # Weights change between rollouts only: within one, another trial would say the same.
        if self.num_timesteps >= self.next_trial:
            self.next_trial = max(self.next_trial, self.num_timesteps) + self.every_steps
            self._try()

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        self._try()
        self.model.policy.load_state_dict(self.weights)

    def _try(self) -> None:
        if not all(layer.running_enabled.item() for _, layer in fake_quant_layers(self.model.policy)):
            return  # its rollout began before the delay was over
        begin = time.process_time()
        agent = trained_agent(self.model, self.task)
        mean = evaluate(agent, agent.policy, TRIAL_EPISODES, TRIAL_SEED).episode_return.mean()
        if mean >= self.best:
            mean = evaluate(agent, agent.policy, PROOF_EPISODES, TRIAL_SEED).episode_return.mean()
        if mean >= self.best:  # of equals the one that trained longer
            self.best, self.weights = mean, copy.deepcopy(self.model.policy.state_dict())
        self.seconds += time.process_time() - begin
