"""The compiled kernels, or the reason why there are none."""

from __future__ import annotations

import os
from types import ModuleType

_native: ModuleType | None = None
missing: str = ""

if os.environ.get("QUARL_NATIVE", "1") == "0":
    missing = "turned off by QUARL_NATIVE=0"
else:
    try:
        from quarl_lib.inference import _native  # type: ignore[no-redef]
    except ImportError as error:
        missing = f"the C extension was not built ({error}): install a C compiler and reinstall"


def native() -> ModuleType | None:
    """Return the C extension, None if it was not built or is turned off."""
    return _native
