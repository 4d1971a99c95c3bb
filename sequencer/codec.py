"""Stamps on the wire: one Kafka record per (stamps partition, batch), in parts where it is large.

The value is a zstd frame around a directory in JSON and columns of integers as byte planes (planes.py, docs/adr/0010).
Rows are sorted by topic, then π. Columns hold differences wherever those are smaller: see `_to_columns`. n is not
written, it follows from the directory's `base` (LC of each topic id before its first use in the part). The event
partitions that the batch advances stand in columns of their own in front, equal in all its parts. Digests cover the
decoded content, so that a replay may be cut or compressed differently and still be the same batch.
"""

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from totalorder.errors import LimitExceeded, WireError
from totalorder.sequencer.limits import (
    MAX_BATCH_BYTES,
    MAX_CUT_SOURCES,
    MAX_DIRECTORY_BYTES,
    MAX_ENTRIES_PER_RECORD,
    MAX_PART_BYTES,
    MAX_PARTITION_NUMBER,
    MAX_PARTS,
    MAX_RAW_PART_BYTES,
    MAX_ROW_BYTES,
    MAX_ROWS_PER_RECORD,
    MAX_STAMPS_PARTITIONS,
    MAX_TOPICS_PER_DOMAIN,
)
from totalorder.sequencer.numbering import differences, present, sorted_order, spans
from totalorder.sequencer.planes import from_planes, to_planes, width_of
from totalorder.sequencer.stamps import DIGEST_BYTES, KafkaTopic, Source, StampedBatch, StampRows

Ints = npt.NDArray[np.int64]
VERSION = 4
KIND = "stamps"
_LEVEL, _LEVEL_OF_SMALL, _SMALL = 3, 6, 1 << 14
"""zstd's levels, and the bytes of what is small. Level 6 packs by 3 % better; encoding many events would take a third
longer with it, and few ones take some tenths of a millisecond.
"""
_LENGTH = struct.Struct("<I")
_ROW_COLUMNS = ("topic", "source", "offset", "g", "crc", "keyframe", "entries")
_RANGE = range(1 << 63)
_ROW_BYTES, _ENTRY_BYTES = 57, 16
"""What the columns of StampRows take."""
_ENTRY_COLUMNS = ("entry_topic", "entry_n")
_SOURCE_COLUMNS = ("source_topic", "source_partition", "end")
_UNREADABLE = (
    *(pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError, IndexError),
    *(struct.error, RecursionError, OverflowError),  # cut short, JSON too deep, numbers too large
)
_FOREIGN = "Only the sequencer may write there; look for another writer and restrict it"
_SCALARS = {
    "partition": int,
    "partitions": int,
    "incarnation": int,
    "batch": int,
    "time_ms": int,
    "cut": int,
    "min_subscriptions": int,
    "g": int,
    "control_g": int,
    "domain": str,
    "previous_digest": str,
    "digest": str,
}


@dataclass(frozen=True, kw_only=True)
class WireRecord:
    """A Kafka record of the stamps topic, for the partition that its batch names."""

    value: bytes
    headers: tuple[tuple[str, bytes], ...]


def encode_stamps(stamped: StampedBatch, max_part_bytes: int = MAX_PART_BYTES) -> tuple[WireRecord, ...]:
    """The records of one batch of one stamps partition, in the order in which they must be sent.

    A single stamp that does not fit a part gets a larger one: the names that it uses stand in its directory.
    LimitExceeded when even that is past the limit of a record, or the batch is past its own.
    """
    if bytes_of(stamped.rows) > MAX_BATCH_BYTES:
        raise LimitExceeded(
            f"batch {stamped.batch} has {len(stamped.rows)} stamps with {len(stamped.rows.entry_topic)} entries",
            remedy="Lower max_events_per_batch",
        )
    values = [value for start, end in _cuts(stamped.rows) for value in _parts(stamped, start, end, max_part_bytes)]
    if len(values) > MAX_PARTS:
        raise LimitExceeded(f"batch {stamped.batch} needs {len(values)} parts", remedy="Lower max_events_per_batch")
    return tuple(
        WireRecord(value=value, headers=_headers(stamped, part, len(values))) for part, value in enumerate(values)
    )


