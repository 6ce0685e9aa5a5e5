"""A study's Config becomes ActorQ options: by name, unless told otherwise."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from quarl_lib.actorq import config as actorq
from quarl_lib.studies.common.training import training_options


@dataclass(frozen=True)
class Config:
    task: str = "gym:CartPole-v0"
    sigma_max: float = 0.125
    policy_hidden: list[int] = field(default_factory=lambda: [7, 5])
    rounds: int = 3  # no option of ActorQ
    seed: int = 4


def test_fields_go_over_by_name_and_the_rest_stays_as_it_is():
    options = training_options(Config(), seed=9, stop_evaluations=3)
    assert options == actorq.Config(
        task="gym:CartPole-v0", algorithm="dqn", sigma_max=0.125, policy_hidden=(7, 5), seed=9, stop_evaluations=3
    )


def test_the_algorithm_suits_the_task_unless_told():
    assert training_options(Config(task="dm_control:cartpole:balance")).algorithm == "d4pg"
    with pytest.raises(ValueError, match="algorithm='d4pg'"):
        training_options(Config(), algorithm="d4pg")
    with pytest.raises(TypeError, match="sigma"):
        training_options(Config(), sigma=1.0)
