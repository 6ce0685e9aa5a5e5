"""The acting part of a model that Stable-Baselines3 holds in memory; modules are shared, not copied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import stable_baselines3
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.distributions import StateDependentNoiseDistribution
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, FlattenExtractor, NatureCNN
from stable_baselines3.dqn.policies import DQNPolicy
from stable_baselines3.sac.policies import SACPolicy
from stable_baselines3.td3.policies import TD3Policy
from torch import Tensor, nn

from quarl_lib.sb3.archive import AgentError
from quarl_lib.sb3.policy import ActingPolicy, ConstantSpread, PredictedSpread, StateDependentSpread


def acting_policy(model: BaseAlgorithm) -> ActingPolicy:
    """Return what acts in a model of A2C, PPO, DQN, DDPG, TD3 or SAC; later training shows in it.

    Raises:
        ValueError: the policy is of another kind.
    """
    policy: Any = model.policy
    if isinstance(policy, ActorCriticPolicy):
        latent = nn.Sequential(_features(policy.pi_features_extractor), policy.mlp_extractor.policy_net)
        if isinstance(policy.action_space, spaces.Discrete):
            return ActingPolicy(latent, policy.action_net, "categorical").eval()
        spread = _spread(policy.log_std, policy.action_dist, policy.action_space)
        options = {"squash": policy.squash_output, **_bounds(policy.action_space)}
        return ActingPolicy(latent, policy.action_net, "gaussian", spread=spread, **options).eval()
    if isinstance(policy, DQNPolicy):
        q_net: Any = policy.q_net
        latent = nn.Sequential(_features(q_net.features_extractor), *q_net.q_net[:-1])
        return ActingPolicy(latent, q_net.q_net[-1], "q_values").eval()
    actor: Any = getattr(policy, "actor", None)
    if isinstance(policy, TD3Policy):
        latent = nn.Sequential(_features(actor.features_extractor), *actor.mu[:-2])
        return ActingPolicy(latent, actor.mu[-2:], "deterministic", **_bounds(policy.action_space)).eval()
    if isinstance(policy, SACPolicy):
        latent = nn.Sequential(_features(actor.features_extractor), actor.latent_pi)
        spread = _spread(actor.log_std, actor.action_dist, policy.action_space)
        options = {"squash": True, **_bounds(policy.action_space)}
        return ActingPolicy(latent, actor.mu, "gaussian", spread=spread, **options).eval()
    raise ValueError(f"policy={type(policy).__name__}: give a model of A2C, PPO, DQN, DDPG, TD3 or SAC")


def load_by_running_pickles(
    path: Path, algorithm: str, observation_space: spaces.Space, action_space: spaces.Space
) -> ActingPolicy:
    """Let Stable-Baselines3 load an archive, which runs what is pickled into it, and return what acts in the model.

    Raises:
        AgentError: Stable-Baselines3 cannot load it either.
    """
    custom = {"observation_space": observation_space, "action_space": action_space, "buffer_size": 1}
    try:
        model = getattr(stable_baselines3, algorithm).load(path, custom_objects=custom, device="cpu")
        return acting_policy(model).requires_grad_(False)
    except Exception as error:  # third-party code ran: it may raise anything
        raise AgentError(f"{path.name}: Stable-Baselines3 cannot load it: {type(error).__name__}: {error}") from error


def _features(extractor: BaseFeaturesExtractor) -> nn.Module:
    """Return plain layers where there are any, so that engines can read them."""
    if isinstance(extractor, FlattenExtractor):
        return nn.Flatten()
    if isinstance(extractor, NatureCNN):
        return nn.Sequential(extractor.cnn, extractor.linear)
    return extractor


def _spread(log_std: Tensor | nn.Linear, distribution: object, action_space: spaces.Space) -> nn.Module:
    if isinstance(log_std, nn.Linear):
        return PredictedSpread(log_std)
    if isinstance(distribution, StateDependentNoiseDistribution):
        return StateDependentSpread(log_std.detach(), int(np.prod(action_space.shape or ())), distribution.use_expln)
    return ConstantSpread(log_std.detach())


def _bounds(action_space: Any) -> dict[str, Any]:
    return {"low": action_space.low.reshape(-1), "high": action_space.high.reshape(-1)}
