"""Tasks over processes: order, progress, errors; in one process and in two."""

from __future__ import annotations

import os
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import psutil
import pytest
import torch

from quarl_lib.results import no_progress
from quarl_lib.studies.common.pool import map_tasks
from quarl_lib.suite import processes


def slow_square(number: int) -> tuple[int, int, int]:
    time.sleep(0.3 if number == 0 else 0.0)
    return number**2, os.getpid(), torch.get_num_threads()


def fail_at_three(number: int) -> int:
    if number == 3:
        raise ValueError("three is refused")
    return number


@pytest.mark.parametrize("workers", [1, 2])
def test_answers_keep_the_order_and_progress_counts_every_task(workers):
    seen: list[tuple[int, int, str]] = []
    answers = map_tasks(slow_square, range(6), workers, lambda *state: seen.append(state), lambda task: f"task {task}")
    assert [square for square, _, _ in answers] == [0, 1, 4, 9, 16, 25]
    assert [done for done, _, _ in seen] == [1, 2, 3, 4, 5, 6]
    assert {total for _, total, _ in seen} == {6}
    assert {what for _, _, what in seen} == {f"task {number}" for number in range(6)}
    assert {threads for _, _, threads in answers} == {1}
    assert (os.getpid() in {pid for _, pid, _ in answers}) == (workers == 1)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_in_a_task_comes_out_as_it_is(workers):
    before = torch.get_num_threads()
    with pytest.raises(ValueError, match="three is refused"):
        map_tasks(fail_at_three, range(6), workers, no_progress, str)
    assert torch.get_num_threads() == before


def test_no_task_is_no_work():
    assert map_tasks(fail_at_three, [], 0, no_progress, str) == []


def chatter(number: int) -> int:
    os.write(1, b"printed by a library\n")
    return number


def test_what_a_worker_prints_stays_out(capfd):
    map_tasks(chatter, range(4), 2, no_progress, str)
    assert capfd.readouterr().out == ""


def wait_long(task: tuple[int, str]) -> int:
    number, directory = task
    Path(directory, f"{os.getpid()}.pid").touch()
    time.sleep(120 if number else 0.2)
    return number


def test_an_interrupt_leaves_no_worker_busy(tmp_path):
    def interrupted(done: int, total: int, what: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        map_tasks(wait_long, [(number, str(tmp_path)) for number in range(4)], 2, interrupted, str)
    workers = [int(path.stem) for path in tmp_path.glob("*.pid")]
    assert workers
    assert processes.wait_until(lambda: not any(psutil.pid_exists(pid) for pid in workers), 20)


def die_at_two_and_three(number: int) -> int:
    if number in (2, 3):
        os._exit(1)  # as a segmentation fault in an environment's own code
    time.sleep(0.05)
    return number


@pytest.mark.parametrize("tasks", [6, 1])
def test_a_process_that_dies_costs_its_own_task_alone(tasks):
    numbers = range(6) if tasks == 6 else [2]
    seen: list[int] = []
    answers = map_tasks(
        die_at_two_and_three, numbers, 2, lambda done, total, what: seen.append(done), str, lambda task: -task
    )
    assert answers == ([0, 1, -2, -3, 4, 5] if tasks == 6 else [-2])
    assert seen == list(range(1, len(answers) + 1))


def test_without_an_answer_for_it_a_process_that_dies_ends_the_work():
    with pytest.raises(BrokenProcessPool):
        map_tasks(die_at_two_and_three, range(4), 2, no_progress, str)
