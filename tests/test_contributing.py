"""CONTRIBUTING.md followed to the letter, in a copy of the repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from quarl_lib.suite.plan import PACKAGE

PROJECT = PACKAGE.parent
TEXT = (PROJECT / "CONTRIBUTING.md").read_text()
CHECKS = [
    "ruff check .",
    "ruff format --check .",
    "python -m pytest -q -p no:cacheprovider tests/test_notebooks.py tests/test_params.py tests/test_imports.py "
    "tests/studies/test_figures.py",
]


def blocks(heading: str, language: str) -> list[str]:
    """Return the code blocks of one language below a heading."""
    section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```$", section)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of what git knows, and of the compiled kernels."""
    call = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(call, cwd=PROJECT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    folder = tmp_path / "copy"
    compiled = [str(path.relative_to(PROJECT)) for path in PACKAGE.glob("inference/_native*.so")]
    for name in [*listed.stdout.splitlines(), *compiled]:
        if (PROJECT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PROJECT / name, folder / name)
    return folder


def do(command: str, folder: Path) -> str:
    """Run a shell command in the copy, on the copy's library; it must succeed."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(folder), "QUARL_PROJECT": str(folder)}
    done = subprocess.run(["bash", "-ec", command], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
def test_the_template_study_copied_passes_the_checks_and_runs(copy):
    (commands,) = blocks("Add a study", "sh")
    assert "make check\n" in commands, "the text says how to check"
    # `make check` sets an environment up first: its commands are run in this one.
    before, after = commands.split("make check\n")
    do(before, copy)
    for check in [*CHECKS, "mypy quarl_lib/studies/coin"]:
        do(check, copy)
    do(after, copy)
    (report,) = (copy / "outputs" / "smoke" / "coin").glob("*/report.html")
    assert "largest error" in report.read_text()
    assert "coin" in do("quarl list", copy)


@pytest.mark.slow
def test_the_quantizer_of_the_text_quantizes(copy):
    code = blocks("Add a quantizer", "python")
    assert len(code) == 4
    for block in code:
        place, _, rest = block.partition("\n")
        name, _, where = place.removeprefix("# ").partition(", ")
        path = copy / name
        if not where:
            path.write_text(rest)
            continue
        how, target = where.split()
        lines = path.read_text().splitlines(keepends=True)
        (at,) = (number for number, line in enumerate(lines) if re.match(rf"{target}\b.*= \{{$", line))
        if how == "in":
            lines.insert(at + 1, rest)
        else:
            while lines[at - 1].startswith("#"):  # above its comment
                at -= 1
            lines.insert(at, rest + "\n\n")
        path.write_text("".join(lines))
    for check in [
        "ruff check .",
        "ruff format --check .",
        "mypy quarl_lib/quantization",
        "python -m pytest -q -p no:cacheprovider tests/quantization/test_percentile.py tests/quantization/test_ptq.py",
    ]:
        do(check, copy)
    said = do(
        'python -c \'from quarl_lib.studies import ptq_study as s; c = s.Config(env_ids=["CartPole-v1"], '
        'algorithms=["PPO"], precisions=["fp32", "int8"], quantizers=["percentile_clip"], episodes=2, '
        "calibration_steps=100, kl_states=50, workers=1); print(s.summarize(s.run(c)).to_csv())'",
        copy,
    )
    assert "percentile_clip" in said
