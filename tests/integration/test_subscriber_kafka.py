"""The Subscriber on a real broker; the sequencer is a thread without Spark."""

import gc
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from sim_kafka_sequencer import ThreadSequencer
from waiting import wait_until

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.errors import EventsLost, Fenced, SequencerUnavailable
from totalorder.subscriber import Event, Subscriber
from totalorder.subscriber.kafka_python import KafkaPythonTransport
from totalorder.subscriber.transport import Partition, Record

pytestmark = pytest.mark.broker
NewTopic = Callable[..., str]


@pytest.fixture(scope="module")
def producer(broker: LocalBroker) -> Iterator[KafkaProducer]:
    with kafka_clients.producer(broker.bootstrap_servers) as made:
        yield made


def publish(producer: KafkaProducer, topic: str, *values: str, key: str | None = None) -> None:
    for value in values:
        producer.send(topic, value=value.encode(), key=None if key is None else key.encode())
    producer.flush(10)


def take(subscriber: Subscriber, count: int) -> list[Event]:
    """The next events, acknowledged."""
    events: list[Event] = []
    while len(events) < count:
        event = subscriber.poll(30)
        assert event is not None, f"{len(events)} of {count} events came"
        subscriber.ack(event)
        events.append(event)
    return events


def test_three_subscribers_agree_through_a_restart_and_a_change(
    broker: LocalBroker, producer: KafkaProducer, new_topic: NewTopic, unique_name: Callable[[str], str]
) -> None:
    a, b, c = (new_topic(name, partitions=2) for name in "abc")
    domain, servers = unique_name("domain"), broker.bootstrap_servers
    settings: dict[str, Any] = {"domain": domain, "bootstrap_servers": servers}
    with ThreadSequencer(servers, domain, [a, b, c]):
        subscribers = [
            Subscriber(topics, id=str(index), **settings) for index, topics in enumerate([[a, b], [b, c], [a, b, c]])
        ]
        for number in range(20):
            for topic in (a, b, c):
                publish(producer, topic, f"{topic} {number}")
        seen = [take(subscriber, 15) for subscriber in subscribers]
        subscribers[0].close()
        subscribers[0] = Subscriber([a, b, c], id="0", **settings)
        subscribers[1].subscribe([a])
        publish(producer, a, "after the changes")
        for subscriber, events in zip(subscribers, seen, strict=True):
            while events[-1].value != b"after the changes":
                events += take(subscriber, 1)
            subscriber.close()
    assert [len(events) for events in seen] == [41, 41, 61]
    assert {event.tag for events in seen for event in events} == {None}
    for one, other in combinations(seen, 2):
        common = {event.g for event in one} & {event.g for event in other}
        assert len(common) > 15
        assert [e.g for e in one if e.g in common] == [e.g for e in other if e.g in common]


def test_redelivers_what_a_killed_process_did_not_acknowledge(
    broker: LocalBroker, producer: KafkaProducer, new_topic: NewTopic, unique_name: Callable[[str], str]
) -> None:
    topic, domain, servers = new_topic("orders"), unique_name("domain"), broker.bootstrap_servers
    settings: dict[str, Any] = {"id": "s", "domain": domain, "bootstrap_servers": servers, "save_interval_s": 0}
    with ThreadSequencer(servers, domain, [topic]):
        old = Subscriber([topic], **settings)
        publish(producer, topic, *"1234")
        take(old, 2)
        assert old.poll(10) is not None  # and never acknowledged
        with Subscriber([topic], **settings) as new:
            events = take(new, 2)
            publish(producer, topic, "5")
            events += take(new, 1)
            with pytest.raises(Fenced, match="another process took over"):
                take(old, 3)  # what was ready before may still come
        old.close()
        with Subscriber([topic], **settings) as newest:
            publish(producer, topic, "6")
            events += take(newest, 1)
    assert [(event.value, event.tag) for event in events] == [
        (b"3", "redelivered"),
        (b"4", "redelivered"),
        (b"5", None),
        (b"6", None),
    ]


