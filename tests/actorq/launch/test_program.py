"""Whole programs, tiny: real learner, replay, actors and evaluator in processes of their own."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time

import pytest
from fault_runs import pid_of, processes_in, wait_until
from paper_settings import paper_options

from quarl_lib.actorq.actor.evaluator import leave_snapshot, waiting_snapshots
from quarl_lib.actorq.config import Config
from quarl_lib.actorq.launch import local
from quarl_lib.actorq.launch.program import build
from quarl_lib.actorq.learner import checkpoint
from quarl_lib.actorq.link import read
from quarl_lib.studies.common.paper_tables import PAPER_TASKS

CARTPOLE = Config(
    task="gym:CartPole-v0", algorithm="dqn", actor_steps=600, min_replay=100, samples_per_insert=4.0, batch_size=16,
    policy_hidden=(16, 16), eval_period=300, eval_episodes=1, update_period=20, publish_period=2, flush_period=4,
)  # fmt: skip
BALANCE = CARTPOLE.replace(task="dm_control:cartpole:balance", algorithm="d4pg", critic_hidden=(16, 16))


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    local.warm_up()


def check(config: Config, tables: dict) -> None:
    """Hold a finished run's tables against its config."""
    timing = tables["timing"]
    assert timing.query("part == 'actor'").stage.isin(stages_of("actor")).all()
    assert set(timing.query("part == 'learner'").stage) == stages_of("learner")
    steps = timing.query("stage == 'select_action'")["count"].sum()
    assert config.actor_steps <= steps < config.actor_steps + 200
    assert timing.learner_steps.max() > 0
    assert tables["evaluations"].learner_steps.max() == timing.learner_steps.max()  # the last policy was played
    assert set(tables["evaluations"].policy) == ({"learner"} if config.precision == "fp32" else {"learner", "actors"})
    assert (tables["emissions"].energy_kwh > 0).any()
    assert len(tables["processes"]) == config.n_actors + 2
    assert tables["deaths"].empty
    pulled = timing.query("stage == 'load_weights'")["count"].sum()
    assert config.n_actors < pulled <= timing.query("stage == 'pull'")["count"].sum()


def stages_of(part: str) -> set[str]:
    if part == "learner":
        return {"sample", "learner_step", "quantize", "broadcast"}
    return {"env_step", "select_action", "observe", "pull", "deserialize", "load_weights"}


def test_dqn_program_runs_and_leaves_no_process(tmp_path):
    progress = []
    config = CARTPOLE.replace(precision="int8")
    tables = local.run(config, tmp_path, lambda *state: progress.append(state))
    check(config, tables)
    # CartPole pays 1 a step.
    assert (tables["episodes"].episode_return == tables["episodes"].episode_steps).all()
    assert progress[-1][0] == progress[-1][1] == config.actor_steps
    assert not processes_in(tmp_path)


@pytest.mark.slow
def test_d4pg_program_through_reverb_with_fp32_sent_to_int8_actors(tmp_path):
    config = BALANCE.replace(precision="int8", communication_precision="fp32", transport="reverb")
    tables = local.run(config, tmp_path)
    assert "deserialize" in set(tables["timing"].stage)
    check(config, tables)


def test_impossible_programs_are_refused_before_anything_starts(tmp_path):
    with pytest.raises(ValueError, match=r"backend.*warp"):
        local.run(CARTPOLE.replace(backend="warp"), tmp_path)
    assert read(tmp_path, "processes").empty


def test_rows_of_an_earlier_run_are_forgotten(tmp_path):
    build(CARTPOLE, tmp_path).link.log("episodes", [{"episode_return": 1.0}])
    build(CARTPOLE, tmp_path)
    assert read(tmp_path, "episodes").empty


