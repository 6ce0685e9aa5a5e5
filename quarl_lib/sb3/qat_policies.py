"""Stable-Baselines3 policies whose acting networks train under fake quantization; critics stay fp32.

    model = PPO(QATActorCriticPolicy, env, policy_kwargs={"quantization": QATConfig(weight_bits=4)})
    model.learn(100_000, callback=QuantDelay(50_000))

Optimizers, target networks, `save` and `load` are Stable-Baselines3's own. Until the delay is over the run is its fp32
twin, number for number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.torch_layers import NatureCNN
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from stable_baselines3.sac.policies import Actor as SACActor
from stable_baselines3.sac.policies import SACPolicy
from stable_baselines3.td3.policies import Actor, TD3Policy

from quarl_lib.envs.gym import is_atari
from quarl_lib.quantization.qat import QATConfig, insert_fake_quant, start_quantization
from quarl_lib.sb3.recipes import Recipe

# Submodules from observation to action, in data-flow order.
ACTOR_CRITIC_PARTS = ("pi_features_extractor", "mlp_extractor.policy_net", "action_net")
Q_NETWORK_PARTS = ("features_extractor", "q_net")
ACTOR_PARTS = ("features_extractor", "mu")
SAC_ACTOR_PARTS = ("features_extractor", "latent_pi", "mu")


class QATPolicy(BasePolicy):
    """Takes `quantization` beside the arguments of the plain policy and gives it back when saved."""

    plain_class: type[BasePolicy]

    def __init__(self, *args: Any, quantization: QATConfig | None = None, **kwargs: Any) -> None:
        # Before the base class, whose constructor builds the networks.
        self.quantization = quantization or QATConfig()
        super().__init__(*args, **kwargs)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "quantization": self.quantization}


class QATActorCriticPolicy(QATPolicy, ActorCriticPolicy):
    """The policy of A2C and PPO; with `features_extractor_class=NatureCNN` for images."""

    plain_class = ActorCriticPolicy

    def _build(self, lr_schedule: Schedule) -> None:
        super()._build(lr_schedule)
        insert_fake_quant(self, ACTOR_CRITIC_PARTS, self.quantization)
        # Made again, because learned steps are parameters too. Those of the plain policy keep their order.
        options: dict[str, Any] = {"lr": lr_schedule(1), **self.optimizer_kwargs}
        self.optimizer = self.optimizer_class(self.parameters(), **options)


class QATDQNPolicy(QATPolicy, DQNPolicy):
    """The policy of DQN: Q network and target network alike."""

    plain_class = DQNPolicy

    def make_q_net(self) -> QNetwork:
        """Return a fake-quantized Q network."""
        network = super().make_q_net()
        insert_fake_quant(network, Q_NETWORK_PARTS, self.quantization)
        return network.to(self.device)


class QATTD3Policy(QATPolicy, TD3Policy):
    """The policy of DDPG and TD3: actor and target actor."""

    plain_class = TD3Policy

    def make_actor(self, *args: Any, **kwargs: Any) -> Actor:
        """Return a fake-quantized actor."""
        actor = super().make_actor(*args, **kwargs)
        insert_fake_quant(actor, ACTOR_PARTS, self.quantization)
        return actor.to(self.device)


class QATSACPolicy(QATPolicy, SACPolicy):
    """The policy of SAC: the path of the mean; the deviation, which only explores, stays fp32."""

    plain_class = SACPolicy

    def make_actor(self, *args: Any, **kwargs: Any) -> SACActor:
        """Return a fake-quantized actor."""
        actor = super().make_actor(*args, **kwargs)
        insert_fake_quant(actor, SAC_ACTOR_PARTS, self.quantization)
        return actor.to(self.device)


POLICIES: dict[str, type[QATPolicy]] = {
    "A2C": QATActorCriticPolicy,
    "PPO": QATActorCriticPolicy,
    "DQN": QATDQNPolicy,
    "DDPG": QATTD3Policy,
    "TD3": QATTD3Policy,
    "SAC": QATSACPolicy,
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


@dataclass(frozen=True)
class QATRecipe(Recipe):
    """A recipe whose network trains under fake quantization."""

    @property
    def policy(self) -> type[BasePolicy]:  # type: ignore[override]
        """The policy class, which Stable-Baselines3 takes instead of a name."""
        return POLICIES[self.algorithm]


def quantized_recipe(recipe: Recipe, config: QATConfig) -> QATRecipe:
    """Return the same training under fake quantization.

    Raises:
        ValueError: there is no fake-quantized policy for the recipe's algorithm.
    """
    if recipe.algorithm not in POLICIES:
        raise ValueError(f"algorithm={recipe.algorithm!r}: choose one of {', '.join(POLICIES)}")
    images = {"features_extractor_class": NatureCNN} if is_atari(recipe.env_id) else {}
    return QATRecipe(**{**vars(recipe), "policy_kwargs": {**recipe.policy_kwargs, **images, "quantization": config}})
