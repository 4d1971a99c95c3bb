"""One process of a subscriber id in a simulated world: its life, and a transport at whose every call things happen."""

import random
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from greenlet import GreenletExit, greenlet
from sim_kafka import SimCrash, SimTransport

from totalorder.errors import BrokerUnavailable
from totalorder.sequencer.wire.stamps import Source
from totalorder.subscriber import Event, Lost, Subscriber
from totalorder.subscriber.transport import Partition, Record

if TYPE_CHECKING:
    from sim_world import World


Handing = TypeVar("Handing", Event, Event | Lost)


def polled(subscriber: Subscriber[Handing], rng: random.Random) -> list[Handing]:
    """What comes of one call: of `poll`, or of `poll_batch`."""
    timeout_s = rng.choice([0, 0.05])
    if rng.random() < 0.5:
        return list(subscriber.poll_batch(rng.randint(1, 5), timeout_s))
    event = subscriber.poll(timeout_s)
    return [] if event is None else [event]


@dataclass
class Handed:
    """An event that the application was handed, or what stands in its place, at a moment of the world."""

    at: int
    event: Event | Lost


@dataclass(eq=False)
class Process:
    """What a process did and saw; moments count the world's steps."""

    id: str
    nonce: str
    anew: bool
    save_interval_s: float
    receipts: bool
    skips: bool = field(default=False, init=False)
    """Whether it goes on without what is lost."""
    transport: "StormTransport" = field(repr=False)
    making: Subscriber[Event | Lost] | None = field(default=None, repr=False)
    """Its subscriber, also before it has begun and after it has ended."""
    subscriber: Subscriber[Event | Lost] | None = field(default=None, repr=False)
    run: greenlet | None = field(default=None, repr=False)
    idle: bool = True
    """Whether it is between two calls of its subscriber."""
    dead: bool = False
    kept: list[tuple[Mapping[int, int], Mapping[Source, int]]] = field(default_factory=list)
    """From where on the id needed stamps and events when the process was made, or asked how far it has to read
    positions: it goes on from one of those, though others of the id save later ones before it has."""
    asked_at: int = 0
    """When it sent the request that was granted, as far as it has come."""
    started_at: int = 0
    """When it had begun; 0 before."""
    known: set[int] = field(default_factory=set)
    """Generations that it had been granted when its call returned."""
    has_ended: bool = False
    """Whether it knows that it has unsubscribed."""
    connection: sqlite3.Connection | None = field(default=None, repr=False)
    """To the application's database, where that has its position."""
    committed: int = 0
    """The effects of so many of `handed` are there for certain."""
    undone: bool = False
    """Whether its last transaction came to nothing: the topics do not change before that is done again."""
    handed: list[Handed] = field(default_factory=list, repr=False)
    acking: list[tuple[int, int]] = field(default_factory=list)
    """(moment, count): from then on so many of `handed` may be acknowledged."""
    durable: list[tuple[int, int]] = field(default_factory=list)
    """(moment, count): by then so many of `handed` were acknowledged and saved for certain."""
    dropping_at: int = 0
    """When it began to give up what was owed; 0 if it did not."""
    dropped_at: int = 0
    """When it had."""
    drained: bool = False
    seen_g: int = 0
    """The largest g that it held ready for its application."""
    ended: str = ""

    @property
    def events(self) -> list[Event | Lost]:
        """What the application was handed."""
        return [handed.event for handed in self.handed]

    def note_ready(self) -> None:
        """Looks at what is ready for the application."""
        session = getattr(self.making, "_session", None)
        if session is not None:
            self.seen_g = max(self.seen_g, session.ready.max_g(len(session.ready)))


@dataclass(eq=False)
class Late:
    """What a process gave up waiting for, and may be written yet: before whatever it writes there later."""

    process: Process
    partition: Partition
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


