"""The acting network of a model as an engine that reads weights where training left them."""

from __future__ import annotations

import copy
import time
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, FlattenExtractor, NatureCNN
from stable_baselines3.dqn.policies import DQNPolicy
from stable_baselines3.sac.policies import SACPolicy
from torch import Tensor, nn
from torch.nn.utils import skip_init

from quarl_lib.inference import Head, make_engine
from quarl_lib.inference.modules import spec_from_module
from quarl_lib.inference.pack import Packer
from quarl_lib.sb3.rollouts.reliance import check_images, check_layers


class EngineActor:
    """Computes logits, Q values, means (SAC: means, then log stds) or actions in [-1, 1] for observations [n, ...].

    Raises:
        ValueError: the network holds what no engine knows, by name.
    """

    def __init__(self, model: BaseAlgorithm, precision: str) -> None:
        policy: Any = model.policy
        chain, heads = _acting_chain(policy)
        check_layers(chain, *heads)
        convolutions = any(isinstance(part, nn.Conv2d) for part in chain.modules())
        check_images(policy, convolutions)
        self._image_shape = policy.observation_space.shape if convolutions else None
        self._watched = list(policy.actor.parameters()) if heads else list(chain.parameters())
        self._chain = chain
        self._staged: list[tuple[Tensor, Tensor]] = []
        if model.device.type != "cpu":
            self._chain = copy.deepcopy(chain).cpu()
            self._staged += zip(self._chain.parameters(), chain.parameters(), strict=True)
        if heads:
            self._staged += _halves(self._chain[-1], *heads)
        self.log_std: np.ndarray | None = None  # of a Gaussian whose spread is a parameter
        self._log_std = getattr(policy, "log_std", None) if isinstance(policy, ActorCriticPolicy) else None
        self.precision, self.updates, self.update_s, self._versions = precision, 0, 0.0, -1
        self._pointers: list[int] = []
        spec, _ = spec_from_module(self._chain, Head("none"), image_shape=self._image_shape)
        self.engine = make_engine(spec, precision)
        self._dtype, self._shape = (np.uint8 if spec.conv else np.float32), spec.observation_shape
        self.refresh()

    @property
    def payload_bytes(self) -> int:
        """Return the bytes of one update."""
        return self._packer.buffer.nbytes

    def changed(self) -> bool:
        """Tell whether a weight was written in place, or moved, since the engine got its own."""
        return self._versions != sum([p._version for p in self._watched]) or self._pointers != self._where()

    def refresh(self) -> None:
        """Give the engine the weights as they are now; raise ValueError where one is not finite."""
        begin = time.perf_counter()
        self._versions = sum([p._version for p in self._watched])
        with torch.no_grad():
            for inside, outside in self._staged:
                inside.copy_(outside)
        pointers = self._where()
        if pointers != self._pointers:  # `module.to` or `parameter.data = ...` leave the old memory behind
            spec, weights = spec_from_module(self._chain, Head("none"), image_shape=self._image_shape)
            self._packer, self._pointers = Packer(spec, weights, self.precision), pointers
        self.engine.load(self._packer(self.updates))
        if self._log_std is not None:
            self.log_std = self._log_std.detach().cpu().numpy().copy()
        self.updates += 1
        self.update_s += time.perf_counter() - begin

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        """Return outputs [n, k], float32."""
        n = len(observations)
        x = np.ascontiguousarray(observations.reshape(n, *self._shape), dtype=self._dtype)
        return self.engine(x[0])[None] if n == 1 else self.engine(x)  # type: ignore[index, return-value]

    def _where(self) -> list[int]:
        return [p.data_ptr() for p in self._watched]


def _acting_chain(policy: Any) -> tuple[nn.Sequential, tuple[nn.Linear, ...]]:
    """Return the network from observation to outputs, and SAC's two heads, which its last layer stands for."""
    if isinstance(policy, ActorCriticPolicy):
        features = _features(policy.pi_features_extractor)
        return nn.Sequential(features, policy.mlp_extractor.policy_net, policy.action_net), ()
    if isinstance(policy, DQNPolicy):
        return nn.Sequential(_features(policy.q_net.features_extractor), policy.q_net.q_net), ()
    actor = policy.actor
    features = _features(actor.features_extractor)
    if isinstance(policy, SACPolicy):
        # Without the first weights' random draws, which would change the training's own; zeros until the first refresh,
        # because memory that nobody wrote may hold a NaN.
        both = skip_init(nn.Linear, actor.mu.in_features, 2 * actor.mu.out_features)
        nn.init.zeros_(both.weight)
        nn.init.zeros_(both.bias)
        return nn.Sequential(features, actor.latent_pi, both), (actor.mu, actor.log_std)
    return nn.Sequential(features, actor.mu), ()


def _halves(both: Any, mean: nn.Linear, log_std: nn.Linear) -> list[tuple[Tensor, Tensor]]:
    k = mean.out_features
    weight, bias = both.weight.detach(), both.bias.detach()
    return [(weight[:k], mean.weight), (weight[k:], log_std.weight), (bias[:k], mean.bias), (bias[k:], log_std.bias)]


def _features(extractor: BaseFeaturesExtractor) -> nn.Module:
    """Return plain layers where there are any; another extractor is refused by its name later."""
    if type(extractor) is FlattenExtractor:
        return nn.Flatten()
    if type(extractor) is NatureCNN:
        return nn.Sequential(extractor.cnn, extractor.linear)
    return extractor
