"""Stamps on the wire: one Kafka record per (stamps partition, batch), in parts where it is large.

The value is a zstd frame around an Arrow IPC stream of one record batch; the directory is JSON in schema metadata.
Rows are sorted by topic, then π. `offset` and `g` are differences to the row before; n is not written, it follows from
the directory's `base` (LC of each topic id before its first use in the part); entries are written above their base.
Digests cover the decoded content, so that a replay may be cut or compressed differently and still be the same batch.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from totalorder.errors import LimitExceeded, WireError
from totalorder.sequencer.limits import (
    MAX_ENTRIES_PER_RECORD,
    MAX_PART_BYTES,
    MAX_PARTS,
    MAX_RAW_PART_BYTES,
    MAX_ROW_BYTES,
    MAX_ROWS_PER_RECORD,
    MAX_STAMPS_PARTITIONS,
)
from totalorder.sequencer.stamps import DIGEST_BYTES, StampedBatch, StampRows

Ints = npt.NDArray[np.int64]
VERSION = 1
KIND = "stamps"
_METADATA = b"totalorder"
_ENTRY = pa.struct([pa.field("topic", pa.int32(), nullable=False), pa.field("n", pa.int64(), nullable=False)])
_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.int32(), nullable=False),
        pa.field("source", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("g", pa.int64(), nullable=False),
        pa.field("crc", pa.uint32(), nullable=False),
        pa.field("keyframe", pa.bool_(), nullable=False),
        pa.field("entries", pa.list_(pa.field("item", _ENTRY, nullable=False)), nullable=False),
    ]
)
_UNREADABLE = (
    *(pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError, IndexError),
    *(StopIteration, RecursionError, OverflowError),  # no batch in the stream, JSON too deep, numbers too large
)
_FOREIGN = "Only the sequencer may write there; look for another writer and restrict it"
_SCALARS = {
    "partition": int,
    "partitions": int,
    "incarnation": int,
    "batch": int,
    "time_ms": int,
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
    LimitExceeded when even that is past the limit of a record.
    """
    values = [value for start, end in _cuts(stamped.rows) for value in _parts(stamped, start, end, max_part_bytes)]
    if len(values) > MAX_PARTS:
        raise LimitExceeded(f"batch {stamped.batch} needs {len(values)} parts", remedy="Lower max_events_per_batch")
    return tuple(
        WireRecord(value=value, headers=_headers(stamped, part, len(values))) for part, value in enumerate(values)
    )


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
    value = _encode_rows(stamped, start, end)
    if len(value) <= max_part_bytes or (end - start <= 1 and len(value) <= MAX_ROW_BYTES):
        yield value
    elif end - start <= 1:
        raise LimitExceeded(
            f"one stamp of batch {stamped.batch} needs {len(value)} bytes; a record may have {MAX_ROW_BYTES}",
            remedy="Use shorter topic names, fewer topics in a subscription, or fewer event partitions",
        )
    else:
        middle = (start + end) // 2
        yield from _parts(stamped, start, middle, max_part_bytes)
        yield from _parts(stamped, middle, end, max_part_bytes)


