"""The Subscriber on a real broker; the sequencer is a thread without Spark."""

import gc
import random
import time
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import MessageSizeTooLargeError
from odd_headers import NotUtf8
from sim_kafka_sequencer import ThreadSequencer
from waiting import wait_until

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.errors import EventsLost, Fenced, SequencerUnavailable
from totalorder.sequencer.wire.cuts import Cut, encode_cut
from totalorder.sequencer.wire.stamps import Source
from totalorder.subscriber import Event, Lost, Subscriber
from totalorder.subscriber.clients import Client
from totalorder.subscriber.kafka_transport import KafkaTransport
from totalorder.subscriber.transport import Partition, Record

pytestmark = pytest.mark.broker
NewTopic = Callable[..., str]
MakeTransport = Callable[..., KafkaTransport]


@pytest.fixture(scope="module")
def producer(broker: LocalBroker) -> Iterator[KafkaProducer]:
    with kafka_clients.producer(broker.bootstrap_servers) as made:
        yield made


def publish(producer: KafkaProducer, topic: str, *values: str, key: str | None = None) -> None:
    for value in values:
        producer.send(topic, value=value.encode(), key=None if key is None else key.encode())
    producer.flush(10)


def take(subscriber: Subscriber, count: int) -> list[Any]:
    """The next events, acknowledged."""
    events: list[Any] = []
    while len(events) < count:
        event = subscriber.poll(30)
        assert event is not None, f"{len(events)} of {count} events came"
        subscriber.ack(event)
        events.append(event)
    return events


def test_three_subscribers_agree_through_a_restart_and_a_change(
    broker: LocalBroker, producer: KafkaProducer, new_topic: NewTopic, unique_name: Callable[[str], str], client: Client
) -> None:
    a, b, c = (new_topic(name, partitions=2) for name in "abc")
    domain, servers = unique_name("domain"), broker.bootstrap_servers
    settings: dict[str, Any] = {"domain": domain, "bootstrap_servers": servers, "client": client}
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
    broker: LocalBroker, producer: KafkaProducer, new_topic: NewTopic, unique_name: Callable[[str], str], client: Client
) -> None:
    topic, domain, servers = new_topic("orders"), unique_name("domain"), broker.bootstrap_servers
    settings: dict[str, Any] = {
        "id": "s",
        "domain": domain,
        "bootstrap_servers": servers,
        "client": client,
        "save_interval_s": 0,
    }
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
    told = [(event.value, event.tag) for event in events if event.value != b"4"]
    assert told == [(b"3", "redelivered"), (b"5", None), (b"6", None)]
    assert events[1].value == b"4", (
        "flagged only if the old process was about to hand it out, which is a matter of time"
    )


