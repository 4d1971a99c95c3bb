"""Records that Kafka no longer has, as the subscriber's transport tells of them: what, from where to where."""

from collections.abc import Callable, Iterator

import confluent_kafka
import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.errors import TopicAlreadyExistsError
from sources import src
from waiting import wait_until

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.errors import Error, EventsLost
from totalorder.subscriber.kafka_identities import Place
from totalorder.subscriber.kafka_transport import KafkaTransport
from totalorder.subscriber.transport import Partition, Record

pytestmark = pytest.mark.broker
NewTopic = Callable[..., str]
MakeTransport = Callable[..., KafkaTransport]


@pytest.fixture(scope="module")
def producer(broker: LocalBroker) -> Iterator[KafkaProducer]:
    with kafka_clients.producer(broker.bootstrap_servers) as made:
        yield made


@pytest.fixture
def transport(broker: LocalBroker, make_transport: MakeTransport) -> Iterator[KafkaTransport]:
    made = make_transport(broker.bootstrap_servers, outage_timeout_s=20)
    yield made
    made.close()


def publish(producer: KafkaProducer, topic: str, count: int, partition: int = 0) -> None:
    for number in range(count):
        producer.send(topic, value=b"%d" % number, partition=partition)
    producer.flush(10)


def read_all(transport: KafkaTransport, partition: Partition, count: int) -> None:
    transport.read(partition, 0)
    found = 0
    while found < count:
        records = transport.poll(10)
        assert records, f"{found} of {count} records came"
        found += len(records)


def lost(transport: KafkaTransport) -> str:
    """What the transport tells when it is polled on."""
    return str(told_of(transport))


def told_of(transport: KafkaTransport) -> EventsLost:
    with pytest.raises(EventsLost) as told:
        wait_until(lambda: transport.poll(0.5) is None, "the loss is told", bound_s=60)
    return told.value


def recreate(admin: KafkaAdminClient, topic: str) -> None:
    admin.delete_topics([topic])
    wait_until(lambda: topic not in admin.list_topics(), f"{topic} is gone")
    admin.create_topics({topic: {"num_partitions": 1}})
    admin.wait_for_topics([topic])


def test_the_range_that_retention_removed_is_named_for_every_partition(
    transport: KafkaTransport, producer: KafkaProducer, kafka_admin: KafkaAdminClient, new_topic: NewTopic
) -> None:
    topic = new_topic("orders", partitions=3)
    for partition in range(3):
        publish(producer, topic, 30, partition)
    kafka_admin.delete_records({TopicPartition(topic, 0): 10, TopicPartition(topic, 1): 25})
    for partition in range(3):
        transport.read(Partition(topic, partition), 5)
    told = told_of(transport)
    assert f"{topic}[0]@5 to 9 (5 offsets), {topic}[1]@5 to 24 (20 offsets): they were removed" in told.what
    assert told.gone == {src(topic, 0, ""): 10, src(topic, 1, ""): 25}
    assert "--start now" in told.remedy
    assert "--on-lost" not in told.remedy, "of stamps and grants nothing can be skipped"


@pytest.mark.parametrize("again", [0, 3, 10, 15])
def test_a_topic_that_is_made_again_under_its_reader(
    transport: KafkaTransport,
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
    transport: KafkaTransport, producer: KafkaProducer, kafka_admin: KafkaAdminClient, new_topic: NewTopic
) -> None:
    topic, other = new_topic("orders"), new_topic("other")
    publish(producer, topic, 10)
    read_all(transport, Partition(topic, 0), 10)
    transport.read(Partition(other, 0), 0)
    kafka_admin.delete_topics([topic])
    assert f"{topic}[0]@10 and all behind it: the topic was deleted" in lost(transport)


def test_a_partition_that_is_not_there_cannot_be_written(transport: KafkaTransport, new_topic: NewTopic) -> None:
    topic = new_topic("a")
    with pytest.raises(Error, match=rf"{topic} has no partition 7"):
        transport.send(Partition(topic, 7), b"k", b"v")
    with pytest.raises(Error, match="MessageSizeTooLargeError"):
        transport.send(Partition(topic, 0), b"k", b"v" * (17 << 20))
    assert transport.send(Partition(topic, 0), b"k", b"v") == 0


# --- topics that are read by their ids --------------------------------------------------------------------------------


