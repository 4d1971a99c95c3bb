"""Subscribers that begin in the past of a real job's order, while it goes on."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from pyspark.sql import SparkSession
from spark_process import START_BOUND_S
from spark_shared import settings_for

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.streaming.runner import Sequencer
from totalorder.subscriber import Event, Subscriber
from totalorder.subscriber.clients import CLIENTS

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(600)]


def publish(producer: KafkaProducer, topics: list[str], count: int) -> None:
    for number in range(count):
        producer.send(topics[number % len(topics)], value=b"%d" % number, partition=number // 3 % 2)
    producer.flush(30)


def take(subscriber: Subscriber[Event], count: int) -> list[Event]:
    events: list[Event] = []
    while len(events) < count:
        event = subscriber.poll(START_BOUND_S)
        assert event is not None, f"{len(events)} of {count} came"
        subscriber.ack(event)
        events.append(event)
    return events


def said(events: list[Event]) -> list[tuple[Any, ...]]:
    """All but what entries, tags and numbers of deliveries are for each process."""
    return [(*event[:11], event.position) for event in events]


def test_who_begins_late_has_what_one_had_that_was_there(
    broker: LocalBroker,
    spark: SparkSession,
    new_topic: Callable[..., str],
    unique_name: Callable[[str], str],
    tmp_path: Path,
) -> None:
    topics = [new_topic(stem, partitions=2) for stem in "abc"]
    late_topics = topics[1:]
    settings = settings_for(unique_name("late"), broker.bootstrap_servers, tmp_path / "state", topics=tuple(topics))
    given: dict[str, Any] = {
        "domain": settings.domain,
        "bootstrap_servers": broker.bootstrap_servers,
        "start_timeout_s": START_BOUND_S,
    }
    with (
        Sequencer(settings, spark=spark),
        kafka_clients.producer(broker.bootstrap_servers) as producer,
        Subscriber(topics, id="first", **given) as first,
    ):
        publish(producer, topics, 90)
        events = take(first, 90)
        moment = datetime.now(UTC)  # all that was published is stamped, and nothing is stamped meanwhile
        publish(producer, topics, 60)
        events += take(first, 60)
        starts: dict[Any, int] = {"earliest": 0, moment: 90, events[39].position: 40, events[-1].position: 150}
        for at, (start, behind) in enumerate(starts.items()):
            client = CLIENTS[at % 2]
            with Subscriber(late_topics, id=f"late-{at}", start=start, client=client, **given) as late:
                publish(producer, topics, 9)
                events += take(first, 9)
                owed = [event for event in events[behind:] if event.topic in late_topics]
                begun = take(late, 3)
            # The next process of the id goes on with the rest of the past, and comes to the present.
            with Subscriber(late_topics, id=f"late-{at}", client=CLIENTS[at % 2 - 1], **given) as late:
                begun += take(late, len(owed) - 3)
            assert said(begun) == said(owed), start
