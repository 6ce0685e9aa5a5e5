"""Run a suite: one process a run, a state that is true whatever happens, nothing done twice."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from quarl_lib import provenance
from quarl_lib.files import CLUSTER_VARIABLE, KEPT_FOLDER, RUN_DIR_VARIABLE, RUN_ID_VARIABLE, read_json, write_text
from quarl_lib.suite import outcome, processes, states
from quarl_lib.suite.execution import GRACE_S, SCRATCH_PREFIX
from quarl_lib.suite.plan import Task

POLL_S = 0.1
STARTS_APART_S = 0.5
START_ATTEMPTS = 3
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
Watch = Callable[[Task, dict[str, Any]], None]
Finished = Callable[[Path], object]


@dataclass(frozen=True)
class Options:
    """How a suite runs; times in seconds, None for no limit.

    silence_s: how long a run may neither write a line nor make progress.
    cluster: address of a Ray cluster that computes the studies' independent cells.
    """

    jobs: int = 1
    force: bool = False
    retry_failed: bool = False
    timeout_s: float | None = None
    cell_timeout_s: float | None = None
    silence_s: float | None = None
    grace_s: float = GRACE_S
    cluster: str | None = None

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise ValueError(f"jobs={self.jobs}: run at least one at a time")
        for name in ("timeout_s", "cell_timeout_s", "silence_s"):
            if getattr(self, name) is not None and getattr(self, name) <= 0:
                raise ValueError(f"{name}={getattr(self, name)}: give more than 0 seconds, or leave it out")


def run(
    tasks: Sequence[Task],
    options: Options | None = None,
    watch: Watch = lambda task, record: None,
    finished: Finished = lambda directory: None,
) -> list[dict]:
    """Run what is not done yet and return every task's record.

    Args:
        watch: hears of each change and of progress.
        finished: called with the folder of each run that ended, one at a time; an error in it undoes no result.

    Raises:
        OSError: the output folder cannot be written to; nothing has started then.
    """
    suite = _Suite(options or Options(), watch, finished)
    for folder in {task.directory.parent for task in tasks}:
        _try_writing(folder)
    for task in tasks:
        suite.queue(task)
    with suite.stopped_by_signals(), ThreadPoolExecutor(suite.options.jobs) as pool:
        records = list(pool.map(suite.run_one, tasks))
        waiting = [index for index, record in enumerate(records) if record.get("state") == "busy"]
        for index in waiting:
            records[index] = suite.wait_for_other(tasks[index])
    for problem in suite.problems:
        warnings.warn(problem, stacklevel=2)
    return records


def _try_writing(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / f".writable.{os.getpid()}", "").unlink()  # a name of its own: other runners try as well


class _Suite:
    """What the runs of one call share: options, the wish to stop, and locks between threads."""

    def __init__(self, options: Options, watch: Watch, finished: Finished) -> None:
        self.options, self.watch, self.finished = options, watch, finished
        self.stop = threading.Event()
        self.hurry = threading.Event()
        self.starting, self.reporting = threading.Lock(), threading.Lock()
        self.provenance = provenance.gather()
        self.problems: list[str] = []
        self.queued: set[Path] = set()  # their records say so, and no longer what they were before

    @contextmanager
    def stopped_by_signals(self) -> Iterator[None]:
        """Let the first SIGINT or SIGTERM end the runs under way tidily, and the second at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def on_signal(number: int, frame: object) -> None:
            if self.stop.is_set():
                self.hurry.set()
            self.stop.set()

        before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def queue(self, task: Task) -> None:
        """Say that a run is to come, where it is neither done nor under way elsewhere."""
        with states.claim(task.directory) as claim:
            if claim is not None:
                _restore(task)
            record = states.read(task.directory)
            if claim is not None and not self._leave(task, record) and record.get("state") != "ok":
                states.change(task.directory, "queued", **task.facts(), runner=states.process_identity())
                self.queued.add(task.directory)

    def run_one(self, task: Task) -> dict[str, Any]:
        """Run one task, unless it is done already, another runner has it, or the suite is to stop."""
        try:
            with states.claim(task.directory) as claim:
                if claim is None:
                    return {"state": "busy"}
                _restore(task)
                record = states.read(task.directory)
                if self._leave(task, record):
                    record = {**task.facts(), "state": "skipped", **record, "skipped": True}
                    self.watch(task, record)
                    return record
                if self.stop.is_set():
                    if record.get("state") == "queued":
                        states.change(task.directory, "interrupted", reason="stopped before it began")
                    return {**task.facts(), "state": "interrupted", "reason": "stopped before it began"}
                record = self._execute(task, claim)
                if record["state"] == "interrupted" and _restore(task):
                    record["reason"] += "; the result of before is back in its place"
                self._report(task)
        except OSError as error:
            reason = f"{error.strerror or error}: {error.filename or task.directory}"
            record = {**task.facts(), "state": "failed", "reason": reason}
        self.watch(task, record)
        return record

    def _leave(self, task: Task, record: dict[str, Any]) -> bool:
        if record.get("state") == "queued" and task.directory in self.queued:
            return False
        if self.options.retry_failed:
            return record.get("state") not in ("failed", "timeout")
        return record.get("state") == "ok" and not self.options.force

    def wait_for_other(self, task: Task) -> dict[str, Any]:
        """Wait until the other runner's run is over and take its result, or run the task after all."""
        self.watch(task, {**states.read(task.directory), "state": "busy"})
        while True:
            record = self.run_one(task)
            if record["state"] != "busy":
                return record
            if self.stop.wait(POLL_S):
                return {**task.facts(), "state": "interrupted", "reason": "stopped; another runner still has it"}

    def _execute(self, task: Task, claim: int) -> dict[str, Any]:
        for attempt in range(1, START_ATTEMPTS + 1):
            _make_room(task, keep=not self.options.force)
            seeds = {name: value for name, value in task.parameters.items() if "seed" in name}
            facts = {**task.facts(), **self.provenance, "seeds": seeds, "runner": states.process_identity()}
            begin = time.monotonic()
            outcome.reserve(task.directory)
            states.change(task.directory, "running", **facts, attempt=attempt, started=time.time(),
                          cluster=self.options.cluster or "")  # fmt: skip
            write_text(task.directory / "params.yaml", yaml.safe_dump(task.parameters, sort_keys=False))
            stopped, code = self._attend(task, claim, begin)
            found = outcome.settle(task.directory, code, stopped)
            if found.pop("kind", None) != "startup" or self.stop.is_set():
                break
        record = outcome.record_end(task, found, begin)
        if record["state"] == "ok":
            shutil.rmtree(states.previous_of(task.directory), ignore_errors=True)
        elif record["state"] != "interrupted" and (previous := states.previous_of(task.directory)).exists():
            record["reason"] = f"{record.get('reason', '')}; the result of before is kept in {previous.name}"
            with suppress(OSError):
                states.change(task.directory, record["state"], reason=record["reason"])
        return record

    def _attend(self, task: Task, claim: int, begin: float) -> tuple[tuple[str, str] | None, int]:
        """Start the run's process and stay with it; return why it was stopped, if it was, and its exit code."""
        share = str(max(1, provenance.usable_cores() // self.options.jobs))
        environment = {name: share for name in THREAD_VARIABLES} | os.environ
        scratch = tempfile.mkdtemp(prefix=SCRATCH_PREFIX)  # all that the run leaves in temporary folders goes with it
        environment |= {
            "TMPDIR": scratch,
            provenance.CORES_VARIABLE: share,
            RUN_DIR_VARIABLE: str(task.directory),
            RUN_ID_VARIABLE: task.run_id,
            **({CLUSTER_VARIABLE: self.options.cluster} if self.options.cluster else {}),
        }
        with (task.directory / "log.txt").open("wb") as log, self.starting:
            process = subprocess.Popen(
                [sys.executable, "-m", "quarl_lib.suite.execution", str(task.directory)],
                stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=task.project,
                start_new_session=True, pass_fds=[claim],
            )  # fmt: skip
            if self.options.jobs > 1:
                time.sleep(STARTS_APART_S)
        stopped, heard = None, processes.Heard(task.directory)
        while process.poll() is None:
            if stopped is None:
                stopped = self._why_stop(task, begin, heard)
                if stopped:
                    process.send_signal(signal.SIGINT)
                    deadline = time.monotonic() + self.options.grace_s
            elif time.monotonic() > deadline or self.hurry.is_set():
                process.kill()
            self.watch(task, {**task.facts(), **_progress(task.directory, begin)})
            with suppress(subprocess.TimeoutExpired):
                process.wait(POLL_S)
        processes.end_all(task.directory, gentle_s=0.5 if self.hurry.is_set() else 3.0)
        shutil.rmtree(scratch, ignore_errors=True)
        return stopped, process.returncode

    def _why_stop(self, task: Task, begin: float, heard: processes.Heard) -> tuple[str, str] | None:
        options = self.options
        if self.stop.is_set():
            return "interrupted", "interrupted from outside (Ctrl-C or SIGTERM)"
        if options.timeout_s and time.monotonic() - begin > options.timeout_s:
            return "timeout", f"took longer than {options.timeout_s:g} s"
        if options.cell_timeout_s:
            cell = read_json(task.directory / ".cell.json")
            if cell and time.monotonic() - cell["monotonic"] > options.cell_timeout_s:
                return "timeout", f"one cell took longer than {options.cell_timeout_s:g} s"
        if options.silence_s and heard.silent_s() > options.silence_s:
            return "timeout", f"no output and no progress for {options.silence_s:g} s"
        return None

    def _report(self, task: Task) -> None:
        """Hand the finished run on; a report that cannot be made does not undo a result."""
        with self.reporting:
            try:
                self.finished(task.directory)
            except Exception as error:
                self.problems.append(f"{task.study}: the report could not be written: {error!r}")
                (task.directory / outcome.RESERVE).unlink(missing_ok=True)
                with suppress(OSError):
                    states.change(task.directory, states.read(task.directory)["state"], report_error=repr(error))
            (task.directory / outcome.RESERVE).unlink(missing_ok=True)


def _make_room(task: Task, keep: bool) -> None:
    """Empty the run's folder; a finished result is kept aside until a better one is there.

    keep: leave what a study goes on from after it was interrupted.
    """
    if states.read(task.directory).get("state") == "ok":
        previous = states.previous_of(task.directory)
        shutil.rmtree(previous, ignore_errors=True)
        os.replace(task.directory, previous)
    task.directory.mkdir(parents=True, exist_ok=True)
    for path in task.directory.iterdir():
        if path.name == KEPT_FOLDER and keep:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def _restore(task: Task) -> bool:
    """Put a finished result back that a forced run had set aside and, being interrupted, did not replace."""
    previous = states.previous_of(task.directory)
    if not previous.exists() or states.read(task.directory).get("state") not in (None, "interrupted"):
        return False
    shutil.rmtree(task.directory, ignore_errors=True)
    os.replace(previous, task.directory)
    return True


def _progress(directory: Path, begin: float) -> dict[str, Any]:
    elapsed = {"state": "running", "elapsed_s": time.monotonic() - begin}
    return {**elapsed, "progress": read_json(directory / "progress.json"), "cell": read_json(directory / ".cell.json")}
