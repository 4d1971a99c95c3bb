"""The content of one stamps partition for one batch: the timestamps, the frontier and the digest.

This is what the engine makes and the subscriber reads; codec.py turns it into Kafka records and back.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from totalorder.sequencer.wire.numbering import spans

Ints = npt.NDArray[np.int64]
DIGEST_BYTES = 16
_AT_ONCE = 1 << 14
"""Rows and entries that are made plain values together."""


class KafkaTopic(NamedTuple):
    """A Kafka topic by name and Kafka's id: one that is deleted and created again is another topic."""

    name: str
    topic_id: str


class Source(NamedTuple):
    """An event partition: of the Kafka topic with this name and this id."""

    topic: str
    topic_id: str
    partition: int

    @property
    def kafka_topic(self) -> KafkaTopic:
        """The topic that it is a partition of."""
        return KafkaTopic(self.topic, self.topic_id)


class Stamp(NamedTuple):
    """One row of StampRows as plain values; `entries` are (topic id, n)."""

    topic: int
    n: int
    g: int
    source: int
    offset: int
    crc: int
    entries: list[tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class StampRows:
    """Timestamps as columns, one row per event, sorted by (topic id, g).

    Row r stamps the event at `sources[source[r]]`, `offset[r]` with `n[r]` (number within its topic) and `g[r]` (index
    in π); its entries are `entry_topic[a:b]`, `entry_n[a:b]` with a, b = `entry_start[r:r+2]`, in ascending topic id.
    Entries are delta-coded unless `keyframe[r]`: an omitted topic of the sequencing group has not advanced since the
    event's predecessor in its topic.
    """

    topic: Ints
    n: Ints
    g: Ints
    source: Ints
    offset: Ints
    crc: Ints
    keyframe: npt.NDArray[np.bool_]
    entry_start: Ints
    entry_topic: Ints
    entry_n: Ints

    def __len__(self) -> int:
        return len(self.topic)

    def entries(self, row: int) -> dict[int, int]:
        """Entries of one row: topic id → LC of that topic at the event's position."""
        start, end = int(self.entry_start[row]), int(self.entry_start[row + 1])
        return dict(zip(self.entry_topic[start:end].tolist(), self.entry_n[start:end].tolist(), strict=True))

    def plain(self, rows: Ints) -> Iterator[Stamp]:
        """The rows of these numbers, many at a time: one by one numpy takes five times as long."""
        starts = self.entry_start[rows]
        lengths = self.entry_start[rows + 1] - starts
        weight = np.cumsum(lengths + 1)
        done = 0
        while done < len(rows):
            before = weight[done - 1] if done else 0
            end = max(done + 1, int(np.searchsorted(weight, before + _AT_ONCE, side="right")))
            yield from self._plain(rows[done:end], starts[done:end], lengths[done:end])
            done = end

    def _plain(self, rows: Ints, starts: Ints, lengths: Ints) -> Iterator[Stamp]:
        at, ends = spans(starts, lengths), np.cumsum(lengths).tolist()
        entries = list(zip(self.entry_topic[at].tolist(), self.entry_n[at].tolist(), strict=True))
        columns = (self.topic, self.n, self.g, self.source, self.offset, self.crc)
        values = zip(*(column[rows].tolist() for column in columns), strict=True)
        for (topic, n, g, source, offset, crc), (start, end) in zip(values, pairwise([0, *ends]), strict=True):
            yield Stamp(topic, n, g, source, offset, crc, entries[start:end])

    def part(self, start: int, end: int) -> "StampRows":
        """The rows from `start` to before `end`."""
        first, last = int(self.entry_start[start]), int(self.entry_start[end])
        return StampRows(
            topic=self.topic[start:end],
            n=self.n[start:end],
            g=self.g[start:end],
            source=self.source[start:end],
            offset=self.offset[start:end],
            crc=self.crc[start:end],
            keyframe=self.keyframe[start:end],
            entry_start=self.entry_start[start : end + 1] - first,
            entry_topic=self.entry_topic[first:last],
            entry_n=self.entry_n[first:last],
        )

    @classmethod
    def empty(cls) -> "StampRows":
        """No rows at all."""
        none = np.zeros(0, dtype=np.int64)
        return cls(
            topic=none,
            n=none,
            g=none,
            source=none,
            offset=none,
            crc=none,
            keyframe=np.zeros(0, dtype=np.bool_),
            entry_start=np.zeros(1, dtype=np.int64),
            entry_topic=none,
            entry_n=none,
        )


@dataclass(frozen=True, kw_only=True)
class StampedBatch:
    """One stamps partition's whole content for one batch; also the frontier "complete through `batch`, π through `g`".

    A partition gets one for every batch with rows, also when it has no event of its own in it.
    """

    domain: str
    partition: int
    partitions: int
    """P, the number of stamps partitions."""
    incarnation: int
    batch: int
    """1, 2, 3 …: the count of batches with rows since the domain began."""
    time_ms: int
    cut: int
    """Number of the cut that the batch comes from: 1, 2, 3 …; a cut without events or requests gives no batch."""
    min_subscriptions: int
    """m of the sequencing groups: with 1, vector timestamps make every subscriber follow π."""
    g: int
    """Last position of π in this batch."""
    control_g: int
    """Position of the last answer on grants at or before `g`; 0 when there was none: the frontier of grants."""
    sources: tuple[Source, ...]
    """The event partitions that the batch advances, in the order in which the domain has first seen them; the same in
    all stamps partitions."""
    ends: tuple[int, ...]
    """Of each of `sources`: last offset seen + 1, at the batch's end."""
    names: Mapping[int, str]
    """Names of every topic id used in `rows`."""
    rows: StampRows
    previous_digest: str
    digest: str = field(default="")

    @property
    def next_offsets(self) -> dict[Source, int]:
        """Last offset seen + 1, at the batch's end, of the event partitions that the batch advances."""
        return dict(zip(self.sources, self.ends, strict=True))

    def sealed(self) -> "StampedBatch":
        """The same with its digest filled in."""
        return replace(self, digest=self.compute_digest())

    def compute_digest(self) -> str:
        """BLAKE2b of 16 bytes, in hex, over the previous digest and the decoded content; encodings never matter."""
        head = {
            "domain": self.domain,
            "partition": self.partition,
            "partitions": self.partitions,
            "incarnation": self.incarnation,
            "batch": self.batch,
            "time_ms": self.time_ms,
            "cut": self.cut,
            "min_subscriptions": self.min_subscriptions,
            "g": self.g,
            "control_g": self.control_g,
            "sources": _digest_of(self.sources, self.ends),
            "names": sorted(self.names.items()),
            "previous": self.previous_digest,
            "sizes": [len(self.rows), len(self.rows.entry_topic)],
        }
        digest = hashlib.blake2b(json.dumps(head, separators=(",", ":")).encode(), digest_size=DIGEST_BYTES)
        rows = self.rows
        for column in (rows.topic, rows.n, rows.g, rows.source, rows.offset, rows.crc):
            digest.update(np.ascontiguousarray(column, dtype="<i8").tobytes())
        digest.update(np.ascontiguousarray(rows.keyframe, dtype=np.uint8).tobytes())
        for column in (rows.entry_start, rows.entry_topic, rows.entry_n):
            digest.update(np.ascontiguousarray(column, dtype="<i8").tobytes())
        return digest.hexdigest()


@lru_cache(maxsize=4)
def _digest_of(sources: tuple[Source, ...], ends: tuple[int, ...]) -> str:
    """Kept, since all stamps partitions of a batch have the same."""
    text = json.dumps([sources, ends], separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()


def first_digest(domain: str, partition: int, identity: str) -> str:
    """What the first batch of a stamps partition has as its previous digest.

    `identity` is the checkpoint's own random name, so that two jobs that both began a domain are told apart.
    """
    seed = json.dumps([domain, partition, identity]).encode()
    return hashlib.blake2b(seed, digest_size=DIGEST_BYTES).hexdigest()