def id_of(admin: KafkaAdminClient, topic: str) -> str:
    return str(admin.describe_topics([topic])[0]["topic_id"])


def read_on(transport: KafkaTransport, found: list[Record], enough: Callable[[], bool]) -> None:
    def has_enough() -> bool:
        found.extend(transport.poll(0.2))
        return enough()

    wait_until(has_enough, "enough is read")


def vanish(transport: KafkaTransport) -> tuple[list[Partition], list[Record]]:
    """What is told to be gone, and what was read before."""
    found: list[Record] = []
    gone: list[Partition] = []

    def told() -> bool:
        found.extend(transport.poll(0.2))
        gone.extend(transport.vanished())
        return bool(gone)

    wait_until(told, "a partition is gone", bound_s=60)
    return gone, found


@pytest.mark.parametrize("again", [0, 3, 10, 15])
def test_a_topic_read_by_its_id_never_gives_the_records_of_another(
    transport: KafkaTransport,
    producer: KafkaProducer,
    kafka_admin: KafkaAdminClient,
    new_topic: NewTopic,
    again: int,
) -> None:
    topic = new_topic("orders")
    former = Partition(topic, 0, id_of(kafka_admin, topic))
    publish(producer, topic, 10)
    read_all(transport, former, 10)
    recreate(kafka_admin, topic)
    publish(producer, topic, again)
    assert vanish(transport) == ([former], [])
    present = Partition(topic, 0, id_of(kafka_admin, topic))
    publish(producer, topic, 20 - again)
    transport.read(present, 0)
    transport.read(former, 3)
    gone, found = vanish(transport)
    assert gone == [former]
    while len(found) < 20:
        found += transport.poll(10)
    assert [(record.at, record.offset) for record in found] == [(present, offset) for offset in range(20)]
    assert transport.vanished() == []


def test_a_topic_that_is_made_again_in_a_moment_gives_nothing_under_the_former_id(
    transport: KafkaTransport, producer: KafkaProducer, kafka_admin: KafkaAdminClient, new_topic: NewTopic
) -> None:
    """Its client need not have missed it: it fetches on where it was, and Kafka has something there again."""
    former, found = [], list[Record]()
    for _ in range(5):
        topic = new_topic("orders")
        former.append(Partition(topic, 0, id_of(kafka_admin, topic)))
        publish(producer, topic, 10)
        transport.read(former[-1], 0)
    read_on(transport, found, lambda: len(found) == 50)
    for place in former:
        kafka_admin.delete_topics([place.topic])
        wait_until(lambda name=place.topic: is_made(kafka_admin, name), "it is made again")  # type: ignore[misc]
        for number in range(20):
            producer.send(place.topic, value=b"new %d" % number, partition=0)
    producer.flush(10)
    gone: list[Partition] = []

    def all_are_gone() -> bool:
        found.extend(transport.poll(0.2))
        gone.extend(transport.vanished())
        return len(gone) == len(former)

    wait_until(all_are_gone, "all are gone", bound_s=60)
    assert sorted(gone) == sorted(former)
    assert {record.value for record in found} == {b"%d" % number for number in range(10)}
    assert len(found) == 50


def is_made(admin: KafkaAdminClient, topic: str) -> bool:
    """False while the former one is still there."""
    try:
        admin.create_topics({topic: {"num_partitions": 1}})
    except TopicAlreadyExistsError:
        return False
    return True


def test_the_present_topic_is_read_while_the_former_one_of_its_name_still_is(
    transport: KafkaTransport, producer: KafkaProducer, kafka_admin: KafkaAdminClient, new_topic: NewTopic
) -> None:
    """The former one stands at the offset from which the present one is to be read: no fetch may be taken for both.

    What had come of the former one while it was paused, and was known to be of it, may come yet.
    """
    topic = new_topic("orders")
    former = Partition(topic, 0, id_of(kafka_admin, topic))
    publish(producer, topic, 3)
    transport.read(former, 0)
    transport.pause(former)
    assert transport.poll(0.3) == []
    recreate(kafka_admin, topic)
    publish(producer, topic, 5)
    present = Partition(topic, 0, id_of(kafka_admin, topic))
    transport.read(present, 0)
    transport.resume(former)
    gone, found = vanish(transport)
    assert gone == [former]
    assert [record.offset for record in found if record.at == present] == list(range(5))
    assert [record.offset for record in found if record.at == former] in ([], list(range(3)))
    assert {record.at for record in found} <= {present, former}


