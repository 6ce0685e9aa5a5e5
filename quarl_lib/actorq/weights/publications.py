"""What actors can see of a publication: how many codes differ from the version before."""

from __future__ import annotations

import os
import time

import numpy as np

from quarl_lib.actorq.config import Config
from quarl_lib.actorq.link import Link
from quarl_lib.actorq.weights.broadcast import subscriber_of
from quarl_lib.inference.layout import BITS, Layout, layout_of
from quarl_lib.inference.spec import PolicySpec

LOOK_EVERY_S = 0.001
LOG_EVERY = 50


def changed_share(layout: Layout, num_weights: int, buffer: np.ndarray, before: np.ndarray) -> float:
    """Return the share of a policy's weight codes that differ between two packed buffers of one layout."""
    changed = 0
    for layer in layout.layers:
        differ, bits = layer.weights.view(buffer) ^ layer.weights.view(before), BITS[layer.kind]
        if bits < 8:  # several codes a byte
            mask = (1 << bits) - 1
            changed += sum(np.count_nonzero(differ & (mask << shift)) for shift in range(0, 8, bits))
        else:
            changed += np.count_nonzero(differ.view(f"u{bits // 8}"))
    return changed / num_weights


def watch(spec: PolicySpec, config: Config, link: Link, reader: int) -> None:
    """Log to the table `publications`, for each version met right after the one before it, the share that changed.

    With the policy's spec bound to it a watcher for `launch.local.run`; at the lowest priority, so that it takes no
    core from what is timed.
    """
    if hasattr(os, "nice"):
        os.nice(19)
    layout, subscriber = layout_of(spec, config.weights_precision), subscriber_of(link, reader)
    seen, before, rows = 0, np.empty(0, np.uint8), []
    while not link.should_stop():
        version = subscriber.version()
        if version == seen:
            time.sleep(LOOK_EVERY_S)
            continue
        buffer = subscriber.fetch().copy()
        if version == seen + 1 and before.size:
            share = changed_share(layout, spec.num_weights, buffer, before)
            rows.append(
                {
                    "version": version,
                    "actor_steps": link.actor_steps(),
                    "learner_steps": link.learner_steps(),
                    "wall_time_s": link.wall_time_s(),
                    "changed_share": share,
                }
            )
        seen, before = version, buffer
        if len(rows) >= LOG_EVERY:
            link.log("publications", rows)
            rows = []
    link.log("publications", rows)
