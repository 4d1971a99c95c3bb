"""What the demo's processes do. `python -m totalorder.demo.worker ROLE`, started by crew.py.

Standard input brings JSON lines: first the spec of the role, then orders; when it ends the demo is gone, and so is this
process. Standard output carries JSON lines about the state. Anything printed goes to the log.
"""

import contextlib
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from totalorder.demo.journal import Journal, event_number
from totalorder.demo.world import partitions

_POLL_S = 0.2
_SAY_EVERY_S = 0.25
_FLUSH_TIMEOUT_S = 60.0


class Demo:
    """The link to the process that started this one. `spec` is what it was given to do."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)
        self.spec: dict[str, Any] = json.loads(sys.stdin.buffer.readline() or self._gone())
        self._orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._said_at = 0.0
        threading.Thread(target=self._listen, name="orders", daemon=True).start()

    def say(self, **status: object) -> None:
        """Tell the demo."""
        self._out.write(json.dumps(status).encode() + b"\n")

    def say_sometimes(self, status: Callable[[], dict[str, object]]) -> None:
        """Tell the demo, unless it was told a moment ago."""
        now = time.monotonic()
        if now - self._said_at >= _SAY_EVERY_S:
            self._said_at = now
            self.say(**status())

    def order(self) -> dict[str, Any]:
        """The next order, {} if there is none yet."""
        with contextlib.suppress(queue.Empty):
            return self._orders.get_nowait()
        return {}

    def await_order(self) -> dict[str, Any]:
        """The next order."""
        return self._orders.get()

    def _listen(self) -> None:
        for line in sys.stdin.buffer:
            self._orders.put(json.loads(line))
        self._gone()

    def _gone(self) -> bytes:
        os._exit(1)


class _Delivery:
    """Journal and display of one subscriber, whichever kind it is."""

    def __init__(self, demo: Demo, journal: Journal) -> None:
        self._demo = demo
        self._journal = journal
        self._partition = {source: index for index, source in enumerate(partitions())}
        self._airport = {airport: index for index, airport in enumerate(demo.spec["all_airports"])}
        self._count = 0
        self._last = b""

    def take(self, *, source: tuple[str, int], offset: int, airport: str, value: bytes, g: int) -> None:
        """The handler: write it down."""
        self._journal.add(
            event=event_number(self._partition[source], offset),
            topic=self._airport[airport],
            g=g,
            at_ms=time.time_ns() // 1_000_000,
        )
        self._count += 1
        self._last = value

    def show(self, *, now: bool = False) -> None:
        """Tell the demo how far it is."""
        if now:
            self._demo.say(**self._status())
        else:
            self._demo.say_sometimes(self._status)

    def _status(self) -> dict[str, object]:
        return {"count": self._count, "last": self._last.decode()}


def produce(demo: Demo) -> None:
    """Publishes its carriers' events, each at its moment: an ordinary Kafka producer that knows nothing of order."""
    from totalorder.kafka_clients import producer

    spec = demo.spec
    client = producer(spec["bootstrap_servers"])
    partition = {source: index for index, source in enumerate(partitions())}
    rows = [json.loads(line) for line in Path(spec["events"]).read_text(encoding="utf-8").splitlines()]
    failed: list[BaseException] = []
    acknowledged = 0
    with Journal(Path(spec["journal"])) as journal:

        def acked(airport: int, sent_ms: int, where: Any) -> None:
            nonlocal acknowledged
            event = event_number(partition[where.topic, where.partition], where.offset)
            journal.add(event=event, topic=airport, g=0, at_ms=sent_ms)
            acknowledged += 1

        demo.say(ready=True)
        start = demo.await_order()["start"]
        for due_s, topic, airport, key, time_ms, value in rows:
            _wait_until(start + due_s)
            future = client.send(topic, key=key.encode(), value=value.encode(), timestamp_ms=time_ms)
            future.add_callback(partial(acked, airport, time.time_ns() // 1_000_000))
            future.add_errback(failed.append)
            demo.say_sometimes(lambda: {"count": acknowledged})
        client.flush(timeout=_FLUSH_TIMEOUT_S)
        client.close()
    if failed or acknowledged != len(rows):
        raise SystemExit(f"{len(rows) - acknowledged} of {len(rows)} events were not acknowledged: {failed[:1]}")
    demo.say(count=acknowledged, done=True)
    demo.await_order()


def plain(demo: Demo) -> None:
    """A subscriber as one writes it with Kafka alone: a consumer in a poll loop that picks its airports by key."""
    from kafka import KafkaConsumer, TopicPartition

    spec = demo.spec
    consumer = KafkaConsumer(
        bootstrap_servers=spec["bootstrap_servers"],
        auto_offset_reset="earliest",
        group_id=None,
        enable_auto_commit=False,
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
                            g=0,
                        )
            delivery.show()
        delivery.show(now=True)
    consumer.close()


def sequence(demo: Demo) -> None:
    """`totalorder sequence`, with the arguments given."""
    from totalorder.cli.app import main

    main(["sequence", *demo.spec["arguments"]])


def _wait_until(at_s: float) -> None:
    left_s = at_s - time.time()
    if left_s > 0:
        time.sleep(left_s)


ROLES: dict[str, Callable[[Demo], None]] = {"produce": produce, "plain": plain, "sequence": sequence}

if __name__ == "__main__":
    ROLES[sys.argv[1]](Demo())
