"""One set of versions: pyproject's bounds, the tested set, and conda's file agree."""

from __future__ import annotations

import os
import re
import subprocess
import sys
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
WANTED = ("jupyterlab", "papermill", "torch", "stable-baselines3", "dm-env", "dm-control", "dm-acme", "dm-reverb",
          "matplotlib", "seaborn", "codecarbon")  # fmt: skip


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
    module = {"stable-baselines3": "stable_baselines3", "dm-env": "dm_env", "dm-control": "dm_control",
              "dm-acme": "acme", "dm-reverb": "reverb"}.get(name, name)  # fmt: skip
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
    assert PYPROJECT["requires-python"] == ">=3.11"


@pytest.mark.parametrize(
    ("machine", "given"),
    [
        ({"sys_platform": "linux", "platform_machine": "x86_64", "python_version": "3.11"}, True),
        ({"sys_platform": "linux", "platform_machine": "x86_64", "python_version": "3.13"}, False),
        ({"sys_platform": "linux", "platform_machine": "aarch64", "python_version": "3.11"}, False),
        ({"sys_platform": "darwin", "platform_machine": "arm64", "python_version": "3.11"}, False),
        ({"sys_platform": "win32", "platform_machine": "AMD64", "python_version": "3.12"}, False),
    ],
)
def test_reverb_is_asked_for_only_where_it_has_a_build(machine, given):
    wanted = [Requirement(text) for text in EXTRAS["reverb"]]
    assert {one.name for one in wanted} >= {"dm-reverb", "dm-acme", "tensorflow-cpu", "jax"}
    assert all(one.marker is not None and one.marker.evaluate(machine) is given for one in wanted)


def test_light_install_brings_none_of_what_reverb_brings():
    names = {canonicalize_name(Requirement(text).name) for text in PYPROJECT["dependencies"]}
    assert not names & {"dm-reverb", "dm-acme", "tensorflow-cpu", "tensorflow", "jax", "jaxlib"}
    assert names >= {"dm-env", "dm-control", "mujoco", "onnx", "onnxruntime", "codecarbon"}


def test_all_takes_every_extra_but_two():
    (everything,) = (Requirement(text) for text in EXTRAS["all"])
    assert everything.extras == set(EXTRAS) - {"all", "bullet", "envpool"}


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
    assert done.stdout.splitlines() == [
        "QuaRL needs Python 3.11 or later: install it, or call make PYTHON=/path/to/python3.11"
    ]
    assert not (tmp_path / ".venv").exists()


def test_make_says_what_is_left_out_where_reverb_has_no_build(tmp_path):
    """A Python 3.13 is played by this one with two values changed; what pip is told is written down."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.version_info = (3, 13, 0, 'final', 0)\n")
    other = tmp_path / "python3"
    other.write_text(
        f"""#!/bin/sh
if [ "$1" = -m ]; then
  mkdir -p .venv/bin
  printf '#!/bin/sh\\necho "$@" > pip.txt\\n' > .venv/bin/python
  chmod +x .venv/bin/python
else
  PYTHONPATH={tmp_path} exec {sys.executable} "$@"
fi
"""
    )
    other.chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "setup.py"):
        (tmp_path / name).write_bytes((PROJECT / name).read_bytes())
    call = ["make", "-s", "-C", str(tmp_path), "setup", f"PYTHON={other}"]
    done = subprocess.run(call, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    assert done.returncode == 0, done
    said = "left out: Reverb and Acme, which have builds for Linux on x86-64 with Python 3.11 alone;"
    assert done.stdout.startswith(said)
    assert (tmp_path / "pip.txt").read_text() == "-m pip install --quiet --disable-pip-version-check -e .[all]\n"
