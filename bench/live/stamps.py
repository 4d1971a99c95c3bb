"""A domain's stamps as columns, to compare those of two runs."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
from kafka import TopicPartition

from totalorder import kafka_clients
from totalorder.bench.workload import Ints
from totalorder.config import Settings
from totalorder.errors import Error
from totalorder.sequencer.wire.codec import StampsAssembler
from totalorder.sequencer.wire.stamps import Source, StampedBatch

_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Stamps:
    """One row an event in π: where it lies, its g and n; and one row an entry: its event's g, its topic, its n.

    Topics and sources are indices into sorted names, so that equal content makes equal columns, however it was split.
    """

    topics: tuple[str, ...]
    sources: tuple[tuple[str, int], ...]
    g: Ints
    n: Ints
    topic: Ints
    source: Ints
    offset: Ints
    entry_g: Ints
    entry_topic: Ints
    entry_n: Ints

    def equals(self, other: "Stamps") -> bool:
        """Whether every event has the same timestamp in both."""
        pairs = ((getattr(self, field.name), getattr(other, field.name)) for field in fields(self))
        return all(
            np.array_equal(mine, yours) if isinstance(mine, np.ndarray) else mine == yours for mine, yours in pairs
        )


def read_stamps(settings: Settings) -> Stamps:
    """All that the domain's log holds now."""
    return combined(list(_batches(settings)))


def combined(batches: list[StampedBatch]) -> Stamps:
    """The columns of these batches together."""
    topics = tuple(sorted({name for batch in batches for name in batch.names.values()}))
    sources = tuple(sorted({_place(source) for batch in batches for source in batch.sources}))
    topic_at, source_at = {name: at for at, name in enumerate(topics)}, {each: at for at, each in enumerate(sources)}
    events, entries = [np.zeros((5, 0), np.int64)], [np.zeros((3, 0), np.int64)]
    for batch in batches:
        rows = batch.rows
        topic = np.zeros(max(batch.names, default=-1) + 1, dtype=np.int64)
        for number, name in batch.names.items():
            topic[number] = topic_at[name]
        source = np.array([source_at[_place(each)] for each in batch.sources], dtype=np.int64)
        events.append(np.stack([rows.g, rows.n, topic[rows.topic], source[rows.source], rows.offset]))
        of_event = np.repeat(rows.g, np.diff(rows.entry_start))
        entries.append(np.stack([of_event, topic[rows.entry_topic], rows.entry_n]))
    g, n, topic_column, source_column, offset = _sorted(np.concatenate(events, axis=1))
    entry_g, entry_topic, entry_n = _sorted(np.concatenate(entries, axis=1))
    return Stamps(
        topics=topics,
        sources=sources,
        g=g,
        n=n,
        topic=topic_column,
        source=source_column,
        offset=offset,
        entry_g=entry_g,
        entry_topic=entry_topic,
        entry_n=entry_n,
    )


def _place(source: Source) -> tuple[str, int]:
    """Without the topic's id, which is another on each cluster: a benchmark makes no topic anew."""
    return source.topic, source.partition


def _sorted(columns: Ints) -> Ints:
    """Columns sorted by the first and then the second and so on."""
    found: Ints = columns[:, np.lexsort(columns[::-1])]
    return found


def _batches(settings: Settings) -> Iterator[StampedBatch]:
    topic, deadline = settings.own_topics.stamps, time.monotonic() + _TIMEOUT_S
    consumer = kafka_clients.consumer(settings.bootstrap_servers)
    try:
        sources = [TopicPartition(topic, partition) for partition in range(settings.stamps_partitions)]
        assemblers = {source: StampsAssembler(domain=settings.domain, partition=source.partition) for source in sources}
        consumer.assign(sources)
        consumer.seek_to_beginning(*sources)
        ends = consumer.end_offsets(sources)
        while any(consumer.position(source) < ends[source] for source in sources):
            if time.monotonic() > deadline:
                raise Error(f"reading {topic} took more than {_TIMEOUT_S:g} s")
            for source, records in consumer.poll(timeout_ms=200).items():
                done = (assemblers[source].add(record.value, dict(record.headers)) for record in records)
                yield from (batch for batch in done if batch is not None)
    finally:
        consumer.close()
