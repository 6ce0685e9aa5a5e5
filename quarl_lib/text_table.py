"""Tables for a terminal: aligned columns within its width, long cells on several lines."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Mapping, Sequence

GAP = 2
NARROWEST = 8  # no column that needs more gets narrower


def text_table(rows: Sequence[Mapping[str, str]], columns: Sequence[str], width: int | None = None) -> str:
    """Lay out texts under their columns' names; numbers to the right, and `note` across the columns after the first.

    A column that is empty in every row is left out.
    `width` is the terminal's by default. A line break in a text stays one.
    """
    columns = [name for name in columns if any(row.get(name) for row in rows)]
    width = width or shutil.get_terminal_size().columns
    widths = _widths([[name, *(row.get(name, "") for row in rows)] for name in columns], width)
    right = [all(re.fullmatch(r"[\d,.]*", row.get(name, "")) for row in rows) for name in columns]
    lines = [_line(columns, widths, right)]
    for row in rows:
        first, *others = [row.get(name, "") for name in columns]
        note = row.get("note", "")
        if any(others) or not note:
            lines.append(_line([first, *others], widths, right))
            first = ""
        if note:
            lines.append(_line([first, note], [widths[0], max(width - widths[0] - GAP, NARROWEST)], [False, False]))
    return "\n".join(lines)


def _widths(columns: Sequence[Sequence[str]], width: int) -> list[int]:
    """Give each column what it needs, and where that is too much, take from the widest down to its name."""
    widths = [max(len(line) for text in texts for line in text.split("\n")) for texts in columns]
    least = [max(len(texts[0]), NARROWEST) for texts in columns]
    while sum(widths) + GAP * (len(widths) - 1) > width:
        spare = [own if own > floor else 0 for own, floor in zip(widths, least, strict=True)]
        if not any(spare):
            break
        widths[spare.index(max(spare))] -= 1
    return widths


def _line(texts: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    """Lay out one row, on as many lines as its longest cell needs."""
    cells = [
        [line for part in text.split("\n") for line in textwrap.wrap(part, width) or [""]]
        for text, width in zip(texts, widths, strict=True)
    ]
    lines = []
    for index in range(max(map(len, cells))):
        parts = [cell[index] if index < len(cell) else "" for cell in cells]
        aligned = [
            part.rjust(width) if to_right else part.ljust(width)
            for part, width, to_right in zip(parts, widths, right, strict=True)
        ]
        lines.append((" " * GAP).join(aligned).rstrip())
    return "\n".join(lines)
