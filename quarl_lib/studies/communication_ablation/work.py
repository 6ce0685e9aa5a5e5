"""How much the study has to do: steps of lone actors, and updates of the learners of whole systems."""

from __future__ import annotations

from quarl_lib.studies.common.work import Account, Measured, Work, measured_update, trainings
from quarl_lib.studies.communication_ablation.study import Config, curve_options, setups


def account(config: Config, finished: Measured | None) -> Account:
    """Return updates, timed here, with a core for each part, and the actors' steps, timed by a finished run."""
    cells, seconds = trainings(curve_options(config), measured_update)
    kind = f"lone actor {'x'.join(map(str, config.hidden))}"
    cells.append(Work(kind, len(setups(config)) * config.rounds * config.steps))
    basis = "an update of the learner, timed here"
    if finished is not None and finished.record["parameters"]["hidden"] == config.hidden:
        seconds[kind] = float(finished.saved("summary").seconds_per_1000_steps.mean()) / 1000
        basis += "; a lone actor's step in the finished run"
    return Account(cells, seconds, basis, left_out="what is slower than the learner", one_machine=True)
