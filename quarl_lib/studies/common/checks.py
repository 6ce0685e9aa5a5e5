"""Checks of parameters that several studies share."""

from __future__ import annotations

from collections.abc import Sequence


def check_each_once(name: str, value: Sequence[object]) -> None:
    """Raise ValueError unless the parameter names at least one thing, and each once."""
    if not value or len(set(value)) < len(value):
        raise ValueError(f"{name}={value}: name at least one, each once")
