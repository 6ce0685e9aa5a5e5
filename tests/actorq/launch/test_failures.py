"""What goes wrong with processes, done to real ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import actorq_parts as parts
import psutil
import pytest
from fault_runs import pid_of, processes_in, shared_memory_files, wait_until

from quarl_lib.actorq.launch import local
from quarl_lib.actorq.launch.local import RunFailed
from quarl_lib.actorq.link import read

CALLER = """\
import sys
from multiprocessing import forkserver
from pathlib import Path

import actorq_parts
from quarl_lib.actorq.launch import local

# No `if __name__ == "__main__"`: children that imported this script again would start the program again.
forkserver.set_forkserver_preload(["actorq_parts"])
with local.signals_as_exceptions():
    local.supervise(actorq_parts.program(Path(sys.argv[1])))
"""


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    local.warm_up()


def test_killed_actor_is_replaced_and_goes_on_counting(tmp_path, in_background):
    program = parts.program(tmp_path)
    thread, errors = in_background(program)
    wait_until(lambda: program.link.actor_steps_of(0) > 20 and program.link.actor_steps_of(1) > 20)
    steps = program.link.actor_steps_of(0)
    os.kill(pid_of(tmp_path, "actor-0"), signal.SIGKILL)
    wait_until(lambda: (read(tmp_path, "started").generation == 1).any())
    again = read(tmp_path, "started").query("generation == 1").iloc[0]
    wait_until(lambda: program.link.actor_steps_of(0) > steps + 20)
    program.link.request_stop("test")
    thread.join(10)
    assert not errors
    assert again.actor_id == 0
    assert "SIGKILL" in read(tmp_path, "deaths").reason.iloc[0]
    assert read(tmp_path, "episodes").query("actor_id == 0").actor_steps.is_monotonic_increasing
    assert not processes_in(tmp_path)


@pytest.mark.slow
def test_killed_actor_is_replaced_within_two_seconds(tmp_path, in_background):
    program = parts.program(tmp_path)
    in_background(program)
    wait_until(lambda: program.link.actor_steps_of(0) > 20)
    killed_at = time.time()
    os.kill(pid_of(tmp_path, "actor-0"), signal.SIGKILL)
    wait_until(lambda: (read(tmp_path, "started").generation == 1).any())
    assert read(tmp_path, "started").query("generation == 1").time.iloc[0] - killed_at < 2.0


def test_three_deaths_in_a_minute_end_the_run_with_the_actors_traceback(tmp_path, monkeypatch):
    monkeypatch.setenv("QUARL_RUN_DIR", str(tmp_path / "report"))
    with pytest.raises(RunFailed, match=r"(?s)died 3 times.*ZeroDivisionError: observation of actor 1, generation 2"):
        local.supervise(parts.program(tmp_path / "scratch", actors=(parts.act, parts.act_and_raise)))
    assert not processes_in(tmp_path)
    assert "ZeroDivisionError" in (tmp_path / "report" / "logs" / "actor-1.log").read_text()


@pytest.mark.slow
def test_killed_learner_ends_the_run_even_if_an_actor_hangs(tmp_path):
    before = shared_memory_files()
    program = parts.program(tmp_path, learner=parts.die, actors=(parts.act, parts.hang))
    start = time.monotonic()
    with pytest.raises(RunFailed, match="learner was killed by SIGKILL"):
        local.supervise(program)
    assert time.monotonic() - start < 10
    assert program.link.aborted()
    assert not processes_in(tmp_path)
    assert shared_memory_files() <= before
    assert not read(tmp_path, "episodes").empty


@pytest.mark.parametrize(
    ("number", "within_s"),
    [
        (signal.SIGTERM, None),
        pytest.param(signal.SIGTERM, 5, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 5, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, 5, marks=pytest.mark.slow),
    ],
)
def test_everything_ends_with_its_caller(tmp_path, number, within_s):
    script = tmp_path / "caller.py"
    script.write_text(CALLER)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(parts.__file__).parent), *sys.path])}
    caller = subprocess.Popen([sys.executable, script, tmp_path], env=environment, stderr=subprocess.DEVNULL)
    wait_until(lambda: len(read(tmp_path, "episodes")) > 10, 90)
    ours = psutil.Process(caller.pid).children(recursive=True)
    assert len(ours) >= 4  # two actors, a learner, and what forks them
    caller.send_signal(number)
    sent_at = time.monotonic()
    code = caller.wait(10)
    psutil.wait_procs(ours, timeout=10)
    assert within_s is None or time.monotonic() - sent_at < within_s
    assert code != 0
    assert not [process for process in ours if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    assert not processes_in(tmp_path)
    rows = read(tmp_path, "episodes")
    assert len(rows) > 10
    assert rows.notna().all(axis=None)


def test_run_ends_when_the_actors_took_their_steps(tmp_path):
    program = parts.program(tmp_path, actors=(parts.act_a_little, parts.act_a_little))
    local.supervise(program)
    assert not program.link.actor_steps() < 10
    assert read(tmp_path, "stop").reason.tolist() == ["the actors took their steps"]


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="Linux only")
def test_no_thread_of_a_part_takes_the_core_from_one_that_computes(tmp_path, in_background):
    program = parts.program(tmp_path)
    thread, errors = in_background(program)
    wait_until(lambda: program.link.actor_steps_of(0) > 0)
    pid = pid_of(tmp_path, "actor-0")
    policies = {os.sched_getscheduler(thread.id) for thread in psutil.Process(pid).threads()}
    program.link.request_stop("seen enough")
    thread.join()
    assert policies == {os.SCHED_BATCH}
    assert os.sched_getscheduler(0) == os.SCHED_OTHER  # the caller stays as it was
    assert not errors
