"""Where a training that nobody watches writes its log: nowhere."""

from __future__ import annotations

from typing import TypeVar

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.logger import Logger

ModelT = TypeVar("ModelT", bound=BaseAlgorithm)


def log_nowhere(model: ModelT) -> ModelT:
    """Return the model with a logger without outputs: its own leaves an empty temporary folder for every training."""
    model.set_logger(Logger(None, []))
    return model
