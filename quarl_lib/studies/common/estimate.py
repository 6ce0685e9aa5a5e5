"""Core hours of a config, and what several machines make of them; modelled, from what units of its work took."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quarl_lib.studies.common.work import Account, Work


@dataclass(frozen=True)
class Estimate:
    """What a study takes.

    at_mean: cells of kinds that were not measured, taken at the mean of those that were. left_out: cells without any
    measurement, which are not in the hours. hours: on each number of nodes that was asked for.
    """

    cells: int
    at_mean: int
    left_out: int
    core_hours: float
    hours: tuple[float, ...]


def estimate(account: Account, nodes: Sequence[int], cores: int) -> Estimate:
    """Return the hours of an account's cells on `nodes` machines of `cores` each.

    A phase takes its work over all cores, and never less than its longest cell; a cell that holds more cores than a
    machine has takes as much longer. Cells that stay on one machine run one after the other.

    Raises:
        ValueError: nodes or cores are none.
    """
    if cores < 1 or min(nodes, default=0) < 1:
        raise ValueError(f"nodes={list(nodes)}, cores={cores}: give whole numbers of at least 1")
    unmeasured = [work for work in account.cells if work.kind not in account.seconds]
    counted = account.cells
    if math.isnan(account.mean):
        counted = [work for work in account.cells if work.kind in account.seconds]

    def seconds(work: Work) -> float:
        return work.units * account.seconds.get(work.kind, account.mean)

    def alone(work: Work) -> float:
        return seconds(work) * max(1.0, work.cores / cores)

    if account.one_machine:
        hours = (sum(map(alone, counted)) / 3600,) * len(nodes)
    else:
        hours = tuple(_spread(counted, seconds, alone, number * cores) / 3600 for number in nodes)
    left_out = len(account.cells) - len(counted)
    core_hours = sum(seconds(work) * work.cores for work in counted) / 3600
    return Estimate(len(account.cells), len(unmeasured) - left_out, left_out, core_hours, hours)


def _spread(
    cells: Sequence[Work], seconds: Callable[[Work], float], alone: Callable[[Work], float], cores: int
) -> float:
    total = 0.0
    for phase in {work.phase for work in cells}:
        own = [work for work in cells if work.phase == phase]
        total += max(max(map(alone, own)), sum(seconds(work) * work.cores for work in own) / cores)
    return total


def total(found: Sequence[Estimate]) -> Estimate:
    """Return what several studies take, one after the other."""
    cells, at_mean, left_out = (
        sum(getattr(one, name) for one in found) for name in ("cells", "at_mean", "left_out")
    )  # fmt: skip
    hours = tuple(map(sum, zip(*(one.hours for one in found), strict=True)))
    return Estimate(cells, at_mean, left_out, sum(one.core_hours for one in found), hours)


def row(study: str, found: Estimate, nodes: Sequence[int], account: Account | None = None) -> dict[str, str]:
    """Return an estimate as a line of text: `~` where means stand in, `≥` where cells are left out, `-` for nothing."""
    sign = "≥ " if found.left_out else "~ " if found.at_mean else ""
    nothing = found.left_out == found.cells

    def said(hours: float) -> str:
        return "-" if nothing else f"{sign}{hours:,.0f}" if hours >= 10 else f"{sign}{hours:.2g}"

    spread = {_nodes(number): said(hours) for number, hours in zip(nodes, found.hours, strict=True)}
    note = _note(found, account) if account is not None else ""
    return {"study": study, "cells": f"{found.cells:,}", "core hours": said(found.core_hours), **spread, "note": note}


def _note(found: Estimate, account: Account) -> str:
    parts = [account.basis]
    if found.at_mean:
        parts.append(f"cells of kinds that were not measured: {found.at_mean:,}, at the mean of those that were")
    if found.left_out:
        parts.append(f"cells of kinds that were not measured: {found.left_out:,}, left out")
    if account.one_machine:
        parts.append("stays on one machine, one cell after the other")
    if account.left_out:
        parts.append(f"not in it: {account.left_out}")
    return "; ".join(parts)


def columns(nodes: Sequence[int]) -> list[str]:
    """Return the names of the columns of `row`."""
    return ["study", "cells", "core hours", *map(_nodes, nodes)]


def _nodes(number: int) -> str:
    return f"{number} node{'s' * (number > 1)}"
