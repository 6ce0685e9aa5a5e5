"""Write a suite's index: every run with its state, duration, key figure and a picture."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from quarl_lib.files import write_text
from quarl_lib.reports import paper, report
from quarl_lib.reports.report import render
from quarl_lib.suite import states
from quarl_lib.suite.display import duration, spelled

RUN_FILE = "*/*/run.json"


def build(suite: Path) -> Path:
    """Write `index.html` of a suite's folder from the runs in it."""
    runs = [_row(path.parent, suite) for path in sorted(suite.glob(RUN_FILE)) if not path.parent.name.startswith(".")]
    runs.sort(key=lambda run: run["time"], reverse=True)
    newest, grids = [], []
    for study in sorted({run["study"] for run in runs}, key=lambda name: _number(runs, name)):
        mine = [run for run in runs if run["study"] == study]
        newest.append(mine[0])
        grid = _grid(mine)
        grids += [grid] if grid else []
    states_found = [run["state"] for run in runs]
    counts = ", ".join(f"{states_found.count(s)} {s}" for s in states.STATES if s in states_found)
    page = render(
        "index.html.j2",
        suite=suite.name, newest=newest, runs=runs, grids=grids, paper=paper.build(suite, newest),
        summary=f"{len(newest)} {'study' if len(newest) == 1 else 'studies'}, "
        f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}: {counts or 'nothing has run yet'}.",
        now=time.strftime("%Y-%m-%d %H:%M"),
    )  # fmt: skip
    return write_text(suite / "index.html", page)


def _row(directory: Path, suite: Path) -> dict[str, Any]:
    record = states.read(directory)
    relative = directory.relative_to(suite).as_posix()
    figures = [one for one in record.get("figures", []) if (directory / "figures" / f"{one['name']}.png").exists()]
    if (directory / "figures" / "thumbnail.png").exists():  # made for this place
        figures.insert(0, {"name": "thumbnail", "alt": record.get("key_figure", "")})
    picture = figures[0] if figures else None
    values = record.get("parameters", {})
    started = record.get("started")
    return {
        "study": record.get("study", directory.parent.name),
        "title": record.get("title") or record.get("study", directory.parent.name),
        "number": Path(record.get("notebook", "99")).name,
        "run_id": directory.name,
        "hash": directory.name.rsplit("-", 1)[-1],
        "state": record.get("state", "failed"),
        "reason": record.get("reason", ""),
        "key_figure": record.get("key_figure", ""),
        "duration": duration(record["duration_s"]) if "duration_s" in record else "",
        "seconds": record.get("duration_s", ""),
        "commit": str(record.get("commit", "")).split(" ")[0],
        "started": time.strftime("%Y-%m-%d %H:%M", time.localtime(started)) if started else "not started",
        "time": started or 0.0,
        "changed": ", ".join(f"{name} = {spelled(values.get(name))}" for name in record.get("changed", [])),
        "changes": {name: values.get(name) for name in record.get("changed", [])},
        "parameters": values,
        "report": f"{relative}/report.html" if (directory / "report.html").exists() else "",
        "figures": record.get("figures", []),
        "picture": f"{relative}/figures/{picture['name']}.png" if picture else "",
        "picture_alt": f"{record.get('title', '')}: {picture['alt']}" if picture else "",
    }


def _number(runs: list[dict[str, Any]], study: str) -> str:
    return min(run["number"] for run in runs if run["study"] == study)


def _grid(runs: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Lay a study's runs side by side where they differ in their parameters; one row each, the newest of equals."""
    latest: dict[str, dict[str, Any]] = {}
    for run in runs:
        latest.setdefault(repr(run["parameters"]), run)
    kept = [run for run in latest.values() if run["parameters"]]
    names = [
        n for n in (kept[0]["parameters"] if kept else []) if len({repr(r["parameters"].get(n)) for r in kept}) > 1
    ]
    if len(kept) < 2 or not names:
        return None
    kept.sort(key=lambda run: [_sortable(run["parameters"].get(name)) for name in names])
    rows = [{**run, "values": [spelled(run["parameters"].get(name)) for name in names]} for run in kept]
    return {"title": runs[0]["title"], "names": names, "runs": rows}


def _sortable(value: Any) -> tuple[int, float, str]:
    return (0, value, "") if isinstance(value, int | float) else (1, 0.0, str(value))


def add(run: Path) -> None:
    """Write the report of a run that just ended, and its suite's index unless another process is at it."""
    report.build(run)
    with states.claim(run.parents[1] / "index") as claim:
        if claim is not None:
            build(run.parents[1])


def rebuild(directory: Path, build_report: Callable[[Path], Path]) -> Iterator[Path]:
    """Write anew the report of a run, or all reports and the index of a suite.

    Raises:
        ValueError: the folder is neither.
    """
    if (directory / "notebook.ipynb").exists():
        yield build_report(directory)
        suite = directory.resolve().parents[1]
        if (directory / "run.json").exists():
            yield build(suite)
        return
    runs = [path.parent for path in sorted(directory.glob(RUN_FILE)) if (path.parent / "notebook.ipynb").exists()]
    if not runs:
        raise ValueError(f"{directory}: no run here; give a run's folder or a suite's, such as outputs/laptop")
    for run in runs:
        yield build_report(run)
    yield build(directory)
