"""Every fault in every part, at random moments of real runs: the right outcome in time, nothing left, and a rerun ends.

`QUARL_FAULT_MOMENTS` is how many moments each case gets (3), `QUARL_FAULT_SEED` where they are drawn from (0). The
replay server lives in the learner's process: what befalls the one befalls the other.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import faulty_environment
import pytest
from test_failures import pid_of, processes_in, shared_memory_files, wait_until

from quarl_lib.actorq.config import Config
from quarl_lib.actorq.launch import local
from quarl_lib.actorq.launch.program import build
from quarl_lib.actorq.link import read

pytestmark = pytest.mark.slow
SERVER: Any = forkserver._forkserver  # type: ignore[attr-defined]
MOMENTS = int(os.environ.get("QUARL_FAULT_MOMENTS", "3"))
SEED = int(os.environ.get("QUARL_FAULT_SEED", "0"))
STALL_S, GRACE_S, LONGEST_DELAY_S = 4.0, 10.0, 3.0
CONFIG = Config(
    task="gym:faulty_environment:Faulty-v0", algorithm="dqn", actor_steps=10**7, min_replay=100, samples_per_insert=4.0,
    batch_size=16, policy_hidden=(16, 16), precision="int8", eval_period=300, eval_episodes=1, update_period=20,
    publish_period=5, checkpoint_every=100, stall_s=STALL_S,
)  # fmt: skip

# Fault, part, and what the run's end says; None: the run goes on. Of an actor a row in `deaths` says it.
CASES = [
    ("kill", "actor-1", None, "actor-1 was killed by SIGKILL"),
    ("kill", "learner", "learner was killed by SIGKILL", ""),
    ("kill", "evaluator", "evaluator was killed by SIGKILL", ""),
    ("kill", "fork server", "the fork server.* was killed", ""),
    ("stop", "actor-1", None, r"actor-1 hung: no heartbeat for \d s \(it is stopped: SIGSTOP\)"),
    ("stop", "learner", r"learner hung: no heartbeat for \d s \(it is stopped: SIGSTOP\)", ""),
    ("stop", "evaluator", r"evaluator hung: no heartbeat for \d s \(it is stopped: SIGSTOP\)", ""),
    ("stop", "fork server", "the fork server.* was stopped", ""),
    ("pause", "actor-1", None, ""),
    ("pause", "learner", None, ""),
    ("pause", "evaluator", None, ""),
    ("pause", "fork server", None, ""),
    ("exception", "actor", None, "ArithmeticError: the environment broke"),
    ("exception", "learner", "(?s)learner ended with exit code 1.*NotADirectoryError|FileExistsError", ""),
    ("exception", "evaluator", "(?s)evaluator ended.*ArithmeticError: the environment broke", ""),
    ("nan", "actor", None, "Faulty-v0': its reward is nan; mend the environment"),
    ("nan", "learner", "(?s)learner ended.*diverged", ""),
    ("nan", "evaluator", "(?s)evaluator ended.*Faulty-v0': its reward is nan; mend the environment", ""),
    ("hang", "actor", None, r"step\(\) of gym:faulty_environment:Faulty-v0 does not return"),
    ("hang", "evaluator", r"(?s)evaluator hung.*step\(\) of gym:faulty_environment:Faulty-v0 does not return", ""),
]


@pytest.fixture(scope="module", autouse=True)
def orders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("orders")
    os.environ[faulty_environment.ORDERS] = str(folder)
    if SERVER._forkserver_pid is not None:  # started by another module, it would not know the folder
        SERVER._stop()
    local.warm_up()
    yield folder
    del os.environ[faulty_environment.ORDERS]


def moments(case: str) -> list[float]:
    rng = random.Random(f"{SEED} {case}")
    return [rng.uniform(0.0, LONGEST_DELAY_S) for _ in range(MOMENTS)]


def cause(fault: str, part: str, directory: Path, orders: Path, link) -> None:
    """Do it to the part's process, or let its environment, its folder or its data do it."""
    if fault in ("kill", "stop", "pause"):
        pid = SERVER._forkserver_pid if part == "fork server" else pid_of(directory, part)
        os.kill(pid, signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
        if fault == "pause":  # well below what counts as a stall, as 5 s are below the usual 30
            time.sleep(STALL_S / 3)
            os.kill(pid, signal.SIGCONT)
    elif (fault, part) == ("exception", "learner"):
        shutil.rmtree(directory / "snapshots")
        (directory / "snapshots").write_text("in its way")
    elif (fault, part) == ("nan", "learner"):
        poison(link.address())
    else:
        (orders / f"{fault}-{part}").touch()


def poison(address: str) -> None:
    """Write transitions that no environment may pay into the replay, until the learner met one."""
    import numpy as np
    import reverb

    bad = np.full(11, np.nan, np.float32)
    bad[4] = 0  # the action is one
    client = reverb.Client(address)
    with client.trajectory_writer(1) as writer:
        for _ in range(50):
            writer.append(bad)
            writer.create_item("replay", 1.0, writer.history[-1])
            writer.flush(40)


@pytest.mark.parametrize(("fault", "part", "failure", "death"), CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES])
def test_fault_has_its_outcome_and_leaves_nothing(tmp_path, orders, fault, part, failure, death):
    import re

    memory = shared_memory_files()
    for number, delay_s in enumerate(moments(f"{fault} {part}")):
        directory = tmp_path / f"run-{number}"
        if fault in ("kill", "stop") and part == "fork server":
            local.warm_up()
        program = build(CONFIG, directory)
        link = program.link
        errors: list[BaseException] = []

        def supervise(program=program, errors=errors) -> None:
            try:
                local.supervise(program)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=supervise)
        thread.start()
        try:
            wait_until(lambda link=link: link.learner_steps() > 30 and link.heartbeat(link.first_beat + 3)[0] > 1, 90)
            time.sleep(delay_s)
            cause(fault, part, directory, orders, link)
            caused_at, steps = time.monotonic(), link.actor_steps()
            if failure is None:
                if death:
                    wait_until(lambda directory=directory: len(read(directory, "deaths")), STALL_S + GRACE_S)
                wait_until(lambda link=link, steps=steps: link.actor_steps() > steps + 400, 60)
                link.request_stop("seen enough")
                thread.join(30)
            else:
                thread.join(STALL_S + GRACE_S)
            assert not thread.is_alive(), (
                f"moment {delay_s:.2f} s: {time.monotonic() - caused_at:.0f} s later it still runs"
            )
        finally:
            link.abort()
            thread.join(30)
        said = str(errors[0]) if errors else ""
        assert bool(errors) == (failure is not None), said
        assert re.search(failure or "", said), said
        deaths = read(directory, "deaths")
        assert len(deaths) == bool(death), deaths.to_dict("records")
        assert not death or re.search(death, deaths.reason.iloc[0]), deaths.reason.iloc[0]
        check_nothing_left(directory, memory)
        check_rerun(directory)


