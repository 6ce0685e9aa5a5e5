"""Checkpoints of a run: each a folder that is whole or not there.

checkpoints/000001200/   learner.pt   counters.json   replay/<stamp>/   checksums.json
checkpoints/.replay/     where Reverb writes before its part is moved into a checkpoint
checkpoints/.part/       the checkpoint being written; renamed when everything in it is on disk
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KEPT = 2
CHECKSUMS = "checksums.json"


@dataclass(frozen=True)
class Counters:
    """Where a run stood."""

    actor_steps: int
    learner_steps: int
    wall_time_s: float


def folder(directory: Path) -> Path:
    """Return where a run's checkpoints lie."""
    return Path(directory) / "checkpoints"


def spool(directory: Path) -> Path:
    """Return where Reverb is to write; what an earlier run left there is removed."""
    path = folder(directory) / ".replay"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def latest(directory: Path) -> Path | None:
    """Return the newest checkpoint of a run, None where there is none."""
    found = _all(directory)
    return found[-1] if found else None


def newest_good(directory: Path) -> tuple[Path | None, dict[Path, str]]:
    """Return the newest checkpoint that is as it was written, and what is wrong with those after it."""
    bad: dict[Path, str] = {}
    for path in reversed(_all(directory)):
        if not (wrong := damage(path)):
            return path, bad
        bad[path] = wrong
    return None, bad


def damage(path: Path) -> str:
    """Return which file of a checkpoint is not as it was written; empty where all are."""
    try:
        checksums = json.loads((path / CHECKSUMS).read_text())
    except (OSError, ValueError):
        return f"{CHECKSUMS} cannot be read"
    for name, expected in checksums.items():
        try:
            found = _checksum(path / name)
        except OSError as error:
            return f"{name}: {error.strerror}"
        if found != expected:
            return f"{name} is truncated or corrupt"
    return ""


def _all(directory: Path) -> list[Path]:
    return sorted(path for path in folder(directory).glob("[0-9]*") if path.name.isdigit())


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_counters(path: Path) -> Counters:
    """Return where the run stood at a checkpoint."""
    return Counters(**json.loads((path / "counters.json").read_text()))


def write(
    directory: Path, counters: Counters, learner: Mapping[str, Any], save_replay: Callable[[], Path] | None
) -> Path:
    """Write a checkpoint aside, rename it, and remove those before the last two.

    Args:
        learner: what `State.save` gave; torch's random state is added.
        save_replay: writes the replay into the spool and returns the folder that it made there.
    """
    import torch

    part, final = folder(directory) / ".part", folder(directory) / f"{counters.learner_steps:09d}"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    if save_replay is not None:
        stamp = save_replay()
        (part / "replay").mkdir()
        os.replace(stamp, part / "replay" / stamp.name)
    random = {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state_all()}
    torch.save({"learner": dict(learner), "random": random}, part / "learner.pt")
    (part / "counters.json").write_text(json.dumps(dataclasses.asdict(counters)))
    files = [path for path in part.rglob("*") if path.is_file()]
    (part / CHECKSUMS).write_text(json.dumps({str(path.relative_to(part)): _checksum(path) for path in files}))
    for path in [*part.rglob("*"), part]:
        _flush_to_disk(path)
    if final.exists():  # a resumed run that came by the same step again
        shutil.rmtree(final)
    os.replace(part, final)
    _flush_to_disk(final.parent)
    for old in _all(directory)[:-KEPT]:
        shutil.rmtree(old)
    return final


def read_learner(path: Path) -> Mapping[str, Any]:
    """Return what `State.restore` takes, and set torch's random state."""
    import torch

    saved = torch.load(path / "learner.pt", map_location="cpu", weights_only=True)
    torch.set_rng_state(saved["random"]["cpu"])
    if saved["random"]["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(saved["random"]["cuda"])
    return saved["learner"]


def replay_of(path: Path) -> Path | None:
    """Return the replay's part of a checkpoint as Reverb loads it, None where it has none."""
    stamps = list((path / "replay").glob("*"))
    return stamps[0] if stamps else None


def _flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
