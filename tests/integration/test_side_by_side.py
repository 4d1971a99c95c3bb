"""Two programs on one domain: ours, and one that was written from the pages alone and says more than ours knows."""

from collections.abc import Callable
from typing import Any

import pytest
from kafka import KafkaProducer
from other_subscriber import OtherSubscriber, Replaced, Taken
from sim_kafka_sequencer import ThreadSequencer
from spark_job import records

import totalorder as to
from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.errors import Fenced
from totalorder.sequencer.wire.position import decode_saved
from totalorder.sequencer.wire.receipts import decode_receipts

pytestmark = pytest.mark.broker
NewTopic = Callable[..., str]


def publish(producer: KafkaProducer, topics: list[str], numbers: range) -> None:
    for number in numbers:
        producer.send(topics[number % 2], value=b"%d" % number, partition=number % 4 // 2).get(30)


def take(subscriber: to.Subscriber, count: int) -> list[to.Event]:
    found: list[to.Event] = []
    while len(found) < count:
        event = subscriber.poll(60)
        assert event is not None, f"{len(found)} of {count} events came"
        found.append(event)
    return found


def place(event: to.Event | Taken) -> tuple[Any, ...]:
    return event.kafka_topic, event.topic_id, event.partition, event.offset, event.n, event.g, event.value


def test_an_id_goes_to_and_fro_between_two_programs(
    broker: LocalBroker, new_topic: NewTopic, unique_name: Callable[[str], str]
) -> None:
    topics = [new_topic(stem, partitions=2) for stem in "ab"]
    domain, servers = unique_name("domain"), broker.bootstrap_servers
    ours: dict[str, Any] = {"domain": domain, "bootstrap_servers": servers}
    other: dict[str, Any] = {"domain": domain, "id_": "s", "topics": topics}
    seen: list[tuple[Any, ...]] = []
    with (
        ThreadSequencer(servers, domain, topics),
        kafka_clients.producer(servers) as producer,
        to.Subscriber(topics, id="beside", **ours) as beside,
    ):
        with OtherSubscriber(servers, nonce="first", **other) as first:
            publish(producer, topics, range(6))
            events = first.take(6)
            first.ack(events[3])
            assert [event.tag for event in events] == [None] * 6
            seen += map(place, events[:4])

            with to.Subscriber(topics, id="s", **ours) as second:
                publish(producer, topics, range(6, 10))
                again = take(second, 6)
                assert [event.tag for event in again] == ["redelivered"] * 2 + [None] * 4
                second.ack(again[4])
                with pytest.raises(Replaced):
                    first.take(1)
                seen += map(place, again[:5])

                with OtherSubscriber(servers, nonce="third", **other) as third:
                    publish(producer, topics, range(10, 13))
                    events = third.take(4)
                    assert [event.tag for event in events] == ["redelivered"] + [None] * 3
                    third.ack(events[-1])
                    seen += map(place, events)
                    with pytest.raises(Fenced):
                        take(second, 1)

        with to.Subscriber(topics, id="s", **ours) as fourth:
            publish(producer, topics, range(13, 14))
            (last,) = take(fourth, 1)
            assert last.tag is None
            fourth.ack(last)
            seen.append(place(last))
        assert seen == [place(event) for event in take(beside, 14)]

    saved = [record for record in records(servers, f"{domain}.positions") if record.value is not None]
    assert sum(b'"later"' in record.value for record in saved) > 3
    for record in saved:
        assert decode_saved(record.value).key == record.key
    told = [decode_receipts(record.value, dict(record.headers)) for record in records(servers, f"{domain}.receipts")]
    sent = {(one.nonce, sequence) for one in told for sequence in one.sequence.tolist()}
    assert {("first", at) for at in range(1, 7)} | {("third", at) for at in range(1, 5)} < sent
