"""What befalls the caller of a run and its disk, at random moments: everything ends, nothing stays, a rerun ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import faulty_environment
import pytest
from fault_runs import (
    GRACE_S,
    MOMENTS,
    STALL_S,
    Supervised,
    check_nothing_left,
    check_rerun,
    check_whole,
    moments,
    processes_in,
    wait_until,
)

from quarl_lib.actorq.link import read

pytestmark = pytest.mark.slow
PAUSE_S = 5.0

CALLER = """\
import sys
from pathlib import Path
import fault_runs
from quarl_lib.actorq.launch import local
_, config = fault_runs.moments(sys.argv[2])[int(sys.argv[3])]
local.run(config.replace(actor_steps=int(sys.argv[4])), Path(sys.argv[1]), metered=False)
"""


@pytest.mark.parametrize("moment", range(MOMENTS))
@pytest.mark.parametrize("fault", ["kill", "stop", "pause", "interrupt"])
def test_fault_of_the_supervisor(tmp_path, orders, record_property, fault, moment):
    delay_s, config = moments(fault)[moment]
    directory, temporary = tmp_path / "run", tmp_path / "temporary"
    temporary.mkdir()
    here = str(Path(faulty_environment.__file__).parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([here, *sys.path]), "TMPDIR": str(temporary)}
    call = [sys.executable, "-c", CALLER, directory, fault, str(moment), "6000" if fault == "pause" else "10000000"]
    caller = subprocess.Popen(call, env=environment, start_new_session=True)
    try:
        begun = (lambda: len(read(directory, "processes")) == 4) if moment % 3 else (directory / "logs").exists
        wait_until(begun, 180)  # its parts run, or its fork server begins to import
        time.sleep(delay_s)
        began = len(read(directory, "processes"))
        caused_at = time.monotonic()
        if fault == "interrupt":  # a terminal sends it to all
            os.killpg(caller.pid, signal.SIGINT)
        else:
            caller.send_signal(signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
        if fault == "pause":
            time.sleep(PAUSE_S)
            caller.send_signal(signal.SIGCONT)
        if fault == "stop":  # for good: nobody is there to be told; whoever ends it ends everything
            time.sleep(STALL_S)
            caller.kill()
        code = caller.wait(180 if fault == "pause" else STALL_S + GRACE_S)
    finally:
        caller.kill()
        caller.wait()
    assert (code == 0) == (fault == "pause")
    wait_until(lambda: not processes_in(directory), GRACE_S)
    took_s, said = time.monotonic() - caused_at, f"ended with exit code {code}, {began} parts had begun"
    record_property("outcome", f"{fault}|supervisor|{delay_s:.2f}|{took_s:.2f}|{said}")
    # A fork server that imports looks up when it has done so; onnxruntime's telemetry keeps a file `.ses` there.
    wait_until(lambda: {path.name for path in temporary.iterdir()} <= {".ses"}, 60)
    check_nothing_left(directory)
    if fault == "pause":
        check_whole(directory)
        assert read(directory, "deaths").empty
    check_rerun(directory, config)


@pytest.fixture
def small_disk(tmp_path):
    """Mount 24 MB."""
    if os.geteuid() != 0 or sys.platform != "linux":
        pytest.skip("mounting a small disk needs root on Linux")
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(small)], capture_output=True).returncode:
        pytest.skip("this machine does not let root mount a tmpfs")
    yield small
    subprocess.run(["umount", "-l", str(small)], check=True)


@pytest.mark.parametrize("moment", range(MOMENTS))
def test_full_disk(small_disk, orders, record_property, moment):
    delay_s, config = moments("disk")[moment]
    directory = small_disk / "run"
    config = config.replace(max_replay=2000)
    with Supervised(config, directory) as run:
        time.sleep(delay_s)
        fill(small_disk / "filler")
        filled_at = time.monotonic()
        assert run.ended(within_s=STALL_S + GRACE_S)
        took_s = time.monotonic() - filled_at
    record_property("outcome", f"full disk|all|{delay_s:.2f}|{took_s:.2f}|{run.error.splitlines()[0]}")
    assert "RunFailed" in run.error
    assert "the disk of" in run.error
    (small_disk / "filler").unlink()
    check_nothing_left(directory)
    check_rerun(directory, config)


def fill(filler: Path) -> None:
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"0" * 4096)
        except OSError:
            pass
