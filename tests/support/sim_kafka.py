"""Kafka in memory, for simulations: logs, and a Transport that polls them as unfairly as a seed says."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from totalorder.errors import Error, EventsLost
from totalorder.subscriber.transport import Partition, Record


@dataclass
class SimKafka:
    """Topics with partitions with records. An offset may be skipped (a transaction marker) or removed (retention).

    A Partition without an id is that of the present topic of its name; with one, it may be of a topic that is gone.
    """

    topics: dict[str, int] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    policies: dict[str, str] = field(default_factory=dict)
    """cleanup.policy of topics, where it is not delete; empty: ACLs hide it."""
    made: int = 0
    """How many topics were created."""
    logs: dict[Partition, list[Record]] = field(default_factory=dict)
    ends: dict[Partition, int] = field(default_factory=dict)
    begins: dict[Partition, int] = field(default_factory=dict)
    held: dict[Partition, int] = field(default_factory=dict)
    """Where an open transaction begins: what lies behind is not committed, or not to be seen before it is."""
    moment: int = 0
    """Real time: how many records were written."""
    written: dict[tuple[Partition, int], int] = field(default_factory=dict)
    """(partition with its id, offset) → the moment that began with this record."""
    history: dict[Partition, list[Record]] = field(default_factory=dict)
    """Of each partition, with its id: all that was ever to be read, also what is gone by now."""

    def create(self, topic: str, partitions: int) -> None:
        """A topic, or more partitions of it."""
        self.topics[topic] = partitions
        if topic not in self.ids:
            self.made += 1
            self.ids[topic] = f"id{self.made}"

    def delete(self, topic: str) -> None:
        """A topic with all that it has; another one may be created under its name."""
        del self.topics[topic], self.ids[topic]
        for known in (self.logs, self.ends, self.begins, self.held):
            for partition in [partition for partition in known if partition.topic == topic]:
                del known[partition]

    def has(self, partition: Partition) -> bool:
        """Whether the topic is there, and is the one of the id."""
        return partition.topic in self.ids and partition.topic_id in ("", self.ids[partition.topic])

    def begin(self, partition: Partition) -> int:
        """The first offset that may be there."""
        return self.begins.get(_named(partition), 0) if self.has(partition) else 0

    def end(self, partition: Partition) -> int:
        """The next offset, as readers of committed records see it."""
        named = _named(partition)
        return self.held.get(named, self.ends.get(named, 0)) if self.has(partition) else 0

    def append(
        self,
        partition: Partition,
        *,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        timestamp_ms: int = 0,
    ) -> int:
        """Writes a record; returns its offset."""
        assert partition.number < self.topics.get(partition.topic, 0), f"there is no {partition}"
        offset = self.ends.get(partition, 0)
        at = (partition.topic, partition.number, offset)
        record = Record(*at, key, value, tuple(headers), timestamp_ms, self.ids[partition.topic])
        self.logs.setdefault(partition, []).append(record)
        self.ends[partition] = offset + 1
        self.moment += 1
        self.written[record.at, offset] = self.moment
        self.history.setdefault(record.at, []).append(record)
        return offset

    def hold(self, partition: Partition) -> None:
        """A transaction begins, if none is open."""
        self.held.setdefault(partition, self.ends.get(partition, 0))

    def release(self, partition: Partition, aborted: Callable[[Record], bool]) -> None:
        """It ends, with a marker; some of what was written meanwhile is aborted, the rest is there from now on."""
        begin = self.held.pop(partition)
        kept = [record for record in self.logs.get(partition, []) if record.offset < begin or not aborted(record)]
        self.logs[partition] = kept
        full = partition._replace(topic_id=self.ids[partition.topic])
        before = [record for record in self.history.get(full, []) if record.offset < begin]
        self.history[full] = [*before, *(record for record in kept if record.offset >= begin)]
        self.moment += 1
        self.written |= {(record.at, record.offset): self.moment for record in kept if record.offset >= begin}
        self.skip(partition)

    def skip(self, partition: Partition, count: int = 1) -> None:
        """Offsets that hold no record (markers, aborted records)."""
        self.ends[partition] = self.ends.get(partition, 0) + count

    def trim(self, partition: Partition, offset: int) -> None:
        """Retention removes everything before `offset`."""
        self.begins[partition] = max(self.begins.get(partition, 0), offset)
        self.logs[partition] = [record for record in self.logs.get(partition, []) if record.offset >= offset]

    def compact(self, partition: Partition, before: int | None = None) -> None:
        """Keeps the last record of each key, of those below an offset; what lies behind is too young."""
        log = self.logs.get(partition, [])
        old = [record for record in log if before is None or record.offset < before]
        last = {record.key: record.offset for record in old}
        kept = [record for record in old if last[record.key] == record.offset]
        self.logs[partition] = [*kept, *log[len(old) :]]

    def ever(self, partition: Partition) -> list[Record]:
        """All that was ever to be read of a partition; without an id, of the present topic of the name."""
        id_ = partition.topic_id or self.ids.get(partition.topic, "")
        return self.history.get(partition._replace(topic_id=id_), [])

    def records(self, partition: Partition, offset: int, count: int) -> list[Record]:
        """Up to `count` records from `offset` on."""
        log = self.logs.get(_named(partition), []) if self.has(partition) else []
        end = self.end(partition)
        low, high = 0, len(log)
        while low < high:
            middle = (low + high) // 2
            if log[middle].offset < offset:
                low = middle + 1
            else:
                high = middle
        found = log[low : low + count]
        while found and found[-1].offset >= end:
            found.pop()
        return found


def _named(partition: Partition) -> Partition:
    return partition._replace(topic_id="")


class SimCrash(BaseException):
    """The process is killed here."""


class SimTransport:
    """A Transport. Each poll serves a random choice of partitions, a random number of records of each.

    `on_poll` runs the rest of the world before each poll, so that one that waits is answered. With `crash_in` = k the
    k-th poll or send from here on kills the process, a send before or after the record is written. `refused` holds the
    errors that sends to some topics raise; `sent` are the topics of all others, in order.
    """

    def __init__(
        self,
        kafka: SimKafka,
        rng: random.Random,
        on_poll: Callable[[float], None],
        *,
        most: int = 4,
        fair: bool = False,
    ) -> None:
        self.kafka, self.rng, self.on_poll = kafka, rng, on_poll
        self.most, self.fair = most, fair
        self.positions: dict[Partition, int] = {}
        self.paused: set[Partition] = set()
        self.gone: list[Partition] = []
        self.closed = False
        self.crash_in: int | None = None
        self.refused: Mapping[str, Error] = {}
        self.silent_s = 0.0
        self.sent: list[str] = []

    def partitions(self, topic: str, *, once: bool = False) -> int:
        return self.kafka.topics.get(topic, 0)

    def topic_id(self, topic: str) -> str:
        return self.kafka.ids.get(topic, "")

    def cleanup(self, topic: str) -> frozenset[str] | None:
        policy = self.kafka.policies.get(topic, "delete")
        return frozenset(policy.split(",")) if policy else None

    def beginning_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return {partition: self.kafka.begin(partition) for partition in partitions}

    def end_offsets(self, partitions: Iterable[Partition], *, once: bool = False) -> dict[Partition, int]:
        return {partition: self.kafka.end(partition) for partition in partitions}

    def read(self, partition: Partition, offset: int) -> None:
        self.positions[partition] = offset
        self.paused.discard(partition)

    def stop(self, partition: Partition) -> None:
        self.positions.pop(partition, None)
        self.paused.discard(partition)

    def pause(self, partition: Partition) -> None:
        assert partition in self.positions, f"{partition} is paused and not read"
        self.paused.add(partition)

    def resume(self, partition: Partition) -> None:
        assert partition in self.positions, f"{partition} is resumed and not read"
        self.paused.discard(partition)

    def position(self, partition: Partition) -> int:
        return self.positions[partition]

    def poll(self, timeout_s: float) -> list[Record]:
        assert not self.closed
        if self._is_killed():
            raise SimCrash
        self.on_poll(timeout_s)
        found: list[Record] = []
        for partition in [partition for partition in self.positions if not self.kafka.has(partition)]:
            if partition.topic_id:
                self.stop(partition)
                self.gone.append(partition)
        partitions = [partition for partition in self.positions if partition not in self.paused]
        for partition in partitions:
            self._check_range(partition)
        self.rng.shuffle(partitions)
        for partition in partitions:
            if self.fair or self.rng.random() < 0.5:
                found += self._take(partition)
        return found

    def _check_range(self, partition: Partition) -> None:
        position = self.positions[partition]
        begin, end = self.kafka.begin(partition), self.kafka.end(partition)
        if not begin <= position <= end:
            gone = {partition.source: begin} if position < begin else None
            raise EventsLost(f"{partition}@{position} is not within {begin}..{end}", gone=gone)

    def _take(self, partition: Partition) -> list[Record]:
        position, end = self.positions[partition], self.kafka.end(partition)
        count = self.most if self.fair else self.rng.randint(1, self.most)
        records = self.kafka.records(partition, position, count)
        # A consumer steps over a gap at the end too.
        self.positions[partition] = records[-1].offset + 1 if len(records) == count else end
        return [record._replace(topic_id=partition.topic_id) for record in records]

    def vanished(self) -> list[Partition]:
        found, self.gone = self.gone, []
        return found

    def at_ends(self) -> bool:
        """Whether every partition that is read is read to its end."""
        return all(position >= self.kafka.end(at) for at, position in self.positions.items())

    def send(
        self,
        partition: Partition,
        key: bytes | None,
        value: bytes | None,
        *,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timeout_s: float | None = None,
    ) -> int:
        assert not self.closed
        if partition.topic in self.refused:
            raise self.refused[partition.topic]
        killed = self._is_killed()
        if killed and self.rng.random() < 0.5:
            raise SimCrash
        offset = self.kafka.append(partition, key=key, value=value, headers=headers)
        self.sent.append(partition.topic)
        if killed:
            raise SimCrash
        return offset

    def _is_killed(self) -> bool:
        if self.crash_in is not None:
            self.crash_in -= 1
        return self.crash_in == 0

    def close(self) -> None:
        self.closed = True
