"""What else may decide at few bits: the same training from scratch with one thing changed, beside the one without."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
from stable_baselines3.common.base_class import BaseAlgorithm
from torch import Tensor, nn
from torch.nn import functional as F

from quarl_lib import metrics
from quarl_lib.quantization.observers import FakeQuantizer
from quarl_lib.quantization.qat import QATConfig, fake_quant_layers
from quarl_lib.sb3.recipes import Recipe
from quarl_lib.studies.qat_bit_sweep.bits import Bits, fewest
from quarl_lib.studies.qat_bit_sweep.summary import AGENT

WEIGHT_DECAY = 1e-4
LEARNED = ("learned_steps", "static_inputs")
TARGETS = ("DQN", "DDPG", "TD3")  # whose target networks compute as the acting one does
ABOUT = {
    "from_start": "quantized from the first step instead of after the delay",
    "observation_8": "observation and last layer's input at 8 bits instead of 16",
    "narrow_edges": "first and last layer's weights at as few bits as the others",
    "wide": "hidden layers wider by the root of 2: twice the weights between them, as if at twice the bits",
    "layer_norm": "hidden outputs normalised (LayerNorm) before the activation",
    "weight_decay": f"weight decay of {WEIGHT_DECAY:g}",
    "fp32_targets": "target networks in fp32",
    "learned_steps": "the weights' steps learned (LSQ), of the hidden layers",
    "static_inputs": "the weights' and the inputs' steps learned, of the hidden layers: constants when the policy acts",
}
WARM_START = "warm_start"  # fine-tuning from the fp32 policy, which the sweep has anyway
COLUMNS = (
    *AGENT, "weight_bits", "variant", "about", "seeds", "mean_return", "without", "difference", "difference_low",
    "difference_high", "pays",
)  # fmt: skip


class _NormalizedTanh(nn.Tanh):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.layer_norm(x, x.shape[-1:]))


class _NormalizedReLU(nn.ReLU):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.layer_norm(x, x.shape[-1:]))


def vary_bits(bits: Bits, variant: str) -> Bits:
    """Return the bits that a variant trains with."""
    if variant == "observation_8":
        return dataclasses.replace(bits, observation=8)
    return dataclasses.replace(bits, edge=bits.weight) if variant == "narrow_edges" else bits


def vary_quantization(config: QATConfig, variant: str) -> QATConfig:
    """Return the quantization of a variant."""
    if variant in LEARNED:
        return dataclasses.replace(config, method="lsq", static_inputs=variant == "static_inputs")
    return config


def vary_recipe(recipe: Recipe, variant: str) -> Recipe:
    """Return the recipe of a variant: another network, or the same."""
    changed: dict[str, Any] = {}
    if variant == "wide":
        sizes = recipe.policy_kwargs["net_arch"]
        changed["net_arch"] = [round(size * math.sqrt(2)) for size in sizes]
    if variant == "layer_norm":
        # Of Stable-Baselines3's own activations: ReLU in networks of values, tanh in A2C's and PPO's.
        changed["activation_fn"] = _NormalizedTanh if recipe.algorithm in ("A2C", "PPO") else _NormalizedReLU
    return dataclasses.replace(recipe, policy_kwargs={**recipe.policy_kwargs, **changed})


def vary_model(model: BaseAlgorithm, variant: str) -> None:
    """Change what a variant changes in a model that was just made."""
    policy: Any = model.policy
    if variant == "weight_decay":
        for group in (policy.optimizer or policy.actor.optimizer).param_groups:
            group["weight_decay"] = WEIGHT_DECAY
    if variant == "fp32_targets":
        target = policy.q_net_target if hasattr(policy, "q_net_target") else policy.actor_target
        for _, layer in fake_quant_layers(target):
            layer.weight_quantizer, layer.input_quantizer = FakeQuantizer(), FakeQuantizer()


def beside_base(table: pd.DataFrame, bits: Sequence[str]) -> pd.DataFrame:
    """Return one row a variant: its return, that of the training without it, and their difference paired by seed.

    It pays where the interval of the difference lies above 0. Fine-tuning at the same bits, beside QAT from scratch,
    is the warm start. `bits`: those of the sweep.
    """
    tried = {str(name): cell for name, cell in table[table.variant != ""].groupby("variant", sort=False)}
    if not tried:
        return pd.DataFrame(columns=list(COLUMNS))
    agent = next(iter(tried.values()))[AGENT].iloc[0]
    of_bits = fewest(bits)
    plain = table[(table[AGENT] == agent).all(axis=1) & (table.variant == "") & (table.grid == of_bits.grid)]
    for part in ("weight", "activation", "observation", "edge"):
        plain = plain[plain[f"{part}_bits"] == getattr(of_bits, part)]
    if (plain.method == "fine_tune").any():
        tried[WARM_START] = plain[plain.method == "fine_tune"]
    of_base = plain[plain.method == "qat"].groupby("seed").episode_return.mean()
    rows = []
    for name, cell in tried.items():
        returns = cell.groupby("seed").episode_return.mean()
        difference = metrics.paired_difference(returns, of_base.loc[returns.index])
        rows.append(
            agent.to_dict()
            | {
                "weight_bits": of_bits.weight,
                "variant": name,
                "about": ABOUT.get(name, "fine-tuned from the fp32 policy instead of trained from scratch"),
                "seeds": len(returns),
                "mean_return": returns.mean(),
                "without": of_base.loc[returns.index].mean(),
                "difference": difference.estimate,
                "difference_low": difference.low,
                "difference_high": difference.high,
                "pays": bool(difference.low > 0),
            }
        )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def check(variants: list[str], algorithm: str, bits: Bits) -> None:
    """Raise ValueError where a variant is not known, or changes nothing in this training."""
    for name in variants:
        if name not in ABOUT:
            raise ValueError(f"variants={name!r}: choose among {', '.join(ABOUT)}")
        if name == "fp32_targets" and algorithm not in TARGETS:
            raise ValueError(f"variants={name!r}: {algorithm} has no target network; {', '.join(TARGETS)} do")
        if name == "static_inputs" and bits.grid != "engine":
            raise ValueError(f"variants={name!r}: {bits} is not on the engines' grid; name one such as int2 in bits")
        varied = vary_bits(bits, name)
        if name in ("observation_8", "narrow_edges") and varied == bits:
            raise ValueError(f"variants={name!r}: so it is at {bits} anyway; leave it out")
