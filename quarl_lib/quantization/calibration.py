"""What every layer of a policy is fed over the observations of a rollout."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from quarl_lib.quantization.affine import check_finite

BATCH = 256
SAMPLED_VALUES = 65_536


class LayerInput:
    """The inputs that one layer saw: their range, the range per feature (axis 1) and an even sample."""

    def __init__(self, name: str, values_per_batch: int) -> None:
        self.name, self.values_per_batch = name, values_per_batch
        self.low, self.high = math.inf, -math.inf
        self.is_observation = False
        self.last: Tensor = torch.empty(0)
        self._feature_lows: list[Tensor] = []
        self._feature_highs: list[Tensor] = []
        self._samples: list[Tensor] = []

    def update(self, x: Tensor) -> None:
        """Take in a batch [n, ...].

        Raises:
            ValueError: it holds NaN or infinity; names the layer.
        """
        check_finite(x, f"input of {self.name}")
        self.last = x
        self.low, self.high = min(self.low, float(x.min())), max(self.high, float(x.max()))
        rows = x.movedim(1, 0).reshape(x.shape[1], -1)
        self._feature_lows.append(rows.amin(1))
        self._feature_highs.append(rows.amax(1))
        self._samples.append(x.reshape(-1)[:: -(-x.numel() // self.values_per_batch)].clone())

    def feature_range(self) -> Tensor:
        """Return [2, features]: the lowest and the highest value of each feature."""
        return torch.stack([torch.stack(self._feature_lows).amin(0), torch.stack(self._feature_highs).amax(0)])

    def sample(self) -> Tensor:
        """Return values spread evenly over the batches, the two ends of the range among them."""
        return torch.cat([*self._samples, torch.tensor([self.low, self.high])])


def observe_inputs(
    policy: nn.Module, layers: Mapping[str, nn.Module], observations: Tensor, batch: int = BATCH
) -> dict[str, LayerInput]:
    """Run the policy over observations [n, ...] and return what each layer that was called saw, first call first.

    Raises:
        ValueError: there is no observation, or a layer saw NaN or infinity.
    """
    observations = torch.as_tensor(observations, dtype=torch.float32)
    if observations.ndim < 2 or not len(observations):
        raise ValueError(f"calibration of shape {tuple(observations.shape)}: give observations [n, ...], at least one")
    values_per_batch = max(1, SAMPLED_VALUES * batch // max(len(observations), batch))
    seen: dict[str, LayerInput] = {}

    def watch(name: str, module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        seen.setdefault(name, LayerInput(name, values_per_batch)).update(arguments[0])

    handles = [layer.register_forward_pre_hook(partial(watch, name)) for name, layer in layers.items()]
    try:
        with torch.no_grad():
            for start in range(0, len(observations), batch):
                policy(observations[start : start + batch])
    finally:
        for handle in handles:
            handle.remove()
    first = next(iter(seen.values()), None)
    for layer_input in seen.values():
        # Branches of a policy (a dueling head, a separate value stream) may all begin at the observation.
        layer_input.is_observation = first is not None and torch.equal(layer_input.last, first.last)
    return seen
