"""Notebooks as they are committed: stripped, short, laid out alike, and true to their study's Config."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import json
from pathlib import Path

import nbformat
import pytest
from conftest import TEMPLATE

from quarl_lib.reports import markup
from quarl_lib.studies import __path__ as studies_path
from quarl_lib.suite import catalog, plan

STUDIES = catalog.find_studies(plan.PACKAGE.parent)
NOTEBOOKS = [study.notebook for study in STUDIES.values()] + [TEMPLATE / "notebooks" / "01_dice.ipynb"]
LONGEST_CELL = 12
MOST_CELLS = 40


def tagged(cell: dict, tag: str) -> bool:
    return tag in cell["metadata"].get("tags", [])


def code_cells(path: Path) -> list[dict]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def source(cell: dict) -> str:
    return "".join(cell["source"])


EXPLORE = plan.PACKAGE.parent / "notebooks" / "00_explore.ipynb"


def test_the_explorer_is_no_study_and_is_stripped_and_short():
    assert "explore" not in STUDIES
    TestNotebook().test_is_valid_and_stripped(EXPLORE)
    TestNotebook().test_cells_are_short_and_define_nothing(EXPLORE)
    (cell,) = (cell for cell in code_cells(EXPLORE) if tagged(cell, "parameters"))
    assert source(cell).startswith('outputs: str = ""')


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
class TestNotebook:
    def test_is_valid_and_stripped(self, path):
        nbformat.validate(nbformat.read(path, as_version=4))
        for cell in json.loads(path.read_text())["cells"]:
            assert cell.get("outputs", []) == [], f"cell {cell['id']}: strip the outputs (nbstripout)"
            assert cell.get("execution_count") is None, f"cell {cell['id']}: strip the execution count"
            assert cell["metadata"].get("tags") != [], f"cell {cell['id']}: leave out the empty list of tags"
            assert set(cell["metadata"]) <= {"tags"}, f"cell {cell['id']}: metadata of an editor: {cell['metadata']}"

    def test_begins_with_title_question_and_run_time(self, path):
        study = catalog.Study("any", path, path.parents[1])
        title, question, *rest = study.introduction
        assert title.startswith("# ")
        assert study.question.endswith("?"), f"the question in one sentence, not {question!r}"
        assert "smoke" in " ".join(rest), "say what each preset costs"

    def test_has_one_parameters_cell_and_ends_with_finish(self, path):
        cells = code_cells(path)
        assert [tagged(cell, "parameters") for cell in cells].count(True) == 1
        assert "run.finish(" in source(cells[-1])
        assert any("run.provenance()" in source(cell) for cell in cells)

    def test_cells_are_short_and_define_nothing(self, path):
        assert len(json.loads(path.read_text())["cells"]) <= MOST_CELLS
        for cell in code_cells(path):
            text = source(cell)
            kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
            assert not [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)], f"a definition:\n{text}"
            if not tagged(cell, "parameters"):
                assert len([line for line in text.splitlines() if line.strip()]) <= LONGEST_CELL, text

    def test_every_parameter_has_a_help_text(self, path):
        parameters = catalog.Study("any", path, path.parents[1]).parameters
        assert [name for name, parameter in parameters.items() if not parameter.help] == []

    def test_every_equation_is_understood(self, path):
        for cell in json.loads(path.read_text())["cells"]:
            if cell["cell_type"] == "markdown":
                assert '<code class="tex">' not in markup.Markdown().render(source(cell)), source(cell)


@pytest.mark.parametrize("study", STUDIES.values(), ids=lambda study: study.name)
def test_parameters_cell_equals_the_config_and_its_defaults(study):
    config = importlib.import_module(f"quarl_lib.studies.{study.name}").Config
    fields = {field.name: field for field in dataclasses.fields(config)}
    assert list(study.parameters) == list(fields), "the cell and the Config name the same parameters in the same order"
    defaults = config()
    for name, parameter in study.parameters.items():
        assert parameter.default == getattr(defaults, name), name
        assert parameter.type == str(fields[name].type).replace("typing.", ""), name
    assert dataclasses.is_dataclass(config)
    assert config.__dataclass_params__.frozen  # type: ignore[union-attr]


def test_every_study_module_has_its_notebook():
    (folder,) = studies_path
    with_config = [path.parent.name for path in Path(folder).glob("*/study.py") if "class Config" in path.read_text()]
    assert sorted(with_config) == sorted(STUDIES)


def test_a_notebook_with_outputs_would_be_refused(tmp_path):
    notebook = json.loads((TEMPLATE / "notebooks" / "01_dice.ipynb").read_text())
    notebook["cells"][2]["execution_count"] = 1
    path = tmp_path / "01_bad.ipynb"
    path.write_text(json.dumps(notebook))
    with pytest.raises(AssertionError, match="execution count"):
        TestNotebook().test_is_valid_and_stripped(path)
