"""Every figure function: Axes-level ones take and return an Axes, figure-level ones are named `*_panels`."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
from types import ModuleType

import pytest
from conftest import TEMPLATE

from quarl_lib.suite.plan import PACKAGE

STUDIES = sorted(path.parent.name for path in PACKAGE.glob("studies/*/figures.py"))


def figures_of(study: str) -> ModuleType:
    if study == "dice":
        name = "template_figures"
        spec = importlib.util.spec_from_file_location(name, TEMPLATE / "dice" / "figures.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    return importlib.import_module(f"quarl_lib.studies.{study}.figures")


@pytest.mark.parametrize("study", [*STUDIES, "dice"])
def test_a_figure_returns_what_its_name_says(study):
    module = figures_of(study)
    tree = {node.name: node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.FunctionDef)}
    public = [name for name in tree if not name.startswith("_")]
    assert public
    for name in public:
        signature = inspect.signature(getattr(module, name))
        first, *_ = signature.parameters.values()
        assert first.annotation == "pd.DataFrame", f"{name} takes a table first"
        body = ast.unparse(tree[name])
        if name.endswith("_panels"):
            assert signature.return_annotation == "Figure", name
            assert "ax" not in signature.parameters, f"{name} makes its own Axes"
        else:
            assert signature.return_annotation == "Axes", f"{name} returns a Figure: end its name in _panels"
            *_, last = signature.parameters.values()
            assert (last.name, last.annotation, last.default) == ("ax", "Axes | None", None), name
            assert "axes_or_new(ax" in body, f"{name} draws into the Axes that it was given"
            assert "plt." not in body, f"{name} makes a figure of its own"
