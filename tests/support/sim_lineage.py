"""The lineage of a finished simulated world: the tables that the job's own writer makes of its log, and whether they
are true.

What the audits ask of tables in SQL (tests/integration/test_audits_simulated.py asks it of some) is here compared
row by row with what the records of the batches say (sim_truth.py), and with what applications were handed.
"""

import random
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
from lineage_world import CrashedHere, MemoryTables
from sim_cuts import read_cuts
from sim_kafka import SimKafka
from sim_receipts import receipts_of
from sim_truth import Truth
from sim_world import World

from totalorder.sinks.decode import PLACE, SCHEMAS, LogRecord, event_ranges, with_reads
from totalorder.sinks.writer import LineageWriter, Written
from totalorder.subscriber.transport import Partition

_READS = pa.schema([SCHEMAS["events"].field(name) for name in (*PLACE, "event_time", "read_crc32")])
_KINDS = {
    "Grant": "granted",
    "Ended": "ended",
    "Rejection": "rejected",
    "Renewed": "renewed",
    "Repeated": "repeated",
    "Retired": "retired",
    "Skipped": "skipped",
}
_TAGS = {(False, False): None, (True, False): "redelivered", (False, True): "lost", (True, True): "lost again"}
"""By whether it is told as redelivered, and as lost."""


def lineage_of(world: World) -> MemoryTables:
    """The tables of all that was ever written to the domain's topics; the job died now and then."""
    tables, rng = MemoryTables(world.domain.name), random.Random(world.seed)
    for _ in range(3):
        tables.crash_after = rng.randint(1, 40)
        with suppress(CrashedHere):
            _run(world, tables, rng)
    tables.crash_after = None
    _run(world, tables, rng)
    return tables


def _run(world: World, tables: MemoryTables, rng: random.Random) -> None:
    """One life of the job, from where the tables are: some records at a time, of any partition first."""
    domain, names = world.domain, world.names
    writer, written = LineageWriter(domain.name, tables, lambda events: _read(world.kafka, events)), Written()
    marks = writer.marks
    streams: list[tuple[Callable[[Iterable[LogRecord], Written], None], list[LogRecord]]] = [
        (writer.write_cuts, _records(world.kafka, Partition(names.cuts, 0), marks.cuts_offset)),
        (writer.write_answers, _records(world.kafka, Partition(names.grants, 0), marks.grants_offset)),
    ]
    for number in range(domain.stamps_partitions):
        chain = marks.chains.get(number)
        stamps = _records(world.kafka, Partition(names.stamps, number), chain.next_offset if chain else 0)
        receipts = _records(world.kafka, Partition(names.receipts, number), marks.receipts_offsets.get(number, 0))
        streams += [(writer.write_stamps, stamps), (writer.write_receipts, receipts)]
    while streams := [stream for stream in streams if stream[1]]:
        write, left = rng.choice(streams)
        count = rng.randint(1, 40)
        write(left[:count], written)
        del left[:count]
    assert not written.unusable


def _records(kafka: SimKafka, at: Partition, begin: int) -> list[LogRecord]:
    return [
        LogRecord(
            partition=record.partition,
            offset=record.offset,
            time_ms=record.timestamp_ms,
            value=record.value,
            headers={name: value for name, value in record.headers if value is not None},
        )
        for record in kafka.ever(at)
        if record.offset >= begin
    ]


def _read(kafka: SimKafka, events: pa.Table) -> list[pa.Table]:
    """The events with what Kafka still has of them."""
    found = [
        dict(zip(_READS.names, (*source, record.offset, record.timestamp_ms * 1000, _crc(record.value)), strict=True))
        for source, (begin, end) in event_ranges(events).items()
        for record in kafka.records(Partition.of(source), begin, end - begin)
    ]
    return [with_reads(events, pa.Table.from_pylist(found, schema=_READS))]


def _crc(value: bytes | None) -> int:
    return zlib.crc32(value) if value is not None else 0


# --- whether they are true --------------------------------------------------------------------------------------------