class StormTransport(SimTransport):
    """At each call that a network is needed for others go on, the process may be killed, or Kafka is silent.

    `crash_in` = k kills the process at the k-th of these calls from here on.
    """

    def __init__(self, world: "World") -> None:
        super().__init__(world.kafka, world.rng, world.pass_time, most=3, fair=False)
        self.world = world
        self.process: Process | None = None
        self.silences = 0
        """How many calls Kafka did not answer."""
        self.noted: dict[Partition, int] = {}
        """Ends that the process may yet want to read from."""

    def _call(self, *, bears: bool = True) -> None:
        """Raises BrokerUnavailable for a call that is not answered: soon, or after as long as an outage is borne."""
        self._go_on()
        if not self.world.silent:
            return
        while bears and self.world.silent and self.rng.random() < 0.95:
            self.world.pass_time(1)
            self._go_on()
        if self.world.silent:
            self.silences += 1
            raise BrokerUnavailable("no broker")

    def _go_on(self) -> None:
        process = self.process
        assert process is not None
        if process.dead:
            raise GreenletExit
        process.note_ready()
        self.world.let_others()
        if process.dead:
            raise GreenletExit

    def _is_killed(self) -> bool:
        return False  # each call here looks for itself

    def _killed(self) -> bool:
        if self.crash_in is not None:
            self.crash_in -= 1
        return self.crash_in == 0

    def _die(self) -> None:
        assert self.process is not None
        self.process.dead = True
        raise SimCrash

    def partitions(self, topic: str, *, once: bool = False) -> int:
        self._call(bears=not once)
        if self._killed():
            self._die()
        return super().partitions(topic)

    def topic_id(self, topic: str) -> str:
        self._call()
        if self._killed():
            self._die()
        return super().topic_id(topic)

    def beginning_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        self._call()
        if self._killed():
            self._die()
        return super().beginning_offsets(partitions)

    def end_offsets(self, partitions: Iterable[Partition], *, once: bool = False) -> dict[Partition, int]:
        self._call(bears=not once)
        if self._killed():
            self._die()
        found = super().end_offsets(partitions)
        self.noted |= found
        process = self.process
        assert process is not None
        if not process.started_at and any(at.topic == self.world.names.positions for at in found):
            process.kept += self.world.retention.needs(process.id)
        self._go_on()
        return found

    def poll(self, timeout_s: float) -> list[Record]:
        self._go_on()
        if self._killed():
            self._die()
        if self.world.silent:
            self.world.pass_time(timeout_s)
            if self.rng.random() < 0.03:
                raise BrokerUnavailable("no broker")
            return []
        found = self._mixed(super().poll(timeout_s))
        self._go_on()
        return found

    def _mixed(self, records: list[Record]) -> list[Record]:
        """The records of several partitions in any order that keeps each partition's own."""
        if not self.world.mixes:
            return records
        places = [record.at for record in records]
        self.rng.shuffle(places)
        queues = {place: iter([record for record in records if record.at == place]) for place in set(places)}
        return [next(queues[place]) for place in places]

    def _take(self, partition: Partition) -> list[Record]:
        found = super()._take(partition)
        if found and not self.fair and self.rng.random() < 0.3:
            # It steps over the gap that follows no sooner than at the next poll.
            self.positions[partition] = found[-1].offset + 1
        return found

    def send(self, partition: Partition, key: bytes | None, value: bytes | None, **rest: Any) -> int:
        process = self.process
        assert process is not None
        asks = value if partition.topic == self.world.names.control and value is not None else b""
        renews = self.world.has("stale") and not self.world.healing and b'"renew"' in asks
        is_stale = renews and self.rng.random() < 0.3
        try:
            self._call(bears=rest.get("timeout_s") is None)
            if is_stale:
                raise BrokerUnavailable("not in time")
        except BrokerUnavailable:
            if is_stale or self.rng.random() < 0.5:
                self.world.late.append(Late(process, partition, key, value, tuple(rest.get("headers", ()))))
            raise
        if b'"subscribe"' in asks and not process.started_at:
            process.asked_at = self.world.moment
        killed = self._killed()
        if killed and self.rng.random() < 0.5:
            self._die()
        self.world.write_late(lambda late: late.process is process and late.partition == partition)
        offset = super().send(partition, key, value, headers=rest.get("headers", ()))
        if killed:
            self._die()
        self._go_on()
        return offset