def check_nothing_left(directory: Path, memory: set[str]) -> None:
    wait_until(lambda: not processes_in(directory), 5)
    found = {name for name in shared_memory_files() - memory if not name.startswith("sem.")}  # others' pools have those
    assert not found
    for table in local.TABLES:
        read(directory, table)  # raises for a row that cannot be read
    assert not read(directory, "timing").empty


def check_rerun(directory: Path) -> None:
    """Let the run go on from what it left, to its end."""
    if not (directory / "snapshots").is_dir():
        (directory / "snapshots").unlink(missing_ok=True)
    local.warm_up()
    stood = build(CONFIG.replace(resume=True), directory).link.actor_steps()
    config = CONFIG.replace(resume=True, actor_steps=stood + 400)
    local.supervise(build(config, directory))
    evaluations, timing = read(directory, "evaluations"), read(directory, "timing")
    assert evaluations.learner_steps.max() == timing.learner_steps.max()  # the last policy was played
    assert not evaluations.duplicated(["actor_steps", "learner_steps", "policy", "episode"]).any()
    assert set(timing.part) == {"actor", "learner"}


CALLER = """\
import sys
from pathlib import Path
import test_faults
from quarl_lib.actorq.launch import local
local.run(test_faults.CONFIG.replace(actor_steps=int(sys.argv[2])), Path(sys.argv[1]), metered=False)
"""


@pytest.mark.parametrize("fault", ["kill", "stop", "pause", "interrupt"])
def test_fault_of_the_supervisor(tmp_path, orders, fault):
    for number, delay_s in enumerate(moments(fault)):
        directory, temporary = tmp_path / f"run-{number}", tmp_path / f"temporary-{number}"
        temporary.mkdir()
        here = [str(Path(__file__).parent), str(Path(faulty_environment.__file__).parent)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*here, *sys.path]), "TMPDIR": str(temporary)}
        steps = "10000000" if fault != "pause" else "3000"
        caller = subprocess.Popen([sys.executable, "-c", CALLER, directory, steps], env=environment)
        try:
            wait_until(lambda directory=directory: len(read(directory, "learner")), 120)
            time.sleep(delay_s if fault != "pause" else delay_s / 3)
            number = {"kill": signal.SIGKILL, "interrupt": signal.SIGINT}.get(fault, signal.SIGSTOP)
            caller.send_signal(number)
            if fault == "pause":
                time.sleep(5.0)
                caller.send_signal(signal.SIGCONT)
            if fault == "stop":  # for good: nobody is there to be told; whoever ends it ends everything
                time.sleep(STALL_S)
                caller.kill()
            code = caller.wait(60 if fault == "pause" else 15)
            assert (code == 0) == (fault == "pause")
        finally:
            caller.kill()
        wait_until(lambda directory=directory: not processes_in(directory), 10)
        assert not list(temporary.iterdir()), list(temporary.iterdir())
        check_rerun(directory)


def test_full_disk(tmp_path, orders):
    if os.geteuid() != 0 or sys.platform != "linux":
        pytest.skip("mounting a small disk needs root on Linux")
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(small)], capture_output=True).returncode:
        pytest.skip("this machine does not let root mount a tmpfs")
    try:
        for number, delay_s in enumerate(moments("disk")):
            directory = small / f"run-{number}"
            program = build(CONFIG.replace(max_replay=2000), directory)
            timer = threading.Timer(0.0, fill, (program.link, small, delay_s))
            timer.start()
            with pytest.raises(local.RunFailed, match=r"the disk of .* is full"):
                local.supervise(program)
            timer.join()
            (small / "filler").unlink()
            wait_until(lambda directory=directory: not processes_in(directory), 5)
            for table in local.TABLES:
                read(directory, table)
            check_rerun(directory)
            shutil.rmtree(directory)
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def fill(link, small: Path, delay_s: float) -> None:
    wait_until(lambda: link.learner_steps() > 30, 90)
    time.sleep(delay_s)
    with (small / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"0" * 4096)
        except OSError:
            pass
