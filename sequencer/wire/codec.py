"""Stamps on the wire: one Kafka record per (stamps partition, batch), in parts where it is large.

The value is a zstd frame around a directory in JSON and columns of integers as byte planes (planes.py, docs/adr/0010).
Rows are sorted by topic, then π. Columns hold differences wherever those are smaller: see `_to_columns`. n is not
written, it follows from the directory's `base` (LC of each topic id before its first use in the part). The event
partitions that the batch advances stand in columns of their own in front, equal in all its parts. Digests cover the
decoded content, so that a replay may be cut or compressed differently and still be the same batch.
"""

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from totalorder.errors import LimitExceeded, WireError
from totalorder.sequencer.wire.budget import affordable, parse_json
from totalorder.sequencer.wire.limits import (
    MAX_BATCH_BYTES,
    MAX_COUNT,
    MAX_CUT_SOURCES,
    MAX_DIRECTORY_BYTES,
    MAX_PART_BYTES,
    MAX_PART_MEMORY_BYTES,
    MAX_PARTITION_NUMBER,
    MAX_PARTS,
    MAX_RAW_PART_BYTES,
    MAX_ROW_BYTES,
    MAX_STAMPS_PARTITIONS,
    MAX_TIME_MS,
    MAX_TOPICS_PER_DOMAIN,
)
from totalorder.sequencer.wire.numbering import check_within, differences, present, sorted_order, spans
from totalorder.sequencer.wire.planes import from_planes, to_planes, width_of
from totalorder.sequencer.wire.stamps import DIGEST_BYTES, KafkaTopic, Source, StampedBatch, StampRows
from totalorder.sequencer.wire.values import number, text

