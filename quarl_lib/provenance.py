"""Say where numbers come from: commit, versions, machine, CPU features."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path


def _project() -> Path:
    """Return the checkout that this package lies in; from a wheel, the workbook here or above, else this folder."""
    beside, here = Path(__file__).resolve().parents[1], Path.cwd()
    folders = (beside, here, *here.parents)
    return next((one for one in folders if (one / "notebooks").is_dir() and (one / "params").is_dir()), here)


PROJECT = _project()
# Instruction sets that decide which inference kernels run, and how fast.
CPU_FEATURES = ("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "amx_int8", "asimd", "asimddp")
CORES_VARIABLE = "QUARL_CORES"  # a run's share of the cores, where several run at once
PACKAGES = ("torch", "numpy", "stable_baselines3", "gymnasium", "dm-control", "dm-acme", "dm-reverb", "onnxruntime",
            "papermill", "codecarbon")  # fmt: skip


def cpu() -> tuple[str, list[str]]:
    """Return the CPU's name and those of its features that matter to inference."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine(), []
    fields = dict(line.split(":", 1) for line in text.split("\n\n")[0].splitlines() if ":" in line)
    found = {key.strip(): value.strip() for key, value in fields.items()}
    flags = set((found.get("flags") or found.get("Features") or "").split())
    return found.get("model name", platform.machine()), [name for name in CPU_FEATURES if name in flags]


def commit(project: Path = PROJECT) -> str:
    """Return the short commit of `project`, marked where files differ from it, or "unknown"."""

    def git(*words: str) -> str:
        call = ["git", "-C", str(project), *words]
        return subprocess.run(call, capture_output=True, text=True, timeout=20, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "--short=10", "HEAD") + (" with uncommitted changes" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that decide a result."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def allowed_cores() -> int:
    """Return how many cores the system lets this process run on; where it does not say (macOS, Windows), all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usable_cores() -> int:
    """Return how many cores this process may use: a container, or runs side by side, leave it fewer than there are."""
    found = allowed_cores()
    share = os.environ.get(CORES_VARIABLE, "")
    return min(found, int(share)) if share.isdigit() and int(share) > 0 else found


def gather() -> dict[str, object]:
    """Return everything about this machine and this code that a reader needs to judge a number."""
    name, features = cpu()
    return {
        "commit": commit(),
        "versions": versions(),
        "cpu": name,
        "cpu_features": features,
        "cores": usable_cores(),
        "system": platform.platform(),
        "interpreter": sys.executable,
    }
