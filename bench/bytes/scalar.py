"""Scalar timestamps: what is left of a vector one when the entries are taken out (ADR 8)."""

from dataclasses import replace

import numpy as np

from totalorder.sequencer.wire.stamps import StampedBatch


def without_entries(stamped: StampedBatch, previous_digest: str) -> StampedBatch:
    """The same batch with g, n and the frontier alone, sealed as the one after `previous_digest`."""
    rows, none = stamped.rows, np.zeros(0, dtype=np.int64)
    bare = replace(rows, entry_start=np.zeros(len(rows) + 1, dtype=np.int64), entry_topic=none, entry_n=none)
    names = {topic: stamped.names[topic] for topic in np.unique(rows.topic).tolist()}
    return replace(stamped, rows=bare, names=names, previous_digest=previous_digest).sealed()
