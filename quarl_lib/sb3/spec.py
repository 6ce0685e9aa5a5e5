"""Turn a loaded agent into what an inference engine runs, and play its episodes with such an engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from gymnasium import spaces
from torch import nn

from quarl_lib.inference.modules import spec_from_module
from quarl_lib.inference.spec import Head, PolicySpec, Weights
from quarl_lib.sb3.agents import Agent
from quarl_lib.sb3.archive import Normalization
from quarl_lib.sb3.episodes import evaluate
from quarl_lib.sb3.flat import Pieces, channels_last, is_image
from quarl_lib.sb3.policy import ActingPolicy


def agent_spec(agent: Agent) -> tuple[PolicySpec, Weights]:
    """Return the spec and weights of an agent that takes the environment's own observations, normalisation included.

    Raises:
        ValueError: names the layer or the observation that no engine knows.
    """
    if isinstance(agent.observation_space, spaces.Discrete):
        raise ValueError(f"{agent.name}: observations are indices, engines take vectors or images")
    if agent.policy.num_masked:
        raise ValueError(f"{agent.name}: actions are masked, engines take observations alone")
    if agent.policy.kind in ("multi_categorical", "bernoulli"):
        raise ValueError(f"{agent.name}: a {agent.policy.kind} policy chooses several indices, engines choose one")
    if any(isinstance(module, Pieces) for module in agent.policy.modules()):
        raise ValueError(
            f"{agent.name}: images among other observations ({agent.flat}), engines take vectors or images"
        )
    shape = agent.observation_space.shape or ()
    image_shape = None
    if len(shape) > 1:
        if not is_image(agent.observation_space):
            raise ValueError(f"{agent.name}: observations of shape {shape} are no images, which engines take")
        if not agent.scale_images:
            raise ValueError(f"{agent.name}: trained on images that were not divided by 255, which engines do")
        if channels_last(agent.observation_space):
            raise ValueError(f"{agent.name}: images of shape {shape} have their channels last, engines take them first")
        if not any(isinstance(module, nn.Conv2d) for module in agent.policy.modules()):
            raise ValueError(f"{agent.name}: linear layers over images, engines take convolutions there")
        image_shape = (shape[0], shape[1], shape[2])
    policy, statistics = agent.policy, agent.normalization
    return spec_from_module(
        nn.Sequential(policy.latent, policy.head),
        _head(policy),
        image_shape=image_shape,
        observation_mean=None if statistics is None else statistics.mean,
        observation_inverse_std=None if statistics is None else 1.0 / statistics.std,
        observation_clip=float("inf") if statistics is None else _one_clip(agent.name, statistics),
    )


def _one_clip(name: str, statistics: Normalization) -> float:
    clips = np.unique(statistics.clip)
    if len(clips) > 1:
        raise ValueError(f"{name}: some observations are normalised and clipped, others are not; engines clip all")
    return float(clips[0])


def _head(policy: ActingPolicy) -> Head:
    if policy.discrete:
        return Head("argmax")
    squashed = policy.kind == "deterministic" or policy.squash
    if not squashed and not np.isfinite([policy.low, policy.high]).any():
        return Head("none")  # nothing to clip to
    return Head("tanh" if squashed else "clip", tuple(policy.low), tuple(policy.high))


def evaluate_engine(agent: Agent, engine: Callable[[np.ndarray], Any], episodes: int, seed: int) -> pd.DataFrame:
    """Play an agent's episodes with a loaded engine, or what acts as one; it normalises observations itself."""
    return evaluate(agent, _EngineActor(engine), episodes, seed, normalize=lambda observation: observation)


class _EngineActor:
    def __init__(self, engine: Callable[[np.ndarray], Any]) -> None:
        self._engine = engine

    def act(self, observation: np.ndarray) -> np.ndarray:
        return np.asarray(self._engine(observation))
