"""Lay out a table for a reader: what its columns are called, which of them say something, and in which order."""

from __future__ import annotations

import math
import re
from typing import Any

MOST_NAMES = 5  # leading columns that together name a row
NOTHING = ("", "–", "nan")
RESULT = re.compile(
    r"return|speedup|ratio|error|loss|mean|median|seconds|us_|_us\b|energy|ours|paper|over_fp32|same_action|key figure"
)
_NUMBER = re.compile(r"[-+−]?[\d,]*\.?\d+(e[-+]?\d+)?", re.IGNORECASE)
# How a unit is written at the end of a column's name, and how a reader sees it.
UNITS = {
    "s": "s", "us": "µs", "ms": "ms", "kwh": "kWh", "kg": "kg", "bytes": "bytes", "mb": "MB", "watts": "W",
    "percent": "%", "grams": "g",
}  # fmt: skip
WORDS = {
    "id": "", "ids": "", "env": "environment", "ci": "95 % interval", "low": "low", "fp32": "fp32", "us": "µs",
    "kl": "KL", "co2": "CO₂", "cpu": "CPU", "n": "number of", "ns": "ns",
}  # fmt: skip


def heading(name: str) -> str:
    """Return a column's name as words with its unit: `duration_s` as "duration (s)", `env_id` as "environment"."""
    name = str(name)
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*", name):
        return name
    words = name.split("_")
    if words[0] == "us" and len(words) > 1:
        words = [*words[1:], "us"]
    unit = UNITS.get(words[-1].lower()) if len(words) > 1 else None
    if unit:
        words = words[:-1]
    said = " ".join(word for word in (WORDS.get(word, word) for word in words) if word)
    return (f"{said} ({unit})" if unit else said) or name


def short(text: str) -> str:
    """Return a number with a fraction at three significant digits, other words as they are."""
    stripped = text.strip()
    if stripped.lower() in ("nan", ""):
        return "–"
    if not _NUMBER.fullmatch(stripped) or not re.search(r"[.e]", stripped, re.IGNORECASE):
        return text
    number = float(stripped.replace(",", "").replace("−", "-"))
    if not math.isfinite(number):
        return text
    if 1000 <= abs(number) < 1e7:
        return f"{number:,.0f}"
    return f"{number:.3g}"


def _told_apart(naming: list[int], columns: list[list[str]]) -> list[int]:
    """Leave out each column that another one implies: the agent says algorithm and environment already."""
    kept = list(naming)
    for n in sorted(naming, key=lambda n: (len(set(columns[n])), -n)):
        others = [m for m in kept if m != n]
        if any(len(set(zip(columns[m], columns[n], strict=True))) == len(set(columns[m])) for m in others):
            kept.remove(n)
    return kept


def lay_out(page: Any, table: Any) -> str:
    """Arrange a parsed table: the row's name first, then results, then the rest; one value in a whole column leaves.

    Returns:
        One line that says what left, or "".
    """
    rows = [row.find_all(["td", "th"], recursive=False) for row in table.find_all("tr")]
    if len(rows) < 2 or any(len(row) != len(rows[0]) or any(cell.get("colspan") or cell.get("rowspan") for cell in row)
                            for row in rows):  # fmt: skip
        return ""
    head, body = rows[0], rows[1:]
    if any(cell.name == "td" for cell in head):
        return ""
    columns = [[cell.get_text().strip() for cell in column] for column in zip(*body, strict=True)]
    names = [cell.get_text().strip() for cell in head]
    for cell, name in zip(head, names, strict=True):
        if heading(name) != name:
            cell.string = heading(name)
    kept, said = list(range(len(names))), []
    if len(body) > 1:
        kept = [n for n in kept if len(set(columns[n])) > 1] or kept[:1]
        said = [f"{heading(names[n])} {short(columns[n][0])}" for n in range(len(names)) if n not in kept and
                columns[n][0] not in ("", "–")]  # fmt: skip
    numeric = [n for n in kept if all(_NUMBER.fullmatch(text) or text in NOTHING for text in columns[n])]
    results = [n for n in kept[1:] if RESULT.search(names[n]) or (n in numeric and any("." in t for t in columns[n]))]
    naming = _told_apart([n for n in kept if n < min(results)], columns)[:MOST_NAMES] if results else []
    naming = naming or kept[:1]
    order = naming + [n for n in results if n not in naming]
    order += [n for n in kept if n not in order]
    for row, texts in zip(rows, [names, *zip(*columns, strict=True)], strict=True):
        for n, text in enumerate(texts):
            if row is not head and n in numeric and short(text) != text:
                row[n].string = short(text)
        parent = row[0].parent
        for cell in row:
            cell.extract()
        first = row[naming[0]]
        for n in naming[1:]:
            first.append(" · ")
            for part in list(row[n].contents):
                first.append(part.extract())
        for n in [naming[0], *order[len(naming) :]]:
            parent.append(row[n])
    return "; ".join(said)