def test_topics_by_key_with_values_of_every_kind(
    broker: LocalBroker, producer: KafkaProducer, new_topic: NewTopic, unique_name: Callable[[str], str]
) -> None:
    kafka_topic, domain, servers = new_topic("all", partitions=3), unique_name("domain"), broker.bootstrap_servers
    with (
        ThreadSequencer(servers, domain, [kafka_topic], topic_by="key"),
        Subscriber(["x", "y"], id="s", domain=domain, bootstrap_servers=servers) as subscriber,
    ):
        sent: list[tuple[bytes | None, bytes | None]] = [
            (b"x", b"1"),
            (b"z", b"other"),
            (b"\xff", b"not UTF-8"),
            (None, b"no key"),
            (b"y", None),
            (b"x", b""),
            (b"y", b"\x00" * 500_000),
        ]
        for key, value in sent:
            producer.send(kafka_topic, key=key, value=value)
        producer.flush(10)
        events = take(subscriber, 4)
    assert {(event.key, event.value) for event in events} == {sent[0], sent[4], sent[5], sent[6]}
    assert {event.topic for event in events} == {"x", "y"}
    assert {event.kafka_topic for event in events} == {kafka_topic}


def test_lost_events_stop_the_subscriber_by_name(
    broker: LocalBroker,
    producer: KafkaProducer,
    kafka_admin: object,
    new_topic: NewTopic,
    unique_name: Callable[[str], str],
) -> None:
    topic, domain, servers = new_topic("orders"), unique_name("domain"), broker.bootstrap_servers
    settings: dict[str, Any] = {"id": "s", "domain": domain, "bootstrap_servers": servers}
    with ThreadSequencer(servers, domain, [topic]):
        with Subscriber([topic], **settings) as subscriber:
            publish(producer, topic, *"123")
            take(subscriber, 1)
        kafka_admin.delete_records({TopicPartition(topic, 0): 2})  # type: ignore[attr-defined]
        with pytest.raises(EventsLost, match=rf"{topic}\[0\]@1"), Subscriber([topic], **settings) as subscriber:
            subscriber.poll(30)
        with Subscriber([topic], start="new", **settings) as subscriber:
            publish(producer, topic, "4")
            assert take(subscriber, 1)[0].value == b"4"


def test_goes_on_without_what_is_lost_and_nothing_else(
    broker: LocalBroker,
    producer: KafkaProducer,
    kafka_admin: KafkaAdminClient,
    new_topic: NewTopic,
    unique_name: Callable[[str], str],
) -> None:
    """One partition has lost its first events, one all that it had, one nothing."""
    some, every, none = (new_topic(name) for name in ("some", "every", "none"))
    domain, servers = unique_name("domain"), broker.bootstrap_servers
    settings: dict[str, Any] = {"id": "s", "domain": domain, "bootstrap_servers": servers}
    with ThreadSequencer(servers, domain, [some, every, none]), Subscriber([none], **settings | {"id": "w"}) as watch:
        Subscriber([some, every, none], **settings).close()
        for topic in (some, every, none):
            publish(producer, topic, *map(str, range(20)))
        take(watch, 20)  # all is stamped
        kafka_admin.delete_records({TopicPartition(some, 0): 5, TopicPartition(every, 0): 20})
        with Subscriber([some, every, none], lost="skip", **settings) as subscriber:
            events = take(subscriber, 60)
    assert [event.g for event in events] == sorted(event.g for event in events)
    gone = {(event.topic, event.offset) for event in events if event.tag == "lost"}
    assert gone == {(some, offset) for offset in range(5)} | {(every, offset) for offset in range(20)}
    for topic, first in ((some, 5), (none, 0)):
        kept = [event.value for event in events if event.topic == topic and event.tag is None]
        assert kept == [b"%d" % number for number in range(first, 20)]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_compression_that_producers_use_is_read(broker: LocalBroker, new_topic: NewTopic, codec: str) -> None:
    topic, values = new_topic(codec), [b"%d" % number * 100 for number in range(50)]
    producer: Producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "compression.type": codec, "linger.ms": 50}
    )
    for value in values:
        producer.produce(topic, value=value)
    assert producer.flush(30) == 0
    transport = KafkaPythonTransport(broker.bootstrap_servers)
    try:
        transport.read(Partition(topic, 0), 0)
        found: list[bytes | None] = []
        while len(found) < len(values):
            records = transport.poll(10)
            assert records, f"{len(found)} of {len(values)} records came"
            found += [record.value for record in records]
    finally:
        transport.close()
    assert found == values


