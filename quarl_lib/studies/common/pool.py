"""Spread the independent measurements of a study over processes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.context import BaseContext
from typing import TypeVar

import torch

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

    Torch runs on one thread: workers do not compete for cores, and small layers gain nothing from more. `function` must
    be importable by name. `lost` answers for a task whose process died; without it, that ends all of them.
    """
    workers = min(workers or usable_cores(), len(tasks))
    answers: dict[int, Answer] = {}
    if workers <= 1:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for index, task in enumerate(tasks):
                answers[index] = function(task)
                progress(index + 1, len(tasks), describe(task))
        finally:
            torch.set_num_threads(threads)
        return [answers[index] for index in range(len(tasks))]
    # A fork server that has imported torch once starts each worker in a fraction of a second.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", function.__module__])
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_begin_worker) as pool:
        futures = {pool.submit(function, task): index for index, task in enumerate(tasks)}
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                try:
                    answers[futures[future]] = future.result()
                except BrokenProcessPool:
                    if lost is None:
                        raise
                    continue  # one task ended the process, and took all that were not done along
                progress(done, len(tasks), describe(tasks[futures[future]]))
        except BaseException:
            # An interrupted notebook must not leave workers busy with tasks that nobody waits for.
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()
            raise
    for index, task in enumerate(tasks):
        if index not in answers and lost is not None:
            answers[index] = _alone(function, task, lost, context)
            progress(len(answers), len(tasks), describe(task))
    return [answers[index] for index in range(len(tasks))]


def _alone(
    function: Callable[[TaskT], Answer], task: TaskT, lost: Callable[[TaskT], Answer], context: BaseContext
) -> Answer:
    """Compute one task in a process of its own, which may die."""
    with ProcessPoolExecutor(1, mp_context=context, initializer=_begin_worker) as pool:
        try:
            return pool.submit(function, task).result()
        except BrokenProcessPool:
            return lost(task)


def _begin_worker() -> None:
    torch.set_num_threads(1)
    # Environments write to standard output as they please (pybullet: a line for each one made); it would end up in the
    # notebook. Errors still come out, as exceptions and on standard error.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
