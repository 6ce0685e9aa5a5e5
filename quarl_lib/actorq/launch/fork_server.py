"""The process that forks the parts and says how they ended: whether it still works."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import psutil

from quarl_lib.actorq.launch.silence import LONGEST_LOOK_S
from quarl_lib.actorq.link import RunFailed

KILLED = "the fork server, which starts the parts and hears how they end, was killed; run it again"
STOPPED = "the fork server, which starts the parts, was stopped (SIGSTOP) for {:.0f} s"


class ForkServer:
    """The server that runs now, or one that is started; psutil knows it by its start."""

    def __init__(self) -> None:
        from multiprocessing import forkserver  # not on Windows

        self._process: psutil.Process | None = None
        forkserver.ensure_running()
        with contextlib.suppress(psutil.Error):
            self._process = psutil.Process(forkserver._forkserver._forkserver_pid)  # type: ignore[attr-defined]
        self._stopped_s, self._looked_at = 0.0, time.monotonic()

    def status(self) -> str:
        """Return psutil's word for what it does; "gone" where it ended."""
        try:
            status = self._process.status() if self._process is not None else "gone"
        except psutil.Error:
            return "gone"
        return "gone" if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) else status

    def ended(self) -> bool:
        """Say whether it is gone: then no part can be started, and how one ended is not known."""
        return self.status() == "gone"

    def ends_within(self, seconds: float) -> bool:
        """Say whether it is gone after at most so many seconds: one that is killed takes a moment."""
        deadline = time.monotonic() + seconds
        while not (ended := self.ended()) and time.monotonic() < deadline:
            time.sleep(0.01)
        return ended

    def is_stopped(self) -> bool:
        """Say whether it is stopped (SIGSTOP): it then starts no part."""
        return self.status() == psutil.STATUS_STOPPED

    def stopped_s(self) -> float:
        """Return for how long it has been found stopped."""
        now = time.monotonic()
        passed, self._looked_at = min(now - self._looked_at, LONGEST_LOOK_S), now
        self._stopped_s = self._stopped_s + passed if self.is_stopped() else 0.0
        return self._stopped_s

    @contextlib.contextmanager
    def starting(self, stall_s: float) -> Iterator[None]:
        """Start a part in here: multiprocessing would wait for ever on a server that is stopped meanwhile.

        Raises:
            RunFailed: the server was killed, or was found stopped after `stall_s`.
        """
        if self.ended():
            raise RunFailed(KILLED)  # multiprocessing would start another, which knows nothing of the other parts
        stopped = threading.Event()

        def end_where_stopped() -> None:
            if self.is_stopped():
                stopped.set()
                self.kill()

        timer = threading.Timer(min(stall_s, threading.TIMEOUT_MAX), end_where_stopped)
        timer.daemon = True
        timer.start()
        try:
            yield
        except (EOFError, ConnectionError) as error:
            raise RunFailed(STOPPED.format(stall_s) if stopped.is_set() else KILLED) from error
        finally:
            timer.cancel()

    def kill(self) -> None:
        """End it; the next run starts another."""
        if self._process is not None:
            with contextlib.suppress(psutil.Error):
                self._process.kill()
        self.ends_within(2.0)  # psutil's own wait would take its end from multiprocessing, which asks later
