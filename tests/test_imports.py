"""Who may know whom: the layers, read from the source, imports inside functions included."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from quarl_lib import plan

PACKAGE = plan.PACKAGE
# A layer may import itself, what stands here, and the leaves below; files and provenance know nobody.
LEAVES = {"files", "provenance"}
ALLOWED: dict[str, set[str]] = {
    "files": set(),
    "provenance": set(),
    "metrics": set(),
    "timing": set(),
    "carbon": set(),
    "envs": set(),
    "results": LEAVES,
    "quantization": set(),
    "networks": set(),
    "inference": {"quantization", "provenance"},
    "sb3": {"quantization", "inference", "envs"},
    "actorq": {"inference", "networks", "envs", "timing", "carbon", "results"},
    "plots": {"results", "metrics"},
    "studies": {"results", "metrics", "timing", "carbon", "envs", "quantization", "networks", "inference", "sb3",
                "actorq", "provenance"},
    "parameters": set(),
    "catalog": {"parameters", *LEAVES},
    "plan": {"parameters", "catalog"},
    "states": LEAVES,
    "processes": LEAVES,
    "execution": {"processes", *LEAVES},
    "outcome": {"states", "plan", "execution", *LEAVES},
    "runner": {"plan", "states", "processes", "outcome", "execution", "report", "index", *LEAVES},
    "display": {"plan"},
    "markup": set(),
    "report": {"markup", "states", "display", *LEAVES},
    "index": {"report", "states", "display", "paper", *LEAVES},
    "comparison": {"report", "states", "index", "markup", "display", *LEAVES},
    "paper": {"report", "markup", *LEAVES},
    "doctor": {"inference", "carbon", "provenance", "catalog", "files"},
    "cli": {"catalog", "plan", "runner", "display", "report", "index", "comparison", "doctor"},
}  # fmt: skip
HEAVY = {"torch", "tensorflow", "reverb", "stable_baselines3", "gymnasium", "acme", "jax"}
# Importing these must not bring torch or TensorFlow along, or `quarl list` would wait for it.
LIGHT = ("files", "provenance", "parameters", "catalog", "plan", "states", "processes", "execution", "outcome",
         "runner", "display", "markup", "report", "index", "comparison", "paper", "doctor", "cli")  # fmt: skip
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def layer(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> list[tuple[str, bool]]:
    """Return every module that a file imports, and whether at the top level."""
    tree = ast.parse(path.read_text())
    inside = {id(node) for top in ast.walk(tree) if isinstance(top, ast.FunctionDef | ast.AsyncFunctionDef)
              for node in ast.walk(top)}  # fmt: skip
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) not in inside) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = (
                [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "quarl_lib" else [node.module]
            )
            found += [(str(name), id(node) not in inside) for name in names]
        elif isinstance(node, ast.ImportFrom):
            found.append(("relative import: write it out", True))
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_file_imports_only_what_its_layer_may(path):
    own = layer(path)
    assert own in ALLOWED, f"{own} has no place among the layers: give it one here and say why"
    for name, at_top in imports(path):
        assert not name.startswith("relative"), name
        if name.startswith("quarl_lib."):
            other = name.split(".")[1]
            if (PACKAGE / f"{other}.py").exists() or (PACKAGE / other).is_dir():
                assert other == own or other in ALLOWED[own], f"{own} must not know {other}"
        root = name.split(".")[0]
        if root in ("tensorflow", "reverb"):
            assert path == PACKAGE / "actorq" / "replay.py" or own == "doctor", f"only actorq.replay imports {root}"
        if own in LIGHT:
            assert not (at_top and root in HEAVY), f"{root} only inside functions here"
        if own == "plots":
            assert root not in ("torch", "tensorflow"), "plots take tables"
        if own in ("results", "metrics", "timing", "carbon"):
            assert root != "torch", f"{own} does without torch"


def test_files_stay_small():
    long = {str(path.relative_to(PACKAGE)): lines for path in FILES if (lines := path.read_text().count("\n")) > 300}
    assert long == {}
