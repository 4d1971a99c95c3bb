"""What publishes events on keys, and what reads the stamps: each a process."""

import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from kafka import TopicPartition

from totalorder import kafka_clients
from totalorder.bench.live.load import VALUE_BYTES, fast_producer
from totalorder.errors import Error

_POLL_S = 0.05
_FLUSH_S = 30.0
_VALUES = 4_096


class Arrival(NamedTuple):
    """A record of the stamps topic, and when a consumer had it, in seconds."""

    at: float
    partition: int
    value: bytes
    headers: tuple[tuple[str, bytes], ...]


def publish_keys(pipe: Connection, servers: str, topics: Sequence[str], keys: Sequence[str], rate: int) -> None:
    """An event for each key in turn at an even rate, to the Kafka topic named beside it; says when it sent each."""
    values = np.random.default_rng(1).bytes(VALUE_BYTES * _VALUES)  # which no compression shortens
    # Idempotent, so that retries keep the order: the n-th event sent to a topic is the one at offset n.
    producer = fast_producer(servers, **{"enable.idempotence": True})
    sent = np.empty(len(keys))
    began = time.time()
    for number, (topic, key) in enumerate(zip(topics, keys, strict=True)):
        pause_s = began + number / rate - time.time()
        if pause_s > 0:
            producer.poll(0)
            time.sleep(pause_s)
        first = number % _VALUES * VALUE_BYTES
        sent[number] = time.time()
        producer.produce(topic, value=values[first : first + VALUE_BYTES], key=key, partition=0)
    if left := producer.flush(_FLUSH_S):
        raise Error(f"the broker did not take {left} events within {_FLUSH_S:g} s")
    pipe.send(sent)


def receive_stamps(pipe: Connection, servers: str, topic: str, partitions: int) -> None:
    """Reads a stamps topic from its beginning; when asked, reads up to its end and says what came when."""
    consumer = kafka_clients.consumer(servers, fetch_max_wait_ms=5)
    sources = [TopicPartition(topic, partition) for partition in range(partitions)]
    consumer.assign(sources)
    consumer.seek_to_beginning(*sources)
    found: list[Arrival] = []
    pipe.send("ready")
    while not pipe.poll():
        found += _poll(consumer)
    ends = consumer.end_offsets(sources)
    while any(consumer.position(source) < ends[source] for source in sources):
        found += _poll(consumer)
    pipe.send(found)


def _poll(consumer: Any) -> list[Arrival]:
    polled = consumer.poll(timeout_ms=round(_POLL_S * 1_000))
    now = time.time()
    return [
        Arrival(now, source.partition, record.value, tuple(record.headers))
        for source, records in polled.items()
        for record in records
    ]
