"""Names that a package imports at their first use: a study's figures need no torch, its `run` does."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any


def at_first_use(package: str, **modules: str) -> Callable[[str], Any]:
    """Return a package's `__getattr__`: `study="Config run"` takes both from its module `study`, all at once."""

    def first_use(name: str) -> Any:
        if name not in " ".join(modules.values()).split():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        for module, names in modules.items():
            found = vars(importlib.import_module(f"{package}.{module}"))
            # Bound here they also hide a module of the same name, such as `aggregate`.
            vars(sys.modules[package]).update({one: found[one] for one in names.split()})
        return vars(sys.modules[package])[name]

    return first_use
