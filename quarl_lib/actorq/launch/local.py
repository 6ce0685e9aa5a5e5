"""Run a program on this machine: a process for every part, dead actors replaced, everything ended with its caller."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pandas as pd

from quarl_lib import results
from quarl_lib.actorq.config import Config
from quarl_lib.actorq.launch.children import nothing, start, warm_up
from quarl_lib.actorq.launch.program import Part, Program, Watcher, build
from quarl_lib.actorq.link import Link, read

TABLES = ("episodes", "timing", "learner", "evaluations", "emissions", "processes", "cpu", "deaths", "stop")
MAX_DEATHS, DEATHS_WITHIN_S = 3, 60.0
ABORT_GRACE_S = 2.0  # after Ctrl-C or a failure; everything is to be gone within 5 s
LOOK_EVERY_S = 0.1


class RunFailed(RuntimeError):
    """A part of the run failed; the text says which and why, with its traceback."""


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
        RunFailed: the learner or the evaluator died, or actors died three times within a minute.
        KeyboardInterrupt: Ctrl-C; everything has ended and what was logged is on disk.
    """
    with signals_as_exceptions():
        program = build(config, Path(directory), watchers, evaluated)
        warm_up()
        with _meter(config, program.link) if metered else contextlib.nullcontext(nothing) as every_second:
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
    supervisor, link, total = _Supervisor(program.link), program.link, program.actor_steps
    link.start_clock()
    called_at = 0.0  # the first time at once: what is metered later has a beginning
    try:
        for part in program.parts:
            supervisor.start(part)
        while supervisor.look():
            progress(min(link.actor_steps(), total), total, program.label)
            if time.time() - called_at > 1.0:
                called_at = time.time()
                every_second()
        every_second()
    except BaseException:
        link.abort()
        raise
    finally:
        supervisor.end()


class _Supervisor:
    def __init__(self, link: Link) -> None:
        self.link = link
        self.running: dict[str, tuple[Part, BaseProcess]] = {}
        self.generations: dict[str, int] = {}
        self.deaths: deque[float] = deque(maxlen=MAX_DEATHS)
        self.ending_since = 0.0

    def start(self, part: Part) -> None:
        generation = self.generations[part.name] = self.generations.get(part.name, -1) + 1
        arguments = (*part.arguments, generation) if part.replaceable else part.arguments
        process = start(part.name, part.function, self.link, arguments)
        self.running[part.name] = (part, process)
        row = {"part": part.name, "generation": generation, "pid": process.pid, "wall_time_s": self.link.wall_time_s()}
        self.link.log("processes", [row])

    def look(self) -> bool:
        """Wait a moment, deal with the parts that ended, and say whether the run goes on."""
        connection.wait([process.sentinel for _, process in self.running.values()], LOOK_EVERY_S)
        ended = [(part, process) for part, process in self.running.values() if process.exitcode is not None]
        # The learner first: where it died, its actors did because of it.
        for part, process in sorted(ended, key=lambda item: item[0].replaceable):
            del self.running[part.name]
            if process.exitcode == 0:
                self._returned(part)
            elif not part.replaceable:
                raise RunFailed(self._exit_reason(part, process))
            elif not self.link.should_stop():
                self._replace(part, process)
        if self.link.should_stop() and not self.ending_since:
            self.ending_since = time.monotonic()
        return bool(self.running) and not self._overdue()

    def _returned(self, part: Part) -> None:
        if part.ends_run:
            self.link.request_stop(f"{part.name} ended")
        elif part.replaceable and not any(other.replaceable for other, _ in self.running.values()):
            self.link.request_stop("the actors took their steps")

    def _replace(self, part: Part, process: BaseProcess) -> None:
        self.deaths.append(time.monotonic())
        reason = self._exit_reason(part, process)
        self.link.log("deaths", [{"part": part.name, "wall_time_s": self.link.wall_time_s(), "reason": reason}])
        if len(self.deaths) == MAX_DEATHS and self.deaths[-1] - self.deaths[0] < DEATHS_WITHIN_S:
            raise RunFailed(f"actors died {MAX_DEATHS} times within {DEATHS_WITHIN_S:g} s; the last: {reason}")
        self.start(part)

    def _exit_reason(self, part: Part, process: BaseProcess) -> str:
        code = process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        logs = self.link.directory / "logs"
        written = logs / f"{part.name}.traceback"
        reason = written.read_text() if code > 0 and written.exists() else ""
        return f"{part.name} {how}; its output is in {_kept(logs / f'{part.name}.log')}\n{reason}".rstrip()

    def _overdue(self) -> bool:
        """Say whether what still runs had its time to end."""
        if not self.ending_since:
            return False
        waited = time.monotonic() - self.ending_since
        return all(waited > part.grace_s for part, _ in self.running.values())

    def end(self) -> None:
        """End what still runs, in good order or by force."""
        with _signals_ignored():
            self.link.abort()
            deadline = time.monotonic() + ABORT_GRACE_S
            for _, process in self.running.values():
                process.join(max(0.0, deadline - time.monotonic()))
            for _, process in self.running.values():
                if process.exitcode is None:
                    process.kill()
            for _, process in self.running.values():
                process.join(ABORT_GRACE_S)


def _kept(log: Path) -> Path:
    """Copy a part's output into the folder of the notebook's run, where there is one: it outlives a scratch folder."""
    run_directory = os.environ.get(results.RUN_DIR_VARIABLE)
    if not run_directory or not log.exists() or log.is_relative_to(run_directory):
        return log
    target = Path(run_directory) / "logs" / log.name
    target.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copyfile(log, target))


@contextlib.contextmanager
def signals_as_exceptions() -> Iterator[None]:
    """Let SIGTERM end a run as Ctrl-C does: as an exception in the main thread."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _signals_ignored() -> Iterator[None]:
    """Let no second Ctrl-C cut short the ending of the parts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _meter(config: Config, link: Link) -> Iterator[Callable[[], None]]:
    """Measure the energy of this process and its children; the readings go to the table `emissions`."""
    from quarl_lib.actorq import carbon

    meter = carbon.Meter(
        link.directory / "emissions.csv",
        cpu_watts=config.cpu_watts,
        ram_watts=config.ram_watts,
        carbon_grams_per_kwh=config.carbon_grams_per_kwh,
    )
    meter.start()
    try:
        yield lambda: link.log("emissions", [{**meter.reading(), "wall_time_s": link.wall_time_s()}])
    finally:
        meter.stop()
