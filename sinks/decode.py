"""Records of cuts, stamps, grants and receipts as rows of the lineage tables. Pure: no Kafka, no Spark, no clock."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from totalorder.errors import Contradiction, EventsLost, WireError
from totalorder.sequencer.wire.codec import StampsAssembler
from totalorder.sequencer.wire.control import (
    Answer,
    Ended,
    Grant,
    Rejection,
    Renewed,
    Repeated,
    Retired,
    Skipped,
    decode_answer,
)
from totalorder.sequencer.wire.cuts import Cut, CutsAssembler, is_key_cut
from totalorder.sequencer.wire.receipts import Receipts, decode_receipts
from totalorder.sequencer.wire.stamps import Source, StampedBatch
from totalorder.sinks import pieces
from totalorder.sinks.schema import LOST, NEXT_OFFSETS, TABLES, TAKEN

Ints = npt.NDArray[np.int64]
TIME = pa.timestamp("us", "UTC")
_NEXT_OFFSETS = pa.list_(
    pa.struct(
        [
            ("kafka_topic", pa.string()),
            ("topic_id", pa.string()),
            ("partition", pa.int32()),
            ("next_offset", pa.int64()),
        ]
    )
)
_LOST = pa.list_(pa.struct([("partition", pa.int32()), ("begin_offset", pa.int64()), ("end_offset", pa.int64())]))
_TAKEN = pa.list_(
    pa.struct(
        [
            ("slice", pa.int32()),
            ("kafka_topic", pa.string()),
            ("topic_id", pa.string()),
            ("partition", pa.int32()),
            ("begin_offset", pa.int64()),
            ("end_offset", pa.int64()),
        ]
    )
)
_TYPES = {
    "STRING": pa.string(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "BOOLEAN": pa.bool_(),
    "BINARY": pa.binary(),
    "TIMESTAMP": TIME,
    "ARRAY<STRING>": pa.list_(pa.string()),
    "MAP<STRING,BIGINT>": pa.map_(pa.string(), pa.int64()),
    NEXT_OFFSETS: _NEXT_OFFSETS,
    TAKEN: _TAKEN,
    LOST: _LOST,
}
SCHEMAS: Mapping[str, pa.Schema] = {
    name: pa.schema([(column.name, _TYPES[column.type]) for column in table.columns]) for name, table in TABLES.items()
}
"""Each table's columns in Arrow."""
PLACE = ("kafka_topic", "topic_id", "partition", "offset")
"""The columns that say where an event is in Kafka."""
_KINDS = {
    Grant: "granted",
    Ended: "ended",
    Rejection: "rejected",
    Renewed: "renewed",
    Repeated: "repeated",
    Retired: "retired",
    Skipped: "skipped",
}
_TAGS = [None, "redelivered", "lost", "lost again"]
_ROW_BYTES = 160
"""About what a row of `events` or `deliveries` has in memory beside the names in it."""
_ENTRY_BYTES = 16
_TAKEN_BYTES = 32
_TWO_WRITERS = "Two sequencers write to this domain, or a checkpoint was replaced: stop one, begin a new domain"


@dataclass(frozen=True, kw_only=True)
class LogRecord:
    """A Kafka record of one of the domain's own topics; `time_ms` is the broker's."""

    partition: int
    offset: int
    time_ms: int
    value: bytes | None
    headers: Mapping[str, bytes]


# --- stamps -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ChainEnd:
    """The last batch of a stamps partition that is known; `next_offset` is where the log goes on after it."""

    batch: int
    digest: str
    g: int
    incarnation: int
    next_offset: int


@dataclass(frozen=True, kw_only=True)
class LoggedBatch:
    """A batch and where it stands in its stamps partition: offsets of its first part and behind its last."""

    stamped: StampedBatch
    time_ms: int
    offset: int
    next_offset: int
    repeated: bool
    """Whether a batch of this number was there before: its content has still to be compared."""

    @property
    def bytes(self) -> int:
        """About what its rows of `events` and `batches` have in memory."""
        ends = sum(_ENTRY_BYTES + _name_bytes(source) for source in self.stamped.sources)
        return _ROW_BYTES + ends + int(_event_bytes(self.stamped).sum())

    def part(self, start: int, end: int) -> "LoggedBatch":
        """The same with no events but those from row `start` to before `end`."""
        return replace(self, stamped=replace(self.stamped, rows=self.stamped.rows.part(start, end)))


