"""What the lineage job reads from Kafka: its three topics as a stream, and the stamped events themselves by range."""

import json
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import (
    Column,
    DataFrame,
    SparkSession,
    functions as F,  # noqa: N812
)

from totalorder.errors import EventsLost, PreflightFailed, StateError
from totalorder.sequencer.names import DomainTopics
from totalorder.sequencer.stamps import Source
from totalorder.sinks.decode import SCHEMAS, LogRecord
from totalorder.sinks.settings import LineageSettings
from totalorder.sinks.writer import Marks
from totalorder.streaming.preflight import TopicFacts
from totalorder.streaming.topics import Topics

Offsets = dict[str, dict[int, int]]
"""Topic to partition to offset."""


def check_present(domain: str, facts: Mapping[str, TopicFacts]) -> None:
    """PreflightFailed when the domain lacks one of the three topics."""
    own = DomainTopics(domain=domain)
    missing = sorted({own.stamps, own.grants, own.receipts} - facts.keys())
    if missing:
        raise PreflightFailed(
            f"domain {domain} has no topic {', '.join(missing)}",
            remedy="Start its sequencer first, or correct --domain",
        )


def starts(domain: str, marks: Marks, facts: Mapping[str, TopicFacts]) -> Offsets:
    """Where to begin in each partition of the three topics.

    StateError when a topic was created anew, EventsLost when receipts were removed before they were read. (Whether
    stamps were, their batch numbers tell.)
    """
    own = DomainTopics(domain=domain)
    known: Offsets = {
        own.stamps: {partition: end.next_offset for partition, end in marks.chains.items()},
        own.grants: {0: marks.grants_offset},
        own.receipts: dict(marks.receipts_offsets),
    }
    return {topic: _starts(topic, offsets, facts[topic], own) for topic, offsets in known.items()}


def _starts(topic: str, known: Mapping[int, int], facts: TopicFacts, own: DomainTopics) -> dict[int, int]:
    found = {}
    for partition, earliest in facts.earliest.items():
        mark = known.get(partition, 0)
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
    """How far a run is through what was in Kafka when it began, in offsets of the three topics."""

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
    """The records of the three topics from the given offsets on, and of each what `records` asks for."""
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


def records(batch: pa.Table) -> dict[str, list[LogRecord]]:
    """Topic to its records, by partition and offset; they are few and large."""
    found: dict[str, list[LogRecord]] = {}
    for row in batch.sort_by([(name, "ascending") for name in ("topic", "partition", "offset")]).to_pylist():
        headers = {header["key"]: header["value"] for header in row.pop("headers") or ()}
        found.setdefault(row.pop("topic"), []).append(LogRecord(**row, headers=headers))
    return found


def read_events(
    spark: SparkSession, settings: LineageSettings, topics: Topics, ranges: Mapping[Source, tuple[int, int]]
) -> pa.Table:
    """Times and checksums of the events at the offsets asked for, and their values if the settings say so.

    What Kafka no longer has is left out.
    """
    facts = topics.facts({topic for topic, _ in ranges})
    present = {source: kept for source, asked in ranges.items() for kept in _still_there(source, asked, facts)}
    if not present:
        return (
            SCHEMAS["events"].empty_table().select(["kafka_topic", "partition", "offset", "event_time", "read_crc32"])
        )
    columns: list[Column | str] = [
        F.col("topic").alias("kafka_topic"),
        "partition",
        "offset",
        F.col("timestamp").alias("event_time"),
        F.coalesce(F.crc32("value"), F.lit(0)).alias("read_crc32"),
    ]
    if settings.payload:
        columns.append(F.col("value").alias("payload"))
    return _range(spark, settings, present).select(*columns).toArrow()


def _still_there(source: Source, asked: tuple[int, int], facts: Mapping[str, TopicFacts]) -> Iterator[tuple[int, int]]:
    topic, partition = source
    if topic in facts and partition in facts[topic].earliest:
        first, end = max(asked[0], facts[topic].earliest[partition]), min(asked[1], facts[topic].latest[partition])
        if first < end:
            yield first, end


def _range(spark: SparkSession, settings: LineageSettings, ranges: Mapping[Source, tuple[int, int]]) -> DataFrame:
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
        .option("failOnDataLoss", "false")
        .load()
    )
