"""What an archive says about itself: algorithm, policy class and options, read exactly or refused by name.

Nothing pickled is run: a class that was pickled by reference is two strings, which are read without building anything.
"""

from __future__ import annotations

import base64
import pickletools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from quarl_lib.sb3.archive import AgentError

MASKABLE = "MASKABLEPPO"
ON_POLICY = ("A2C", "PPO", "TRPO", MASKABLE)
DETERMINISTIC = ("DDPG", "TD3")
SQUASHED = ("SAC", "TQC")
ALGORITHMS = (*ON_POLICY, "DQN", "QRDQN", *DETERMINISTIC, *SQUASHED, "ARS")
REMEDY = "where you trust the file, run_pickles lets Stable-Baselines3 load it"
FLATTEN, NATURE_CNN, COMBINED = "FlattenExtractor", "NatureCNN", "CombinedExtractor"

_SB3, _CONTRIB = "stable_baselines3", "sb3_contrib"
# Module of the policy class -> its classes that need no code of their own, and the extractor that each has by default.
_POLICIES: dict[str, dict[str, str]] = {
    f"{_SB3}.common.policies": {
        "ActorCriticPolicy": FLATTEN, "ActorCriticCnnPolicy": NATURE_CNN, "MultiInputActorCriticPolicy": COMBINED,
    },
    f"{_CONTRIB}.common.maskable.policies": {
        "MaskableActorCriticPolicy": FLATTEN, "MaskableActorCriticCnnPolicy": NATURE_CNN,
        "MaskableMultiInputActorCriticPolicy": COMBINED,
    },
    **{
        f"{library}.{name.lower()}.policies": {
            f"{name}Policy": FLATTEN, "CnnPolicy": NATURE_CNN, "MultiInputPolicy": COMBINED,
        }
        for library, name in ((_SB3, "DQN"), (_SB3, "TD3"), (_SB3, "SAC"), (_CONTRIB, "TQC"), (_CONTRIB, "QRDQN"))
    },
    f"{_CONTRIB}.ars.policies": {"ARSPolicy": FLATTEN, "ARSLinearPolicy": FLATTEN},
}  # fmt: skip
_EXTRACTORS = {f"<class '{_SB3}.common.torch_layers.{name}'>": name for name in (FLATTEN, NATURE_CNN, COMBINED)}
_ACTIVATIONS = {
    **{f"<class 'torch.nn.modules.activation.{name}'>": getattr(nn, name) for name in (
        "Tanh", "ReLU", "ELU", "LeakyReLU", "GELU", "SiLU", "Sigmoid", "Softplus", "Mish", "CELU", "SELU",
    )},
    "<class 'torch.nn.modules.linear.Identity'>": nn.Identity,
}  # fmt: skip
# Options that change nothing about which action is chosen.
_IRRELEVANT = frozenset(
    {"net_arch", "ortho_init", "use_sde", "log_std_init", "full_std", "optimizer_class", "optimizer_kwargs"}
    | {"n_critics", "n_quantiles", "share_features_extractor", "lr_schedule", "device", "sde_net_arch", "with_bias"}
)
_READ = frozenset({"activation_fn", "features_extractor_class", "features_extractor_kwargs", "normalize_images"}
                  | {"squash_output", "use_expln", "clip_mean"})  # fmt: skip


@dataclass(frozen=True)
class Declared:
    """How an archive says that its policy is built."""

    algorithm: str
    policy_class: str
    activation: type[nn.Module]
    extractor: str
    normalize_images: bool
    squash_output: bool
    use_sde: bool
    use_expln: bool
    clip_mean: float


def read_declared(settings: Mapping[str, Any]) -> Declared:
    """Read the settings of an archive.

    Raises:
        AgentError: names the class, option or algorithm that is not known, and what to do.
    """
    module, name = _policy_class(settings)
    if "recurrent" in module:
        raise AgentError(f"recurrent policies ({module}.{name}) are not supported: their actions depend on the past")
    if name not in _POLICIES.get(module, {}):
        raise AgentError(f"policy class {module}.{name} is not one that is rebuilt from weights alone; {REMEDY}")
    algorithm = _algorithm(settings, module)
    options = _options(settings)
    extractor = _EXTRACTORS.get(str(options.get("features_extractor_class", "")), "")
    if "features_extractor_class" not in options:
        extractor = _POLICIES[module][name]
    if not extractor:
        raise AgentError(
            f"features extractor {options['features_extractor_class']} is not one of {FLATTEN}, {NATURE_CNN}, "
            f"{COMBINED} of Stable-Baselines3; {REMEDY}"
        )
    return Declared(
        algorithm=algorithm,
        policy_class=f"{module}.{name}",
        activation=_activation(options, algorithm),
        extractor=extractor,
        normalize_images=_flag(options, "normalize_images", True),
        squash_output=_flag(options, "squash_output", algorithm == "ARS" and name == "ARSPolicy"),
        use_sde=_flag(settings, "use_sde", False),
        use_expln=_flag(options, "use_expln", False),
        clip_mean=_number(options, "clip_mean", 2.0),
    )


