"""The acting part of a model that Stable-Baselines3 holds in memory; modules are shared, not copied."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import stable_baselines3
import torch
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
from quarl_lib.sb3.build import mean_of_quantiles
from quarl_lib.sb3.policy import ActingPolicy, ConstantSpread, PredictedSpread, StateDependentSpread

Predict = Callable[[Any], np.ndarray]


def acting_policy(model: BaseAlgorithm) -> ActingPolicy:
    """Return what acts in a model of A2C, PPO, TRPO, DQN, QRDQN, DDPG, TD3, SAC, TQC or ARS; training on shows in it.

    QRDQN's mean over quantiles is taken once: later training does not show there.

    Raises:
        ValueError: the policy is of another kind.
    """
    policy: Any = model.policy
    if any("Recurrent" in kind.__name__ for kind in type(policy).__mro__):
        raise ValueError(f"{type(policy).__name__}: recurrent policies are not supported, their actions need the past")
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
    if (q_net := getattr(policy, "quantile_net", None)) is not None:
        latent = nn.Sequential(_features(q_net.features_extractor), *q_net.quantile_net[:-1])
        head = mean_of_quantiles(q_net.quantile_net[-1], int(policy.action_space.n))
        return ActingPolicy(latent, head, "q_values").eval()
    if _is_of_contrib(policy, "ARSPolicy"):
        return _random_search(policy).eval()
    actor: Any = getattr(policy, "actor", None)
    if isinstance(policy, TD3Policy):
        latent = nn.Sequential(_features(actor.features_extractor), *actor.mu[:-2])
        return ActingPolicy(latent, actor.mu[-2:], "deterministic", **_bounds(policy.action_space)).eval()
    if isinstance(policy, SACPolicy) or _is_of_contrib(policy, "TQCPolicy"):
        latent = nn.Sequential(_features(actor.features_extractor), actor.latent_pi)
        spread = _spread(actor.log_std, actor.action_dist, policy.action_space)
        options = {"squash": True, **_bounds(policy.action_space)}
        return ActingPolicy(latent, actor.mu, "gaussian", spread=spread, **options).eval()
    raise ValueError(
        f"policy={type(policy).__name__}: give a model of A2C, PPO, TRPO, DQN, QRDQN, DDPG, TD3, SAC, TQC, ARS"
    )


def load_by_running_pickles(
    path: Path, algorithm: str, observation_space: spaces.Space, action_space: spaces.Space
) -> tuple[ActingPolicy, Predict]:
    """Let the library load an archive, which runs what is pickled into it; return what acts and its own `predict`.

    Raises:
        AgentError: the library cannot load it either.
    """
    custom = {"observation_space": observation_space, "action_space": action_space, "buffer_size": 1}
    try:
        model = _library_of(algorithm).load(path, custom_objects=custom, device="cpu")
        policy = acting_policy(model).requires_grad_(False)
    except Exception as error:  # third-party code ran: it may raise anything
        raise AgentError(f"{path.name}: Stable-Baselines3 cannot load it: {type(error).__name__}: {error}") from error
    return policy, lambda observations: np.asarray(model.predict(observations, deterministic=True)[0])


def check_acts_alike(policy: ActingPolicy, inputs: np.ndarray, expected: np.ndarray) -> None:
    """Hold what acts here against the library's own actions for the same observations, `inputs` as the policy takes them.

    Raises:
        AgentError: an action differs by more than rounding: code of the user's own does something that is not read here.
    """
    with torch.no_grad():
        outputs = policy(torch.from_numpy(inputs)).numpy()
    actions = policy.actions(outputs)
    if policy.discrete:
        best = np.sort(outputs, axis=-1)
        # Between equals up to rounding either is right.
        clear = best[..., -1] - best[..., -2] > 1e-5 * np.abs(outputs).max() if outputs.shape[-1] > 1 else True
        wrong = (actions.reshape(expected.shape) != expected) & clear
    else:
        wrong = ~np.isclose(actions.reshape(expected.shape), expected, rtol=1e-5, atol=1e-5)
    if wrong.any():
        share = wrong.reshape(len(wrong), -1).any(axis=1).mean()
        raise AgentError(
            f"code pickled into the archive changes how it acts: {share:.0%} of the actions for {len(inputs)} "
            "observations are not those of the library's predict(); such a policy cannot be rebuilt here"
        )


def _library_of(algorithm: str) -> Any:
    if hasattr(stable_baselines3, algorithm):
        return getattr(stable_baselines3, algorithm)
    try:
        import sb3_contrib
    except ImportError as error:
        raise AgentError(f"{algorithm} is of sb3-contrib: pip install sb3-contrib") from error
    return getattr(sb3_contrib, algorithm)


def _is_of_contrib(policy: object, name: str) -> bool:
    """Say whether a policy is of an sb3-contrib class, without importing that."""
    return any(kind.__name__ == name and kind.__module__.startswith("sb3_contrib.") for kind in type(policy).__mro__)


def _random_search(policy: Any) -> ActingPolicy:
    layers = list(policy.action_net)
    features = _features(policy.features_extractor)
    if isinstance(policy.action_space, spaces.Discrete):
        return ActingPolicy(nn.Sequential(features, *layers[:-1]), layers[-1], "q_values")
    if policy.squash_output:
        latent, head = nn.Sequential(features, *layers[:-2]), nn.Sequential(*layers[-2:])
        return ActingPolicy(latent, head, "deterministic", **_bounds(policy.action_space))
    return ActingPolicy(nn.Sequential(features, *layers[:-1]), layers[-1], "direct", **_bounds(policy.action_space))


def _features(extractor: BaseFeaturesExtractor) -> nn.Module:
    """Return plain layers where there are any, so that engines can read them; a subclass may do anything."""
    if type(extractor) is FlattenExtractor:
        return nn.Flatten()
    if type(extractor) is NatureCNN:
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
