"""The paper's setting of a task, as its parameters file has it."""

from __future__ import annotations

import yaml

from quarl_lib.actorq import config as actorq
from quarl_lib.results import PROJECT
from quarl_lib.studies.actorq_training import study


def paper_options(task: str, **changes: object) -> actorq.Config:
    """Return the ActorQ options of one of the paper's tasks at int8, with some changed for a test."""
    given = yaml.safe_load((PROJECT / "params" / "paper" / "actorq_training.yaml").read_text())
    config = study.Config(**given)
    cell = next(cell for cell in study.planned_runs(config) if (cell.task, cell.precision) == (task, "int8"))
    return cell.options(config).replace(**changes)