def known_algorithm(settings: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return algorithm and policy class of an archive, None where its class is not one of the libraries'."""
    stored = settings.get("policy_class")
    serialized = stored.get(":serialized:") if isinstance(stored, Mapping) else None
    found = class_reference(serialized) if isinstance(serialized, str) else None
    if found is None or found[0] not in _POLICIES:
        return None
    return _algorithm(settings, found[0]), ".".join(found)


def check_algorithm(algorithm: str, policy_class: str, said: str) -> None:
    """Hold what the folder says against what the archive says.

    Raises:
        AgentError: they differ in what acts.
    """
    if said not in (DETERMINISTIC if algorithm == "DDPG" else (algorithm,)):
        raise AgentError(
            f"the archive was trained with {algorithm} ({policy_class}), its folder says {said}: "
            f"move it to {algorithm.lower()}/"
        )


def _policy_class(settings: Mapping[str, Any]) -> tuple[str, str]:
    stored = settings.get("policy_class")
    if not isinstance(stored, Mapping) or not isinstance(stored.get(":serialized:"), str):
        raise AgentError("the archive does not say its policy class (policy_class is missing); save the model anew")
    found = class_reference(stored[":serialized:"])
    if found is None:
        raise AgentError(f"the policy class is pickled with its code, which was not run; {REMEDY}")
    return found


def class_reference(serialized: str) -> tuple[str, str] | None:
    """Return module and name of a base64 pickle that is one class by reference; None for any other pickle."""
    if len(serialized) > 1000:
        return None
    strings: list[str] = []
    try:
        for opcode, argument, _ in pickletools.genops(base64.b64decode(serialized, validate=True)):
            if opcode.name in ("SHORT_BINUNICODE", "BINUNICODE"):
                strings.append(str(argument))
            elif opcode.name == "GLOBAL":
                strings += str(argument).split(" ")
            elif opcode.name not in ("PROTO", "FRAME", "MEMOIZE", "BINPUT", "STACK_GLOBAL", "STOP"):
                return None
    except Exception:  # whatever a damaged pickle makes of the parser
        return None
    return (strings[0], strings[1]) if len(strings) == 2 else None


def _algorithm(settings: Mapping[str, Any], module: str) -> str:
    if module == f"{_SB3}.common.policies":
        if "cg_max_steps" in settings:
            return "TRPO"
        return "PPO" if "clip_range" in settings else "A2C"
    if module == f"{_CONTRIB}.common.maskable.policies":
        return MASKABLE
    if module == f"{_SB3}.td3.policies":
        return "DDPG" if settings.get("policy_delay") in (1, "1") else "TD3"
    return module.split(".")[1].upper()


def _options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return policy_kwargs; values that JSON cannot hold are their text."""
    options = settings.get("policy_kwargs")
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise AgentError(f"policy_kwargs is a {type(options).__name__}, not a dictionary; save the model anew")
    kept = {name: value for name, value in options.items() if name not in (":type:", ":serialized:")}
    unknown = sorted(name for name in kept if name not in _IRRELEVANT | _READ)
    if unknown:
        raise AgentError(f"policy_kwargs holds {unknown[0]!r}, which is not known here; {REMEDY}")
    if kept.get("sde_net_arch") not in (None, "None"):
        raise AgentError("gSDE with a network of its own (sde_net_arch) is not supported")
    return kept


def _activation(options: Mapping[str, Any], algorithm: str) -> type[nn.Module]:
    stored = options.get("activation_fn")
    if stored is None:
        return nn.Tanh if algorithm in ON_POLICY else nn.ReLU
    if str(stored) not in _ACTIVATIONS:
        known = ", ".join(sorted(activation.__name__ for activation in _ACTIVATIONS.values()))
        raise AgentError(f"activation {stored} is none of torch's {known}; {REMEDY}")
    return _ACTIVATIONS[str(stored)]


def _flag(options: Mapping[str, Any], name: str, default: bool) -> bool:
    value = options.get(name, default)
    if str(value) not in ("True", "False"):
        raise AgentError(f"{name} is {str(value)[:50]!r}, neither True nor False; save the model anew")
    return str(value) == "True"


def _number(options: Mapping[str, Any], name: str, default: float) -> float:
    value = str(options.get(name, default))
    if not re.fullmatch(r"-?\d+(\.\d*)?(e[+-]?\d+)?", value):
        raise AgentError(f"{name} is {value[:50]!r}, not a number; save the model anew")
    return float(value)
