"""Reading ranges of the domain's own topics from the driver, before Spark is there to do it."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import OffsetOutOfRangeError

from totalorder import kafka_clients
from totalorder.config import Settings
from totalorder.errors import BrokerUnavailable

_POLL_MS = 200
Ranges = Mapping[TopicPartition, tuple[int, int]]
"""From which offset to before which, by partition."""


@contextmanager
def reader(settings: Settings) -> Iterator[KafkaConsumer]:
    """A consumer of committed records; inside the block Kafka's errors are totalorder's."""
    consumer: KafkaConsumer = kafka_clients.consumer(
        settings.bootstrap_servers,
        settings.kafka,
        connect_timeout_s=settings.broker_timeout_s,
        auto_offset_reset="none",
    )
    try:
        with kafka_clients.kafka_errors(settings.bootstrap_servers):
            yield consumer
    finally:
        consumer.close()


def held(consumer: KafkaConsumer, partitions: Mapping[str, int]) -> Ranges:
    """What topics of so many partitions hold: from the oldest record to the last one that is committed."""
    sources = [TopicPartition(topic, number) for topic, count in partitions.items() for number in range(count)]
    begins, behind = consumer.beginning_offsets(sources), consumer.end_offsets(sources)
    return {source: (begins[source], behind[source]) for source in sources}


def records(consumer: KafkaConsumer, ranges: Ranges, silence_s: float, *, trimmed: bool = False) -> Iterator[Any]:
    """The committed records of the ranges, those of one partition in order.

    With `trimmed` a running sequencer may delete what comes first, at any moment: that is passed over.
    BrokerUnavailable after `silence_s` seconds in which nothing came of what is still missing.
    """
    waiting = {source: end for source, (begin, end) in ranges.items() if begin < end}
    consumer.assign(sorted(waiting))
    for source in waiting:
        consumer.seek(source, ranges[source][0])
    deadline = time.monotonic() + silence_s
    while waiting:
        for source, found in _poll(consumer, trimmed=trimmed).items():
            deadline = time.monotonic() + silence_s
            yield from (record for record in found if record.offset < ranges[source][1])
        # Behind aborted records and markers of transactions the position moves on without a record.
        waiting = {source: end for source, end in waiting.items() if consumer.position(source) < end}
        if waiting and time.monotonic() > deadline:
            missing = ", ".join(f"{at.topic}[{at.partition}] before offset {end}" for at, end in waiting.items())
            raise BrokerUnavailable(
                f"the broker sent nothing for {silence_s:g} s of {missing}",
                remedy="Look at the broker, and for a transaction that nobody ends; starting again is safe",
            )


def _poll(consumer: KafkaConsumer, *, trimmed: bool) -> Mapping[TopicPartition, Sequence[Any]]:
    try:
        found: Mapping[TopicPartition, Sequence[Any]] = consumer.poll(timeout_ms=_POLL_MS)
    except OffsetOutOfRangeError as error:
        if not trimmed:
            raise
        (gone,) = error.args
        consumer.seek_to_beginning(*gone)
        return {}
    return found
