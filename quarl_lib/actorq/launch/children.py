"""The processes of the parts: forked from a server that imported everything once, and ended with their caller."""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import gc
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator
from multiprocessing import connection, util
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from quarl_lib.actorq.launch.fork_server import ForkServer
from quarl_lib.actorq.link import END, START, Link, Stopped

DISK_FULL = errno.ENOSPC  # exit code of a part that could not write; a full disk takes no traceback
PARENT_GRACE_S = 2.0  # for a part to end by itself once its caller is gone
CPU_LOOK_EVERY_S = 0.05
WARM_UP_STALL_S = 5.0  # for which the fork server may be stopped while it imports


def _context() -> Any:
    """Return what starts processes.

    Raises:
        RuntimeError: this system has no fork server.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        raise RuntimeError(
            f"ActorQ's processes are forked from a server, which {sys.platform} does not have: run it in the Windows "
            "Subsystem for Linux, or, in actorq_training, with launcher=virtual"
        )
    return multiprocessing.get_context("forkserver")


def start(
    name: str,
    function: Callable[..., None],
    link: Link,
    arguments: tuple[Any, ...],
    beat_slot: int,
    prepare: Callable[[], None],
    background: bool = False,
) -> BaseProcess:
    """Start a part's process, whose heartbeat is to be in `beat_slot` of the board."""
    own = link.directory.parent == Path(tempfile.gettempdir()) and link.directory.name.startswith("quarl-")
    scratch = link.directory if own else None
    arguments = (name, function, link, arguments, beat_slot, scratch, prepare, background)
    process = _context().Process(target=run_part, args=arguments, daemon=True)
    with _without_main_module():
        process.start()
    return process


def run_part(
    name: str,
    function: Callable[..., None],
    link: Link,
    arguments: tuple[Any, ...],
    beat_slot: int,
    scratch: Path | None,
    prepare: Callable[[], None],
    background: bool,
) -> None:
    """Run one part in its own process: its own log, deaf to Ctrl-C, gone when its caller is.

    Args:
        scratch: a temporary folder of the caller's, removed should the caller be killed.
        prepare: called first; brings the environment's registration.
        background: whether it is at the lowest priority.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the supervisor says what it means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for one in (link, *(argument for argument in arguments if isinstance(argument, Link))):
        one.part, one.beat_slot = name, beat_slot
    link.beat(START)
    log = os.open(link.directory / "logs" / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # where it hangs, should the supervisor ask
    if background and hasattr(os, "nice"):
        os.nice(19)
    _schedule_as_batch()
    gc.freeze()  # what was imported before the fork is never garbage; looking through it takes 0.2 s each time
    threading.Thread(target=_end_with_parent, args=(link, scratch), daemon=True).start()
    cpu_before: list[float] = []
    threading.Thread(target=_note_cpu, args=(link, cpu_before), daemon=True).start()
    code = 0
    try:
        prepare()
        function(*arguments)
        if cpu_before:
            link.log("cpu", [{"part": name, "cpu_s": time.process_time() - cpu_before[0]}])
    except Stopped:
        pass
    except BaseException as error:
        link.beat(END)
        full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        code = DISK_FULL if full else 1
        try:
            (link.directory / "logs" / f"{name}.traceback").write_text(traceback.format_exc())
            traceback.print_exc()
        except OSError as unwritten:
            # Libraries say it in errors of their own: torch.save in a RuntimeError.
            code = DISK_FULL if unwritten.errno == errno.ENOSPC else code
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    parent = multiprocessing.parent_process()
    if parent is not None and connection.wait([parent.sentinel], timeout=0):
        _remove(scratch)
    os._exit(code)  # the threads of Reverb and TensorFlow would hold an ordinary exit up


def _schedule_as_batch() -> None:
    """Give every thread the scheduling policy SCHED_BATCH, which new threads inherit: waking up preempts nobody.

    Where actors fill the cores, Reverb's threads in actors and server would else wake each other, and displace an
    actor, for every single transition: 45 us of CPU time each instead of 14.
    """
    if hasattr(os, "SCHED_BATCH"):
        for thread in os.listdir("/proc/self/task"):  # gRPC's come to life with the fork
            with contextlib.suppress(OSError):  # a sandbox may forbid it
                os.sched_setscheduler(int(thread), os.SCHED_BATCH, os.sched_param(0))


def _end_with_parent(link: Link, scratch: Path | None) -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        link.abort()
        time.sleep(PARENT_GRACE_S)
        _remove(scratch)
        os._exit(1)


def _remove(scratch: Path | None) -> None:
    """Remove what a caller that was killed could not."""
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)


def _note_cpu(link: Link, cpu_before: list[float]) -> None:
    """Note the CPU seconds of this process when the actors begin: what came before is starting up."""
    while not link.actor_steps():
        time.sleep(CPU_LOOK_EVERY_S)
    cpu_before.append(time.process_time())


def warm_up() -> None:
    """Start the server that forks the parts, and wait until it has imported what they need.

    Raises:
        RunFailed: it was killed or stopped meanwhile.
        RuntimeError: this system has no fork server.
    """
    context = _context()
    variables = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MUJOCO_GL": "disabled",
                 "TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}  # fmt: skip
    scratch = util.get_temp_dir()  # type: ignore[attr-defined]  # where multiprocessing keeps the server's socket
    # torch makes this folder on import; here it goes with multiprocessing's own.
    variables |= {"QUARL_SCRATCH": scratch, "TORCHINDUCTOR_CACHE_DIR": os.path.join(scratch, "torchinductor")}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        from multiprocessing import forkserver

        forkserver.set_forkserver_preload(["quarl_lib.actorq.launch.tidy", "quarl_lib.actorq.launch.preload"])
        with _without_main_module():
            if (server := ForkServer()).is_stopped():  # whatever stopped it, it serves no run
                server.kill()
            with ForkServer().starting(WARM_UP_STALL_S):
                process = context.Process(target=nothing, daemon=True)
                process.start()
                process.join()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def nothing() -> None:
    """Do nothing."""


@contextlib.contextmanager
def _without_main_module() -> Iterator[None]:
    """Keep children from importing the caller's script or notebook again: the parts need nothing of it."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
