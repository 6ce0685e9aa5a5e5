"""Decide what runs: every run of a suite with its final parameters and its folder, before any starts."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from quarl_lib.suite import parameters
from quarl_lib.suite.catalog import PRESETS, Study, choose

PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Task:
    """One run to be made: a study, its final parameters, and where it goes."""

    study: str
    notebook: Path
    project: Path
    suite: str
    preset: str
    run_id: str
    directory: Path
    parameters: dict[str, Any]
    changed: tuple[str, ...]

    def facts(self) -> dict[str, Any]:
        """Return the task as plain values for `run.json`."""
        facts = asdict(self)
        return {**facts, **{name: str(facts[name]) for name in ("notebook", "project", "directory")}}


@cache
def library_hash() -> str:
    """Return a hash over the library's sources, C files included."""
    digest = hashlib.sha256()
    for path in sorted(path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".c", ".h")):
        digest.update(str(path.relative_to(PACKAGE)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def run_id(study: Study, preset: str, values: Mapping[str, Any], changed: Iterable[str]) -> str:
    """Name a run: the preset, what differs from it, and a hash of parameters, notebook and library."""
    sources = [(cell["cell_type"], cell["source"]) for cell in study.cells]
    content = json.dumps([study.name, dict(values), sources, library_hash()], sort_keys=True)
    words = [preset, *(f"{name}={_short(values[name])}" for name in changed)]
    readable = re.sub(r"[^A-Za-z0-9_.=+-]+", "-", "_".join(words)).strip("-.")[:80]
    return f"{readable}-{hashlib.sha256(content.encode()).hexdigest()[:8]}"


def _short(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, list) else str(value)


def make(
    project: Path,
    wanted: str,
    preset: str = "laptop",
    *,
    pairs: Sequence[str] = (),
    files: Sequence[Path] = (),
    values: Mapping[str, Any] | None = None,
    output: Path | None = None,
    suite: str | None = None,
    grid: bool = False,
) -> list[Task]:
    """Return the runs meant by a command line, all parameters accepted.

    Later sources win: the cell's defaults, the preset's file, `files`, `pairs` ("name=value"), `values`.
    With several studies each takes the parameters that it knows; one that none of them knows is an error.

    Raises:
        ValueError: an unknown study, preset or parameter, or a value that its type or the study's Config refuses.
    """
    if preset not in PRESETS:
        raise ValueError(f"preset {preset}: unknown; {parameters.suggestion(preset, PRESETS)}")
    suite = suite or preset
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.=+-]*", suite):
        raise ValueError(f"suite {suite!r}: use letters, digits and _ . = + - only; it names a folder")
    studies = choose(project, wanted)
    root = (output or project / "outputs").resolve()
    tasks = []
    for study, given in zip(studies, _given(studies, pairs, files, values or {}, grid), strict=True):
        base = study.preset(preset)
        for change in given:
            final = base | change
            changed = tuple(name for name in final if final[name] != base[name])
            name = run_id(study, preset, final, changed)
            folder = root / suite / study.name / name
            tasks.append(Task(study.name, study.notebook, project, suite, preset, name, folder, final, changed))
    if any(task.changed for task in tasks):
        check_configs(project, tasks)
    return list({task.directory: task for task in tasks}.values())


def _given(
    studies: list[Study], pairs: Sequence[str], files: Sequence[Path], values: Mapping[str, Any], grid: bool
) -> list[list[dict[str, Any]]]:
    """Return for every study the changes that each of its runs makes to the preset."""
    declared: dict[str, parameters.Parameter] = {}
    for study in studies:
        declared |= study.parameters
    for name in [pair.partition("=")[0].strip() for pair in pairs] + list(values):
        parameters.known(name, declared)
    result = []
    for study in studies:
        own: dict[str, Any] = {}
        for path in files:
            known = study.parameters if len(studies) == 1 else declared | study.parameters
            read = parameters.read_file(Path(path), known)
            own |= {name: value for name, value in read.items() if name in study.parameters}
        mine = [pair for pair in pairs if pair.partition("=")[0].strip() in study.parameters]
        later = parameters.from_values({k: v for k, v in values.items() if k in study.parameters}, study.parameters)
        if grid:
            several = parameters.combinations(parameters.from_pairs(mine, study.parameters, grid=True))
        else:
            several = [parameters.from_pairs(mine, study.parameters)]
        result.append([own | one | later for one in several])
    return result


def check_configs(project: Path, tasks: Sequence[Task]) -> None:
    """Let every study's Config accept its parameters, in one process that may import torch.

    Raises:
        ValueError: a Config refuses, in its own words.
    """
    wanted = [{"study": task.study, "parameters": task.parameters} for task in tasks]
    call = [sys.executable, "-m", "quarl_lib.suite.execution", "--check"]
    done = subprocess.run(call, input=json.dumps(wanted), text=True, capture_output=True, cwd=project)
    if done.returncode:
        raise ValueError(
            done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "the check of the Configs died"
        )
