"""Lay the summaries of runs, or of whole suites, side by side: deltas, intervals, and what differed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quarl_lib.files import write_text
from quarl_lib.reports import markup
from quarl_lib.reports.index import RUN_FILE
from quarl_lib.reports.report import render
from quarl_lib.suite import states
from quarl_lib.suite.display import spelled

if TYPE_CHECKING:
    import pandas as pd

MACHINE = ("cpu", "cpu_features", "cores", "system", "commit", "preset", "duration_s")


def build(directories: Sequence[Path], output: Path) -> Path:
    """Write a page that compares two or more runs or suites.

    Raises:
        ValueError: fewer than two folders, one without a run that is ok, or no study that two of them share.
    """
    if len(directories) < 2:
        raise ValueError("compare: give at least two folders of runs or suites")
    labels = _labels(directories)
    sides = {label: _runs(directory) for label, directory in zip(labels, directories, strict=True)}
    studies = [study for study in next(iter(sides.values())) if sum(study in runs for runs in sides.values()) > 1]
    studies += [
        s for runs in sides.values() for s in runs if s not in studies and sum(s in r for r in sides.values()) > 1
    ]
    if not studies:
        found = "; ".join(f"{label}: {', '.join(runs)}" for label, runs in sides.items())
        raise ValueError(f"compare: no study is in two of them ({found})")
    parts = [
        _part(study, {label: runs[study] for label, runs in sides.items() if study in runs}, output)
        for study in studies
    ]
    return write_text(output, render("comparison.html.j2", labels=labels, parts=parts))


def _labels(directories: Sequence[Path]) -> list[str]:
    """Name each side by as few of its last folders as tell them apart."""
    resolved = [directory.resolve() for directory in directories]
    for count in range(1, 12):
        labels = ["/".join(path.parts[-count:]) for path in resolved]
        if len(set(labels)) == len(labels):
            return labels
    raise ValueError("compare: the same folder twice")


def _runs(directory: Path) -> dict[str, Path]:
    """Return the newest ok run of each study in a suite, or the one run that the folder is."""
    paths = [directory] if (directory / "run.json").exists() else [path.parent for path in directory.glob(RUN_FILE)]
    ok = [path for path in paths if states.read(path).get("state") == "ok" and (path / "summary.csv").exists()]
    if not ok:
        raise ValueError(
            f"{directory}: no run here that is ok; give a run's folder or a suite's, such as outputs/laptop"
        )
    ok.sort(key=lambda path: states.read(path).get("started", 0.0))
    return {states.read(path)["study"]: path for path in ok}


def _part(study: str, runs: dict[str, Path], output: Path) -> dict[str, Any]:
    import pandas as pd

    records = {label: states.read(path) for label, path in runs.items()}
    tables = {label: pd.read_csv(path / "summary.csv") for label, path in runs.items()}
    wide = side_by_side(tables)
    wide.to_csv(output.with_name(f"{output.stem}_{study}.csv"), index=False)
    return {
        "study": study,
        "title": next(iter(records.values())).get("title") or study,
        "reports": {label: _relative(path / "report.html", output.parent) for label, path in runs.items()},
        "differences": _differences(records),
        "table": markup.safe(markup.in_boxes(_html(wide), f"{study}, side by side", f"{output.stem}_{study}.csv")),
    }


def _relative(path: Path, folder: Path) -> str:
    import os

    return os.path.relpath(path.resolve(), folder.resolve())


def side_by_side(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Join summaries on what identifies a row; per figure one column a side, then each side's delta to the first.

    What identifies a row are the columns of words and whole numbers that all sides have. A delta whose intervals
    (`ci_low`, `ci_high`) do not overlap the first side's is marked with *.
    """
    import pandas as pd

    first, *others = tables
    shared = [name for name in tables[first] if all(name in table for table in tables.values())]
    keys = _keys(tables, shared)
    numbers = [name for name in shared if name not in keys and pd.api.types.is_numeric_dtype(tables[first][name])]
    numbered = {}
    for label, table in tables.items():
        # Rows that the keys do not tell apart are matched in their order.
        ordered = (
            table.assign(_row=table.groupby(keys, dropna=False).cumcount())
            if keys
            else table.assign(_row=range(len(table)))
        )
        numbered[label] = ordered[[*keys, "_row", *numbers]].set_index([*keys, "_row"])
    joined = pd.concat(numbered, axis=1, sort=False)
    wide: dict[str, Any] = {}
    for name in numbers:
        for label in tables:
            wide[f"{name} · {label}"] = joined[label, name]
        if name in ("ci_low", "ci_high"):
            continue
        for label in others:
            delta = joined[label, name] - joined[first, name]
            wide[f"Δ {name} · {label}"] = _marked(delta, joined, first, label) if name.startswith("mean") else delta
    return pd.DataFrame(wide).reset_index().drop(columns="_row")


def _keys(tables: dict[str, pd.DataFrame], shared: list[str]) -> list[str]:
    """Return the columns of words and booleans, then of whole numbers as long as rows are not told apart."""
    import pandas as pd

    first = next(iter(tables.values()))
    keys = [name for name in shared if not pd.api.types.is_numeric_dtype(first[name]) or first[name].dtype == bool]
    for name in shared:
        if keys and not any(table.duplicated(keys).any() for table in tables.values()):
            break
        if name not in keys and pd.api.types.is_integer_dtype(first[name]):
            keys.append(name)
    return keys


def _marked(delta: Any, joined: Any, first: str, label: str) -> Any:
    if (first, "ci_low") not in joined:
        return delta
    apart = (joined[label, "ci_low"] > joined[first, "ci_high"]) | (joined[label, "ci_high"] < joined[first, "ci_low"])
    return [f"{value:+.4g}{'*' if beyond else ''}" for value, beyond in zip(delta, apart, strict=True)]


def _html(table: pd.DataFrame) -> str:
    return table.to_html(index=False, border=0, na_rep="–", float_format=lambda number: f"{number:.4g}")


def _differences(records: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what is not the same on all sides: parameters, machine, versions, seeds."""
    rows: dict[str, dict[str, Any]] = {}
    for label, record in records.items():
        facts = {f"parameter {name}": value for name, value in record.get("parameters", {}).items()}
        facts |= {name.replace("_", " "): record.get(name) for name in MACHINE}
        facts |= {f"version of {name}": value for name, value in record.get("versions", {}).items()}
        for name, value in facts.items():
            rows.setdefault(name, {})[label] = value
    named = [{"name": name, "values": [spelled(by.get(label, "–")) for label in records]} for name, by in rows.items()]
    return [row for row in named if len(set(row["values"])) > 1]
