"""What every test may use: one thread a process, and a small project to run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

# Before any test imports torch: two test processes on two cores must not start four threads.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ.setdefault("MUJOCO_GL", "disable")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["MPLBACKEND"] = "agg"
# What tests measure of this machine stays out of the user's own cache.
os.environ.setdefault("QUARL_CACHE", str(Path(__file__).parents[1] / ".pytest_cache" / "quarl"))
# A job in a shell's background ignores Ctrl-C, and so would every process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest  # noqa: E402

TEMPLATE = Path(__file__).parent / "template"
PAPER_TABLE2 = Path(__file__).parent / "paper" / "table2_ptq.csv"  # arXiv 1910.01055, as printed


def add_study(project: Path, name: str, cell: str | None = None, *, at: int = 3) -> Path:
    """Put a copy of the template's notebook and params under a new name, with a further code cell at `at`."""
    notebook = json.loads((TEMPLATE / "notebooks" / "01_dice.ipynb").read_text())
    if cell is not None:
        blank: dict[str, object] = {
            "cell_type": "code",
            "execution_count": None,
            "metadata": {},
            "outputs": [],
            "id": "added",
        }
        notebook["cells"].insert(at, {**blank, "source": cell})
    number = len(list((project / "notebooks").glob("*.ipynb"))) + 1
    path = project / "notebooks" / f"{number:02d}_{name}.ipynb"
    path.write_text(json.dumps(notebook))
    for preset in (project / "params").iterdir():
        shutil.copy(TEMPLATE / "params" / preset.name / "dice.yaml", preset / f"{name}.yaml")
    return path


@pytest.fixture(autouse=True)
def no_figure_stays_open() -> Iterator[None]:
    """Close what a test drew: beyond twenty open figures matplotlib warns, in whichever test comes next."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project of its own with the template study `dice`; commands in this process find it."""
    folder = tmp_path / "project"
    shutil.copytree(TEMPLATE, folder)
    monkeypatch.setenv("QUARL_PROJECT", str(folder))
    return folder


@pytest.fixture
def in_background() -> Iterator[Callable]:
    """Return a function that supervises a program in a thread, so that a test can kill its parts meanwhile.

    What a test that failed left running ends with it.
    """
    from quarl_lib.actorq.launch import local

    started: list = []

    def start(program) -> tuple[threading.Thread, list[BaseException]]:
        errors: list[BaseException] = []

        def work() -> None:
            try:
                local.supervise(program)
            except BaseException as error:
                errors.append(error)

        started.append((program, threading.Thread(target=work)))
        started[-1][1].start()
        return started[-1][1], errors

    yield start
    for program, thread in started:
        if thread.is_alive():
            program.link.abort()
        thread.join(70)


@pytest.fixture
def nodes(monkeypatch) -> Iterator[tuple]:
    """A head node with room for the learner alone, and two others of two CPUs."""
    ray = pytest.importorskip("ray", reason="needs the extra [ray]")
    from ray.cluster_utils import Cluster

    from quarl_lib.actorq.launch import cluster

    for name, value in cluster.QUIET.items():
        monkeypatch.setenv(name, value)
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    others = [made.add_node(num_cpus=2), made.add_node(num_cpus=2)]
    made.wait_for_nodes()
    yield made, others
    ray.shutdown()
    made.shutdown()


@pytest.fixture(scope="module")
def orders(tmp_path_factory) -> Iterator[Path]:
    """Start a fork server, with a temporary folder of its own, that knows where faulty environments find orders."""
    import tempfile

    import faulty_environment
    from fault_runs import SERVER

    from quarl_lib.actorq.launch import local

    folder, temporary = tmp_path_factory.mktemp("orders"), tmp_path_factory.mktemp("temporary")
    os.environ[faulty_environment.ORDERS] = str(folder)
    before, tempfile.tempdir = tempfile.tempdir, str(temporary)
    SERVER._stop()
    local.warm_up()
    yield folder
    tempfile.tempdir = before
    del os.environ[faulty_environment.ORDERS]
    SERVER._stop()
