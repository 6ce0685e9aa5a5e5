"""Runs as they happen: real processes, kernels and signals, and what is true in the folder afterwards."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from conftest import TEMPLATE, add_study

from quarl_lib.reports import index, report
from quarl_lib.suite import plan, processes, runner, states

FILES = ("run.json", "params.yaml", "notebook.ipynb", "report.html", "results.parquet", "summary.csv", "log.txt")
# What each study's extra cell does to its run, after the parameters and before the imports.
ENDS = {
    "raises": "import os\nraise ValueError('no such luck with cores', os.environ['QUARL_CORES'])",
    "exits": "import sys\nsys.exit(0)",
    "os_exit": "import os\nos._exit(0)",
    "killed": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "stubborn": "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: time.sleep(1)",
    "hangs": "import subprocess, time\nsubprocess.Popen(['sleep', '987'], start_new_session=True)\ntime.sleep(600)",
}


def folder(root: Path, study: str, suite: str = "smoke") -> Path:
    """Return the one run's folder of a study."""
    (found,) = [path.parent for path in (root / suite / study).glob("[!.]*/run.json")]
    return found


def environment(project: Path) -> dict[str, str]:
    return {**os.environ, "QUARL_PROJECT": str(project)}


def start(project: Path, *words: str) -> subprocess.Popen[str]:
    """Start `quarl run ...` as a user would."""
    call = [sys.executable, "-m", "quarl_lib.cli", "run", *words]
    return subprocess.Popen(
        call, env=environment(project), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    """Run one good study and one of each bad end, side by side, as one suite."""
    project = tmp_path_factory.mktemp("suite") / "project"
    shutil.copytree(TEMPLATE, project)
    for name, cell in ENDS.items():
        add_study(project, name, cell)
    good = project / "notebooks" / "01_dice.ipynb"
    foreign = json.loads(good.read_text())
    foreign["metadata"]["kernelspec"] = {"name": "julia-9", "display_name": "Julia", "language": "julia"}
    good.write_text(json.dumps(foreign))
    hanging = "stubborn,hangs"
    others = ",".join(name for name in ("dice", *ENDS) if name not in hanging)
    records = runner.run(plan.make(project, others, "smoke"), runner.Options(jobs=3), finished=index.add)
    # Apart, so that a busy machine's slow imports are not taken for a cell that hangs.
    records += runner.run(
        plan.make(project, hanging, "smoke"),
        runner.Options(jobs=3, cell_timeout_s=3.0, grace_s=2.0),
        finished=index.add,
    )
    return project / "outputs", {record["study"]: record for record in records}


def test_good_run_is_ok_and_complete_whatever_kernel_the_notebook_names(suite):
    root, records = suite
    assert records["dice"]["state"] == "ok", records["dice"]
    directory = folder(root, "dice")
    assert [name for name in FILES if not (directory / name).exists()] == []
    assert list((directory / "figures").glob("*.png"))
    assert (directory / "report.html").stat().st_size < 3_000_000
    record = json.loads((directory / "run.json").read_text())
    assert re.fullmatch(r"largest error [\d.]+%", record["key_figure"])
    assert record["seeds"] == {"seed": 0}
    assert record["parameters"] == {"sides": [4, 6], "rolls": 50, "bias": 0.0, "seed": 0}
    for fact in ("commit", "versions", "cpu_features", "started", "ended", "duration_s"):
        assert record[fact], fact
    assert not list(directory.glob(".*")), "nothing of the making is left"


@pytest.mark.parametrize(
    ("study", "state", "said", "cell"),
    [
        ("raises", "failed", "('no such luck with cores', '1')", 4),
        ("exits", "failed", "a cell ended the notebook early", 4),
        ("os_exit", "failed", "the kernel died", 4),
        ("killed", "failed", "the kernel died", 4),
        ("stubborn", "timeout", "one cell took longer than 3 s", 4),
        ("hangs", "timeout", "one cell took longer than 3 s", 4),
    ],
)
def test_bad_end_has_its_state_its_reason_its_notebook_and_its_report(suite, study, state, said, cell):
    root, records = suite
    assert (records[study]["state"], records[study]["cell"]) == (state, cell), records[study]
    assert said in records[study]["reason"]
    directory = folder(root, study)
    assert states.read(directory)["state"] == state
    shown = (directory / "report.html").read_text()
    assert said in html.unescape(shown)
    assert f"in cell {cell + 1}: {ENDS[study].splitlines()[0]}" in shown.replace("&#39;", "'")
    cells = report.notebook_cells(directory)
    assert "".join(cells[cell]["source"]) == ENDS[study]
    assert not (directory / "summary.csv").exists()


def test_nothing_is_left_running(suite):
    root, _ = suite
    for study in ENDS:
        assert processes.of_run(folder(root, study)) == []


def test_index_lists_every_run_with_state_and_reason(suite):
    root, records = suite
    page = (root / "smoke" / "index.html").read_text()
    assert "7 studies, 7 runs: 1 ok, 4 failed, 2 timeout." in page
    assert page.count('class="badge failed"') == 8, "on a card and in the table of runs"
    assert records["dice"]["key_figure"] in page
    assert re.search(r'<img loading="lazy" src="dice/[^"]+/figures/error_over_sides.png" alt="Dice: Relative', page)
    for study in records:
        assert f"{study}/" in page


FINISH = """for file in finished.json results.parquet summary.csv; do echo '{"key_figure": "1"}' > $file; done
echo '{"kind": "done"}' > .outcome.json"""


@pytest.fixture
def process_of_a_run(tmp_path, monkeypatch):
    """Return a function that lets a shell script, in the run's folder, stand in for the process of every run."""

    def stand_in(script: str) -> None:
        path = tmp_path / "interpreter"
        path.write_text(f'#!/bin/sh\ncd "$3"\n{script}\n')
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))

    return stand_in


