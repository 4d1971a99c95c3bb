"""Topics that are read by Kafka's ids, through a consumer that asks for them by their names.

A topic that was deleted and created again gives its records to whoever asks by name, at the old one's offsets. So
Kafka's ids are asked for before a topic is read, and behind each fetch before its records count.
"""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, Protocol, Self

from totalorder.subscriber.transport import Partition

CERTAIN_S = 3.0
"""A broker may know of a topic later than another one: only what is missed for so long is gone."""
ASK_AGAIN_S = 0.2


class Place(NamedTuple):
    """A partition of whichever topic has the name; equal to a client's own pair of both."""

    topic: str
    partition: int

    @classmethod
    def of(cls, partition: Partition) -> Self:
        """Where a partition is read."""
        return cls(partition.topic, partition.number)


class Reading(Protocol):
    """A consumer, and what it reads by name."""

    @property
    def next(self) -> Mapping[Place, int]:
        """Of every partition that is read: the offset behind the last record that was returned."""
        ...

    def read(self, at: Place, offset: int) -> None:
        """From `offset` on, unpaused, be it read already or not."""
        ...

    def stop(self, at: Place) -> None:
        """Reads it no longer."""
        ...

    def pause(self, at: Place) -> None:
        """Returns nothing of it until `resume`."""
        ...

    def resume(self, at: Place) -> None:
        """Ends `pause`."""
        ...

    def is_paused(self, at: Place) -> bool:
        """Whether it is."""
        ...

    def renew(self) -> None:
        """Goes on with nothing that was fetched so far."""
        ...


class Identities:
    """What a consumer reads by id. `clock` gives seconds."""

    def __init__(self, reader: Reading, clock: Callable[[], float]) -> None:
        self._reader, self._clock = reader, clock
        self._ids: dict[str, str] = {}
        """By name, the id of the topic whose partitions the reader reads."""
        self._used: dict[str, str] = {}
        """By name, the id of what the present consumer has read. It may hold records of it that it was not asked for
        yet, and would give them for those of another topic of the name."""
        self._waiting: dict[Partition, int] = {}
        """Those that Kafka has yet to show, with the offset to read from."""
        self._paused: set[Partition] = set()
        """Of these."""
        self._missed_since: dict[Partition, float] = {}
        self._vanished: list[Partition] = []
        self._ask_at = 0.0

    def id_of(self, name: str) -> str:
        """Of a topic that is read; empty when it is read by its name alone."""
        return self._ids.get(name, "")

    @property
    def due(self) -> set[str]:
        """The names for which it is time to ask Kafka, since something waits for its ids."""
        return {at.topic for at in self._waiting} if self._clock() >= self._ask_at else set()

    @property
    def names(self) -> set[str]:
        """Of all that is read by id."""
        return {at.topic for at in self._reader.next} & self._ids.keys()

    def read(self, partition: Partition, offset: int) -> None:
        self._forget(partition)
        if self._ids.get(partition.topic) == partition.topic_id:
            self._reader.read(Place.of(partition), offset)
        else:
            self._waiting[partition] = offset
            self._ask_at = 0.0

    def read_again(self, partition: Partition, offset: int) -> None:
        """What was fetched from `offset` on does not count."""
        if partition in self._waiting:
            self._waiting[partition] = offset
        elif self._ids.get(partition.topic) == partition.topic_id:
            self._reader.read(Place.of(partition), offset)

    def stop(self, partition: Partition) -> None:
        self._forget(partition)
        if self._ids.get(partition.topic) == partition.topic_id:
            self._reader.stop(Place.of(partition))

    def pause(self, partition: Partition) -> None:
        if partition in self._waiting:
            self._paused.add(partition)
        elif self._ids.get(partition.topic) == partition.topic_id:
            self._reader.pause(Place.of(partition))

    def resume(self, partition: Partition) -> None:
        self._paused.discard(partition)
        if self._ids.get(partition.topic) == partition.topic_id:
            self._reader.resume(Place.of(partition))

    def vanished(self) -> list[Partition]:
        """Those that are gone; each is told once."""
        found, self._vanished = self._vanished, []
        return found

    def compare(self, names: Collection[str], present: Mapping[str, str]) -> None:
        """`present` are Kafka's ids of those of the topics that it has.

        What is read and is not the present topic waits, as does what is not there; what is there is read from now on.
        """
        for name in names:
            if name in self._ids and self._ids[name] != present.get(name):
                self._suspend(name)
        admitted = [at for at in self._waiting if at.topic in names and present.get(at.topic) == at.topic_id]
        if any(self._used.get(at.topic, at.topic_id) != at.topic_id for at in admitted):
            self._reader.renew()
            self._used = dict(self._ids)
        for partition in admitted:
            self._admit(partition)
        for partition in [at for at in self._waiting if at.topic in names]:
            since = self._missed_since.setdefault(partition, self._clock())
            if self._clock() - since >= CERTAIN_S:
                self._forget(partition)
                self._vanished.append(partition)
        # Of topics that are read Kafka is asked behind each fetch: that must not put off what waits for others.
        if all(at.topic in names for at in self._waiting):
            self._ask_at = self._clock() + ASK_AGAIN_S

    def _admit(self, partition: Partition) -> None:
        offset, is_paused = self._waiting[partition], partition in self._paused
        self._forget(partition)
        self._ids[partition.topic] = self._used[partition.topic] = partition.topic_id
        self._reader.read(Place.of(partition), offset)
        if is_paused:
            self._reader.pause(Place.of(partition))

    def _suspend(self, name: str) -> None:
        """What is read of a topic waits until it is certain that it is gone, or was not."""
        topic_id = self._ids.pop(name)
        for at in [at for at in self._reader.next if at.topic == name]:
            partition = Partition(at.topic, at.partition, topic_id)
            self._waiting[partition] = self._reader.next[at]
            if self._reader.is_paused(at):
                self._paused.add(partition)
            self._reader.stop(at)

    def _forget(self, partition: Partition) -> None:
        self._waiting.pop(partition, None)
        self._missed_since.pop(partition, None)
        self._paused.discard(partition)
