"""The lineage job on a real broker, Spark and Delta."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chispa import assert_df_equality
from deltalake import DeltaTable as OutsideTable
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from lineage_world import PARTITIONS, Anew, CrashedHere, DomainWorld, MemoryTables, busy_world, run_once
from pyspark.sql import (
    DataFrame,
    SparkSession,
    functions as F,  # noqa: N812
)
from reference import Change
from spark_process import SequencerProcess
from spark_shared import settings_for
from structlog.testing import capture_logs
from waiting import wait_until

import totalorder as to
from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.errors import Contradiction, Error, EventsLost, PreflightFailed, SettingsError, StateError
from totalorder.sequencer.wire.cuts import Cut, encode_cut
from totalorder.sequencer.wire.names import DomainTopics
from totalorder.sequencer.wire.stamps import Source
from totalorder.sinks import pieces
from totalorder.sinks.audit import Auditor, choose
from totalorder.sinks.decode import SCHEMAS
from totalorder.sinks.events import EventLog
from totalorder.sinks.runner import Lineage
from totalorder.sinks.schema import TABLES
from totalorder.sinks.settings import LineageSettings
from totalorder.sinks.tables import LineageTables, Stopped, compact
from totalorder.streaming.preflight import TopicFacts
from totalorder.streaming.runner import Sequencer
from totalorder.streaming.standstill import GOES_ON, STANDS
from totalorder.streaming.topics import Topics
from totalorder.streaming.watchdog import java_process

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(600)]


_NAMES = ("d.control", "a", "b", "c")
OF_WORLD: dict[str, Any] = {
    "domain": "d", "incarnation": 1, "sources": [Source(name, f"id-{name}", 0) for name in _NAMES]
}  # fmt: skip


class KafkaWorld:
    """A `DomainWorld` whose log is in Kafka too: `push` sends what is new in it."""

    def __init__(self, world: DomainWorld, servers: str, tables: Path, producer: KafkaProducer) -> None:
        self.world = world
        self.settings = LineageSettings(
            tables=str(tables), domain=world.domain, bootstrap_servers=servers, interval_s=0
        )
        self._producer = producer
        self._names = DomainTopics(domain=world.domain)
        self._sent: dict[str, int] = {}

    def push(self) -> None:
        """Sends the events and records that are not in Kafka yet."""
        for topic, values in self.world.events.items():
            for value in values[self._new(topic, len(values)) :]:
                self._producer.send(topic, value=value, partition=0)
        for kind, records in self.world.logs.items():
            for record in records[self._new(kind, len(records)) :]:
                headers = list(record.headers.items())
                topic = getattr(self._names, kind)
                self._producer.send(topic, key=b"k", value=record.value, headers=headers, partition=record.partition)
        self._producer.flush(30)

    def _new(self, name: str, size: int) -> int:
        sent, self._sent[name] = self._sent.get(name, 0), size
        return sent

    def make_anew(self, topic: str, admin: KafkaAdminClient) -> str:
        """Deletes a topic in Kafka and creates it again; its new id. The world is told by what it does next."""
        name = self.world.topics[topic]
        admin.delete_topics([name])
        wait_until(lambda: not id_of(admin, name), f"{name} is gone")
        self._sent.pop(name, None)
        admin.create_topics({name: {"num_partitions": 1}})
        wait_until(lambda: bool(id_of(admin, name)), f"{name} is there again")
        return id_of(admin, name)

    def run(self, spark: SparkSession, **changed: Any) -> Lineage:
        """One run of the job until it has caught up."""
        settings = self.settings.model_copy(update=changed)
        with Lineage(settings, until_caught_up=True, spark=spark) as lineage:
            lineage.wait()
        return lineage

    def frame(self, spark: SparkSession, name: str) -> DataFrame:
        """A table's rows, in the order of their key."""
        return spark.read.format("delta").load(f"{self.settings.tables}/{name}").orderBy(*TABLES[name].key)


