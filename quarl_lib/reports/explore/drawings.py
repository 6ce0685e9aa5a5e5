"""A run's figures, drawn again from some of its rows: what its notebook draws, read as data and never executed.

From the notebook's code come the figures' names, the function that draws each, and from which saved table. Such a call
is evaluated piece by piece, and only what is understood: names, constants, columns, and functions of the study itself.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType, SimpleNamespace
from typing import Any

import pandas as pd

from quarl_lib.files import read_json
from quarl_lib.reports.explore import rows
from quarl_lib.reports.explore.finished import FinishedRun

STUDIES = "quarl_lib.studies"
BUILT_IN: dict[str, Callable[..., Any]] = {"dict": dict, "zip": zip, "list": list}


class NotUnderstood(ValueError):
    """An expression of a notebook that is more than a function of the study over saved tables."""


@dataclass
class NotebookSource:
    """What a notebook's code says about its figures."""

    modules: dict[str, str] = field(default_factory=dict)  # name in the notebook -> module of the study
    assigned: dict[str, ast.expr] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # name of a table -> file it was saved as, without ending
    calls: dict[str, ast.expr] = field(default_factory=dict)  # figure -> the call that draws it
    alts: dict[str, str] = field(default_factory=dict)

    def comes_from(self, name: str, origin: str) -> bool:
        """Say whether the expression that a name was assigned mentions another one, directly or through others."""
        used = {one.id for one in ast.walk(self.assigned.get(name, ast.Constant(0))) if isinstance(one, ast.Name)}
        return origin in used or any(self.comes_from(one, origin) for one in used - {name})


def read(run: FinishedRun) -> NotebookSource:
    """Read the figures out of a run's notebook."""
    source = NotebookSource()
    for cell in read_json(run.directory / "notebook.ipynb").get("cells", []):
        if cell.get("cell_type") == "code":
            try:
                tree = ast.parse("".join(cell["source"]))
            except SyntaxError:  # a cell magic: nothing that draws
                continue
            for node in ast.walk(tree):
                _note(source, node, run.study)
    return source


def _note(source: NotebookSource, node: ast.AST, study: str) -> None:
    if isinstance(node, ast.ImportFrom | ast.Import):
        prefix = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            module = prefix + alias.name
            if module.startswith(f"{STUDIES}.{study}") or module.split(".")[0] == study:
                source.modules[alias.asname or alias.name] = module
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        source.assigned[node.targets[0].id] = node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        names = [one.id if isinstance(one, ast.Name) else "" for one in node.args]
        texts = [str(one.value) if isinstance(one, ast.Constant) else "" for one in node.args]
        called = f"{ast.unparse(node.func.value)}.{node.func.attr}"
        if called == "run.save" and len(names) == 2:
            source.files |= {names[0]: "results", names[1]: "summary"}
        elif called in ("run.save_table", "run.table") and len(names) > 1 and names[0] and texts[1]:
            source.files[names[0]] = texts[1]
        elif called == "run.figure" and len(node.args) > 1 and texts[1]:
            source.calls[texts[1]] = node.args[0]
            alts = [one.value for one in node.keywords if one.arg == "alt"]
            source.alts[texts[1]] = str(getattr(alts[0], "value", "")) if alts else ""


@dataclass
class Evaluation:
    """Evaluate a notebook's expressions over the rows that were chosen; `notes` says what a filter could not reach."""

    run: FinishedRun
    source: NotebookSource
    choice: rows.Choice
    notes: list[str] = field(default_factory=list)

    def draw(self, figure: str) -> Any:
        """Return the figure, drawn by the study's own function.

        Raises:
            NotUnderstood: its call is no function of the study over saved tables.
        """
        return self._value(self.source.calls[figure], self.table)

    def table(self, name: str) -> Any:
        """Return what a name of the notebook holds for the chosen rows."""
        if self.source.files.get(name) == "results":
            return rows.keep(self.run.table, self.choice)
        if name not in self.source.files:
            return self._assigned(name, self.table)
        saved = self.run.saved(self.source.files[name])
        unreached = {
            one: kept for one, kept in self.choice.items()
            if rows.labels(saved, one) is None and rows.labels(self.run.table, one) is not None
        }  # fmt: skip
        if unreached:
            saved = self._made_anew(name, saved, unreached)
        return rows.keep(saved, self.choice)

    def _made_anew(self, name: str, saved: pd.DataFrame, unreached: rows.Choice) -> pd.DataFrame:
        """Return a table that is a sum over what is filtered, computed again from the rows that are left."""
        said = f"{self.source.files[name]}.csv has no column of {' and '.join(unreached)}"
        (origin,) = [one for one, file in self.source.files.items() if file == "results"] or [""]
        if not self.source.comes_from(name, origin):
            self.notes.append(f"{said}: shown whole.")
            return saved
        part = Evaluation(self.run, self.source, unreached, self.notes)

        def lookup(one: str) -> Any:
            return part.table(one) if one == origin else part._assigned(one, lookup)

        try:
            return lookup(name)
        except ModuleNotFoundError as error:
            self.notes.append(f"{said}, and computing it anew needs the package {error.name}: shown whole.")
        except Exception as error:  # whatever a study makes of rows that it never saw alone
            self.notes.append(f"{said}, and cannot be computed from these rows ({_line(error)}): shown whole.")
        return saved

    def _assigned(self, name: str, lookup: Callable[[str], Any]) -> Any:
        if name == "config":
            return SimpleNamespace(**self.run.record.get("parameters", {}))
        if name not in self.source.assigned:
            raise NotUnderstood(f"{name}: not saved, and not assigned in the notebook")
        return self._value(self.source.assigned[name], lookup)

    def _value(self, node: ast.expr, lookup: Callable[[str], Any]) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return lookup(node.id)
            case ast.Attribute(value=ast.Name(id=owner), attr=attribute):
                found = lookup(owner)
                if isinstance(found, pd.DataFrame):
                    return found[attribute]
                if isinstance(found, SimpleNamespace):
                    return vars(found)[attribute]
            case ast.Subscript():
                return self._value(node.value, lookup)[self._value(node.slice, lookup)]
            case ast.Call():
                function = self._function(node.func)
                named = {str(one.arg): self._value(one.value, lookup) for one in node.keywords}
                return function(*(self._value(one, lookup) for one in node.args), **named)
        raise NotUnderstood(f"{ast.unparse(node)}: more than a function of the study over saved tables")

    def _function(self, node: ast.expr) -> Callable[..., Any]:
        """Return a function of the study, though never the one that measures."""
        if isinstance(node, ast.Name) and node.id in BUILT_IN:
            return BUILT_IN[node.id]
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr != "run":
            module = self.source.modules.get(node.value.id, "")
            found = getattr(importlib.import_module(module), node.attr, None) if module else None
            if isinstance(found, FunctionType) and found.__module__.startswith(module.removesuffix(".figures")):
                return found
        raise NotUnderstood(f"{ast.unparse(node)}: no function of the study {self.run.study}")


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:160]


def drawn(run: FinishedRun, source: NotebookSource, figure: str, choice: rows.Choice) -> tuple[Any, list[str]]:
    """Return a figure of the chosen rows and what there is to say of it; None where these rows have no figure."""
    evaluation = Evaluation(run, source, choice)
    if not len(rows.keep(run.table, choice)):
        return None, ["No row is left: choose more agents, precisions or seeds."]
    try:
        return evaluation.draw(figure), list(dict.fromkeys(evaluation.notes))
    except Exception as error:  # a figure of every row may have no meaning for a few
        return None, [*dict.fromkeys(evaluation.notes), f"Not to be drawn from these rows ({_line(error)})."]
