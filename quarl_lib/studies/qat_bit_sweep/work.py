"""How much the bit sweep has to do: environment steps of every training."""

from __future__ import annotations

import math

from quarl_lib.studies.common.work import Account, Measured, Work
from quarl_lib.studies.qat_bit_sweep.study import Config, cells_of
from quarl_lib.studies.qat_bit_sweep.summary import TWIN

TRAINING = ["algorithm", "env_id", "method", "grid", "weight_bits", "activation_bits", "observation_bits", "edge_bits",
            "variant", "seed", "actor_steps", "training_cpu_s"]  # fmt: skip


def account(config: Config, finished: Measured | None) -> Account:
    """Return the steps of every training, and a step's processor time in those of a finished run, kept cells too."""
    found = cells_of(config)
    cells = [
        Work(f"{cell.algorithm}/{cell.env_id} {cell.method}", cell.actor_steps, phase=phase)
        for phase, of_phase in enumerate((found.trained, found.started))
        for cell in of_phase
        if cell.actor_steps and cell.method not in ("ptq", "random")
    ]
    left_out = "playing the episodes; cells without training"
    if finished is None:
        return Account(cells, {}, "no finished run", left_out=left_out)
    done = finished.table[TRAINING].drop_duplicates()
    done = done[done.training_cpu_s.notna()].replace({"method": {TWIN: "fp32"}})
    of_kind = done.groupby(["algorithm", "env_id", "method"])[["training_cpu_s", "actor_steps"]].sum()
    seconds = {
        f"{algorithm}/{env_id} {method}": float(row.training_cpu_s / row.actor_steps)
        for (algorithm, env_id, method), row in of_kind.iterrows()
    }
    mean = float(of_kind.training_cpu_s.sum() / of_kind.actor_steps.sum()) if len(of_kind) else math.nan
    return Account(
        cells, seconds, "processor time of the finished run's trainings, by environment steps", mean, left_out
    )
