"""π: the one order (protocol.md, "One order: π")."""

from itertools import pairwise

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def pi_order(*, rank: Ints, partition: Ints, offset: Ints, timestamp_ms: Ints, time_ms: int) -> Ints:
    """Row numbers of a batch in π: by (τ, rank, partition, offset).

    τ is the largest record timestamp up to the offset within the row's partition, clamped to the batch's time, so that
    one clock that is years ahead cannot drag its partition behind all others. Within a Kafka partition π never inverts
    offsets. The result does not depend on the order of the rows.
    """
    in_partition = np.lexsort((offset, partition, rank))
    tau = timestamp_ms[in_partition]
    starts = np.flatnonzero(
        np.diff(rank[in_partition], prepend=-(2**62)) | np.diff(partition[in_partition], prepend=-(2**62))
    )
    for start, end in pairwise([*starts.tolist(), len(tau)]):
        np.maximum.accumulate(tau[start:end], out=tau[start:end])
    np.minimum(tau, time_ms, out=tau)
    merged = np.lexsort((offset[in_partition], partition[in_partition], rank[in_partition], tau))
    return in_partition[merged]
