"""The source as pyspark calls it: what it hands over in the place of a share to read, and that it is the same batch."""

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cut_driver import Driver
from cut_world import whole
from kafka import KafkaProducer
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.serializers import ArrowStreamSerializer
from pyspark.sql.streaming import python_streaming_source_runner
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import BinaryType, StructField, StructType
from waiting import wait_until

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.errors import StateError
from totalorder.streaming.cut.ahead import MAX_EVENTS
from totalorder.streaming.cut.batches import CHUNK
from totalorder.streaming.cut.chunk import Chunk
from totalorder.streaming.cut.datasource import CutReader, CutSource, Share
from totalorder.streaming.cut.offset import BatchEnd
from totalorder.streaming.cut.rows import chunks_of, encode_plan
from totalorder.streaming.cut.source_settings import SourceSettings
from totalorder.streaming.record import Recovered

pytestmark = pytest.mark.broker
NewTopic = Callable[..., str]
Offset = dict[str, Any]
runner: Any = python_streaming_source_runner


@pytest.fixture(scope="module")
def producer(broker: LocalBroker) -> Iterator[KafkaProducer]:
    with kafka_clients.producer(broker.bootstrap_servers) as found:
        yield found


class Source:
    """A reader as the driver's process has it."""

    def __init__(self, driver: Driver) -> None:
        self.settings = SourceSettings.of(driver.settings, str(driver.handover.folder))
        self.reader = CutReader(self.settings)

    def next(self, start: Offset, most: int = 100_000) -> Offset:
        ends: list[Offset] = []

        def moved() -> bool:
            ends.append(self.reader.latestOffset(start, ReadMaxRows(most)))
            return bool(ends[-1] != start)

        wait_until(moved, "a batch", bound_s=30)
        return ends[-1]

    def rows(self, start: Offset, end: Offset) -> tuple[list[InputPartition], list[bytes] | None]:
        partitions = self.reader.partitions(start, end)
        cached = self.reader.getCache(start, end)
        return partitions, None if cached is None else values(cached)


@pytest.fixture
def source(drive: Callable[..., Driver]) -> Iterator[Callable[[Driver], Source]]:
    made: list[Source] = []

    def make(driver: Driver) -> Source:
        made.append(Source(driver))
        return made[-1]

    yield make
    for each in made:
        each.reader.stop()


def values(batches: Iterator[pa.RecordBatch]) -> list[bytes]:
    return [value for batch in batches for value in batch.column(CHUNK).to_pylist()]


def offsets(found: list[Chunk]) -> list[tuple[str, int, int, int]]:
    return sorted(
        (*chunk.sources[source][::2], offset, crc)
        for chunk in found
        for source, offset, crc in zip(chunk.source.tolist(), chunk.offset.tolist(), chunk.crc.tolist(), strict=True)
    )


def read_by_a_worker(source: Source, partitions: list[InputPartition]) -> list[Chunk]:
    rows = [row for part in partitions for row in values(source.reader.read(part))]
    return [chunk for row in rows for chunk in chunks_of(row, source.settings)]


def publish(producer: KafkaProducer, topic: str, count: int) -> None:
    for number in range(count):
        producer.send(topic, value=b"%d" % number, partition=0)
    producer.flush(60)


