"""The ActorQ options of a study's training run, from the study's own Config."""

from __future__ import annotations

import dataclasses
from typing import Any

from quarl_lib.actorq import config as actorq
from quarl_lib.envs import control

_OPTIONS = frozenset(field.name for field in dataclasses.fields(actorq.Config))


def training_options(config: Any, **told: object) -> actorq.Config:
    """Return one run's options: what is `told`, else the study's field of the same name, else ActorQ's default.

    Lists become tuples. The algorithm "auto", or none, is the one that suits the task's actions.

    Raises:
        ValueError: an option is impossible.
    """
    given = {name: value for name, value in vars(config).items() if name in _OPTIONS} | told
    options: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}
    if options.get("algorithm", "auto") == "auto":
        options["algorithm"] = "dqn" if control.is_discrete(options["task"]) else "d4pg"
    return actorq.Config(**options)