def test_events_have_their_turn_however_many_answers_come(
    broker: LocalBroker, producer: KafkaProducer, new_topic: NewTopic
) -> None:
    prompt, other = new_topic("prompt"), new_topic("other")
    publish(producer, prompt, *map(str, range(6_000)))
    publish(producer, other, "event")
    transport = KafkaPythonTransport(broker.bootstrap_servers, prompt=[prompt], max_poll_records=2)
    try:
        transport.read(Partition(prompt, 0), 0)
        transport.read(Partition(other, 0), 0)
        found: list[Record] = []
        while not found or found[-1].topic != other:
            records = transport.poll(10)
            assert records, f"{len(found)} records came, and no event"
            found += records
    finally:
        transport.close()
    assert len(found) < 6_000


def test_records_do_not_wait_for_the_garbage_collector(
    broker: LocalBroker, producer: KafkaProducer, new_topic: NewTopic
) -> None:
    """Full collections take a tenth of a second in a process of some imports: the fewer, the better."""
    topic, count = new_topic("a"), 0
    transport = KafkaPythonTransport(broker.bootstrap_servers)
    transport.read(Partition(topic, 0), 0)
    gc.collect()
    gc.disable()
    try:
        for total in range(20, 400, 20):
            publish(producer, topic, *map(str, range(20)))
            while count < total:
                records = transport.poll(10)
                assert records
                count += len(records)
                records.clear()
        kept = [it for it in gc.get_objects() if isinstance(it, ConsumerRecord | Record) and it.topic == topic]
    finally:
        gc.enable()
        transport.close()
    assert kept == []


class NotUtf8(str):
    """A header's name that other clients can send."""

    def encode(self, *_: object) -> bytes:
        return b"\xff\xfe"


def test_a_record_that_cannot_be_read_is_named(
    broker: LocalBroker, producer: KafkaProducer, new_topic: NewTopic
) -> None:
    topic = new_topic("a")
    publish(producer, topic, "whole")
    transport = KafkaPythonTransport(broker.bootstrap_servers)
    transport.read(Partition(topic, 0), 0)
    assert [record.value for record in transport.poll(10)] == [b"whole"]
    producer.send(topic, value=b"broken", headers=[(NotUtf8("name"), b"")]).get(10)
    with pytest.raises(EventsLost, match=rf"{topic}\[0\]@1 cannot be read.*Header names must be UTF-8"):
        transport.poll(10)
    transport.close()


def test_a_paused_partition_goes_on_where_it_was(
    broker: LocalBroker, producer: KafkaProducer, new_topic: NewTopic
) -> None:
    paused, other = Partition(new_topic("paused"), 0), Partition(new_topic("other"), 0)
    for number in range(30):
        publish(producer, paused.topic, str(number))
        publish(producer, other.topic, str(number))
    transport = KafkaPythonTransport(broker.bootstrap_servers, max_poll_records=4)
    found: dict[str, list[int]] = {paused.topic: [], other.topic: []}

    def poll_until(enough: Callable[[], bool]) -> None:
        for _ in range(100):
            for record in transport.poll(0.2):
                found[record.topic].append(record.offset)
            if enough():
                return
        raise AssertionError(found)

    try:
        transport.read(paused, 0)
        transport.read(other, 0)
        poll_until(lambda: len(found[paused.topic]) > 0)
        transport.pause(paused)
        before = len(found[paused.topic])
        poll_until(lambda: len(found[other.topic]) == 30)
        assert len(found[paused.topic]) == before
        transport.resume(paused)
        poll_until(lambda: len(found[paused.topic]) == 30)
    finally:
        transport.close()
    assert found == {paused.topic: list(range(30)), other.topic: list(range(30))}


@pytest.mark.parametrize("max_buffered", [1, 7])
def test_little_buffers_deliver_everything(
    broker: LocalBroker,
    producer: KafkaProducer,
    new_topic: NewTopic,
    unique_name: Callable[[str], str],
    max_buffered: int,
) -> None:
    topics, domain, servers = (
        [new_topic(n, partitions=3) for n in "ab"],
        unique_name("domain"),
        broker.bootstrap_servers,
    )
    with (
        ThreadSequencer(servers, domain, topics),
        Subscriber(topics, id="s", domain=domain, bootstrap_servers=servers, max_buffered=max_buffered) as subscriber,
    ):
        for number in range(40):
            producer.send(topics[number % 2], value=str(number).encode())
        producer.flush(10)
        events = take(subscriber, 40)
    assert sorted(int(event.value or b"") for event in events) == list(range(40))
    assert [event.g for event in events] == sorted(event.g for event in events)


