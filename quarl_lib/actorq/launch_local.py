"""Run a program on this machine: a process for every part, dead actors replaced, everything ended with its caller."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection, forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pandas as pd

from quarl_lib import results
from quarl_lib.actorq.config import Config
from quarl_lib.actorq.link import Link, read
from quarl_lib.actorq.program import Part, Program, Watcher, build

TABLES = ("episodes", "timing", "learner", "evaluations", "emissions", "processes", "cpu", "deaths", "stop")
MAX_DEATHS, DEATHS_WITHIN_S = 3, 60.0
ABORT_GRACE_S = 2.0  # after Ctrl-C or a failure; everything is to be gone within 5 s
LOOK_EVERY_S = 0.1

_context = multiprocessing.get_context("forkserver")


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
        with _meter(config, program.link) if metered else contextlib.nullcontext(_nothing) as every_second:
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
        process = _context.Process(target=run_part, args=(part.name, part.function, self.link, arguments), daemon=True)
        with _without_main_module():
            process.start()
        self.running[part.name] = (part, process)
        row = {"part": part.name, "generation": generation, "pid": process.pid, "wall_time_s": self.link.wall_time_s()}
        self.link.log("processes", [row])

    def look(self) -> bool:
        """Wait a moment, deal with the parts that ended, and say whether the run goes on."""
        connection.wait([process.sentinel for _, process in self.running.values()], LOOK_EVERY_S)
        ended = [(part, process) for part, process in self.running.values() if process.exitcode is not None]
        for part, process in sorted(ended, key=lambda item: item[0].replaceable):  # a learner's death explains actors'
            del self.running[part.name]
            if process.exitcode == 0:
                self._returned(part)
            elif not part.replaceable:
                raise RunFailed(self._obituary(part, process))
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
        obituary = self._obituary(part, process)
        self.link.log("deaths", [{"part": part.name, "wall_time_s": self.link.wall_time_s(), "reason": obituary}])
        if len(self.deaths) == MAX_DEATHS and self.deaths[-1] - self.deaths[0] < DEATHS_WITHIN_S:
            raise RunFailed(f"actors died {MAX_DEATHS} times within {DEATHS_WITHIN_S:g} s; the last: {obituary}")
        self.start(part)

    def _obituary(self, part: Part, process: BaseProcess) -> str:
        code = process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        written = self.link.directory / "logs" / f"{part.name}.traceback"
        reason = written.read_text() if code > 0 and written.exists() else ""
        return f"{part.name} {how}; its output is in {written.with_suffix('.log')}\n{reason}".rstrip()

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


def run_part(name: str, function: Callable[..., None], link: Link, arguments: tuple[Any, ...]) -> None:
    """Run one part in its own process: its own log, deaf to Ctrl-C, gone when its caller is."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the supervisor says what it means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    link.part = name
    for argument in arguments:
        if isinstance(argument, Link):
            argument.part = name
    log = os.open(link.directory / "logs" / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    gc.freeze()  # what was imported before the fork is never garbage; looking through it takes 0.2 s each time
    threading.Thread(target=_end_with_parent, args=(link,), daemon=True).start()
    cpu_before: list[float] = []
    threading.Thread(target=_note_cpu, args=(link, cpu_before), daemon=True).start()
    code = 0
    try:
        function(*arguments)
    except BaseException:
        if not link.should_stop():
            (link.directory / "logs" / f"{name}.traceback").write_text(traceback.format_exc())
            code = 1
        traceback.print_exc()
    if cpu_before:
        link.log("cpu", [{"part": name, "cpu_s": time.process_time() - cpu_before[0]}])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the threads of Reverb and TensorFlow would hold an ordinary exit up


def _end_with_parent(link: Link) -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        link.abort()
        time.sleep(ABORT_GRACE_S)
        os._exit(1)


def _note_cpu(link: Link, cpu_before: list[float]) -> None:
    """Note the CPU seconds of this process when the actors begin: what came before is starting up."""
    while not link.actor_steps():
        time.sleep(LOOK_EVERY_S / 2)
    cpu_before.append(time.process_time())


def warm_up() -> None:
    """Start the server that forks the parts, and wait until it has imported what they need."""
    variables = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MUJOCO_GL": "disabled",
                 "TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}  # fmt: skip
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        forkserver.set_forkserver_preload(["quarl_lib.actorq.preload"])
        with _without_main_module():
            forkserver.ensure_running()
            process = _context.Process(target=_nothing, daemon=True)
            process.start()
        process.join()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _nothing() -> None:
    pass


@contextlib.contextmanager
def _without_main_module() -> Iterator[None]:
    """Keep children from importing the caller's script or notebook again: the parts need nothing of it."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


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
    from quarl_lib import carbon

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
