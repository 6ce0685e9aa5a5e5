"""Lay the summaries of runs, or of whole suites, side by side: deltas, intervals, and what differed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quarl_lib.files import write_atomically, write_text
from quarl_lib.reports import differences, markup, tables
from quarl_lib.reports.index import RUN_FILE
from quarl_lib.reports.report import render
from quarl_lib.suite import states
from quarl_lib.suite.display import spelled

if TYPE_CHECKING:
    import pandas as pd

DELTA, SIDE = "Δ ", " · "
MACHINE = ("cpu", "cpu_features", "cores", "system", "commit", "preset", "duration_s")


def build(directories: Sequence[Path], output: Path | None = None, folder: Path = Path("outputs")) -> Path:
    """Write a page that compares two or more runs or suites, `folder`/comparisons/<a>_<b>.html unless told otherwise.

    Raises:
        ValueError: fewer than two folders, one without a run that is ok, or no study that two of them share.
    """
    if len(directories) < 2:
        raise ValueError("compare: give at least two folders of runs or suites")
    labels = _labels(directories)
    output = output or folder / "comparisons" / f"{'_'.join(markup.slug(label) for label in labels)[:120]}.html"
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
    csv = output.with_name(f"{output.stem}_{study}.csv")
    write_atomically(csv, lambda path: wide.to_csv(path, index=False))
    shown, count = _differing(wide)
    return {
        "study": study,
        "title": next(iter(records.values())).get("title") or study,
        "reports": {label: _relative(path / "report.html", output.parent) for label, path in runs.items()},
        "differences": _differences(records),
        "said": f"{len(shown)} of {count} rows differ." if len(shown) else f"All {count} rows are the same.",
        "csv": csv.name,
        "figure": markup.safe(_figure(shown)),
        "table": markup.safe(markup.in_boxes(_html(shown), f"{study}, side by side", csv.name)) if len(shown) else "",
    }


def _differing(wide: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Return the rows in which a figure differs, the largest first, and how many rows there are.

    A figure's differences stand before its sides; a figure that is the same in all rows is left out.
    """
    import pandas as pd

    deltas = [name for name in wide if name.startswith(DELTA)]
    if not deltas:
        return wide, len(wide)
    size = wide[deltas].apply(lambda column: pd.to_numeric(column.astype(str).str.rstrip("*"), errors="coerce").abs())
    missing = size.isna() & ~wide[[_first_side(name, wide) for name in deltas]].isna().all(axis=1).to_numpy()[:, None]
    differs = (size > 0).any(axis=1) | missing.all(axis=1)
    figures = [name for name in deltas if (size[name] > 0).any() or missing[name].any()]
    main = next((name for name in figures if name.startswith(f"{DELTA}mean")), figures[0] if figures else None)
    ordered = [main, *(name for name in figures if name != main)] if main else []
    columns = [name for name in wide if SIDE not in name and not name.startswith(DELTA)]
    for name in ordered:
        of_it = [one for one in wide if one.startswith(_metric(name) + SIDE) and one not in columns]
        columns += [name, *of_it]
    shown = wide.loc[differs, columns]
    if main:
        shown = shown.loc[size.loc[differs, main].sort_values(ascending=False, na_position="first").index]
    return shown, len(wide)


def _metric(delta: str) -> str:
    return delta.removeprefix(DELTA).rpartition(SIDE)[0]


def _first_side(delta: str, wide: pd.DataFrame) -> str:
    return next(name for name in wide if name.startswith(_metric(delta) + SIDE))


def _figure(shown: pd.DataFrame) -> str:
    """Return the differences of the main figure, the first that stands in the table, as a picture."""
    import pandas as pd

    deltas = [name for name in shown if name.startswith(DELTA)]
    if not deltas:
        return ""
    texts = shown[deltas[0]].astype(str)
    values = pd.to_numeric(texts.str.rstrip("*"), errors="coerce")
    known = values.notna()
    if not known.any():
        return ""
    naming = [name for name in shown if SIDE not in name and shown[name].nunique() > 1][: tables.MOST_NAMES]
    names = shown.loc[known, naming].astype(str).agg(" · ".join, axis=1) if naming else pd.Series(["all"] * known.sum())
    side = deltas[0].rpartition(SIDE)[2]
    return differences.figure(
        list(names), list(values[known]), list(texts[known].str.endswith("*")),
        tables.heading(_metric(deltas[0])), f"{side} less the first",
    )  # fmt: skip


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
            wide[f"{name}{SIDE}{label}"] = joined[label, name]
        if name in ("ci_low", "ci_high"):
            continue
        for label in others:
            delta = joined[label, name] - joined[first, name]
            wide[f"{DELTA}{name}{SIDE}{label}"] = (
                _marked(delta, joined, first, label) if name.startswith("mean") else delta
            )
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
