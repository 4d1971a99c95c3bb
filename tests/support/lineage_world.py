"""A small domain's log, made by the engine itself, and lineage tables in memory."""

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from engine_world import Requests
from reference import Change

from totalorder.sequencer.batch import Batch, Row
from totalorder.sequencer.engine import Effects, EngineConfig, initial_state, step
from totalorder.sequencer.wire.codec import WireRecord, encode_stamps
from totalorder.sequencer.wire.control import Retire, encode_answer, encode_request
from totalorder.sequencer.wire.cuts import Cut, CutEncoder
from totalorder.sequencer.wire.limits import MAX_PART_BYTES
from totalorder.sequencer.wire.receipts import Receipts, encode_receipts
from totalorder.sequencer.wire.stamps import Source
from totalorder.sinks.decode import PLACE, SCHEMAS, ChainEnd, LogRecord, event_ranges, with_reads
from totalorder.sinks.groups import Interval
from totalorder.sinks.writer import LineageWriter, Marks, Written

PARTITIONS = 2
Event = tuple[str, bytes]
"""Kafka topic (of one partition, and named like its pub/sub topic) and value."""


@dataclass(frozen=True, kw_only=True)
class Anew:
    """A topic is deleted, with so many events that the job has not stamped, retired, and created again."""

    topic: str
    lost: int = 0
    topic_id: str = ""
    """Kafka's id of the new one, where it shall not be one that is made up."""


