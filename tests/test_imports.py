"""Who may know whom: the rooms, read from the source, imports inside functions included."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from quarl_lib.suite import plan

PACKAGE = plan.PACKAGE
# A room may import itself and what stands here; a name with a dot is one part of a room. Arrows point down only.
LIBRARY = {"extras", "results", "metrics", "files", "provenance", "envs", "quantization", "inference", "sb3", "actorq"}
ALLOWED: dict[str, set[str]] = {
    "extras": set(),
    "files": set(),
    "provenance": set(),
    "metrics": set(),
    "text_table": set(),  # what two commands print; rooms hand rows to it through the cli
    "live": set(),
    "results": {"files", "live", "provenance"},
    "quantization": set(),
    "envs": set(),
    "inference": {"quantization", "provenance", "files"},
    "sb3": {"quantization", "inference", "envs"},
    # It leaves the house with what it plays (sb3) and runs (inference), and a card: parity is measured (metrics).
    "deploy": {"sb3", "inference", "quantization", "metrics", "files"},
    "actorq": {"inference", "envs", "quantization", "results", "extras"},
    "studies": LIBRARY,
    "suite": {"extras", "files", "provenance"},
    "reports": {"suite", "files", "provenance"},
    "doctor": {"suite", "inference", "actorq.carbon", "extras", "files", "provenance"},
    # sb3, studies, actorq: `agents`, `recommend`, `profile` have their logic there, imported inside functions only.
    "commands": {"text_table", "suite", "reports", "doctor", "deploy", "sb3", "studies", "actorq", "files"},
    "cli": {"commands", "suite"},
}
# Inside ActorQ: each of these knows those before it, and what stands beside it.
ACTORQ: dict[str, set[str]] = {
    "config": set(),
    "timing": set(),
    "carbon": set(),
    "memory": set(),
    "link": {"memory", "timing"},
    "weights": {"config", "link", "memory", "replay"},
    "replay": {"config", "link", "memory"},
    "actor": {"config", "link", "timing", "weights", "replay"},
    "learner": {"config", "link", "timing", "weights", "replay", "actor"},
    "launch": {"config", "link", "timing", "carbon", "weights", "replay", "actor", "learner"},
    "bench": {"config", "link", "timing", "weights", "replay", "actor", "learner", "launch"},
}
BACKENDS_MAY = {"spec", "pack", "arithmetic", "layout", "tiles", "heads", "observations", "interface", "extension"}
HEAVY = {"torch", "tensorflow", "reverb", "stable_baselines3", "gymnasium", "acme", "jax"}
# Importing these must not bring torch or TensorFlow along, or `quarl list` would wait for it.
LIGHT = {"extras", "files", "provenance", "suite", "reports", "doctor", "cli", "commands", "text_table"}
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def parts_of(path: Path) -> tuple[str, ...]:
    return tuple(part.removesuffix(".py") for part in path.relative_to(PACKAGE).parts)


def imports(path: Path) -> list[tuple[str, bool]]:
    """Return every module or name that a file imports, and whether at the top level."""
    tree = ast.parse(path.read_text())
    inside = {id(node) for top in ast.walk(tree) if isinstance(top, ast.FunctionDef | ast.AsyncFunctionDef)
              for node in ast.walk(top)}  # fmt: skip
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) not in inside) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found += [(f"{node.module}.{alias.name}", id(node) not in inside) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append(("relative import: write it out", True))
    return found


def why_not(own: tuple[str, ...], other: tuple[str, ...]) -> str | None:
    """Return what forbids a file in `own` to import `other`, None if nothing does."""
    room, theirs = own[0], other[0]
    if room == theirs == "actorq":
        one, two = own[1], other[1]
        return None if one == two or two in ACTORQ[one] else f"actorq.{one} must not know actorq.{two}"
    if room == theirs == "studies":
        if own[1] == "common" and other[1] != "common":
            return "studies.common must not know a study"
        return None if other[1] in (own[1], "common") else f"the study {own[1]} must not know the study {other[1]}"
    if room == theirs == "inference":
        if own[1] == "backends" and other[1] not in {"backends", *BACKENDS_MAY}:
            return f"a backend must not know inference.{other[1]}"
        return None
    if room != theirs and theirs not in ALLOWED[room] and ".".join(other[:2]) not in ALLOWED[room]:
        return f"{room} must not know {theirs}"
    if own[-1] == "figures" and theirs not in ("results", "metrics"):
        return "figures take tables: studies.common, results and metrics are all that they know"
    return None


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_file_imports_only_what_its_room_may(path):
    own = parts_of(path)
    assert own[0] in ALLOWED, f"{own[0]} has no place among the rooms: give it one here and say why"
    for name, at_top in imports(path):
        assert not name.startswith("relative"), name
        root, *other = name.split(".")
        if root == "quarl_lib" and ((PACKAGE / f"{other[0]}.py").exists() or (PACKAGE / other[0]).is_dir()):
            assert (why := why_not(own, tuple(other))) is None, f"{why} ({name})"
        if root in ("tensorflow", "reverb", "acme", "jax"):
            known = ("reverb", "limiter", "acme_adder")
            assert own in {("actorq", "replay", name) for name in known}, f"a light install has no {root}"
            assert root != "acme" or own[-1] == "acme_adder", "Acme's adder is all that is taken from it"
        if own[0] in LIGHT:
            assert not (at_top and root in HEAVY), f"{root} only inside functions here"
        if own[-1] == "figures" or own[0] in ("results", "metrics", "suite", "reports"):
            assert root not in ("torch", "tensorflow"), f"{'/'.join(own)} does without {root}"


@pytest.mark.parametrize(
    ("own", "other"),
    [
        ("suite/runner", "reports/report"),
        ("studies/ptq_study/study", "studies/qat_bit_sweep/cells"),
        ("studies/common/pool", "studies/ptq_study/study"),
        ("studies/ptq_study/figures", "sb3/agents"),
        ("inference/backends/native", "inference/choice"),
        ("actorq/weights/broadcast", "actorq/actor/policy"),
        ("actorq/actor/loop", "actorq/learner/loop"),
        ("actorq/launch/local", "sb3/agents"),
        ("doctor", "actorq/launch/local"),
        ("metrics", "results"),
    ],
)
def test_an_arrow_against_the_table_is_found(own, other):
    assert why_not(tuple(own.split("/")), tuple(other.split("/"))) is not None


def test_files_stay_small():
    sources = [*FILES, *PACKAGE.rglob("*.c"), *PACKAGE.rglob("*.h")]
    long = {str(path.relative_to(PACKAGE)): lines for path in sources if (lines := path.read_text().count("\n")) > 300}
    assert long == {}