def test_says_when_no_sequencer_runs(broker: LocalBroker, unique_name: Callable[[str], str]) -> None:
    with pytest.raises(SequencerUnavailable, match="totalorder sequence"):
        Subscriber(
            ["t"],
            id="s",
            domain=unique_name("domain"),
            bootstrap_servers=broker.bootstrap_servers,
            start_timeout_s=1,
        )


# --- topics that are deleted and created again ------------------------------------------------------------------------


def recreate(admin: KafkaAdminClient, topic: str) -> str:
    """Another topic of the name; returns its id."""
    admin.delete_topics([topic])
    wait_until(lambda: topic not in admin.list_topics(), f"{topic} is gone")
    admin.create_topics({topic: {"num_partitions": 1}})
    admin.wait_for_topics([topic])
    return str(admin.describe_topics([topic])[0]["topic_id"])


@pytest.mark.parametrize("stays", [True, False], ids=["running", "away"])
def test_goes_on_with_a_topic_that_was_created_again(
    broker: LocalBroker,
    producer: KafkaProducer,
    kafka_admin: KafkaAdminClient,
    new_topic: NewTopic,
    unique_name: Callable[[str], str],
    stays: bool,
) -> None:
    """All of the former one was delivered: while it is made anew the subscriber runs, or is away."""
    topic, other = new_topic("orders"), new_topic("other")
    domain, servers = unique_name("domain"), broker.bootstrap_servers
    settings: dict[str, Any] = {"id": "s", "domain": domain, "bootstrap_servers": servers}
    with ThreadSequencer(servers, domain, [topic, other]) as sequencer:
        subscriber = Subscriber([topic, other], **settings)
        publish(producer, topic, *"123")
        publish(producer, other, *"45")
        events = take(subscriber, 5)
        if not stays:
            subscriber.close()
        with sequencer.apart_from(topic):
            topic_id = recreate(kafka_admin, topic)
            publish(producer, topic, *"6789")
        if not stays:
            subscriber = Subscriber([topic, other], **settings)
        events += take(subscriber, 4)
        publish(producer, other, "10")
        events += take(subscriber, 1)
        subscriber.close()
        later = Subscriber([topic, other], **settings)
        publish(producer, topic, "11")
        events += take(later, 1)
        position = later._session.machine.position()
        later.close()
    assert sorted(int(event.value or b"") for event in events) == list(range(1, 12))
    assert [event.g for event in events] == sorted({event.g for event in events})
    of_topic = [event for event in events if event.topic == topic]
    assert [event.n for event in of_topic] == list(range(1, 9))
    assert [(event.topic_id == topic_id, event.offset) for event in of_topic] == [
        *((False, offset) for offset in range(3)),
        *((True, offset) for offset in range(5)),
    ]
    assert {source.topic_id for source in position.sources if source.topic == topic} == {topic_id}


def test_what_was_stamped_of_a_deleted_topic_and_not_read_is_lost(
    broker: LocalBroker,
    producer: KafkaProducer,
    kafka_admin: KafkaAdminClient,
    new_topic: NewTopic,
    unique_name: Callable[[str], str],
) -> None:
    topic, other = new_topic("orders"), new_topic("other")
    domain, servers = unique_name("domain"), broker.bootstrap_servers
    settings: dict[str, Any] = {"id": "s", "domain": domain, "bootstrap_servers": servers}
    with ThreadSequencer(servers, domain, [topic, other]) as sequencer:
        watch = Subscriber([topic, other], **settings | {"id": "w"})
        with Subscriber([topic, other], **settings) as subscriber:
            publish(producer, topic, *"123")
            take(subscriber, 1)
        take(watch, 3)
        with sequencer.apart_from(topic):
            recreate(kafka_admin, topic)
            publish(producer, topic, *"456")
        seen = take(watch, 3)
        watch.close()
        told = rf"{topic}\[0\]@1 .* is stamped .* topic {topic} with id \S+ was deleted, or created again"
        with pytest.raises(EventsLost, match=told), Subscriber([topic, other], **settings) as subscriber:
            take(subscriber, 1)
        with Subscriber([topic, other], lost="skip", **settings) as subscriber:
            events = take(subscriber, 5)
    assert [(event.tag, event.value) for event in events] == [
        ("lost", None),
        ("lost", None),
        *((None, value) for value in (b"4", b"5", b"6")),
    ]
    assert [event.offset for event in events] == [1, 2, 0, 1, 2]
    assert [(event.g, event.n, event.topic_id) for event in events[2:]] == [(e.g, e.n, e.topic_id) for e in seen]
    assert events[0].topic_id != events[2].topic_id
