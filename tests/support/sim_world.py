"""A whole domain from one seed: publishers, the sequencer, subscriber processes, crashes of all of them.

The production code runs unchanged: engine, codec, delivery machine, session, Subscriber. sim_checker.py judges.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from sim_kafka import SimCrash, SimKafka, SimTransport
from sim_sequencer import Domain, SimSequencer

from totalorder.errors import Fenced, SubscriptionEnded
from totalorder.sequencer.names import stamps_partition
from totalorder.subscriber import Event, Subscriber
from totalorder.subscriber.transport import Partition

START_MS = 1_700_000_000_000
DECADES_MS = 10**12


@dataclass
class Process:
    """One process of a subscriber id, and what it did."""

    id: str
    anew: bool
    """Whether it gave up what was still owed, by start="new"."""
    positions_seen: int
    """Records on the positions topic when it began."""
    save_interval_s: float
    receipts: bool
    subscriber: Subscriber | None = None
    transport: SimTransport | None = None
    generation: int = 0
    events: list[Event] = field(default_factory=list)
    acked: int = 0
    """How many of `events` are acknowledged for certain."""
    durable: int = 0
    """How many of them are saved for certain."""
    unsure: int = 0
    """How many of them may be saved: a crash came in the middle."""
    clean: bool = False
    ended: str = ""
    deposed: bool = False
    """A later process has begun: what is acknowledged from now on may come too late for it."""
    drained: bool = False
    held_g: int = 0
    """The largest g that it held ready, or had handed out."""


@dataclass
class Slot:
    """A subscriber id and its processes, oldest first. More than one may think that it is alive."""

    id: str
    processes: list[Process] = field(default_factory=list)

    @property
    def last(self) -> Process | None:
        return self.processes[-1] if self.processes else None


class World:
    """`run` does random steps, `heal` lets everything come to rest."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.now = 0.0
        self.kafka = SimKafka()
        partitions = rng.randint(1, 4)
        self.domain = Domain(
            stamps_partitions=partitions,
            shards=rng.randint(1, partitions),
            min_subscriptions=rng.choice([1, 1, 1, 2]),
            topic_by=rng.choice(["topic", "key", "header:t"]),
            keyframe_every=rng.choice([1, 3, 64]),
            max_part_bytes=rng.choice([1_500, 600_000]),
        )
        self.topics = [f"t{i}" for i in range(rng.randint(2, 6))]
        by_topic = self.domain.topic_by == "topic"
        self.kafka_topics = list(self.topics) if by_topic else [f"k{i}" for i in range(rng.randint(1, 2))]
        for name in self.kafka_topics:
            self.kafka.create(name, rng.randint(1, 3))
        # Some Kafka topics are there from the start, others are admitted to the job in mid-run.
        self.later = [name for name in self.kafka_topics if rng.random() < 0.2]
        first = [name for name in self.kafka_topics if name not in self.later]
        self.sequencer = SimSequencer(self.kafka, self.domain, first, rng, meanwhile=self.while_looking)
        self.clocks_ms = {name: rng.choice([0, 0, 2_000, -2_000, -DECADES_MS]) for name in self.kafka_topics}
        """How far the clock of those who publish to a Kafka topic is off."""
        self.slots = [Slot(f"s{i}") for i in range(rng.randint(2, 4))]
        # With m = 2 a lapse cannot be healed, which has a test of its own.
        self.lease_s = rng.choice([0, 0, 15]) if self.domain.min_subscriptions == 1 else 0
        self.max_buffered = rng.choice([1, 2, 5, 1000])
        # What is stamped of a topic and not read when it is deleted is lost, which with m = 2 stops a subscriber.
        self.recreates = self.domain.min_subscriptions == 1 and rng.random() < 0.5
        self.recreated = 0
        self.count = 0
        self.healed = False
        self.by_nonce: dict[str, Process] = {}
        self.fenced = self.lapsed = self.crashes = self.restarts = 0

    # --- the rest of the world, while someone waits -------------------------------------------------------------------

    def tick(self, timeout_s: float) -> None:
        """Time passes; others work."""
        self.now += max(timeout_s, 0.001)
        self.sequencer.time_ms = START_MS + round(self.now * 1000)
        if self.healed:
            self.sequencer.run()
            return
        if self.rng.random() < 0.3:
            self.publish()
        if self.rng.random() < 0.5:
            self.sequencer.look()
        if self.rng.random() < 0.5:
            self.sequence()

    def while_looking(self) -> None:
        """A look takes a while, and others do not wait for it."""
        if self.rng.random() < 0.05 and not self.healed:
            self._publish_one()

    def publish(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            self._publish_one()

    def _publish_one(self) -> None:
        rng = self.rng
        self.count += 1
        topic = rng.choice(self.topics)
        kafka_topic = topic if self.domain.topic_by == "topic" else rng.choice(self.kafka_topics)
        if kafka_topic not in self.kafka.topics:
            return
        partition = Partition(kafka_topic, rng.randrange(self.kafka.topics[kafka_topic]))
        name: bytes | None = topic.encode()
        if rng.random() < 0.1:
            name = rng.choice([None, b"", b"\xff", b"nobody"])
        now_ms = START_MS + round(self.now * 1000) + self.clocks_ms[kafka_topic]
        value = None if rng.random() < 0.1 else f"{self.count}".encode()
        self.kafka.append(
            partition,
            key=name if self.domain.topic_by == "key" else None,
            value=value,
            headers=[("t", b"first"), ("t", name), ("u", b"last")] if self.domain.topic_by == "header:t" else [],
            timestamp_ms=rng.choice([now_ms, now_ms - rng.randint(0, 3000), 0, now_ms + DECADES_MS]),
        )
        if rng.random() < 0.05:
            self.kafka.skip(partition)

    def sequence(self) -> None:
        """The job runs, or dies after a part of its output, once or several times."""
        rng = self.rng
        if rng.random() < 0.2:
            self.sequencer.run(limit=rng.randint(1, 15), crash_after=rng.randint(0, 12))
        else:
            self.sequencer.run(limit=rng.choice([2, 6, 30]))
        if rng.random() < 0.1:
            self.sequencer.topic_order = tuple(rng.sample(self.kafka_topics, rng.randint(0, len(self.kafka_topics))))
        if self.later and rng.random() < 0.1:
            self.sequencer.event_topics.append(self.later.pop())
        if rng.random() < 0.02:
            grown = rng.choice(self.kafka_topics)
            self.kafka.create(grown, self.kafka.topics.get(grown, 0) + 1)
        if self.recreates and rng.random() < 0.015:
            self._delete_or_create(rng.choice(self.kafka_topics))
        if rng.random() < 0.5:
            self.sequencer.retire()

    def _delete_or_create(self, topic: str) -> None:
        """The job may notice at once, or after it has read what has the name now."""
        if topic in self.kafka.topics:
            self.kafka.delete(topic)
            self.recreated += 1
        if self.rng.random() < 0.7:
            self.kafka.create(topic, self.rng.randint(1, 3))
            for _ in range(self.rng.randint(0, 4)):
                self._publish_one()

    def positions_of(self, id: str) -> Partition:  # noqa: A002
        """Where an id's positions are saved."""
        return Partition(self.sequencer.names.positions, stamps_partition(id, self.domain.stamps_partitions))

    # --- subscribers --------------------------------------------------------------------------------------------------

    def start(self, slot: Slot) -> None:
        """A new process of an id; the old one, if there is one, may not know."""
        anew = self.rng.random() < 0.05 and bool(slot.processes) and not self.healed
        for former in slot.processes:
            former.deposed = True
        process = Process(
            id=slot.id,
            anew=anew,
            positions_seen=len(self.kafka.logs.get(self.positions_of(slot.id), [])),
            save_interval_s=self.rng.choice([0, 0, 3]),
            receipts=self.rng.random() < 0.9,
        )
        process.transport = SimTransport(
            self.kafka, self.rng, self.tick, fair=self.healed, most=50 if self.healed else 4
        )
        if self.rng.random() < 0.2 and not self.healed:
            process.transport.crash_in = self.rng.randint(1, 40)
        slot.processes.append(process)
        self.restarts += len(slot.processes) > 1
        topics = self.rng.sample(self.topics, self.rng.randint(1, len(self.topics)))

        nonce = f"n{len(self.by_nonce)}"
        self.by_nonce[nonce] = process

        def make() -> None:
            assert process.transport is not None
            process.subscriber = Subscriber(
                topics,
                id=slot.id,
                domain=self.domain.name,
                start="new" if anew else "saved",
                lost="skip" if self.recreates else "stop",
                lease_s=self.lease_s,
                start_timeout_s=10_000,
                save_interval_s=process.save_interval_s,
                max_buffered=self.max_buffered,
                receipts=process.receipts,
                transport=process.transport,
                clock=lambda: self.now,
                wall_clock=lambda: START_MS / 1000 + self.now,
                nonce=nonce,
            )
            process.generation = process.subscriber.metrics().generation

        self.guarded(process, make)

    def guarded(self, process: Process, work: Callable[[], None]) -> None:
        """Runs a process's code; notes how it ends."""
        try:
            work()
            self._note_held(process)
        except SimCrash:
            self._note_held(process)
            self.crashes += 1
            process.ended = process.ended or "crashed"
            process.subscriber = None
        except Fenced:
            self.fenced += 1
            self._end(process, "fenced")
        except SubscriptionEnded:
            self.lapsed += 1
            self._end(process, "lapsed")

    def _note_held(self, process: Process) -> None:
        if process.subscriber is not None:
            ready = (deliver.g for deliver in process.subscriber._session.ready)
            process.held_g = max([process.held_g, *ready])
        elif not process.generation:
            process.held_g = 10**9  # killed while it began: what it held cannot be seen

    def _end(self, process: Process, why: str) -> None:
        self._note_held(process)
        process.ended = why
        subscriber, process.subscriber = process.subscriber, None
        assert process.transport is not None
        process.transport.crash_in = None
        if subscriber is not None:
            process.unsure = process.acked
            subscriber.close()

    def take(self, process: Process, most: int) -> None:
        """Polls a few times, and acknowledges some of what has come."""
        subscriber = process.subscriber
        assert subscriber is not None
        for _ in range(most):
            event = subscriber.poll(self.rng.choice([0, 0.01]))
            if event is None:
                break
            process.events.append(event)
            process.held_g = max(process.held_g, event.g)
            if self.healed or self.rng.random() < 0.5:
                self.acknowledge(process)

    def acknowledge(self, process: Process) -> None:
        subscriber = process.subscriber
        assert subscriber is not None
        upto = len(process.events) if self.rng.random() < 0.7 else self.rng.randint(1, len(process.events))
        process.unsure = max(process.unsure, upto)
        subscriber.ack(process.events[upto - 1])
        process.acked = max(process.acked, upto)
        if process.save_interval_s == 0 and not process.deposed:
            process.durable = process.acked

    def close(self, process: Process) -> None:
        subscriber = process.subscriber
        assert subscriber is not None
        everything = process.acked == len(process.events)
        process.unsure = process.acked
        subscriber.close()
        process.subscriber, process.ended = None, "closed"
        if not process.deposed:
            process.durable, process.clean = process.acked, everything

    def unsubscribe(self, process: Process) -> None:
        subscriber = process.subscriber
        assert subscriber is not None
        if self.rng.random() < 0.5:
            subscriber.unsubscribe(drain=False)
            subscriber.close()
            process.subscriber, process.ended = None, "dropped"
        else:
            subscriber.unsubscribe(drain=True)
            process.drained = True

    def step(self) -> None:
        """One random thing."""
        rng = self.rng
        self.tick(rng.choice([0.001, 0.1]))
        slot = rng.choice(self.slots)
        alive = [process for process in slot.processes if process.subscriber is not None]
        if not alive or rng.random() < 0.01:
            self.start(slot)
            return
        process = rng.choice(alive)
        assert process.subscriber is not None
        if process.drained and process.subscriber.finished:
            self.guarded(process, lambda: self._finish_drained(process))
            return
        draw = rng.random()
        subscriber = process.subscriber
        if draw < 0.80:
            self.guarded(process, lambda: self.take(process, rng.randint(1, 8)))
        elif draw < 0.85 and not process.drained:
            topics = rng.sample(self.topics, rng.randint(1, len(self.topics)))
            self.guarded(process, lambda: subscriber.subscribe(topics))
        elif draw < 0.88:
            self.guarded(process, lambda: self.close(process))
        elif draw < 0.92:
            process.subscriber, process.ended = None, "crashed"
            self.crashes += 1
        elif draw < 0.94 and not process.drained:
            self.guarded(process, lambda: self.unsubscribe(process))
        elif draw < 0.96:
            assert process.transport is not None
            process.transport.crash_in = rng.randint(1, 20)
        elif draw < 0.97:
            self.now += 20
        else:
            (subscriber.pause if rng.random() < 0.5 else subscriber.resume)()

    def _finish_drained(self, process: Process) -> None:
        if process.events:
            process.unsure = len(process.events)
            assert process.subscriber is not None
            process.subscriber.ack(process.events[-1])
            process.acked = len(process.events)
        self.close(process)
        process.ended = "drained"

    def run(self, steps: int) -> None:
        """Random steps."""
        for _ in range(steps):
            self.step()

    # --- the end ------------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """No more faults: everything that was published is stamped, and every id delivers all that it is owed."""
        self.healed = True
        self.sequencer.event_topics += self.later
        self.later = []
        self.sequencer.retire()
        for slot in self.slots:
            for process in slot.processes[:-1]:
                process.subscriber = None
            last = slot.last
            if last is not None and last.transport is not None:
                last.transport.crash_in, last.transport.fair, last.transport.most = None, True, 50
            if last is None or last.subscriber is None or last.drained:
                if last is not None and last.subscriber is not None:
                    last.subscriber, last.ended = None, "crashed"
                self.start(slot)
        while self.sequencer.run():
            pass
        for slot in self.slots:
            self._settle(slot)

    def _settle(self, slot: Slot) -> None:
        """Polls until nothing comes for a long time; a process that is found to be over gets a successor."""
        quiet = 0
        for _ in range(3_000):
            process = slot.last
            assert process is not None
            if process.subscriber is None:
                self.start(slot)
                continue
            process.subscriber.resume()
            before = len(process.events)
            self.guarded(process, lambda process=process: self.take(process, 100))  # type: ignore[misc]
            assert process.transport is not None
            quiet = quiet + 1 if len(process.events) == before and process.transport.at_ends() else 0
            if quiet > 3:
                return
        raise AssertionError(f"{slot.id} does not come to rest")
