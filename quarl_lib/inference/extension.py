"""The compiled kernels, or the reason why there are none."""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType

from quarl_lib.inference.layout import LAYOUT_VERSION

loaded: ModuleType | None = None
missing: str = ""

if os.environ.get("QUARL_NATIVE", "1") == "0":
    missing = "turned off by QUARL_NATIVE=0"
else:
    try:
        loaded = import_module("quarl_lib.inference._native")
    except ImportError as error:
        missing = f"the C extension was not built ({error}): install a C compiler and reinstall"
    if loaded is not None and getattr(loaded, "LAYOUT_VERSION", 1) != LAYOUT_VERSION:  # it would misread in silence
        loaded, missing = None, "the C extension is of another version than the rest: build it anew, pip install -e ."


def native() -> ModuleType | None:
    """Return the C extension, None if it was not built or is turned off."""
    return loaded