def test_done_run_is_not_run_twice_and_failed_ones_are_retried_on_request(project, process_of_a_run, tmp_path):
    for name in ("raises", "exits"):
        add_study(project, name)
    everything, ran = plan.make(project, "all", "smoke"), tmp_path / "ran"
    for task, state in zip(everything, ("ok", "failed", "timeout"), strict=True):
        states.change(task.directory, state, key_figure="as before")

    def run(tasks, **options) -> tuple[list[dict], list[str]]:
        ran.write_text("")
        end = """echo '{"kind": "failed", "reason": "as told"}' > .outcome.json"""
        process_of_a_run(f'basename "$(dirname "$PWD")" >> {ran}\n{end}')
        return runner.run(tasks, runner.Options(**options)), ran.read_text().split()

    records, studies = run(everything)
    assert studies == ["raises", "exits"]
    assert records[0]["key_figure"] == "as before"
    assert run(everything, retry_failed=True)[1] == ["raises", "exits"]
    assert run(everything[:1])[1] == []
    assert run(everything[:1], force=True)[1] == ["dice"]


def wait_for_cell(directory_of: Path, study: str, text: str) -> Path:
    """Wait until a run's notebook is in the cell that begins with `text`."""
    found: list[Path] = []

    def there() -> bool:
        cells = list((directory_of / "smoke" / study).glob("[!.]*/.cell.json"))
        found[:] = [path.parent for path in cells if text in path.read_text()]
        return bool(found)

    assert processes.wait_until(there, 60.0), "the run did not begin"
    return found[0]


def test_ctrl_c_ends_tidily_and_a_second_call_does_only_what_is_missing(project):
    nap = "import os, time\nif not os.path.exists('awake'): time.sleep(600)"
    add_study(project, "naps", nap)
    (done,) = plan.make(project, "dice", "smoke")
    states.change(done.directory, "ok", key_figure="as before")
    first = start(project, "all", "--preset", "smoke")
    directory = wait_for_cell(project / "outputs", "naps", "import os, time")
    first.send_signal(signal.SIGINT)
    said, _ = first.communicate(timeout=30)
    assert first.returncode == 130, said
    assert states.read(directory)["state"] == "interrupted"
    assert "KeyboardInterrupt" in (directory / "notebook.ipynb").read_text(), "the cell itself was interrupted"
    assert processes.of_run(directory) == []
    (project / "awake").touch()
    second = start(project, "all", "--preset", "smoke")
    said, _ = second.communicate(timeout=60)
    assert second.returncode == 0, said
    assert "done before" in said
    assert states.read(directory)["state"] == "ok"


def test_killed_runner_leaves_no_process_and_a_true_state(project):
    add_study(project, "sleeps", "import time\ntime.sleep(600)")
    killed = start(project, "sleeps", "--preset", "smoke")
    directory = wait_for_cell(project / "outputs", "sleeps", "import time")
    assert states.read(directory)["state"] == "running"
    with states.claim(directory) as claim:
        assert claim is None, "a second runner must find the run taken"
    killed.kill()
    killed.wait()
    assert states.read(directory)["state"] == "interrupted"
    assert "killed" in states.read(directory)["reason"]
    assert processes.wait_until(lambda: not processes.of_run(directory), 20.0), processes.of_run(directory)


