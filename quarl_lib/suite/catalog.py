"""Find the project's studies by reading its notebooks; imports nothing heavy, so that `quarl list` answers at once."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from quarl_lib import provenance
from quarl_lib.suite import parameters

PRESETS = ("smoke", "laptop", "paper")
PROJECT_VARIABLE = "QUARL_PROJECT"


@dataclass(frozen=True)
class Study:
    """One notebook of the project, `notebooks/<nn>_<name>.ipynb`, with its preset files."""

    name: str
    notebook: Path
    project: Path

    @cached_property
    def cells(self) -> list[dict[str, Any]]:
        """The notebook's cells as stored, each source as one string."""
        try:
            cells = json.loads(self.notebook.read_text(encoding="utf-8"))["cells"]
            return [{**cell, "source": "".join(cell["source"]), "metadata": dict(cell["metadata"])} for cell in cells]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{self.notebook}: not a notebook ({type(error).__name__}: {error}); mend it or move it away"
            ) from None

    @cached_property
    def parameters(self) -> dict[str, parameters.Parameter]:
        """What the cell tagged `parameters` declares."""
        found = [index for index, cell in enumerate(self.cells) if "parameters" in cell["metadata"].get("tags", [])]
        if not found:
            raise ValueError(f"{self.notebook}: no cell is tagged `parameters`; tag the one that holds them")
        if len(found) > 1:
            numbers = " and ".join(str(index + 1) for index in found)
            raise ValueError(f"{self.notebook}: cells {numbers} are tagged `parameters`; leave the tag on one of them")
        try:
            return parameters.parse_cell(self.cells[found[0]]["source"])
        except ValueError as error:
            raise ValueError(f"{self.notebook}: {error}") from None

    @property
    def introduction(self) -> list[str]:
        """The paragraphs of the first cell: title, question, what it answers in the paper, run time."""
        text = self.cells[0]["source"] if self.cells else ""
        return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]

    @property
    def title(self) -> str:
        """The notebook's title."""
        return self.introduction[0].lstrip("# ") if self.introduction else self.name

    @property
    def question(self) -> str:
        """The question that the study answers."""
        return self.introduction[1] if len(self.introduction) > 1 else ""

    def preset(self, name: str) -> dict[str, Any]:
        """Return every parameter's value under a preset; what its file leaves out keeps the cell's default."""
        values = {parameter.name: parameter.default for parameter in self.parameters.values()}
        path = self.project / "params" / name / f"{self.name}.yaml"
        return values | parameters.read_file(path, self.parameters)


def find_project(start: Path | None = None) -> Path:
    """Return the folder that holds `notebooks/` and `params/`: $QUARL_PROJECT, here or above, or the package's own."""
    if os.environ.get(PROJECT_VARIABLE):
        return Path(os.environ[PROJECT_VARIABLE]).resolve()
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        if (folder / "notebooks").is_dir() and (folder / "params").is_dir():
            return folder
    return provenance.PROJECT


def find_studies(project: Path) -> dict[str, Study]:
    """Return the project's studies by name, in the order of their notebooks' numbers; 00 is no study."""
    paths = sorted(path for path in (project / "notebooks").glob("[0-9]*_*.ipynb") if not path.name.startswith("00_"))
    names = [path.stem.split("_", 1)[1] for path in paths]
    return {name: Study(name, path, project) for name, path in zip(names, paths, strict=True)}


def some_studies(project: Path) -> dict[str, Study]:
    """Return the project's studies by name.

    Raises:
        ValueError: there is none.
    """
    studies = find_studies(project)
    if not studies:
        raise ValueError(
            f"{project}: no notebooks/<nn>_<study>.ipynb here; go to a workbook, or lay one out: quarl init DIR"
        )
    return studies


def choose(project: Path, wanted: str) -> list[Study]:
    """Return the studies meant by a name, several names with commas between, or `all`.

    Raises:
        ValueError: no study has that name; suggests the nearest one.
    """
    studies = some_studies(project)
    if wanted == "all":
        return list(studies.values())
    for name in wanted.split(","):
        if name not in studies:
            raise ValueError(f"study {name}: unknown; {parameters.suggestion(name, studies)}")
    return [studies[name] for name in wanted.split(",")]
