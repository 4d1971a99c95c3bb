"""Receipts on the wire: what one process of a subscriber handed to its application, in order of delivery.

The value of a record is a zstd frame around an Arrow IPC stream of one record batch; the directory is JSON in schema
metadata. Each record stands by itself. Ascending columns are written as differences to the row before; `offset` and `n`
to the row before of the same source or topic, which makes nearly all of them 1.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from totalorder.errors import SettingsError, WireError
from totalorder.sequencer.wire.budget import affordable, parse_json
from totalorder.sequencer.wire.codec import WireRecord
from totalorder.sequencer.wire.limits import (
    MAX_COUNT,
    MAX_PART_BYTES,
    MAX_PARTITION_NUMBER,
    MAX_RAW_RECEIPTS_BYTES,
    MAX_RECEIPTS_PER_RECORD,
    MAX_TIME_MS,
    MAX_TOPIC_ID_CHARS,
)
from totalorder.sequencer.wire.names import DomainTopics, valid_id, valid_nonce, valid_topic
from totalorder.sequencer.wire.numbering import check_within, differences, numbered, sorted_order
from totalorder.sequencer.wire.stamps import Source
from totalorder.sequencer.wire.values import text

Ints = npt.NDArray[np.int64]
VERSION = 3
_WITHOUT_LOST = 2
"""The version before, which is read too: nothing of it is lost."""
KIND = "receipts"
HEADERS = (("kind", KIND.encode()), ("version", str(VERSION).encode()))
_METADATA = b"totalorder"
_SCHEMA = pa.schema(
    [
        pa.field("generation", pa.int64(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("topic", pa.int32(), nullable=False),
        pa.field("source", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("n", pa.int64(), nullable=False),
        pa.field("g", pa.int64(), nullable=False),
        pa.field("redelivered", pa.bool_(), nullable=False),
        pa.field("lost", pa.bool_(), nullable=False),
        pa.field("delivered_ms", pa.int64(), nullable=False),
    ]
)
_SCHEMAS = {VERSION: _SCHEMA, _WITHOUT_LOST: _SCHEMA.remove(_SCHEMA.get_field_index("lost"))}
_REMEDY = "Only subscribers of the domain may write there; look for another writer and restrict it"


@dataclass(frozen=True, kw_only=True, eq=False)
class Receipts:
    """Deliveries of one process as columns, one row per delivery, in order of delivery.

    Row r: under the process's `generation[r]` the event at `sources[source[r]]`, `offset[r]`, number `n[r]` of topic
    `topics[topic[r]]`, at `g[r]` of π, was its delivery number `sequence[r]` (Event.sequence: 1, 2, 3 …), handed out at
    `delivered_ms[r]` (ms since 1970 by the subscriber's clock). A repeated receipt (same id, nonce, sequence) is equal.
    Where `lost[r]`, the application was told in the event's place that it is lost; with `n[r]` = 0 that offsets from
    `offset[r]` on were lost before they were stamped, and the topic is the Kafka topic. ValueError for what cannot be.
    """

    domain: str
    id: str
    nonce: str
    topics: tuple[str, ...]
    sources: tuple[Source, ...]
    generation: Ints
    sequence: Ints
    topic: Ints
    source: Ints
    offset: Ints
    n: Ints
    g: Ints
    redelivered: npt.NDArray[np.bool_]
    lost: npt.NDArray[np.bool_]
    delivered_ms: Ints

    def __len__(self) -> int:
        return len(self.sequence)

    def __post_init__(self) -> None:
        DomainTopics(domain=self.domain)
        if not valid_id(self.id) or not valid_nonce(self.nonce):
            raise ValueError(f"id {self.id!r} or nonce {self.nonce!r} is not usable")
        if not all(valid_topic(name) for name in self.topics):
            raise ValueError("a name in topics cannot name a topic")
        if not all(_is_source(source) for source in self.sources):
            raise ValueError("a source is no event partition")
        if any(getattr(self, name).shape != (len(self),) for name in _SCHEMA.names):
            raise ValueError("the columns differ in length")
        check_within("topic", self.topic, 0, len(self.topics) - 1)
        check_within("source", self.source, 0, len(self.sources) - 1)
        check_within("delivered_ms", self.delivered_ms, 0, MAX_TIME_MS)
        check_within("offset", self.offset, 0)
        for name in ("generation", "sequence", "g"):  # what audits count with stays within 64 bits
            check_within(name, getattr(self, name), 1, MAX_COUNT)
        check_within("n", self.n[self.lost], 0, MAX_COUNT)
        check_within("n", self.n[~self.lost], 1, MAX_COUNT)
        # Compared, not subtracted: a difference may overflow.
        if (self.sequence[1:] <= self.sequence[:-1]).any() or (self.generation[1:] < self.generation[:-1]).any():
            raise ValueError("sequence does not rise, or generation falls")


def _is_source(source: Source) -> bool:
    is_partition = type(source.partition) is int and 0 <= source.partition <= MAX_PARTITION_NUMBER
    return is_partition and valid_topic(source.topic) and len(source.topic_id) <= MAX_TOPIC_ID_CHARS


def encode_receipts(receipts: Receipts, max_part_bytes: int = MAX_PART_BYTES) -> tuple[WireRecord, ...]:
    """The records of some deliveries, none for none; a single one may be larger than `max_part_bytes`."""
    values = _parts(receipts, 0, len(receipts), max_part_bytes)
    return tuple(WireRecord(value=value, headers=HEADERS) for value in values)


def _parts(receipts: Receipts, start: int, end: int, max_part_bytes: int) -> Iterator[bytes]:
    count = end - start
    if count == 0:
        return
    if count <= MAX_RECEIPTS_PER_RECORD:
        value = _encode_rows(receipts, start, end)
        if value is not None and (len(value) <= max_part_bytes or count == 1):
            yield value
            return
    middle = (start + end) // 2
    yield from _parts(receipts, start, middle, max_part_bytes)
    yield from _parts(receipts, middle, end, max_part_bytes)


def _encode_rows(receipts: Receipts, start: int, end: int) -> bytes | None:
    """None where a reader would find too much in it; one delivery alone has never too much."""
    rows = slice(start, end)
    topics, topic = numbered(receipts.topic[rows], size=len(receipts.topics))
    sources, source = numbered(receipts.source[rows], size=len(receipts.sources))
    columns = {
        "generation": differences(receipts.generation[rows], 0),
        "sequence": differences(receipts.sequence[rows], 0),
        "topic": topic,
        "source": source,
        "offset": _steps(receipts.offset[rows], source),
        "n": _steps(receipts.n[rows], topic),
        "g": differences(receipts.g[rows], 0),
        "redelivered": receipts.redelivered[rows],
        "lost": receipts.lost[rows],
        "delivered_ms": differences(receipts.delivered_ms[rows], 0),
    }
    directory = {
        "domain": receipts.domain,
        "id": receipts.id,
        "nonce": receipts.nonce,
        "topics": [receipts.topics[index] for index in topics.tolist()],
        "sources": [receipts.sources[index] for index in sources.tolist()],
    }
    described = json.dumps(directory, separators=(",", ":")).encode()
    schema = _SCHEMA.with_metadata({_METADATA: described})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        arrays = [_arrow(columns[field.name], field.type) for field in schema]
        writer.write_batch(pa.record_batch(arrays, schema=schema))
    raw = sink.getvalue()
    if raw.size > MAX_RAW_RECEIPTS_BYTES or not affordable(described):
        return None
    return bytes(pa.compress(raw, codec="zstd", asbytes=True))


def _arrow(column: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """The column as Arrow's. Its own way, pa.array, imports pandas where that is installed: half a second, once."""
    values = (
        np.packbits(column, bitorder="little") if pa.types.is_boolean(kind) else column.astype(kind.to_pandas_dtype())
    )
    return pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(values)])