class StampsReader:
    """Reads one stamps partition in log order, from the end of a known chain or from wherever its log begins."""

    def __init__(self, *, domain: str, partition: int, end: ChainEnd | None = None) -> None:
        self._name = f"{domain}.stamps[{partition}]"
        self._assembler = StampsAssembler(domain=domain, partition=partition)
        self._end = end

    def add(self, record: LogRecord) -> LoggedBatch | None:
        """Takes the next record; returns the batch that it completes, unless a job wrote it that another replaced.

        WireError for what is no record of stamps; EventsLost when batches are missing before it; Contradiction when it
        does not continue the chain.
        """
        stamped = self._assembler.add(record.value, record.headers, offset=record.offset)
        if stamped is None or (self._end is not None and stamped.incarnation < self._end.incarnation):
            return None
        repeated = self._end is not None and stamped.batch <= self._end.batch
        logged = LoggedBatch(
            stamped=stamped,
            time_ms=record.time_ms,
            offset=self._assembler.began_at,
            next_offset=record.offset + 1,
            repeated=repeated,
        )
        if not repeated:
            self._follow(logged)
        return logged

    def _follow(self, logged: LoggedBatch) -> None:
        stamped, end = logged.stamped, self._end
        if end is not None and stamped.batch > end.batch + 1:
            raise EventsLost(
                f"{self._name} goes from batch {end.batch} to {stamped.batch}: Kafka no longer has what lies between",
                remedy="Nothing was skipped. Keep the tables as they are, and begin new ones under another root",
            )
        if end is not None and (stamped.previous_digest != end.digest or stamped.g < end.g):
            raise Contradiction(
                f"batch {stamped.batch} of {self._name} does not continue batch {end.batch} ({end.digest[:12]})",
                remedy=_TWO_WRITERS,
            )
        self._end = ChainEnd(
            batch=stamped.batch,
            digest=stamped.digest,
            g=stamped.g,
            incarnation=stamped.incarnation,
            next_offset=logged.next_offset,
        )


def in_parts(batches: Iterable[LoggedBatch]) -> Iterator[list[LoggedBatch]]:
    """Batches, or parts of them, whose events are so many as may be in memory at once."""
    parts = (logged.part(start, end) for logged in batches for start, end in _runs(logged.stamped))
    return pieces.chunks(parts, lambda part: part.bytes, pieces.AT_ONCE_BYTES)


def _runs(stamped: StampedBatch) -> Iterator[tuple[int, int]]:
    return pieces.runs(_event_bytes(stamped), pieces.AT_ONCE_BYTES)


def _event_bytes(stamped: StampedBatch) -> Ints:
    """About what the row of each event has in memory."""
    sources = np.array([_name_bytes(source) for source in stamped.sources], dtype=np.int64)
    entries = np.cumsum(np.concatenate([[0], _of_topics(stamped, "entry_topic", _text_bytes) + _ENTRY_BYTES]))
    own = _of_topics(stamped, "topic", _text_bytes) + sources[stamped.rows.source]
    sizes: Ints = _ROW_BYTES + own + np.diff(entries[stamped.rows.entry_start])
    return sizes


def _text_bytes(text: str) -> int:
    return len(text.encode())


def _name_bytes(source: Source) -> int:
    return len(source.topic) + len(source.topic_id)


def event_rows(batches: Sequence[LoggedBatch]) -> pa.Table:
    """Rows of `events`, without what only the events themselves tell (`with_reads` fills that in)."""
    names, of_kafka = _Codes(), _Codes()
    parts = [_batch_columns(logged, names, of_kafka) for logged in batches]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    given = {name: pa.array(columns[name]) for name in ("offset", "n", "g", "keyframe")} | {
        "topic": names.texts(columns["topic"]),
        "kafka_topic": of_kafka.texts(columns["kafka_topic"]),
        "topic_id": of_kafka.texts(columns["topic_id"]),
        "partition": pa.array(columns["partition"], pa.int32()),
        "crc32": pa.array(columns["crc"]),
        "entries": _entries([logged.stamped for logged in batches], names),
    }
    given |= _of_batch(batches)
    return _table("events", batches[0].stamped.domain, len(columns["g"]), given)


def _of_batch(batches: Sequence[LoggedBatch]) -> dict[str, pa.Array]:
    """What all events of a batch have in common, once for each event."""
    per_batch = _arrays(
        "events",
        {
            "batch": [logged.stamped.batch for logged in batches],
            "incarnation": [logged.stamped.incarnation for logged in batches],
            "batch_time": [logged.stamped.time_ms * 1000 for logged in batches],
            "stamped_time": [logged.time_ms * 1000 for logged in batches],
            "stamps_partition": [logged.stamped.partition for logged in batches],
            "stamps_offset": [logged.offset for logged in batches],
        },
    )
    batch = pa.array(np.repeat(np.arange(len(batches)), [len(logged.stamped.rows) for logged in batches]))
    return {name: values.take(batch) for name, values in per_batch.items()}


