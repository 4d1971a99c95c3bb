"""The seam between the subscriber and a Kafka client.

Deliberately not in it: consumer groups, commits, automatic offsets. The subscriber says what is read from where.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import repeat
from typing import NamedTuple, Protocol, Self

from totalorder.sequencer.wire.stamps import Source


class Partition(NamedTuple):
    """A partition of the Kafka topic with this name and Kafka's id; without an id, of whichever has the name."""

    topic: str
    number: int
    topic_id: str = ""

    @classmethod
    def of(cls, source: Source) -> Self:
        """An event partition."""
        return cls(source.topic, source.partition, source.topic_id)

    @property
    def source(self) -> Source:
        """The event partition that it is."""
        return Source(self.topic, self.topic_id, self.number)


class Record(NamedTuple):
    """A Kafka record."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int
    topic_id: str = ""
    """As in the Partition that was to be read."""

    @property
    def at(self) -> Partition:
        """The partition, as it was to be read."""
        return Partition(self.topic, self.partition, self.topic_id)


def records_of(at: tuple[str, int], topic_id: str, *columns: Iterable[object]) -> list[Record]:
    """Records of one partition by the columns from `offset` to `timestamp_ms`; they are all of a length.

    Of many in half the time of Record(...), which calls Python for each.
    """
    topic, partition = at
    rows = zip(repeat(topic), repeat(partition), *columns, repeat(topic_id), strict=False)
    return list(map(tuple.__new__, repeat(Record), rows))


class Transport(Protocol):
    """What the subscriber needs of a Kafka client. Used by one thread.

    Reads are of committed records only. Every method is bounded in time and raises BrokerUnavailable when no broker
    answers for longer than the transport was told to bear. `poll` raises EventsLost when a record that was asked for
    is no longer there; but of a partition that was asked for by its topic's id, nothing once Kafka has the topic no
    longer: `vanished` tells that.
    """

    def partitions(self, topic: str, *, once: bool = False) -> int:
        """How many partitions a topic has; 0 when there is no such topic. `once`: as of `end_offsets`."""
        ...

    def topic_id(self, topic: str) -> str:
        """Kafka's id of a topic: one that is created again under the name has another. Empty without the topic."""
        ...

    def cleanup(self, topic: str) -> frozenset[str] | None:
        """How Kafka cleans a topic that is there, "delete" or "compact" or both; None where this client may not see."""
        ...

    def beginning_offsets(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """The offset of the first record that is still there, for each partition."""
        ...

    def end_offsets(self, partitions: Collection[Partition], *, once: bool = False) -> dict[Partition, int]:
        """The offset behind the last readable record of each partition.

        `once`: BrokerUnavailable when there is no answer within some seconds, instead of as long as an outage is borne.
        """
        ...

    def read(self, partition: Partition, offset: int) -> None:
        """Reads a partition from `offset` on: assigns it, or moves it when it is read already. It is not paused.

        With an id records of that very topic come and of no other, whatever is made anew under its name.
        """
        ...

    def stop(self, partition: Partition) -> None:
        """Reads a partition no longer; nothing happens when it is not read."""
        ...

    def pause(self, partition: Partition) -> None:
        """Returns no more records of a partition until `resume`."""
        ...

    def resume(self, partition: Partition) -> None:
        """Ends `pause`."""
        ...

    def position(self, partition: Partition) -> int:
        """The offset from which a partition that is read will be read next, gaps at its end included."""
        ...

    def poll(self, timeout_s: float) -> list[Record]:
        """Records of the partitions that are read, in offset order within each; waits at most `timeout_s` for some.

        The list is the caller's, who empties it.
        """
        ...

    def vanished(self) -> list[Partition]:
        """What was to be read by an id that Kafka has no longer, or not under this name: it is read no longer. Each is
        told once, behind the last of its records.
        """
        ...

    def send(
        self,
        partition: Partition,
        key: bytes | None,
        value: bytes | None,
        *,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timeout_s: float | None = None,
    ) -> int:
        """Writes a record; it is durable when this returns its offset. kafka-python writes no header that is null.

        `timeout_s`: wait no longer than this, instead of as long as an outage is borne. After BrokerUnavailable the
        record may have been written, or be written yet.
        """
        ...

    @property
    def silent_s(self) -> float:
        """For how long no broker has answered, or taken what is written; 0 while they do."""
        ...

    def close(self) -> None:
        """Lets go of connections and threads; again: nothing."""
        ...
