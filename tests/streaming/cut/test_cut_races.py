"""What may happen to a log, or to those who read it, between any two steps of the source."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from cut_world import chunks, plan_of, rows_of, whole

from totalorder.broker import LocalBroker
from totalorder.streaming.cut import consumers
from totalorder.streaming.cut.fast import FastReader
from totalorder.streaming.cut.plain import PlainReader
from totalorder.streaming.cut.records import Reader

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
