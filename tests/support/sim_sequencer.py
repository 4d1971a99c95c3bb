"""The sequencer job over SimKafka: looks, batches cut by them, the engine, the wire codec, crashes between writes."""

import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from reference import Logged, reference_order
from sim_kafka import SimKafka

from totalorder.sequencer.batch import Batch, Row
from totalorder.sequencer.codec import encode_stamps
from totalorder.sequencer.control import Ended, Grant, Retire, answer_key, encode_answer, encode_request
from totalorder.sequencer.engine import Effects, EngineConfig, State, initial_state, step
from totalorder.sequencer.names import DomainTopics
from totalorder.sequencer.stamps import KafkaTopic, Source
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


@dataclass(frozen=True)
class Look:
    """The ends of all partitions as one look found them, each at the moment at which it was asked for."""

    ends: dict[Partition, int]
    asked: dict[Partition, int]
    end: int
    """The moment at which the last answer was there."""


@dataclass(frozen=True)
class Cut:
    """What the write-ahead log has of a batch, and the records themselves, slice by slice."""

    number: int
    time_ms: int
    topic_order: tuple[str, ...]
    slices: list[list[Record]]


@dataclass
class PiItem:
    """One position of π as the engine made it, told by the records of its batch and not by the stamps."""

    g: int
    topic: str
    partition: Partition
    offset: int
    value: bytes | None

    @property
    def place(self) -> tuple[Source, int]:
        """Where the record is, whichever topic has its name now."""
        return self.partition.source, self.offset


