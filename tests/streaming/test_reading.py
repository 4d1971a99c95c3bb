"""Ranges of the domain's own topics, read on a real broker while somebody deletes what comes first."""

from collections.abc import Callable, Iterator

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import OffsetOutOfRangeError

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.streaming import reading

pytestmark = pytest.mark.broker
COUNT = 10


@pytest.fixture
def source(broker: LocalBroker, new_topic: Callable[..., str]) -> TopicPartition:
    """A partition with ten records."""
    topic = new_topic("trimmed")
    producer: KafkaProducer
    with kafka_clients.producer(broker.bootstrap_servers) as producer:
        for number in range(COUNT):
            producer.send(topic, value=b"%d" % number, partition=0)
        producer.flush()
    return TopicPartition(topic, 0)


@pytest.fixture
def consumer(broker: LocalBroker) -> Iterator[KafkaConsumer]:
    """One that makes up no offset by itself."""
    with kafka_clients.consumer(broker.bootstrap_servers, auto_offset_reset="none") as consumer:
        yield consumer


def offsets(consumer: KafkaConsumer, source: TopicPartition, *, trimmed: bool) -> list[int]:
    """What comes of all ten."""
    return [one.offset for one in reading.records(consumer, {source: (0, COUNT)}, 30, trimmed=trimmed)]


@pytest.mark.parametrize("begin", [4, COUNT])
def test_what_is_deleted_between_a_look_and_reading_is_passed_over_where_that_is_allowed(
    kafka_admin: KafkaAdminClient, consumer: KafkaConsumer, source: TopicPartition, begin: int
) -> None:
    kafka_admin.delete_records({source: begin})
    assert offsets(consumer, source, trimmed=True) == list(range(begin, COUNT))


def test_what_is_deleted_between_a_look_and_reading_is_an_error_where_all_is_needed(
    kafka_admin: KafkaAdminClient, consumer: KafkaConsumer, source: TopicPartition
) -> None:
    kafka_admin.delete_records({source: 4})
    with pytest.raises(OffsetOutOfRangeError):
        offsets(consumer, source, trimmed=False)
