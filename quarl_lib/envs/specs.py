"""What an environment takes and gives: dm_env's own specs, and all four of one environment together.

`EnvironmentSpec` has the fields of Acme's, so that Acme's parts take it for theirs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import dm_env
from dm_env.specs import Array, BoundedArray, DiscreteArray

__all__ = ["Array", "BoundedArray", "DiscreteArray", "EnvironmentSpec", "make_environment_spec"]


class EnvironmentSpec(NamedTuple):
    """The specs of one environment; observations can be a dict of them."""

    observations: Any
    actions: Any
    rewards: Any
    discounts: Any


def make_environment_spec(environment: dm_env.Environment) -> EnvironmentSpec:
    """Return what an environment says of itself."""
    return EnvironmentSpec(
        environment.observation_spec(),
        environment.action_spec(),
        environment.reward_spec(),
        environment.discount_spec(),
    )