def test_a_resumed_run_goes_on_from_its_checkpoint(tmp_path):
    link = build(CARTPOLE, tmp_path).link
    link.log("episodes", [{"wall_time_s": seconds} for seconds in (1.0, 4.0, 9.0)])
    link.log("stop", [{"reason": "learner ended", "wall_time_s": 3.0}])
    for steps, learner_steps, seconds in ((500, 10, 5.0), (700, 20, 7.0)):
        saved = checkpoint.write(tmp_path, checkpoint.Counters(steps, learner_steps, seconds), {"w": 1}, None)
    whole = (saved / "learner.pt").read_bytes()
    (saved / "learner.pt").write_bytes(whole[: len(whole) // 2])
    for seconds in (4.5, 6.0):
        leave_snapshot(tmp_path, b"policy", int(100 * seconds), int(seconds), seconds)
    with pytest.warns(RuntimeWarning, match=r"000000020: learner.pt is truncated or corrupt; falling back"):
        link = build(CARTPOLE.replace(resume=True), tmp_path).link
    link.start_clock()
    assert link.actor_steps() == link.resumed_steps == 500
    assert 5.0 <= link.wall_time_s() < 5.5
    assert read(tmp_path, "episodes").wall_time_s.tolist() == [1.0, 4.0]  # what came after is played again
    assert [snapshot.wall_time_s for snapshot in waiting_snapshots(tmp_path)] == [4.5]
    assert checkpoint.latest(tmp_path) == checkpoint.folder(tmp_path) / "000000010"
    assert read(tmp_path, "resumed").checkpoint.tolist() == ["000000010"]
    assert read(tmp_path, "stop").empty  # what goes on has not stopped
    build(CARTPOLE, tmp_path)  # a new run in the same folder: nothing of the old one is left
    assert checkpoint.latest(tmp_path) is None
    assert not waiting_snapshots(tmp_path)
    assert read(tmp_path, "episodes").empty


@pytest.mark.slow
def test_killed_actor_is_replaced_within_two_seconds_and_its_transitions_are_kept(tmp_path, in_background):
    from quarl_lib.actorq.replay import reverb as replay

    program = build(CARTPOLE.replace(actor_steps=10**6), tmp_path)
    thread, errors = in_background(program)
    wait_until(lambda: program.link.actor_steps() > 500, 60)
    killed_at = time.time()
    os.kill(pid_of(tmp_path, "actor-0"), signal.SIGKILL)
    written = replay.insert_and_sample_counts(program.link.address())[0]
    steps = program.link.actor_steps_of(0)
    wait_until(lambda: program.link.actor_steps_of(0) > steps)
    assert time.time() - killed_at < 2.0 + 1.0  # the second on top is for a machine that does other work as well
    wait_until(lambda: replay.insert_and_sample_counts(program.link.address())[0] > written + 50)
    program.link.request_stop("test")
    thread.join(70)
    assert not errors
    assert read(tmp_path, "deaths").part.tolist() == ["actor-0"]


@pytest.mark.slow
@pytest.mark.parametrize("config", [CARTPOLE, BALANCE.replace(transport="reverb")], ids=["shared_memory", "reverb"])
def test_killed_learner_and_server_end_the_run_with_the_reason(tmp_path, config, in_background):
    program = build(config.replace(actor_steps=10**6), tmp_path)
    thread, errors = in_background(program)
    wait_until(lambda: program.link.learner_steps() > 20, 60)
    port = int(program.link.address().rpartition(":")[2])
    os.kill(pid_of(tmp_path, "learner"), signal.SIGKILL)
    killed_at = time.monotonic()
    thread.join(20)
    assert time.monotonic() - killed_at < 10
    assert "learner was killed by SIGKILL" in str(errors[0])
    assert not processes_in(tmp_path)
    assert subprocess.run(["bash", "-c", f"echo > /dev/tcp/localhost/{port}"], capture_output=True).returncode
    assert not read(tmp_path, "timing").empty


@pytest.mark.slow
@pytest.mark.parametrize("delay_s", [0.5, 4.0, None], ids=["importing", "starting", "running"])
def test_sigterm_at_any_moment_ends_everything_within_five_seconds(tmp_path, delay_s):
    call = (
        "from quarl_lib.actorq.launch.local import run; from quarl_lib.actorq.config import Config;"
        f"run(Config(task='gym:CartPole-v0', algorithm='dqn', actor_steps=10**7), {str(tmp_path)!r})"
    )
    caller = subprocess.Popen([sys.executable, "-c", call], stderr=subprocess.DEVNULL)
    if delay_s is None:
        wait_until(lambda: not read(tmp_path, "episodes").empty, 90)
    else:
        time.sleep(delay_s)
    caller.terminate()
    sent_at = time.monotonic()
    assert caller.wait(10) != 0
    assert time.monotonic() - sent_at < 5
    wait_until(lambda: not processes_in(tmp_path), 5)
    rows = read(tmp_path, "episodes")
    assert not rows.isna().any(axis=None)
    assert delay_s is not None or len(rows)


@pytest.mark.slow
def test_runs_in_a_notebook(tmp_path):
    import nbformat
    from nbclient import NotebookClient

    code = f"""
from quarl_lib.actorq.launch import local
from quarl_lib.actorq.config import Config
config = Config(task="gym:CartPole-v0", algorithm="dqn", actor_steps=600, min_replay=100, samples_per_insert=4.0)
tables = local.run(config, {str(tmp_path)!r})
print(len(tables["episodes"]) > 5)"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    NotebookClient(notebook, kernel_name="python3", timeout=120).execute()
    assert "True" in "".join(output.get("text", "") for output in notebook.cells[0].outputs)


@pytest.mark.slow
@pytest.mark.parametrize("task", [task.task for task in PAPER_TASKS])
def test_table_3_runs_500_steps_at_the_papers_sizes(tmp_path, task):
    changes = dict(actor_steps=500, n_actors=1, min_replay=256, samples_per_insert=2.0,
                   error_buffer=256.0, update_period=100, publish_period=1, eval_period=500,
                   eval_episodes=1)  # fmt: skip
    tables = local.run(paper_options(task, **changes), tmp_path)
    assert tables["timing"].query("stage == 'select_action'")["count"].sum() >= 500
    assert tables["timing"].learner_steps.max() >= 1
    assert all(math.isfinite(value) for value in tables["evaluations"].episode_return)
