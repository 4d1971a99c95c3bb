"""π: the one order (protocol.md, "π, the one order")."""

import numpy as np
import numpy.typing as npt

from totalorder.sequencer.wire.numbering import differences

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
    tau = np.minimum(timestamp_ms[in_partition], time_ms)
    _let_none_fall(tau, starts)
    # Sorting is stable: what is equal stays in the order of topic, partition and offset.
    by_tau = np.argsort(tau, kind="stable")
    if not _varies(slice_):
        return in_partition[by_tau]
    slices = slice_[in_partition]
    falls = _falls(slices, starts)
    if len(falls):
        raise SliceFalls(int(in_partition[falls[0]]))
    return in_partition[by_tau[np.argsort(slices[by_tau], kind="stable")]]


def _varies(column: Ints) -> bool:
    return bool((column != column[:1]).any())


def _falls(column: Ints, starts: Ints) -> Ints:
    """Where a value is less than the one before it in the same partition; partitions begin at `starts`."""
    falls = np.empty(len(column), dtype=np.bool_)
    np.less(column[1:], column[:-1], out=falls[1:])
    falls[starts] = False
    return np.flatnonzero(falls)


def _let_none_fall(tau: Ints, starts: Ints) -> None:
    """Raises each value to the largest up to it in its partition. Most partitions have none that falls."""
    bounds = np.append(starts, len(tau))
    for number in set(np.searchsorted(starts, _falls(tau, starts), side="right").tolist()):
        one = tau[bounds[number - 1] : bounds[number]]
        np.maximum.accumulate(one, out=one)
