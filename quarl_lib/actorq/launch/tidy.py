"""Imported first by the fork server, which outlives caller and parts: it removes what a caller that was killed left."""

from __future__ import annotations

import atexit
import os
import shutil


def _remove_after(caller: int) -> None:
    if os.getppid() != caller:
        shutil.rmtree(os.environ["QUARL_SCRATCH"], ignore_errors=True)  # set by children.warm_up


atexit.register(_remove_after, os.getppid())
