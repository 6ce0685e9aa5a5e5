"""How much the study in virtual time has to do: updates of every cell's learner, which really learns."""

from __future__ import annotations

from dataclasses import replace

from quarl_lib.studies.common.work import Account, Measured, measured_update, trainings
from quarl_lib.studies.training_at_scale.study import Config, border_cells, trained_cells


def account(config: Config, finished: Measured | None) -> Account:
    """Return the updates of every cell, all its parts on one core, and an update's seconds, measured here."""
    options = [cell.options for cell in (*trained_cells(config), *border_cells(config))]
    cells, seconds = trainings(options, measured_update)
    return Account(
        [replace(cell, cores=1) for cell in cells], seconds, "an update of the learner, timed here",
        left_out="the actors' steps, evaluations, the validation; runs end sooner at their threshold",
    )  # fmt: skip
