"""The command line, as a user types it."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys

import pytest
from conftest import TEMPLATE, add_study

from quarl_lib import cli
from quarl_lib.suite import display, plan


def quarl(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "quarl_lib.cli", *words]
    return subprocess.run(call, capture_output=True, text=True, env={**os.environ, **environment})


def test_list_names_every_study_with_its_question_and_imports_nothing_heavy(project):
    code = (
        "import sys\nfrom quarl_lib import cli\ncli.main(['list'])\ncli.main(['describe', 'dice'])\n"
        "heavy = {'torch', 'tensorflow', 'pandas', 'numpy', 'matplotlib', 'papermill', 'nbconvert', 'IPython'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ)
    lines = done.stdout.splitlines()
    assert lines[0] == "dice  How far is the mean of a few rolls from the expected one?", done.stderr
    assert lines[-1] == "[]"


def test_template_study_of_forty_lines_of_code_is_listed_beside_others(project, capsys):
    lines = (TEMPLATE / "dice" / "study.py").read_text().splitlines()
    assert sum(bool(line.strip()) for line in lines) <= 40
    add_study(project, "second")
    assert cli.main(["list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["dice", "second"]


def test_describe_shows_name_type_default_and_help_of_every_parameter(project, capsys):
    assert cli.main(["describe", "dice"]) == 0
    said = capsys.readouterr().out
    assert "sides: list[int] = [4, 6]\n    dice, by their number of sides" in said
    assert "rolls: int = 50\n    rolls of each die (cost = rolls x dice)" in said
    assert "bias: float = 0.0\n    added to every roll: 0 = fair, #1 suspect otherwise" in said


@pytest.mark.parametrize("content", ["{", "[]", '{"cells": [{}]}', '{"cells": 3}', b"\xff\xfe{}"])
def test_one_bad_notebook_is_named_and_blocks_no_other(project, capsys, content):
    add_study(project, "second")
    bad = project / "notebooks" / "02_second.ipynb"
    bad.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert cli.main(["list"]) == 1
    said = capsys.readouterr()
    assert said.out.startswith("dice ")
    assert said.err.startswith(f"quarl: {bad}: not a notebook (")
    assert "mend it or move it away" in said.err
    assert len(said.err.splitlines()) == 1
    assert cli.main(["describe", "dice"]) == 0


def test_second_parameters_cell_is_refused(project, capsys):
    path = project / "notebooks" / "01_dice.ipynb"
    notebook = json.loads(path.read_text())
    notebook["cells"].insert(5, notebook["cells"][2])
    path.write_text(json.dumps(notebook))
    assert cli.main(["run", "dice"]) == 2
    assert "01_dice.ipynb: cells 3 and 6 are tagged `parameters`; leave the tag on one" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["list"], ["run", "all"], ["describe", "dice"]])
def test_project_without_a_study_says_so(project, capsys, words):
    (project / "notebooks" / "01_dice.ipynb").unlink()
    assert cli.main(words) == 2
    assert f"{project}: no notebooks/<nn>_<study>.ipynb here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dise"], "study dise: unknown; did you mean dice?"),
        (["dice", "--preset", "smok"], "preset smok: unknown; did you mean smoke?"),
        (["dice", "-p", "rols=3"], "parameter rols: unknown; did you mean rolls?"),
        (["dice", "-p", "rolls=abc"], "parameter rolls: 'abc' is not of type int"),
        (["dice", "-p", "bias=nan"], "parameter bias: 'nan' is not of type float"),
        (["dice", "-p", "bias=null"], "leave the parameter out"),
        (["dice", "-p", "hub_token=x"], "looks like a secret"),
        (["dice", "-f", "no.yaml"], "no.yaml: No such file"),
        (["dice", "--name", "../up"], "suite '../up'"),
        (["dice", "--jobs", "0"], "jobs=0"),
        (["dice", "--timeout", "0"], "timeout_s=0"),
        (["dice", "-p", "rolls=,", "--grid"], "parameter rolls: ',' is not of type int; an empty grid"),
        (["dice", "-p", "wandb_key=x"], "looks like a secret"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line_with_a_remedy(project, capsys, words, said):
    assert cli.main(["run", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
    assert not (project / "outputs").exists(), "nothing started"


def test_no_run_of_a_suite_starts_before_all_parameters_are_accepted(project, capsys):
    add_study(project, "second")
    (project / "params" / "smoke" / "second.yaml").write_text("rolls: many\n")
    assert cli.main(["run", "all", "--preset", "smoke"]) == 2
    assert "second.yaml, line 1: parameter rolls" in capsys.readouterr().err
    assert not (project / "outputs").exists()


def test_config_refuses_a_value_before_anything_starts():
    done = quarl("run", "ptq_study", "--preset", "smoke", "-p", "episodes=-1", "--dry-run")
    if "study ptq_study: unknown" in done.stderr:
        pytest.skip("no ptq_study in this checkout")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert re.search(r"quarl: ptq_study: .*episodes", done.stderr), done.stderr


def test_dry_run_shows_final_parameters_and_starts_nothing(project, capsys, tmp_path):
    extra = tmp_path / "extra.yaml"
    extra.write_text("bias: 1e-4\nrolls: 9\n")
    words = ["run", "dice", "--preset", "paper", "-f", str(extra), "-p", "rolls=11", "--dry-run", "--name", "mine"]
    assert cli.main(words) == 0
    said = capsys.readouterr().out
    assert "rolls = 11  (changed)" in said
    assert "bias = 0.0001  (changed)" in said
    assert "sides = [4, 6]\n" in said
    assert f"{project}/outputs/mine/dice/paper_rolls=11_bias=0.0001-" in said
    assert not (project / "outputs").exists()


def test_parameter_goes_to_the_studies_that_know_it(project):
    path = add_study(project, "other")
    path.write_text(path.read_text().replace("bias: float = 0.0", "tilt: float = 0.0"))
    for file in (project / "params").glob("*/other.yaml"):
        file.write_text(file.read_text().replace("bias", "tilt"))
    dice, other = plan.make(project, "all", "smoke", pairs=["tilt=2", "rolls=3"])
    assert (dice.parameters["rolls"], other.parameters["rolls"], other.parameters["tilt"]) == (3, 3, 2.0)
    assert "tilt" not in dice.parameters


@pytest.mark.parametrize(("text", "number"), [("90", 90), ("1.5m", 90), ("2h", 7200), ("30s", 30)])
def test_durations_are_read(text, number):
    assert cli.seconds(text) == number


@pytest.mark.parametrize(
    ("words", "silence_s"),
    [([], 1800.0), (["--preset", "paper"], None), (["--silence", "5s"], 5.0), (["--silence", "0"], None)],
)
def test_a_run_may_say_nothing_for_half_an_hour_or_as_long_as_told(project, monkeypatch, words, silence_s):
    from quarl_lib.suite import runner

    asked = []

    def run(tasks, how, *rest):
        asked.append(how.silence_s)
        return [{"state": "ok"}]

    monkeypatch.setattr(runner, "run", run)
    assert cli.main(["run", "dice", *words]) == 0
    assert asked == [silence_s]


def test_plain_papermill_runs_a_notebook_with_a_preset_file(project, tmp_path):
    notebook, params = project / "notebooks" / "01_dice.ipynb", project / "params" / "smoke" / "dice.yaml"
    call = [sys.executable, "-m", "papermill", str(notebook), str(tmp_path / "out.ipynb"), "-f", str(params), "-k",
            "python3", "--cwd", str(project), "--no-progress-bar"]  # fmt: skip
    environment = {**os.environ, "QUARL_RUN_DIR": str(tmp_path / "run")}
    done = subprocess.run(call, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "finished.json").read_text())["key_figure"].startswith("largest error")


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def running(done: int) -> dict:
    return {"state": "running", "elapsed_s": 65.0, "cell": {"index": 6, "source": ["table = study.run()"]},
            "progress": {"done": done, "total": 40, "what": "episodes"}}  # fmt: skip


def test_terminal_shows_one_line_a_run_with_what_goes_on_inside(project):
    task, other = plan.make(project, "dice", "smoke", pairs=["seed=1,2"], grid=True)
    screen = Screen()
    show = display.Display([task, other], screen)
    show(task, running(3))
    show(other, running(7))
    show(task, {"state": "ok", "duration_s": 66.0, "key_figure": "largest error 3%"})
    final = screen.getvalue().rsplit("\x1b[J", 1)[1]  # what stands there after the last clearing
    assert re.fullmatch(
        r"✓ dice seed=1 +1 min 6 s  largest error 3%\n▸ dice seed=2 +1 min 5 s  episodes 7 of 40\n", final
    ), final


def test_without_a_terminal_lines_carry_the_time_and_are_few(project):
    (task,) = plan.make(project, "dice", "smoke")
    text = io.StringIO()
    show = display.Display([task], text)
    for done in range(20):
        show(task, running(done))
    show(task, {"state": "failed", "duration_s": 2.0, "cell": 6, "reason": "ValueError: no"})
    lines = text.getvalue().splitlines()
    assert len(lines) == 2
    assert re.fullmatch(r"\d\d:\d\d:\d\d ▸ dice  started", lines[0])
    assert re.fullmatch(r"\d\d:\d\d:\d\d ✗ dice +2.0 s  failed \(cell 7\): ValueError: no", lines[1])
    assert "\x1b" not in text.getvalue()