def id_of(admin: KafkaAdminClient, name: str) -> str:
    """Kafka's id of a topic; empty: there is none."""
    (found,) = admin.describe_topics([name])
    return "" if found["error_code"] else str(found["topic_id"])


MakeWorld = Callable[..., KafkaWorld]


@pytest.fixture
def make_world(
    broker: LocalBroker, kafka_admin: KafkaAdminClient, unique_name: Callable[[str], str], tmp_path: Path
) -> Iterator[MakeWorld]:
    with kafka_clients.producer(broker.bootstrap_servers) as producer:

        def make(build: Callable[..., DomainWorld] = busy_world, **settings: Any) -> KafkaWorld:
            domain = unique_name("lineage")
            topics = {topic: f"{domain}-{topic}" for topic in "abc"}
            own = DomainTopics(domain=domain)
            wanted = {name: {"num_partitions": PARTITIONS} for name in (own.stamps, own.receipts)}
            wanted |= {name: {"num_partitions": 1} for name in (own.cuts, own.grants, *topics.values())}
            kafka_admin.create_topics(wanted)
            kafka_admin.wait_for_topics(list(wanted))
            described = kafka_admin.describe_topics([*topics.values()])
            ids = {topic["name"]: str(topic["topic_id"]) for topic in described}
            world = build(domain=domain, topics=topics, ids=ids, **settings)
            # Whatever a directory may be called goes into SQL here and there.
            return KafkaWorld(world, broker.bootstrap_servers, tmp_path / f"it's `{domain}` \"ü", producer)

        yield make


def assert_complete(kafka: KafkaWorld) -> None:
    """The tables hold what a run without any trouble writes into tables in memory; read without Spark, in no time."""
    expected = MemoryTables(kafka.world.domain)
    run_once(kafka.world, expected)
    for name, table in TABLES.items():
        wanted = expected.rows(name)
        found = OutsideTable(f"{kafka.settings.tables}/{name}").to_pyarrow_table()
        assert found.column_names == wanted.column_names
        told, stored = (
            rows.cast(SCHEMAS[name]).sort_by([(key, "ascending") for key in table.key]).drop_columns(table.arrival)
            for rows in (wanted, found)
        )
        assert stored.to_pylist() == told.to_pylist(), name
        assert len(told) > 0


def assert_complete_in_spark(kafka: KafkaWorld, spark: SparkSession) -> None:
    """The same as Spark reads the tables: types and rows."""
    expected = MemoryTables(kafka.world.domain)
    run_once(kafka.world, expected)
    for name, table in TABLES.items():
        wanted = spark.createDataFrame(expected.rows(name)).orderBy(*table.key).drop(*table.arrival)
        found = kafka.frame(spark, name).drop(*table.arrival)
        assert_df_equality(found, wanted, ignore_nullable=True, ignore_metadata=True)


def test_the_tables_hold_what_the_log_says(make_world: MakeWorld, spark: SparkSession) -> None:
    kafka = make_world()
    kafka.push()
    lineage = kafka.run(spark, payload=True)
    assert (lineage.written.events, lineage.written.deliveries, lineage.written.answers) == (8, 11, 5)
    assert_complete(kafka)
    assert_complete_in_spark(kafka, spark)
    events = kafka.frame(spark, "events")
    assert events.where("read_crc32 = crc32 and event_time is not null").count() == 8
    values = [bytes(row["payload"]) for row in events.select("payload").collect()]
    assert sorted(values) == sorted(value for of in kafka.world.events.values() for value in of)
    times = kafka.frame(spark, "batches").selectExpr("unix_millis(batch_time) as ms").distinct().collect()
    assert sorted(row["ms"] for row in times) == [1_001_000, 1_002_000, 1_003_000, 1_004_000]
    for name, table in TABLES.items():
        comments = [(field.name, field.metadata["comment"]) for field in kafka.frame(spark, name).schema]
        assert comments == [(column.name, column.comment) for column in table.columns]
    assert query_of_the_page(kafka.settings.tables) == [
        {"subscriber": "r", "events": 6, "last": 12},
        {"subscriber": "s", "events": 5, "last": 12},
    ]


