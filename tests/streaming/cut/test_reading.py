"""Exact ranges read from a real broker: every committed record once, in order, whatever the way of reading."""

import zlib
from collections.abc import Callable

import numpy as np
import pytest
from confluent_kafka import Producer

from totalorder.broker import LocalBroker
from totalorder.streaming.cut.chunk import decode, encode
from totalorder.streaming.cut.ranges import Range, ReadPlan, SliceEnd
from totalorder.streaming.cut.reading import read

pytestmark = pytest.mark.broker


def test_first(broker: LocalBroker, new_topic: Callable[..., str]) -> None:
    topic = new_topic("events", partitions=3)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for at in range(60):
        producer.produce(topic, b"%d" % at, partition=at % 3, timestamp=1000 + at)
    assert producer.flush(30) == 0
    wanted = [
        Range(topic=topic, topic_id="i", partition=part, begin=5, end=15, slices=(SliceEnd(0, 10), SliceEnd(3, 15)))
        for part in range(3)
    ]
    plan = ReadPlan(
        bootstrap_servers=broker.bootstrap_servers,
        kafka={},
        control="c",
        topic_by="topic",
        cut=1,
        topic_order=(),
        ranges=tuple(wanted),
        silence_s=10,
    )
    (chunk,) = (decode(encode(chunk)) for chunk in read(plan))
    assert chunk.offset.tolist() == list(range(5, 15)) * 3
    assert chunk.crc.tolist() == [zlib.crc32(b"%d" % (3 * at + part)) for part in range(3) for at in range(5, 15)]
    assert chunk.timestamp_ms.tolist() == [1000 + 3 * at + part for part in range(3) for at in range(5, 15)]
    assert chunk.slice.tolist() == ([0] * 5 + [3] * 5) * 3
    assert chunk.source.tolist() == np.repeat(range(3), 10).tolist()