def test_a_topic_read_by_its_id_is_gone_when_it_is_deleted(
    transport: KafkaTransport, producer: KafkaProducer, kafka_admin: KafkaAdminClient, new_topic: NewTopic
) -> None:
    topic, other = new_topic("orders", partitions=2), new_topic("other")
    places = {Partition(topic, number, id_of(kafka_admin, topic)) for number in range(2)}
    lasting = Partition(other, 0, id_of(kafka_admin, other))
    publish(producer, topic, 10)
    for place in (*places, lasting):
        transport.read(place, 0)
    found: list[Record] = []
    read_on(transport, found, lambda: len(found) == 10)
    kafka_admin.delete_topics([topic])
    gone, _ = vanish(transport)
    publish(producer, other, 3)
    read_on(transport, found, lambda: len(found) == 13)
    assert set(gone) == places
    assert {record.at for record in found[10:]} == {lasting}


def test_what_a_paused_reader_has_fetched_of_a_former_topic_is_not_of_the_present_one(
    broker: LocalBroker,
    producer: KafkaProducer,
    kafka_admin: KafkaAdminClient,
    new_topic: NewTopic,
    make_transport: MakeTransport,
) -> None:
    """kafka-python keeps what it has fetched; it would give it for the records of the new topic at these offsets."""
    topic = new_topic("orders")
    former = Partition(topic, 0, id_of(kafka_admin, topic))
    publish(producer, topic, 20)
    transport = make_transport(broker.bootstrap_servers, max_poll_records=5)
    try:
        transport.read(former, 0)
        first: list[Record] = []
        read_on(transport, first, lambda: len(first) >= 5)
        at_offset = len(first)
        recreate(kafka_admin, topic)
        for number in range(30):
            producer.send(topic, value=b"new %d" % number, partition=0)
        producer.flush(10)
        present = Partition(topic, 0, id_of(kafka_admin, topic))
        transport.read(present, at_offset)
        found: list[Record] = []
        read_on(transport, found, lambda: sum(record.at == present for record in found) >= 30 - at_offset)
    finally:
        transport.close()
    of_present = [record for record in found if record.at == present]
    assert [record.value for record in of_present] == [b"new %d" % number for number in range(at_offset, 30)]
    former_ones = [(record.at, record.value) for record in found if record.at != present]
    assert former_ones == [(former, b"%d" % number) for number in range(at_offset, at_offset + len(former_ones))]


def told(at: Partition, offset: int) -> confluent_kafka.Message:
    """What librdkafka puts in its queue for a partition that has no such offset."""
    error = confluent_kafka.KafkaError(confluent_kafka.KafkaError._AUTO_OFFSET_RESET)
    return confluent_kafka.Message(topic=at.topic, partition=at.number, offset=offset, error=error)


@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize("ahead", [0, 3])
def test_a_missing_offset_that_is_told_late_is_no_loss(
    broker: LocalBroker, producer: KafkaProducer, new_topic: NewTopic, is_read: bool, ahead: int
) -> None:
    """librdkafka tells what was amiss with a former reading once more to the present one."""
    from totalorder.subscriber.librdkafka import LibrdkafkaTransport

    topic = new_topic("orders")
    partition = Partition(topic, 0)
    publish(producer, topic, 10)
    transport = LibrdkafkaTransport(broker.bootstrap_servers)
    try:
        transport.read(partition, 0)
        found: list[Record] = []
        if is_read:
            read_on(transport, found, lambda: len(found) == 10)
        missed = len(found) + ahead
        transport._others._note([told(partition, missed)], {})
        publish(producer, topic, 10)
        if not is_read and not ahead:
            assert f"{topic}[0]@0, and the log ends at 20" in lost(transport), "nothing that came speaks against it"
            return
        read_on(transport, found, lambda: len(found) == 20)
        assert [record.offset for record in found] == list(range(20))
        transport._others._flows[Place(topic, 0)].leader_epoch = 4
        transport._others._note([told(partition, 20)], {})
        assert f"{topic}[0]@20, and the log ends at 20" in lost(transport), "another leader may have cut it"
    finally:
        transport.close()