class Collected:
    """The bytes of each table that Spark has handed to Python."""

    def __init__(self, patched: pytest.MonkeyPatch, frames: type[DataFrame]) -> None:
        self.bytes: list[int] = []
        collect = frames.toArrow

        def spied(frame: DataFrame) -> pa.Table:
            found = collect(frame)
            self.bytes.append(found.nbytes)
            return found

        patched.setattr(frames, "toArrow", spied)


def test_values_and_records_of_any_size_come_in_parts(
    make_world: MakeWorld, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty events of 5 kB among small ones and one of 30 kB, in one batch, where 20 kB may be in memory at once."""
    kafka = make_world(DomainWorld)
    large = [b"%05d" % number * 1000 for number in range(40)]
    values = [*large, b"", b"small", b"x" * 30_000, *(b"%d" % number for number in range(30))]
    kafka.world.batch(Change("r", frozenset("ab")), *(("ab"[at % 2], value) for at, value in enumerate(values)))
    kafka.world.report(kafka.world.deliver("r", "ab"))
    kafka.push()
    monkeypatch.setattr(pieces, "AT_ONCE_BYTES", 20_000)
    collected = Collected(monkeypatch, type(spark.range(1)))
    assert kafka.run(spark, payload=True).written.events == len(values)
    assert max(collected.bytes) < 3 * 20_000
    assert_complete(kafka)
    found = OutsideTable(f"{kafka.settings.tables}/events").to_pyarrow_table()
    written = {(row["kafka_topic"], row["offset"]): row["payload"] for row in found.to_pylist()}
    sent = {(topic, offset): value for topic, of in kafka.world.events.items() for offset, value in enumerate(of)}
    assert written == sent
    appends = [row for row in OutsideTable(f"{kafka.settings.tables}/events").history() if "txnAppId" not in row]
    assert len(appends) > len(large) // 4


def test_a_topic_that_was_made_anew_is_another_one(
    make_world: MakeWorld, spark: SparkSession, kafka_admin: KafkaAdminClient
) -> None:
    """The new one has records at all places of the old one, which are gone."""
    kafka = make_world()
    kafka.push()
    old, name = kafka.world.ids[kafka.world.topics["a"]], kafka.world.topics["a"]
    new = kafka.make_anew("a", kafka_admin)
    assert new != old
    kafka.world.batch(Anew(topic="a", lost=2, topic_id=new), *(("a", b"new %d" % number) for number in range(4)))
    kafka.world.report(kafka.world.deliver("t", "a"))
    kafka.push()
    assert kafka.run(spark, payload=True).written.unread == 3
    assert_complete(kafka)
    assert_complete_in_spark(kafka, spark)
    events = kafka.frame(spark, "events").where(f"kafka_topic = '{name}'").orderBy("g")
    read = [(row["topic_id"], row["offset"], row["read_crc32"], row["payload"]) for row in events.collect()]
    assert read[:3] == [(old, offset, None, None) for offset in range(3)]
    assert [(topic_id, bytes(value)) for topic_id, _, _, value in read[3:]] == [
        (new, b"new %d" % number) for number in range(4)
    ]
    auditor = Auditor(spark.newSession(), kafka.settings.root)
    names = ("numbers", "content", "published", "taken-by-cut", "batches", "retired", "losses")
    *judged, lost = [auditor.ask(audit) for audit in choose(names)]
    assert {result.audit.name: result.rows for result in judged if result.verdict != "holds"} == {}
    assert [row[:8] for row in lost.rows] == [("with its topic", None, name, old, 0, 3, 4, 2)]


def test_a_topic_that_is_made_anew_while_it_is_read_gives_nothing(
    make_world: MakeWorld, spark: SparkSession, kafka_admin: KafkaAdminClient
) -> None:
    """Whenever it happens: before the heads are read, or between them and the values."""
    kafka = make_world()
    kafka.push()
    memory = MemoryTables(kafka.world.domain)
    run_once(kafka.world, memory)
    empty = [pa.nulls(len(memory.rows("events")), pa.int64())]
    events = memory.rows("events")
    events = events.set_column(events.schema.get_field_index("read_crc32"), events.schema.field("read_crc32"), empty)
    with closing(Topics(kafka.settings.of_sequencer())) as topics:
        name = kafka.world.topics["a"]
        facts = topics.facts(kafka.world.topics.values())
        other = facts | {name: replace(facts[name], topic_id="another")}
        for answers, has_checksum in (([facts, facts], True), ([facts, other], False), ([other, other], False)):
            log = EventLog(spark, kafka.settings, partial(next_answer, iter(answers)))
            (filled,) = log.filled(events)
            rows = filled.to_pylist()
            assert {row["read_crc32"] is not None for row in rows if row["kafka_topic"] == name} == {has_checksum}
            assert {row["read_crc32"] is not None for row in rows if row["kafka_topic"] != name} == {True}


def next_answer(answers: Iterator[dict[str, TopicFacts]], _: object) -> dict[str, TopicFacts]:
    return next(answers)


def query_of_the_page(root: str) -> object:
    """What the example of docs/lineage.md prints: it reads the tables without Spark."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "lineage.md").read_text(encoding="utf-8")
    said: list[object] = []
    exec(page.partition("```python\n")[2].partition("```")[0], {"ROOT": root, "print": said.append})
    return said[0]


def test_a_crash_between_any_two_tables_heals(
    make_world: MakeWorld, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = make_world()
    kafka.push()
    for name in ("cuts", "events", "batches", "subscriptions", "sequencing_groups", "deliveries"):
        with monkeypatch.context() as patched:
            die_before(name, patched)
            with pytest.raises(Error, match="CrashedHere"):
                kafka.run(spark)
    kafka.run(spark)
    assert_complete(kafka)


def die_before(table: str, patched: pytest.MonkeyPatch) -> None:
    """Lets the job die before it writes to a table, and lets it write to those before it."""
    append, merge = LineageTables.append, LineageTables.merge_groups

    def dying_append(self: LineageTables, name: str, rows: Any) -> None:
        if name == table:
            raise CrashedHere(name)
        append(self, name, rows)

    def dying_merge(self: LineageTables, intervals: Any) -> None:
        if table == "sequencing_groups" and intervals:
            raise CrashedHere(table)
        merge(self, intervals)

    patched.setattr(LineageTables, "append", dying_append)
    patched.setattr(LineageTables, "merge_groups", dying_merge)


def test_what_kafka_has_twice_is_written_once_and_must_be_the_same(make_world: MakeWorld, spark: SparkSession) -> None:
    kafka = make_world()
    world = kafka.world
    kafka.push()
    kafka.run(spark)
    for effects in list(world.effects):
        world.send(effects)
    for kind in ("cuts", "receipts"):
        world.logs[kind] += list(world.logs[kind])
    kafka.push()
    again = kafka.run(spark).written
    assert (again.repeated, again.batches, again.events, again.answers, again.deliveries) == (8 + 5 + 11, 0, 0, 0, 0)
    assert again.cuts == 0
    assert kafka.frame(spark, "deliveries").count() == 11
    forged = tuple(replace(stamped, time_ms=7).sealed() for stamped in world.effects[0].stamps)
    world.send(replace(world.effects[0], stamps=forged, answers=()))
    kafka.push()
    with pytest.raises(Contradiction, match="batches: what Kafka has for stamps_partition"):
        kafka.run(spark)


def test_the_parts_of_a_batch_may_come_in_two_runs(make_world: MakeWorld, spark: SparkSession) -> None:
    kafka = make_world(max_part_bytes=1)
    whole = list(kafka.world.logs["stamps"])
    first_parts = [record.headers["part"] for record in whole]
    cut = next(at for at, part in enumerate(first_parts) if part == b"1")
    kafka.world.logs["stamps"] = whole[:cut]
    kafka.push()
    done = kafka.run(spark).written.batches
    kafka.world.logs["stamps"] = whole
    kafka.push()
    assert kafka.run(spark).written.batches == 8 - done
    assert_complete(kafka)


def test_it_goes_on_while_it_runs_and_stops_when_asked(make_world: MakeWorld, spark: SparkSession) -> None:
    kafka = make_world()
    kafka.push()
    with Lineage(kafka.settings, spark=spark) as lineage:
        wait_until(lambda: lineage.written.events == 8, "the first events are written", bound_s=120)
        kafka.world.batch(("a", b"9"))
        kafka.push()
        wait_until(lambda: lineage.written.batches == 10, "the last batch is written", bound_s=120)
        assert not lineage.wait(0)
        with pytest.raises(StateError, match="another lineage job"):
            Lineage(kafka.settings, spark=spark).start()
    assert lineage.wait(0)
    assert_complete(kafka)


@pytest.mark.long
def test_one_whose_java_is_stopped_says_so_goes_on_with_it_and_ends_in_time(
    make_world: MakeWorld, spark: SparkSession
) -> None:
    kafka, java = make_world(), java_process()
    assert java is not None
    kafka.push()
    settings = kafka.settings.model_copy(update={"standstill_timeout_s": 8})
    with capture_logs() as logs:

        def said(event: str) -> bool:
            return any(line["event"] == event for line in logs)

        # Whoever waits for it stands in a call to Java, and comes back when that goes on.
        lineage = Lineage(settings, spark=spark, on_abandoned=lambda _: os.kill(java, signal.SIGCONT))
        try:
            lineage.start()
            wait_until(lambda: lineage.written.events == 8, "it has written", bound_s=300)
            os.kill(java, signal.SIGSTOP)
            wait_until(lambda: said(STANDS), "a word", bound_s=60)
            os.kill(java, signal.SIGCONT)
            wait_until(lambda: said(GOES_ON), "it goes on", bound_s=60)
            os.kill(java, signal.SIGSTOP)
            stopped = rf"stood still for \d+ s in .*: Spark's Java, process {java}, is stopped"
            with pytest.raises(Error, match=stopped):
                lineage.wait(300)
        finally:
            os.kill(java, signal.SIGCONT)
            lineage.stop()
    kafka.run(spark)
    assert_complete(kafka)


def test_of_two_drivers_without_a_lock_one_stops(spark: SparkSession, tmp_path: Path) -> None:
    one, other = (LineageTables(spark, str(tmp_path / "tables"), "d") for _ in range(2))
    one.open()
    other.open()
    memory = MemoryTables()
    run_once(busy_world(), memory)
    rows = memory.rows("deliveries")
    one.append("deliveries", rows.slice(0, 1))
    with pytest.raises(StateError, match="another lineage job writes to"):
        other.append("deliveries", rows.slice(1, 1))
    one.append("deliveries", rows.slice(2, 1))
    assert one.frame("deliveries").count() == 2
    with pytest.raises(StateError, match="is that of domain d"):
        LineageTables(spark, str(tmp_path / "tables"), "another").open()


@pytest.mark.parametrize(
    ("table", "changed", "differing"),
    [
        ("events", {"topic_id": None}, "topic_id"),
        (
            "batches",
            {"next_offsets": "ARRAY<STRUCT<kafka_topic:STRING,partition:INT,next_offset:BIGINT>>"},
            "next_offsets",
        ),
    ],
)
def test_tables_of_another_version_are_refused_and_left_as_they_are(
    spark: SparkSession, tmp_path: Path, table: str, changed: dict[str, str | None], differing: str
) -> None:
    """Also where only what is within a column differs."""
    found = spark.createDataFrame([], ", ".join(f"`{c.name}` {c.type}" for c in TABLES[table].columns))
    for name, kind in changed.items():
        found = found.drop(name) if kind is None else found.withColumn(name, F.lit(None).cast(kind))
    builder = found.select([name for name in TABLES[table].names if name in found.columns]).write.format("delta")
    builder.save(str(tmp_path / table))
    spark.sql(f"alter table delta.`{tmp_path / table}` set tblproperties ('totalorder.domain' = 'd')")
    with pytest.raises(
        StateError, match=f"{table} was written by another version of totalorder: it differs in {differing}\\."
    ):
        LineageTables(spark, str(tmp_path), "d").open()


def test_times_beyond_python_s_and_a_root_of_two_lines(spark: SparkSession, tmp_path: Path) -> None:
    """A producer that stamps microseconds where Kafka wants milliseconds lives in the year 58881."""
    memory, root = MemoryTables(), str(tmp_path / "two\n`lines`")
    run_once(busy_world(), memory)
    rows = memory.rows("events")
    far = pa.array([1_796_058_000_000_000_000 + at for at in range(len(rows))], pa.timestamp("us", "UTC"))
    rows = rows.set_column(rows.schema.get_field_index("event_time"), rows.schema.field("event_time"), far)
    tables = LineageTables(spark, root, "d")
    tables.open()
    tables.append("events", rows)
    (file,) = Path(root, "events").glob("*.parquet")
    (column,) = (one for one in pq.ParquetFile(file).schema if one.name == "event_time")
    assert (column.physical_type, column.logical_type.type) == ("INT64", "TIMESTAMP")
    read = pq.read_table(file).column("event_time").cast(pa.int64())
    assert sorted(read.to_pylist()) == far.cast(pa.int64()).to_pylist()
    columns, found = Auditor(spark.newSession(), root).query("SELECT max(event_time), min(event_time) FROM events")
    assert (len(columns), found) == (2, [("+58884-10-23 08:00:00.000007", "+58884-10-23 08:00:00")])


def test_what_a_start_reads_comes_in_parts(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, tables = MemoryTables(), LineageTables(spark, str(tmp_path), "d")
    run_once(busy_world(), memory)
    tables.open()
    tables.append("subscriptions", memory.rows("subscriptions"))
    tables.merge_groups(memory.intervals)
    (changes,), (groups,) = list(tables.changes()), list(tables.groups())
    monkeypatch.setattr(pieces, "AT_ONCE_BYTES", 250)
    parts = list(tables.changes())
    assert len(parts) > 1
    assert [row["g"] for part in parts for row in part.sort_by("g").to_pylist()] == sorted(
        changes.column("g").to_pylist()
    )
    parts = list(tables.groups())
    assert len(parts) > 1
    assert sorted(map(str, pa.concat_tables(parts).to_pylist())) == sorted(map(str, groups.to_pylist()))
    known = tables.known("subscriptions", memory.rows("subscriptions").slice(1, 2))
    assert sorted(known.column("g").to_pylist()) == memory.rows("subscriptions").column("g").to_pylist()[1:3]


def test_cuts_go_on_at_a_key_cut_that_counts(spark: SparkSession, tmp_path: Path) -> None:
    """The story of a process that lost the race for Spark's log, told step by step; the twin marks in memory."""
    world, memory, tables = busy_world(), MemoryTables(), LineageTables(spark, str(tmp_path), "d")
    tables.open()
    last = world.cuts[-1]
    lost = Cut.of(**OF_WORLD, cut=4, begins=last.begins.tolist(), ends=(last.ends + 5).tolist(), looks=[])
    following = Cut.of(**OF_WORLD, cut=5, begins=last.ends.tolist(), ends=(last.ends + 1).tolist(), looks=[])
    for cut in (None, lost, following):
        if cut is not None:
            world.send_cut(encode_cut(cut, is_key=cut is lost))
        before = len(memory.rows("cuts"))
        run_once(world, memory)
        tables.append("cuts", memory.rows("cuts").slice(before))
        marks = tables.marks()
        found = {"newest_cut": marks.newest_cut, "cuts_offset": marks.cuts_offset, "cuts_end": marks.cuts_end}
        assert found == memory.cut_marks()
        assert marks.cuts_offset == 2


def test_a_stop_is_obeyed_between_two_tables(spark: SparkSession, tmp_path: Path) -> None:
    asked = iter([False, False, True])
    tables = LineageTables(spark, str(tmp_path), "d", is_stopping=lambda: next(asked))
    with pytest.raises(Stopped):
        tables.open()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["batches", "events"]


def test_what_is_missing_in_kafka_stops_the_job(
    make_world: MakeWorld, spark: SparkSession, kafka_admin: KafkaAdminClient
) -> None:
    kafka = make_world()
    with pytest.raises(PreflightFailed, match=r"has no topic nowhere\.cuts, nowhere\.grants, nowhere"):
        kafka.run(spark, domain="nowhere")
    kafka.push()
    kafka.run(spark)
    lost = kafka.world.batch(("a", b"9"))
    kafka.world.batch(("a", b"10"))
    kafka.push()
    stamps = TopicPartition(DomainTopics(domain=kafka.world.domain).stamps, lost.stamps[0].partition)
    kafka_admin.delete_records({stamps: 5})
    with pytest.raises(EventsLost, match="goes from batch 4 to 6"):
        kafka.run(spark)
    for value in (b"11", b"12", b"13"):
        kafka.world.batch(("a", value))
    kafka.push()
    kafka_admin.delete_records({TopicPartition(DomainTopics(domain=kafka.world.domain).cuts, 0): 8})
    with pytest.raises(EventsLost, match="goes from cut 6 to 9"):
        kafka.run(spark)
    receipts = TopicPartition(DomainTopics(domain=kafka.world.domain).receipts, 0)
    kafka.world.report(kafka.world.deliver("t", "a"))
    kafka.push()
    kafka_admin.delete_records({receipts: 4})
    with pytest.raises(EventsLost, match="no longer has the receipts"):
        kafka.run(spark)


@pytest.mark.long
def test_change_feed_time_travel_and_compaction(make_world: MakeWorld, spark: SparkSession) -> None:
    kafka = make_world()
    kafka.push()
    kafka.run(spark)
    kafka.world.batch(("a", b"9"), Change("r", frozenset("ab")))
    kafka.push()
    kafka.run(spark)
    path = f"{kafka.settings.tables}/events"
    versions = [row["version"] for row in OutsideTable(path).history()]
    before = spark.read.format("delta").option("versionAsOf", min(versions) + 1).load(path)
    assert before.count() == 8
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 2).load(path)
    assert [(row["_change_type"], row["n"]) for row in feed.collect()] == [("insert", 4)]
    groups = f"{kafka.settings.tables}/sequencing_groups"
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 2).load(groups)
    assert {row["_change_type"] for row in feed.collect()} == {"insert", "update_preimage", "update_postimage"}
    files = {name: (was, now) for name, was, now in compact(spark, kafka.settings.root, 0)}
    assert files["events"] == (2, 1)
    assert len(list(Path(path).glob("*.parquet"))) == 1
    kafka.world.batch(("b", b"10"))
    kafka.push()
    kafka.run(spark)
    assert_complete(kafka)
    with pytest.raises(SettingsError, match="no lineage table at"):
        list(compact(spark, f"{kafka.settings.root}-none", 0))


def test_the_lineage_of_a_real_job_and_a_real_subscriber(
    broker: LocalBroker,
    new_topic: Callable[..., str],
    unique_name: Callable[[str], str],
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    topics, domain, servers = [new_topic("a"), new_topic("b")], unique_name("whole"), broker.bootstrap_servers
    job = settings_for(domain, servers, tmp_path / "state", topics=",".join(topics))
    with (
        Sequencer(job, spark=spark),
        to.Subscriber(topics, id="r", domain=domain, bootstrap_servers=servers, start_timeout_s=120) as subscriber,
        kafka_clients.producer(servers) as producer,
    ):
        for number in range(40):
            producer.send(topics[number % 2], value=b"%d" % number)
        producer.flush(30)
        delivered: list[tuple[str, int, int, int, int]] = []
        while len(delivered) < 40:
            event = subscriber.poll(60)
            assert event is not None
            subscriber.ack(event)
            delivered.append((event.kafka_topic, event.partition, event.offset, event.n, event.g))
    settings = LineageSettings(tables=str(tmp_path / "tables"), domain=domain, bootstrap_servers=servers)
    with Lineage(settings, until_caught_up=True, spark=spark) as lineage:
        lineage.wait()
    tables = LineageTables(spark, settings.root, domain)
    columns = ["kafka_topic", "partition", "offset", "n", "g"]
    rows = tables.frame("deliveries").orderBy("generation", "delivery_index").select(*columns)
    assert [tuple(row) for row in rows.collect()] == delivered
    rows = tables.frame("events").where("crc32 = read_crc32").orderBy("g").select(*columns)
    assert [tuple(row) for row in rows.collect()] == delivered
    (grant,) = tables.frame("subscriptions").where("kind = 'granted'").collect()
    assert (grant["subscriber"], sorted(grant["topics"])) == ("r", sorted(topics))


class LineageProcess(SequencerProcess):
    """`totalorder lineage`."""

    command: tuple[str, ...] = (str(Path(sys.executable).with_name("totalorder")), "lineage")


class CatchingUp(LineageProcess):
    """`totalorder lineage --until-caught-up`."""

    command = (*LineageProcess.command, "--until-caught-up")


def test_a_signal_ends_it_in_good_order_and_it_says_whether_it_has_caught_up(make_world: MakeWorld) -> None:
    kafka = make_world()
    kafka.push()
    flags = {name: getattr(kafka.settings, name) for name in ("domain", "bootstrap_servers", "tables")}
    with CatchingUp(**flags) as process:
        process.until("it opens the tables", lambda: process.logged("opening the tables"))
        assert process.terminate(signal.SIGINT) == 1  # also where pyspark has just put a handler of its own
        assert "was stopped before it had caught up" in process.lines[-1]
        assert not process.logged("lineage ready"), "no query is started after a signal"
    with CatchingUp(**flags, batch_records=1) as process:
        process.until("the first batch is written", lambda: process.logged("batch"))
        assert process.terminate() == 1
        (*_, last), (ready,) = process.logged("batch"), process.logged("lineage ready")
        assert 0 < last["left"] < ready["left"]
        assert f"caught up: {last['left']} of {ready['left']} records are still to be read" in process.lines[-1]
        assert process.logged("lineage stopped")
    with CatchingUp(**flags) as process:
        assert process.wait() == 0
        (done,) = process.logged("caught up")
        assert 0 < done["events"] + done["answers"] + done["deliveries"] < 8 + 5 + 11
    assert_complete(kafka)


@pytest.mark.long
def test_one_that_goes_on_for_ever_ends_well_by_a_signal_and_with_words_where_its_java_is_gone(
    make_world: MakeWorld,
) -> None:
    kafka = make_world()
    kafka.push()
    flags = {name: getattr(kafka.settings, name) for name in ("domain", "bootstrap_servers", "tables")}
    with LineageProcess(**flags) as process:
        process.until("it runs", lambda: process.logged("lineage ready"))
        assert process.terminate() == 0
        assert not process.logged("caught up")
    with LineageProcess(**flags) as process:
        process.until("it runs", lambda: process.logged("lineage ready"))
        (java,) = process.java()
        os.kill(java, signal.SIGKILL)
        assert process.wait() == 1
        assert process.lines[-1].startswith("totalorder: Spark's Java process has ended"), process.lines[-1]
        assert not any("Traceback" in line for line in process.lines)
