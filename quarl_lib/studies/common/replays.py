"""What a study leaves out where Reverb, the replay server, is not installed."""

from __future__ import annotations

from collections.abc import Sequence

from quarl_lib.actorq.config import REVERB_INSTALL, has_reverb


def runnable(choices: Sequence[str], needing_reverb: str) -> list[str]:
    """Return the choices that this installation can run: all, or all but the one that needs Reverb.

    Where that is the only one it stays, so that it is refused by name.
    """
    return [choice for choice in choices if choice != needing_reverb or has_reverb()] or list(choices)


def left_out(choices: Sequence[str], needing_reverb: str) -> str:
    """Say which of a study's choices was left out and what would bring it; empty where none was."""
    if runnable(choices, needing_reverb) == list(choices):
        return ""
    return f"Left out: `{needing_reverb}`, because Reverb is not installed. It comes with `{REVERB_INSTALL}`."
