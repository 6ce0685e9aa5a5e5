"""Every fault in every part, at random moments of real runs: the right outcome in time, nothing left, and a rerun."""

from __future__ import annotations

import re
import time

import pytest
from fault_runs import (
    GRACE_S,
    MOMENTS,
    STALL_S,
    Supervised,
    cause,
    check_nothing_left,
    check_rerun,
    check_whole,
    moments,
    pid_of,
    wait_until,
)

from quarl_lib.actorq.launch import local
from quarl_lib.actorq.link import read

pytestmark = pytest.mark.slow

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
    # The folder of snapshots is broken for the evaluator as well: either may be the first to meet it.
    ("exception", "learner", "(?s)(learner|evaluator) ended with.*(NotADirectory|FileExists|FileNotFound)Error", ""),
    ("exception", "evaluator", "(?s)evaluator ended.*ArithmeticError: the environment broke", ""),
    ("nan", "actor", None, "Faulty-v0': its reward is nan; mend the environment"),
    ("nan", "learner", "(?s)learner ended.*diverged", ""),
    ("nan", "evaluator", "(?s)evaluator ended.*Faulty-v0': its reward is nan; mend the environment", ""),
    ("hang", "actor", None, r"step\(\) of gym:faulty_environment:Faulty-v0 does not return"),
    ("hang", "evaluator", r"(?s)evaluator hung.*step\(\) of gym:faulty_environment:Faulty-v0 does not return", ""),
]


@pytest.mark.parametrize("moment", range(MOMENTS))
@pytest.mark.parametrize(("fault", "part", "failure", "death"), CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES])
def test_fault(tmp_path, orders, record_property, fault, part, failure, death, moment):
    delay_s, config = moments(f"{fault} {part}")[moment]
    local.warm_up()
    with Supervised(config, tmp_path) as run:
        pid_of(tmp_path, "actor-1" if part == "actor" else part)
        time.sleep(delay_s)
        cause(fault, part, run, orders)
        caused_at, steps = time.monotonic(), run.link.actor_steps()
        if failure is None:
            if death:
                wait_until(lambda: len(read(tmp_path, "deaths")), STALL_S + GRACE_S)
            took_s = time.monotonic() - caused_at
            wait_until(lambda: run.link.learner_steps() > 30 and run.link.actor_steps() > steps + 400, 60)
            run.link.request_stop("seen enough")
            assert run.ended(within_s=30)
        else:
            assert run.ended(within_s=STALL_S + GRACE_S)
            took_s = time.monotonic() - caused_at
    deaths = read(tmp_path, "deaths")
    said = run.error if failure else deaths.reason.iloc[0] if len(deaths) else "goes on"
    record_property("outcome", f"{fault}|{part}|{delay_s:.2f}|{took_s:.2f}|{said.splitlines()[0]}")
    assert bool(run.error) == (failure is not None), run.error
    assert re.search(failure or "", run.error), run.error
    assert len(deaths) == bool(death), deaths.to_dict("records")
    assert not death or re.search(death, deaths.reason.iloc[0]), deaths.reason.iloc[0]
    check_nothing_left(tmp_path)
    if failure is None:
        check_whole(tmp_path)
    check_rerun(tmp_path, config, resume=(fault, part) != ("nan", "learner"))  # what poisons it is in its checkpoints
