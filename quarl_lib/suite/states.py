"""A run's state: `run.json`, who may change it, and what is true of it after a crash."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from quarl_lib.files import read_json, write_json

try:
    import fcntl
except ImportError:  # Windows: folders are not held there, so run one runner at a time
    fcntl = None  # type: ignore[assignment]

STATES = ("ok", "running", "queued", "failed", "timeout", "interrupted")
UNFINISHED = ("queued", "running")


def process_identity() -> dict[str, Any]:
    """Return what tells this process from a later one with the same number."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "pid_started": _started(os.getpid())}


def _started(pid: int) -> float | None:
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return None


def is_alive(identity: dict[str, Any]) -> bool:
    """Say whether the process that wrote an identity still runs; on another host it is taken to."""
    if identity.get("host") != socket.gethostname():
        return True
    started = _started(int(identity.get("pid", -1))) if identity.get("pid", -1) > 0 else None
    return started is not None and abs(started - (identity.get("pid_started") or 0.0)) < 1.0


def read(directory: Path) -> dict[str, Any]:
    """Return a run's record; one left unfinished by a runner that is gone reads as interrupted."""
    record = read_json(directory / "run.json")
    if record.get("state") in UNFINISHED and not is_alive(record.get("runner", {})):
        reason = "the runner ended without a word (killed, or the machine went down)"
        if (previous := previous_of(directory)).exists():
            reason += f"; the result of before lies in {previous.name}, the same `quarl run` puts it back"
        record = {**record, "state": "interrupted", "reason": reason}
    return record


def change(directory: Path, state: str, /, **facts: Any) -> dict[str, Any]:
    """Set a run's state and further facts, keeping what its record holds already."""
    if state not in STATES:
        raise ValueError(f"state={state!r}: one of {', '.join(STATES)}")
    record = {**read_json(directory / "run.json"), "state": state, **facts, "recorded": time.time()}
    write_json(directory / "run.json", record)
    return record


def change_in_place(directory: Path, state: str, reason: str) -> dict[str, Any]:
    """Set a run's state where the disk takes nothing new: within the bytes that its record has already."""
    path = directory / "run.json"
    with path.open("r+b") as file:
        room = len(file.read())
        text = json.dumps({"state": state, "reason": reason}).encode()[:room]
        file.seek(0)
        file.write(text + b" " * (room - len(text)))
    return read_json(path)


def previous_of(directory: Path) -> Path:
    """Return where a finished result lies while a forced run is to replace it."""
    return directory.with_name(f".{directory.name}.previous")


@contextmanager
def claim(directory: Path) -> Iterator[int | None]:
    """Hold a run's folder against other runners; yields the lock's descriptor, or None where another holds it.

    A process that inherits the descriptor keeps the claim until it ends too, so a run whose runner was killed
    stays claimed until its last process is gone.
    """
    path = directory.parent / f".{directory.name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield descriptor
    finally:
        os.close(descriptor)
