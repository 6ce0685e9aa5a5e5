"""Policies by name, with PyTorch's default initialisation, and observations to feed them."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from quarl_lib.inference.modules import spec_from_module
from quarl_lib.inference.spec import Head, PolicySpec, Weights

NATURE_CNN = "nature-cnn"
MOST_LAYERS = 9
_NAME = re.compile(r"(\d+)-(\d+(?:x\d+)*)-(\d+)")


def check_policy_name(name: str) -> None:
    """Raise ValueError unless `example_policy` knows `name`."""
    if name != NATURE_CNN and (not _NAME.fullmatch(name) or "0" in re.split("[-x]", name)):
        raise ValueError(f"policy {name!r}: write <observations>-<hidden>-<actions> as 24-2048x3-6, or {NATURE_CNN}")


def hidden_sizes(text: str) -> list[int]:
    """Read "2048x3" as three layers of 2048 and "64x64" or "256x128x64" as layers of these sizes."""
    sizes = [int(part) for part in text.split("x")]
    if len(sizes) == 2 and sizes[1] <= MOST_LAYERS:
        return sizes[1] * [sizes[0]]
    return sizes


def example_policy(name: str, seed: int) -> tuple[PolicySpec, Weights]:
    """Return spec and weights of "<observations>-<hidden>-<actions>", see `hidden_sizes`, or of "nature-cnn".

    ReLU between layers. Up to four outputs are Q values of which the largest is taken, more are actions squashed to
    [-1, 1]; the Nature CNN (Mnih et al. 2015) has six Q values over four 84 x 84 images.

    Raises:
        ValueError: the name is neither.
    """
    check_policy_name(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name == NATURE_CNN:
            return spec_from_module(_nature_cnn(), Head("argmax"), image_shape=(4, 84, 84))
        observations, hidden, action_count = name.split("-")
        actions = int(action_count)
        sizes = [int(observations), *hidden_sizes(hidden), actions]
        parts = [part for before, after in pairwise(sizes) for part in (nn.Linear(before, after), nn.ReLU())]
        bounds = Head("tanh", actions * (-1.0,), actions * (1.0,))
        return spec_from_module(nn.Sequential(*parts[:-1]), Head("argmax") if actions <= 4 else bounds)


def example_observations(spec: PolicySpec, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw observations: standard normal, or for images uint8 squares of 4 x 4 pixels of one brightness."""
    if not spec.conv:
        return rng.standard_normal((count, *spec.observation_shape), np.float32)
    channels, height, width = spec.observation_shape
    coarse = rng.integers(0, 256, (count, channels, -(-height // 4), -(-width // 4)), np.uint8)
    return np.ascontiguousarray(coarse.repeat(4, axis=2).repeat(4, axis=3)[:, :, :height, :width])


def _nature_cnn() -> nn.Sequential:
    front = [nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1), nn.ReLU()]
    return nn.Sequential(*front, nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 6))