@dataclass
class SimSequencer:
    """`look` notes the ends; `run` makes a batch of what has come, or, killed after a part of its output, repeats it.

    A batch takes whole slices. Of one that alone is too much it takes a part, and the next batch begins with the rest.
    """

    kafka: SimKafka
    domain: Domain
    event_topics: list[str]
    rng: random.Random
    time_ms: int = 1_000_000
    states: list[State] = field(default_factory=list)
    offsets: dict[Partition, int] = field(default_factory=dict)
    batches: list[Cut] = field(default_factory=list)
    """Every committed batch."""
    topic_order: tuple[str, ...] = ()
    looks: list[Look] = field(default_factory=list)
    """Those that have something that is in no batch yet."""
    remembered: list[Look] = field(default_factory=list)
    """All of them, but for those that a process had in memory when it died."""
    meanwhile: Callable[[], None] = lambda: None
    """What others do while a look is under way."""
    answers: list[Grant | Ended] = field(default_factory=list)
    """All that changed a subscription, whatever became of the log of grants."""
    ids: dict[str, str] = field(default_factory=dict)
    """Kafka's ids of the event topics that are read."""
    planned: Cut | None = None
    """The write-ahead log: a batch that was begun and not committed runs again as it was."""

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

    def retire(self) -> None:
        """Asks for the end of each topic that Kafka has no longer, and reads what has its name now."""
        for topic in self.event_topics:
            former, present = self.ids.get(topic, ""), self.kafka.ids.get(topic, "")
            if former != present:
                self.ids[topic] = present
            if former not in ("", present):
                ends = [end for look in self.remembered for end in look.ends.items()]
                seen: dict[int, int] = {}
                for partition, end in ends:
                    if (partition.topic, partition.topic_id) == (topic, former):
                        seen[partition.number] = max(end, seen.get(partition.number, 0))
                request = Retire(id="job", nonce="n", topic=topic, topic_id=former, seen=seen)
                self.kafka.append(Partition(self.names.control, 0), value=encode_request(request))

    def look(self) -> None:
        """Asks for the end of one partition after the other. A look at which nothing had moved tells nothing."""
        asked, ends = {}, {}
        topics = [self.names.control, *self.event_topics]
        partitions = [
            Partition(topic, number, self.kafka.ids[topic])
            for topic in topics
            for number in range(self.kafka.topics.get(topic, 0))
        ]
        for partition in self.rng.sample(partitions, len(partitions)):
            self.meanwhile()
            asked[partition], ends[partition] = self.kafka.moment, self.kafka.end(partition)
        if not self.remembered or self.remembered[-1].ends != ends:
            self.looks.append(Look(ends, asked, self.kafka.moment))
            self.remembered.append(self.looks[-1])

    def run(self, *, limit: int = 10**9, crash_after: int | None = None) -> int:
        """One batch of at most `limit` records; with `crash_after`, only that many writes of it."""
        if self.planned is None:
            self.look()
            self.planned = self._plan(limit)
            if self.planned is None:
                return 0
        cut = self.planned
        rows = [self._row(record, slice_) for slice_, records in enumerate(cut.slices) for record in records]
        self.rng.shuffle(rows)
        batch = Batch.of(cut.time_ms, rows, cut=cut.number, topic_order=cut.topic_order)
        results = [step(state, batch, {}) for state in self.states]
        writes = self._interleaved([self._writes(effects) for _, effects in results])
        for partition, key, value, headers in writes[:crash_after]:
            self.kafka.append(partition, key=key, value=value, headers=headers, timestamp_ms=cut.time_ms)
        if crash_after is not None:
            if self.rng.random() < 0.5:
                self._forget()
            return len(writes)
        self.states = [state for state, _ in results]
        self.batches.append(cut)
        self.answers += [answer for _, effects in results for answer in effects.answers if isinstance(answer, LINKS)]
        self.planned = None
        return len(writes)

    def _forget(self) -> None:
        """The process that looked is gone, and so are its looks that were not planned yet."""
        self.remembered = [look for look in self.remembered if look not in self.looks]
        self.looks.clear()

    def _plan(self, limit: int) -> Cut | None:
        slices: list[list[Record]] = []
        while self.looks:
            found, room = self._slice(self.looks[0]), limit - sum(map(len, slices))
            if len(found) > room:
                if not slices:
                    slices.append(self._part(found, room))
                break
            slices.append(found)
            self.offsets |= self.looks.pop(0).ends
        if not any(slices):
            return None
        return Cut(len(self.batches) + 1, self.time_ms, self.topic_order, slices)

    def _slice(self, look: Look) -> list[Record]:
        """What it has and no batch yet."""
        found = []
        for partition, end in look.ends.items():
            begin = self.offsets.get(partition, 0)
            records = self.kafka.records(partition, begin, end - begin)
            found += [record for record in records if record.offset < end]
        return found

    def _part(self, records: list[Record], size: int) -> list[Record]:
        """So many of a slice's records, of each partition the first ones."""
        left: dict[Partition, list[Record]] = {}
        for record in records:
            left.setdefault(record.at, []).append(record)
        part = []
        for _ in range(size):
            partition = self.rng.choice([partition for partition, queue in left.items() if queue])
            part.append(left[partition].pop(0))
            self.offsets[partition] = part[-1].offset + 1
        return part

    def _row(self, record: Record, slice_: int) -> Row:
        control = record.topic == self.names.control
        return Row(
            record.topic,
            record.partition,
            record.offset,
            record.timestamp_ms,
            "" if control else topic_of(record, self.domain.topic_by) or "",
            zlib.crc32(record.value) if record.value is not None else 0,
            (record.value or b"") if control else None,
            slice_,
            record.topic_id,
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


def naive_pi(batches: Sequence[Cut], control: str, topic_by: str, expired: Mapping[int, int]) -> list[PiItem]:
    """π from the records of each batch, by the words of the protocol page and with no code of the engine.

    `expired` says how many leases ran out at the start of each batch (by index): each takes a position.
    """
    ranks: dict[KafkaTopic, int] = {}
    g = 0
    items = []
    for index, cut in enumerate(batches):
        g += expired.get(index, 0)
        batch = {
            Logged(record.topic, record.partition, record.offset, record.timestamp_ms, slice_, record.topic_id): record
            for slice_, records in enumerate(cut.slices)
            for record in records
        }
        topics = {KafkaTopic(record.topic, record.topic_id) for record in batch.values() if record.topic != control}
        for topic in sorted(topics - ranks.keys()):
            ranks[topic] = len(ranks)
        for place in reference_order(list(batch), time_ms=cut.time_ms, topic_order=cut.topic_order, ranks=ranks):
            record = batch[place]
            name = "" if record.topic == control else topic_of(record, topic_by)
            if name is None:
                continue  # it belongs to no topic, and takes no position
            g += 1
            items.append(PiItem(g, name, record.at, record.offset, record.value))
    return items
