"""Watch the processes of a run: replace actors that die or hang, fail the run where another part does, end them all."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
import warnings
from collections import deque
from collections.abc import Callable
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil

from quarl_lib import results
from quarl_lib.actorq.launch.children import DISK_FULL, nothing, start
from quarl_lib.actorq.launch.fork_server import KILLED, STOPPED, ForkServer
from quarl_lib.actorq.launch.interrupts import signals_ignored
from quarl_lib.actorq.launch.program import Part
from quarl_lib.actorq.launch.silence import Silence, waited_s
from quarl_lib.actorq.link import ENV_RESET, ENV_STEP, EVALUATE, STAGES, Link, RunFailed

MAX_DEATHS, DEATHS_WITHIN_S = 3, 60.0
ABORT_GRACE_S = 2.0  # after Ctrl-C or a failure; everything is to be gone within 5 s
LOOK_EVERY_S = 0.1
UNKNOWN = 255  # exit code that multiprocessing makes up where the fork server no longer tells
FORK_SERVER_S = 1.0  # for it to be seen to be gone
STACK_S = 0.2  # for a part that hangs to write down where


class Running:
    """A part's process; psutil knows it by its start too, so that it can be killed without the fork server's help."""

    def __init__(self, part: Part, process: BaseProcess, slot: int) -> None:
        self.part, self.process, self.slot = part, process, slot
        self.stale_since: tuple[int, int] | None = None  # publication that an actor kept, and its steps then
        self._known: psutil.Process | None = None
        with contextlib.suppress(psutil.Error):
            self._known = psutil.Process(process.pid)

    def alive(self) -> bool:
        """Say whether the process is still there, whatever the fork server says."""
        try:
            return self._known is not None and self._known.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        except psutil.Error:
            return False

    def how(self) -> str:
        """Return in words what state the process is in, where that explains its silence."""
        with contextlib.suppress(psutil.Error):
            if self._known is not None and self._known.status() == psutil.STATUS_STOPPED:
                return " (it is stopped: SIGSTOP)"
        return ""

    def kill(self) -> None:
        """End the process at once: SIGKILL alone ends one that is stopped; before, let it write down where it is."""
        if self._known is not None and self.alive():
            with contextlib.suppress(psutil.Error):
                if not self.how():
                    self._known.send_signal(signal.SIGUSR1)
                    time.sleep(STACK_S)
                self._known.kill()
                self._known.wait(ABORT_GRACE_S)


class Supervisor:
    """The parts that run, and what is to be done about those that do not."""

    def __init__(self, link: Link, update_period: int = 0, prepare: Callable[[], None] = nothing) -> None:
        self.link, self.update_period, self.prepare = link, update_period, prepare
        self.running: dict[str, Running] = {}
        self.generations: dict[str, int] = {}
        self.deaths: deque[tuple[float, float]] = deque(maxlen=MAX_DEATHS)
        self.silence, self.fork_server = Silence(link), ForkServer()
        self.ending_since = 0.0
        self.ended: list[Running] = []

    def start(self, part: Part) -> None:
        """Start a part's process, or its next one.

        Raises:
            RunFailed: the fork server was killed or is stopped.
        """
        generation = self.generations[part.name] = self.generations.get(part.name, -1) + 1
        slot = min(self.link.last_beat, self.link.first_beat + list(self.generations).index(part.name))
        self.silence.begin(slot)
        arguments = (*part.arguments, generation) if part.replaceable else part.arguments
        with self.fork_server.starting(part.stall_s):
            process = start(part.name, part.function, self.link, arguments, slot, self.prepare, part.background)
        self.running[part.name] = Running(part, process, slot)
        row = {"part": part.name, "generation": generation, "pid": process.pid, "wall_time_s": self.link.wall_time_s()}
        self.link.log("processes", [row])

    def look(self) -> bool:
        """Wait a moment, deal with the parts that ended or are silent, and say whether the run goes on.

        Raises:
            RunFailed: the run cannot go on.
        """
        connection.wait([one.process.sentinel for one in self.running.values()], LOOK_EVERY_S)
        self._check_fork_server()
        ended = [one for one in self.running.values() if one.process.exitcode is not None]
        if any(one.process.exitcode == UNKNOWN for one in ended) and self.fork_server.ends_within(FORK_SERVER_S):
            raise RunFailed(KILLED)
        for one in sorted(ended, key=lambda one: one.part.replaceable):  # a learner's death explains actors'
            del self.running[one.part.name]
            self.ended.append(one)
            if one.process.exitcode == 0:
                self._returned(one.part)
            else:
                self._died(one.part, self._how_ended(one))
        self.silence.look({one.slot: waited_s(one.process.pid) for one in self.running.values()})
        for one in sorted(self.running.values(), key=lambda one: one.part.replaceable):
            self._check_silence(one)
            self._check_weights(one)
        if self.link.should_stop() and not self.ending_since:
            self.ending_since = time.monotonic()
        return bool(self.running)

    def _check_fork_server(self) -> None:
        if self.fork_server.ended():
            raise RunFailed(KILLED)
        if self.running:
            stall_s = min(one.part.stall_s for one in self.running.values())
            if (stopped_s := self.fork_server.stopped_s()) > stall_s:
                raise RunFailed(STOPPED.format(stopped_s))

    def _check_silence(self, one: Running) -> None:
        part, slot = one.part, one.slot
        if self.ending_since and time.monotonic() - self.ending_since > part.grace_s:
            reason = f"{part.name} did not end within {part.grace_s:g} s of the run's end{one.how()}; {self._last(one)}"
        elif self.silence.too_long(slot, part.stall_s) or (
            self.silence.seconds(slot) > part.stall_s and one.how()  # no stage excuses a process that is stopped
        ):
            silent = self.silence.seconds(slot)
            reason = f"{part.name} hung: no heartbeat for {silent:.0f} s{one.how()}; {self._last(one)}"
        else:
            return
        one.kill()
        del self.running[part.name]
        self.ended.append(one)
        self._died(part, f"{reason}; its output is in {self._log_of(part)}", part.stall_s)

    def _last(self, one: Running) -> str:
        count, stage = self.link.heartbeat(one.slot)
        said = f"the last of its {count} beats came in {STAGES[stage]}"
        if stage in (ENV_RESET, ENV_STEP, EVALUATE) and one.part.environment:
            call = "reset()" if stage == ENV_RESET else "step()"
            said += f": {call} of {one.part.environment} does not return; mend the environment, or raise stall_s"
        return said

    def _check_weights(self, one: Running) -> None:
        """Fail the run where an actor goes on with old weights though newer ones were published and pulls were due."""
        actor_id = one.part.actor_id
        if actor_id is None or not self.update_period or self.ending_since:
            return
        steps, pulled = self.link.actor_steps_of(actor_id), self.link.pulled(actor_id)
        if not pulled or self.link.published() <= pulled:
            one.stale_since = None
        elif one.stale_since is None or one.stale_since[0] != pulled:
            one.stale_since = (pulled, steps)
        elif steps - one.stale_since[1] > 3 * self.update_period:
            raise RunFailed(
                f"{one.part.name} runs the weights of publication {pulled} though {self.link.published()} were "
                f"published and it took {steps - one.stale_since[1]} steps since (update_period={self.update_period}): "
                "its weights no longer change; what it wrote since is no actor's of this learner"
            )

    def _returned(self, part: Part) -> None:
        if part.ends_run:
            self.link.request_stop(f"{part.name} ended")
        elif part.replaceable and not any(other.part.replaceable for other in self.running.values()):
            self.link.request_stop("the actors took their steps")

    def _died(self, part: Part, reason: str, waited_s: float = 0.0) -> None:
        """Deal with a part that ended otherwise than by returning."""
        if not part.replaceable:
            raise RunFailed(reason)
        self.link.log("deaths", [{"part": part.name, "wall_time_s": self.link.wall_time_s(), "reason": reason}])
        if self.link.should_stop():
            warnings.warn(f"at the run's end, {reason}", RuntimeWarning, stacklevel=2)
            return
        now = time.monotonic()
        self.deaths.append((now - waited_s, now))
        within = DEATHS_WITHIN_S + MAX_DEATHS * waited_s
        if len(self.deaths) == MAX_DEATHS and now - self.deaths[0][0] < within:
            raise RunFailed(f"actors died {MAX_DEATHS} times within {within:g} s; the last: {reason}")
        self.start(part)

    def _how_ended(self, one: Running) -> str:
        part, code = one.part, one.process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        if code == DISK_FULL:
            raise RunFailed(f"{part.name} could not write: the disk of {self.link.directory} is full; free some of it")
        written = self.link.directory / "logs" / f"{part.name}.traceback"
        reason = written.read_text() if code > 0 and written.exists() else ""
        return f"{part.name} {how}; its output is in {self._log_of(part)}\n{reason}".rstrip()

    def _log_of(self, part: Part) -> Path:
        return _kept(self.link.directory / "logs" / f"{part.name}.log")

    def end(self) -> None:
        """End what still runs, in good order or by force; parts whose end the fork server made up are looked at too."""
        with signals_ignored():
            self.link.abort()
            mine = [*self.running.values(), *self.ended]
            deadline = time.monotonic() + ABORT_GRACE_S
            while any(one.alive() for one in mine) and time.monotonic() < deadline:
                connection.wait([one.process.sentinel for one in mine if one.process.exitcode is None], 0.05)
                time.sleep(0.01)
            for one in mine:
                if one.alive():
                    one.kill()
            if self.fork_server.is_stopped():
                self.fork_server.kill()
            for one in self.running.values():
                one.process.join(ABORT_GRACE_S)


def _kept(log: Path) -> Path:
    """Copy a part's output into the folder of the notebook's run, where there is one: it outlives a scratch folder."""
    run_directory = os.environ.get(results.RUN_DIR_VARIABLE)
    if not run_directory or not log.exists() or log.is_relative_to(run_directory):
        return log
    target = Path(run_directory) / "logs" / log.name
    target.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copyfile(log, target))