@pytest.mark.parametrize("shards", [1, 2])
def test_a_small_batch_is_handed_over_and_is_the_same_when_it_runs_again(
    shards: int,
    drive: Callable[..., Driver],
    source: Callable[[Driver], Source],
    new_topic: NewTopic,
    producer: KafkaProducer,
) -> None:
    a = new_topic("a")
    driver = drive([a], shards=shards)
    first = source(driver)
    start = first.reader.initialOffset()
    publish(producer, a, 9)
    end = first.next(start)
    partitions, rows = first.rows(start, end)
    assert rows is not None
    assert b"{" not in rows[0][:5], "chunks, not a plan"
    found = [chunk for row in rows for chunk in chunks_of(row, first.settings)]
    assert 0 < len(offsets(found)) <= 9
    assert offsets(read_by_a_worker(first, partitions)) == offsets(found), "where Spark has lost the rows"
    again = source(driver)  # of which Spark asks for partitions only, with what its log has
    partitions, rows = again.rows(start, end)
    assert (rows is None) == (shards > 1), "a plan goes to the one task that stamps, and not to several"
    for row in rows or ():
        assert offsets(list(chunks_of(row, again.settings))) == offsets(found)
    assert offsets(read_by_a_worker(again, partitions)) == offsets(found)
    assert again.rows(end, end) == ([], None)
    assert first.rows(end, end) == ([], None), "nothing is left of the batch before"


def whole_rows(found: list[Chunk]) -> list[list[Any]]:
    """All that the engine is given of each record."""
    rows = []
    for chunk in found:
        columns = (chunk.source, chunk.offset, chunk.timestamp_ms, chunk.crc, chunk.slice, chunk.topic)
        for source, *numbers, topic in zip(*(column.tolist() for column in columns), strict=True):
            rows.append([chunk.cut, *chunk.sources[source], *numbers, chunk.names[topic] if topic >= 0 else None])
    return sorted(rows)


def read_cold() -> None:
    """In a process of its own, which is given the settings and what Spark's log has; prints each batch's rows."""
    settings, ends = SourceSettings.decode(sys.argv[1]), json.loads(sys.argv[2])
    for start, end in ends:
        reader = CutReader(settings)
        plans = [part.plan for part in reader.partitions(start, end) if isinstance(part, Share)]
        found = [chunk for plan in plans for chunk in chunks_of(encode_plan(plan), settings)]
        sys.stdout.write(json.dumps(whole_rows(found)) + "\n")
        reader.stop()


