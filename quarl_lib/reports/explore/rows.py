"""Which agent, precision and seed a row belongs to, whatever a study's table calls them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pandas as pd

# The first columns that a table has say it; two of them together where one alone would not.
COLUMNS = {
    "agent": (("agent",), ("policy",), ("algorithm", "env_id"), ("task",), ("design",)),
    "precision": (("precision",), ("compute_precision",), ("method", "weight_bits")),
    "seed": (("seed",),),
}
Choice = Mapping[str, Collection[str]]  # per name in COLUMNS the labels to keep; a name left out keeps all


def labels(table: pd.DataFrame, name: str) -> pd.Series | None:
    """Return each row's label ("" where the row has none), None where the table has no such column."""
    for columns in COLUMNS[name]:
        if set(columns) <= set(table.columns):
            texts = [table[column].map(_text) for column in columns]
            whole = texts[0] if len(texts) == 1 else texts[0] + " " + texts[1]
            return whole.where(texts[0] != "", "")
    return None


def choices(table: pd.DataFrame, name: str) -> list[str]:
    """Return the labels that a table has, in its order; seeds by number."""
    found = labels(table, name)
    if found is None:
        return []
    kept = [label for label in dict.fromkeys(found) if label]
    return sorted(kept, key=float) if name == "seed" else kept


def keep(table: pd.DataFrame, choice: Choice) -> pd.DataFrame:
    """Return the rows with a chosen label; a row without one belongs to all, a table without the column stays whole."""
    for name, wanted in choice.items():
        found = labels(table, name)
        if found is not None:
            table = table[found.isin(["", *wanted])]
    return table.reset_index(drop=True)


def _text(value: object) -> str:
    if pd.isna(value):  # type: ignore[call-overload]
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)
