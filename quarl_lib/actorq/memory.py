"""Memory that several processes share and that leaves no trace."""

from __future__ import annotations

import mmap
import os
import tempfile
from multiprocessing import reduction
from typing import Any


class SharedBlock:
    """Anonymous shared memory: it has no name, so nothing is left behind however its processes end.

    It travels to a child as an argument of `multiprocessing.Process`, for as long as one process holds it.
    """

    def __init__(self, num_bytes: int, fd: int | None = None) -> None:
        self.num_bytes, self.fd = num_bytes, _anonymous_file(num_bytes) if fd is None else fd
        self.view = memoryview(mmap.mmap(self.fd, num_bytes))

    def __reduce__(self) -> tuple[Any, ...]:
        return _attach, (reduction.DupFd(self.fd), self.num_bytes)

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)  # the mapping stays until the last view of it is gone


def _attach(handle: Any, num_bytes: int) -> SharedBlock:
    return SharedBlock(num_bytes, fd=handle.detach())


def _anonymous_file(num_bytes: int) -> int:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("quarl")
    else:  # macOS: a file without a name is the nearest thing
        fd, name = tempfile.mkstemp()
        os.unlink(name)
    os.truncate(fd, num_bytes)
    return fd
