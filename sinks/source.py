"""What the lineage job reads from Kafka: its four topics as a stream, and any topic by ranges of offsets."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import (
    DataFrame,
    SparkSession,
    functions as F,  # noqa: N812
)

from totalorder.errors import EventsLost, PreflightFailed, StateError
from totalorder.sequencer.wire.names import DomainTopics
from totalorder.sinks import pieces
from totalorder.sinks.decode import LogRecord
from totalorder.sinks.settings import LineageSettings
from totalorder.sinks.writer import Marks
from totalorder.streaming.preflight import TopicFacts

Offsets = dict[str, dict[int, int]]
"""Topic to partition to offset."""
_IN_TOPIC = ("partition", "offset")
_BYTES_SQL = (
    "bigint(coalesce(octet_length(value), 0) + coalesce("
    "aggregate(headers, 0, (sum, one) -> sum + octet_length(one.key) + coalesce(octet_length(one.value), 0)), 0))"
)


def check_present(domain: str, facts: Mapping[str, TopicFacts]) -> None:
    """PreflightFailed when the domain lacks one of the four topics."""
    own = DomainTopics(domain=domain)
    missing = sorted({own.cuts, own.stamps, own.grants, own.receipts} - facts.keys())
    if missing:
        raise PreflightFailed(
            f"domain {domain} has no topic {', '.join(missing)}",
            remedy="Start its sequencer first, or correct --domain",
        )


def starts(domain: str, marks: Marks, facts: Mapping[str, TopicFacts]) -> Offsets:
    """Where to begin in each partition of the four topics.

    StateError when a topic was created anew, EventsLost when receipts were removed before they were read. (Whether
    stamps or cuts were, their numbers tell.)
    """
    own = DomainTopics(domain=domain)
    held: Offsets = {
        own.cuts: {0: marks.cuts_end},
        own.stamps: {partition: end.next_offset for partition, end in marks.chains.items()},
        own.grants: {0: marks.grants_offset},
        own.receipts: dict(marks.receipts_offsets),
    }
    begin = {topic: _starts(topic, offsets, facts[topic], own) for topic, offsets in held.items()}
    # Some cuts are read once more: the next ones can be read only behind a key cut.
    return begin | {own.cuts: {0: max(marks.cuts_offset, facts[own.cuts].earliest[0])}}


def _starts(topic: str, held: Mapping[int, int], facts: TopicFacts, own: DomainTopics) -> dict[int, int]:
    found = {}
    for partition, earliest in facts.earliest.items():
        mark = held.get(partition, 0)
        if mark > facts.latest[partition]:
            raise StateError(
                f"the tables hold {topic}[{partition}] up to offset {mark}, and it ends at {facts.latest[partition]}: "
                "it was created anew",
                remedy="It is another domain now: give it a root of its own (--tables)",
            )
        if topic == own.receipts and 0 < mark < earliest:
            raise EventsLost(
                f"Kafka no longer has the receipts of {topic}[{partition}] from offset {mark} to {earliest}",
                remedy="Nothing was skipped. Keep the tables as they are, and begin new ones under another root",
            )
        found[partition] = max(mark, earliest)
    return found


class Backlog:
    """How far a run is through what was in Kafka when it began, in offsets of the four topics."""

    def __init__(self, begin: Offsets, facts: Mapping[str, TopicFacts]) -> None:
        self._at = {(topic, part): offset for topic, parts in begin.items() for part, offset in parts.items()}
        self._ends = {(topic, part): facts[topic].latest[part] for topic, part in self._at}
        self.total = self.left

    def advance(self, read: Mapping[str, Sequence[LogRecord]]) -> None:
        """Takes note of records that the tables have now."""
        for topic, found in read.items():
            for record in found:
                self._at[topic, record.partition] = record.offset + 1

    @property
    def left(self) -> int:
        """Offsets still to be read; those without a record of their own (compaction, transactions) count too."""
        return sum(max(0, end - self._at[place]) for place, end in self._ends.items())


def stream(spark: SparkSession, settings: LineageSettings, begin: Offsets) -> DataFrame:
    """The records of the four topics from the given offsets on, and of each what `records` asks for."""
    reader = spark.readStream.format("kafka").options(**_client(settings))
    return (
        reader.option("subscribe", ",".join(sorted(begin)))
        .option("startingOffsets", json.dumps(begin))
        .option("maxOffsetsPerTrigger", settings.batch_records)
        .option("includeHeaders", "true")
        .load()
        .select("topic", "partition", "offset", F.unix_millis("timestamp").alias("time_ms"), "value", "headers")
    )


def _client(settings: LineageSettings) -> dict[str, str]:
    options = {f"kafka.{key}": value for key, value in settings.of_sequencer().kafka.items()}
    return options | {
        "kafka.bootstrap.servers": settings.bootstrap_servers,
        "kafka.isolation.level": "read_committed",
    }


def records(spark: SparkSession, settings: LineageSettings, batch: DataFrame) -> Iterator[tuple[str, list[LogRecord]]]:
    """The records of a micro-batch, topic by topic in log order, in lists that may be in memory at once.

    Small ones come with the first look at them. For the others Kafka is asked once more, list by list: EventsLost where
    one is gone by then.
    """
    found = _looked_at(batch, pieces.AT_ONCE_BYTES // settings.batch_records)
    own = settings.of_sequencer().own_topics
    for topic in (own.cuts, own.stamps, own.grants, own.receipts):
        rows = found.filter(pc.equal(found.column("topic"), topic)).sort_by([(name, "ascending") for name in _IN_TOPIC])
        for start, end in pieces.runs(rows.column("bytes").to_numpy(), pieces.AT_ONCE_BYTES):
            yield topic, _log_records(spark, settings, topic, rows.slice(start, end - start).to_pylist())


def _looked_at(batch: DataFrame, most_bytes: int) -> pa.Table:
    """Where each record is, its size, and its content unless that is larger than `most_bytes`."""
    with_size = batch.withColumn("bytes", F.expr(_BYTES_SQL))
    content = F.when(F.col("bytes") <= most_bytes, F.struct("value", "headers")).alias("content")
    return with_size.select("topic", *_IN_TOPIC, "time_ms", "bytes", content).toArrow()


def _log_records(
    spark: SparkSession, settings: LineageSettings, topic: str, rows: Sequence[dict[str, Any]]
) -> list[LogRecord]:
    large = [(row["partition"], row["offset"]) for row in rows if row["content"] is None]
    again = _asked_again(spark, settings, topic, large) if large else {}
    found = []
    for row in rows:
        place = row["partition"], row["offset"]
        content = row["content"] or again.get(place)
        if content is None:
            raise EventsLost(
                f"Kafka removed {topic}[{place[0]}]@{place[1]} while the lineage job was reading it",
                remedy="Nothing was skipped: start again, and it goes on from what the tables have",
            )
        headers = {header["key"]: header["value"] for header in content["headers"] or ()}
        place_and_time = {name: row[name] for name in (*_IN_TOPIC, "time_ms")}
        found.append(LogRecord(**place_and_time, value=content["value"], headers=headers))
    return found


def _asked_again(
    spark: SparkSession, settings: LineageSettings, topic: str, places: Sequence[tuple[int, int]]
) -> dict[tuple[int, int], Any]:
    ranges: dict[tuple[str, int], tuple[int, int]] = {}
    for partition, offset in places:  # which ascend
        first, _ = ranges.get((topic, partition), (offset, 0))
        ranges[topic, partition] = first, offset + 1
    rows = read_range(spark, settings, ranges).select(*_IN_TOPIC, F.struct("value", "headers").alias("content"))
    return {(row["partition"], row["offset"]): row["content"] for row in rows.toArrow().to_pylist()}


def read_range(
    spark: SparkSession, settings: LineageSettings, ranges: Mapping[tuple[str, int], tuple[int, int]]
) -> DataFrame:
    """What Kafka has of these offsets of (topic, partition), each range to before its second number.

    Read by name: the topic is the one that has it then.
    """
    first: Offsets = {}
    end: Offsets = {}
    for (topic, partition), (start, stop) in ranges.items():
        first.setdefault(topic, {})[partition] = start
        end.setdefault(topic, {})[partition] = stop
    assigned = {topic: sorted(partitions) for topic, partitions in first.items()}
    return (
        spark.read.format("kafka")
        .options(**_client(settings))
        .option("assign", json.dumps(assigned))
        .option("startingOffsets", json.dumps(first))
        .option("endingOffsets", json.dumps(end))
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "false")
        .load()
    )