def bytes_of(rows: StampRows) -> int:
    """The memory that stamps take; MAX_BATCH_BYTES is about this."""
    return _ROW_BYTES * len(rows) + _ENTRY_BYTES * len(rows.entry_topic)


def _headers(stamped: StampedBatch, part: int, parts: int) -> tuple[tuple[str, bytes], ...]:
    fields: dict[str, str | int] = {
        "kind": KIND,
        "version": VERSION,
        "incarnation": stamped.incarnation,
        "batch": stamped.batch,
        "part": part,
        "parts": parts,
    }
    return tuple((name, str(value).encode()) for name, value in fields.items())


def _cuts(rows: StampRows) -> Iterator[tuple[int, int]]:
    """Row ranges whose uncompressed form is bounded, so that no single row range is encoded in vain too often."""
    weight = np.arange(len(rows) + 1) * 29 + rows.entry_start * 12
    start = 0
    while start < len(rows) or start == 0:
        end = int(np.searchsorted(weight, weight[start] + MAX_RAW_PART_BYTES // 4, side="right")) - 1
        end = max(end, min(start + 1, len(rows)))
        yield start, end
        if end >= len(rows):
            return
        start = end


def _parts(stamped: StampedBatch, start: int, end: int, max_part_bytes: int) -> Iterator[bytes]:
    raw = _encode_rows(stamped, start, end)
    (directory,) = _LENGTH.unpack_from(raw)
    fits = len(raw) <= MAX_RAW_PART_BYTES and directory <= MAX_DIRECTORY_BYTES
    level = _LEVEL if len(raw) > _SMALL else _LEVEL_OF_SMALL
    value = bytes(pa.Codec("zstd", compression_level=level).compress(raw, asbytes=True))
    if fits and (len(value) <= max_part_bytes or (end - start <= 1 and len(value) <= MAX_ROW_BYTES)):
        yield value
    elif end - start <= 1:
        raise LimitExceeded(
            f"one stamp of batch {stamped.batch} needs {len(raw)} bytes, {directory} of them for its directory, and "
            f"{len(value)} when packed; a record may have {MAX_RAW_PART_BYTES}, {MAX_DIRECTORY_BYTES} and "
            f"{MAX_ROW_BYTES}",
            remedy="Use shorter topic names, fewer topics in a subscription, or fewer event partitions",
        )
    else:
        middle = (start + end) // 2
        yield from _parts(stamped, start, middle, max_part_bytes)
        yield from _parts(stamped, middle, end, max_part_bytes)


def _encode_rows(stamped: StampedBatch, start: int, end: int) -> bytes:
    rows = stamped.rows.part(start, end)
    largest = max(int(rows.topic.max(initial=0)), int(rows.entry_topic.max(initial=0)))
    used = present(rows.topic, rows.entry_topic, size=largest + 1)
    columns, base = _to_columns(rows, used)
    columns = _sources_columns(stamped) | columns
    widths = [width_of(column) for column in columns.values()]
    directory = _directory(stamped, rows, used, base) | {"widths": widths}
    head = json.dumps(directory, separators=(",", ":")).encode()
    planes = [to_planes(column, width) for column, width in zip(columns.values(), widths, strict=True)]
    return b"".join([_LENGTH.pack(len(head)), head, *planes])


def _to_columns(rows: StampRows, used: Ints) -> tuple[dict[str, Ints], Ints]:
    """What is written of the rows: small numbers, and mostly the same ones; and each topic's clock as their base.

    `topic` is the difference of the topic's place in the directory to the row before, `offset` and `g` of theirs;
    `entries` counts the row's entries; `entry_topic` is the difference of the place to the row's entry before, and
    `entry_n` of n above its base to the last earlier entry, in π, for the same topic. A base is the first row's n - 1,
    or without rows the first entry's n.
    """
    place, row_place = np.searchsorted(used, rows.entry_topic), np.searchsorted(used, rows.topic)
    lengths = np.diff(rows.entry_start)
    apart = differences(place, 0)
    begins = rows.entry_start[:-1][lengths > 0]
    apart[begins] = place[begins]
    order, first = _mentions(place, rows.entry_start, rows.g, len(used))
    mentioned = rows.entry_n[order]
    base, first_row = np.zeros(len(used), dtype=np.int64), np.flatnonzero(differences(row_place, -1))
    base[place[order[first]]] = mentioned[first]
    base[row_place[first_row]] = rows.n[first_row] - 1
    more = differences(mentioned, 0)
    more[first] = mentioned[first] - base[place[order[first]]]
    entry_n = np.empty_like(more)
    entry_n[order] = more
    offset, g = _first(rows)
    columns = {
        "topic": differences(row_place, 0),
        "source": rows.source,
        "offset": differences(rows.offset, offset),
        "g": differences(rows.g, g),
        "crc": rows.crc.astype(np.uint32).view(np.int32).astype(np.int64),
        "keyframe": rows.keyframe.astype(np.int64),
        "entries": lengths,
        "entry_topic": apart,
        "entry_n": entry_n,
    }
    return columns, base


def _sources_columns(stamped: StampedBatch) -> dict[str, Ints]:
    """`source_topic` and `source_partition` are the differences to the source before, of the topic's place among the
    directory's Kafka topics and of the partition's number.
    """
    place = {topic: at for at, topic in enumerate(_kafka_topics(stamped))}
    topic = np.array([place[source.kafka_topic] for source in stamped.sources], dtype=np.int64)
    partition = np.array([source.partition for source in stamped.sources], dtype=np.int64)
    ends = np.array(stamped.ends, dtype=np.int64)
    return dict(zip(_SOURCE_COLUMNS, (differences(topic, 0), differences(partition, 0), ends), strict=True))


def _kafka_topics(stamped: StampedBatch) -> list[KafkaTopic]:
    return list(dict.fromkeys(source.kafka_topic for source in stamped.sources))


def _mentions(place: Ints, entry_start: Ints, g: Ints, topics: int) -> tuple[Ints, Ints]:
    """The entries sorted by (topic, g), and where in that order each topic's first one is."""
    by_g = np.argsort(g, kind="stable")
    in_pi = spans(entry_start[:-1][by_g], np.diff(entry_start)[by_g])
    order = in_pi[sorted_order(place[in_pi], size=topics)]
    return order, np.flatnonzero(differences(place[order], -1))


def _directory(stamped: StampedBatch, rows: StampRows, used: Ints, base: Ints) -> dict[str, Any]:
    return {name: getattr(stamped, name) for name in _SCALARS} | {
        "kafka_topics": _kafka_topics(stamped),
        "sources": len(stamped.sources),
        "ids": differences(used, 0).tolist(),
        "names": [stamped.names[topic] for topic in used.tolist()],
        "base": base.tolist(),
        "rows": len(rows),
        "entries": len(rows.entry_topic),
        "first": _first(rows),
    }


def _first(rows: StampRows) -> tuple[int, int]:
    """Offset and g that the differences of these columns begin at."""
    return (int(rows.offset[0]), int(rows.g[0])) if len(rows) else (0, 0)


_MOST_ATTEMPTS = 4
"""More that are not complete are forgotten, oldest first: a job has one process, and now and then one that is dying."""


@dataclass(eq=False)
class _Attempt:
    """The parts of one batch that have come, from the first one on. `offset` is the first one's place in the log."""

    key: tuple[int, int, int]
    """Incarnation, batch, number of parts."""
    offset: int
    parts: list[StampedBatch] = field(default_factory=list)
    """All with the first one's sources and offsets, and without names: however many there are, these count once."""
    names: dict[int, str] = field(default_factory=dict)
    bytes: int = 0

    def fits(self, part: StampedBatch) -> bool:
        return not self.parts or _frame(part) == _frame(self.parts[0])

    def hold(self, part: StampedBatch) -> None:
        self.names |= part.names
        self.bytes += bytes_of(part.rows)
        self.parts.append(replace(self.parts[0] if self.parts else part, rows=part.rows, names={}))

    def whole(self) -> StampedBatch:
        return replace(self.parts[0], rows=_joined([each.rows for each in self.parts]), names=self.names)


class StampsAssembler:
    """Puts the parts of one stamps partition together again, in log order.

    A job that was killed runs its batch once more, and its former process may still write: parts of several attempts,
    also at different batches, may come interleaved. An attempt that wrote all its parts is found among any others.
    """

    def __init__(self, *, domain: str, partition: int) -> None:
        self._domain = domain
        self._partition = partition
        self._attempts: list[_Attempt] = []
        self.began_at = 0
        """Offset of the first part of the batch that `add` returned last."""

    @property
    def waiting(self) -> bool:
        """Whether a batch has begun of which parts are missing."""
        return bool(self._attempts)

    def add(self, value: bytes | None, headers: Mapping[str, bytes], *, offset: int = 0) -> StampedBatch | None:
        """Takes the next record, which stands at `offset`; returns the batch that it completes, or None.

        WireError for a record that is not one of stamps, belongs elsewhere, or whose content does not give its digest.
        """
        batch, incarnation, part, parts = self._place(headers)
        key = (incarnation, batch, parts)
        if part == 0:
            self._attempts = [*self._attempts, _Attempt(key, offset)][-_MOST_ATTEMPTS:]
        going_on = [each for each in self._attempts if each.key == key and len(each.parts) == part]
        if not going_on:
            return None  # the tail of a batch whose beginning lies before where we began to read
        decoded = decode_part(value)
        if (decoded.domain, decoded.partition, decoded.batch) != (self._domain, self._partition, batch):
            raise self._error(f"it says that it belongs to {decoded.domain}[{decoded.partition}] batch {decoded.batch}")
        fitting = [each for each in going_on if each.fits(decoded)]
        if not fitting:
            raise self._error(f"its part {part} does not fit the first one of batch {batch}")
        for attempt in fitting:
            attempt.hold(decoded)
        self._bound(fitting[-1])
        return self._finish(fitting, batch) if part + 1 == parts else None

    def _finish(self, attempts: Sequence[_Attempt], batch: int) -> StampedBatch:
        """The batch of the first attempt whose parts belong together; what was begun of it or before is forgotten."""
        self._attempts = [each for each in self._attempts if each.key[:2] > attempts[0].key[:2]]
        for attempt in attempts:
            whole = attempt.whole()
            if whole.compute_digest() == whole.digest:
                self.began_at = attempt.offset
                return whole
        raise self._error(f"the content of batch {batch} does not give its digest")

    def _bound(self, latest: _Attempt) -> None:
        if latest.bytes > MAX_BATCH_BYTES or len(latest.names) > MAX_TOPICS_PER_DOMAIN:
            self._attempts.clear()
            raise self._error(f"batch {latest.key[1]} has more stamps, entries or topics than a batch may have")
        while sum(each.bytes for each in self._attempts) > MAX_BATCH_BYTES:
            self._attempts.remove(next(each for each in self._attempts if each is not latest))

    def _place(self, headers: Mapping[str, bytes]) -> tuple[int, int, int, int]:
        if headers.get("kind") != KIND.encode():
            raise self._error("it has no header kind=stamps")
        if headers.get("version") != str(VERSION).encode():
            raise WireError(
                f"a record of stamps has version {headers.get('version')!r}; this program reads {VERSION}",
                remedy="Update totalorder on this side",
            )
        try:
            batch, incarnation, part, parts = (int(headers[name]) for name in ("batch", "incarnation", "part", "parts"))
        except (KeyError, ValueError):
            raise self._error("its headers are not those of stamps") from None
        if not (0 <= part < parts <= MAX_PARTS):
            raise self._error(f"it is part {part} of {parts}")
        return batch, incarnation, part, parts

    def _error(self, why: str) -> WireError:
        return WireError(f"a record of {self._domain}.stamps[{self._partition}] is not usable: {why}", remedy=_FOREIGN)


def _frame(part: StampedBatch) -> tuple[object, ...]:
    """What all parts of a batch have in common: the last one's stands for all, and the digest covers it."""
    scalars = tuple(getattr(part, name) for name in _SCALARS)
    return (*scalars, part.sources, part.ends)


def _joined(parts: list[StampRows]) -> StampRows:
    if len(parts) == 1:
        return parts[0]
    shifts = np.cumsum([0] + [len(rows.entry_topic) for rows in parts])
    starts = [rows.entry_start[:-1] + shift for rows, shift in zip(parts, shifts[:-1], strict=True)]
    columns = {
        name: np.concatenate([getattr(rows, name) for rows in parts])
        for name in StampRows.__dataclass_fields__
        if name != "entry_start"
    }
    return StampRows(**columns, entry_start=np.concatenate([*starts, shifts[-1:]]).astype(np.int64))


def unpacked(value: bytes) -> tuple[bytes, memoryview]:
    """The directory, JSON, and the columns behind it of a record's value; ValueError where either has more bytes than
    it may have, before they are read.
    """
    with pa.CompressedInputStream(pa.BufferReader(value), "zstd") as stream:
        raw = memoryview(stream.read(MAX_RAW_PART_BYTES + 1))
    if len(raw) > MAX_RAW_PART_BYTES:
        raise ValueError(f"more than {MAX_RAW_PART_BYTES} bytes when unpacked")
    (length,) = _LENGTH.unpack_from(raw)
    if length > MAX_DIRECTORY_BYTES:
        raise ValueError(f"its directory has more than {MAX_DIRECTORY_BYTES} bytes")
    end = _LENGTH.size + length
    return bytes(raw[_LENGTH.size : end]), raw[end:]


def decode_part(value: bytes | None) -> StampedBatch:
    """Reads one part as a batch of its own; WireError for anything that the encoder cannot have written."""
    if value is None:
        raise WireError("a record of stamps has no value", remedy=_FOREIGN)
    try:
        head, planes = unpacked(value)
        return _decode_rows(planes, json.loads(head))
    except _UNREADABLE as error:
        raise WireError(f"a record of stamps cannot be read: {error!r}", remedy=_FOREIGN) from None


def _decode_rows(planes: memoryview, directory: Mapping[str, Any]) -> StampedBatch:
    used, base = np.cumsum(_numbers(directory["ids"])), _numbers(directory["base"])
    if len(used) != len(base) or (differences(used, -1) <= 0).any():
        raise ValueError("the directory is not in order")
    columns = _columns(planes, directory)
    rows = _from_columns(columns, directory["first"], used, base)
    sources = _sources(columns, directory["kafka_topics"])
    if len(rows) and not (rows.source.min() >= 0 and rows.source.max() < len(sources)):
        raise ValueError("a source is not in the directory")
    if not 0 <= directory["partition"] < directory["partitions"] <= MAX_STAMPS_PARTITIONS:
        raise ValueError("partition numbers are out of range")
    if len(directory["digest"]) != 2 * DIGEST_BYTES:
        raise ValueError("the digest is cut short")
    names = [_typed(name, str) for name in directory["names"]]
    return StampedBatch(
        **{name: _typed(directory[name], kind) for name, kind in _SCALARS.items()},
        sources=sources,
        ends=tuple(columns["end"].tolist()),
        names=dict(zip(used.tolist(), names, strict=True)),
        rows=rows,
    )


def _columns(planes: memoryview, directory: Mapping[str, Any]) -> dict[str, Ints]:
    """The columns as they were written, each of its full length."""
    rows, entries, sources = (_typed(directory[name], int) for name in ("rows", "entries", "sources"))
    if rows > MAX_ROWS_PER_RECORD or entries > MAX_ENTRIES_PER_RECORD or sources > MAX_CUT_SOURCES:
        raise ValueError("too many rows, entries or sources")
    counts = dict.fromkeys(_SOURCE_COLUMNS, sources)
    counts |= dict.fromkeys(_ROW_COLUMNS, rows) | dict.fromkeys(_ENTRY_COLUMNS, entries)
    found = {}
    for (name, count), width in zip(counts.items(), directory["widths"], strict=True):
        found[name], planes = from_planes(planes, count, _typed(width, int))
    lengths = found["entries"]
    if len(planes) or (lengths < 0).any() or lengths.sum() != entries:
        raise ValueError("the columns do not fit each other")
    return found


def _sources(columns: Mapping[str, Ints], kafka_topics: Any) -> tuple[Source, ...]:
    """Undoes `_sources_columns`."""
    topics = [KafkaTopic(_typed(name, str), _typed(topic_id, str)) for name, topic_id in kafka_topics]
    place = _checked(np.cumsum(columns["source_topic"]), len(topics))
    partition = np.cumsum(columns["source_partition"])
    if len(partition) and not (partition.min() >= 0 and partition.max() <= MAX_PARTITION_NUMBER):
        raise ValueError("the number of a partition is out of range")
    if columns["end"].min(initial=0) < 0:
        raise ValueError("a partition ends below 0")
    each = zip(place.tolist(), partition.tolist(), strict=True)
    sources = tuple(Source(topics[at].name, topics[at].topic_id, part) for at, part in each)
    if len(set(sources)) < len(sources):
        raise ValueError("an event partition is there twice")
    return sources


def _from_columns(columns: Mapping[str, Ints], first: Sequence[int], used: Ints, base: Ints) -> StampRows:
    """Undoes `_to_columns`; ValueError for a place that is not in the directory."""
    lengths, steps = columns["entries"], columns["entry_topic"]
    entry_start = np.append(0, np.cumsum(lengths))
    row_of_topic = _checked(np.cumsum(columns["topic"]), len(used))
    climbed = np.cumsum(steps)
    begins = entry_start[:-1]
    before = np.append(0, climbed)[begins]
    place = _checked(climbed - np.repeat(before, lengths), len(used))
    g = _typed(first[1], int) + np.cumsum(columns["g"])
    order, starts = _mentions(place, entry_start, g, len(used))
    risen = np.cumsum(columns["entry_n"][order])
    mentions = np.diff(np.append(starts, len(place)))
    above = np.empty_like(risen)
    above[order] = risen - np.repeat(np.append(0, risen)[starts], mentions)
    topic = used[row_of_topic]
    return StampRows(
        topic=topic,
        n=base[row_of_topic] + 1 + _occurrence(topic),
        g=g,
        source=columns["source"],
        offset=_typed(first[0], int) + np.cumsum(columns["offset"]),
        crc=columns["crc"] & 0xFFFFFFFF,
        keyframe=columns["keyframe"] != 0,
        entry_start=entry_start,
        entry_topic=used[place],
        entry_n=base[place] + above,
    )


def _checked(place: Ints, size: int) -> Ints:
    if len(place) and not (place.min() >= 0 and place.max() < size):
        raise ValueError("a topic is not in the directory")
    return place


def _occurrence(topic: Ints) -> Ints:
    """For rows grouped by topic: how many rows of the same topic came before each."""
    first = np.flatnonzero(differences(topic, -1))
    counts = np.diff(np.append(first, len(topic)))
    return np.arange(len(topic), dtype=np.int64) - np.repeat(first, counts)


def _typed(value: Any, kind: type) -> Any:
    """The value, which must be a text that UTF-8 can hold, or a number that is not negative and has 64 bits."""
    if type(value) is not kind or (kind is int and value not in _RANGE):
        raise ValueError(f"{value!r} is not of type {kind.__name__}, or out of range")
    if kind is str:
        str(value).encode()
    return value


def _numbers(values: Any) -> Ints:
    """A flat list of numbers."""
    found = np.array(values)
    if found.ndim != 1 or (len(found) and found.dtype != np.int64):
        raise ValueError("not a list of numbers")
    return found.astype(np.int64)
