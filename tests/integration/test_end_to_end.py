"""The whole way on real Kafka and Spark: overlapping subscribers, one that changes its set, a driver that is killed."""

import threading
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Self

import pytest
from kafka import KafkaProducer, TopicPartition
from spark_process import START_BOUND_S, SequencerProcess, uncommit
from waiting import wait_until

import totalorder as to
from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.sequencer.wire.receipts import decode_receipts

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(900)]
NewTopic = Callable[..., str]
Place = tuple[str, int, int]
Told = tuple[str, str, str, int, int, int, int]


class Reader:
    """A subscriber in a thread of its own; `events` are those delivered, in order."""

    def __init__(self, topics: list[str], *, id_: str, domain: str, servers: str) -> None:
        self.events: list[to.Event] = []
        self.failure: BaseException | None = None
        self._subscriber = to.Subscriber(
            topics, id=id_, domain=domain, bootstrap_servers=servers, start_timeout_s=START_BOUND_S
        )
        self._change: list[str] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=id_)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(START_BOUND_S)
        assert self.failure is None, self.failure

    def _run(self) -> None:
        try:
            with self._subscriber as subscriber:
                while not self._stop.is_set():
                    event = subscriber.poll(0.2)
                    if event is not None:
                        self.events.append(event)
                        subscriber.ack(event)
                    if self._change is not None:
                        subscriber.subscribe(self._change)
                        self._change = None
        except BaseException as error:
            self.failure = error

    def until_delivered(self, count: int) -> None:
        """Waits for that many events."""
        wait_until(
            lambda: len(self.events) >= count or self.failure is not None,
            f"{count} events delivered",
            bound_s=START_BOUND_S,
        )

    def change(self, topics: list[str]) -> None:
        """Changes the set, and waits until that is granted."""
        self._change = topics
        wait_until(lambda: self._change is None or self.failure is not None, "change granted", bound_s=START_BOUND_S)

    @property
    def places(self) -> list[Place]:
        """Coordinates of what was delivered."""
        return [(event.kafka_topic, event.partition, event.offset) for event in self.events]


class Publisher:
    """Keeps book of every record that the broker acknowledged."""

    def __init__(self, producer: KafkaProducer) -> None:
        self.acknowledged: list[Place] = []
        self._producer = producer

    def publish(self, topics: list[str], count: int) -> None:
        sent = [
            self._producer.send(topics[number % len(topics)], value=b"%d" % number, partition=number // 3 % 2)
            for number in range(count)
        ]
        done = [future.get(60) for future in sent]
        self.acknowledged += [(meta.topic, meta.partition, meta.offset) for meta in done]

    def of(self, *topics: str) -> set[Place]:
        return {place for place in self.acknowledged if place[0] in topics}


def assert_agree(readers: list[Reader]) -> None:
    """Each pair has its common events in the same order, compared as sequences."""
    for one, other in combinations(readers, 2):
        common = set(one.places) & set(other.places)
        assert [place for place in one.places if place in common] == [
            place for place in other.places if place in common
        ]
    for reader in readers:
        assert [event.g for event in reader.events] == sorted({event.g for event in reader.events})


def receipts_by_id(domain: str, servers: str) -> dict[str, list[Told]]:
    """What each subscriber says that it was handed, by delivery index: topic, Kafka topic, id, place, n, g."""
    topic = f"{domain}.receipts"
    found: dict[tuple[str, int], Told] = {}
    with kafka_clients.consumer(servers) as consumer:
        partitions = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic))]
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        while any(consumer.position(at) < ends[at] for at in partitions):
            for record in (record for records in consumer.poll(timeout_ms=1000).values() for record in records):
                part = decode_receipts(record.value, dict(record.headers))
                for row, sequence in enumerate(part.sequence.tolist()):
                    numbers = int(part.offset[row]), int(part.n[row]), int(part.g[row])
                    found[part.id, sequence] = (part.topics[part.topic[row]], *part.sources[part.source[row]], *numbers)
    return {id_: [found[at] for at in sorted(found) if at[0] == id_] for id_, _ in found}


def test_subscribers_agree_through_a_change_and_a_killed_driver(
    broker: LocalBroker, new_topic: NewTopic, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    a, b, c = (new_topic(stem, partitions=2) for stem in "abc")
    domain, servers = unique_name("whole"), broker.bootstrap_servers
    flags = {
        "domain": domain,
        "bootstrap_servers": servers,
        "topics": f"{a},{b},{c}",
        "checkpoint_dir": tmp_path / "state",
        "stamps_partitions": 3,
    }
    with kafka_clients.producer(servers) as producer:
        publisher = Publisher(producer)
        with SequencerProcess(**flags) as process:
            process.until_ready()
            with (
                Reader([a, b], id_="r", domain=domain, servers=servers) as r,
                Reader([b, c], id_="s", domain=domain, servers=servers) as s,
                Reader([a, b, c], id_="t", domain=domain, servers=servers) as t,
            ):
                readers = [r, s, t]
                publisher.publish([a, b, c], 90)
                t.until_delivered(len(publisher.acknowledged))
                s.change([a, c])
                publisher.publish([a, b, c], 60)
                t.until_delivered(len(publisher.acknowledged))
                process.kill()
                uncommit(tmp_path / "state")
                publisher.publish([a, b, c], 30)
                with SequencerProcess(**flags) as again:
                    again.until_ready()
                    publisher.publish([a, b, c], 60)
                    expected = {
                        r: publisher.of(a, b),
                        s: {place for place in publisher.acknowledged[:90] if place[0] != a}
                        | {place for place in publisher.acknowledged[90:] if place[0] != b},
                        t: publisher.of(a, b, c),
                    }
                    for reader in readers:
                        reader.until_delivered(len(expected[reader]))
                    assert again.terminate() == 0
    for reader in readers:
        assert len(reader.places) == len(set(reader.places))
        assert set(reader.places) == expected[reader]
        assert {event.tag for event in reader.events} == {None}
    assert receipts_by_id(domain, servers) == {
        id_: [(e.topic, e.kafka_topic, e.topic_id, e.partition, e.offset, e.n, e.g) for e in reader.events]
        for id_, reader in zip("rst", readers, strict=True)
    }
    assert_agree(readers)
    # The job is down: whoever reads now gets the same, with the same positions.
    with to.Reader([a, b, c], domain=domain, bootstrap_servers=servers, until="now") as late:
        everything = list(late)
    for reader in readers:
        mine = {event.g for event in reader.events}
        assert [event[:11] for event in everything if event.g in mine] == [event[:11] for event in reader.events]
    assert len(everything) == len(t.events)
