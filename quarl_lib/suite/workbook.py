"""Lay a workbook out: notebooks, parameters and a place for outputs, from the package or the checkout it lies in."""

from __future__ import annotations

import shutil
from pathlib import Path

PARTS = ("notebooks", "params", "constraints.txt")


def shipped() -> Path:
    """Return where the package's own notebooks and params lie: inside it in a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    return package / "workbook" if (package / "workbook").is_dir() else package.parent


def lay_out(directory: Path) -> list[Path]:
    """Copy the workbook into a folder, which is made, and return what was put there.

    Raises:
        ValueError: something of it is there already; nothing is overwritten.
    """
    taken = [str(directory / name) for name in PARTS if (directory / name).exists()]
    if taken:
        raise ValueError(f"{', '.join(taken)}: there already; give another folder, or move it away")
    directory.mkdir(parents=True, exist_ok=True)
    for name in PARTS:
        source = shipped() / name
        if source.is_dir():
            shutil.copytree(source, directory / name, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
        else:
            shutil.copyfile(source, directory / name)
    (directory / "outputs").mkdir(exist_ok=True)
    return [directory / name for name in (*PARTS, "outputs")]
