"""Small real runs to which faults are done: how one is begun, what is done to it, and what must hold after every end.

`QUARL_FAULT_MOMENTS` is how many moments each case gets (3), `QUARL_FAULT_SEED` where they are drawn from (0).
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import threading
import time
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from quarl_lib.actorq.config import Config
from quarl_lib.actorq.launch import local
from quarl_lib.actorq.launch.program import build
from quarl_lib.actorq.learner import checkpoint
from quarl_lib.actorq.link import Link, read

SERVER: Any = forkserver._forkserver  # type: ignore[attr-defined]
MOMENTS = int(os.environ.get("QUARL_FAULT_MOMENTS", "3"))
SEED = int(os.environ.get("QUARL_FAULT_SEED", "0"))
STALL_S, GRACE_S = 4.0, 10.0
LONGEST_DELAY_S = 6.0  # after a process began: half of these moments fall before it does its work
CONFIG = Config(
    task="gym:faulty_environment:Faulty-v0", algorithm="dqn", actor_steps=10**7, min_replay=100, samples_per_insert=4.0,
    batch_size=16, policy_hidden=(16, 16), precision="int8", eval_period=300, eval_episodes=1, update_period=20,
    publish_period=5, checkpoint_every=100, stall_s=STALL_S,
)  # fmt: skip
# Moments take turns at these. Where there is a replay server it lives in the learner's process: what befalls the one
# befalls the other.
VARIANTS: tuple[dict[str, Any], ...] = ({}, {"replay": "local"}, {"adder": "acme", "transport": "reverb"})


def moments(case: str, longest_s: float = LONGEST_DELAY_S) -> list[tuple[float, Config]]:
    """Draw when a case's fault comes, in seconds, each with the config of its run."""
    rng = random.Random(f"{SEED} {case}")
    return [
        (rng.uniform(0.0, longest_s), CONFIG.replace(**VARIANTS[number % len(VARIANTS)])) for number in range(MOMENTS)
    ]


def wait_until(condition, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def processes_in(directory: Path) -> list[psutil.Process]:
    """List the processes whose output goes to a run's folder, or that were started with its name."""
    found = []
    for process in psutil.process_iter():
        try:
            opened = any(str(directory) in file.path for file in process.open_files())
            if process.pid != os.getpid() and (opened or str(directory) in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def shared_memory_files() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "quarl" in name or "psm_" in name or "sem.mp" in name}


def pid_of(directory: Path, part: str) -> int:
    """Return the process of a part; wait until it has one."""
    if part == "fork server":
        return SERVER._forkserver_pid
    wait_until(lambda: len(started := read(directory, "processes")) and (started.part == part).any(), 60)
    return int(read(directory, "processes").query("part == @part").pid.iloc[-1])


class Supervised:
    """A run that a thread supervises; `error` is how it failed, if it did."""

    def __init__(self, config: Config, directory: Path) -> None:
        self.directory, self.error = directory, ""
        self.program = build(config, directory)
        self.link = self.program.link
        self._thread = threading.Thread(target=self._supervise)
        self._thread.start()

    def _supervise(self) -> None:
        try:
            local.supervise(self.program)
        except BaseException as error:
            self.error = f"{type(error).__name__}: {error}"

    def ended(self, within_s: float) -> bool:
        """Say whether the run is over, after at most so many seconds."""
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def __enter__(self) -> Supervised:
        return self

    def __exit__(self, *error: object) -> None:
        """End what a test that failed left running."""
        self.link.abort()
        self._thread.join(30)


def cause(fault: str, part: str, run: Supervised, orders: Path) -> None:
    """Do it to the part's process, or let its environment, its folder or its data do it; return when it was done."""
    if fault in ("kill", "stop", "pause"):
        pid = pid_of(run.directory, part)
        os.kill(pid, signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
        if fault == "pause":  # well below what counts as a stall, as 5 s are below the usual 30
            time.sleep(STALL_S / 3)
            os.kill(pid, signal.SIGCONT)
    elif (fault, part) == ("exception", "learner"):
        snapshots = run.directory / "snapshots"
        while not snapshots.is_file():
            shutil.rmtree(snapshots, ignore_errors=True)
            try:
                snapshots.write_text("in its way")
            except IsADirectoryError:
                continue
    elif (fault, part) == ("nan", "learner"):
        poison(run.link)
    else:
        order = orders / f"{fault}-{part}"
        order.touch()
        wait_until(lambda: not order.exists(), 60)  # taken by a step of the environment


def poison(link: Link) -> None:
    """Put transitions that no environment may pay into the replay, once the learner samples from it."""
    wait_until(lambda: link.learner_steps() > 0, 60)
    if link.replay is not None:
        rows = link.replay.rows()  # the fifth number is the action, which stays one
        rows[:, :4] = rows[:, 5:] = np.nan
        return
    import reverb
    import tree

    client = reverb.Client(link.address())
    bad = tree.map_structure(_not_finite, client.server_info()["replay"].signature)

    def write() -> None:  # waits for ever once the server is gone with the learner
        writer = client.trajectory_writer(1)
        for _ in range(50):
            writer.append(bad)
            writer.create_item("replay", 1.0, tree.map_structure(lambda column: column[-1], writer.history))
            writer.flush(40)

    writing = threading.Thread(target=write, daemon=True)
    writing.start()
    wait_until(lambda: not writing.is_alive() or link.aborted(), 60)


def _not_finite(spec: Any) -> np.ndarray:
    dtype = spec.dtype.as_numpy_dtype
    value = np.full(spec.shape, np.nan if np.issubdtype(dtype, np.floating) else 0, dtype)
    if value.size > 4:
        value[4] = 0
    return value


def check_nothing_left(directory: Path) -> None:
    """Hold that no process, memory or temporary folder is left, and that what was written can be read."""
    wait_until(lambda: not processes_in(directory), 5)
    assert not {name for name in shared_memory_files() if not name.startswith("sem.")}  # others' pools have those
    assert all(path.name.startswith("pymp-") for path in Path(tempfile.gettempdir()).iterdir())  # our own fork server's
    for table in local.TABLES:
        read(directory, table)  # raises for a row that cannot be read
    for log in (directory / "logs").glob("*.log"):
        assert "pending items" not in log.read_text()


def check_whole(directory: Path) -> None:
    """Hold that a run that ended well has its rows, its last policy's evaluation, and no evaluation twice."""
    evaluations, timing = read(directory, "evaluations"), read(directory, "timing")
    assert set(timing.part) == {"actor", "learner"}
    assert evaluations.learner_steps.max() == timing.learner_steps.max()
    assert set(evaluations.policy) == {"learner", "actors"}
    assert not evaluations.duplicated(["actor_steps", "learner_steps", "policy", "episode"]).any()
    assert len(read(directory, "stop")) == 1


def check_rerun(directory: Path, config: Config, resume: bool = True) -> None:
    """Run again in the same folder, to the end."""
    if not (directory / "snapshots").is_dir():
        (directory / "snapshots").unlink(missing_ok=True)
    local.warm_up()
    config = config.replace(resume=resume)
    saved, _ = checkpoint.newest_good(directory)
    stood = checkpoint.read_counters(saved).actor_steps if resume and saved else 0
    local.supervise(build(config.replace(actor_steps=stood + 400), directory))
    check_whole(directory)
    assert len(read(directory, "resumed")) == bool(stood)
