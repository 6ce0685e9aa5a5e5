"""One name, one thing: classes, type aliases and the lists of precisions, read from the source."""

from __future__ import annotations

import ast
from collections import defaultdict

from quarl_lib.inference.layout import BITS, kinds_of
from quarl_lib.inference.spec import PRECISIONS, WEIGHT_BITS
from quarl_lib.quantization.qat import ENGINE_BITS
from quarl_lib.studies.common import theme
from quarl_lib.suite.plan import PACKAGE

EVERYWHERE = {"Config"}  # every study's, and ActorQ's: always named with its module


def test_a_public_class_or_type_alias_has_a_name_of_its_own():
    places = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                names = [node.name]
            elif isinstance(node, ast.Assign) and not isinstance(node.value, ast.Call):  # a type alias, in CamelCase
                targets = [target.id for target in node.targets if isinstance(target, ast.Name)]
                names = [target for target in targets if target[0].isupper() and not target.isupper()]
            else:
                names = []
            for name in names:
                if not name.startswith("_"):
                    places[name].append(str(path.relative_to(PACKAGE)))
    assert {name: found for name, found in places.items() if len(found) > 1 and name not in EVERYWHERE} == {}


def test_one_list_names_the_precisions_of_engines():
    lists = [
        f"{path.relative_to(PACKAGE)}: {target.id}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id == "PRECISIONS"
    ]
    assert lists == ["inference/spec.py: PRECISIONS"]
    assert {precision: BITS[kinds_of([""] * 3, precision)[1]] for precision in PRECISIONS} == WEIGHT_BITS
    assert {precision: WEIGHT_BITS[precision] for precision in ENGINE_BITS} == {
        p: w for p, (w, _) in ENGINE_BITS.items()
    }
    assert set(PRECISIONS) <= set(theme.PRECISION_COLORS) == set(theme.PRECISION_MARKERS)
