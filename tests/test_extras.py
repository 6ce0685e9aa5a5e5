"""What is not installed is named with the line that installs it: before a run, in its record, and in its report."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from quarl_lib import extras
from quarl_lib.files import read_json
from quarl_lib.suite import execution, plan

BLOCK = """\
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name.partition(".")[0] == {module!r} else find(name, *rest)
"""


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("No module named 'codecarbon'", "No module named 'codecarbon'; pip install -c constraints.txt -e '.'"),
        ("RunFailed: actor-0 ended\nNo module named 'onnx.helper'\nin x.py",
         "RunFailed: actor-0 ended; pip install -c constraints.txt -e '.'\nNo module named 'onnx.helper'\n"
         "in x.py"),
        ("No module named 'acme'", "No module named 'acme'; pip install -c constraints.txt -e '.[reverb]'"),
        ("No module named 'mypkg'", "No module named 'mypkg'"),
        ("No module named 'onnx'; pip install onnx", "No module named 'onnx'; pip install onnx"),
        ("division by zero", "division by zero"),
    ],
)  # fmt: skip
def test_the_install_line_is_added_where_it_is_known_and_missing(said, expected):
    assert extras.with_remedy(said) == expected


def test_a_study_that_cannot_be_imported_is_refused_before_it_runs(monkeypatch):
    def missing(name: str) -> None:
        raise ModuleNotFoundError("No module named 'codecarbon'", name="codecarbon")

    monkeypatch.setattr(execution.importlib, "import_module", missing)
    with pytest.raises(SystemExit) as refused:
        execution.check([{"study": "actorq_training", "parameters": {}}])
    assert refused.value.code == (
        "actorq_training: No module named 'codecarbon'; pip install -c constraints.txt -e '.'"
    )


@pytest.mark.slow
@pytest.mark.parametrize("module", ["codecarbon", "mujoco"])
def test_run_and_report_name_the_install_line(tmp_path, module):
    (tmp_path / "sitecustomize.py").write_text(BLOCK.format(module=module))
    root = plan.PACKAGE.parent
    path = os.pathsep.join([str(tmp_path), str(root), os.environ.get("PYTHONPATH", "")])
    call = [sys.executable, "-m", "quarl_lib.cli", "run", "actorq_training", "--preset", "smoke",
            "--output", str(tmp_path / "outputs")]  # fmt: skip
    done = subprocess.run(call, cwd=root, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode != 0
    (record,) = Path(tmp_path / "outputs/smoke/actorq_training").glob("*/run.json")
    reason = read_json(record)["reason"]
    named = rf"No module named '{module}'.*; pip install -c constraints.txt -e '\.'"
    assert re.search(named, reason)
    assert reason in done.stdout
    page = (record.parent / "report.html").read_text()
    assert "pip install -c constraints.txt" in page
    assert re.search(rf"No module named \W*{module}", html.unescape(page))
