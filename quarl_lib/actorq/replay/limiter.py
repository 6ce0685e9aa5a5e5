"""A stored replay brings its rate limiter along; a run that goes on from it holds its own config's ratio."""

from __future__ import annotations

import math
import shutil
import sys
from pathlib import Path

from quarl_lib.actorq.config import Config

TABLES = "tables.tfrecord"


def with_limits(stored: Path, beside: Path, table: str, config: Config) -> Path:
    """Return a copy of a stored replay in which a table has the config's ratio, smallest size and buffer.

    Its counts are such that the ratio is held so far. The stored one stays as it is; large files are linked.
    """
    import tensorflow as tf
    from reverb.cc.checkpointing import checkpoint_pb2

    shutil.rmtree(beside, ignore_errors=True)
    copy = beside / stored.name
    copy.mkdir(parents=True)
    for path in stored.iterdir():
        if path.name != TABLES:
            (copy / path.name).symlink_to(path.resolve())
    records = [r.numpy() for r in tf.data.TFRecordDataset(str(stored / TABLES), compression_type="ZLIB")]
    with tf.io.TFRecordWriter(str(copy / TABLES), options="ZLIB") as writer:
        for record in records:
            message = checkpoint_pb2.PriorityTableCheckpoint.FromString(record)
            if message.table_name == table:
                set_limits(message.rate_limiter, config)
            writer.write(message.SerializeToString())
    return copy


def set_limits(limiter, config: Config) -> None:
    """Set a limiter as `replay.serve` makes it; of what was sampled, only as much counts as the ratio allows."""
    ratio, wanted = config.samples_per_insert, config.min_replay
    if not ratio:
        limiter.samples_per_insert, limiter.min_size_to_sample = 1.0, wanted
        limiter.min_diff, limiter.max_diff = -sys.float_info.max, sys.float_info.max
        return
    before = (limiter.samples_per_insert, limiter.min_diff, limiter.max_diff, limiter.min_size_to_sample)
    buffer = config.replay_error_buffer
    now = (ratio, ratio * wanted - buffer, ratio * wanted + buffer, wanted)
    limiter.samples_per_insert, limiter.min_diff, limiter.max_diff, limiter.min_size_to_sample = now
    if before != now:
        limiter.sample_count = max(0, math.floor(ratio * (limiter.insert_count - wanted)))
