"""Processes of one subscriber id that overlap, from one seed: each may stall at any of its calls to Kafka.

Every process is a greenlet that yields before and after each call of its transport; the schedule picks who goes on. So
other processes run within a start, `subscribe`, `ack`, `close` and `poll` of each. The checker takes nothing from what
the product saved: it knows what was published, what the batches held, which event was handed out when, and which
acknowledgements had returned by then.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from greenlet import GreenletExit, greenlet
from sim_kafka import SimKafka, SimTransport
from sim_process import polled
from sim_sequencer import Domain, SimSequencer
from sim_truth import Truth
from sim_turns import Turns

from totalorder.errors import Fenced, Rejected
from totalorder.sequencer.wire.control import decode_answer
from totalorder.sequencer.wire.stamps import Source
from totalorder.subscriber import Event, Lost, Subscriber
from totalorder.subscriber.transport import Partition, Record

ID = "s"
TOPICS = ["a", "b", "c"]
Place = tuple[Source, int]


def place(event: Event | Lost) -> Place:
    source = Source(event.kafka_topic, event.topic_id, event.partition)
    return source, event.offset if isinstance(event, Event) else event.first_offset


@dataclass
class Delivery:
    """An event handed to an application, at one moment of the world."""

    at: int
    event: Event


@dataclass(eq=False)
class Twin:
    """One process and what it did; moments count the world's steps."""

    nonce: str
    run: greenlet | None = None
    subscriber: Subscriber | None = None
    asked_at: int = 0
    """When it sent the request that was granted, as far as it has come."""
    started: bool = False
    deliveries: list[Delivery] = field(default_factory=list)
    acked: list[tuple[int, int]] = field(default_factory=list)
    """(moment, count): by then so many of `deliveries` were acknowledged, and `ack` had returned."""
    seen_g: int = 0
    """The largest g that it held ready for its application."""


class YieldingTransport(SimTransport):
    """Lets others go on before and after each call that a network is needed for."""

    def __init__(self, world: "TwinWorld", twin: Twin) -> None:
        super().__init__(world.kafka, world.rng, world.pass_time, most=3)
        self.world, self.twin = world, twin

    def _others(self) -> None:
        if self.twin.subscriber is not None:
            ready = self.twin.subscriber._session.ready
            self.twin.seen_g = max(self.twin.seen_g, ready.max_g(len(ready)))
        self.world.let_others()

    def end_offsets(self, partitions: Iterable[Partition], *, once: bool = False) -> dict[Partition, int]:
        self._others()
        found = super().end_offsets(list(partitions))
        self._others()
        return found

    def poll(self, timeout_s: float) -> list[Record]:
        self._others()
        found = super().poll(timeout_s)
        self._others()
        return found

    def send(self, partition: Partition, key: bytes | None, value: bytes | None, **rest: Any) -> int:
        self._others()
        if partition.topic == "d.control" and not self.twin.started:
            self.twin.asked_at = self.world.moment
        offset = super().send(partition, key, value, **rest)
        self._others()
        return offset


