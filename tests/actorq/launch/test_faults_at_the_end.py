"""Faults after the stop flag: of a learner or evaluator they fail the run, of an actor they are a row and a warning."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time

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
    pid_of,
    wait_until,
)

from quarl_lib.actorq.link import read

pytestmark = pytest.mark.slow
CASES = [
    ("kill", "actor-1", "actor-1 was killed by SIGKILL"),
    ("kill", "learner", "learner was killed by SIGKILL"),
    ("kill", "evaluator", "evaluator was killed by SIGKILL"),
    ("stop", "actor-1", r"actor-1 hung: no heartbeat for \d s \(it is stopped: SIGSTOP\)"),
    ("stop", "learner", r"learner hung: no heartbeat for \d s \(it is stopped: SIGSTOP\)"),
    ("stop", "evaluator", r"evaluator hung: no heartbeat for \d s \(it is stopped: SIGSTOP\)"),
    ("exception", "learner", "(NotADirectory|FileExists|FileNotFound)Error"),
    ("exception", "evaluator", "ArithmeticError: the environment broke"),
]


@pytest.mark.parametrize("moment", range(MOMENTS))
@pytest.mark.parametrize(("fault", "part", "said"), CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES])
@pytest.mark.filterwarnings("ignore:at the run's end")
def test_fault_after_the_stop_flag(tmp_path, orders, record_property, fault, part, said, moment):
    _, config = moments(f"{fault} {part}")[moment]
    with Supervised(config, tmp_path) as run:
        wait_until(lambda: run.link.learner_steps() > 30 and len(read(tmp_path, "evaluations")), 90)
        # Held still until the flag is up: what befalls it then befalls it at the end.
        pid = pid_of(tmp_path, part)
        os.kill(pid, signal.SIGSTOP)
        run.link.request_stop("seen enough")
        if fault == "kill":
            os.kill(pid, signal.SIGKILL)
        elif fault == "exception":
            if part == "learner":
                shutil.rmtree(tmp_path / "snapshots")
                (tmp_path / "snapshots").write_text("in its way")
            else:
                (orders / f"exception-{part}").touch()
            os.kill(pid, signal.SIGCONT)
        caused_at = time.monotonic()
        assert run.ended(within_s=STALL_S + GRACE_S)
        took_s = time.monotonic() - caused_at
    deaths = read(tmp_path, "deaths")
    found = deaths.reason.iloc[0] if part == "actor-1" and len(deaths) else run.error
    record_property("outcome", f"{fault} at the end|{part}|0|{took_s:.2f}|{found.splitlines()[0]}")
    assert re.search(said, found), found
    assert bool(run.error) == (part != "actor-1"), run.error
    assert len(deaths) == (part == "actor-1"), deaths.to_dict("records")
    check_nothing_left(tmp_path)
    if part == "actor-1":
        check_whole(tmp_path)
    check_rerun(tmp_path, config)