Ints = npt.NDArray[np.int64]
VERSION = 4
KIND = "stamps"
_LEVEL, _LEVEL_OF_SMALL, _SMALL = 3, 6, 1 << 14
"""zstd's levels, and the bytes of what is small. Level 6 packs by 3 % better; encoding many events would take a third
longer with it, and few ones take some tenths of a millisecond.
"""
_LENGTH = struct.Struct("<I")
_ROW_COLUMNS = ("topic", "source", "offset", "g", "crc", "keyframe", "entries")
_ROW_BYTES, _ENTRY_BYTES = 57, 16
"""What the columns of StampRows take."""
_ENTRY_COLUMNS = ("entry_topic", "entry_n")
_SOURCE_COLUMNS = ("source_topic", "source_partition", "end")
_UNREADABLE = (
    *(pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError, IndexError),
    *(struct.error, RecursionError, OverflowError),  # cut short, JSON too deep, numbers too large
)
_FOREIGN = "Only the sequencer may write there; look for another writer and restrict it"
_SCALARS: dict[str, Callable[[object], Any]] = {
    "partition": number,
    "partitions": number,
    "incarnation": number,
    "batch": number,
    "time_ms": number,
    "cut": number,
    "min_subscriptions": number,
    "g": number,
    "control_g": number,
    "domain": text,
    "previous_digest": text,
    "digest": text,
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
    fits = len(raw) <= MAX_RAW_PART_BYTES and directory <= MAX_DIRECTORY_BYTES and _is_affordable(raw, directory)
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


def _is_affordable(raw: bytes, directory: int) -> bool:
    return affordable(raw[_LENGTH.size : _LENGTH.size + directory])


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
    """The parts of one batch that have come, from the first one on. `offset` is the first one's place in the log.

    They wait as they came: whatever they unpack to, what never becomes whole costs no more than it did on the wire.
    """

    key: tuple[int, int, int]
    """Incarnation, batch, number of parts."""
    offset: int
    values: list[bytes | None] = field(default_factory=list)
    size: int = 0
    """Bytes of all of them."""

    def hold(self, value: bytes | None) -> None:
        self.values.append(value)
        self.size += len(value or b"")


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

    @property
    def begun(self) -> StampedBatch | None:
        """The first part that has come of the newest batch that is not complete, for all but its rows and names.

        WireError where that is none.
        """
        if not self._attempts:
            return None
        newest = max(self._attempts, key=lambda each: each.key[:2])
        return self._first(newest.values, newest.key[1], None)

    def add(self, value: bytes | None, headers: Mapping[str, bytes], *, offset: int = 0) -> StampedBatch | None:
        """Takes the next record, which stands at `offset`; returns the batch that it completes, or None.

        WireError for a record that is not one of stamps, belongs elsewhere, or whose content does not give its digest.
        """
        batch, incarnation, part, parts = self._place(headers)
        key = (incarnation, batch, parts)
        if part == 0:
            self._attempts = [*self._attempts, _Attempt(key, offset)][-_MOST_ATTEMPTS:]
        going_on = [each for each in self._attempts if each.key == key and len(each.values) == part]
        if not going_on:
            return None  # the tail of a batch whose beginning lies before where we began to read
        for attempt in going_on:
            attempt.hold(value)
        self._bound(going_on[-1])
        return self._finish(going_on, batch) if part + 1 == parts else None

    def _finish(self, attempts: Sequence[_Attempt], batch: int) -> StampedBatch:
        """The batch of the first attempt whose parts belong together; what was begun of it or before is forgotten."""
        self._attempts = [each for each in self._attempts if each.key[:2] > attempts[0].key[:2]]
        why = self._error(f"the content of batch {batch} does not give its digest")
        for attempt in attempts:
            try:
                whole = self._whole(attempt.values, batch)
            except WireError as error:
                why = error
                continue
            if whole.compute_digest() == whole.digest:
                self.began_at = attempt.offset
                return whole
        raise why

    def _whole(self, values: Sequence[bytes | None], batch: int) -> StampedBatch:
        """The batch of these parts; what it takes in memory is known before each part's columns are unpacked."""
        taken = 0

        def charge(size: int) -> None:
            nonlocal taken
            taken += size
            if taken > MAX_BATCH_BYTES:
                raise self._too_large(batch)

        first = self._first(values, batch, charge)
        names, rows = dict(first.names), [first.rows]
        for at, value in enumerate(values[1:], 1):
            part = decode_part(value, charge)
            if _frame(part) != _frame(first):
                raise self._error(f"its part {at} does not fit the first one of batch {batch}")
            names |= part.names
            rows.append(part.rows)
            if len(names) > MAX_TOPICS_PER_DOMAIN:
                break
        if len(names) > MAX_TOPICS_PER_DOMAIN:
            raise self._too_large(batch)
        return replace(first, rows=_joined(rows), names=names)

    def _first(self, values: Sequence[bytes | None], batch: int, charge: Callable[[int], None] | None) -> StampedBatch:
        first = decode_part(values[0], charge)
        if (first.domain, first.partition, first.batch) != (self._domain, self._partition, batch):
            raise self._error(f"it says that it belongs to {first.domain}[{first.partition}] batch {first.batch}")
        return first

    def _too_large(self, batch: int) -> WireError:
        return self._error(f"batch {batch} has more stamps, entries or topics than a batch may have")

    def _bound(self, latest: _Attempt) -> None:
        if latest.size > MAX_BATCH_BYTES:
            self._attempts.clear()
            raise self._too_large(latest.key[1])
        while sum(each.size for each in self._attempts) > MAX_BATCH_BYTES:
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
    """The rows of all parts; `parts` is emptied, so that nothing but one column is there twice."""
    if len(parts) == 1:
        return parts[0]
    shifts = np.cumsum([0] + [len(rows.entry_topic) for rows in parts])
    starts = [rows.entry_start[:-1] + shift for rows, shift in zip(parts, shifts[:-1], strict=True)]
    names = [name for name in StampRows.__dataclass_fields__ if name != "entry_start"]
    columns = {name: [getattr(rows, name) for rows in parts] for name in names}
    parts.clear()
    joined = {name: np.concatenate(columns.pop(name)) for name in names}
    return StampRows(**joined, entry_start=np.concatenate([*starts, shifts[-1:]]).astype(np.int64))


def unpacked(value: bytes, bytes_of_columns: Callable[[Any], int]) -> tuple[Any, memoryview]:
    """The directory and the columns behind it of a record's value.

    `bytes_of_columns` tells from the directory how many bytes the columns must have, or raises ValueError for what may
    not be. ValueError where a part of the value has more bytes than it may have, or other ones than that, before more
    is unpacked.
    """
    with pa.CompressedInputStream(pa.BufferReader(value), "zstd") as stream:
        (length,) = _LENGTH.unpack(stream.read(_LENGTH.size))
        if length > MAX_DIRECTORY_BYTES:
            raise ValueError(f"its directory has more than {MAX_DIRECTORY_BYTES} bytes")
        directory = parse_json(stream.read(length), MAX_DIRECTORY_BYTES)
        size = bytes_of_columns(directory)
        if not 0 <= size <= MAX_RAW_PART_BYTES - _LENGTH.size - length:
            raise ValueError(f"more than {MAX_RAW_PART_BYTES} bytes when unpacked")
        columns = memoryview(stream.read(size + 1))
    if len(columns) != size:
        raise ValueError("there is less or more behind the directory than its columns")
    return directory, columns


def decode_part(value: bytes | None, charge: Callable[[int], None] | None = None) -> StampedBatch:
    """Reads one part as a batch of its own; WireError for anything that the encoder cannot have written.

    `charge` is told what memory its stamps will take before they do, and may raise.
    """
    if value is None:
        raise WireError("a record of stamps has no value", remedy=_FOREIGN)
    try:
        directory, planes = unpacked(value, lambda directory: _bytes_of_columns(directory, charge))
        return _decode_rows(planes, directory)
    except _UNREADABLE as error:
        raise WireError(f"a record of stamps cannot be read: {error!r}", remedy=_FOREIGN) from None


def _bytes_of_columns(directory: Mapping[str, Any], charge: Callable[[int], None] | None) -> int:
    rows, entries, sources = (number(directory[name]) for name in ("rows", "entries", "sources"))
    size = _ROW_BYTES * rows + _ENTRY_BYTES * entries
    if size > MAX_PART_MEMORY_BYTES or sources > MAX_CUT_SOURCES:
        raise ValueError("too many rows, entries or sources")
    if charge is not None:
        charge(size)
    return sum(count * width for _, count, width in _layout(directory))


def _layout(directory: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """Name, length and bytes a value of each column, in the order in which they are written."""
    counts = dict.fromkeys(_SOURCE_COLUMNS, directory["sources"])
    counts |= dict.fromkeys(_ROW_COLUMNS, directory["rows"]) | dict.fromkeys(_ENTRY_COLUMNS, directory["entries"])
    widths = [number(width) for width in directory["widths"]]
    return [(name, count, width) for (name, count), width in zip(counts.items(), widths, strict=True)]


def _decode_rows(planes: memoryview, directory: Mapping[str, Any]) -> StampedBatch:
    used, base = np.cumsum(_numbers(directory["ids"])), _numbers(directory["base"])
    if len(used) != len(base) or (differences(used, -1) <= 0).any():
        raise ValueError("the directory is not in order")
    columns = _columns(planes, directory)
    rows = _from_columns(columns, directory["first"], used, base)
    sources = _sources(columns, directory["kafka_topics"])
    scalars = {name: read(directory[name]) for name, read in _SCALARS.items()}
    _check_rows(rows, len(sources), scalars["g"])
    if not 0 <= scalars["partition"] < scalars["partitions"] <= MAX_STAMPS_PARTITIONS:
        raise ValueError("partition numbers are out of range")
    if max(scalars["g"], scalars["control_g"]) > MAX_COUNT or scalars["time_ms"] > MAX_TIME_MS:
        raise ValueError("g, control_g or time_ms is out of range")
    if len(scalars["digest"]) != 2 * DIGEST_BYTES:
        raise ValueError("the digest is cut short")
    names = [text(name) for name in directory["names"]]
    return StampedBatch(
        **scalars,
        sources=sources,
        ends=tuple(columns["end"].tolist()),
        names=dict(zip(used.tolist(), names, strict=True)),
        rows=rows,
    )


def _check_rows(rows: StampRows, sources: int, g: int) -> None:
    """ValueError for rows that no engine makes: sums of what is hostile may have gone over 64 bits, to anywhere."""
    check_within("source", rows.source, 0, sources - 1)
    check_within("n", rows.n, 1, MAX_COUNT)
    check_within("g", rows.g, 1, g)
    check_within("offset", rows.offset, 0)
    check_within("an entry", rows.entry_n, 0, MAX_COUNT)
    if ((rows.topic[1:] == rows.topic[:-1]) & (rows.g[1:] <= rows.g[:-1])).any():
        raise ValueError("the events of a topic do not stand in order")


def _columns(planes: memoryview, directory: Mapping[str, Any]) -> dict[str, Ints]:
    """The columns as they were written, each of its full length."""
    found = {}
    for name, count, width in _layout(directory):
        found[name], planes = from_planes(planes, count, width)
    lengths = found["entries"]
    if len(planes) or (lengths < 0).any() or lengths.sum() != directory["entries"]:
        raise ValueError("the columns do not fit each other")
    return found


def _sources(columns: Mapping[str, Ints], kafka_topics: Any) -> tuple[Source, ...]:
    """Undoes `_sources_columns`."""
    topics = [KafkaTopic(text(name), text(topic_id)) for name, topic_id in kafka_topics]
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


def _from_columns(columns: dict[str, Ints], first: Sequence[int], used: Ints, base: Ints) -> StampRows:
    """Undoes `_to_columns`; ValueError for a place that is not in the directory. Columns that are done with are taken
    out: of a large batch they have tens of megabytes.
    """
    entry_start = np.append(0, np.cumsum(columns["entries"]))
    g = number(first[1]) + np.cumsum(columns.pop("g"))
    entry_topic, entry_n = _entries(columns, entry_start, g, used, base)
    row_of_topic = _checked(np.cumsum(columns.pop("topic")), len(used))
    topic = used[row_of_topic]
    return StampRows(
        topic=topic,
        n=base[row_of_topic] + 1 + _occurrence(topic),
        g=g,
        source=columns["source"],
        offset=number(first[0]) + np.cumsum(columns.pop("offset")),
        crc=columns.pop("crc") & 0xFFFFFFFF,
        keyframe=columns.pop("keyframe") != 0,
        entry_start=entry_start,
        entry_topic=entry_topic,
        entry_n=entry_n,
    )


def _entries(columns: dict[str, Ints], entry_start: Ints, g: Ints, used: Ints, base: Ints) -> tuple[Ints, Ints]:
    """The topic id and the clock of each entry."""
    lengths = columns["entries"]
    place = np.cumsum(columns.pop("entry_topic"))
    place -= np.repeat(np.append(0, place)[entry_start[:-1]], lengths)
    order, starts = _mentions(_checked(place, len(used)), entry_start, g, len(used))
    risen = np.cumsum(columns.pop("entry_n")[order])
    mentions = np.diff(np.append(starts, len(place)))
    risen -= np.repeat(np.append(0, risen)[starts], mentions)
    entry_n = base[place]
    entry_n[order] += risen
    return used[place], entry_n


def _checked(place: Ints, size: int) -> Ints:
    if len(place) and not (place.min() >= 0 and place.max() < size):
        raise ValueError("a topic is not in the directory")
    return place


def _occurrence(topic: Ints) -> Ints:
    """For rows grouped by topic: how many rows of the same topic came before each."""
    first = np.flatnonzero(differences(topic, -1))
    counts = np.diff(np.append(first, len(topic)))
    return np.arange(len(topic), dtype=np.int64) - np.repeat(first, counts)


def _numbers(values: Any) -> Ints:
    """A flat list of numbers."""
    found = np.array(values)
    if found.ndim != 1 or (len(found) and found.dtype != np.int64):
        raise ValueError("not a list of numbers")
    return found.astype(np.int64)