def _entries(batches: Sequence[StampedBatch], names: "_Codes") -> pa.Array:
    counts = [len(stamped.rows.entry_topic) for stamped in batches]
    shifts = np.cumsum([0, *counts])
    starts = [stamped.rows.entry_start[:-1] + shift for stamped, shift in zip(batches, shifts[:-1], strict=True)]
    topic = np.concatenate([_of_topics(stamped, "entry_topic", names.code) for stamped in batches])
    n = np.concatenate([stamped.rows.entry_n for stamped in batches])
    offsets = pa.array(np.concatenate([*starts, shifts[-1:]]), pa.int32())
    return pa.MapArray.from_arrays(offsets, names.texts(topic), pa.array(n))


def _batch_columns(logged: LoggedBatch, names: "_Codes", of_kafka: "_Codes") -> dict[str, npt.NDArray[Any]]:
    rows = logged.stamped.rows
    return {
        "topic": _of_topics(logged.stamped, "topic", names.code),
        **{name: values[rows.source] for name, values in _of_sources(logged.stamped.sources, of_kafka).items()},
        "offset": rows.offset,
        "n": rows.n,
        "g": rows.g,
        "crc": rows.crc,
        "keyframe": rows.keyframe,
    }


def _of_sources(sources: Sequence[Source], of_kafka: "_Codes") -> dict[str, Ints]:
    """Of each event partition what PLACE has of it, names and ids as codes."""
    return {
        "kafka_topic": np.array([of_kafka.code(source.topic) for source in sources], np.int64),
        "topic_id": np.array([of_kafka.code(source.topic_id) for source in sources], np.int64),
        "partition": np.array([source.partition for source in sources], np.int64),
    }


def _of_topics(stamped: StampedBatch, column: str, number: Callable[[str], int]) -> Ints:
    """A number of each topic in a column of topic ids, asked for once a topic."""
    ids = np.array(sorted(stamped.names), dtype=np.int64)
    numbers: Ints = np.array([number(stamped.names[topic]) for topic in ids.tolist()], dtype=np.int64)
    used: Ints = getattr(stamped.rows, column)
    return numbers[np.searchsorted(ids, used)]