def test_topics_by_key_with_values_of_every_kind(
    broker: LocalBroker, producer: KafkaProducer, new_topic: NewTopic, unique_name: Callable[[str], str], client: Client
) -> None:
    kafka_topic, domain, servers = new_topic("all", partitions=3), unique_name("domain"), broker.bootstrap_servers
    with (
        ThreadSequencer(servers, domain, [kafka_topic], topic_by="key"),
        Subscriber(["x", "y"], id="s", domain=domain, bootstrap_servers=servers, client=client) as subscriber,
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


def test_an_event_of_exactly_the_size_limit_is_delivered(
    broker: LocalBroker, new_topic: NewTopic, unique_name: Callable[[str], str], client: Client
) -> None:
    """Of the broker's own limit, and of a topic's that is beyond what one answer usually has."""
    small, large = new_topic("small"), new_topic("large", max_message_bytes="9000000")
    sizes = {small: 1_048_588 - 72, large: 9_000_000 - 74}  # a batch of one record needs so many bytes beside its value
    domain, servers = unique_name("domain"), broker.bootstrap_servers
    with (
        ThreadSequencer(servers, domain, [small, large]),
        Subscriber([small, large], id="s", domain=domain, bootstrap_servers=servers, client=client) as subscriber,
    ):
        for topic, size in sizes.items():
            with kafka_clients.producer(servers, max_request_size=10_000_000) as producer:
                producer.send(topic, value=b"x" * size).get(30)
        with kafka_clients.producer(servers, max_request_size=10_000_000) as producer:
            one_more = producer.send(small, value=b"x" * (sizes[small] + 1))
            with pytest.raises(MessageSizeTooLargeError):
                one_more.get(30)
        events = take(subscriber, 2)
    assert {event.topic: len(event.value or b"") for event in events} == sizes


def test_a_partition_that_ends_in_markers_is_read_on_behind_them(
    broker: LocalBroker, new_topic: NewTopic, unique_name: Callable[[str], str], client: Client
) -> None:
    topic, domain, servers = new_topic("orders"), unique_name("domain"), broker.bootstrap_servers
    publisher = Producer({"bootstrap.servers": servers, "transactional.id": domain})
    publisher.init_transactions(60)

    def transact(value: bytes, *, kept: bool = True) -> None:
        publisher.begin_transaction()
        publisher.produce(topic, value=value)
        publisher.flush(60)
        publisher.commit_transaction(60) if kept else publisher.abort_transaction(60)

    values = []
    with ThreadSequencer(servers, domain, [topic]):
        for value in (b"1", b"2"):
            with Subscriber([topic], id="s", domain=domain, bootstrap_servers=servers, client=client) as subscriber:
                transact(value)
                values += [event.value for event in take(subscriber, 1)]
                transact(b"never", kept=False)
        with Subscriber([topic], id="s", domain=domain, bootstrap_servers=servers, client=client) as subscriber:
            transact(b"3")
            values += [event.value for event in take(subscriber, 1)]
    assert values == [b"1", b"2", b"3"]


def test_lost_events_stop_the_subscriber_by_name(
    broker: LocalBroker,
    producer: KafkaProducer,
    kafka_admin: object,
    new_topic: NewTopic,
    unique_name: Callable[[str], str],
    client: Client,
) -> None:
    topic, domain, servers = new_topic("orders"), unique_name("domain"), broker.bootstrap_servers
    settings: dict[str, Any] = {"id": "s", "domain": domain, "bootstrap_servers": servers, "client": client}
    with ThreadSequencer(servers, domain, [topic]):
        with Subscriber([topic], **settings) as subscriber:
            publish(producer, topic, *"123")
            take(subscriber, 1)
        kafka_admin.delete_records({TopicPartition(topic, 0): 2})  # type: ignore[attr-defined]
        with pytest.raises(EventsLost, match=rf"{topic}\[0\]@1"), Subscriber([topic], **settings) as subscriber:
            subscriber.poll(30)
        with Subscriber([topic], start="now", **settings) as subscriber:
            publish(producer, topic, "4")
            assert take(subscriber, 1)[0].value == b"4"


def test_goes_on_without_what_is_lost_and_nothing_else(
    broker: LocalBroker,
    producer: KafkaProducer,
    kafka_admin: KafkaAdminClient,
    new_topic: NewTopic,
    unique_name: Callable[[str], str],
    client: Client,
) -> None:
    """One partition has lost its first events, one all that it had, one nothing."""
    some, every, none = (new_topic(name) for name in ("some", "every", "none"))
    domain, servers = unique_name("domain"), broker.bootstrap_servers
    settings: dict[str, Any] = {"id": "s", "domain": domain, "bootstrap_servers": servers, "client": client}
    with ThreadSequencer(servers, domain, [some, every, none]), Subscriber([none], **settings | {"id": "w"}) as watch:
        Subscriber([some, every, none], **settings).close()
        for topic in (some, every, none):
            publish(producer, topic, *map(str, range(20)))
        take(watch, 20)  # all is stamped
        kafka_admin.delete_records({TopicPartition(some, 0): 5, TopicPartition(every, 0): 20})
        with Subscriber([some, every, none], on_lost="skip", **settings) as subscriber:
            events = take(subscriber, 60)
    assert [event.g for event in events] == sorted(event.g for event in events)
    gone = {(event.topic, event.first_offset) for event in events if isinstance(event, Lost)}
    assert gone == {(some, offset) for offset in range(5)} | {(every, offset) for offset in range(20)}
    for topic, first in ((some, 5), (none, 0)):
        kept = [event.value for event in events if event.topic == topic and isinstance(event, Event)]
        assert kept == [b"%d" % number for number in range(first, 20)]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_compression_that_producers_use_is_read(
    broker: LocalBroker, new_topic: NewTopic, make_transport: MakeTransport, codec: str
) -> None:
    topic, values = new_topic(codec), [b"%d" % number * 100 for number in range(50)]
    producer: Producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "compression.type": codec, "linger.ms": 50}
    )
    for value in values:
        producer.produce(topic, value=value)
    assert producer.flush(30) == 0
    transport = make_transport(broker.bootstrap_servers)
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
    broker: LocalBroker, producer: KafkaProducer, new_topic: NewTopic, make_transport: MakeTransport
) -> None:
    """One of the prompt topics always has records that were fetched: each is read again from its beginning in turn."""
    prompt, other = [new_topic("prompt"), new_topic("prompt")], new_topic("other")
    for topic in prompt:
        publish(producer, topic, *map(str, range(1_000)))
    publish(producer, other, "event")
    transport = make_transport(broker.bootstrap_servers, prompt=prompt, max_poll_records=2)
    try:
        for topic in (*prompt, other):
            transport.read(Partition(topic, 0), 0)
        rounds = 0
        while (records := transport.poll(10)) and (last := records[-1]).topic != other:
            if last.offset == 999:
                rounds += 1
                assert rounds < 200, "answers come without an end, and no event"
                transport.read(last.at, 0)
        assert records, "nothing came, and no event"
    finally:
        transport.close()


