"""Run a program on this machine: a process for every part, dead actors replaced, everything ended with its caller."""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pandas as pd

from quarl_lib import results
from quarl_lib.actorq.config import Config
from quarl_lib.actorq.launch.children import nothing, warm_up
from quarl_lib.actorq.launch.interrupts import signals_as_exceptions
from quarl_lib.actorq.launch.program import Program, Watcher, build
from quarl_lib.actorq.launch.supervisor import Supervisor
from quarl_lib.actorq.link import Link, RunFailed, read

__all__ = ["RunFailed", "run", "signals_as_exceptions", "supervise", "warm_up"]

SUMS = ("cpu_energy_kwh", "ram_energy_kwh", "gpu_energy_kwh", "energy_kwh", "emissions_kg", "metered_s")
TABLES = ("episodes", "timing", "learner", "evaluations", "emissions", "processes", "cpu", "deaths", "stop", "resumed")


def run(
    config: Config,
    directory: Path,
    progress: results.Progress = results.no_progress,
    watchers: Sequence[Watcher] = (),
    metered: bool = True,
    evaluated: bool = True,
) -> dict[str, pd.DataFrame]:
    """Run an ActorQ program to its end and return its tables; their rows lie in `directory/logs` from the start.

    Args:
        watchers, evaluated: further processes beside learner and actors, as in `program.build`.
        metered: whether energy is measured; starting the meter takes 3 s.

    Raises:
        RunFailed: the learner or the evaluator died or gave no heartbeat for `stall_s`, actors died three times
            within a minute, an actor's weights no longer change, the fork server was killed, or the disk is full.
        KeyboardInterrupt: Ctrl-C; everything has ended and what was logged is on disk.
    """
    with signals_as_exceptions():
        program = build(config, Path(directory), watchers, evaluated)
        warm_up()
        with meter(config, program.link) if metered else contextlib.nullcontext(nothing) as every_second:
            supervise(program, progress, every_second)
    return {table: read(program.link.directory, table) for table in TABLES}


def supervise(
    program: Program,
    progress: results.Progress = results.no_progress,
    every_second: Callable[[], None] = lambda: None,
) -> None:
    """Start the parts, watch them, end them; no process outlives this call.

    Raises:
        RunFailed: as for `run`.
    """
    supervisor = Supervisor(program.link, program.update_period, program.prepare)
    link, total = program.link, program.actor_steps
    link.start_clock()
    called_at = 0.0  # the first time at once: what is metered later has a beginning
    try:
        for part in program.parts:
            supervisor.start(part)
        while supervisor.look():
            progress(min(link.actor_steps(), total), total, program.label)
            if time.monotonic() - called_at > 1.0:
                called_at = time.monotonic()
                every_second()
        every_second()
    except BaseException as error:
        link.abort()
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise RunFailed(f"the disk of {link.directory} is full; free some of it") from error
        raise
    finally:
        supervisor.end()


@contextlib.contextmanager
def meter(config: Config, link: Link) -> Iterator[Callable[[], None]]:
    """Measure the energy of this process and its children; the readings go to the table `emissions`."""
    try:
        from quarl_lib.actorq import carbon
    except ImportError as error:
        raise ValueError(f"energy cannot be metered: {error}; pip install codecarbon") from error
    meter = carbon.Meter(
        link.directory / "emissions.csv",
        cpu_watts=config.cpu_watts,
        ram_watts=config.ram_watts,
        carbon_grams_per_kwh=config.carbon_grams_per_kwh,
    )
    earlier = read(link.directory, "emissions")  # of a run that this one resumes
    spent = earlier.iloc[-1] if len(earlier) else {}

    def note() -> None:
        reading = meter.reading()
        added = {name: reading[name] + spent[name] for name in SUMS if name in spent}  # type: ignore[operator]
        link.log("emissions", [{**reading, **added, "wall_time_s": link.wall_time_s()}])

    meter.start()
    try:
        yield note
    finally:
        meter.stop()
