"""The compiled kernels, or the reason why there are none."""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType

loaded: ModuleType | None = None
missing: str = ""

if os.environ.get("QUARL_NATIVE", "1") == "0":
    missing = "turned off by QUARL_NATIVE=0"
else:
    try:
        loaded = import_module("quarl_lib.inference._native")
    except ImportError as error:
        missing = f"the C extension was not built ({error}): install a C compiler and reinstall"


def native() -> ModuleType | None:
    """Return the C extension, None if it was not built or is turned off."""
    return loaded
