"""Parts that hang, and ends that are not: done to real processes, with a stall of two seconds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from multiprocessing import forkserver
from pathlib import Path

import actorq_parts as parts
import pytest
from fault_runs import pid_of, processes_in, wait_until

from quarl_lib.actorq.launch import local
from quarl_lib.actorq.launch.local import RunFailed
from quarl_lib.actorq.launch.silence import Silence, waited_s
from quarl_lib.actorq.link import CHECKPOINT, END, ENV_STEP, START, Link, read

STALL_S = 2.0


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    local.warm_up()


def test_silence_counts_from_the_last_beat_and_only_while_looked_at(tmp_path, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    link = Link(tmp_path, 1)
    slot = link.beat_slot = link.first_beat
    silence = Silence(link)
    silence.begin(slot)

    def after(seconds: float) -> bool:
        for _ in range(round(seconds / 0.5)):
            clock[0] += 0.5
            silence.look({})
        return silence.too_long(slot, 2.0)

    assert not after(80.0)  # nothing heard yet: it may still import
    link.beat(START)
    assert not after(80.0)
    link.beat(ENV_STEP)
    assert not after(2.0)
    clock[0] += 1000.0  # the supervisor itself was stopped: one second of it counts
    silence.look({})
    assert silence.seconds(slot) == pytest.approx(2.5, abs=0.51)
    assert after(1.0)
    link.beat(ENV_STEP)
    assert not after(1.0)
    link.beat(CHECKPOINT)
    assert not after(200.0)  # a large replay takes its time
    link.beat(END)
    assert not after(30.0)  # so do a sampler and a server that end
    assert after(5.0)


def test_waiting_for_a_core_is_no_silence(tmp_path, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    link = Link(tmp_path, 1)
    slot = link.beat_slot = link.first_beat
    silence = Silence(link)
    silence.begin(slot)
    link.beat(ENV_STEP)
    silence.look({slot: 7.0})  # what it waited before
    for waited in (7.4, 7.8, 8.2):
        clock[0] += 0.5
        silence.look({slot: waited})
    assert silence.seconds(slot) == pytest.approx(0.3)
    clock[0] += 0.5
    silence.look({slot: 8.2})  # it had its core, and said nothing
    assert silence.seconds(slot) == pytest.approx(0.8)
    silence.begin(slot)  # the next process there has waited less
    silence.look({slot: 0.1})
    assert silence.seconds(slot) == pytest.approx(0.0)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the system does not say")
def test_time_without_a_core_is_read():
    spin = "import os, time\nos.sched_setaffinity(0, {0})\nend = time.time() + 1.0\nwhile time.time() < end: pass"
    both = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(2)]
    most = 0.0
    while both[0].poll() is None:
        most = max(most, waited_s(both[0].pid))
        time.sleep(0.02)
    both[1].wait()
    assert most > 0.1  # two share one core
    assert waited_s(2**30) == 0.0


def test_stopped_actor_is_replaced_with_its_row(tmp_path, in_background):
    program = parts.program(tmp_path, stall_s=STALL_S)
    thread, errors = in_background(program)
    wait_until(lambda: program.link.actor_steps_of(0) > 20)
    stopped = pid_of(tmp_path, "actor-0")
    os.kill(stopped, signal.SIGSTOP)
    wait_until(lambda: (read(tmp_path, "started").generation == 1).any())
    steps = program.link.actor_steps_of(0)
    wait_until(lambda: program.link.actor_steps_of(0) > steps + 20)
    program.link.request_stop("test")
    thread.join(10)
    assert not errors
    (reason,) = read(tmp_path, "deaths").reason
    assert "actor-0 hung: no heartbeat for 2 s (it is stopped: SIGSTOP)" in reason
    assert not processes_in(tmp_path)


def test_actor_whose_environment_hangs_is_replaced_and_the_environment_named(tmp_path, in_background):
    program = parts.program(tmp_path, actors=(parts.act_and_hang_once,), stall_s=STALL_S)
    thread, errors = in_background(program)
    wait_until(lambda: program.link.actor_steps_of(0) > 60)
    program.link.request_stop("test")
    thread.join(10)
    assert not errors
    assert "step() of gym:Test-v0 does not return" in read(tmp_path, "deaths").reason.iloc[0]
    assert "in act_and_hang_once" in (tmp_path / "logs" / "actor-0.log").read_text()  # where it hung


def test_stopped_learner_fails_the_run_and_is_named(tmp_path, in_background):
    program = parts.program(tmp_path, stall_s=STALL_S)
    thread, errors = in_background(program)
    wait_until(lambda: program.link.learner_steps() > 5)
    os.kill(pid_of(tmp_path, "learner"), signal.SIGSTOP)
    thread.join(10)
    assert "learner hung: no heartbeat for 2 s (it is stopped: SIGSTOP)" in str(errors[0])
    assert "came in sample" in str(errors[0])
    assert not processes_in(tmp_path)


def test_a_short_stop_is_no_stall(tmp_path, in_background):
    program = parts.program(tmp_path, stall_s=3.0)
    thread, errors = in_background(program)
    wait_until(lambda: program.link.actor_steps() > 20)
    for part in ("learner", "actor-1"):
        os.kill(pid_of(tmp_path, part), signal.SIGSTOP)
        time.sleep(0.5)
        os.kill(pid_of(tmp_path, part), signal.SIGCONT)
    steps = program.link.actor_steps_of(1)
    wait_until(lambda: program.link.actor_steps_of(1) > steps + 20)
    program.link.request_stop("test")
    thread.join(10)
    assert not errors
    assert read(tmp_path, "deaths").empty


@pytest.mark.slow
@pytest.mark.parametrize(("number", "said"), [(signal.SIGKILL, "was killed"), (signal.SIGSTOP, "was stopped")])
def test_fork_server_is_called_that_and_the_next_run_has_another(tmp_path, in_background, number, said):
    program = parts.program(tmp_path, stall_s=STALL_S)
    thread, errors = in_background(program)
    wait_until(lambda: program.link.actor_steps() > 20)
    os.kill(forkserver._forkserver._forkserver_pid, number)  # type: ignore[attr-defined]
    thread.join(15)
    assert "the fork server, which starts the parts" in str(errors[0])
    assert said in str(errors[0])
    assert not processes_in(tmp_path)
    local.warm_up()
    local.supervise(parts.program(tmp_path / "again", actors=(parts.act_a_little,)))


def test_an_error_after_the_stop_flag_is_a_row_and_a_warning(tmp_path):
    program = parts.program(tmp_path, actors=(parts.act_until_the_end_and_raise,), grace_s=30.0)
    program.link.request_stop("test")
    with pytest.warns(RuntimeWarning, match=r"(?s)at the run's end, actor-0 ended with exit code 1.*in the last flush"):
        local.supervise(program)
    assert "in the last flush" in read(tmp_path, "deaths").reason.iloc[0]


def test_an_actor_that_does_not_end_is_killed_and_a_row(tmp_path):
    program = parts.program(tmp_path, actors=(parts.hang,))
    program.link.request_stop("test")
    with pytest.warns(RuntimeWarning, match="did not end within 2 s of the run's end"):
        local.supervise(program)
    assert not processes_in(tmp_path)


def test_an_actor_whose_weights_never_change_fails_the_run(tmp_path):
    program = parts.program(tmp_path, learner=parts.publish, actors=(parts.act_with_old_weights,), period=10)
    with pytest.raises(RunFailed, match=r"actor-0 runs the weights of publication 1 though \d+ were published"):
        local.supervise(program)


def test_a_full_disk_is_called_that(tmp_path):
    with pytest.raises(RunFailed, match=r"actor-0 could not write: the disk of .* is full"):
        local.supervise(parts.program(tmp_path, actors=(parts.fill_the_disk,)))
