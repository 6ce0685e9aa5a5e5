"""Keep what a cell prints within bounds: its first and its last part, and how much was left out between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

NOTEBOOK_HEAD, NOTEBOOK_TAIL = 100_000, 50_000  # characters of each stream of each cell
LOG_CHARACTERS = 5_000_000


def capped(text: str, head: int, tail: int) -> str:
    """Return a text, or its first and last part where it is longer than both, and how much stood between."""
    return text if len(text) <= head + tail else join(text[:head], len(text) - head - tail, text[-tail:])


def join(first: str, left_out: int, last: str) -> str:
    """Return a first and a last part with a line between them that says how much was left out."""
    return f"{first}\n… {left_out:,} characters left out …\n{last}"


@dataclass
class Cap:
    """One stream while it grows: hand on what comes first, keep the last part back until the end."""

    head: int = NOTEBOOK_HEAD
    tail: int = NOTEBOOK_TAIL
    seen: int = 0
    last: list[str] = field(default_factory=list)

    def take(self, text: str) -> str:
        """Return what of a further piece still belongs to the first part."""
        room = max(0, self.head - self.seen)
        self.seen += len(text)
        if len(text) > room:
            self.last.append(text[room:])
            if sum(map(len, self.last)) > 2 * self.tail:
                self.last = ["".join(self.last)[-self.tail :]]
        return text[:room]

    def rest(self) -> str:
        """Return the last part, after the line that says what stood before it; nothing where all was handed on."""
        kept = "".join(self.last)[-self.tail :]
        left_out = self.seen - self.head - len(kept)
        if not kept:
            return ""
        return join("", left_out, kept) if left_out > 0 else kept


@dataclass
class Log:
    """Write to a log until it holds `characters`, then say once that it is full."""

    write: Callable[[str], object]
    characters: int = LOG_CHARACTERS

    def add(self, text: str) -> None:
        """Write a text, or what of it there is still room for."""
        if self.characters <= 0:
            return
        self.write(text[: self.characters])
        self.characters -= len(text)
        if self.characters <= 0:
            self.write("… the log is full; what the notebook printed from here on is left out …")
