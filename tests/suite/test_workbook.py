"""A workbook laid out from the package: what `quarl init` copies, what it leaves alone, and all of it from a wheel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quarl_lib import cli
from quarl_lib.suite import catalog, plan, workbook

ROOT = plan.PACKAGE.parent


def test_init_lays_out_every_study_with_its_presets(tmp_path, capsys):
    assert cli.main(["init", str(tmp_path / "mine")]) == 0
    assert capsys.readouterr().out.split() == [
        str(tmp_path / "mine" / name) for name in ("notebooks", "params", "constraints.txt", "outputs")
    ]
    laid, ours = catalog.find_studies(tmp_path / "mine"), catalog.find_studies(ROOT)
    assert list(laid) == list(ours)
    for name, study in laid.items():
        assert all(study.preset(preset) == ours[name].preset(preset) for preset in catalog.PRESETS)


def test_init_overwrites_nothing(tmp_path, capsys):
    (tmp_path / "params").mkdir()
    assert cli.main(["init", str(tmp_path)]) == 2
    assert f"{tmp_path / 'params'}: there already; give another folder" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["params"]


def test_setup_ships_what_init_lays_out():
    text = (ROOT / "setup.py").read_text()
    assert f"WORKBOOK = {workbook.PARTS!r}".replace("'", '"') in text


@pytest.mark.slow
def test_a_wheel_lists_its_studies_in_a_workbook_and_says_so_outside(tmp_path):
    listed = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    source, target, book = tmp_path / "source", tmp_path / "target", tmp_path / "book"
    source.mkdir()
    subprocess.run(["tar", "x", "-C", str(source)], input=listed.stdout, check=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(source)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(wheel)], check=True)

    def quarl(*words: str, folder: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(target)}
        environment.pop("QUARL_PROJECT", None)
        call = [sys.executable, "-m", "quarl_lib.cli", *words]
        return subprocess.run(call, cwd=folder, env=environment, capture_output=True, text=True)

    outside = quarl("list")
    assert (outside.returncode, outside.stdout) == (2, "")
    assert f"{tmp_path}: no notebooks/<nn>_<study>.ipynb here; go to a workbook, or lay one out" in outside.stderr
    assert quarl("init", str(book)).returncode == 0
    inside = quarl("list", folder=book)
    assert inside.returncode == 0, inside.stderr
    assert [line.split()[0] for line in inside.stdout.splitlines()] == list(catalog.find_studies(ROOT))
    assert "not known: no constraints.txt" in quarl("doctor").stdout
    assert quarl("run", "ptq_study", "--preset", "smoke", "--dry-run", folder=book).returncode == 0
