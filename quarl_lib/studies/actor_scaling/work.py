"""How much the study of scaling has to do: steps of the actors of every run."""

from __future__ import annotations

from quarl_lib.studies.actor_scaling.study import Config, options
from quarl_lib.studies.common.work import Account, Measured, Work


def account(config: Config, finished: Measured | None) -> Account:
    """Return an actor's steps in every run, a core for each part, and a lone actor's step in a finished run."""
    policy = "x".join(map(str, config.policy_hidden))
    cells = [
        Work(f"{one.precision} {policy}", one.actor_steps / one.n_actors, one.n_actors + 1)
        for number in range(config.rounds)
        for one in options(config, number)
    ]
    left_out = "starts, the look at contention"
    if finished is None:
        return Account(cells, {}, "no finished run", left_out=left_out, one_machine=True)
    known = "x".join(map(str, finished.record["parameters"]["policy_hidden"]))
    alone = finished.saved("summary").drop_duplicates("precision")
    seconds = {f"{row.precision} {known}": float(row.actor_us) / 1e6 for row in alone.itertuples()}
    return Account(cells, seconds, "an actor's step in the finished run", left_out=left_out, one_machine=True)
