"""What the benchmark's processes do. `python -m totalorder.bench.peers.worker ROLE`, started by `turn`.

They talk to the benchmark as the demo's processes do to the demo: JSON lines on standard input and output.
"""

import socket
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Protocol

import numpy as np

from totalorder.bench.peers.kafka import KafkaPublisher, MergeSource, PlainSource, TotalorderSource, kafka_topics
from totalorder.bench.peers.load import CLOCKS_MS, Load, Made, parse_payload, payload, topic_name
from totalorder.bench.peers.nats import NatsPublisher, NatsSource
from totalorder.demo.link import Link
from totalorder.demo.worker import sequence

_POLL_S = 0.1


class Source(Protocol):
    """A subscriber of one of the peers."""

    @property
    def dropped(self) -> int:
        """How many events have come that it will not deliver."""
        ...

    def prepare(self) -> None:
        """What has to be done before the first event is published."""
        ...

    def open(self) -> None:
        """Begins to read, at the first event."""
        ...

    def poll(self, timeout_s: float) -> Iterator[bytes]:
        """The payloads of the next events, each delivered when it is taken; waits at most so long for some."""
        ...

    def close(self) -> None:
        """Lets go of the connection."""
        ...


class CountingSocket(socket.socket):
    """Counts what the clients of this process receive: the bytes are real, and each client's count the same way."""

    received = 0

    def recv(self, size: int, flags: int = 0) -> bytes:
        """As in socket.socket."""
        data = super().recv(size, flags)
        CountingSocket.received += len(data)
        return data


class Publisher(Protocol):
    """A producer's client for one of the peers."""

    def send(self, topic: int, value: bytes, timestamp_ms: int) -> None:
        """Publishes one event, made at `timestamp_ms` by its producer's clock."""
        ...

    def pause(self, seconds: float) -> None:
        """Waits for the next event's moment, while the client works."""
        ...

    def flush(self) -> None:
        """Waits until everything is acknowledged; an error if it is not."""
        ...

    def close(self) -> None:
        """Lets go of the connection."""
        ...


def subscribe(link: Link) -> None:
    """Delivers a scene's events until the next scene or the end is told, and writes down what it delivered."""
    socket.socket = CountingSocket  # type: ignore[misc]
    source = _source(link.spec)
    source.prepare()
    link.say(ready=True)
    order = link.await_order()
    received = CountingSocket.received
    source.open()
    with closing(source):
        while "scene" in order:
            order, received = _scene(link, source, order, received)
        link.await_order()


def _scene(link: Link, source: Source, order: dict[str, Any], received: int) -> tuple[dict[str, Any], int]:
    scene, dropped = order["scene"], source.dropped
    rows: list[tuple[int, int, int]] = []
    while not (following := link.order()):
        for value in source.poll(_POLL_S):
            rows.append((*parse_payload(value), time.time_ns() // 1_000))  # noqa: PERF401  (each at its moment)
        link.say_sometimes(lambda: {scene: len(rows) + source.dropped - dropped})
    np.save(order["path"], np.array(rows, dtype=np.int64).reshape(-1, 3))
    link.say(**{f"{scene}-received": CountingSocket.received - received})
    return following, CountingSocket.received


def _source(spec: dict[str, Any]) -> Source:
    address, prefix, topics = spec["address"], spec["prefix"], [topic_name(each) for each in spec["topics"]]
    own = [prefix + topic for topic in topics]
    match spec["kind"]:
        case "single":
            return PlainSource(address, kafka_topics(prefix, single=True), only=frozenset(topics))
        case "plain":
            return PlainSource(address, own)
        case "merge":
            return MergeSource(address, own, wait_ms=spec["wait_ms"])
        case "nats":
            return NatsSource(address, topics)
        case _:
            return TotalorderSource(address, own, id=spec["id"])


def publish(link: Link) -> None:
    """Publishes one producer's share of each load that it is told of."""
    spec = link.spec
    with closing(_publisher(spec)) as client:
        link.say(ready=True)
        while "load" in (order := link.await_order()):
            for made in Load(**order["load"]).share(spec["producer"]):
                _send(client, made, order["start"] + made.publish_s, CLOCKS_MS[spec["producer"]])
            client.flush()
            link.say(**{f"{order['scene']}-published": True})


def _publisher(spec: dict[str, Any]) -> Publisher:
    if spec["kind"] == "nats":
        return NatsPublisher(spec["address"])
    return KafkaPublisher(spec["address"], spec["prefix"], single=spec["kind"] == "single")


def _send(client: Publisher, made: Made, at_s: float, clock_ms: int) -> None:
    """Publishes an event at its moment, with the time at which its producer believes that it made it."""
    if (left_s := at_s - time.time()) > 0:
        client.pause(left_s)
    now_us = time.time_ns() // 1_000
    timestamp_ms = round(now_us / 1000 - made.stalled_s * 1000) + clock_ms
    client.send(made.topic, payload(made.event, now_us), timestamp_ms)


ROLES = {"subscribe": subscribe, "publish": publish, "sequence": sequence}

if __name__ == "__main__":
    ROLES[sys.argv[1]](Link())