@pytest.fixture
def temporary(monkeypatch):
    """Give commands a temporary folder of their own, with a name that is short enough for sockets."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def test_runner_and_run_killed_together_leave_no_process_and_no_folder(project, temporary):
    add_study(project, "sleeps", "import subprocess, time\nsubprocess.Popen(['sleep', '987'])\ntime.sleep(600)")
    killed = start(project, "sleeps", "--preset", "smoke")
    directory = wait_for_cell(project / "outputs", "sleeps", "import subprocess")
    assert list(temporary.iterdir())
    for process in (psutil.Process(killed.pid), *psutil.Process(killed.pid).children()):
        process.kill()
    assert processes.wait_until(lambda: not processes.of_run(directory), 20.0), processes.of_run(directory)
    assert processes.wait_until(lambda: not list(temporary.iterdir()), 20.0), list(temporary.iterdir())
    assert states.read(directory)["state"] == "interrupted"


def test_two_runners_share_an_output_folder(project):
    both = [start(project, "dice", "--preset", "smoke") for _ in range(2)]
    said = [one.communicate(timeout=90)[0] for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    assert sum("done before" in text for text in said) == 1, said
    assert json.loads((folder(project / "outputs", "dice") / "run.json").read_text())["attempt"] == 1


def test_forced_run_that_is_interrupted_gives_the_old_result_back(project, process_of_a_run, tmp_path):
    (task,) = plan.make(project, "dice", "smoke")
    task.directory.mkdir(parents=True)
    (task.directory / "summary.csv").write_text("old")
    states.change(task.directory, "ok", key_figure="old")
    process_of_a_run(f"ls -A > {tmp_path}/found\nkill -INT $PPID\nexec sleep 60")
    (record,) = runner.run([task], runner.Options(force=True))
    assert "summary.csv" not in (tmp_path / "found").read_text().split()
    assert record["state"] == "interrupted"
    assert (task.directory / "summary.csv").read_text() == "old"
    assert states.read(task.directory)["state"] == "ok"


def test_kernel_that_does_not_start_is_tried_again(project, process_of_a_run, tmp_path):
    (task,) = plan.make(project, "dice", "smoke")
    process_of_a_run(
        f"echo >> {tmp_path}/tries\n"
        f"if [ $(wc -l < {tmp_path}/tries) -lt 3 ]; then\n"
        'echo \'{"kind": "startup", "reason": "no kernel"}\' > .outcome.json; exit 0\nfi\n' + FINISH
    )
    (record,) = runner.run([task])
    assert (record["state"], record["attempt"]) == ("ok", 3)


def test_output_folder_that_cannot_be_written_is_refused_before_anything_starts(project, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = start(project, "dice", "--preset", "smoke", "--output", str(blocked))
    said, _ = done.communicate(timeout=30)
    assert done.returncode == 2
    assert str(blocked) in said
    assert "Traceback" not in said


def test_disk_full_keeps_the_state_true(project, tmp_path):
    if os.geteuid() != 0 or sys.platform != "linux":
        pytest.skip("mounting a small disk needs root on Linux")
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(small)], capture_output=True).returncode:
        pytest.skip("this machine does not let root mount a tmpfs")
    try:
        fill = "from pathlib import Path\nPath('{}').write_bytes(b'0' * 10**7)".format(small / "filler")
        add_study(project, "fills", fill)
        done = start(project, "fills", "--preset", "smoke", "--output", str(small))
        said, _ = done.communicate(timeout=60)
        assert done.returncode == 1, said
        directory = folder(small, "fills")
        assert states.read(directory)["state"] == "failed", said
        assert re.search(r"No space left|disk is full", states.read(directory)["reason"]), states.read(directory)
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_unfinished_state_of_a_gone_process_reads_as_interrupted(tmp_path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    identity = {**states.process_identity(), "pid": gone.pid, "pid_started": 1.0}
    states.change(tmp_path, "queued", runner=identity)
    assert states.read(tmp_path)["state"] == "interrupted"
    states.change(tmp_path, "running", runner=states.process_identity())
    assert states.read(tmp_path)["state"] == "running"
    reused = {**states.process_identity(), "pid_started": psutil.Process().create_time() - 60}
    states.change(tmp_path, "running", runner=reused)
    assert states.read(tmp_path)["state"] == "interrupted", "another process got the number"


def test_run_id_is_readable_and_changes_with_parameters_notebook_and_library(project, monkeypatch):
    (base,) = plan.make(project, "dice", "smoke")
    (again,) = plan.make(project, "dice", "smoke")
    (other,) = plan.make(project, "dice", "smoke", pairs=["rolls=7", "sides=4,8"])
    assert base.run_id == again.run_id
    assert re.fullmatch(r"smoke-[0-9a-f]{8}", base.run_id)
    assert re.fullmatch(r"smoke_sides=4\+8_rolls=7-[0-9a-f]{8}", other.run_id)
    monkeypatch.setattr(plan, "library_hash", lambda: "another")
    assert plan.make(project, "dice", "smoke")[0].run_id != base.run_id
    monkeypatch.undo()
    monkeypatch.setenv("QUARL_PROJECT", str(project))
    path = project / "notebooks" / "01_dice.ipynb"
    path.write_text(path.read_text().replace("## Roll", "## Rolling"))
    assert plan.make(project, "dice", "smoke")[0].run_id != base.run_id


def test_grid_makes_one_run_each_and_the_index_compares_them(project):
    tasks = plan.make(project, "dice", "smoke", pairs=["rolls=5,10", "seed=1,2"], grid=True)
    assert [(task.parameters["rolls"], task.parameters["seed"]) for task in tasks] == [(5, 1), (5, 2), (10, 1), (10, 2)]
    assert len({task.directory for task in tasks}) == 4
    for number, task in enumerate(tasks):
        task.directory.mkdir(parents=True)
        states.change(task.directory, "ok", **task.facts(), key_figure=f"figure {number}", started=time.time())
    page = index.build(project / "outputs" / "smoke").read_text()
    assert "dice over rolls, seed" in page
    assert [f"figure {n}" in page for n in range(4)] == [True] * 4


def test_times_are_monotonic_whatever_the_clock_says(project, monkeypatch):
    def attend(self, task, claim, begin):
        monkeypatch.setattr(time, "time", lambda: 1e9)  # somebody sets the clock back by years
        (task.directory / ".outcome.json").write_text(json.dumps({"kind": "failed", "reason": "x"}))
        return None, 1

    monkeypatch.setattr(runner._Suite, "_attend", attend)
    monkeypatch.setattr(runner._Suite, "_report", lambda self, task: None)
    (record,) = runner.run(plan.make(project, "dice", "smoke"))
    assert 0 <= record["duration_s"] < 60


def test_what_an_interrupted_run_left_for_itself_is_kept_unless_forced(project, monkeypatch):
    (task,) = plan.make(project, "dice", "smoke")
    found = []

    def attend(self, task, claim, begin):
        found.append(sorted(str(path.relative_to(task.directory)) for path in task.directory.rglob("*.parquet")))
        return ("interrupted", "Ctrl-C"), 1

    monkeypatch.setattr(runner._Suite, "_attend", attend)
    monkeypatch.setattr(runner._Suite, "_report", lambda self, task: None)
    for name in ("runs/a/table.parquet", "results.parquet"):
        (task.directory / name).parent.mkdir(parents=True, exist_ok=True)
        (task.directory / name).write_text("")
    states.change(task.directory, "interrupted")
    runner.run([task])
    runner.run([task], runner.Options(force=True))
    assert found == [["runs/a/table.parquet"], []]


def test_result_of_before_is_named_and_comes_back_after_a_kill_under_force(project, monkeypatch):
    (task,) = plan.make(project, "dice", "smoke")
    task.directory.mkdir(parents=True)
    states.change(task.directory, "ok", key_figure="old")
    os.replace(task.directory, states.previous_of(task.directory))  # as a forced run leaves it when it is killed
    gone = {**states.process_identity(), "pid": 2**22 - 1}
    task.directory.mkdir()
    states.change(task.directory, "running", runner=gone)
    assert states.previous_of(task.directory).name in states.read(task.directory)["reason"]
    (record,) = runner.run([task])
    assert (record["state"], record["key_figure"], record["skipped"]) == ("ok", "old", True)


def test_report_that_cannot_be_written_is_in_the_record(project, monkeypatch):
    def attend(self, task, claim, begin):
        (task.directory / ".outcome.json").write_text(json.dumps({"kind": "failed", "reason": "x"}))
        return None, 1

    def no_report(directory):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(runner._Suite, "_attend", attend)
    (task,) = plan.make(project, "dice", "smoke")
    with pytest.warns(UserWarning, match="the report could not be written"):
        runner.run([task], finished=no_report)
    assert "No space left" in states.read(task.directory)["report_error"]


def test_record_is_written_into_the_bytes_that_it_has(tmp_path):
    states.change(tmp_path, "running", runner=states.process_identity(), started=1.0)
    size = (tmp_path / "run.json").stat().st_size
    states.change_in_place(tmp_path, "failed", "the disk is full")
    assert (tmp_path / "run.json").stat().st_size == size
    assert states.read(tmp_path)["state"] == "failed"


def test_kernel_that_says_nothing_is_ended(project):
    add_study(project, "silent", "import time\ntime.sleep(600)")
    (task,) = plan.make(project, "silent", "smoke")
    (record,) = runner.run([task], runner.Options(silence_s=8.0, grace_s=2.0))
    assert (record["state"], record["reason"]) == ("timeout", "no output and no progress for 8 s")
