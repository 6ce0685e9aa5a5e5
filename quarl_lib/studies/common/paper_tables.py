"""The paper's Tables 3 and 4 (arXiv 1910.01055), to stand beside our own numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PaperTask:
    """A task of Tables 3 and 4: how long the authors trained it, and what they measured."""

    task: str
    algorithm: str
    actor_steps: int
    update_period: int
    mean_return: float
    fp32_seconds: float
    int8_seconds: float
    speedup: float
    fp32_co2_kg: float
    int8_co2_kg: float
    co2_ratio: float


PAPER_TASKS = tuple(
    PaperTask(*row)
    for row in (
        ("dm_control:cartpole:balance", "d4pg", 40_000, 1000, 941.22, 870.91, 279.0, 3.12, 0.359, 0.150, 2.39),
        ("dm_control:walker:stand", "d4pg", 40_000, 1000, 947.74, 871.32, 534.37, 1.63, 0.670, 0.178, 3.76),
        ("dm_control:hopper:stand", "d4pg", 100_000, 1000, 836.41, 2660.41, 1699.17, 1.57, 0.340, 0.170, 2.00),
        ("dm_control:reacher:hard", "d4pg", 70_000, 1000, 948.12, 1597.0, 875.34, 1.82, 0.350, 0.180, 1.94),
        ("dm_control:cheetah:run", "d4pg", 200_000, 1000, 732.31, 2517.3, 891.84, 2.82, 0.263, 0.120, 2.19),
        ("dm_control:finger:spin", "d4pg", 200_000, 1000, 810.32, 3256.56, 1065.52, 3.06, 0.361, 0.190, 1.90),
        ("dm_control:humanoid:stand", "d4pg", 500_000, 100, 884.89, 13964.92, 9302.82, 1.51, 0.550, 0.270, 2.04),
        ("dm_control:humanoid:walk", "d4pg", 700_000, 100, 649.91, 17990.66, 6223.35, 2.89, 0.560, 0.278, 2.01),
        ("gym:CartPole-v0", "dqn", 60_000, 1000, 198.22, 963.67, 260.1, 3.70, 0.188, 0.089, 2.11),
        ("gym:Acrobot-v1", "dqn", 100_000, 1000, -107.45, 912.24, 168.44, 5.41, 0.198, 0.097, 2.04),
        ("gym:MountainCar-v0", "dqn", 200_000, 100, -120.62, 2861.8, 1284.32, 2.22, 0.210, 0.098, 2.14),
    )
)