def _encode_rows(stamped: StampedBatch, start: int, end: int) -> bytes:
    rows = stamped.rows
    first, last = int(rows.entry_start[start]), int(rows.entry_start[end])
    topic, n = rows.topic[start:end], rows.n[start:end]
    entry_topic, entry_n = rows.entry_topic[first:last], rows.entry_n[first:last]
    used, base = _base(topic, n, entry_topic, entry_n)
    above = entry_n - base[np.searchsorted(used, entry_topic)]
    entries = pa.ListArray.from_arrays(
        pa.array(rows.entry_start[start : end + 1] - first, pa.int32()),
        pa.StructArray.from_arrays(
            [pa.array(entry_topic, pa.int32()), pa.array(above, pa.int64())], fields=list(_ENTRY)
        ),
        type=_SCHEMA.field("entries").type,
    )
    columns = [
        pa.array(topic, pa.int32()),
        pa.array(rows.source[start:end], pa.int32()),
        pa.array(np.diff(rows.offset[start:end], prepend=0), pa.int64()),
        pa.array(np.diff(rows.g[start:end], prepend=0), pa.int64()),
        pa.array(rows.crc[start:end], pa.uint32()),
        pa.array(rows.keyframe[start:end], pa.bool_()),
        entries,
    ]
    directory = _directory(stamped, used, base)
    schema = _SCHEMA.with_metadata({_METADATA: json.dumps(directory, separators=(",", ":")).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.record_batch(columns, schema=schema))
    return bytes(pa.compress(sink.getvalue(), codec="zstd", asbytes=True))


def _base(topic: Ints, n: Ints, entry_topic: Ints, entry_n: Ints) -> tuple[Ints, Ints]:
    """Topic ids used, and a clock for each that every use lies at or above (for a topic with rows: first n - 1)."""
    used = np.union1d(topic, entry_topic).astype(np.int64)
    base = np.full(len(used), 2**62, dtype=np.int64)
    np.minimum.at(base, np.searchsorted(used, topic), n - 1)
    has_rows = np.isin(used, topic)
    lowest = np.full(len(used), 2**62, dtype=np.int64)
    np.minimum.at(lowest, np.searchsorted(used, entry_topic), entry_n)
    return used, np.where(has_rows, base, lowest)


def _directory(stamped: StampedBatch, used: Ints, base: Ints) -> dict[str, Any]:
    ids = used.tolist()
    return {name: getattr(stamped, name) for name in _SCALARS} | {
        "next_offsets": sorted([*source, offset] for source, offset in stamped.next_offsets.items()),
        "sources": stamped.sources,
        "ids": ids,
        "names": [stamped.names[topic] for topic in ids],
        "base": base.tolist(),
    }


class StampsAssembler:
    """Puts the parts of one stamps partition together again, in log order.

    A repeated first part starts its batch anew (the job was killed between two parts and ran the batch once more).
    """

    def __init__(self, *, domain: str, partition: int) -> None:
        self._domain = domain
        self._partition = partition
        self._parts: list[StampedBatch] = []
        self._expected: tuple[int, int, int] | None = None

    @property
    def waiting(self) -> bool:
        """Whether a batch has begun of which parts are missing."""
        return bool(self._parts)

    def add(self, value: bytes | None, headers: Mapping[str, bytes]) -> StampedBatch | None:
        """Takes the next record; returns the batch that it completes, or None.

        WireError for a record that is not one of stamps, belongs elsewhere, or whose content does not give its digest.
        """
        batch, incarnation, part, parts = self._place(headers)
        if part == 0:
            self._parts = []
        elif self._expected != (incarnation, batch, parts) or part != len(self._parts):
            # The tail of a batch whose beginning lies before where we began to read, or was written anew.
            self._parts = []
            return None
        decoded = decode_part(value)
        if (decoded.domain, decoded.partition, decoded.batch) != (self._domain, self._partition, batch):
            raise self._error(f"it says that it belongs to {decoded.domain}[{decoded.partition}] batch {decoded.batch}")
        self._expected = (incarnation, batch, parts)
        self._parts.append(decoded)
        if len(self._parts) < parts:
            return None
        whole = _joined(self._parts)
        self._parts = []
        if whole.compute_digest() != whole.digest:
            raise self._error(f"the content of batch {batch} does not give its digest")
        return whole

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


def _joined(parts: list[StampedBatch]) -> StampedBatch:
    if len(parts) == 1:
        return parts[0]
    rows = [part.rows for part in parts]
    names = {topic: name for part in parts for topic, name in part.names.items()}
    shifts = np.cumsum([0] + [len(r.entry_topic) for r in rows])
    starts = [r.entry_start[:-1] + shift for r, shift in zip(rows, shifts[:-1], strict=True)]
    columns = {
        name: np.concatenate([getattr(r, name) for r in rows])
        for name in StampRows.__dataclass_fields__
        if name != "entry_start"
    }
    joined = StampRows(**columns, entry_start=np.concatenate([*starts, shifts[-1:]]).astype(np.int64))
    return replace(parts[-1], rows=joined, names=names)


def decode_part(value: bytes | None) -> StampedBatch:
    """Reads one part as a batch of its own; WireError for anything that the encoder cannot have written."""
    if value is None:
        raise WireError("a record of stamps has no value", remedy=_FOREIGN)
    try:
        with pa.CompressedInputStream(pa.BufferReader(value), "zstd") as stream:
            raw = stream.read(MAX_RAW_PART_BYTES + 1)
        if len(raw) > MAX_RAW_PART_BYTES:
            raise ValueError(f"more than {MAX_RAW_PART_BYTES} bytes when unpacked")
        with pa.ipc.open_stream(raw) as reader:
            record = reader.read_next_batch()
            record.validate(full=True)
            return _decode_rows(record, json.loads((reader.schema.metadata or {})[_METADATA]))
    except _UNREADABLE as error:
        raise WireError(f"a record of stamps cannot be read: {error!r}", remedy=_FOREIGN) from None


def _decode_rows(record: pa.RecordBatch, directory: Mapping[str, Any]) -> StampedBatch:
    if not record.schema.equals(_SCHEMA, check_metadata=False):
        raise ValueError("unexpected columns")
    entries = record.column("entries")
    topic, entry_topic = _ints(record.column("topic")), _ints(entries.values.field("topic"))
    if len(topic) > MAX_ROWS_PER_RECORD or len(entry_topic) > MAX_ENTRIES_PER_RECORD:
        raise ValueError("too many rows or entries")
    used = np.array(directory["ids"], dtype=np.int64)
    base = np.array(directory["base"], dtype=np.int64)
    if len(used) != len(base) or (np.diff(used) <= 0).any() or not np.isin(np.union1d(topic, entry_topic), used).all():
        raise ValueError("the directory does not fit the rows")
    rows = StampRows(
        topic=topic,
        n=base[np.searchsorted(used, topic)] + 1 + _occurrence(topic),
        g=np.cumsum(_ints(record.column("g"))),
        source=_ints(record.column("source")),
        offset=np.cumsum(_ints(record.column("offset"))),
        crc=_ints(record.column("crc")),
        keyframe=record.column("keyframe").to_numpy(zero_copy_only=False),
        entry_start=_ints(entries.offsets),
        entry_topic=entry_topic,
        entry_n=_ints(entries.values.field("n")) + base[np.searchsorted(used, entry_topic)],
    )
    sources = tuple((_typed(topic, str), _typed(partition, int)) for topic, partition in directory["sources"])
    if len(rows) and not (rows.source.min() >= 0 and rows.source.max() < len(sources)):
        raise ValueError("a source is not in the directory")
    if not 0 <= directory["partition"] < directory["partitions"] <= MAX_STAMPS_PARTITIONS:
        raise ValueError("partition numbers are out of range")
    if len(directory["digest"]) != 2 * DIGEST_BYTES:
        raise ValueError("the digest is cut short")
    next_offsets = {
        (_typed(topic, str), _typed(partition, int)): _typed(offset, int)
        for topic, partition, offset in directory["next_offsets"]
    }
    names = [_typed(name, str) for name in directory["names"]]
    return StampedBatch(
        **{name: _typed(directory[name], kind) for name, kind in _SCALARS.items()},
        next_offsets=next_offsets,
        names=dict(zip(used.tolist(), names, strict=True)),
        sources=sources,
        rows=rows,
    )


def _ints(column: pa.Array) -> Ints:
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.int64)


def _occurrence(topic: Ints) -> Ints:
    """For rows grouped by topic: how many rows of the same topic came before each."""
    first = np.flatnonzero(np.diff(topic, prepend=-1))
    counts = np.diff(np.append(first, len(topic)))
    return np.arange(len(topic), dtype=np.int64) - np.repeat(first, counts)


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{value!r} is not of type {kind.__name__}")
    return value
