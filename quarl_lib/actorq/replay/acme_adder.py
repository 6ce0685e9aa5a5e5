"""Acme's own adder: the paper's way to write transitions, and the oracle for ours. The only importer of acme."""

from __future__ import annotations

from collections.abc import Callable

import reverb
from acme.adders.reverb import NStepTransitionAdder

from quarl_lib.actorq.config import Config
from quarl_lib.actorq.replay.reverb import REPLAY_TABLE, flush_patiently


class _Client(reverb.Client):
    """A client as Acme 0.2.4 calls it (Reverb 0.14 takes no `get_signature_timeout_ms`).

    Its writers look at the stop flag; Acme's adder would wait for ever where nobody samples any more.
    """

    def __init__(self, address: str, should_stop: Callable[[], bool]) -> None:
        super().__init__(address)
        self._should_stop = should_stop

    def trajectory_writer(self, num_keep_alive_refs, get_signature_timeout_ms=None, **options):
        writer = super().trajectory_writer(num_keep_alive_refs, **options)
        flush, end_episode = writer.flush, writer.end_episode

        def patiently(block_until_num_items: int = 0, timeout_ms: int | None = None) -> None:
            flush_patiently(flush, writer._writer, self, block_until_num_items, self._should_stop)

        def end_patiently(clear_buffers: bool = True, timeout_ms: int | None = None) -> None:
            patiently()  # what would be waited for
            end_episode(clear_buffers)

        writer.flush, writer.end_episode = patiently, end_patiently
        return writer


class AcmeAdder(NStepTransitionAdder):
    """Acme's own adder, the paper's baseline."""

    def __init__(self, config: Config, address: str, should_stop: Callable[[], bool]) -> None:
        super().__init__(
            client=_Client(address, should_stop), n_step=config.n_step, discount=config.discount,
            priority_fns={REPLAY_TABLE: None}, max_in_flight_items=config.flush_period,
        )  # fmt: skip

    def flush(self) -> None:
        """Wait until the server has every transition written so far."""
        self._writer.flush(0)
