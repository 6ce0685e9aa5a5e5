"""Nothing that Linux alone has is needed to start: modules import and say a clear word without it."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = """
import multiprocessing, os, sys
for name in ("sched_getaffinity", "sched_setaffinity", "memfd_create", "nice", "SCHED_BATCH"):
    if hasattr(os, name):
        delattr(os, name)
for name in {blocked!r}:
    sys.modules[name] = None
multiprocessing.get_all_start_methods = lambda: {methods!r}
"""
WINDOWS = WITHOUT.format(blocked=("fcntl", "multiprocessing.forkserver"), methods=["spawn"])
MACOS = WITHOUT.format(blocked=(), methods=["spawn", "fork", "forkserver"])


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_the_command_line_starts_without_what_windows_lacks():
    done = python(
        WINDOWS + "from quarl_lib import cli, provenance\nfrom quarl_lib.suite import runner, states\n"
        "assert provenance.allowed_cores() == os.cpu_count()\nimport tempfile, pathlib\n"
        "with states.claim(pathlib.Path(tempfile.mkdtemp()) / 'run') as held: assert held is not None\n"
        "sys.exit(cli.main(['list']))"
    )
    assert done.returncode == 0, done.stderr
    assert "ptq_study" in done.stdout


@pytest.mark.slow
def test_actorq_imports_without_a_fork_server_and_says_what_is_missing():
    done = python(
        WINDOWS + "from quarl_lib.actorq.launch import children, local, virtual\n"
        "from quarl_lib.studies import actorq_training, ptq_study, quantized_rollouts\nchildren.warm_up()"
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("RuntimeError: ActorQ's processes are forked from a server")


@pytest.mark.slow
def test_shared_memory_and_cores_have_their_other_way_on_macos():
    done = python(
        MACOS + "from quarl_lib.actorq.memory import SharedBlock\nblock = SharedBlock(64)\nblock.view[:2] = b'ab'\n"
        "assert bytes(SharedBlock(64, os.dup(block.fd)).view[:2]) == b'ab'\n"
        "from quarl_lib.studies.common import pool\nfrom quarl_lib.provenance import usable_cores\nusable_cores()"
    )
    assert done.returncode == 0, done.stderr