def test_the_same_log_of_sparks_gives_the_same_rows_from_a_cold_worker(
    drive: Callable[..., Driver], source: Callable[[Driver], Source], new_topic: NewTopic, producer: KafkaProducer
) -> None:
    """With slices, times and names, of batches that warm processes took up in the driver or a worker, one by one."""
    a = new_topic("a", partitions=2)
    made = source(drive([a], topic_by="key"))
    ends, began_ms = [made.reader.initialOffset()], int(time.time() * 1000) - 10_000
    warm: list[list[list[Any]]] = []
    for number in range(6):
        for at in range(40):
            producer.send(a, key=b"key-%d" % (at % 7), value=b"%d" % at, partition=at % 2, timestamp_ms=began_ms + at)
            if at % 10 == 0:
                producer.flush(60)
        ends.append(made.next(ends[-1], most=30))
        partitions, rows = made.rows(*ends[-2:])
        in_driver = [chunk for row in rows or () for chunk in chunks_of(row, made.settings)]
        warm.append(whole_rows(read_by_a_worker(made, partitions) if number % 2 else in_driver))
    pairs = list(pairwise(ends))[::-1]
    cold = subprocess.run(
        [sys.executable, "-c", "import test_datasource as t; t.read_cold()", made.settings.encode(), json.dumps(pairs)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert [json.loads(line) for line in cold.stdout.splitlines()] == warm[::-1]
    assert all(warm)


def test_a_recovered_checkpoints_first_batch_brings_its_seeds_and_nothing_else(
    drive: Callable[..., Driver], source: Callable[[Driver], Source], new_topic: NewTopic, producer: KafkaProducer
) -> None:
    a = new_topic("a")
    driver = drive([a])
    publish(producer, a, 9)
    begin = BatchEnd(cut=7, order=0, ends={0: (0,), 1: (4,)})
    record = replace(driver.handover.record(), recovered=Recovered(batch=5, begin=begin, seeds=("x", "y")))
    driver.handover.tell(record)
    driver.handover.give_seeds([b"first", b"second"])
    first = source(driver)
    start = first.reader.initialOffset()
    assert start == begin.encode()
    assert first.reader.latestOffset(start, ReadMaxRows(100)) == start, "though there are records"
    partitions, rows = first.rows(start, start)
    assert (len(partitions), rows) == (1, [b"first", b"second"])
    end = first.next(start)
    assert end["cut"] == 8
    _, rows = first.rows(start, end)
    found = [chunk for row in rows or () for chunk in chunks_of(row, first.settings)]
    assert {offset for *_, offset, _ in offsets(found)} <= set(range(4, 9))
    driver.handover.folder.joinpath("seed-0").unlink()
    driver.handover.folder.joinpath("seed-1").unlink()
    again = source(driver)
    assert again.rows(start, start) == ([], None), "a checkpoint that has them is given none"


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_large_batch_is_read_where_it_is_stamped_or_by_several_tasks(
    tasks: int,
    drive: Callable[..., Driver],
    source: Callable[[Driver], Source],
    new_topic: NewTopic,
    producer: KafkaProducer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from totalorder.streaming.cut import cutter

    monkeypatch.setattr(cutter, "_SHARED_FROM", MAX_EVENTS)
    a, b = new_topic("a"), new_topic("b")
    made = source(drive([a, b], reading_tasks=tasks))
    start = made.reader.initialOffset()
    for topic in (a, b):
        publish(producer, topic, MAX_EVENTS)
    end = made.next(start)
    partitions, rows = made.rows(start, end)
    assert len(partitions) == tasks
    every = [(topic, 0, number) for topic in sorted((a, b)) for number in range(MAX_EVENTS)]
    assert [row[:3] for row in offsets(read_by_a_worker(made, partitions))] == every
    if tasks == 1:
        assert rows is not None
        (row,) = rows
        assert len(row) < 1_000
        assert [row[:3] for row in offsets(list(chunks_of(row, made.settings)))] == every
    else:
        assert rows is None


def test_who_stamps_asks_for_topics_ids_behind_its_own_reading(
    drive: Callable[..., Driver], source: Callable[[Driver], Source], new_topic: NewTopic, producer: KafkaProducer
) -> None:
    a = new_topic("a")
    made = source(drive([a]))
    publish(producer, a, 3)
    plan = made.settings.plan(cut=1, topic_order=(), ranges=[whole(a, 0, 0, 3, topic_id="former")])
    with pytest.raises(StateError, match=f"topic {a} was deleted and created again"):
        list(chunks_of(encode_plan(plan), made.settings))


def test_pyspark_itself_hands_the_rows_over(
    drive: Callable[..., Driver], source: Callable[[Driver], Source], new_topic: NewTopic, producer: KafkaProducer
) -> None:
    a = new_topic("a")
    made = source(drive([a]))
    start = made.reader.initialOffset()
    publish(producer, a, 3)
    end = made.next(start)
    asked, told = io.BytesIO(), io.BytesIO()
    for text in (start, end):
        runner.write_with_length(json.dumps(text).encode(), asked)
    asked.seek(0)
    schema = StructType([StructField(CHUNK, BinaryType())])
    runner.partitions_func(made.reader, CutSource({}), schema, 10_000, asked, told)
    told.seek(0)
    assert runner.read_int(told) == 1
    (partition,) = [runner.pickleSer._read_with_length(told)]
    assert isinstance(partition, Share)
    assert runner.read_int(told) == runner.NON_EMPTY_PYARROW_RECORD_BATCHES
    runner.read_int(told)
    rows = values(ArrowStreamSerializer().load_stream(told))
    assert offsets([chunk for row in rows for chunk in chunks_of(row, made.settings)]) == offsets(
        read_by_a_worker(made, [partition])
    )
    flags = io.BytesIO()
    runner.check_support_func(made.reader, flags)
    flags.seek(0)
    assert runner.read_int(flags) == runner.SUPPORTS_ADMISSION_CONTROL
