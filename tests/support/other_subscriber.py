"""A subscriber that was written from docs/formats.md and docs/protocol.md alone: it imports nothing of totalorder.

It stands for another release beside ours, and for a client in another language. At each step it reads the domain's
topics anew, from their beginnings, and it serves domains by Kafka topic with `min_subscriptions = 1`, in which g is the
order: slow and short. To all that it writes it adds what a later release might: a header and keys that nobody knows.
"""

import json
import time
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

import pyarrow as pa
from formats_reader import digest_of, in_order, join_parts, partition_of, read_part, written
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

LATER = {"later": [1, {"release": None}]}
HEADERS = [("later", b"\xff release")]
WAIT_S = 60.0
Object = dict[str, Any]


class Replaced(Exception):
    """Another process of the id was granted."""


class Taken(NamedTuple):
    """What was handed out."""

    kafka_topic: str
    topic_id: str
    partition: int
    offset: int
    n: int
    g: int
    tag: str | None
    value: bytes | None


class Batch(NamedTuple):
    """A whole batch of a stamps partition, and the offset behind its last part."""

    content: Object
    end: int


class OtherSubscriber:
    """One process of an id. Events are handed out by `take`, and acknowledged by `ack`."""

    def __init__(self, servers: str, *, domain: str, id_: str, topics: Iterable[str], nonce: str) -> None:
        self._domain, self._id, self._topics, self._nonce = domain, id_, sorted(topics), nonce
        self._consumer = KafkaConsumer(bootstrap_servers=servers, isolation_level="read_committed")
        self._producer = KafkaProducer(bootstrap_servers=servers, acks="all")
        self._taken: list[Taken] = []
        self._told = 0
        """How many of them have receipts."""
        self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()
        self._producer.close()

    # --- Kafka --------------------------------------------------------------------------------------------------------

    def _own(self, kind: str) -> str:
        return f"{self._domain}.{kind}"

    def _partitions(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for number in sorted(self._consumer.partitions_for_topic(topic))]

    def _records(self, kind: str) -> list[Any]:
        """All of one of the domain's topics, to its present end, by partition."""
        parts = self._partitions(self._own(kind))
        self._consumer.assign(parts)
        self._consumer.seek_to_beginning(*parts)
        ends = self._consumer.end_offsets(parts)
        found = []
        while any(self._consumer.position(part) < end for part, end in ends.items()):
            found += [record for records in self._consumer.poll(timeout_ms=100).values() for record in records]
        return sorted(found, key=lambda record: (record.partition, record.offset))

    def _send(self, kind: str, value: bytes, *, key: str, partition: int = 0, headers: Iterable[Any] = ()) -> None:
        sent = self._producer.send(
            self._own(kind), value=value, key=key.encode(), partition=partition, headers=[*headers, *HEADERS]
        )
        sent.get(WAIT_S)

    def _answers(self) -> list[Object]:
        found = [json.loads(record.value) for record in self._records("grants")]
        assert all(answer["v"] == 2 for answer in found)
        return found

    # --- the beginning ------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        ends = self._consumer.end_offsets(self._partitions(self._own("stamps")))
        generation = 1 + max((a["generation"] for a in self._answers() if a["id"] == self._id), default=0)
        request = {
            "v": 1,
            "kind": "subscribe",
            "id": self._id,
            "generation": generation,
            "nonce": self._nonce,
            "topics": self._topics,
            "lease_s": 0,
            "stamps_ends": {str(part.partition): end for part, end in ends.items()},
        }
        self._send("control", written(request, is_utf8=True).encode(), key=self._id)
        self.grant = self._granted(generation)
        self._needed = {partition_of(name, self.grant["stamps_partitions"]) for name in self._topics}
        saves = list(self._saves().values())
        self._former_through = self._promised = max((one["delivered_through"] for one in saves), default=0)
        newest = max(saves, key=lambda one: (one["generation"], one["g"], one["switched_g"]), default=None)
        self._position = newest if newest is not None else self._at_grant()
        self._changes = [*self._position["pending"], self.grant]
        self._reached: int = self._position["g"]

    def _granted(self, generation: int) -> Object:
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            for answer in self._answers():
                if (answer["id"], answer["nonce"]) == (self._id, self._nonce):
                    assert (answer["kind"], answer["generation"]) == ("grant", generation), answer
                    assert (answer["topic_by"], answer["min_subscriptions"]) == ("topic", 1)
                    return answer
        raise AssertionError("no grant came")

    def _saves(self) -> dict[str, Object]:
        """By key what is saved of the id."""
        found: dict[str, Object] = {}
        for record in self._records("positions"):
            key = record.key.decode()
            if key.startswith(f"{self._id}/"):
                found.pop(key, None)
                if record.value is not None:
                    found[key] = json.loads(record.value)
                    assert found[key]["v"] == 3
        return found

    def _at_grant(self) -> Object:
        grant = self.grant
        ends = {int(number): end for number, end in grant["stamps_ends"].items()}
        return {
            "in_force": grant["generation"],
            "switched_g": grant["g"],
            "g": grant["g"],
            "pending": [],
            "topics": sorted([grant["ids"][name], name, grant["clock"][name]] for name in grant["topics"]),
            "sources": grant["next_offsets"],
            "stamps": [[part, ends.get(part, 0), grant["batch"] - 1, ""] for part in sorted(self._needed)],
            **{name: grant[name] for name in ("stamps_partitions", "min_subscriptions", "topic_by")},
        }

    # --- delivery -----------------------------------------------------------------------------------------------------

    def take(self, count: int) -> list[Taken]:
        """The next events of the order. Replaced where another process was granted before they are handed out."""
        until = time.monotonic() + WAIT_S
        while len(owed := self._owed()) < count:
            self._require_held()
            assert time.monotonic() < until, f"{len(owed)} of {count} events came"
        self._save(promised=owed[count - 1]["g"])
        self._require_held()  # behind the promise
        found = [self._read(row) for row in owed[:count]]
        self._reached = found[-1].g
        self._taken += found
        return found

    def _require_held(self) -> None:
        if any(
            answer["id"] == self._id and answer["generation"] > self.grant["generation"] for answer in self._answers()
        ):
            raise Replaced

    def _owed(self) -> list[Object]:
        """Rows behind what was handed out, in the order, as far as all partitions of the set tell it."""
        batches = self._batches()
        horizon = min(max(batches[part], default=0) for part in self._needed)
        found = [
            row | {"name": batch.content["names"][row["topic"]], "at": batch.content["sources"][row["source"]]}
            for part in self._needed
            for number, batch in batches[part].items()
            if number <= horizon
            for row in batch.content["rows"]
        ]
        mine = [row for row in found if row["name"] in self._topics and row["g"] > self._reached]
        return sorted(mine, key=lambda row: row["g"])

    def _batches(self) -> dict[int, dict[int, Batch]]:
        """By stamps partition and number, what is whole; each goes on from the one before."""
        parts: dict[tuple[int, int], list[Object]] = {}
        found: dict[int, dict[int, Batch]] = {part: {} for part in self._needed}
        for record in self._records("stamps"):
            headers = dict(record.headers)
            assert (headers["kind"], headers["version"]) == (b"stamps", b"4")
            number, count = int(headers["batch"]), int(headers["parts"])
            begun = parts.setdefault((record.partition, number), [])
            assert len(begun) == int(headers["part"]), "no job died in the midst of a batch"
            begun.append(read_part(record.value))
            if len(begun) == count and record.partition in found:
                whole, before = join_parts(begun), found[record.partition].get(number - 1)
                assert digest_of(whole) == whole["digest"]
                assert before is None or before.content["digest"] == whole["previous_digest"]
                found[record.partition][number] = Batch(whole, record.offset + 1)
        return found

    def _read(self, row: Mapping[str, Any]) -> Taken:
        """The event of a row."""
        topic, topic_id, partition, _ = row["at"]
        at = TopicPartition(topic, partition)
        self._consumer.assign([at])
        self._consumer.seek(at, row["offset"])
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            for record in self._consumer.poll(timeout_ms=100).get(at, ()):
                assert record.offset == row["offset"], "the event is gone"
                assert row["crc"] == (0 if record.value is None else zlib.crc32(record.value))
                tag = "redelivered" if row["g"] <= self._former_through else None
                return Taken(topic, topic_id, partition, row["offset"], row["n"], row["g"], tag, record.value)
        raise AssertionError(f"{at} was not read")

    # --- what it says -------------------------------------------------------------------------------------------------

    def ack(self, event: Taken) -> None:
        """Everything through this event is done with: told, then saved."""
        self._tell()
        position, done = self._position, [one for one in self._taken if one.g <= event.g]
        sources = {tuple(source): offset for *source, offset in position["sources"]}
        counts = {name: n for _, name, n in position["topics"]}
        for one in done:
            sources[one.kafka_topic, one.topic_id, one.partition] = one.offset + 1
            counts[one.kafka_topic] = one.n
        marks = {part: [part, *rest] for part, *rest in position["stamps"]}
        for part, batches in self._batches().items():
            passed = [batch for batch in batches.values() if batch.content["g"] <= event.g]
            if passed and passed[-1].content["batch"] > marks[part][2]:
                marks[part] = [part, passed[-1].end, passed[-1].content["batch"], passed[-1].content["digest"]]
        in_force = [(change["generation"], change["g"]) for change in self._changes if change["g"] <= event.g]
        generation, switched_g = max([(position["in_force"], position["switched_g"]), *in_force])
        self._position = position | {
            "g": event.g,
            "in_force": generation,
            "switched_g": switched_g,
            "topics": [[topic, name, counts[name]] for topic, name, _ in position["topics"]],
            "sources": sorted([*source, offset] for source, offset in sources.items()),
            "stamps": [marks[part] for part in sorted(marks)],
        }
        self._save(promised=self._promised)

    def _save(self, *, promised: int) -> None:
        self._promised = max(self._promised, promised)
        pending = [change for change in self._changes if change["g"] > self._position["g"]]
        record = self._position | {
            "v": 3,
            "id": self._id,
            "nonce": self._nonce,
            "generation": self.grant["generation"],
            "delivered_through": self._promised,
            "pending": pending,
            **LATER,
        }
        partition = partition_of(self._id, self.grant["stamps_partitions"])
        key = f"{self._id}/{self.grant['generation']}"
        self._send("positions", written(in_order(record)).encode(), key=key, partition=partition)

    def _tell(self) -> None:
        """Receipts of all that was handed out and not told yet."""
        rows = self._taken[self._told :]
        if not rows:
            return
        topics = sorted({row.kafka_topic for row in rows})
        sources = sorted({row[:3] for row in rows})
        head = {"domain": self._domain, "id": self._id, "nonce": self._nonce, "topics": topics, "sources": sources}
        topic, source = [topics.index(row.kafka_topic) for row in rows], [sources.index(row[:3]) for row in rows]
        columns = {
            "generation": (pa.int64(), _steps([self.grant["generation"]] * len(rows))),
            "sequence": (pa.int64(), _steps([self._told + 1 + at for at in range(len(rows))])),
            "topic": (pa.int32(), topic),
            "source": (pa.int32(), source),
            "offset": (pa.int64(), _steps([row.offset for row in rows], source)),
            "n": (pa.int64(), _steps([row.n for row in rows], topic)),
            "g": (pa.int64(), _steps([row.g for row in rows])),
            "redelivered": (pa.bool_(), [row.tag is not None for row in rows]),
            "delivered_ms": (pa.int64(), _steps([int(time.time() * 1000)] * len(rows))),
        }
        schema = pa.schema(
            [pa.field(name, kind, nullable=False) for name, (kind, _) in columns.items()],
            metadata={"totalorder": json.dumps(head | LATER)},
        )
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as stream:
            arrays = [pa.array(values, kind) for kind, values in columns.values()]
            stream.write_batch(pa.record_batch(arrays, schema=schema))
        value = pa.compress(sink.getvalue(), codec="zstd", asbytes=True)
        partition = partition_of(self._id, self.grant["stamps_partitions"])
        headers = [("kind", b"receipts"), ("version", b"2")]
        self._send("receipts", value, key=self._id, partition=partition, headers=headers)
        self._told = len(self._taken)


def _steps(values: list[int], groups: list[int] | None = None) -> list[int]:
    """Each value minus the one before it in its group."""
    before: dict[int, int] = {}
    found = []
    for value, group in zip(values, groups or [0] * len(values), strict=True):
        found.append(value - before.get(group, 0))
        before[group] = value
    return found
