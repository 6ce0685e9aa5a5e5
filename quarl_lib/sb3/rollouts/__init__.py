"""Quantized actors inside Stable-Baselines3's own training: `model.learn` stays, an engine acts in its rollouts.

with quantized_rollouts(model, precision="int8") as handle:
    model.learn(100_000)
print(handle.report())
"""

from quarl_lib.sb3.rollouts.handle import QuantizedRollouts, RolloutsHandle, quantized_rollouts
from quarl_lib.sb3.rollouts.probe import gain
from quarl_lib.sb3.rollouts.report import Gain, Report

__all__ = ["Gain", "QuantizedRollouts", "Report", "RolloutsHandle", "gain", "quantized_rollouts"]
