"""A little domain over Kafka in memory, for tests of what a user sees of a Subscriber."""

import random
from collections.abc import Iterable
from typing import Any

from sim_kafka import SimKafka, SimTransport
from sim_sequencer import Domain, SimSequencer

from totalorder.subscriber import AsyncSubscriber, Event, Subscriber
from totalorder.subscriber.transport import Partition


class World:
    """A domain with topics a, b, c of two partitions each, a sequencer that runs at each poll, and a clock."""

    def __init__(self, **domain: object) -> None:
        self.kafka = SimKafka()
        self.now = 0.0
        self.suspended = 0.0
        """Of that time only the clock on the wall knows."""
        for topic in "abc":
            self.kafka.create(topic, 2)
        self.rng = random.Random(1)
        self.sequencer = SimSequencer(self.kafka, Domain(**domain), list("abc"), self.rng)  # type: ignore[arg-type]
        self.running = True
        self.count = 0

    def tick(self, timeout_s: float) -> None:
        self.now += max(timeout_s, 0.001)
        self.sequencer.time_ms += max(1, round(timeout_s * 1000))
        if self.running:
            self.sequencer.run()

    def publish(self, topic: str, value: str | None = None) -> None:
        self.count += 1
        partition = Partition(topic, self.count % 2)
        text = value if value is not None else f"{topic}{self.count}"
        self.kafka.append(partition, value=text.encode(), timestamp_ms=self.count)

    def transport(self) -> SimTransport:
        return SimTransport(self.kafka, self.rng, self.tick)

    def subscriber(
        self,
        topics: Iterable[str],
        id: str = "s",  # noqa: A002
        transport: SimTransport | None = None,
        **settings: object,
    ) -> Subscriber[Any]:
        return Subscriber(list(topics), **self.settings(id, transport), **settings)  # type: ignore[arg-type]

    def async_subscriber(
        self,
        topics: Iterable[str],
        id: str = "s",  # noqa: A002
        transport: SimTransport | None = None,
        **settings: object,
    ) -> AsyncSubscriber[Any]:
        return AsyncSubscriber(list(topics), **self.settings(id, transport), **settings)  # type: ignore[arg-type]

    def settings(self, id: str, transport: SimTransport | None) -> dict[str, Any]:  # noqa: A002
        return {
            "id": id,
            "domain": "d",
            "transport": transport or self.transport(),
            "clock": lambda: self.now,
            "wall_clock": lambda: 1_000 + self.now + self.suspended,
        }


def await_ready(subscriber: Subscriber, count: int) -> None:
    """Reads until so many events wait to be taken."""
    while len(subscriber._session.ready) < count:
        subscriber._session.pump(0)


def take(subscriber: Subscriber, count: int) -> list[Event]:
    """The next events, acknowledged."""
    events = []
    for _ in range(count):
        event = subscriber.poll(60)
        assert event is not None
        subscriber.ack(event)
        events.append(event)
    return events
