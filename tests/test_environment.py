"""One set of versions: pyproject's bounds, the tested set, and conda's file agree."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from importlib import metadata

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from quarl_lib.suite import plan

PROJECT = plan.PACKAGE.parent
PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
CONSTRAINTS = {
    canonicalize_name(line.partition("==")[0]): line.partition("==")[2]
    for line in (PROJECT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
}
EXTRAS = PYPROJECT["optional-dependencies"]
REQUIREMENTS = [Requirement(text) for texts in (PYPROJECT["dependencies"], *EXTRAS.values()) for text in texts]
WANTED = ("jupyterlab", "papermill", "torch", "stable-baselines3", "dm-control", "dm-acme", "dm-reverb", "matplotlib",
          "seaborn", "codecarbon")  # fmt: skip


def test_tested_set_is_exact_and_within_the_bounds():
    assert all(CONSTRAINTS.values()), "each line of constraints.txt is name==version"
    for requirement in REQUIREMENTS:
        name = canonicalize_name(requirement.name)
        if name == "quarl-lib":
            continue
        assert name in CONSTRAINTS, f"{name}: no tested version in constraints.txt"
        version = CONSTRAINTS[name].split("+")[0]
        assert requirement.specifier.contains(version), f"{requirement} does not admit the tested {version}"


@pytest.mark.parametrize("name", WANTED)
def test_package_is_required_and_used(name):
    assert name in {canonicalize_name(requirement.name) for requirement in REQUIREMENTS}
    module = {"stable-baselines3": "stable_baselines3", "dm-control": "dm_control", "dm-acme": "acme",
              "dm-reverb": "reverb"}.get(name, name)  # fmt: skip
    if name == "jupyterlab":
        assert "jupyter lab" in (PROJECT / "Makefile").read_text()
        return
    used = [path for path in plan.PACKAGE.rglob("*.py") if re.search(rf"\b(import|from) {module}\b", path.read_text())]
    assert used, f"nothing imports {module}"


def test_conda_file_has_no_second_list_of_versions():
    environment = yaml.safe_load((PROJECT / "environment.yml").read_text())
    python, pip, by_pip = environment["dependencies"]
    assert (python, pip) == ("python=3.11", "pip")
    assert by_pip == {"pip": ["-c constraints.txt", "-e .[all]"]}
    assert PYPROJECT["requires-python"] == ">=3.11,<3.12"


def test_all_takes_every_extra_but_bullet():
    (everything,) = (Requirement(text) for text in EXTRAS["all"])
    assert everything.extras == set(EXTRAS) - {"all", "bullet"}


def test_what_is_installed_is_the_tested_set():
    differs = {}
    for requirement in REQUIREMENTS:
        name = canonicalize_name(requirement.name)
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if name in CONSTRAINTS and installed.split("+")[0] != CONSTRAINTS[name].split("+")[0]:
            differs[name] = installed
    if differs:
        pytest.skip(f"this environment was not made from constraints.txt: {differs}")


def test_make_says_in_one_line_what_another_python_lacks(tmp_path):
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "setup.py"):
        (tmp_path / name).write_bytes((PROJECT / name).read_bytes())
    call = ["make", "-s", "-C", str(tmp_path), "setup", f"PYTHON={other}"]
    done = subprocess.run(call, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    assert done.returncode != 0
    assert [line for line in done.stdout.splitlines() if "Python 3.11" in line], done
    assert not (tmp_path / ".venv").exists()
