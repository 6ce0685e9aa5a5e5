"""End a run with everything that it started: gently, then firmly."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from quarl_lib.files import RUN_DIR_VARIABLE


def of_run(directory: Path) -> list[psutil.Process]:
    """Return every process that runs on behalf of a run's folder, wherever it hangs in the process tree.

    Kernels start sessions of their own and a study's children outlive a killed parent, so neither the tree nor a
    process group finds them all; the environment that they inherited does.
    """
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            theirs = process.pid != os.getpid() and process.environ().get(RUN_DIR_VARIABLE) == str(directory)
            if theirs and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def end_all(directory: Path, gentle_s: float = 3.0) -> int:
    """End what still runs for a run's folder: SIGTERM, then after `gentle_s` SIGKILL; return how many there were."""
    ended = 0
    for number, patience in ((signal.SIGTERM, gentle_s), (signal.SIGKILL, 5.0)):
        left = of_run(directory)
        ended = max(ended, len(left))
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)
        wait_until(lambda: not of_run(directory), patience)
    return ended


def wait_until(true: Callable[[], bool], seconds: float) -> bool:
    """Poll until a condition holds or the time is up; return whether it holds."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


class Heard:
    """When a run was last heard of: a line in its log, a step of progress, another cell; by the monotonic clock."""

    def __init__(self, directory: Path) -> None:
        self._paths = [directory / name for name in ("log.txt", "progress.json", ".cell.json")]
        self._seen: list[tuple[int, int]] = []
        self._at = time.monotonic()

    def silent_s(self) -> float:
        """Look, and return for how many seconds nothing was heard."""
        seen = [(found.st_size, found.st_mtime_ns) for path in self._paths if path.exists() for found in [path.stat()]]
        if seen != self._seen:
            self._seen, self._at = seen, time.monotonic()
        return time.monotonic() - self._at
