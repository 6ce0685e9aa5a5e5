"""The acting part of a model that Stable-Baselines3 holds in memory; modules are shared, not copied."""

from __future__ import annotations

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

from quarl_lib.sb3.agents import Agent
from quarl_lib.sb3.archive import AgentError
from quarl_lib.sb3.build import mean_of_quantiles, of_indices
from quarl_lib.sb3.declared import MASKABLE
from quarl_lib.sb3.flat import Pieces, num_choices
from quarl_lib.sb3.policy import ActingPolicy, ConstantSpread, PredictedSpread, StateDependentSpread

CHECKED = 200  # observations on which code of the user's own is held against the library


def acting_policy(model: BaseAlgorithm, flat: spaces.Space | None = None) -> ActingPolicy:
    """Return what acts in a model of Stable-Baselines3 or sb3-contrib; later training shows in it.

    QRDQN's mean over quantiles is taken once: later training does not show there. `flat`: as in `Agent`.

    Raises:
        ValueError: the policy is of another kind.
    """
    policy: Any = model.policy
    if any("Recurrent" in kind.__name__ for kind in type(policy).__mro__):
        raise ValueError(f"{type(policy).__name__}: recurrent policies are not supported, their actions need the past")
    masked = _is_of_contrib(policy, "MaskableActorCriticPolicy")
    if isinstance(policy, ActorCriticPolicy) or masked:
        features = _features(policy.pi_features_extractor, policy, flat)
        latent = nn.Sequential(features, policy.mlp_extractor.policy_net)
        if num_choices(policy.action_space):
            return of_indices(latent, policy.action_net, policy.action_space, masked).eval()
        spread = _spread(policy.log_std, policy.action_dist, policy.action_space)
        options = {"squash": policy.squash_output, **_bounds(policy.action_space)}
        return ActingPolicy(latent, policy.action_net, "gaussian", spread=spread, **options).eval()
    if isinstance(policy, DQNPolicy):
        q_net: Any = policy.q_net
        latent = nn.Sequential(_features(q_net.features_extractor, policy, flat), *q_net.q_net[:-1])
        return ActingPolicy(latent, q_net.q_net[-1], "q_values").eval()
    if (q_net := getattr(policy, "quantile_net", None)) is not None:
        latent = nn.Sequential(_features(q_net.features_extractor, policy, flat), *q_net.quantile_net[:-1])
        head = mean_of_quantiles(q_net.quantile_net[-1], int(policy.action_space.n))
        return ActingPolicy(latent, head, "q_values").eval()
    if _is_of_contrib(policy, "ARSPolicy"):
        return _random_search(policy).eval()
    actor: Any = getattr(policy, "actor", None)
    if isinstance(policy, TD3Policy):
        latent = nn.Sequential(_features(actor.features_extractor, policy, flat), *actor.mu[:-2])
        return ActingPolicy(latent, actor.mu[-2:], "deterministic", **_bounds(policy.action_space)).eval()
    if isinstance(policy, SACPolicy) or _is_of_contrib(policy, "TQCPolicy"):
        latent = nn.Sequential(_features(actor.features_extractor, policy, flat), actor.latent_pi)
        spread = _spread(actor.log_std, actor.action_dist, policy.action_space)
        options = {"squash": True, **_bounds(policy.action_space)}
        return ActingPolicy(latent, actor.mu, "gaussian", spread=spread, **options).eval()
    raise ValueError(
        f"policy={type(policy).__name__}: give a model of A2C, PPO, TRPO, DQN, QRDQN, DDPG, TD3, SAC, TQC, ARS"
    )


def load_by_running_pickles(
    path: Path,
    algorithm: str,
    observation_space: spaces.Space,
    action_space: spaces.Space,
    flat: spaces.Space | None = None,
) -> tuple[ActingPolicy, BaseAlgorithm]:
    """Let the library load an archive, which runs what is pickled into it; return what acts and the library's model.

    Raises:
        AgentError: the library cannot load it either.
    """
    custom = {"observation_space": observation_space, "action_space": action_space, "buffer_size": 1}
    try:
        model = _library_of(algorithm).load(path, custom_objects=custom, device="cpu")
        policy = acting_policy(model, flat).requires_grad_(False)
    except Exception as error:  # third-party code ran: it may raise anything
        raise AgentError(f"{path.name}: Stable-Baselines3 cannot load it: {type(error).__name__}: {error}") from error
    return policy, model