class _Codes:
    """Texts by number, so that columns of texts are put together without a step for each row."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def code(self, text: str) -> int:
        return self._codes.setdefault(text, len(self._codes))

    def texts(self, codes: Ints) -> pa.Array:
        known = pa.array(list(self._codes), pa.string())
        return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), known).dictionary_decode()


def event_ranges(events: pa.Table) -> dict[Source, tuple[int, int]]:
    """For each event partition the offsets from the first that stands in `events` to behind the last."""
    keys = list(PLACE[:-1])
    found = events.group_by(keys).aggregate([("offset", "min"), ("offset", "max")]).to_pylist()
    return {Source(*(row[key] for key in keys)): (row["offset_min"], row["offset_max"] + 1) for row in found}


def with_reads(events: pa.Table, reads: pa.Table) -> pa.Table:
    """Fills in what was read of the events themselves.

    `reads` has `PLACE` and any of event_time, read_crc32 and payload; without a record for an event these stay as
    they are.
    """
    found = matched(events, reads)
    for name in set(reads.column_names) - set(PLACE):
        at = events.schema.get_field_index(name)
        read = found.column(name).cast(events.schema.field(at).type)
        events = events.set_column(at, events.schema.field(at), pc.coalesce(read, events.column(name)))
    return events


def matched(events: pa.Table, reads: pa.Table) -> pa.Table:
    """For each event, in order, the row of `reads` that has its `PLACE`, or nulls."""
    rows = events.select(list(PLACE)).append_column("row", pa.array(np.arange(len(events))))
    return rows.join(reads, list(PLACE), join_type="left outer").sort_by("row")


def batch_rows(batches: Sequence[LoggedBatch]) -> pa.Table:
    """Rows of `batches`."""
    stamped = [logged.stamped for logged in batches]
    given: dict[str, list[Any]] = {
        "stamps_partition": [one.partition for one in stamped],
        "events": [len(one.rows) for one in stamped],
        "batch_time": [one.time_ms * 1000 for one in stamped],
        "stamped_time": [logged.time_ms * 1000 for logged in batches],
        "next_offsets": [
            [
                {"kafka_topic": topic, "topic_id": topic_id, "partition": part, "next_offset": offset}
                for (topic, topic_id, part), offset in sorted(one.next_offsets.items())
            ]
            for one in stamped
        ],
        "stamps_offset": [logged.offset for logged in batches],
        "next_stamps_offset": [logged.next_offset for logged in batches],
    }
    same = (
        "partitions",
        "incarnation",
        "batch",
        "cut",
        "min_subscriptions",
        "g",
        "control_g",
        "previous_digest",
        "digest",
    )
    given |= {name: [getattr(one, name) for one in stamped] for name in same}
    return _table("batches", stamped[0].domain, len(batches), _arrays("batches", given))


# --- cuts -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LoggedCut:
    """A cut that counts from the record at `offset` on."""

    cut: Cut
    is_key: bool
    time_ms: int
    offset: int

    @property
    def bytes(self) -> int:
        """About what its row of `cuts` has in memory."""
        names = np.array([_name_bytes(source) for source in self.cut.sources], dtype=np.int64)
        taken = int(names[self.cut.place].sum()) + _TAKEN_BYTES * len(self.cut.place)
        return _ROW_BYTES + taken + sum(map(len, self.cut.topic_order))


class CutsReader:
    """Reads cuts in log order, from a key cut on."""

    def __init__(self, *, domain: str) -> None:
        self._assembler = CutsAssembler(domain=domain)

    def add(self, record: LogRecord) -> Iterator[LoggedCut]:
        """Takes the next record; gives the cuts that count from there on. Errors as those of `CutsAssembler`."""
        for cut in self._assembler.add(record.value, record.headers):
            is_key = is_key_cut(record.headers) and str(cut.cut).encode() == record.headers["cut"]
            yield LoggedCut(cut=cut, is_key=is_key, time_ms=record.time_ms, offset=record.offset)


def cut_rows(cuts: Sequence[LoggedCut]) -> pa.Table:
    """Rows of `cuts`."""
    given: dict[str, list[Any]] = {
        "cut": [logged.cut.cut for logged in cuts],
        "incarnation": [logged.cut.incarnation for logged in cuts],
        "slices": [len(logged.cut.slice_start) - 1 for logged in cuts],
        "topic_order": [list(logged.cut.topic_order) for logged in cuts],
        "is_key": [logged.is_key for logged in cuts],
        "cut_time": [logged.time_ms * 1000 for logged in cuts],
        "cuts_offset": [logged.offset for logged in cuts],
    }
    columns = _arrays("cuts", given) | {"taken": _taken([logged.cut for logged in cuts])}
    return _table("cuts", cuts[0].cut.domain, len(cuts), columns)


def _taken(cuts: Sequence[Cut]) -> pa.Array:
    of_kafka, starts = _Codes(), np.cumsum([0, *(len(cut.place) for cut in cuts)])
    of_cuts = [_of_sources(cut.sources, of_kafka) for cut in cuts]

    def each(values: Callable[[Cut], Ints]) -> Ints:
        return np.concatenate([values(cut) for cut in cuts])

    def named(name: str) -> Ints:
        return np.concatenate([found[name][cut.place] for found, cut in zip(of_cuts, cuts, strict=True)])

    columns = {
        "slice": pa.array(each(lambda cut: cut.slice_of), pa.int32()),
        "kafka_topic": of_kafka.texts(named("kafka_topic")),
        "topic_id": of_kafka.texts(named("topic_id")),
        "partition": pa.array(named("partition"), pa.int32()),
        "begin_offset": pa.array(each(lambda cut: cut.begin)),
        "end_offset": pa.array(each(lambda cut: cut.begin + cut.count)),
    }
    parts = pa.StructArray.from_arrays(list(columns.values()), fields=list(_TAKEN.value_type))
    return pa.ListArray.from_arrays(pa.array(starts, pa.int32()), parts, type=_TAKEN)


# --- grants -----------------------------------------------------------------------------------------------------------


def decode_answers(records: Iterable[LogRecord]) -> Iterator[tuple[LogRecord, Answer]]:
    """The answers on grants; WireError for anything that the sequencer cannot have written."""
    for record in records:
        yield record, decode_answer(record.value if record.value is not None else b"")


def subscription_rows(domain: str, answers: Sequence[tuple[LogRecord, Answer]]) -> pa.Table:
    """Rows of `subscriptions`."""
    columns: dict[str, list[Any]] = {name: [] for name in TABLES["subscriptions"].names if name != "domain"}
    for record, answer in answers:
        clock, lost = getattr(answer, "clock", None), getattr(answer, "lost", None)
        row = {
            "subscriber": answer.id,
            "kind": _KINDS[type(answer)],
            "control_offset": answer.offset,
            "clock": sorted(clock.items()) if clock is not None else None,
            "kafka_topic": getattr(answer, "topic", None),
            "lost": _lost(lost) if lost is not None else None,
            "answered_time": record.time_ms * 1000,
            "grants_offset": record.offset,
        }
        for name, column in columns.items():
            column.append(row[name] if name in row else getattr(answer, name, None))
    return _table("subscriptions", domain, len(answers), _arrays("subscriptions", columns))


def _lost(lost: Mapping[int, tuple[int, int]]) -> list[dict[str, int]]:
    return [
        {"partition": partition, "begin_offset": begin, "end_offset": end}
        for partition, (begin, end) in sorted(lost.items())
    ]


# --- receipts ---------------------------------------------------------------------------------------------------------


def decode_receipt(domain: str, record: LogRecord) -> Receipts:
    """A record of receipts; WireError when it is not one of this domain."""
    receipts = decode_receipts(record.value, record.headers)
    if receipts.domain != domain:
        raise WireError(f"it belongs to domain {receipts.domain}")
    return receipts


def receipts_bytes(receipts: Receipts) -> int:
    """About what its rows of `deliveries` have in memory."""
    row = _ROW_BYTES + len(receipts.domain) + len(receipts.id) + len(receipts.nonce)
    topics = np.array([_text_bytes(name) for name in receipts.topics])
    sources = np.array([_name_bytes(source) for source in receipts.sources])
    return len(receipts) * row + int(topics[receipts.topic].sum() + sources[receipts.source].sum())


def delivery_rows(receipts: Sequence[tuple[LogRecord, Receipts]]) -> pa.Table:
    """Rows of `deliveries`."""
    texts, given = _Codes(), [one for _, one in receipts]
    of_kafka = [_of_sources(one.sources, texts) for one in given]
    sizes = [len(one) for one in given]

    def joined(name: str) -> Ints:
        return np.concatenate([getattr(one, name) for one in given])

    def each(values: Iterable[int]) -> Ints:
        return np.repeat(np.fromiter(values, np.int64, len(given)), sizes)

    def of_source(name: str) -> Ints:
        return np.concatenate([found[name][one.source] for found, one in zip(of_kafka, given, strict=True)])

    topic = np.concatenate([np.array([texts.code(name) for name in one.topics], np.int64)[one.topic] for one in given])
    subscriber, nonce = (each(texts.code(getattr(one, name)) for one in given) for name in ("id", "nonce"))
    tag = joined("redelivered") + 2 * joined("lost").astype(np.int64)
    columns = {name: pa.array(joined(name)) for name in ("generation", "offset", "n", "g")} | {
        "subscriber": texts.texts(subscriber),
        "nonce": texts.texts(nonce),
        "delivery_index": pa.array(joined("sequence")),
        "topic": texts.texts(topic),
        "kafka_topic": texts.texts(of_source("kafka_topic")),
        "topic_id": texts.texts(of_source("topic_id")),
        "partition": pa.array(of_source("partition"), pa.int32()),
        "tag": pa.array(_TAGS).take(pa.array(tag)),
        "delivered_time": pa.array(joined("delivered_ms") * 1000).cast(TIME),
        "receipt_time": pa.array(each(record.time_ms * 1000 for record, _ in receipts)).cast(TIME),
        "receipts_partition": pa.array(each(record.partition for record, _ in receipts), pa.int32()),
        "receipts_offset": pa.array(each(record.offset for record, _ in receipts)),
    }
    return _table("deliveries", given[0].domain, sum(sizes), columns)


# --- rows -------------------------------------------------------------------------------------------------------------


def _arrays(table: str, columns: Mapping[str, Sequence[Any]]) -> dict[str, pa.Array]:
    return {name: pa.array(values, SCHEMAS[table].field(name).type) for name, values in columns.items()}


def _table(table: str, domain: str, size: int, columns: Mapping[str, pa.Array]) -> pa.Table:
    """The table's columns in order; those that are not given are null."""
    schema = SCHEMAS[table]
    given = {"domain": pa.repeat(pa.scalar(domain), size), **columns}
    return pa.table([given[f.name] if f.name in given else pa.nulls(size, f.type) for f in schema], schema=schema)
