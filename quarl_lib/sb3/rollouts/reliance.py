"""What of Stable-Baselines3 the rollouts rely on, held against what is installed and what a model has."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import stable_baselines3
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.dqn.dqn import DQN
from stable_baselines3.dqn.policies import DQNPolicy
from stable_baselines3.sac.policies import Actor as SACActor
from stable_baselines3.sac.policies import SACPolicy
from stable_baselines3.td3.policies import TD3Policy
from torch import nn

TESTED_VERSION = "2.9.2"
# Who calls what, when and with what: read in the tested version. A function that reads otherwise may work otherwise.
RELIED_ON: dict[Callable[..., Any], str] = {
    OnPolicyAlgorithm.collect_rollouts: "07f9eed35d9d",
    OnPolicyAlgorithm.learn: "193ab72530ae",
    OffPolicyAlgorithm.collect_rollouts: "221089110472",
    OffPolicyAlgorithm.learn: "180dc4ca47ad",
    OffPolicyAlgorithm._sample_action: "91b38e02c778",
    BaseAlgorithm.predict: "879a89b221dc",
    DQN.predict: "bd134514b2b5",
    BasePolicy.predict: "47903eef7db6",
    ActorCriticPolicy.forward: "a105334089d8",
    RolloutBuffer.add: "624274151cae",
    RolloutBuffer.compute_returns_and_advantage: "1a229ef50a03",
    SACActor.get_action_dist_params: "63d37856ae4b",
}
COLLECTING = (OnPolicyAlgorithm.collect_rollouts.__code__, OffPolicyAlgorithm.collect_rollouts.__code__)
LEARNING = (OnPolicyAlgorithm.learn.__code__, OffPolicyAlgorithm.learn.__code__)
LAYERS = (
    *(nn.Sequential, nn.Linear, nn.Conv2d, nn.LayerNorm, nn.Flatten, nn.Identity, nn.Dropout),
    *(nn.ReLU, nn.Tanh, nn.ELU, nn.SiLU),
)  # fmt: skip


def digest(function: Callable[..., Any]) -> str:
    """Return 12 hex digits of a function's source; raise OSError where there is none to read."""
    return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()[:12]


@cache
def check_version() -> None:
    """Raise RuntimeError unless every function relied on reads as in the tested version."""
    changed = []
    for function, known in RELIED_ON.items():
        try:
            found = digest(function)
        except OSError:
            found = "no source"
        if found != known:
            changed.append(function.__qualname__)
    if changed:
        raise RuntimeError(
            f"stable-baselines3 {stable_baselines3.__version__} works otherwise than {TESTED_VERSION}, which quantized "
            f"rollouts rely on, in {', '.join(changed)}; pip install stable-baselines3=={TESTED_VERSION}"
        )


def check_model(model: BaseAlgorithm) -> None:
    """Raise ValueError, with the reason, for a model whose rollouts are not Stable-Baselines3's own."""
    kind, policy = type(model), model.policy
    if getattr(model, "use_sde", False):
        raise ValueError(
            "model.use_sde=True: gSDE draws its noise from the last layer, which no engine does; turn it off"
        )
    if isinstance(model, OnPolicyAlgorithm):
        _check_own(kind, OnPolicyAlgorithm, ("collect_rollouts",))
        if not isinstance(policy, ActorCriticPolicy):
            raise ValueError(f"policy={type(policy).__name__}: give Stable-Baselines3's policy of actor and critic")
        _check_own(
            type(policy), ActorCriticPolicy, ("forward", "predict_values", "evaluate_actions", "set_training_mode")
        )
        if type(model.rollout_buffer) is not RolloutBuffer:
            name = type(model.rollout_buffer).__name__
            raise ValueError(f"rollout_buffer={name}: only Stable-Baselines3's own RolloutBuffer is known")
    elif isinstance(model, OffPolicyAlgorithm):
        _check_own(kind, OffPolicyAlgorithm, ("collect_rollouts", "_sample_action"))
        _check_own(kind, BaseAlgorithm, ("predict",), but=(DQN,))
        if not isinstance(policy, DQNPolicy | TD3Policy | SACPolicy):
            raise ValueError(f"policy={type(policy).__name__}: give a model of DQN, DDPG, TD3 or SAC")
        _check_own(type(policy), BasePolicy, ("predict",))
    else:
        raise ValueError(f"model={kind.__name__}: give a model of PPO, A2C, DQN, DDPG, TD3 or SAC")
    space = model.action_space
    if not isinstance(space, spaces.Box | spaces.Discrete):
        raise ValueError(f"action_space={space}: engines give one index or a vector of floats")
    if not isinstance(model.observation_space, spaces.Box):
        raise ValueError(f"observation_space={model.observation_space}: engines take vectors or images")


def check_layers(*modules: nn.Module) -> None:
    """Raise ValueError where an acting network holds what an engine would leave out in silence."""
    for module in modules:
        for name, part in module.named_modules():
            place = f"the policy's layer {name}" if name else "the policy's network"
            if type(part) not in LAYERS:
                raise ValueError(f"{place} is a {type(part).__name__}: no engine runs it as it is")
            if part._forward_hooks or part._forward_pre_hooks:
                raise ValueError(f"{place} has a forward hook, which no engine calls; remove it")


def check_images(policy: BasePolicy, convolutions: bool) -> None:
    """Raise ValueError unless observations are divided by 255 exactly where engines do so."""
    if (policy.normalize_images and is_image_space(policy.observation_space)) != convolutions:
        raise ValueError("observations: images go with convolutions and normalize_images=True, vectors with neither")


def _check_own(kind: type, base: type, names: tuple[str, ...], but: tuple[type, ...] = ()) -> None:
    for name in names:
        owners = {getattr(other, name) for other in (base, *but)}
        if getattr(kind, name) not in owners:
            raise ValueError(f"{kind.__name__}.{name} is not Stable-Baselines3's own: its rollouts are not understood")