def check_acts_alike(agent: Agent, model: BaseAlgorithm) -> None:
    """Hold an agent without statistics against the library's own actions for sampled observations.

    Raises:
        AgentError: an action differs by more than rounding: the user's own code does what is not read here.
    """
    policy, space = agent.policy, agent.flat or agent.observation_space
    space.seed(0)
    samples = [space.sample() for _ in range(CHECKED)]
    inputs = np.stack([np.asarray(spaces.flatten(space, each) if agent.flat else each) for each in samples])
    options: dict[str, Any] = {}
    if agent.masked:
        masks = np.random.default_rng(0).integers(0, 2, (CHECKED, policy.num_masked)).astype(np.int8)
        inputs, options = np.concatenate([masks, inputs], axis=1), {"action_masks": masks}
    stacked = (
        {key: np.stack([each[key] for each in samples]) for key in space}
        if isinstance(space, spaces.Dict)
        else np.stack([np.asarray(each) for each in samples])
    )
    try:
        expected = np.asarray(model.predict(stacked, deterministic=True, **options)[0])
        with torch.no_grad():
            outputs = policy(torch.from_numpy(agent.normalize(inputs))).numpy()
    except Exception as error:  # third-party code runs here too
        raise AgentError(f"{agent.name}: it does not act: {type(error).__name__}: {error}") from error
    actions = policy.actions(outputs).reshape(expected.shape)
    if policy.discrete:
        # Between equals up to rounding either is right.
        gaps = [np.diff(np.sort(logits, axis=-1)[..., -2:], axis=-1)[..., 0] for logits in policy.categories(outputs)]
        wrong = (actions != expected) & (np.stack(gaps, axis=-1).reshape(expected.shape) > 1e-5 * np.abs(outputs).max())
    else:
        wrong = ~np.isclose(actions, expected, rtol=1e-5, atol=1e-5)
    if wrong.any():
        share = wrong.reshape(len(wrong), -1).any(axis=1).mean()
        raise AgentError(
            f"code pickled into the archive changes how it acts: {share:.0%} of the actions for {CHECKED} "
            "observations are not those of the library's predict(); such a policy cannot be rebuilt here"
        )


def _library_of(algorithm: str) -> Any:
    if hasattr(stable_baselines3, algorithm):
        return getattr(stable_baselines3, algorithm)
    try:
        import sb3_contrib
    except ImportError as error:
        raise AgentError(f"{algorithm} is of sb3-contrib: pip install sb3-contrib") from error
    return sb3_contrib.MaskablePPO if algorithm == MASKABLE else getattr(sb3_contrib, algorithm)


def _is_of_contrib(policy: object, name: str) -> bool:
    """Say whether a policy is of an sb3-contrib class, without importing that."""
    return any(kind.__name__ == name and kind.__module__.startswith("sb3_contrib.") for kind in type(policy).__mro__)


def _random_search(policy: Any) -> ActingPolicy:
    layers = list(policy.action_net)
    features = _features(policy.features_extractor, policy)
    if isinstance(policy.action_space, spaces.Discrete):
        return ActingPolicy(nn.Sequential(features, *layers[:-1]), layers[-1], "q_values")
    if policy.squash_output:
        latent, head = nn.Sequential(features, *layers[:-2]), nn.Sequential(*layers[-2:])
        return ActingPolicy(latent, head, "deterministic", **_bounds(policy.action_space))
    return ActingPolicy(nn.Sequential(features, *layers[:-1]), layers[-1], "direct", **_bounds(policy.action_space))


def _features(extractor: BaseFeaturesExtractor, policy: Any, flat: spaces.Space | None = None) -> nn.Module:
    """Return plain layers where there are any, so that engines can read them; a subclass may do anything."""
    if flat is not None and (isinstance(flat, spaces.Dict) or len(flat.shape or ()) > 1):
        return nn.Sequential(Pieces(flat, policy.normalize_images), extractor)
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