def check_lineage(world: World, truth: Truth) -> None:
    """AssertionError where a table says something else than what happened."""
    tables = lineage_of(world)
    _check_events(tables, truth)
    _check_batches(tables, truth)
    _check_subscriptions(tables, truth)
    _check_cuts(tables, world)
    _require_equal("groups", sorted(tables.intervals.items()), sorted(truth.members.items()))
    delivered = [row for slot in world.slots for row in _told_by(world.kafka, slot.id)]
    columns = ("subscriber", "nonce", "generation", "delivery_index", "topic", *PLACE, "n", "g", "tag")
    _require_equal("deliveries", sorted(_rows(tables, "deliveries", *columns)), sorted(delivered))


def _rows(tables: MemoryTables, table: str, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in columns) for row in tables.rows(table).to_pylist()]


def _require_equal(what: str, found: list[Any], true: list[Any]) -> None:
    wrong = next((pair for pair in zip(found, true, strict=False) if pair[0] != pair[1]), None)
    assert wrong is None, f"{what}: a row is {wrong[0]}, and should be {wrong[1]}"
    assert len(found) == len(true), f"{what}: {len(found)} rows, and should be {len(true)}"


def _check_events(tables: MemoryTables, truth: Truth) -> None:
    columns = ("g", "n", "topic", *PLACE, "batch", "stamps_partition", "crc32")
    items = [item for item in truth.items if item.topic]
    true = [
        (
            item.g,
            item.n,
            item.topic,
            *item.partition.source,
            item.offset,
            item.batch,
            truth.partition_of(item.topic),
            _crc(item.value),
        )
        for item in items
    ]
    _require_equal("events", sorted(_rows(tables, "events", *columns)), true)
    by_g = {item.g: item for item in items}
    for g, entries, crc, read in _rows(tables, "events", "g", "entries", "crc32", "read_crc32"):
        assert by_g[g].must.items() <= dict(entries).items() <= by_g[g].may.items(), f"g {g} has entries {entries}"
        assert read in (None, crc), f"g {g} was read as {read}"


def _check_batches(tables: MemoryTables, truth: Truth) -> None:
    events: dict[tuple[int, int], int] = {}
    for item in truth.items:
        if item.topic:
            at = (item.batch, truth.partition_of(item.topic))
            events[at] = events.get(at, 0) + 1
    true = [
        (one.number, partition, one.cut, one.g, one.control_g, events.get((one.number, partition), 0))
        for one in truth.batches
        for partition in range(truth.domain.stamps_partitions)
    ]
    found = _rows(tables, "batches", "batch", "stamps_partition", "cut", "g", "control_g", "events")
    _require_equal("batches", sorted(found), true)


def _check_subscriptions(tables: MemoryTables, truth: Truth) -> None:
    columns = ("g", "kind", "subscriber", "generation", "nonce", "control_offset", "batch")
    true = [
        (
            told.g,
            _KINDS[told.kind],
            told.id,
            told.generation if told.kind not in ("Retired", "Skipped") else None,
            told.nonce,
            told.offset,
            told.batch,
        )
        for told in truth.told
    ]
    _require_equal("subscriptions", sorted(_rows(tables, "subscriptions", *columns)), true)


def _check_cuts(tables: MemoryTables, world: World) -> None:
    cuts, _ = read_cuts(world.kafka.ever(Partition(world.names.cuts, 0)), world.domain.name)
    counting: dict[int, list[tuple[Any, ...]]] = {}
    for _, number, taken in sorted(_rows(tables, "cuts", "cuts_offset", "cut", "taken"), key=lambda row: row[0]):
        counting[number] = [tuple(part.values()) for part in taken]
    true = [
        (number, [(part.slice, *part.source, part.begin, part.end) for part in cut.parts])
        for number, cut in sorted(cuts.items())
    ]
    _require_equal("cuts", sorted(counting.items()), true)


def _told_by(kafka: SimKafka, id: str) -> Iterator[tuple[Any, ...]]:  # noqa: A002
    for one in receipts_of(kafka, id):
        tag = _TAGS[one.redelivered, one.lost]
        yield (id, one.nonce, one.generation, one.sequence, one.topic, *one.source, one.offset, one.n, one.g, tag)
