"""What may happen to a log, or to those who read it, between any two steps of the source."""

import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from confluent_kafka import Producer
from cut_driver import Driver
from cut_world import World, chunks, plan_of, rows_of, whole
from kafka import KafkaAdminClient
from waiting import wait_until

from totalorder.broker import LocalBroker
from totalorder.errors import StateError
from totalorder.sequencer.wire.limits import MAX_CONTROL_BYTES
from totalorder.streaming.cut import consumers
from totalorder.streaming.cut.ends import Look
from totalorder.streaming.cut.fast import FastReader, _Held, _Run
from totalorder.streaming.cut.offset import MAX_LOOKS, BatchEnd
from totalorder.streaming.cut.plain import PlainReader
from totalorder.streaming.cut.records import NONE, Names, Reader, Records
from totalorder.streaming.cut.verifying import present_ids

pytestmark = pytest.mark.broker
NewTopic = Callable[..., str]


@pytest.fixture(params=[PlainReader, FastReader])
def reader(request: pytest.FixtureRequest, broker: LocalBroker) -> Iterator[Reader]:
    made = request.param(consumers.client_settings(broker.bootstrap_servers, {}))
    yield made
    made.close()


def test_what_is_read_ahead_keeps_its_names(reader: Reader, broker: LocalBroker, new_topic: NewTopic) -> None:
    """Each plan counts names anew, and what was kept from the plan before was counted by that one."""
    topic, count, step = new_topic("keys"), 6_000, 500
    producer: Any = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for at in range(count):
        producer.produce(topic, b"v", key=b"name-%d" % (at % 700), partition=0)
    assert producer.flush(60) == 0
    for begin in range(0, count, step):
        plan = plan_of(broker.bootstrap_servers, [whole(topic, 0, begin, begin + step)], topic_by="key")
        named = [(row.offset, row.name) for row in rows_of(chunks(plan, reader))]
        assert named == [(at, f"name-{at % 700}") for at in range(begin, begin + step)]


def test_a_range_is_read_again_from_before_what_was_read_ahead(
    reader: Reader, broker: LocalBroker, new_topic: NewTopic
) -> None:
    topic, count = new_topic("again"), 30_000
    producer: Any = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for at in range(count):
        producer.produce(topic, b"%d" % at, partition=0)
    assert producer.flush(60) == 0
    for begin, end in [(0, 20_000), (0, 20_000), (20_000, 25_000), (10, 20_000), (0, 100), (100, 200), (5, 30_000)] * 3:
        plan = plan_of(broker.bootstrap_servers, [whole(topic, 0, begin, end)])
        assert [row.offset for row in rows_of(chunks(plan, reader))] == list(range(begin, end))


def test_a_topic_that_is_made_again_is_told_though_its_records_are_all_aborted(
    reader: Reader, broker: LocalBroker, new_topic: NewTopic, kafka_admin: KafkaAdminClient
) -> None:
    """Then nothing comes of the range, and what the former topic had there would be missing without a word."""
    topic, world = new_topic("aborted"), World(broker.bootstrap_servers)
    world.write("none", [((topic, 0), b"v", 1)] * 9, outcome="abort")
    plan = plan_of(broker.bootstrap_servers, [whole(topic, 0, 0, 9, topic_id=str(UUID(int=1)))])
    with pytest.raises(StateError, match=f"topic {topic} was deleted and created again"):
        chunks(plan, reader, present_ids)


def test_a_topic_that_is_deleted_while_a_backlog_is_divided(
    drive: Callable[..., Driver], new_topic: NewTopic, kafka_admin: KafkaAdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic("divided")
    driver = drive([topic], on_topic_deleted="stop")
    World(driver.settings.bootstrap_servers).write("none", [((topic, 0), b"v", at) for at in range(50)])
    cutter = driver.cutter()
    begin, awaited = cutter.beginning(), cutter._awaited

    def deleting(*given: Any) -> Any:
        waiting = awaited(*given)
        kafka_admin.delete_topics([topic])
        wait_until(lambda: topic not in kafka_admin.list_topics(), "the topic is gone")
        return waiting

    monkeypatch.setattr(cutter, "_awaited", deleting)
    with pytest.raises(StateError, match=f"topic {topic} was deleted while the job ran"):
        cutter.end_after(begin, 3, 30.0)


def test_looks_that_were_made_one_count_as_one_in_the_figures(
    drive: Callable[..., Driver], new_topic: NewTopic
) -> None:
    """A batch that takes long: the promise that the figures give must be that of its slices."""
    driver = drive([new_topic("long")])
    cutter = driver.cutter()
    begin = cutter.beginning()
    cutter.end_after(begin, 1000, 0.0)
    cutter._looker.stop()
    sources = tuple(cutter._named(cutter._looks.sources))
    began_s, count = time.monotonic(), 2 * MAX_LOOKS + 2
    for at in range(count):
        ends, asked_s = np.array([0, at + 1]), began_s + at
        cutter._on_look(Look(sources=sources, ends=ends, began_s=asked_s, ended_s=asked_s + 0.5, silent=frozenset()))
    assert 2_000 <= cutter.figures()["longest_ms"] < 10_000
    cutter._awaited(BatchEnd(cut=1, order=0, ends={0: (0,), 1: (count,)}), 0.0)
    assert 2_000 <= cutter.figures()["longest_ms"] < 10_000


def test_values_of_control_records_count_for_what_may_be_kept(broker: LocalBroker, new_topic: NewTopic) -> None:
    """A backlog of the largest requests, while what is wanted of another partition is late."""
    reader, place = FastReader(consumers.client_settings(broker.bootstrap_servers, {})), (new_topic("control"), 0)
    reader._client.start(*place, 0)
    held = reader._held[place] = _Held("id", 0, 0, is_fetched=True)
    column, count = np.zeros(1, dtype=np.int64), 0
    while held.is_fetched:
        records = Records(column + count, column, column, column + NONE, {0: b"x" * MAX_CONTROL_BYTES})
        count += 1
        assert count * MAX_CONTROL_BYTES < 20_000_000, "it is fetched further"
        assert list(reader._took(_Run(place, 1, records, count), {}, set(), Names())) == []
        reader._bound_kept({})
    assert len(held.kept) == count > 10
    reader.close()
