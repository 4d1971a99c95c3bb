"""Reads the whole stamps log as a third party: the place of each event in the order, and what that costs in bytes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from kafka import TopicPartition

from totalorder.demo.journal import event_number
from totalorder.demo.world import partitions
from totalorder.errors import Error
from totalorder.kafka_clients import consumer, kafka_errors
from totalorder.sequencer.wire.codec import StampsAssembler
from totalorder.sequencer.wire.control import Grant, decode_answer
from totalorder.sequencer.wire.names import DomainTopics
from totalorder.sequencer.wire.stamps import StampedBatch

Ints = npt.NDArray[np.int64]

_SILENCE_LIMIT_S = 20


@dataclass(frozen=True, kw_only=True)
class Stamps:
    """Every stamp of a domain, each event once, in ascending `event`; sizes are those of the records as stored."""

    event: Ints
    g: Ints
    entries: int
    batches: int
    records: int
    bytes: int

    def g_of(self, events: Ints) -> Ints:
        """Positions in the order; 0 for an event that has no stamp."""
        if not len(self.event):
            return np.zeros(len(events), dtype=np.int64)
        at = np.minimum(np.searchsorted(self.event, events), len(self.event) - 1)
        return np.where(self.event[at] == events, self.g[at], 0)


def read_stamps(bootstrap_servers: str, domain: str) -> Stamps:
    """Reads the stamps topic from its beginning to its present end.

    Raises Error for two different stamps of one event, or when the broker falls silent before the end.
    """
    number = {source: index for index, source in enumerate(partitions())}
    events, positions = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    entries = size = records = 0
    batches: set[int] = set()
    assemblers: dict[int, StampsAssembler] = {}
    for record in _records(bootstrap_servers, DomainTopics(domain=domain).stamps):
        records += 1
        size += _stored_bytes(record)
        assembler = assemblers.setdefault(record.partition, StampsAssembler(domain=domain, partition=record.partition))
        batch = assembler.add(record.value, dict(record.headers))
        if batch is not None and len(batch.rows):
            events.append(_events(batch, number))
            positions.append(batch.rows.g)
            entries += len(batch.rows.entry_topic)
            batches.add(batch.batch)
    event, g = _distinct(np.concatenate(events), np.concatenate(positions))
    return Stamps(event=event, g=g, entries=entries, batches=len(batches), records=records, bytes=size)


def read_grants(bootstrap_servers: str, domain: str) -> dict[str, list[tuple[int, frozenset[str]]]]:
    """Every grant so far, by id: from which position of the order on the subscriber holds which topics."""
    found: dict[str, list[tuple[int, frozenset[str]]]] = {}
    for record in _records(bootstrap_servers, DomainTopics(domain=domain).grants):
        answer = decode_answer(record.value) if record.value is not None else None
        if isinstance(answer, Grant):
            found.setdefault(answer.id, []).append((answer.g, frozenset(answer.topics)))
    return {id_: sorted(grants, key=lambda grant: grant[0]) for id_, grants in found.items()}


def _records(bootstrap_servers: str, topic: str) -> Iterator[Any]:
    with kafka_errors(bootstrap_servers):
        client = consumer(bootstrap_servers, consumer_timeout_ms=_SILENCE_LIMIT_S * 1000, auto_offset_reset="earliest")
        try:
            sources = [TopicPartition(topic, partition) for partition in client.partitions_for_topic(topic) or ()]
            client.assign(sources)
            ends = client.end_offsets(sources)
            while any(client.position(source) < ends[source] for source in sources):
                polled = client.poll(timeout_ms=_SILENCE_LIMIT_S * 1000)
                if not polled:
                    raise Error(f"The broker sent nothing of {topic} for {_SILENCE_LIMIT_S} s", remedy="Run it again.")
                for source, records in polled.items():
                    yield from (record for record in records if record.offset < ends[source])
        finally:
            client.close()


def _stored_bytes(record: Any) -> int:
    return len(record.value) + sum(len(name) + len(value) for name, value in record.headers)


def _events(batch: StampedBatch, number: dict[tuple[str, int], int]) -> Ints:
    sources = [number[source.topic, source.partition] for source in batch.sources]
    base = np.array([event_number(source, 0) for source in sources], dtype=np.int64)
    return base[batch.rows.source] + batch.rows.offset


def _distinct(event: Ints, g: Ints) -> tuple[Ints, Ints]:
    """Batches that were written twice once (the sink is at least once); they must say the same."""
    pairs = np.unique(np.stack([event, g]), axis=1)
    if len(np.unique(pairs[0])) != pairs.shape[1] or len(np.unique(pairs[1])) != pairs.shape[1]:
        raise Error("The stamps log holds two different stamps for one event, or one place for two events")
    return pairs[0], pairs[1]
