"""The replay of a run: through Reverb's server, or in shared memory. Reverb is imported only where it is used."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Protocol

from quarl_lib.actorq.config import Config
from quarl_lib.actorq.link import Link
from quarl_lib.actorq.replay import local
from quarl_lib.actorq.replay.transitions import Adder, Batch
from quarl_lib.envs.specs import EnvironmentSpec


class Replay(Protocol):
    """The learner's side of a replay; actors that are in other processes find it at `address`."""

    address: str

    def batches(self, should_stop: Callable[[], bool]) -> Generator[Batch, None, None]:
        """Return batches for as long as the run goes on."""

    def counts(self) -> tuple[int, int]:
        """Return how many transitions were inserted and sampled."""

    def save(self, directory: Path) -> Path:
        """Write what is there into a folder and return what was written."""

    def stop(self) -> None:
        """End it."""


class ReverbReplay:
    """A replay server, and the learner's side of it."""

    def __init__(self, config: Config, spec: EnvironmentSpec, spool: Path | None, saved: Path | None) -> None:
        from quarl_lib.actorq.replay import reverb  # brings TensorFlow: only where it is used

        self._config, self._spec, self._reverb = config, spec, reverb
        self._server = reverb.serve(config, spec, spool, saved)
        self.address = self._server.address

    def batches(self, should_stop: Callable[[], bool]) -> Generator[Batch, None, None]:
        """Return batches for as long as the run goes on."""
        return self._reverb.make_dataset(self._config, self.address, self._spec, should_stop)

    def counts(self) -> tuple[int, int]:
        """Return how many transitions were inserted and sampled since the server began."""
        return self._reverb.insert_and_sample_counts(self.address)

    def save(self, directory: Path) -> Path:
        """Write the server's tables into the folder that it was started with, and return what was written."""
        return self._reverb.checkpoint(self.address)

    def stop(self) -> None:
        """Stop serving."""
        self._server.stop()


def open_replay(
    config: Config, link: Link, spec: EnvironmentSpec, spool: Path | None = None, saved: Path | None = None
) -> Replay:
    """Return the learner's side, as it stood in `saved` where given; `spool` is an empty folder for checkpoints.

    Raises:
        ValueError: `saved` is another kind of replay's, or of another shape.
    """
    if saved is not None and saved.is_file() != config.local_replay:
        kind = "local" if saved.is_file() else "reverb"
        raise ValueError(f"replay={config.replay!r}: the checkpoint {saved} is of another kind; give replay={kind!r}")
    if config.local_replay:
        replay = local.LocalReplay(config, link.replay, spec, link.wait_for_replay)
        if saved is not None:
            replay.restore(saved)
        return replay
    return ReverbReplay(config, spec, spool, saved)


def make_adder(config: Config, link: Link, spec: EnvironmentSpec, actor_id: int) -> Adder:
    """Return one actor's side; waits for the server where there is to be one."""
    if config.local_replay:
        return local.LocalAdder(config, link.replay, spec, actor_id, link.waiting, link.wait_for_replay)
    from quarl_lib.actorq.replay import reverb

    return reverb.make_adder(config, link.address(), spec, link.waiting)
