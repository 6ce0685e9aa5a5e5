"""Take a model out of Stable-Baselines3: as an agent, as a plain model, and at which precision engines run it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecNormalize

from quarl_lib.quantization.qat import ENGINE_BITS, QATConfig, bake_weights, fake_quant_layers
from quarl_lib.sb3.agents import Agent
from quarl_lib.sb3.archive import Normalization
from quarl_lib.sb3.live import acting_policy
from quarl_lib.sb3.qat_policies import POLICIES, QATPolicy


def trained_agent(model: BaseAlgorithm, task: str | Agent) -> Agent:
    """Return a model that still holds its environment as an agent, with the observation statistics of its training.

    `task` is the environment's name, or the agent whose training went on, whose time feature and options it keeps.
    """
    normalization = statistics_of(model.get_vec_normalize_env())
    if isinstance(task, Agent):
        return dataclasses.replace(task, policy=acting_policy(model), normalization=normalization)
    algorithm, env_id = type(model).__name__, task
    return Agent(
        algorithm, env_id, f"{algorithm.lower()}/{env_id}", acting_policy(model), model.observation_space, normalization
    )


def statistics_of(vec_normalize: VecNormalize | None) -> Normalization | None:
    """Return the observation statistics of a VecNormalize as they stand, None where it leaves observations alone."""
    if vec_normalize is None or not vec_normalize.norm_obs:
        return None
    statistics: Any = vec_normalize.obs_rms
    std = np.sqrt(statistics.var + vec_normalize.epsilon)
    return Normalization(statistics.mean.copy(), std, vec_normalize.clip_obs)


def engine_precision(config: QATConfig) -> str:
    """Return the precision whose engine computes what a policy trained with `config` computed.

    Raises:
        ValueError: no engine does; names the first parameter in the way.
    """
    by_bits = {bits: precision for precision, bits in ENGINE_BITS.items()}
    precision = by_bits.get((config.weight_bits, config.activation_bits))
    wanted = QATConfig.for_engine(precision or "int8")
    for name in ("grid", "observation_bits"):
        if getattr(config, name) != getattr(wanted, name):
            raise ValueError(f"{name}={getattr(config, name)!r}: engines compute {getattr(wanted, name)!r}")
    if precision is None:
        known = "; ".join(f"{w} and {a}" for w, a in by_bits)
        raise ValueError(f"weight_bits={config.weight_bits}, activation_bits={config.activation_bits}: give {known}")
    if (config.edge_bits or config.weight_bits) != 8:
        raise ValueError(f"edge_bits={config.edge_bits}: engines keep the first and last layer's weights at 8 bits")
    return precision


def trained_precision(model: BaseAlgorithm) -> str:
    """Return the precision at which an engine acts as a QAT model does; "" for a model that trained in fp32.

    Its weights are those before quantization: `pack` puts them on the very grid that training used.

    Raises:
        ValueError: the model was not trained on the engines' grid, or has not started to quantize.
    """
    if not isinstance(model.policy, QATPolicy):
        return ""
    precision = engine_precision(model.policy.quantization)
    if not all(layer.running_enabled.item() for _, layer in fake_quant_layers(model.policy)):
        raise ValueError(
            "quant_delay_steps: the model is still before its delay; train on or start_quantization(policy)"
        )
    return precision


def plain_model(model: BaseAlgorithm) -> BaseAlgorithm:
    """Return the model's fp32 twin with the quantized weights; what it saves loads without this package.

    Inputs of layers are no longer quantized, because a plain policy cannot do that. The optimizer starts anew.

    Raises:
        ValueError: the model's policy is not one of this module.
    """
    if not isinstance(model.policy, QATPolicy):
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
