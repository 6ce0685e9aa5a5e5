"""Set-ups in words."""

from __future__ import annotations

from typing import Any

DESIGN_NAMES = {"packed": "ours", "authors": "the authors’ recipe"}


def label_of(row: Any) -> str:
    """Return a row's set-up in words."""
    return f"{DESIGN_NAMES[row.design]}, {row.precision}, {row.n_actors} actors, {row.learner_ms:g} ms"
