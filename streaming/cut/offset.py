"""What Spark's write-ahead log holds of each batch: where it ends in every partition, and the looks that cut it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Advance(NamedTuple):
    """In a look the partition was further by `count` offsets than in the look before.

    `place` counts partitions as `BatchEnd.places` does.
    """

    place: int
    count: int


@dataclass(frozen=True, kw_only=True)
class BatchEnd:
    """The end of a batch, and so the beginning of the next.

    `cut` counts batches from 1 (0 is where the domain begins). `order` is the number of the list of topics that decides
    ties, among those that the domain's record has; -1 for none. `ends` holds the next offset of each partition, by the
    topic's number in the domain's record. `looks` are the looks within the batch, oldest first, each as what had
    advanced since the look before (the first: since the batch's begin). What the last one lacks to the ends is the last
    slice. So slice k holds what look k has and look k - 1 has not.
    """

    cut: int
    order: int
    ends: Mapping[int, tuple[int, ...]]
    looks: tuple[tuple[Advance, ...], ...]