def test_a_topic_is_read_however_often_something_comes_of_others(
    broker: LocalBroker,
    producer: KafkaProducer,
    kafka_admin: KafkaAdminClient,
    new_topic: NewTopic,
    make_transport: MakeTransport,
) -> None:
    """Stamps come all the time, and after each of them Kafka is asked for topics' ids: so it must be for this one's."""
    busy, topic = new_topic("busy"), new_topic("read")
    (described,) = kafka_admin.describe_topics([topic])
    publish(producer, topic, "it")
    transport = make_transport(broker.bootstrap_servers, prompt=[busy])
    transport.read(Partition(busy, 0), 0)
    number, until_s, found = 0, time.monotonic() + 10, False
    try:
        while not found:
            assert time.monotonic() < until_s, f"nothing came of it, while {number} records came of another"
            producer.send(busy, value=b"%d" % number).get(10)
            if (number := number + 1) == 10:
                transport.read(Partition(topic, 0, str(described["topic_id"])), 0)
                until_s = time.monotonic() + 10
            found = any(record.topic == topic for record in transport.poll(0.2))
    finally:
        transport.close()


def test_records_do_not_wait_for_the_garbage_collector(
    broker: LocalBroker, producer: KafkaProducer, new_topic: NewTopic, make_transport: MakeTransport
) -> None:
    """Full collections take a tenth of a second in a process of some imports: the fewer, the better."""
    topic, count = new_topic("a"), 0
    transport = make_transport(broker.bootstrap_servers)
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


def test_a_record_that_cannot_be_read_is_named(
    broker: LocalBroker, producer: KafkaProducer, new_topic: NewTopic, make_transport: MakeTransport
) -> None:
    """Behind so many that Python has compiled the way there: it then looks less closely at what C returns."""
    topic, count = new_topic("a"), 100
    publish(producer, topic, *["whole"] * count)
    transport = make_transport(broker.bootstrap_servers)
    transport.read(Partition(topic, 0), 0)
    found: list[bytes | None] = []
    while len(found) < count:
        found += [record.value for record in transport.poll(10)]
    producer.send(topic, value=b"broken", headers=[(NotUtf8("name"), b"")]).get(10)
    with pytest.raises(EventsLost, match=rf"{topic}\[0\]@{count} cannot be read.*Header names must be UTF-8"):
        wait_until(lambda: transport.poll(1) is None, "it is told")
    transport.close()
    assert found == [b"whole"] * count


def test_a_paused_partition_goes_on_where_it_was(
    broker: LocalBroker, producer: KafkaProducer, new_topic: NewTopic, make_transport: MakeTransport
) -> None:
    paused, other = Partition(new_topic("paused"), 0), Partition(new_topic("other"), 0)
    for number in range(30):
        publish(producer, paused.topic, str(number))
        publish(producer, other.topic, str(number))
    transport = make_transport(broker.bootstrap_servers, max_poll_records=4)
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


