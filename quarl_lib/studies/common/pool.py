"""Spread the independent measurements of a study over processes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

import torch

from quarl_lib.files import CLUSTER_VARIABLE
from quarl_lib.provenance import usable_cores
from quarl_lib.results import Progress

TaskT = TypeVar("TaskT")
Answer = TypeVar("Answer")


def map_tasks(
    function: Callable[[TaskT], Answer],
    tasks: Sequence[TaskT],
    workers: int,
    progress: Progress,
    describe: Callable[[TaskT], str],
    lost: Callable[[TaskT], Answer] | None = None,
) -> list[Answer]:
    """Return `function(task)` for every task, in order, computed by `workers` processes (0: one a core, 1: this one).

    Where the run has a cluster (`quarl run --cluster`), the tasks go to its machines; see `cluster.map_on_nodes`.
    Torch runs on one thread: workers do not compete for cores, and small layers gain nothing from more. `function` must
    be importable by name. `lost` answers for a task whose process (another than this one) died; without it, that ends
    all of them.
    """
    count = min(workers or usable_cores(), len(tasks))
    answers: dict[int, Answer] = {}

    def report(index: int, answer: Answer) -> None:
        answers[index] = answer
        progress(len(answers), len(tasks), describe(tasks[index]))

    if (address := os.environ.get(CLUSTER_VARIABLE)) and tasks:
        from quarl_lib.studies.common.cluster import map_on_nodes

        map_on_nodes(function, dict(enumerate(tasks)), address, report, lost)
        return [answers[index] for index in range(len(tasks))]
    if workers == 1 or count == 0 or (count == 1 and lost is None):
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for index, task in enumerate(tasks):
                answers[index] = function(task)
                progress(index + 1, len(tasks), describe(task))
        finally:
            torch.set_num_threads(threads)
        return [answers[index] for index in range(len(tasks))]

    suspects = 0  # tasks that ran when a process died: one of them ended it, so each runs alone
    while left := [index for index in range(len(tasks)) if index not in answers]:
        alone = suspects > 0
        suspects = max(0, suspects - 1)
        batch = left[:1] if alone else left
        try:
            _in_processes(function, {index: tasks[index] for index in batch}, min(count, len(batch)), report)
        except BrokenProcessPool:
            if lost is None:
                raise
            if alone:
                report(left[0], lost(tasks[left[0]]))
            else:
                suspects = count
    return [answers[index] for index in range(len(tasks))]


def _in_processes(
    function: Callable[[TaskT], Answer],
    tasks: Mapping[int, TaskT],
    workers: int,
    report: Callable[[int, Answer], None],
) -> None:
    """Compute tasks in processes of their own and report each answer.

    Raises:
        BrokenProcessPool: a process died; what was answered by then is reported.
    """
    # A fork server that has imported torch once starts each worker in a fraction of a second.
    has_server = "forkserver" in multiprocessing.get_all_start_methods()  # Windows has none
    context = multiprocessing.get_context("forkserver" if has_server else "spawn")
    if has_server:
        context.set_forkserver_preload(["torch", function.__module__])
    others = set(multiprocessing.active_children())
    broken: BrokenProcessPool | None = None
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_begin_worker) as pool:
        try:
            futures = {pool.submit(function, task): index for index, task in tasks.items()}
            for future in as_completed(futures):
                try:
                    answer = future.result()
                except BrokenProcessPool as error:
                    broken = error
                    continue
                report(futures[future], answer)
        except BrokenProcessPool as error:  # it died while tasks were still handed in
            broken = error
        except BaseException:
            # An interrupted notebook must not leave workers busy with tasks that nobody waits for.
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()
            raise
    if broken is not None:
        raise broken


def _begin_worker() -> None:
    torch.set_num_threads(1)
    # Environments write to standard output as they please (pybullet: a line for each one made); it would end up in the
    # notebook. Errors still come out, as exceptions and on standard error.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
