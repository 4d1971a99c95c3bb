"""What the demo's processes do. `python -m totalorder.demo.worker ROLE`, started by processes.py.

Standard input brings JSON lines: first the spec of the role, then orders; when it ends the demo is gone, and so is this
process. Standard output carries JSON lines about the state. Anything printed goes to the log.
"""

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from totalorder.demo.journal import Journal, event_number, read_journal
from totalorder.demo.link import Link
from totalorder.demo.proof import prove
from totalorder.demo.world import partitions

_POLL_S = 0.2
_FLUSH_TIMEOUT_S = 60.0
_GRANT_TIMEOUT_S = 230.0
_ACK_EVERY = 100
# For both kinds of subscriber: else each record costs each of them a request of its own, too much for two cores.
_FETCH_MIN_BYTES = 16_384
_FETCH_MAX_WAIT_MS = 100
_LINGER_MS = 10


class _Delivery:
    """Journal and display of one subscriber, whichever kind it is."""

    def __init__(self, demo: Link, journal: Journal) -> None:
        self._demo = demo
        self._journal = journal
        self._partition = {source: index for index, source in enumerate(partitions())}
        self._airport = {airport: index for index, airport in enumerate(demo.spec["all_airports"])}
        self._seen = set(read_journal(Path(demo.spec["journal"]))["event"].tolist())
        self._last = b""

    def take(
        self, *, source: tuple[str, int], offset: int, airport: str, value: bytes, g: int = 0, again: bool = False
    ) -> None:
        """The handler: write it down."""
        event = event_number(self._partition[source], offset)
        at_ms = time.time_ns() // 1_000_000
        self._journal.add(event=event, topic=self._airport[airport], g=g, at_ms=at_ms, again=again)
        self._seen.add(event)
        self._last = value

    def show(self, *, now: bool = False) -> None:
        """Tell the demo how far it is."""
        if now:
            self._demo.say(**self._status())
        else:
            self._demo.say_sometimes(self._status)

    def _status(self) -> dict[str, object]:
        return {"count": len(self._seen), "last": self._last.decode()}


def produce(demo: Link) -> None:
    """Publishes its carriers' events, each at its moment: an ordinary Kafka producer that knows nothing of order."""
    rows = [json.loads(line) for line in Path(demo.spec["events"]).read_text(encoding="utf-8").splitlines()]
    with _Publisher(demo) as publisher:
        demo.say(ready=True)
        demo.await_order()
        while rows and rows[0][0] < 0:
            publisher.send(*rows.pop(0)[1:])
        start = demo.await_order()["start"]
        for due_s, *event in rows:
            _wait_until(start + due_s)
            publisher.send(*event)
    demo.say(count=publisher.acknowledged, done=True)
    demo.await_order()


class _Publisher:
    """Sends events and writes down what Kafka acknowledged; SystemExit at the end if it did not acknowledge all."""

    def __init__(self, demo: Link) -> None:
        from totalorder.kafka_clients import producer

        self.acknowledged = 0
        self._demo = demo
        self._client = producer(demo.spec["bootstrap_servers"], linger_ms=_LINGER_MS)
        self._journal = Journal(Path(demo.spec["journal"]))
        self._partition = {source: index for index, source in enumerate(partitions())}
        self._sent = 0
        self._failed: list[BaseException] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.flush(timeout=_FLUSH_TIMEOUT_S)
        self._client.close()
        self._journal.close()
        if self.acknowledged != self._sent:
            lost = self._sent - self.acknowledged
            raise SystemExit(f"{lost} of {self._sent} events were not acknowledged: {self._failed[:1]}")

    def send(self, kafka_topic: str, airport: int, key: str, time_ms: int, value: str) -> None:
        """Publish one event, with its own time as the record's."""
        future = self._client.send(kafka_topic, key=key.encode(), value=value.encode(), timestamp_ms=time_ms)
        self._sent += 1
        future.add_callback(partial(self._acknowledge, airport, time.time_ns() // 1_000_000))
        future.add_errback(self._failed.append)
        self._demo.say_sometimes(lambda: {"count": self.acknowledged})

    def _acknowledge(self, airport: int, sent_ms: int, where: Any) -> None:
        """Called in the client's thread, one at a time."""
        event = event_number(self._partition[where.topic, where.partition], where.offset)
        self._journal.add(event=event, topic=airport, g=0, at_ms=sent_ms)
        self.acknowledged += 1


def board(demo: Link) -> None:
    """A subscriber of totalorder: what it has written down it acknowledges, and so gets each event once."""
    from totalorder import Event, Subscriber

    spec = demo.spec
    with (
        Journal(Path(spec["journal"])) as journal,
        Subscriber(
            spec["airports"],
            id=spec["id"],
            domain=spec["domain"],
            bootstrap_servers=spec["bootstrap_servers"],
            start_timeout_s=_GRANT_TIMEOUT_S,
            kafka={"fetch.min.bytes": str(_FETCH_MIN_BYTES), "fetch.max.wait.ms": str(_FETCH_MAX_WAIT_MS)},
        ) as subscriber,
    ):
        delivery = _Delivery(demo, journal)
        demo.say(ready=True)
        while not (order := demo.order()).get("stop"):
            if "airports" in order:
                subscriber.subscribe(order["airports"])
                demo.say(changed=True)
            last: Event | None = None
            event = subscriber.poll(_POLL_S)
            while event is not None:
                last = event
                delivery.take(
                    source=(event.kafka_topic, event.partition),
                    offset=event.offset,
                    airport=event.topic,
                    value=event.value or b"",
                    g=event.g,
                    again=event.tag is not None,
                )
                event = subscriber.poll(0.0) if subscriber.metrics().unacknowledged < _ACK_EVERY else None
            if last is not None:
                journal.flush()
                subscriber.ack(last)
            delivery.show()
        delivery.show(now=True)


def plain(demo: Link) -> None:
    """A subscriber as one writes it with Kafka alone: a consumer in a poll loop that picks its airports by key."""
    from kafka import KafkaConsumer, TopicPartition

    spec = demo.spec
    consumer = KafkaConsumer(
        bootstrap_servers=spec["bootstrap_servers"],
        auto_offset_reset="earliest",
        group_id=None,
        enable_auto_commit=False,
        fetch_min_bytes=_FETCH_MIN_BYTES,
        fetch_max_wait_ms=_FETCH_MAX_WAIT_MS,
    )
    airports = set(spec["airports"])
    consumer.assign([TopicPartition(*source) for source in partitions() if source[0] in spec["kafka_topics"]])
    with Journal(Path(spec["journal"])) as journal:
        delivery = _Delivery(demo, journal)
        demo.say(ready=True)
        while not (order := demo.order()).get("stop"):
            airports = set(order.get("airports", airports))
            for records in consumer.poll(timeout_ms=int(_POLL_S * 1000)).values():
                for record in records:
                    airport = record.key.decode()
                    if airport in airports:
                        delivery.take(
                            source=(record.topic, record.partition),
                            offset=record.offset,
                            airport=airport,
                            value=record.value,
                        )
            delivery.show()
        delivery.show(now=True)
    consumer.close()


def sequence(demo: Link) -> None:
    """`totalorder sequence`, with the arguments given."""
    from totalorder.cli.app import main

    main(["sequence", *demo.spec["arguments"]])


def _wait_until(at_s: float) -> None:
    left_s = at_s - time.time()
    if left_s > 0:
        time.sleep(left_s)


ROLES: dict[str, Callable[[Link], None]] = {
    "produce": produce,
    "board": board,
    "plain": plain,
    "sequence": sequence,
    "prove": prove,
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](Link())