def _steps(values: Ints, group: Ints) -> Ints:
    """Each value's difference to the one before it in its group; the first of a group as it is."""
    order, first, _ = _grouped(group)
    ordered = values[order]
    steps = differences(ordered, 0)
    steps[first] = ordered[first]
    found = np.empty_like(steps)
    found[order] = steps
    return found


def _sums(steps: Ints, group: Ints) -> Ints:
    """The values of which `_steps` made the steps."""
    order, first, counts = _grouped(group)
    ordered = steps[order]
    sums = np.cumsum(ordered)
    sums -= np.repeat(sums[first] - ordered[first], counts)
    found = np.empty_like(sums)
    found[order] = sums
    return found


def _grouped(group: Ints) -> tuple[Ints, Ints, Ints]:
    """The order that puts groups together, where each begins in it, and their sizes."""
    order = sorted_order(group, size=int(group.max(initial=0)) + 1)
    ordered = group[order]
    first = np.flatnonzero(differences(ordered, -1))
    return order, first, np.diff(first, append=len(ordered))


def decode_receipts(value: bytes | None, headers: Mapping[str, bytes]) -> Receipts:
    """Reads one record; WireError for anything that the encoder cannot have written."""
    if headers.get("kind") != KIND.encode():
        raise WireError(f"a record of receipts has no header kind={KIND}", remedy=_REMEDY)
    schema = {str(version).encode(): each for version, each in _SCHEMAS.items()}.get(headers.get("version", b""))
    if schema is None:
        raise WireError(
            f"a record of receipts has version {headers.get('version')!r}; this program reads {VERSION}, and "
            f"{_WITHOUT_LOST}",
            remedy="Update totalorder on this side",
        )
    if value is None:
        raise WireError("a record of receipts has no value", remedy=_REMEDY)
    try:
        return _decode_rows(*_unpack(value, schema))
    except (
        pa.ArrowException,
        SettingsError,
        OSError,
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        OverflowError,
        EOFError,
        struct.error,
    ) as error:
        raise WireError(f"a record of receipts cannot be read: {error!r}", remedy=_REMEDY) from None


