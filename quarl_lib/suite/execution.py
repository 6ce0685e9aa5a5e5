"""The process of one run: let papermill execute the notebook in this interpreter, and leave word of how it ended.

Started by the runner as `python -m quarl_lib.suite.execution DIR`. Its standard input is a pipe from the runner: when
that closes, the runner is gone and the run ends itself. SIGINT is handed on to the kernel.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from quarl_lib.extras import with_remedy
from quarl_lib.files import read_json, write_json

GRACE_S = 10.0
SCRATCH_PREFIX = "quarl-"
PARTIAL_NOTEBOOK = ".notebook.running.ipynb"


def execute(directory: Path) -> dict[str, Any]:
    """Execute the notebook of the run in `directory`; return how it ended: kind, reason, cell."""
    import papermill
    from jupyter_client import AsyncKernelManager
    from jupyter_client.kernelspec import KernelSpec
    from papermill.exceptions import PapermillExecutionError

    from quarl_lib.suite import engine

    record = read_json(directory / "run.json")
    sockets = tempfile.mkdtemp(prefix=SCRATCH_PREFIX)
    stopping = _Stopper()

    class OwnKernel(AsyncKernelManager):
        """This interpreter, whatever the notebook's metadata say, on sockets in a folder: no ports to collide on."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**{**options, "transport": "ipc", "connection_file": f"{sockets}/kernel.json"})
            argv = [sys.executable, "-m", "quarl_lib.suite.kernel", "-f", "{connection_file}"]
            self._kernel_spec = KernelSpec(argv=argv, display_name="Python 3", language="python")

        async def start_kernel(self, **options: Any) -> None:  # type: ignore[override]
            await super().start_kernel(**options)
            stopping.kernel = getattr(self.provisioner, "pid", None)

    def note_cell(cell: Any, cell_index: int) -> None:
        first = cell.source.strip().splitlines()[:1]
        write_json(
            directory / ".cell.json",
            {"index": cell_index, "source": first, "time": time.time(), "monotonic": time.monotonic()},
        )

    try:
        papermill.execute_notebook(
            record["notebook"],
            directory / PARTIAL_NOTEBOOK,
            parameters=record["parameters"],
            kernel_name="python3",
            language="python",
            cwd=record["project"],
            progress_bar=False,
            engine_name=engine.NAME,
            kernel_manager_class=OwnKernel,
            extra_arguments=["--HistoryManager.enabled=False"],
            on_cell_start=note_cell,
        )
    except PapermillExecutionError as error:
        kind = "interrupted" if stopping.asked else "failed"
        said = with_remedy(f"{error.ename}: {error.evalue}".strip(": "))
        return {"kind": kind, "reason": said.splitlines()[0][:500], "cell": _own_index(directory, error.cell_index)}
    except KeyboardInterrupt:
        return {"kind": "interrupted", "reason": "interrupted before the notebook began"}
    except Exception as error:
        cell = read_json(directory / ".cell.json").get("index")
        kind = "interrupted" if stopping.asked else "startup" if cell is None else "failed"
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:500]
        if type(error).__name__ == "DeadKernelError" and cell is not None:
            reason = "the kernel died: killed (out of memory?), or a cell called os._exit"
        return {"kind": kind, "reason": reason, "cell": cell}
    finally:
        shutil.rmtree(sockets, ignore_errors=True)
    return {"kind": "done"}


def _own_index(directory: Path, fallback: int) -> int:
    """Papermill counts a cell that it inserted; the last one that began is the one that failed."""
    return read_json(directory / ".cell.json").get("index", fallback)


class _Stopper:
    """Hand SIGINT on to the kernel, so that the cell under way ends as it does in JupyterLab."""

    def __init__(self) -> None:
        self.kernel: int | None = None
        self.asked = False
        signal.signal(signal.SIGINT, self.stop)
        threading.Thread(target=self._watch_runner, daemon=True).start()

    def stop(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        if self.kernel is None:
            raise KeyboardInterrupt
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.kernel, signal.SIGINT)

    def _watch_runner(self) -> None:
        """Wait for the runner's end of the pipe to close, then end this run: gently, then firmly."""
        os.read(0, 1)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(GRACE_S)
        from quarl_lib.suite import processes

        processes.end_all(Path(os.environ["QUARL_RUN_DIR"]))
        scratch = Path(tempfile.gettempdir())
        if scratch.name.startswith(SCRATCH_PREFIX):  # the runner made it and can remove it no more
            shutil.rmtree(scratch, ignore_errors=True)
        os._exit(1)


def check(wanted: list[dict[str, Any]]) -> None:
    """Build the Config of every study that has its module in `quarl_lib.studies`, so that it may refuse a value."""
    for one in wanted:
        name = f"quarl_lib.studies.{one['study']}"
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                sys.exit(f"{one['study']}: {with_remedy(str(error))}")
            continue
        fields = {field.name for field in dataclasses.fields(module.Config)}
        for unread in one["parameters"].keys() - fields:
            sys.exit(
                f"{one['study']}: parameter {unread}: the study's Config does not read it; take it out of the cell"
            )
        try:
            module.Config(**one["parameters"])
        except ValueError as error:
            sys.exit(f"{one['study']}: {error}")


def main(arguments: list[str]) -> None:
    """Run as a process: `--check` reads tasks from standard input, otherwise the argument is a run's folder."""
    if arguments == ["--check"]:
        check(json.load(sys.stdin))
        return
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
    # Papermill's own reading of the parameters cell misses lines whose help holds "="; ours has checked them all.
    papermill_log = logging.getLogger("papermill")
    papermill_log.addFilter(lambda record: not record.getMessage().startswith(("Unable to parse", "Passed unknown")))
    directory = Path(arguments[0])
    outcome = execute(directory)
    write_json(directory / ".outcome.json", outcome)


if __name__ == "__main__":
    main(sys.argv[1:])
