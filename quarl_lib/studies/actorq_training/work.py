"""How much ActorQ's trainings have to do: updates of every learner."""

from __future__ import annotations

from quarl_lib.studies.actorq_training.study import Config, planned_runs
from quarl_lib.studies.common.work import Account, Measured, measured_update, trainings


def account(config: Config, finished: Measured | None) -> Account:
    """Return the updates of every run, a core for each part, and an update's seconds, measured here."""
    cells, seconds = trainings((run.options(config) for run in planned_runs(config)), measured_update)
    left_out = "peers, lone actors, what is slower than the learner"
    if config.stop_at_threshold:
        left_out += "; runs end sooner at their threshold"
    return Account(cells, seconds, "an update of the learner, timed here", left_out=left_out, one_machine=True)