@dataclass
class DomainWorld:
    """What the sequencer and the subscribers of a domain put into Kafka, by kind of topic; offsets are as in Kafka."""

    domain: str = "d"
    topics: Mapping[str, str] = field(default_factory=lambda: {topic: topic for topic in "abc"})
    """Short names to those of topics."""
    ids: dict[str, str] = field(default_factory=dict)
    """Kafka's id of each event topic, where it shall not be one that is made up."""
    min_subscriptions: int = 1
    max_part_bytes: int = MAX_PART_BYTES
    effects: list[Effects] = field(default_factory=list)
    events: dict[str, list[bytes]] = field(default_factory=dict)
    """What Kafka has of each topic, as it is now."""
    logs: dict[str, list[LogRecord]] = field(
        default_factory=lambda: {"cuts": [], "stamps": [], "grants": [], "receipts": []}
    )
    cuts: list[Cut] = field(default_factory=list)

    def __post_init__(self) -> None:
        config = EngineConfig(
            domain=self.domain,
            identity="test",
            stamps_partitions=PARTITIONS,
            min_subscriptions=self.min_subscriptions,
            keyframe_every=3,
        )
        self._state = initial_state(config)
        self._requests = Requests()
        self._controls = 0
        self._time_ms = 1_000_000
        self._encoder = CutEncoder(key_every=2)
        control = f"{self.domain}.control"
        self._control = Source(control, f"id-{control}", 0)
        self.ids = {name: f"id-{name}" for name in self.topics.values()} | self.ids
        self._sources = [self._control, *map(self._source, self.topics.values())]

    def _source(self, name: str) -> Source:
        return Source(name, self.ids[name], 0)

    def batch(self, *items: Event | Change | Anew) -> Effects:
        """Publishes and asks, and stamps all of it in one batch, of which two items at a time are a slice."""
        self._time_ms += 1000
        rows = [self._row(item, at)._replace(slice=at // 2) for at, item in enumerate(items)]
        self.cuts.append(self._cut(rows))
        self.send_cut(self._encoder.encode(self.cuts[-1]))
        self._state, effects = step(self._state, Batch.of(self._time_ms, rows, cut=len(self.cuts)), {})
        self.effects.append(effects)
        self.send(effects)
        return effects

    def _cut(self, rows: Sequence[Row]) -> Cut:
        former = self.cuts[-1].ends.tolist() if self.cuts else []
        begins = former + [0] * (len(self._sources) - len(former))
        places = [self._sources.index(Source(row.kafka_topic, row.topic_id, row.partition)) for row in rows]
        looks = [sorted(Counter(places[at : at + 2]).items()) for at in range(0, len(places), 2)]
        return Cut.of(
            domain=self.domain,
            incarnation=1,
            cut=len(self.cuts) + 1,
            sources=self._sources,
            begins=begins,
            ends=[begin + places.count(at) for at, begin in enumerate(begins)],
            looks=looks[:-1],
        )

    def send_cut(self, record: WireRecord) -> None:
        """Puts a cut into the log, also once more."""
        self.append("cuts", 0, record)

    def _row(self, item: Event | Change | Anew, at: int) -> Row:
        at += self._time_ms - 500
        if isinstance(item, tuple):
            topic, value = self.topics[item[0]], item[1]
            self.events.setdefault(topic, []).append(value)
            offset = len(self.events[topic]) - 1
            return Row(topic, 0, offset, at, topic, zlib.crc32(value), topic_id=self.ids[topic])
        self._controls += 1
        if isinstance(item, Anew):
            control = self._made_anew(self.topics[item.topic], item)
        else:
            control = self._requests.value(Change(item.id, frozenset(self.topics[topic] for topic in item.topics)))
        return Row(*self._control[::2], self._controls - 1, at, control=control, topic_id=self._control.topic_id)

    def _made_anew(self, name: str, anew: Anew) -> bytes:
        topic_id, seen = self.ids[name], {0: len(self.events.pop(name, [])) + anew.lost}
        self.ids[name] = anew.topic_id or f"{topic_id}-anew"
        self._sources.append(self._source(name))
        return encode_request(Retire(id="job", nonce="n", topic=name, topic_id=topic_id, seen=seen))

    def send(self, effects: Effects) -> None:
        """Puts a batch's output into the log, also once more."""
        for stamped in effects.stamps:
            for part in encode_stamps(stamped, self.max_part_bytes):
                self.append("stamps", stamped.partition, part)
        for answer in effects.answers:
            self.append("grants", 0, WireRecord(value=encode_answer(answer), headers=()))

    def append(self, kind: str, partition: int, record: WireRecord) -> None:
        """Puts one record into the log."""
        offset = sum(other.partition == partition for other in self.logs[kind])
        headers = dict(record.headers)
        time_ms = self._time_ms + 50 + offset
        self.logs[kind].append(
            LogRecord(partition=partition, offset=offset, time_ms=time_ms, value=record.value, headers=headers)
        )

    def deliver(self, subscriber: str, topics: Iterable[str], *, first: int = 1, count: int | None = None) -> Receipts:
        """A receipt of the events of some topics, in order, from the `first` on."""
        wanted = {self.topics[topic] for topic in topics}
        rows = [row for row in self._stamped() if row[0] in wanted][first - 1 :][:count]
        columns = {name: np.array([row[at] for row in rows]) for at, name in ((2, "offset"), (3, "n"), (4, "g"))}
        names, sources = sorted({row[0] for row in rows}), sorted({row[1] for row in rows})
        return Receipts(
            domain=self.domain,
            id=subscriber,
            nonce="n",
            topics=tuple(names),
            sources=tuple(sources),
            generation=np.ones(len(rows), np.int64),
            sequence=np.arange(first, first + len(rows)),
            topic=np.array([names.index(row[0]) for row in rows]),
            source=np.array([sources.index(row[1]) for row in rows]),
            redelivered=np.zeros(len(rows), np.bool_),
            lost=np.zeros(len(rows), np.bool_),
            delivered_ms=self._time_ms + np.arange(len(rows)),
            **columns,
        )

    def report(self, receipts: Receipts) -> None:
        """Puts a receipt into the log."""
        for record in encode_receipts(receipts):
            self.append("receipts", 0, record)

    def stamps(self) -> list[tuple[str, int, int, int]]:
        """(topic, offset, n, g) of every event, in the order of g."""
        return [(topic, offset, n, g) for topic, _, offset, n, g in self._stamped()]

    def _stamped(self) -> list[tuple[str, Source, int, int, int]]:
        found: list[tuple[str, Source, int, int, int]] = []
        for effects in self.effects:
            for stamped in effects.stamps:
                rows = stamped.rows
                names = [stamped.names[topic] for topic in rows.topic.tolist()]
                sources = [stamped.sources[source] for source in rows.source.tolist()]
                numbers = (rows.offset.tolist(), rows.n.tolist(), rows.g.tolist())
                found += zip(names, sources, *numbers, strict=True)
        return sorted(found, key=lambda row: row[-1])


class CrashedHere(Exception):
    """What a test lets happen between two tables."""


class MemoryTables:
    """The tables as Arrow; the job dies at the next write to `crash_before`, or after `crash_after` writes."""

    def __init__(self, domain: str = "d") -> None:
        self.domain = domain
        self.tables = {name: schema.empty_table() for name, schema in SCHEMAS.items()}
        self.intervals: dict[Interval, int | None] = {}
        self.crash_before: str | None = None
        self.crash_after: int | None = None
        self.sizes: list[tuple[str, int]] = []
        """Each append's table and rows."""
        self.merged: list[Mapping[Interval, int | None]] = []

    @property
    def appended(self) -> list[str]:
        """Each append's table."""
        return [name for name, _ in self.sizes]

    def _crash(self, name: str) -> None:
        if name == self.crash_before or self.crash_after == 0:
            self.crash_before = None
            raise CrashedHere(name)
        if self.crash_after is not None:
            self.crash_after -= 1

    def append(self, name: str, rows: pa.Table) -> None:
        if len(rows):
            self._crash(name)
            self.tables[name] = pa.concat_tables([self.tables[name], rows])
            self.sizes.append((name, len(rows)))

    def merge_groups(self, intervals: Mapping[Interval, int | None]) -> None:
        if intervals:
            self._crash("sequencing_groups")
            self.intervals |= intervals
            self.merged.append(intervals)

    def rows(self, name: str) -> pa.Table:
        """All rows of a table."""
        if name == "sequencing_groups":
            rows = [(self.domain, topic, member, begin, end) for (topic, member, begin), end in self.intervals.items()]
            return pa.Table.from_pylist(
                [dict(zip(SCHEMAS[name].names, row, strict=True)) for row in rows], schema=SCHEMAS[name]
            )
        return self.tables[name]

    def known(self, name: str, rows: pa.Table) -> pa.Table:
        return self.tables[name]

    def changes(self) -> Iterator[pa.Table]:
        rows = self.tables["subscriptions"].sort_by("g")
        return (rows.slice(at, 1) for at in range(len(rows)))

    def groups(self) -> Iterator[pa.Table]:
        yield self.rows("sequencing_groups")

    def orphans(self) -> pa.ChunkedArray:
        done = {(row["stamps_partition"], row["batch"]) for row in self.tables["batches"].to_pylist()}
        events = self.tables["events"]
        keep = [(row["stamps_partition"], row["batch"]) not in done for row in events.to_pylist()]
        return events.filter(pa.array(keep, pa.bool_())).column("g")

    def marks(self) -> Marks:
        chains: dict[int, ChainEnd] = {}
        deliveries: dict[tuple[str, str], int] = {}
        receipts: dict[int, int] = {}
        for row in self.tables["batches"].sort_by("batch").to_pylist():
            names = ("batch", "digest", "g", "incarnation")
            chains[row["stamps_partition"]] = ChainEnd(
                **{name: row[name] for name in names}, next_offset=row["next_stamps_offset"]
            )
        for row in self.tables["deliveries"].to_pylist():
            process, partition = (row["subscriber"], row["nonce"]), row["receipts_partition"]
            deliveries[process] = max(deliveries.get(process, 0), row["delivery_index"])
            receipts[partition] = max(receipts.get(partition, 0), row["receipts_offset"] + 1)
        answers = self.tables["subscriptions"]
        return Marks(
            chains=chains,
            deliveries=deliveries,
            answered_g=pc.max(answers.column("g")).as_py() or 0,
            grants_offset=(-1 if not len(answers) else pc.max(answers.column("grants_offset")).as_py()) + 1,
            receipts_offsets=receipts,
            **self.cut_marks(),
        )

    def cut_marks(self) -> dict[str, int]:
        rows = self.tables["cuts"].to_pylist()
        counting = {row["cut"]: row for row in sorted(rows, key=lambda row: row["cuts_offset"])}
        newest = max(counting, default=0)
        keys = [row["cuts_offset"] for row in counting.values() if row["is_key"] and row["cut"] < newest]
        end = max((row["cuts_offset"] + 1 for row in rows), default=0)
        return {"newest_cut": newest, "cuts_offset": max(keys, default=0), "cuts_end": end}


def run_once(world: DomainWorld, tables: MemoryTables, *, limit: int | None = None, size: int = 1000) -> Written:
    """One run of the job over the log as it is: starts where the tables say, and takes `size` records at a time."""
    writer = LineageWriter(
        world.domain, tables, lambda events: [with_reads(events, reads(world, event_ranges(events)))]
    )
    marks, written = writer.marks, Written()
    begins = {
        "cuts": {0: marks.cuts_offset},
        "stamps": {partition: end.next_offset for partition, end in marks.chains.items()},
        "grants": {0: marks.grants_offset},
        "receipts": dict(marks.receipts_offsets),
    }
    writes = {
        "cuts": writer.write_cuts,
        "stamps": writer.write_stamps,
        "grants": writer.write_answers,
        "receipts": writer.write_receipts,
    }
    for kind, write in writes.items():
        left = [record for record in world.logs[kind] if record.offset >= begins[kind].get(record.partition, 0)]
        for at in range(0, len(left[:limit]), size):
            write(left[:limit][at : at + size], written)
    return written


def reads(world: DomainWorld, ranges: Mapping[Source, tuple[int, int]]) -> pa.Table:
    """What the log still has of the events asked for."""
    found: list[dict[str, object]] = []
    for source, (first, end) in ranges.items():
        held = world.events.get(source.topic, []) if world.ids[source.topic] == source.topic_id else []
        for offset, value in enumerate(held[first:end], first):
            place = dict(zip(PLACE, (*source, offset), strict=True))
            found.append(place | {"event_time": offset * 1000, "read_crc32": zlib.crc32(value)})
    names = [*PLACE, "event_time", "read_crc32"]
    return pa.Table.from_pylist(found, schema=pa.schema([SCHEMAS["events"].field(name) for name in names]))


def busy_world(**settings: object) -> DomainWorld:
    """A domain with three topics, two subscribers, a change, an end, and receipts."""
    world = DomainWorld(**settings)  # type: ignore[arg-type]
    world.batch(Change("r", frozenset("ab")), ("a", b"1"), ("b", b"2"))
    world.batch(Change("s", frozenset("bc")), ("c", b"3"), ("a", b""), ("b", b"5"))
    world.report(world.deliver("r", "ab"))
    world.batch(("a", b"6"), Change("r", frozenset("ac")), ("c", b"7"))
    world.batch(Change("s", frozenset()), ("b", b"8"), Change("x", frozenset()))
    world.report(world.deliver("r", "ab", first=5))
    world.report(world.deliver("s", "bc"))
    return world


def world_made_anew(**settings: object) -> DomainWorld:
    """`busy_world`, of which topic a is deleted and created again, with two events less; b too, in a batch with events
    of both, and nothing lost.
    """
    world = busy_world(**settings)
    world.batch(("a", b"9"), Anew(topic="a", lost=2), Change("t", frozenset("ab")), ("a", b"10"), ("b", b"11"))
    world.batch(("b", b"12"), Anew(topic="b"), ("a", b"13"), ("b", b"14"), ("a", b"15"))
    world.report(world.deliver("t", "ab"))
    return world


def contents(tables: MemoryTables) -> dict[str, list[str]]:
    """Every table's rows as texts, sorted, and the groups."""
    rows = {name: sorted(map(repr, table.to_pylist())) for name, table in tables.tables.items()}
    return rows | {"sequencing_groups": sorted(map(repr, tables.intervals.items()))}
