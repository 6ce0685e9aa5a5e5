"""Stable-Baselines3 policies whose acting networks train under fake quantization; critics stay fp32.

    model = PPO(QATActorCriticPolicy, env, policy_kwargs={"quantization": QATConfig(weight_bits=4)})
    model.learn(100_000, callback=QuantDelay(50_000))

Optimizers, target networks, `save` and `load` are Stable-Baselines3's own. Until the delay is over the run is its fp32
twin, number for number.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from stable_baselines3.td3.policies import Actor, TD3Policy
from torch import nn

from quarl_lib.quantization.qat import QATConfig, bake_weights, insert_fake_quant, start_quantization
from quarl_lib.sb3.policy import ActingPolicy, ConstantSpread, StateDependentSpread

# Submodules from observation to action, in data-flow order.
ACTOR_CRITIC_PARTS = ("pi_features_extractor", "mlp_extractor.policy_net", "action_net")
Q_NETWORK_PARTS = ("features_extractor", "q_net")
ACTOR_PARTS = ("features_extractor", "mu")


class _Quantized(BasePolicy):
    """Takes `quantization` beside the arguments of the plain policy and gives it back when saved."""

    plain_class: type[BasePolicy]

    def __init__(self, *args: Any, quantization: QATConfig | None = None, **kwargs: Any) -> None:
        # Before the base class, whose constructor builds the networks.
        self.quantization = quantization or QATConfig()
        super().__init__(*args, **kwargs)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "quantization": self.quantization}


class QATActorCriticPolicy(_Quantized, ActorCriticPolicy):
    """The policy of A2C and PPO; with `features_extractor_class=NatureCNN` for images."""

    plain_class = ActorCriticPolicy

    def _build(self, lr_schedule: Schedule) -> None:
        super()._build(lr_schedule)
        insert_fake_quant(self, ACTOR_CRITIC_PARTS, self.quantization)
        # Made again, because learned steps are parameters too. Those of the plain policy keep their order.
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)


class QATDQNPolicy(_Quantized, DQNPolicy):
    """The policy of DQN: Q network and target network alike."""

    plain_class = DQNPolicy

    def make_q_net(self) -> QNetwork:
        """Return a fake-quantized Q network."""
        network = super().make_q_net()
        insert_fake_quant(network, Q_NETWORK_PARTS, self.quantization)
        return network.to(self.device)


class QATTD3Policy(_Quantized, TD3Policy):
    """The policy of DDPG and TD3: actor and target actor."""

    plain_class = TD3Policy

    def make_actor(self, *args: Any, **kwargs: Any) -> Actor:
        """Return a fake-quantized actor."""
        actor = super().make_actor(*args, **kwargs)
        insert_fake_quant(actor, ACTOR_PARTS, self.quantization)
        return actor.to(self.device)


POLICIES: dict[str, type[_Quantized]] = {
    "A2C": QATActorCriticPolicy,
    "PPO": QATActorCriticPolicy,
    "DQN": QATDQNPolicy,
    "DDPG": QATTD3Policy,
    "TD3": QATTD3Policy,
}


class QuantDelay(BaseCallback):
    """Start quantization with the first rollout after `quant_delay_steps` environment steps, at the latest at the end.

    At a rollout's start, because PPO compares the policy that collected a rollout with the one that learns from it.

    Raises:
        ValueError: at construction for a negative delay, at training's start for one beyond training's end.
    """

    def __init__(self, quant_delay_steps: int) -> None:
        super().__init__()
        if quant_delay_steps < 0:
            raise ValueError(f"quant_delay_steps={quant_delay_steps}: give 0 or more")
        self.quant_delay_steps = quant_delay_steps
        self.started = False

    def _on_training_start(self) -> None:
        total = self.locals["total_timesteps"]
        if self.quant_delay_steps > total:
            raise ValueError(f"quant_delay_steps={self.quant_delay_steps}: training ends after {total} steps")

    def _on_rollout_start(self) -> None:
        if not self.started and self.model.num_timesteps >= self.quant_delay_steps:
            self._start()

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        if not self.started:
            self._start()

    def _start(self) -> None:
        start_quantization(self.model.policy)
        self.started = True


def acting_policy(model: BaseAlgorithm) -> ActingPolicy:
    """Return what acts in a trained model, fake-quantized layers included; modules are shared, not copied.

    Raises:
        ValueError: the policy is of another kind than A2C's, PPO's, DQN's, DDPG's and TD3's.
    """
    policy = model.policy
    if isinstance(policy, ActorCriticPolicy):
        latent = nn.Sequential(policy.pi_features_extractor, policy.mlp_extractor.policy_net)
        if isinstance(policy.action_space, spaces.Discrete):
            return ActingPolicy(latent, policy.action_net, "categorical").eval()
        spread = ConstantSpread(policy.log_std.detach())
        if policy.use_sde:
            spread = StateDependentSpread(policy.log_std.detach(), policy.action_net.out_features, policy.use_expln)
        return ActingPolicy(
            latent, policy.action_net, "gaussian", spread=spread, squash=policy.squash_output, **_bounds(policy)
        ).eval()
    if isinstance(policy, DQNPolicy):
        latent = nn.Sequential(policy.q_net.features_extractor, *policy.q_net.q_net[:-1])
        return ActingPolicy(latent, policy.q_net.q_net[-1], "q_values").eval()
    if isinstance(policy, TD3Policy):
        latent = nn.Sequential(policy.actor.features_extractor, *policy.actor.mu[:-2])
        return ActingPolicy(latent, policy.actor.mu[-2:], "deterministic", **_bounds(policy)).eval()
    raise ValueError(f"policy={type(policy).__name__}: give a model of {', '.join(POLICIES)}")


def _bounds(policy: BasePolicy) -> dict[str, np.ndarray]:
    return {"low": policy.action_space.low.reshape(-1), "high": policy.action_space.high.reshape(-1)}


def export_archive(model: BaseAlgorithm, path: str | Path | BinaryIO) -> None:
    """Write a trained QAT model as a plain Stable-Baselines3 archive that loads without this package.

    Its weights are the quantized ones, as fp32 values; inputs of layers are no longer quantized, because a plain policy
    cannot do that. The optimizer starts anew.

    Raises:
        ValueError: the model's policy is not one of this module.
    """
    plain_model(model).save(path)


def plain_model(model: BaseAlgorithm) -> BaseAlgorithm:
    """Return the model's fp32 twin with the quantized weights, as if this package had never been there.

    Raises:
        ValueError: the model's policy is not one of this module.
    """
    if not isinstance(model.policy, _Quantized):
        raise ValueError(f"policy={type(model.policy).__name__}: give a model trained with {', '.join(POLICIES)}")
    plain_class = model.policy.plain_class
    plain = type(model)(plain_class, env=None, device=model.device, _init_setup_model=False)  # type: ignore[call-arg]
    torch_names = {name.split(".")[0] for names in model._get_torch_save_params() for name in names}
    left_out = {*model._excluded_save_params(), *torch_names}
    plain.__dict__.update({name: value for name, value in model.__dict__.items() if name not in left_out})
    plain.policy_class = plain_class
    plain.policy_kwargs = {name: value for name, value in model.policy_kwargs.items() if name != "quantization"}
    with torch.random.fork_rng():  # the networks' initial weights are drawn, and overwritten in the next step
        plain._setup_model()
    plain.policy.load_state_dict(bake_weights(model.policy))
    plain.policy.set_training_mode(False)
    return plain
