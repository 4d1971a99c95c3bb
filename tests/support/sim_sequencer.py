"""The sequencer job over SimKafka: batches of offset ranges, the engine, the wire codec, crashes between writes."""

import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sim_kafka import SimKafka

from totalorder.sequencer.batch import Batch, Row
from totalorder.sequencer.codec import encode_stamps
from totalorder.sequencer.control import Ended, Grant, answer_key, encode_answer
from totalorder.sequencer.engine import Effects, EngineConfig, State, initial_state, step
from totalorder.sequencer.names import DomainTopics
from totalorder.subscriber.naming import topic_of
from totalorder.subscriber.transport import Partition, Record

LINKS = (Grant, Ended)
Write = tuple[Partition, bytes | None, bytes, tuple[tuple[str, bytes], ...]]


@dataclass(frozen=True)
class Domain:
    """Fixed settings of a simulated domain."""

    name: str = "d"
    stamps_partitions: int = 2
    shards: int = 1
    min_subscriptions: int = 1
    topic_by: str = "topic"
    keyframe_every: int = 4
    max_part_bytes: int = 600_000


@dataclass
class PiItem:
    """One position of π as the engine made it, told by the records of its batch and not by the stamps."""

    g: int
    topic: str
    partition: Partition
    offset: int
    value: bytes | None


@dataclass
class SimSequencer:
    """`run` makes a batch of what has come; `crash` throws a batch away after part of its output was written."""

    kafka: SimKafka
    domain: Domain
    event_topics: list[str]
    rng: random.Random
    time_ms: int = 1_000_000
    states: list[State] = field(default_factory=list)
    offsets: dict[Partition, int] = field(default_factory=dict)
    batches: list[tuple[int, list[Record]]] = field(default_factory=list)
    """(time_ms, records) of every committed batch."""
    answers: list[Grant | Ended] = field(default_factory=list)
    """All that changed a subscription, whatever became of the log of grants."""
    planned: tuple[int, list[Record]] | None = None
    """The write-ahead log: a batch that was begun and not committed runs again with the same offsets and time."""

    def __post_init__(self) -> None:
        self.names = DomainTopics(domain=self.domain.name)
        self.kafka.create(self.names.control, 1)
        self.kafka.create(self.names.grants, 1)
        self.kafka.create(self.names.stamps, self.domain.stamps_partitions)
        self.kafka.create(self.names.positions, self.domain.stamps_partitions)
        self.kafka.create(self.names.receipts, self.domain.stamps_partitions)
        self.states = [
            initial_state(
                EngineConfig(
                    domain=self.domain.name,
                    identity="simulated",
                    stamps_partitions=self.domain.stamps_partitions,
                    shards=self.domain.shards,
                    shard=shard,
                    min_subscriptions=self.domain.min_subscriptions,
                    topic_by=self.domain.topic_by,
                    keyframe_every=self.domain.keyframe_every,
                )
            )
            for shard in range(self.domain.shards)
        ]

    def run(self, *, limit: int = 10**9, crash_after: int | None = None) -> int:
        """One batch of at most `limit` records per partition; with `crash_after`, only that many writes of it."""
        if self.planned is None:
            records = self._plan(limit)
            if not records:
                return 0
            self.planned = (self.time_ms, records)
        time_ms, records = self.planned
        self.rng.shuffle(records)
        results = [step(state, Batch.of(time_ms, [self._row(r) for r in records]), {}) for state in self.states]
        writes = self._interleaved([self._writes(effects) for _, effects in results])
        for partition, key, value, headers in writes[:crash_after]:
            self.kafka.append(partition, key=key, value=value, headers=headers, timestamp_ms=time_ms)
        if crash_after is not None:
            return len(writes)
        self.states = [state for state, _ in results]
        self.batches.append((time_ms, records))
        self.answers += [answer for _, effects in results for answer in effects.answers if isinstance(answer, LINKS)]
        self.planned = None
        return len(writes)

    def _plan(self, limit: int) -> list[Record]:
        records = []
        for topic in [self.names.control, *self.event_topics]:
            for number in range(self.kafka.topics[topic]):
                partition = Partition(topic, number)
                found = self.kafka.records(partition, self.offsets.get(partition, 0), limit)
                if found:
                    self.offsets[partition] = found[-1].offset + 1
                records += found
        return records

    def _row(self, record: Record) -> Row:
        control = record.topic == self.names.control
        return Row(
            record.topic,
            record.partition,
            record.offset,
            record.timestamp_ms,
            "" if control else topic_of(record, self.domain.topic_by) or "",
            zlib.crc32(record.value) if record.value is not None else 0,
            (record.value or b"") if control else None,
        )

    def _writes(self, effects: Effects) -> list[list[Write]]:
        """Streams of writes, each of which keeps its order."""
        streams: list[list[Write]] = [
            [(Partition(self.names.grants, 0), answer_key(a), encode_answer(a), ()) for a in effects.answers]
        ]
        for stamped in effects.stamps:
            at = Partition(self.names.stamps, stamped.partition)
            parts = encode_stamps(stamped, self.domain.max_part_bytes)
            streams.append([(at, None, part.value, part.headers) for part in parts])
        return streams

    def _interleaved(self, shards: Sequence[Sequence[Sequence[Write]]]) -> list[Write]:
        streams = [list(stream) for streams in shards for stream in streams if stream]
        writes = []
        while streams:
            stream = self.rng.choice(streams)
            writes.append(stream.pop(0))
            if not stream:
                streams.remove(stream)
        return writes


def naive_pi(
    batches: Sequence[tuple[int, Sequence[Record]]], control: str, topic_by: str, expired: Mapping[int, int]
) -> list[PiItem]:
    """π from the records of each batch, by the words of the protocol page and with no code of the engine.

    `expired` says how many leases ran out at the start of each batch (by index): each takes a position.
    """
    ranks: dict[str, int] = {control: -1}
    g = 0
    items = []
    for index, (time_ms, records) in enumerate(batches):
        g += expired.get(index, 0)
        for topic in sorted({record.topic for record in records} - ranks.keys()):
            ranks[topic] = len(ranks) - 1
        keyed = []
        for record in records:
            before = [
                other.timestamp_ms
                for other in records
                if (other.topic, other.partition) == (record.topic, record.partition) and other.offset <= record.offset
            ]
            keyed.append((min(max(before), time_ms), ranks[record.topic], record.partition, record.offset, record))
        for *_, record in sorted(keyed, key=lambda key: key[:4]):
            name = "" if record.topic == control else topic_of(record, topic_by)
            if name is None:
                continue  # it belongs to no topic, and takes no position
            g += 1
            items.append(PiItem(g, name, Partition(record.topic, record.partition), record.offset, record.value))
    return items
