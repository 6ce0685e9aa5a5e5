"""Observations that are not one array (Dict, MultiDiscrete, MultiBinary, an action mask beside them) as one vector.

The environment hands out the vector (Gymnasium's flattening: by key, indices one-hot, images as they lie in memory), so
that rollouts, quantizers and engines know arrays alone; the policy's first module takes it apart again where it must.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation
from torch import Tensor, nn

from quarl_lib.sb3.archive import AgentError

MASK, OBSERVATION = "action_mask", "observation"  # the mask comes first: keys are sorted


def vectorized(env: gymnasium.Env, masked: bool = False) -> gymnasium.Env:
    """Return an environment whose observations are one array; with `masked`, valid actions (0 or 1) stand in front."""
    if masked:
        env = _MaskBeside(env)
    needed = isinstance(env.observation_space, spaces.Dict | spaces.MultiDiscrete | spaces.MultiBinary)
    return FlattenObservation(env) if needed else env


def gives_masks(env: gymnasium.Env) -> bool:
    """Say whether an environment has the method `action_masks`, which MaskablePPO asks."""
    try:
        return callable(env.get_wrapper_attr("action_masks"))
    except AttributeError:
        return False


def num_choices(space: spaces.Space) -> tuple[int, ...]:
    """Return how many values each component of an action space of indices has; () for any other."""
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        return tuple(int(n) for n in space.nvec)
    if isinstance(space, spaces.MultiBinary) and isinstance(space.n, int | np.integer):
        return (2,) * int(space.n)
    return ()


def check_observations(space: spaces.Space, key: str = "") -> None:
    """Raise AgentError where Stable-Baselines3 has no policy for an observation space; names the key."""
    where = f"observation {key!r}" if key else "observations"
    if isinstance(space, spaces.Dict) and not key:
        for name, part in space.spaces.items():
            check_observations(part, name)
    elif not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        raise AgentError(f"{where} {'is' if key else 'are'} {space}, which Stable-Baselines3 does not take")
    elif np.any(getattr(space, "start", 0)):
        raise AgentError(
            f"{where} {'is' if key else 'are'} {space}: Stable-Baselines3 counts them from 0; wrap the environment so"
        )


def is_image(space: spaces.Space | None) -> bool:
    """Say whether Stable-Baselines3 takes observations for images: uint8, three axes, all of 0 to 255."""
    if not isinstance(space, spaces.Box) or len(space.shape) != 3 or space.dtype != np.uint8:
        return False
    return bool((space.low == 0).all() and (space.high == 255).all())


def channels_last(space: spaces.Space) -> bool:
    """Say whether Stable-Baselines3 turns an image's axes round: the smallest is the channels, and not in front."""
    return is_image(space) and int(np.argmin(space.shape or ())) != 0


class Pieces(nn.Module):
    """Take flat observations [n, d] apart into what the library's extractors take: a dictionary or a tensor."""

    def __init__(self, space: spaces.Space, scale_images: bool) -> None:
        super().__init__()
        self._parts: dict[str, spaces.Space] = dict(space.spaces) if isinstance(space, spaces.Dict) else {"": space}
        self._sizes = [spaces.flatdim(part) for part in self._parts.values()]
        self._scale_images = scale_images

    def forward(self, flat: Tensor) -> Any:
        """Return a piece by key, images in front of their channels and divided by 255 where the agent's are."""
        pieces = {
            key: self._piece(part, piece)
            for (key, part), piece in zip(self._parts.items(), flat.split(self._sizes, dim=1), strict=True)
        }
        return pieces.get("", pieces)

    def _piece(self, space: spaces.Space, piece: Tensor) -> Tensor:
        if not isinstance(space, spaces.Box):
            return piece
        piece = piece.reshape(len(piece), *space.shape)
        if channels_last(space):
            piece = piece.permute(0, 3, 1, 2)
        return piece / 255.0 if self._scale_images and is_image(space) else piece


class Joined(nn.Module):
    """Pass every piece through layers of its own and join what they give, as CombinedExtractor does."""

    def __init__(self, extractors: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.extractors = nn.ModuleDict(dict(extractors))

    def forward(self, pieces: dict[str, Tensor]) -> Tensor:
        """Return the joined features [n, d]."""
        return torch.cat([extractor(pieces[key]) for key, extractor in self.extractors.items()], dim=1)


class _MaskBeside(gymnasium.ObservationWrapper):
    """Put the mask of valid actions beside the observation."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        size = sum(num_choices(env.action_space))
        self.observation_space = spaces.Dict({MASK: spaces.MultiBinary(size), OBSERVATION: env.observation_space})

    def observation(self, observation: Any) -> dict[str, Any]:
        mask = np.asarray(self.env.get_wrapper_attr("action_masks")(), bool)
        return {MASK: mask.astype(np.int8).reshape(-1), OBSERVATION: observation}
