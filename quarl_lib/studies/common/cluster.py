"""Independent cells on the machines of a Ray cluster, which share no file system with this one."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from quarl_lib.actorq.launch import cluster, node
from quarl_lib.provenance import CORES_VARIABLE

TaskT = TypeVar("TaskT")
Answer = TypeVar("Answer")

ATTEMPTS = 3  # of a cell whose machine or process dies


def map_on_nodes(
    function: Callable[[TaskT], Answer],
    tasks: Mapping[int, TaskT],
    address: str,
    report: Callable[[int, Answer], None],
    lost: Callable[[TaskT], Answer] | None,
) -> None:
    """Compute `function(task)` for every task, a core of the cluster each, and report each answer as it comes.

    What a task reads is copied to where it runs, what it writes comes back: its attributes `reads` and `writes`, if
    it has them, name files and folders, and every `Path` in the task is changed to where the copy lies. A cell whose
    machine dies is done again elsewhere; `lost` answers for it after the third time.

    Raises:
        ray.exceptions.WorkerCrashedError: it was lost three times, and there is no `lost`.
    """
    with cluster.joined(address, num_cpus=1) as ray:
        cluster.check_alike(ray, node.versions())
        remote = ray.remote(_compute).options(num_cpus=1, max_retries=ATTEMPTS - 1)
        running = {}
        for index, task in tasks.items():
            running[remote.remote(function, _frozen(task), _packed(getattr(task, "reads", ())))] = index
        try:
            while running:
                (done,), _ = ray.wait(list(running), num_returns=1)
                index = running.pop(done)
                try:
                    answer, written = ray.get(done)
                except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError):
                    if lost is None:
                        raise
                    answer = lost(tasks[index])
                else:
                    _bring(written, getattr(tasks[index], "writes", ()))
                report(index, answer)
        except BaseException:
            for left in running:
                ray.cancel(left, force=True)
            raise


def _compute(function: Callable[[Any], Answer], frozen: bytes, read: bytes) -> tuple[Answer, bytes]:
    """Run a task where this is called, in a folder of its own; return its answer and what it wrote."""
    import torch

    torch.set_num_threads(1)
    os.environ[CORES_VARIABLE] = "1"
    root = Path(tempfile.mkdtemp(prefix="quarl-"))
    try:
        _unpack(read, root)
        task = _Thawing(io.BytesIO(frozen), root).load()
        answer = function(task)
        return answer, _packed(getattr(task, "writes", ()), root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


class _Freezing(pickle.Pickler):
    """Pickles absolute paths as what they are below the root."""

    def persistent_id(self, thing: Any) -> str | None:
        return str(thing) if isinstance(thing, Path) and thing.is_absolute() else None


class _Thawing(pickle.Unpickler):
    """Puts them below another root."""

    def __init__(self, file: io.BytesIO, root: Path) -> None:
        super().__init__(file)
        self._root = root

    def persistent_load(self, path: str) -> Path:
        return self._root / path.lstrip("/")


def _frozen(task: Any) -> bytes:
    file = io.BytesIO()
    _Freezing(file).dump(task)
    return file.getvalue()


def _packed(paths: Iterable[Path], root: Path = Path("/")) -> bytes:
    """Return files and folders as a tar archive, by their names below the root."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for path in paths:
            if path.exists():
                archive.add(path, str(path.absolute().relative_to(root)))
    return file.getvalue()


def _bring(packed: bytes, paths: Iterable[Path]) -> None:
    """Lay what was written elsewhere where the task says, each path whole or not at all."""
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(dir=path.parent, prefix=".arriving-"))
        try:
            _unpack(packed, aside)
            if (came := aside / str(path.absolute()).lstrip("/")).exists():
                shutil.rmtree(path, ignore_errors=True)
                came.replace(path)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _unpack(packed: bytes, root: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(root, filter="tar")
