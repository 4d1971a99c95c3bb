"""Records that Kafka no longer has, as the subscriber's transport tells of them: what, from where to where."""

from collections.abc import Callable, Iterator

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from waiting import wait_until

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.errors import Error, EventsLost
from totalorder.subscriber.kafka_python import KafkaPythonTransport
from totalorder.subscriber.transport import Partition

pytestmark = pytest.mark.broker
NewTopic = Callable[..., str]


@pytest.fixture(scope="module")
def producer(broker: LocalBroker) -> Iterator[KafkaProducer]:
    with kafka_clients.producer(broker.bootstrap_servers) as made:
        yield made


@pytest.fixture
def transport(broker: LocalBroker) -> Iterator[KafkaPythonTransport]:
    made = KafkaPythonTransport(broker.bootstrap_servers, outage_timeout_s=20)
    yield made
    made.close()


def publish(producer: KafkaProducer, topic: str, count: int, partition: int = 0) -> None:
    for number in range(count):
        producer.send(topic, value=b"%d" % number, partition=partition)
    producer.flush(10)


def read_all(transport: KafkaPythonTransport, at: Partition, count: int) -> None:
    transport.read(at, 0)
    found = 0
    while found < count:
        records = transport.poll(10)
        assert records, f"{found} of {count} records came"
        found += len(records)


def lost(transport: KafkaPythonTransport) -> str:
    """What the transport tells when it is polled on."""
    return str(told_of(transport))


def told_of(transport: KafkaPythonTransport) -> EventsLost:
    with pytest.raises(EventsLost) as told:
        wait_until(lambda: transport.poll(0.5) is None, "the loss is told", bound_s=60)
    return told.value


def recreate(admin: KafkaAdminClient, topic: str) -> None:
    admin.delete_topics([topic])
    wait_until(lambda: topic not in admin.list_topics(), f"{topic} is gone")
    admin.create_topics({topic: {"num_partitions": 1}})
    admin.wait_for_topics([topic])


def test_the_range_that_retention_removed_is_named_for_every_partition(
    transport: KafkaPythonTransport, producer: KafkaProducer, kafka_admin: KafkaAdminClient, new_topic: NewTopic
) -> None:
    topic = new_topic("orders", partitions=3)
    for partition in range(3):
        publish(producer, topic, 30, partition)
    kafka_admin.delete_records({TopicPartition(topic, 0): 10, TopicPartition(topic, 1): 25})
    for partition in range(3):
        transport.read(Partition(topic, partition), 5)
    told = told_of(transport)
    assert f"{topic}[0]@5 to 9 (5 offsets), {topic}[1]@5 to 24 (20 offsets): they were removed" in told.what
    assert told.gone == {(topic, 0): 10, (topic, 1): 25}
    assert "--skip-lost" in told.remedy


@pytest.mark.parametrize("again", [0, 3, 10, 15])
def test_a_topic_that_is_made_again_under_its_reader(
    transport: KafkaPythonTransport,
    producer: KafkaProducer,
    kafka_admin: KafkaAdminClient,
    new_topic: NewTopic,
    again: int,
) -> None:
    topic = new_topic("orders")
    publish(producer, topic, 10)
    read_all(transport, Partition(topic, 0), 10)
    recreate(kafka_admin, topic)
    publish(producer, topic, again)
    said = lost(transport)
    assert f"{topic}[0]" in said
    assert "created again" in said


def test_a_topic_that_is_deleted_under_its_reader(
    transport: KafkaPythonTransport, producer: KafkaProducer, kafka_admin: KafkaAdminClient, new_topic: NewTopic
) -> None:
    topic, other = new_topic("orders"), new_topic("other")
    publish(producer, topic, 10)
    read_all(transport, Partition(topic, 0), 10)
    transport.read(Partition(other, 0), 0)
    kafka_admin.delete_topics([topic])
    assert f"{topic}[0]@10 and all behind it: the topic was deleted" in lost(transport)


def test_a_partition_that_is_not_there_cannot_be_written(transport: KafkaPythonTransport, new_topic: NewTopic) -> None:
    topic = new_topic("a")
    with pytest.raises(Error, match=rf"{topic} has no partition 7"):
        transport.send(Partition(topic, 7), b"k", b"v")
    with pytest.raises(Error, match="MessageSizeTooLargeError"):
        transport.send(Partition(topic, 0), b"k", b"v" * (17 << 20))
    assert transport.send(Partition(topic, 0), b"k", b"v") == 0
