"""What one reader and one shard need of a processor, each alone in this process: on a core of its own it is that.

Processor time, since the cores of this machine are shared.
"""

import time
from collections.abc import Iterator, Sequence
from statistics import median

import numpy as np

from totalorder.bench.live.load import BACKLOG_RATE
from totalorder.bench.workload import Ints
from totalorder.sequencer.batch import Batch, Row
from totalorder.sequencer.engine import EngineConfig, State, initial_state, step
from totalorder.sequencer.wire.codec import encode_stamps
from totalorder.sequencer.wire.control import Subscribe, encode_request
from totalorder.sequencer.wire.names import DomainTopics
from totalorder.sequencer.wire.stamps import Source
from totalorder.streaming.cut import consumers, reading
from totalorder.streaming.cut.batches import to_batch
from totalorder.streaming.cut.chunk import MAX_EVENTS, Chunk, decode, encode
from totalorder.streaming.cut.ranges import Range, ReadPlan, SliceEnd

TOPIC_BY = "key"
_DOMAIN, _ID = "engine", "AAAAAAAA-AAAA-AAAA-AAAA-AAAAAAAAAAAA"


def subscribed(topics: Sequence[Sequence[str]], *, shards: int, shard: int, stamps_partitions: int) -> State:
    """One shard's state when so many subscribers hold so many topics each."""
    config = EngineConfig(
        domain=_DOMAIN,
        identity="bench",
        topic_by=TOPIC_BY,
        shards=shards,
        shard=shard,
        stamps_partitions=stamps_partitions,
    )
    requests = [
        Subscribe(id=f"s{number}", generation=1, nonce="n", topics=tuple(names), lease_s=0, stamps_ends={})
        for number, names in enumerate(topics)
    ]
    control = DomainTopics(domain=_DOMAIN).control
    rows = [Row(control, 0, offset, control=encode_request(request)) for offset, request in enumerate(requests)]
    return step(initial_state(config), Batch.of(1, rows), {})[0]


def chunks(names: Sequence[str], drawn: Ints, size: int, kafka_topics: Sequence[str]) -> Iterator[list[bytes]]:
    """The chunks of each batch as a task packs them, of events as `fill` publishes them; a backlog is one slice."""
    for first in range(0, len(drawn), size):
        number = np.arange(first, min(first + size, len(drawn)), dtype=np.int64)
        number = number[np.argsort(number % len(kafka_topics), kind="stable")]  # one partition after another
        parts = [number[begin : begin + MAX_EVENTS] for begin in range(0, len(number), MAX_EVENTS)]
        yield [encode(_chunk(names, drawn, 2 + first // size, part, kafka_topics)) for part in parts]


def _chunk(names: Sequence[str], drawn: Ints, cut: int, number: Ints, kafka_topics: Sequence[str]) -> Chunk:
    topics, topic = np.unique(drawn[number], return_inverse=True)
    used, source = np.unique(number % len(kafka_topics), return_inverse=True)
    return Chunk(
        cut=cut,
        topic_order=(),
        sources=tuple(Source(kafka_topics[place], _ID, 0) for place in used.tolist()),
        names=tuple(names[place] for place in topics.tolist()),
        source=source,
        offset=number // len(kafka_topics),
        timestamp_ms=number * 1_000 // BACKLOG_RATE,
        crc=number,
        slice=np.zeros_like(number),
        topic=topic,
        control={},
    )


def stamping_s(state: State, batches: Sequence[Sequence[bytes]]) -> float:
    """Seconds an event for one shard, from unpacking chunks to encoding its own stamps; the first batch is not counted.

    Where the shard owns nothing of what comes, it is what taking an event in costs.
    """
    taken, control = [], DomainTopics(domain=_DOMAIN).control
    for packed in batches:
        began_s = time.process_time()
        found = [decode(chunk) for chunk in packed]
        batch = to_batch(found, time_ms=1 << 41, control_topic=control, topic_by=TOPIC_BY)
        state, effects = step(state, batch, {})
        for stamped in effects.stamps:
            encode_stamps(stamped)
        taken.append((time.process_time() - began_s) / len(batch.offset))
    return median(taken[1:])


def reading_s(servers: str, kafka_topics: Sequence[str], *, events: int, size: int, silence_s: float = 60.0) -> float:
    """Seconds an event to read events of several topics from Kafka and to pack them; the first batch is not counted."""
    taken_s = 0.0
    for first in range(0, events, size):
        begin, end = first // len(kafka_topics), (first + size) // len(kafka_topics)
        plan = _plan(servers, kafka_topics, begin, end, silence_s)
        began_s = time.process_time()
        for chunk in reading.read(plan):
            encode(chunk)
        taken_s += time.process_time() - began_s if first else 0.0
    consumers.close()
    return taken_s / (events - size)


def _plan(servers: str, kafka_topics: Sequence[str], begin: int, end: int, silence_s: float) -> ReadPlan:
    ranges = [
        Range(topic=topic, topic_id=_ID, partition=0, begin=begin, end=end, slices=(SliceEnd(0, end),))
        for topic in kafka_topics
    ]
    return ReadPlan(
        bootstrap_servers=servers,
        kafka={},
        control=DomainTopics(domain=_DOMAIN).control,
        topic_by=TOPIC_BY,
        cut=1,
        topic_order=(),
        ranges=tuple(ranges),
        silence_s=silence_s,
    )
