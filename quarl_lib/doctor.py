"""Say what this machine can do, and what to do where it cannot."""

from __future__ import annotations

import ctypes.util
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from quarl_lib import provenance
from quarl_lib.extras import EXTRAS, install_line
from quarl_lib.suite import catalog

GL_LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa", "glfw": "glfw"}
GL_TIMEOUT_S = 30.0
RAPL = Path("/sys/class/powercap")
LEAST_MEMORY_GIB, LEAST_DISK_GIB = 4.0, 1.0


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's: level is "ok", "note" (something cannot be had) or "bad" (studies cannot run)."""

    topic: str
    level: str
    found: str
    remedy: str = ""


def examine() -> list[Finding]:
    """Return every finding about this machine and this installation."""
    project = catalog.find_project()
    findings = [*_python(project), *_extras(), *_machine(project), *_display(), *_energy(), _kernel(), *_engines()]
    return findings


def show(as_json: bool = False) -> int:
    """Print the findings; return 0 if the studies can run, 1 if something is bad."""
    findings = examine()
    if as_json:
        sys.stdout.write(json.dumps([asdict(finding) for finding in findings], indent=1) + "\n")
    else:
        width = max(len(finding.topic) for finding in findings)
        for finding in findings:
            mark = {"ok": "✓", "note": "–", "bad": "✗"}[finding.level]
            sys.stdout.write(f"{mark} {finding.topic:<{width}}  {finding.found}\n")
            if finding.remedy:
                sys.stdout.write(f"  {'':<{width}}  → {finding.remedy}\n")
    return int(any(finding.level == "bad" for finding in findings))


def _python(project: Path) -> Iterator[Finding]:
    version = sys.version.split()[0]
    fits = sys.version_info >= (3, 11)
    remedy = "" if fits else "use Python 3.11 or later"
    yield Finding("Python", "ok" if fits else "bad", f"{version}, {sys.executable}", remedy)
    missing = [name for name in _required() if not _version(name)]
    install = install_line("all")
    if missing:
        yield Finding("packages", "bad", f"missing: {', '.join(missing)}", install)
    differs = [
        f"{name} {_version(name)} (tested: {pin})" for name, pin in _pins(project) if _version(name) not in (pin, "")
    ]
    if not (project / "constraints.txt").exists():
        remedy = "a checkout has them, and `quarl init DIR` lays them out: pip install -c constraints.txt ..."
        yield Finding("tested versions", "note", f"not known: no constraints.txt at {project}", remedy)
    elif differs:
        yield Finding("tested versions", "note", f"{len(differs)} differ: {', '.join(differs[:6])}", install)
    else:
        yield Finding("tested versions", "ok", "as in constraints.txt")


def _required() -> list[str]:
    try:
        wanted = metadata.requires("quarl-lib") or []
    except metadata.PackageNotFoundError:
        return ["quarl-lib"]
    return [re.split(r"[\[<>=!~; ]", text, maxsplit=1)[0] for text in wanted if "extra ==" not in text]


def _version(name: str) -> str:
    try:
        return metadata.version(name).partition("+")[0]
    except metadata.PackageNotFoundError:
        return ""


def _pins(project: Path) -> Iterator[tuple[str, str]]:
    path = project / "constraints.txt"
    for line in path.read_text().splitlines() if path.exists() else ():
        name, equals, pin = line.partition("==")
        if equals:
            yield name, pin.partition("+")[0]


def _extras() -> Iterator[Finding]:
    for extra, modules in EXTRAS.items():
        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        if missing and extra == "reverb" and not _reverb_builds():
            remedy = "nothing is to be done: ActorQ uses its local replay, and the authors' recipe is left out"
            yield Finding(f"extra {extra}", "note", "has builds for Linux on x86-64 with Python 3.11 alone", remedy)
        elif missing:
            yield Finding(f"extra {extra}", "note", f"missing: {', '.join(missing)}", install_line(extra))
        else:
            yield Finding(f"extra {extra}", "ok", ", ".join(modules))


def _reverb_builds() -> bool:
    return (sys.platform, platform.machine()) == ("linux", "x86_64") and sys.version_info[:2] == (3, 11)


def _machine(project: Path) -> Iterator[Finding]:
    import psutil

    name, features = provenance.cpu()
    yield Finding("CPU", "ok", f"{name}: {', '.join(features) or 'no instruction set that the kernels know'}")
    yield _instruction_set()
    cores = provenance.usable_cores()
    few = "" if cores > 1 else "ActorQ's actors and learner will share one core: ratios of times will say little"
    yield Finding("cores", "note" if few else "ok", f"{cores} usable of {os.cpu_count()}", few)
    memory = psutil.virtual_memory().available / 2**30
    tight = "" if memory >= LEAST_MEMORY_GIB else "close other programs, or run with --jobs 1"
    yield Finding("memory", "note" if tight else "ok", f"{memory:.1f} GiB available", tight)
    free = shutil.disk_usage(project).free / 2**30
    full = "" if free >= LEAST_DISK_GIB else "free some, or give --output a folder on another disk"
    yield Finding("disk", "note" if full else "ok", f"{free:.1f} GiB free at {project}", full)
    yield _home()
    shared = Path("/dev/shm")
    if shared.is_dir():
        room = shutil.disk_usage(shared).free / 2**20
        small = "" if room >= 256 else "give the container more (docker run --shm-size=1g): weights travel through it"
        yield Finding("shared memory", "note" if small else "ok", f"{room:,.0f} MiB free", small)


