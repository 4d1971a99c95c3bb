"""Topics on a real broker of which it is known what every committed record is, and plans to read them."""

import random
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, Message, Producer

from totalorder.streaming.cut.chunk import Chunk, decode, encode
from totalorder.streaming.cut.ranges import Range, ReadPlan, SliceEnd
from totalorder.streaming.cut.reading import Verify, read
from totalorder.streaming.cut.records import Reader

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
FLUSH_S = 60
Place = tuple[str, int]


class Row(NamedTuple):
    """One record as a chunk tells it, independent of the chunk."""

    topic: str
    topic_id: str
    partition: int
    offset: int
    timestamp_ms: int
    crc: int
    slice: int
    name: str
    control: bytes | None


@dataclass
class World:
    """Writes records, and remembers the committed ones: offset, time, crc32, by topic and partition."""

    servers: str
    records: dict[Place, list[tuple[int, int, int]]] = field(default_factory=dict)
    ends: dict[Place, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._producers: dict[str, Any] = {}

    def write(self, codec: str, rows: Iterable[tuple[Place, bytes | None, int]], *, outcome: str = "plain") -> None:
        """Writes (place, value, time); `outcome`: "plain", "commit" or "abort", the latter two by a transaction."""
        producer = self._producer(codec, outcome)
        written: list[tuple[Place, int, int, int]] = []

        def note(error: KafkaError | None, message: Message) -> None:
            assert error is None, error
            value: bytes = message.value() or b""
            place = (str(message.topic()), int(message.partition() or 0))
            written.append((place, int(message.offset() or 0), message.timestamp()[1], zlib.crc32(value)))

        if outcome != "plain":
            producer.begin_transaction()
        for (topic, partition), value, time_ms in rows:
            producer.produce(topic, value, partition=partition, timestamp=time_ms, on_delivery=note)
        assert producer.flush(FLUSH_S) == 0
        if outcome == "commit":
            producer.commit_transaction(FLUSH_S)
        elif outcome == "abort":
            producer.abort_transaction(FLUSH_S)
        for place, offset, time_ms, crc in sorted(written):
            self.ends[place] = offset + 1 + (outcome != "plain")
            if outcome != "abort":
                self.records.setdefault(place, []).append((offset, time_ms, crc))

    def _producer(self, codec: str, outcome: str) -> Any:
        key = f"{codec}-{outcome != 'plain'}"
        if key not in self._producers:
            settings = {"bootstrap.servers": self.servers, "compression.type": codec, "linger.ms": 5, "log_level": 0}
            settings["queue.buffering.max.messages"] = 1_000_000
            if outcome != "plain":
                settings["transactional.id"] = f"{key}-{random.getrandbits(64)}"
            self._producers[key] = Producer({**settings, "message.max.bytes": 20_000_000})
            if outcome != "plain":
                self._producers[key].init_transactions(FLUSH_S)
        return self._producers[key]

    def expected(self, plan: ReadPlan) -> list[Row]:
        """What a plan must bring, with topic_by = "topic" and without control records."""
        rows = []
        for part in plan.ranges:
            for offset, time_ms, crc in self.records.get((part.topic, part.partition), []):
                if part.begin <= offset < part.end:
                    number = next(piece.slice for piece in part.slices if offset < piece.end)
                    rows.append(Row(part.topic, part.topic_id, part.partition, offset, time_ms, crc, number, "", None))
        return sorted(rows)


def whole(topic: str, partition: int, begin: int, end: int, *, topic_id: str = "id") -> Range:
    """A range of one slice."""
    slices = (SliceEnd(0, end),)
    return Range(topic=topic, topic_id=topic_id, partition=partition, begin=begin, end=end, slices=slices)


def plan_of(servers: str, ranges: Sequence[Range], **more: Any) -> ReadPlan:
    """A plan; `more` are fields of it."""
    given: Mapping[str, Any] = {
        "kafka": {},
        "control": "no.control",
        "topic_by": "topic",
        "cut": 7,
        "topic_order": ("b", "a"),
        "silence_s": 60.0,
    }
    return ReadPlan(bootstrap_servers=servers, ranges=tuple(ranges), **{**given, **more})


def chunks(plan: ReadPlan, reader: Reader | None = None, verify: Verify | None = None) -> list[Chunk]:
    """What reading gives, packed and unpacked."""
    return [decode(encode(chunk)) for chunk in read(plan, reader=reader, verify=verify)]


def rows_of(found: Iterable[Chunk]) -> list[Row]:
    """The records of chunks, sorted; of each chunk those of one source must be in order of offset."""
    rows = []
    for chunk in found:
        assert len(chunk)
        assert (chunk.cut, chunk.topic_order) == (7, ("b", "a"))
        columns = (chunk.source, chunk.offset, chunk.timestamp_ms, chunk.crc, chunk.slice, chunk.topic)
        for at, (source, *numbers, topic) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            name = chunk.names[topic] if topic >= 0 else ""
            topic_name, topic_id, partition = chunk.sources[source]
            rows.append(Row(topic_name, topic_id, partition, *numbers, name, chunk.control.get(at)))  # type: ignore[call-arg]
    assert len({row[:4] for row in rows}) == len(rows)
    return sorted(rows)
