"""What kafka-python has fetched, as records of the subscriber's own, a batch at a time.

Of a record kafka-python 3.0.12 makes two objects, and calls Python for each number in it. Here the records of a batch
are taken apart by columns. Which batches count (checksums, transactions that were aborted, control records) is
kafka-python's to say, and so is what ails a batch: one that is not as it should be it takes apart itself.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from kafka import TopicPartition
from kafka.consumer.fetcher import Fetcher
from kafka.record.util import decode_varint

from totalorder.kafka_unpacking import BoundedBatches
from totalorder.subscriber.transport import Record, records_of

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
_FEW = 32
"""Of fewer records in a batch columns would take longer."""
_AT_ONCE = 1_000
_MOST_BYTES = 4 << 20
"""A larger batch is not copied as a whole."""
_LONGEST = 8
"""Bytes of a number; all that mean something are shorter."""
_OFFSET = attrgetter("offset")


def read_by_columns(consumer: Any, id_of: Callable[[str], str]) -> Any:
    """Returns the consumer, whose `poll` gives Records from now on, with the ids that `id_of` has of their topics."""

    def parsed(fetch_offset: int, at: TopicPartition, records: Any, *given: Any, **more: Any) -> _PartitionRecords:
        batches = _Batches(BoundedBatches(records, at), at, id_of(at.topic))
        return _PartitionRecords(fetch_offset, at, batches, *given, **more)

    consumer._fetcher.PartitionRecords = parsed
    return consumer


class _Stretch(NamedTuple):
    """Records that follow each other in a batch. To kafka-python they are one, of which these are the value."""

    value: Sequence[Record]
    validate_crc: Callable[[], bool]
    size_in_bytes: int
    key: None = None
    headers: tuple[()] = ()
    timestamp: int = 0
    timestamp_type: int = 0
    checksum: None = None

    @property
    def offset(self) -> int:
        """Of the last one."""
        return self.value[-1].offset


class _PartitionRecords(Fetcher.PartitionRecords):  # type: ignore[misc]
    """kafka-python's, of which stretches come."""

    _rest: Sequence[Record] = ()

    def take(self, n: int) -> list[Record]:
        """The next ones, so many at most. What is met behind some that came is raised the next time."""
        self._maybe_raise_next_inline_exception()
        taken: list[Record] = []
        try:
            while len(taken) < n and (self._rest or self._has_more()):
                part, self._rest = self._rest[: n - len(taken)], self._rest[n - len(taken) :]
                taken += part
                self.next_fetch_offset = part[-1].offset + 1
        except Exception as error:
            if not taken:
                raise
            self._next_inline_exception = error
        return taken

    def _has_more(self) -> bool:
        """A batch that is compressed begins before what was to be fetched."""
        found = None if self.record_iterator is None else next(self.record_iterator, None)
        if found is None:
            return False
        self._rest = found.value[bisect_left(found.value, self.fetch_offset, key=_OFFSET) :]
        return True


class _Batches:
    """kafka-python's batches of a partition."""

    def __init__(self, records: Any, at: TopicPartition, topic_id: str) -> None:
        self._records, self._at, self._topic_id = records, at, topic_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._records, name)

    def next_batch(self) -> "_Batch | None":
        """The next one, if there is one."""
        batch = self._records.next_batch()
        return None if batch is None else _Batch(batch, self._at, self._topic_id)


class _Batch:
    """A batch of kafka-python's, which gives stretches of its records."""

    def __init__(self, batch: Any, at: TopicPartition, topic_id: str) -> None:
        self._batch, self._at, self._topic_id = batch, at, topic_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Any:
        """The record of a control batch."""
        return next(self._batch)

    def __iter__(self) -> Iterator[_Stretch]:
        done = 0
        try:
            for columns in columns_of(self._batch):
                records = records_of(self._at, self._topic_id, *columns)
                yield _Stretch(records, _is_sound, self._batch.size_in_bytes)
                done += len(records)
        except (ValueError, IndexError):
            yield from self._one_by_one(done)

    def _one_by_one(self, done: int) -> Iterator[_Stretch]:
        """As kafka-python takes them apart, behind so many."""
        for one in islice(self._batch, done, None):
            columns = ([one.offset], [one.key], [one.value], [tuple(one.headers)], [one.timestamp])
            yield _Stretch(records_of(self._at, self._topic_id, *columns), one.validate_crc, one.size_in_bytes)


