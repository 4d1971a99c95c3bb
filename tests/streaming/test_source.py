"""What of a Kafka record crosses into Python: real Spark, records made by hand."""

import zlib
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from totalorder.config import make_settings
from totalorder.sequencer.limits import MAX_CONTROL_BYTES, MAX_TOPIC_CHARS
from totalorder.sequencer.names import valid_topic
from totalorder.streaming.source import project, reader_options, to_shards

pytestmark = pytest.mark.spark

SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>"
)


def projected(spark: SparkSession, records: list[dict[str, Any]], topic_by: str = "topic") -> list[Row]:
    given = make_settings(domain="d", topics=("a",), checkpoint_dir="x", topic_by=topic_by)
    usual = {"key": None, "value": b"", "topic": "a", "partition": 0, "timestamp": datetime.now(UTC), "headers": None}
    rows = [tuple({**usual, "offset": at, **record}[name] for name in _columns()) for at, record in enumerate(records)]
    frame = project(spark.createDataFrame(rows, SCHEMA), given)
    assert not [field.name for field in frame.schema if field.nullable and field.name in ("crc", "control", "topic")]
    return frame.orderBy("offset").collect()


def _columns() -> list[str]:
    return ["key", "value", "topic", "partition", "offset", "timestamp", "headers"]


def test_values_stay_behind_but_for_control(spark: SparkSession) -> None:
    rows = projected(
        spark,
        [
            {"value": b"hello"},
            {"value": None},
            {"value": b""},
            {"value": b"request", "topic": "d.control"},
            {"value": None, "topic": "d.control"},
            {"value": bytes(MAX_CONTROL_BYTES + 9), "topic": "d.control"},
        ],
    )
    assert [row["crc"] for row in rows[:4]] == [zlib.crc32(b"hello"), 0, 0, zlib.crc32(b"request")]
    assert [bytes(row["control"]) for row in rows[:5]] == [b"", b"", b"", b"request", b""]
    assert len(rows[5]["control"]) == MAX_CONTROL_BYTES + 1
    assert "value" not in rows[0]
    assert "topic" not in rows[0]


def test_timestamps_to_the_millisecond(spark: SparkSession) -> None:
    times_ms = [0, 1, 999, 1_795_832_983_123, 253_402_300_799_999, -1]
    frame = spark.createDataFrame([(at, ms) for at, ms in enumerate(times_ms)], "offset long, ms long")
    records = frame.selectExpr(
        "cast(null as binary) key",
        "cast('' as binary) value",
        "'a' topic",
        "0 partition",
        "offset",
        "timestamp_millis(ms) timestamp",
    )
    rows = project(records, make_settings(domain="d", topics=("a",), checkpoint_dir="x")).orderBy("offset").collect()
    assert [row["timestamp_ms"] for row in rows] == times_ms
    assert len({row["time_ms"] for row in rows}) == 1


KEYS = [
    b"orders",
    None,
    b"",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    "größe ☃".encode(),
    ("x" * MAX_TOPIC_CHARS).encode(),
    ("ä" * MAX_TOPIC_CHARS).encode(),
    ("x" * (MAX_TOPIC_CHARS + 1)).encode(),
    b"\x00",
    b"nan",
    b" a ",
    b"\xc0\xaf",
    b"\xf4\x90\x80\x80",
]


def text(key: bytes | None) -> str:
    """What the engine's own rule makes of a key."""
    try:
        decoded = (key or b"").decode("utf-8")
    except UnicodeDecodeError:
        return ""
    return decoded if valid_topic(decoded) else ""


def test_topic_by_key(spark: SparkSession) -> None:
    rows = projected(spark, [{"key": key} for key in KEYS], "key")
    assert [row["topic"] for row in rows] == [text(key) for key in KEYS]
    assert text(b"\xed\xa0\x80") == ""


def test_a_control_record_has_no_topic(spark: SparkSession) -> None:
    rows = projected(spark, [{"key": b"me", "topic": "d.control"}], "key")
    assert rows[0]["topic"] == ""


def test_topic_by_header(spark: SparkSession) -> None:
    headers = [
        [("kind", b"orders")],
        [("kind", b"first"), ("other", b"x"), ("kind", b"last")],
        [("kind", b"first"), ("kind", None)],
        [("Kind", b"orders")],
        [],
        None,
        [("kind", b"\xff")],
        [("kind", b"")],
    ]
    rows = projected(spark, [{"headers": given} for given in headers], "header:kind")
    assert [row["topic"] for row in rows] == ["orders", "last", "", "", "", "", "", ""]


@pytest.mark.parametrize("keys", [(7,), (0, 5)])
def test_every_row_goes_to_every_shard(spark: SparkSession, keys: tuple[int, ...]) -> None:
    given = make_settings(domain="d", topics=("a",), checkpoint_dir="x")
    frame = spark.createDataFrame([(None, b"v", "a", 0, at, datetime.now(UTC), None) for at in range(3)], SCHEMA)
    rows = to_shards(project(frame, given), keys).collect()
    assert sorted((row["shard_key"], row["offset"]) for row in rows) == [(k, o) for k in keys for o in range(3)]


def test_reader_options() -> None:
    given = make_settings(
        domain="d", topics=("a",), checkpoint_dir="x", topic_by="header:h", kafka={"security.protocol": "SSL"}
    )
    options = reader_options(given, ["b", "a", "d.control"], {("a", 1): 4, ("a", 0): 3})
    assert options["subscribe"] == "a,b,d.control"
    assert options["startingOffsets"] == '{"a": {"0": 3, "1": 4}}'
    assert options["failOnDataLoss"] == "true"
    assert options["kafka.isolation.level"] == "read_committed"
    assert options["kafka.security.protocol"] == "SSL"
    assert options["includeHeaders"] == "true"
    assert not [name for name in options if "group" in name]


@pytest.mark.parametrize(
    ("partitions", "bytes_each"), [(1, 2**23), (8, 2**23), (16, 2**22), (64, 2**20), (5_000, 2**20)]
)
def test_the_more_partitions_the_less_is_fetched_ahead_of_each(partitions: int, bytes_each: int) -> None:
    given = make_settings(domain="d", topics=("a",), checkpoint_dir="x")
    options = reader_options(given, ["a"], {("a", partition): 0 for partition in range(partitions)})
    assert options["kafka.max.partition.fetch.bytes"] == str(bytes_each)


def test_what_the_user_sets_for_kafka_stays() -> None:
    given = make_settings(
        domain="d", topics=("a",), checkpoint_dir="x", kafka={"max.partition.fetch.bytes": "7", "max.poll.records": "3"}
    )
    options = reader_options(given, ["a"], {("a", 0): 0})
    assert (options["kafka.max.partition.fetch.bytes"], options["kafka.max.poll.records"]) == ("7", "3")
