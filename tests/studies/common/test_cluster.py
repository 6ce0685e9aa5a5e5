"""Cells on the nodes of a Ray cluster: files travel, and a cell that kills its process three times is its row."""

from __future__ import annotations

import os
import pickle
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from quarl_lib.files import CLUSTER_VARIABLE
from quarl_lib.results import PROJECT
from quarl_lib.studies.common import cluster
from quarl_lib.studies.common.pool import map_tasks


@dataclass(frozen=True)
class Cell:
    """Adds up the numbers of a file, and leaves the sum in a folder."""

    source: Path
    folder: Path
    deadly: bool = False  # it kills the process that computes it

    @property
    def reads(self):
        return [self.source]

    @property
    def writes(self):
        return [self.folder]


def add_up(cell: Cell) -> int:
    if cell.deadly:
        os._exit(1)
    total = sum(map(int, cell.source.read_text().split()))
    cell.folder.mkdir(parents=True)
    (cell.folder / "sum.txt").write_text(f"{total} by {os.getpid()}")
    return total


def sleep_a_second(cell: Cell) -> str:
    time.sleep(1.0)
    import ray

    return ray.get_runtime_context().get_node_id()


def lost(cell: Cell) -> int:
    return -1


def cells(tmp_path: Path, count: int) -> list[Cell]:
    sources = [tmp_path / f"numbers{i}.txt" for i in range(count)]
    for i, source in enumerate(sources):
        source.write_text(f"{i} {10 * i}")
    return [Cell(source, tmp_path / f"answer{i}") for i, source in enumerate(sources)]


def test_paths_of_a_task_are_changed_and_files_travel_without_a_shared_file_system(tmp_path):
    (tmp_path / "here").mkdir()
    (cell,) = cells(tmp_path / "here", 1)
    read = cluster._packed(cell.reads)
    frozen = cluster._frozen(cell)
    assert str(tmp_path).encode() in frozen  # by its name below the root
    cell.source.unlink()
    answer, written = cluster._compute(add_up, frozen, read)
    assert answer == 0
    assert not cell.folder.exists()
    cluster._bring(written, cell.writes)
    assert (cell.folder / "sum.txt").read_text() == f"0 by {os.getpid()}"
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["answer0"]  # nothing is left half way
    with pytest.raises(pickle.UnpicklingError):
        pickle.loads(frozen)  # only together with a root


@pytest.mark.slow
def test_cells_run_on_every_node_and_one_that_kills_its_process_three_times_is_its_row(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray", reason="needs the extra [ray]")
    from ray.cluster_utils import Cluster

    from quarl_lib.actorq.launch.cluster import QUIET

    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}{os.pathsep}{PROJECT}")  # where nodes find `add_up`
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        made.add_node(num_cpus=1)
        made.wait_for_nodes()
        monkeypatch.setenv(CLUSTER_VARIABLE, made.address)
        tasks = cells(tmp_path, 4)
        said = []
        answers = map_tasks(add_up, tasks, 0, lambda done, total, what: said.append((done, total)), str, lost)
        assert answers == [0, 11, 22, 33]
        assert said == [(1, 4), (2, 4), (3, 4), (4, 4)]
        assert [int((cell.folder / "sum.txt").read_text().split()[0]) for cell in tasks] == answers
        assert len(set(map_tasks(sleep_a_second, tasks, 0, lambda *_: None, str))) == 2
        deadly = Cell(tasks[0].source, tmp_path / "never", deadly=True)
        assert map_tasks(add_up, [tasks[1], deadly], 0, lambda *_: None, str, lost)[1] == -1
    finally:
        ray.shutdown()
        made.shutdown()