def _unpack(value: bytes, expected: pa.Schema) -> tuple[pa.RecordBatch, Any]:
    with pa.CompressedInputStream(pa.BufferReader(value), "zstd") as stream:
        raw = stream.read(MAX_RAW_RECEIPTS_BYTES + 1)
    if len(raw) > MAX_RAW_RECEIPTS_BYTES:
        raise ValueError(f"more than {MAX_RAW_RECEIPTS_BYTES} bytes when unpacked")
    with pa.BufferReader(raw) as stream:
        schema = pa.ipc.read_schema(stream)
        if not schema.equals(expected, check_metadata=False):
            raise ValueError("unexpected columns")
        message = pa.ipc.read_message(stream)
        if message.type != "record batch":
            raise ValueError("no record batch behind the schema")
        _check_plain(message.metadata.to_pybytes())
        record = pa.ipc.read_record_batch(message, schema)
    record.validate(full=True)
    return record, parse_json((schema.metadata or {})[_METADATA], MAX_RAW_RECEIPTS_BYTES)


def _check_plain(metadata: bytes) -> None:
    """ValueError for a record batch whose columns are compressed once more, which Arrow would unpack without a limit,
    or that has more rows than it may have. Arrow itself does not tell, so this reads the message's table (a
    flatbuffer, Message.fbs of Arrow): a table begins with the way back to its list of places of fields.
    """

    def field(table: int, number: int) -> int:
        """Where the table has its field; 0 where it has none."""
        places = table - struct.unpack_from("<i", metadata, table)[0]
        (size,) = struct.unpack_from("<H", metadata, places)
        place = 4 + 2 * number
        (at,) = struct.unpack_from("<H", metadata, places + place) if place < size else (0,)
        return table + at if at else 0

    def follow(at: int) -> int:
        return at + int(struct.unpack_from("<I", metadata, at)[0])

    batch = follow(field(follow(0), _HEADER))
    length = field(batch, _LENGTH)
    (rows,) = struct.unpack_from("<q", metadata, length) if length else (0,)
    if field(batch, _COMPRESSION):
        raise ValueError("its columns are compressed once more")
    if not 0 < rows <= MAX_RECEIPTS_PER_RECORD:
        raise ValueError(f"{rows} rows")


_HEADER, _LENGTH, _COMPRESSION = 2, 0, 3
"""Numbers of fields: `header` of Message; `length` and `compression` of RecordBatch."""


def _decode_rows(record: pa.RecordBatch, directory: Any) -> Receipts:
    if any(column.null_count for column in record.columns):
        raise ValueError("a value is missing")
    columns = {name: record.column(name).to_numpy(zero_copy_only=False) for name in record.schema.names}
    topic, source = columns["topic"].astype(np.int64), columns["source"].astype(np.int64)
    return Receipts(
        domain=text(directory["domain"]),
        id=text(directory["id"]),
        nonce=text(directory["nonce"]),
        topics=tuple(text(name) for name in directory["topics"]),
        sources=tuple(Source(text(name), text(topic_id), part) for name, topic_id, part in directory["sources"]),
        generation=np.cumsum(columns["generation"]),
        sequence=np.cumsum(columns["sequence"]),
        topic=topic,
        source=source,
        offset=_sums(columns["offset"], source),
        n=_sums(columns["n"], topic),
        g=np.cumsum(columns["g"]),
        redelivered=columns["redelivered"],
        lost=columns.get("lost", np.zeros(len(topic), dtype=np.bool_)),
        delivered_ms=np.cumsum(columns["delivered_ms"]),
    )