def test_a_partition_that_is_moved_while_its_records_come_gives_those_from_there(
    broker: LocalBroker, new_topic: NewTopic, make_transport: MakeTransport
) -> None:
    """A client fetches ahead: nothing that it fetched before the move may come behind it."""
    moved, other, rng = Partition(new_topic("moved"), 0), Partition(new_topic("other"), 0), random.Random(1)
    producer: Producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 20})
    for number in range(5_000):
        producer.produce(moved.topic, value=b"%d" % number)
        producer.produce(other.topic, value=b"%d" % number)
    assert producer.flush(30) == 0
    transport = make_transport(broker.bootstrap_servers, max_poll_records=50)
    try:
        transport.read(other, 0)
        expected = {other: 0}
        for _ in range(60):
            expected[moved] = begin = rng.randrange(4_000)
            transport.read(moved, begin)
            while expected[moved] < begin + rng.choice([1, 100]):
                for record in transport.poll(10):
                    assert record.offset == expected[record.at]
                    expected[record.at] += 1
    finally:
        transport.close()


@pytest.mark.parametrize("max_buffered", [1, 7])
def test_little_buffers_deliver_everything(
    broker: LocalBroker,
    producer: KafkaProducer,
    new_topic: NewTopic,
    unique_name: Callable[[str], str],
    max_buffered: int,
    client: Client,
) -> None:
    topics, domain, servers = (
        [new_topic(n, partitions=3) for n in "ab"],
        unique_name("domain"),
        broker.bootstrap_servers,
    )
    with (
        ThreadSequencer(servers, domain, topics),
        Subscriber(
            topics, id="s", domain=domain, bootstrap_servers=servers, client=client, max_buffered=max_buffered
        ) as subscriber,
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
    client: Client,
) -> None:
    """All of the former one was delivered: while it is made anew the subscriber runs, or is away."""
    topic, other = new_topic("orders"), new_topic("other")
    domain, servers = unique_name("domain"), broker.bootstrap_servers
    settings: dict[str, Any] = {"id": "s", "domain": domain, "bootstrap_servers": servers, "client": client}
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
    client: Client,
) -> None:
    topic, other = new_topic("orders"), new_topic("other")
    domain, servers = unique_name("domain"), broker.bootstrap_servers
    settings: dict[str, Any] = {"id": "s", "domain": domain, "bootstrap_servers": servers, "client": client}
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
        with Subscriber([topic, other], on_lost="skip", **settings) as subscriber:
            events = take(subscriber, 5)
    assert [event.first_offset for event in events if isinstance(event, Lost)] == [1, 2]
    assert [(e.value, e.offset) for e in events[2:] if isinstance(e, Event)] == [(b"4", 0), (b"5", 1), (b"6", 2)]
    assert [(event.g, event.n, event.topic_id) for event in events[2:]] == [(e.g, e.n, e.topic_id) for e in seen]
    assert events[0].topic_id != events[2].topic_id


def test_a_topic_of_a_pattern_joins_and_what_is_there_is_drained(
    broker: LocalBroker, producer: KafkaProducer, new_topic: NewTopic, unique_name: Callable[[str], str], client: Client
) -> None:
    a, b = new_topic("a"), new_topic("b")
    domain, servers = unique_name("domain"), broker.bootstrap_servers
    with kafka_clients.admin(servers) as admin:
        ids = {topic["name"]: str(topic["topic_id"]) for topic in admin.describe_topics([a, b])}

    def tell(number: int, *names: str) -> None:
        """The cut that says that the domain reads these."""
        zeros, sources = [0] * len(names), [Source(name, ids[name], 0) for name in names]
        cut = Cut.of(domain=domain, incarnation=1, cut=number, sources=sources, begins=zeros, ends=zeros, looks=[])
        record = encode_cut(cut, is_key=True)
        producer.send(f"{domain}.cuts", value=record.value, headers=list(record.headers), partition=0).get(10)

    with ThreadSequencer(servers, domain, [a, b]):
        tell(1, a)
        settings: dict[str, Any] = {"domain": domain, "bootstrap_servers": servers, "client": client}
        with (
            Subscriber([a, b], id="other", **settings) as other,
            Subscriber(pattern=f"{a}|{b}", id="s", **settings) as subscriber,
        ):
            assert subscriber.topics == (a,)
            publish(producer, a, "1", "2")
            events = take(subscriber, 2)
            tell(2, a, b)
            wait_until(lambda: subscriber.poll(0.2) is None and b in subscriber.topics, "the new topic joins")
            publish(producer, b, "3")
            events += take(subscriber, 1)
            publish(producer, a, "4")
            publish(producer, b, "5")
            everything = take(other, 5)  # so all of it is stamped
            subscriber.stop(drain=True)
            events += list(subscriber)
    assert [event.g for event in events] == [event.g for event in everything]
