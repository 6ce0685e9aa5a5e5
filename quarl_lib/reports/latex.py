"""Write a run's tables as LaTeX, ruled as booktabs has it, for papers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from quarl_lib.files import write_text
from quarl_lib.reports import tables
from quarl_lib.reports.index import RUN_FILE

if TYPE_CHECKING:
    import pandas as pd


def build(directory: Path) -> Iterator[Path]:
    """Write `<name>.tex` beside each CSV of a run, or of all runs of a suite."""
    import pandas as pd

    runs = [directory] if (directory / "notebook.ipynb").exists() else [p.parent for p in directory.glob(RUN_FILE)]
    for run in sorted(runs):
        for path in sorted(run.glob("*.csv")):
            try:
                table = pd.read_csv(path)
            except pd.errors.EmptyDataError:
                continue
            yield write_text(path.with_suffix(".tex"), as_latex(table, f"{path.stem.replace('_', ' ')}, {run.name}"))


def as_latex(table: pd.DataFrame, caption: str) -> str:
    """Return a table as LaTeX; a column that holds one value leaves it and is named in the caption."""
    constant = [name for name in table if len(table) > 1 and table[name].nunique(dropna=False) == 1]
    if len(constant) == table.shape[1]:
        constant = []
    said = [f"{tables.heading(name)} {tables.short(str(table[name].iloc[0]))}" for name in constant if
            table[name].notna().all()]  # fmt: skip
    shown = table.drop(columns=constant).rename(columns=tables.heading)
    styled = shown.style.hide(axis="index").format(
        lambda value: tables.short(str(value)), escape="latex", na_rep="--"
    ).format_index(escape="latex", axis="columns")  # fmt: skip
    whole = caption + (f"; {', '.join(said)}" if said else "")
    return styled.to_latex(hrules=True, position="t", caption=_escaped(whole + "."))


def _escaped(text: str) -> str:
    for sign in "\\&%$#_{}":
        text = text.replace(sign, "\\textbackslash " if sign == "\\" else f"\\{sign}")
    return text