def _is_sound() -> bool:
    """Its batch was looked at."""
    return True


# --- a batch by columns -----------------------------------------------------------------------------------------------

Columns = tuple[Sequence[Any], ...]


def columns_of(batch: Any) -> Iterator[Columns]:
    """Offsets, keys, values, headers and timestamps of a batch, some records at a time.

    ValueError or IndexError where something is not as it should be, or none of this is worth while: those that came
    until then count.
    """
    if batch.magic != 2 or batch.records_count < _FEW:
        raise ValueError
    iter(batch)  # which decompresses it
    if len(batch._buffer) > _MOST_BYTES:
        raise ValueError
    content = bytes(batch._buffer)
    data = np.frombuffer(content + bytes(_LONGEST), np.uint8)
    begins, ends = _records_in(content, batch._pos, batch.records_count)
    for start, end in pairwise([*range(0, len(begins), _AT_ONCE), len(begins)]):
        yield _columns(batch, content, data, np.array(begins[start:end]), np.array(ends[start:end]))


def _records_in(content: bytes, at: int, count: int) -> tuple[list[int], list[int]]:
    """Where records begin, behind their lengths, and end."""
    begins, ends = [], []
    for _ in range(count):
        first, second = content[at], content[at + 1]
        if first > 127 and second < 128 and not first & 1:  # most have two bytes
            size, at = (first & 127 | second << 7) >> 1, at + 2
        else:
            size, at = decode_varint(content, at)
        begins.append(at)
        at += size
        ends.append(at)
        if size < 0:
            raise ValueError
    if at != len(content):
        raise ValueError
    return begins, ends


def _columns(batch: Any, content: bytes, data: Bytes, at: Ints, ends: Ints) -> Columns:
    """Of the records that begin and end there."""
    if data[at].max() > 127:
        raise ValueError  # attributes, of which there are none
    times, at = _numbers(data, at + 1)
    offsets, at = _numbers(data, at)
    keys, at = _payloads(content, data, at)
    values, at = _payloads(content, data, at)
    headers, at = _headers(content, data, at)
    if (at != ends).any():
        raise ValueError
    first_ms, first = batch.first_timestamp, batch.base_offset
    timestamps = [first_ms + later for later in times.tolist()]
    if batch.timestamp_type == batch.LOG_APPEND_TIME:
        timestamps = [batch.max_timestamp] * len(ends)
    return [first + further for further in offsets.tolist()], keys, values, headers, timestamps


def _numbers(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """Those that begin there, and where they end."""
    found, more = np.zeros(len(at), np.int64), np.ones(len(at), np.int64)
    for number in range(_LONGEST):
        byte = data[at].astype(np.int64)
        found |= (byte & 127) * more << 7 * number
        at = at + more
        more &= byte >> 7
        if not more.any():
            return (found >> 1) ^ -(found & 1), at
    raise ValueError


def _payloads(content: bytes, data: Bytes, at: Ints) -> tuple[list[bytes | None], Ints]:
    """Keys or values that begin there with their lengths, and where they end."""
    sizes, at = _numbers(data, at)
    if sizes.max() < 0:
        return [None] * len(at), at
    ends = at + np.maximum(sizes, 0)
    found: list[bytes | None] = [content[begin:end] for begin, end in zip(at.tolist(), ends.tolist(), strict=True)]
    for place in np.flatnonzero(sizes < 0).tolist():
        found[place] = None
    return found, ends


def _headers(content: bytes, data: Bytes, at: Ints) -> tuple[list[tuple[tuple[str, bytes | None], ...]], Ints]:
    """Of all records, and where they end."""
    counts, at = _numbers(data, at)
    found: list[tuple[tuple[str, bytes | None], ...]] = [()] * len(at)
    for place in np.flatnonzero(counts).tolist():
        found[place], at[place] = _headers_at(content, int(at[place]), int(counts[place]))
    return found, at


def _headers_at(content: bytes, at: int, count: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    found = []
    if count < 0:
        raise ValueError
    for _ in range(count):
        size, at = decode_varint(content, at)
        if size < 0:
            raise ValueError
        name, at = content[at : at + size].decode(), at + size
        size, at = decode_varint(content, at)
        found.append((name, content[at : at + size] if size >= 0 else None))
        at += max(0, size)
    return tuple(found), at
