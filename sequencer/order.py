"""π: the one order (protocol.md, "π, the one order")."""

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from totalorder.sequencer.numbering import differences

Ints = npt.NDArray[np.int64]
_NONE = np.iinfo(np.int64).min
"""No rank and no partition."""


class SliceFalls(ValueError):
    """The record of this row is in an earlier slice than one before it in its partition."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


def pi_order(
    *, slice_: Ints, rank: Ints, precedence: Ints, partition: Ints, offset: Ints, timestamp_ms: Ints, time_ms: int
) -> Ints:
    """Row numbers of a batch in π: by (slice, τ, precedence, rank, partition, offset).

    τ is the largest record timestamp up to the offset within the row's partition, in whatever slice of the batch,
    clamped to the batch's time, so that one clock that is years ahead cannot drag its partition behind all others.
    `precedence` and `rank` are the row's Kafka topic's, the rank its alone. Within a Kafka partition π never inverts
    offsets: SliceFalls where the slices would. The result does not depend on the order of the rows.
    """
    topic = (rank, precedence) if _varies(precedence) else (rank,)
    in_partition = np.lexsort((offset, partition, *topic))
    new_rank = differences(rank[in_partition], _NONE) != 0
    starts = np.flatnonzero(new_rank | (differences(partition[in_partition], _NONE) != 0))
    tau = timestamp_ms[in_partition]
    for start, end in pairwise([*starts.tolist(), len(tau)]):
        np.maximum.accumulate(tau[start:end], out=tau[start:end])
    np.minimum(tau, time_ms, out=tau)
    # Sorting is stable: what is equal stays in the order of topic, partition and offset.
    by_tau = np.argsort(tau, kind="stable")
    if not _varies(slice_):
        return in_partition[by_tau]
    slices = slice_[in_partition]
    _require_rising(slices, starts, in_partition)
    return in_partition[by_tau[np.argsort(slices[by_tau], kind="stable")]]


def _varies(column: Ints) -> bool:
    return bool((column != column[:1]).any())


def _require_rising(slices: Ints, starts: Ints, rows: Ints) -> None:
    """Along each partition, which begins anew at `starts`, slices may not fall."""
    rises = differences(slices, 0)
    rises[starts] = 0
    if (rises < 0).any():
        raise SliceFalls(int(rows[np.argmin(rises)]))
