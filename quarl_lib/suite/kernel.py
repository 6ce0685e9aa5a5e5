"""The kernel of a run's notebook: ipykernel, which ends what it started where all that could end it were killed."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

from quarl_lib.files import RUN_DIR_VARIABLE
from quarl_lib.suite.execution import SCRATCH_PREFIX

LOOK_EVERY_S = 0.2


def _outlive(parent: int) -> None:
    """Wait until the process that executes the notebook is gone, then leave nothing of the run behind."""
    while os.getppid() == parent:
        time.sleep(LOOK_EVERY_S)
    from quarl_lib.suite import processes

    processes.end_all(Path(os.environ[RUN_DIR_VARIABLE]))
    scratch = Path(tempfile.gettempdir())
    if scratch.name.startswith(SCRATCH_PREFIX):  # the runner made it
        shutil.rmtree(scratch, ignore_errors=True)
    os._exit(1)


def main() -> None:
    """Run as `python -m quarl_lib.suite.kernel -f CONNECTION_FILE`."""
    threading.Thread(target=_outlive, args=(os.getppid(),), daemon=True).start()
    os.environ.pop("JPY_PARENT_PID", None)  # by it ipykernel would know too, and leave at once
    if Path(sys.path[0]) == Path.cwd():
        del sys.path[0]  # as its own launcher does: a project's file hides none of the libraries
    from ipykernel import kernelapp

    kernelapp.launch_new_instance()


if __name__ == "__main__":
    main()