def _instruction_set() -> Finding:
    from quarl_lib.inference.backends import native

    able = [name for name, state in native.instruction_sets().items() if state == "ok"]
    if not able:
        remedy = "see the backend's own line: integer kernels are not there"
        return Finding("instruction set", "note", "none: the kernels were not built or are turned off", remedy)
    told = os.environ.get("QUARL_NATIVE_ISA", "auto")
    if told not in ("auto", *able):
        return Finding("instruction set", "bad", f"QUARL_NATIVE_ISA={told}, which cannot run here",
                       f"unset it, or choose auto, {', '.join(able)}")  # fmt: skip
    why = "the fastest that this CPU runs" if told == "auto" else "chosen by QUARL_NATIVE_ISA"
    return Finding("instruction set", "ok", f"{able[0] if told == 'auto' else told}, {why}")


def _home() -> Finding:
    try:
        home = Path.home()
    except RuntimeError:
        home = Path(os.devnull)
    if home.is_dir() and os.access(home, os.W_OK):
        return Finding("home", "ok", f"{home} can be written")
    remedy = "export HOME=, or QUARL_CACHE, MPLCONFIGDIR and JUPYTER_CONFIG_DIR=, a folder that can be: caches go there"
    return Finding("home", "note", f"{home} cannot be written", remedy)


def _display() -> Iterator[Finding]:
    chosen = os.environ.get("MUJOCO_GL", "")
    able = [name for name in GL_LIBRARIES if _draws(name)]
    remedy = "" if able else "only pictures of environments need one: apt-get install libegl1 or libosmesa6"
    found = f"works: {', '.join(able) or 'none'}; MUJOCO_GL={chosen or 'not set'}"
    yield Finding("GL backend", "ok" if able else "note", found, remedy)


def _draws(backend: str) -> bool:
    """Say whether MuJoCo draws with a GL backend: it is tried, in a process of its own, since one process has one."""
    if importlib.util.find_spec("mujoco") is None or not ctypes.util.find_library(GL_LIBRARIES[backend]):
        return False
    if backend == "glfw" and not os.environ.get("DISPLAY"):
        return False
    code = "import mujoco; mujoco.GLContext(8, 8).make_current()"
    environment = {**os.environ, "MUJOCO_GL": backend}
    try:
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, timeout=GL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _energy() -> Iterator[Finding]:
    counters = list(RAPL.glob("*rapl:*/energy_uj")) if RAPL.is_dir() else []
    if any(os.access(path, os.R_OK) for path in counters):
        yield Finding("energy", "ok", "measured by RAPL counters")
    elif counters:
        remedy = "as root: chmod a+r /sys/class/powercap/*/energy_uj"
        yield Finding("energy", "note", "modelled: RAPL is there, but only root may read it", remedy)
    else:
        remedy = "a virtual machine has no counters: compare ratios, labelled as modelled, or run on the metal"
        yield Finding("energy", "note", "modelled from CPU seconds: no RAPL counters", remedy)


def _kernel() -> Finding:
    version = _version("ipykernel")
    if not version:
        return Finding("kernel", "bad", "ipykernel is missing", "pip install ipykernel")
    return Finding("kernel", "ok", f"ipykernel {version} in this interpreter, whatever a notebook's metadata say")


def _engines() -> Iterator[Finding]:
    """Ask the inference engines themselves; this imports torch and onnxruntime."""
    from quarl_lib.inference import choice

    rows = choice.choices()
    for kind in dict.fromkeys(row["policy"] for row in rows):
        mine = [row for row in rows if row["policy"] == kind]
        by_backend: dict[str, list[str]] = {}
        for row in mine:
            by_backend.setdefault(row["backend"], []).append(row["precision"])
        found = "; ".join(f"{backend}: {', '.join(given)}" for backend, given in by_backend.items())
        reasons = "; ".join(dict.fromkeys(_clauses(row["reason"] for row in mine if row["backend"] != "native")))
        yield Finding(f"engines, {kind}", "note" if "none" in by_backend else "ok", found, reasons)
    for backend, reason in choice.missing().items():
        remedy = {
            "native": "install a C compiler (apt-get install gcc python3-dev), then pip install -e . again",
            "onnxruntime": install_line(),
        }.get(backend, "")
        yield Finding(f"backend {backend}", "note", reason, remedy)


def _clauses(reasons: Iterable[str]) -> Iterator[str]:
    """Split reasons such as `native: a; torch: b` or `no backend ... (native: a; torch: b)` into what each one says."""
    for reason in reasons:
        inner = re.search(r"\((\w+: .*)\)$", reason)
        yield from (inner[1] if inner else reason).split("; ")
