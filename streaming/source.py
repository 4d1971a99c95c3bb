"""From Kafka records to the columns that the engine needs; only non-null ones cross into Python.

A null in an integer column would turn it into floats there and lose digits, and a null text would read "nan". An
event's value stays in the JVM: Python sees its crc32. Control records alone bring their value along.
"""

import json
from collections.abc import Iterable, Mapping

from pyspark.sql import (
    Column,
    DataFrame,
    SparkSession,
    functions as F,  # noqa: N812
)

from totalorder.config import Settings
from totalorder.sequencer.limits import MAX_CONTROL_BYTES, MAX_TOPIC_CHARS
from totalorder.sequencer.stamps import Source

SHARD_KEY = "shard_key"
_LEAST_FETCH, _MOST_FETCH, _ALL_FETCHES = 2**20, 2**23, 2**26
"""Bytes: what one fetch brings of a partition, and what those of all partitions may hold in memory together."""


def reader_options(
    settings: Settings, topics: Iterable[str], starts: Mapping[Source, int] | None = None
) -> dict[str, str]:
    """Options of the Kafka source for exactly these topics; `starts` is where a query without a checkpoint begins."""
    options = {f"kafka.{key}": value for key, value in settings.kafka.items()}
    # Why not the defaults: a long poll at a log's end delays the offset lookups behind it on the same connection, and
    # Spark looks two offsets up after each poll, so that 500 records or one megabyte are few for a backlog.
    options.setdefault("kafka.fetch.max.wait.ms", "0")
    options.setdefault("kafka.max.poll.records", "50000")
    options.setdefault("kafka.max.partition.fetch.bytes", str(_fetch_bytes(len(starts or ()))))
    options |= {
        "kafka.bootstrap.servers": settings.bootstrap_servers,
        "kafka.isolation.level": "read_committed",
        "subscribe": ",".join(sorted(topics)),
        "startingOffsets": _offsets_json(starts) if starts is not None else "earliest",
        "failOnDataLoss": "true",
        "maxOffsetsPerTrigger": str(settings.max_events_per_batch),
        "includeHeaders": str(settings.topic_by.startswith("header:")).lower(),
    }
    return options


def _fetch_bytes(partitions: int) -> int:
    """A consumer for each partition holds what it fetched ahead: the more partitions, the less of each."""
    return max(_LEAST_FETCH, min(_MOST_FETCH, _ALL_FETCHES // max(1, partitions)))


def _offsets_json(starts: Mapping[Source, int]) -> str:
    table: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(starts.items()):
        table.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(table)


def read(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """The raw records."""
    return spark.readStream.format("kafka").options(**options).load()


def project(records: DataFrame, settings: Settings) -> DataFrame:
    """The engine's columns, none of them nullable; one row per Kafka record.

    `topic` is the pub/sub topic, empty where it cannot be told; left out with topic_by = "topic": it is `kafka_topic`.
    """
    control = F.col("topic") == F.lit(settings.own_topics.control)
    # One byte more than the limit is enough for the engine to see that a control record is too large.
    request = F.when(control, F.col("value").substr(F.lit(1), F.lit(MAX_CONTROL_BYTES + 1)))
    columns = [
        F.col("topic").alias("kafka_topic"),
        F.col("partition"),
        F.col("offset"),
        F.unix_millis("timestamp").alias("timestamp_ms"),
        F.coalesce(F.crc32("value"), F.lit(0)).alias("crc"),
        F.coalesce(request, F.lit(b"")).alias("control"),
        F.unix_millis(_batch_time()).alias("time_ms"),
    ]
    if settings.topic_by != "topic":
        columns.append(F.coalesce(F.when(~control, _named(settings.topic_by)), F.lit("")).alias("topic"))
    return records.select(*columns)


def _batch_time() -> Column:
    """The batch's own time: from the write-ahead log, and the same when the batch runs again.

    Spark writes it into each batch's code as a constant, which would then be compiled for each batch. The function
    around it is interpreted, so that the code stays the same.
    """
    return F.get(F.transform(F.array(F.current_timestamp()), lambda time: time), F.lit(0))


def _named(topic_by: str) -> Column:
    """The pub/sub topic from key or header; null where that is absent, not UTF-8, empty or too long."""
    raw = F.col("key") if topic_by == "key" else _last_header(topic_by.removeprefix("header:"))
    text = raw.cast("string")
    length = F.length(text)
    return F.when(F.is_valid_utf8(text) & (length >= 1) & (length <= MAX_TOPIC_CHARS), text)


def _last_header(name: str) -> Column:
    """The last header of a name wins, as in Kafka's own `lastHeader`."""
    found = F.filter(F.col("headers"), lambda header: header["key"] == F.lit(name))
    return F.get(found, F.size(found) - 1)["value"]


def to_shards(rows: DataFrame, keys: Iterable[int]) -> DataFrame:
    """Every row once for each shard, since every shard keeps all counters."""
    first, *others = (F.lit(key) for key in keys)
    return rows.withColumn(SHARD_KEY, F.explode(F.array(first, *others)) if others else first)