class TwinWorld:
    """`run` lets processes of one id race, `heal` lets one last process take all that is owed."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.kafka = SimKafka()
        self.now, self.moment, self.count = 0.0, 0, 0
        partitions = rng.randint(1, 3)
        self.domain = Domain(
            stamps_partitions=partitions, keyframe_every=rng.choice([1, 4]), max_part_bytes=rng.choice([900, 600_000])
        )
        for topic in TOPICS:
            self.kafka.create(topic, rng.randint(1, 2))
        self.sequencer = SimSequencer(self.kafka, self.domain, list(TOPICS), rng)
        self.changes = rng.random() < 0.3
        self.compacts = not self.changes and rng.random() < 0.2
        """Whether grants are compacted at once."""
        self.sleeps = not self.changes and random.Random(f"{seed} sleeps").random() < 0.3
        self.asleep: Twin | None = None
        self.topics = rng.sample(TOPICS, rng.randint(1, 3))
        self.twins: list[Twin] = []
        self.turns: Turns[Twin] = Turns(rng)

    @property
    def forgets(self) -> bool:
        """Whether what was granted to a process that died before it began may be gone."""
        return self.compacts or self.sleeps

    # --- the schedule -------------------------------------------------------------------------------------------------

    def let_others(self) -> None:
        self.moment += 1
        self.turns.let_others()

    def pass_time(self, timeout_s: float) -> None:
        self.now += max(timeout_s, 0.001)
        if self.turns.are_over:
            self.sequencer.run()

    def run(self, steps: int) -> None:
        """Random steps: the world moves, or one of the processes goes on by one call."""
        alive = self.turns.alive
        for _ in range(steps):
            self.moment += 1
            if self.rng.random() < 0.15:
                self._world_moves()
            if len(alive) < 3 and self.rng.random() < (0.3 if not alive else 0.015):
                self._begin()
            twin = self.turns.go_on(0.07)
            if twin is not None and self.rng.random() < 0.004:
                self.turns.end(twin)

    def _world_moves(self) -> None:
        rng = self.rng
        if rng.random() < 0.5:
            self.publish(rng.choice(TOPICS))
        if rng.random() < 0.6:
            self.sequencer.time_ms = 1_000_000 + round(self.now * 1000)
            self.sequencer.run(limit=rng.choice([1, 3]), crash_after=rng.choice([None, None, None, rng.randint(0, 6)]))
        if rng.random() < 0.1:
            self.kafka.append(Partition("d.control", 0), value=b"junk")
        if self.compacts and rng.random() < 0.2:
            self.kafka.compact(Partition("d.grants", 0))
        if self.sleeps and rng.random() < 0.1:
            self._fall_asleep_or_wake()

    def _fall_asleep_or_wake(self) -> None:
        """For longer than grants are kept whole. Meanwhile a process of the job that was replaced writes an old grant
        once more, and compaction leaves nothing else. Nobody sleeps so in the middle of a takeover.
        """
        alive, grants = self.turns.alive, Partition("d.grants", 0)
        if self.asleep is None and alive:
            self.asleep = self.rng.choice([twin for twin in alive if twin.started] or [None])
            if self.asleep is not None:
                alive.remove(self.asleep)
        elif self.asleep is not None and all(twin.started for twin in alive):
            self.now += 400
            old = self.rng.choice([each for each in self.kafka.ever(grants) if self._is_of(self.asleep, each)])
            self.kafka.append(grants, key=old.key, value=old.value)
            self.kafka.compact(grants)
            alive.append(self.asleep)
            self.asleep = None

    def _is_of(self, twin: Twin, record: Record) -> bool:
        return twin.nonce == decode_answer(record.value or b"").nonce

    def publish(self, topic: str) -> None:
        self.count += 1
        partition = Partition(topic, self.rng.randrange(self.kafka.topics[topic]))
        self.kafka.append(partition, value=f"{self.count}".encode(), timestamp_ms=self.count)

    # --- a process ----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        twin = Twin(nonce=f"n{len(self.twins)}")
        self.twins.append(twin)
        self.turns.begin(twin, lambda: self._live(twin))

    def _live(self, twin: Twin) -> None:
        try:
            self.make(twin)
            for _ in range(self.rng.randint(1, 40)):
                self._act(twin)
            if self.rng.random() < 0.7:
                assert twin.subscriber is not None
                twin.subscriber.close()
        except (Fenced, Rejected, GreenletExit):
            pass

    def make(self, twin: Twin) -> None:
        topics = self.rng.sample(TOPICS, self.rng.randint(1, 3)) if self.changes else self.topics
        twin.subscriber = Subscriber(
            topics,
            id=ID,
            domain="d",
            lease_s=0,
            start_timeout_s=1e9,
            max_buffered=self.rng.choice([1, 3, 100]),
            receipts=self.rng.random() < 0.5,
            transport=YieldingTransport(self, twin),
            clock=lambda: self.now,
            wall_clock=lambda: 1_000 + self.now,
            nonce=twin.nonce,
        )
        twin.started = True

    def _act(self, twin: Twin) -> None:
        subscriber = twin.subscriber
        assert subscriber is not None
        draw = self.rng.random()
        if draw < 0.1 and self.changes:
            subscriber.subscribe(self.rng.sample(TOPICS, self.rng.randint(1, 3)))
        elif draw < 0.7:
            self.take(twin)
        elif twin.deliveries:
            self.acknowledge(twin, self.rng.randint(1, len(twin.deliveries)))

    def take(self, twin: Twin) -> bool:
        assert twin.subscriber is not None
        events = polled(twin.subscriber, self.rng)
        for event in events:
            twin.seen_g = max(twin.seen_g, event.g)
            twin.deliveries.append(Delivery(self.moment, event))
        return bool(events)

    def acknowledge(self, twin: Twin, count: int) -> None:
        assert twin.subscriber is not None
        twin.subscriber.ack(twin.deliveries[count - 1].event)
        twin.acked.append((self.moment, count))

    # --- the end ------------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """One last process, alone, takes everything that is owed."""
        self.turns.alive.clear()
        self.turns.are_over = True
        twin = Twin(nonce="last")
        self.twins.append(twin)
        self.make(twin)
        quiet = 0
        while quiet < 60:
            quiet = 0 if self.take(twin) else quiet + 1
        if twin.deliveries:
            self.acknowledge(twin, len(twin.deliveries))

    def check(self) -> int:
        """AssertionError where a promise to the id's application was broken; returns how many deliveries there were."""
        owed = self._owed()
        index = {where: at for at, where in enumerate(owed)}
        untagged: dict[Place, str] = {}
        delivered: set[Place] = set()
        for twin in self.twins:
            places = [place(delivery.event) for delivery in twin.deliveries]
            delivered |= set(places)
            indices = [index[where] for where in places]
            first = min(indices, default=0)
            expected = sorted(indices) if self.forgets else list(range(first, first + len(indices)))
            assert indices == expected, f"{twin.nonce} is not in order, or leaves out: {indices}"
            for delivery in twin.deliveries:
                where = place(delivery.event)
                if delivery.event.tag is None:
                    assert where not in untagged, f"{where} came untagged to {untagged[where]} and to {twin.nonce}"
                    untagged[where] = twin.nonce
            self._check_against_others(twin)
        missing = set(self._owed(begun=True) if self.forgets else owed) - delivered
        assert not missing, f"never delivered: {sorted(missing)}"
        return sum(len(twin.deliveries) for twin in self.twins)

    def _check_against_others(self, twin: Twin) -> None:
        others = [other for other in self.twins if other is not twin]
        done: set[Place] = set()
        for other in others:
            # Who was taken over from may acknowledge on, too late for those that have looked at positions.
            until = min(
                (later.asked_at for later in self.twins if later.asked_at > other.asked_at), default=self.moment
            )
            counts = [count for moment, count in other.acked if moment < min(until, twin.asked_at)]
            done |= {place(delivery.event) for delivery in other.deliveries[: max(counts, default=0)]}
        held = max((other.seen_g for other in others), default=0)
        for delivery in twin.deliveries:
            where = place(delivery.event)
            assert where not in done, f"{where} came to {twin.nonce}, acknowledged before it asked"
            assert delivery.event.tag is None or delivery.event.g <= held, f"{where} is tagged and nobody held it"

    def _owed(self, *, begun: bool = False) -> list[Place]:
        """π restricted to the sets that were granted, from the first grant on; or to those of processes that began."""
        truth = Truth(self.sequencer.batches, self.domain, self.sequencer.names.control)
        started = {twin.nonce for twin in self.twins if twin.started}
        links = [link for link in truth.chain(ID) if link.nonce in started or not begun]
        return [item.place for item, _ in truth.owed(links)]
