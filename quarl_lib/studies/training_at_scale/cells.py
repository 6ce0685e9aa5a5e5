"""One cell: a run under the virtual clock, reduced to its figures; kept on disk by what it depends on."""

from __future__ import annotations

import dataclasses
import hashlib
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

import pandas as pd

from quarl_lib.actorq import config as actorq
from quarl_lib.actorq.launch.costs import CostTable
from quarl_lib.files import write_atomically
from quarl_lib.studies.common import trained

PACKAGE = Path(__file__).resolve().parents[2]
SOURCES = ("actorq", "envs", "inference", "studies/training_at_scale/cells.py", "studies/common/trained.py")
LIBRARIES = ("torch", "numpy", "dm-control", "mujoco", "gymnasium")  # whose next version may learn otherwise


@dataclass(frozen=True)
class Cell:
    """A run: its options, what its stages cost, and whose costs they are.

    options: of the program that runs. task: whose costs its stages have, the options' own where something is learned.
    learner_ms: of an update, assumed; 0: the table's. evaluated: whether it is to reach a threshold.
    """

    options: actorq.Config
    task: str
    design: str
    learner_ms: float
    costs: CostTable
    evaluated: bool
    folder: Path

    @property
    def name(self) -> str:
        """Return a short name for a progress line."""
        one = self.options
        what = f"{self.design} {one.precision}, {one.n_actors} actors, learner {self.learner_ms:g} ms"
        return f"{self.task} {what}" + (f", seed {one.seed}" if self.evaluated else ", pace")

    @property
    def path(self) -> Path:
        """Return where the cell's rows are kept: the name is a hash of everything that they depend on."""
        settings = dataclasses.replace(self, folder=Path())
        digest = hashlib.sha256(f"{settings!r} {digest_of_sources()}".encode()).hexdigest()[:20]
        return self.folder / f"training_at_scale-{digest}.parquet"


@cache
def digest_of_sources() -> str:
    """Return a hash of the code and the libraries that a run consists of."""
    files = [path for source in SOURCES for path in sorted((PACKAGE / source).rglob("*.py"))]
    files += [PACKAGE / source for source in SOURCES if source.endswith(".py")]
    versions = " ".join(f"{name} {metadata.version(name)}" for name in LIBRARIES)
    return hashlib.sha256(b"".join(path.read_bytes() for path in files) + versions.encode()).hexdigest()


def measure(cell: Cell) -> pd.DataFrame:
    """Run a cell, or read what it gave before: a row of figures, and one for each evaluation."""
    if cell.path.exists():
        return pd.read_parquet(cell.path)
    from quarl_lib.actorq.launch import virtual

    costs = cell.costs.of(cell.options, cell.design, cell.learner_ms, cell.task)
    with tempfile.TemporaryDirectory(prefix="quarl-") as directory:
        logged = virtual.run(cell.options, Path(directory), costs, evaluated=cell.evaluated)
    table = _rows(cell, logged)
    write_atomically(cell.path, lambda path: table.to_parquet(path, index=False))
    return table


def _rows(cell: Cell, logged: dict[str, pd.DataFrame]) -> pd.DataFrame:
    options = cell.options
    names = {
        "task": cell.task, "design": cell.design, "precision": options.precision, "n_actors": options.n_actors,
        "learner_ms": cell.learner_ms, "machine": cell.costs.machine, "seed": options.seed,
    }  # fmt: skip
    record = {**names, **trained.busy(logged["timing"], options.n_actors), "steps_per_s": pace(logged["emissions"])}
    ages = pd.concat([logged["timing"].assign(record="timing"), logged["learner"].assign(record="learner")])
    record["weights_age_steps"] = trained.ages(ages)["weights_age_steps"]
    if not cell.evaluated:
        return pd.DataFrame([{"record": "pace", **record}])
    evaluations = logged["evaluations"]
    steps, seconds = trained.reached(evaluations, options.stop_return, options.stop_evaluations)
    energy = trained.energy_until(logged["emissions"], pd.DataFrame(), seconds)
    means = evaluations.groupby(["actor_steps", "wall_time_s"], as_index=False).episode_return.mean()
    figures = {**record, "threshold": options.stop_return, "best_return": means.episode_return.max(),
               "steps": steps, "seconds": seconds, "energy_kwh": energy["energy_kwh"]}  # fmt: skip
    return pd.concat(
        [pd.DataFrame([{"record": "run", **figures}]), means.assign(record="evaluation", **names)], ignore_index=True
    )


def pace(emissions: pd.DataFrame) -> float:
    """Return the transitions a second over the later half of the run, past the start and the limiter's slack."""
    rows = emissions.sort_values("wall_time_s")
    first, last = rows.iloc[len(rows) // 2], rows.iloc[-1]
    seconds = last.wall_time_s - first.wall_time_s
    return float((last.inserted - first.inserted) / seconds) if seconds else float("nan")
