"""Rebuild a whole Stable-Baselines3 model, critics included, from an archive's weights, without running its pickles."""

from __future__ import annotations

import inspect
import io
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import stable_baselines3
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.torch_layers import NatureCNN
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from quarl_lib.quantization.qat import QATConfig
from quarl_lib.sb3.archive import AgentError, Archive, read_archive
from quarl_lib.sb3.declared import ON_POLICY, read_declared
from quarl_lib.sb3.qat_policies import POLICIES

# Settings that say how the policy is built and that are plain values in an archive.
POLICY_SETTINGS = (
    "log_std_init", "use_expln", "squash_output", "full_std", "normalize_images", "n_critics", "clip_mean",
    "share_features_extractor",
)  # fmt: skip
# A training's settings that another run has of its own.
NOT_TAKEN = (
    "policy", "env", "policy_kwargs", "device", "seed", "verbose", "tensorboard_log", "buffer_size", "learning_starts",
    "optimize_memory_usage",
    "gradient_steps",  # belongs to train_freq, which archives keep as an object
)  # fmt: skip
QUANTIZER_PARTS = ("weight_quantizer", "input_quantizer", "running_enabled")


def rebuild_model(
    path: Path,
    algorithm: str,
    env: VecEnv,
    *,
    quantization: QATConfig | None = None,
    hyperparameters: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> BaseAlgorithm:
    """Return a model that trains on from an archive in `env`, its policy fake-quantized if `quantization` says so.

    Networks come from the shapes of the weights, hyperparameters from the archive where they are plain numbers there
    and Stable-Baselines3's own elsewhere; `hyperparameters` win over both. Optimizer and replay buffer start anew.

    Raises:
        AgentError: the archive is damaged, or its networks are not those that Stable-Baselines3 builds.
    """
    archive = read_archive(path)
    weights = _of_today(archive.weights)
    if algorithm not in POLICIES:
        raise AgentError(f"algorithm {algorithm} is none of {', '.join(POLICIES)}, which can be trained on")
    images = any(".cnn.0.weight" in name for name in weights)
    policy_kwargs = _policy_kwargs(archive, algorithm, weights)
    policy: Any = "CnnPolicy" if images else "MlpPolicy"
    if quantization is not None:
        policy = POLICIES[algorithm]
        policy_kwargs["quantization"] = quantization
        if images:
            policy_kwargs["features_extractor_class"] = NatureCNN
    model_class = getattr(stable_baselines3, algorithm)
    settings = {**_plain_settings(archive, model_class), **(hyperparameters or {})}
    model = model_class(policy, env, policy_kwargs=policy_kwargs, seed=seed, device="cpu", **settings)
    try:
        found = model.policy.load_state_dict(weights, strict=False)
    except RuntimeError as error:
        raise AgentError(f"{path.name}: the weights do not fit its own networks: {error}") from error
    missing = [name for name in found.missing_keys if not any(part in name for part in QUANTIZER_PARTS)]
    if missing or found.unexpected_keys:
        names = ", ".join([*missing, *found.unexpected_keys][:4])
        raise AgentError(f"{path.name}: its networks are not those that Stable-Baselines3 builds today ({names})")
    _take_entropy(model, path)
    return model


def _of_today(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Name the weights as today's policies do: extractors that were shared stand three times now."""
    found = {name.removeprefix("_orig_mod."): value for name, value in weights.items()}
    if any(name.startswith("mlp_extractor.shared_net") for name in found):
        raise AgentError("its policy and value network share layers, which Stable-Baselines3 no longer builds")
    if any(name.startswith("mlp_extractor.") for name in found):
        shared = {name: value for name, value in found.items() if name.startswith("features_extractor.")}
        for prefix in ("pi_", "vf_"):
            found = {**{prefix + name: value for name, value in shared.items()}, **found}
    return found


def _policy_kwargs(archive: Archive, algorithm: str, weights: Mapping[str, Tensor]) -> dict[str, Any]:
    declared, options = read_declared(archive.settings), archive.settings.get("policy_kwargs") or {}
    plain = {name: options[name] for name in POLICY_SETTINGS if isinstance(options.get(name), bool | int | float)}
    if algorithm in ON_POLICY:
        architecture: Any = {
            "pi": _sizes(weights, "mlp_extractor.policy_net"),
            "vf": _sizes(weights, "mlp_extractor.value_net"),
        }
        plain["ortho_init"] = False  # the weights are overwritten anyway
    elif algorithm == "DQN":
        architecture = _sizes(weights, "q_net.q_net")[:-1]
    else:
        actor = _sizes(weights, "actor.latent_pi") if algorithm == "SAC" else _sizes(weights, "actor.mu")[:-1]
        architecture = {"pi": actor, "qf": _sizes(weights, "critic.qf0")[:-1]}
        plain.setdefault("n_critics", len({name.split(".")[1] for name in weights if name.startswith("critic.qf")}))
    return {**plain, "net_arch": architecture, "activation_fn": declared.activation}


def _sizes(weights: Mapping[str, Tensor], prefix: str) -> list[int]:
    """Return the outputs of a stored Sequential's linear layers."""
    pattern = re.compile(rf"{re.escape(prefix)}\.(\d+)\.weight")
    found = sorted((int(match[1]), len(value)) for name, value in weights.items() if (match := pattern.fullmatch(name)))
    return [size for _, size in found]


def _plain_settings(archive: Archive, model_class: type[BaseAlgorithm]) -> dict[str, Any]:
    wanted = set(inspect.signature(model_class).parameters) - set(NOT_TAKEN)
    settings = {}
    for name, value in archive.settings.items():
        text = name == "ent_coef" and isinstance(value, str)  # SAC's "auto"
        if name in wanted and (isinstance(value, bool | int | float) or text):
            settings[name] = value
    return settings


def _take_entropy(model: Any, path: Path) -> None:
    """Take SAC's learned entropy coefficient, which lies beside the policy's weights."""
    if getattr(model, "log_ent_coef", None) is None:
        return
    with zipfile.ZipFile(path) as stored:
        if "pytorch_variables.pth" not in stored.namelist():
            return
        variables = torch.load(io.BytesIO(stored.read("pytorch_variables.pth")), map_location="cpu", weights_only=True)
    if isinstance(variables, dict) and isinstance(variables.get("log_ent_coef"), Tensor):
        model.log_ent_coef.data.copy_(variables["log_ent_coef"].reshape(model.log_ent_coef.shape))
