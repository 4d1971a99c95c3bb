"""A whole domain from one seed: publishers, the sequencer, processes of subscribers, and storms over all of them.

The production code runs unchanged: engine, codec, state, cuts, recovery, delivery machine, session, Subscriber. Each
process is a greenlet that yields before and after each call of its transport; so others run within a start,
`subscribe`, `ack` and `close`. Which faults there are is the seed's; each is drawn by itself, so that one may be left
out (`without`) and the rest remain. sim_checker.py judges.
"""

import random
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import lru_cache, partial
from unittest.mock import patch

from sim_followers import Followers
from sim_kafka import SimKafka
from sim_keys import CONTROL_KEYS, Keys
from sim_lives import START_MS, Lives, Slot
from sim_process import Late, Process
from sim_producers import Producers
from sim_recovery import recover
from sim_retention import Retention
from sim_sequencer import Domain, SimSequencer
from sim_stores import Stores
from sim_turns import Turns

from totalorder.sequencer import draft, kernel
from totalorder.sequencer.wire import codec
from totalorder.sequencer.wire.names import DomainTopics, stamps_partition
from totalorder.subscriber import receipts, subscriber
from totalorder.subscriber.session_settings import SessionSettings
from totalorder.subscriber.transport import Partition

FAULTS = {
    "races": 0.8,
    "two": 0.3,
    "changes": 0.6,
    "anew": 0.3,
    "drops": 0.4,
    "crashes": 0.7,
    "zombies": 0.4,
    "silence": 0.4,
    "timeouts": 0.2,
    "leases": 0.4,
    "stale": 0.4,
    "pauses": 0.5,
    "falls": 0.3,
    "kills": 0.7,
    "strays": 0.4,
    "recovers": 0.3,
    "tells": 0.5,
    "late": 0.4,
    "recuts": 0.5,
    "packs": 0.3,
    "bytes": 0.5,
    "tiny": 0.5,
    "many": 0.15,
    "wide": 0.2,
    "lopsided": 0.3,
    "starts": 0.3,
    "grows": 0.4,
    "deletes": 0.3,
    "gaps": 0.6,
    "open": 0.4,
    "compacts": 0.3,
    "trims": 0.4,
    "loses": 0.3,
    "stands": 0.2,
    "fails": 0.5,
    "junk": 0.4,
    "clocks": 0.7,
    "mixes": 0.5,
    "patterns": 0.3,
    "signed": 0.25,
    "stores": 0.25,
    "follows": 0.25,
}
"""What may happen in a world, and in how many of them it may. `wide`: few Kafka topics of eight partitions, by key;
`lopsided`: producers fill one partition of each topic, then another. `tells`: the job tells snapshots of its state.
`stale`: renewals come late, also of generations that are over. `loses`: retention is quicker than the job, or
than subscribers; with `stands` the job is not told to go on then, until all heals. `fails`: nor are some processes of
subscribers, which a loss stops; the next one of the id is. `patterns`: subscriptions are by patterns too, and more
Kafka topics come late. `signed`: requests must be, and others ask for what they may not.
`stores`: some subscribers keep their positions in databases of their applications. `follows`: Readers
read on while all that happens."""


class World:
    """`run` does random steps, `heal` lets everything come to rest; both within `with`."""

    def __init__(self, seed: int, *, without: Iterable[str] = ()) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        left_out = frozenset(without)
        self.faults = {
            name
            for name, share in FAULTS.items()
            if name not in left_out and random.Random(f"{seed} {name}").random() < share
        }
        # What is stamped of a topic and not read when it is deleted is lost, which with m = 2 stops a subscriber.
        if self.has("two"):
            self.faults -= {"deletes", "loses"}
            self.faults.discard("stores")  # there is no position there
        # Patterns are of Kafka topics, which come late and one by one.
        if self.has("patterns"):
            self.faults -= {"wide", "grows"}
        # Without all stamps nothing can be recovered, but from a snapshot.
        if self.has("trims") and not self.has("tells"):
            self.faults.discard("recovers")
        self.kafka = SimKafka()
        self.now, self.moment = 0.0, 0
        self.domain = self._domain()
        self.names = DomainTopics(domain=self.domain.name)
        self.topics = [f"t{i}" for i in range(rng.randint(20, 60) if self.has("many") else rng.randint(2, 6))]
        by_topic = self.domain.topic_by == "topic"
        self.kafka_topics = list(self.topics) if by_topic else [f"k{i}" for i in range(rng.randint(1, 2))]
        for name in self.kafka_topics:
            self.kafka.create(name, 8 if self.has("wide") else rng.randint(1, 2 if self.has("many") else 3))
        self.producers = Producers(self)
        if self.has("starts"):
            self.producers.lose_beginnings()
        self.to_admit = [name for name in self.kafka_topics if self.comes_late()]
        """Kafka topics that are not there from the start, but admitted to the job in mid-run."""
        first = [name for name in self.kafka_topics if name not in self.to_admit]
        self.sequencer = SimSequencer(self.kafka, self.domain, first, rng, meanwhile=self.while_looking)
        self.sequencer.recuts, self.sequencer.packs = self.has("recuts"), self.has("packs")
        self.sequencer.saves = self.has("bytes")
        self.sequencer.minds_losses, self.sequencer.records_losses = True, not self.has("stands")
        # Of a topic that is gone when the next cut is made, nothing shows from which cut that goes on.
        self.sequencer.late_cuts = not self.has("deletes")
        self.compacts_grants = self.has("compacts")
        """Whether grants are compacted at once, and not when they are old enough. Then a process that died before it
        knew what it was granted may leave no trace of it, nor may an end that one asked for after it."""
        self.slots = [
            Slot(f"s{i}", self.some_topics())
            for i in range(rng.randint(1, 2) if self.has("trims") else rng.randint(2, 4))
        ]
        self.mixes = self.has("mixes")
        self.lease_s = rng.choice([6, 15]) if self.has("leases") else 0
        self.silent_until = 0.0
        self.late: list[Late] = []
        self.keys = Keys(self)
        self.retention = Retention(self)
        self.lives = Lives(self)
        self.stores = Stores(self)
        self.followers = Followers(self)
        if self.has("stores"):
            for slot in self.slots:
                slot.stores = rng.random() < 0.7
        self.turns: Turns[Process] = Turns(rng)
        self._patches = ExitStack()

    def has(self, fault: str) -> bool:
        """Whether this world has it."""
        assert fault in FAULTS, fault
        return fault in self.faults

    @property
    def loses_events(self) -> bool:
        """Whether events may be gone before all have them."""
        return self.has("deletes") or self.has("loses")

    @property
    def by_nonce(self) -> dict[str, Process]:
        """Every process that there ever was."""
        return self.lives.by_nonce

    @property
    def healing(self) -> bool:
        """Whether there are no more faults."""
        return self.turns.are_over

    def _domain(self) -> Domain:
        rng = self.rng
        partitions = rng.randint(1, 4)
        names = ["topic"] if self.has("patterns") else ["topic", "key", "header:t"]
        return Domain(
            stamps_partitions=partitions,
            shards=rng.randint(1, partitions),
            min_subscriptions=2 if self.has("two") else 1,
            topic_by="key" if self.has("wide") else rng.choice(names),
            keyframe_every=rng.choice([1, 3, 64]),
            max_part_bytes=rng.choice([1_500, 600_000]),
            keys=CONTROL_KEYS if self.has("signed") else (),
        )

    def comes_late(self) -> bool:
        """Whether a Kafka topic is admitted to the job in mid-run."""
        return (self.has("grows") and self.rng.random() < 0.3) or (self.has("patterns") and self.rng.random() < 0.6)

    def some_topics(self) -> list[str]:
        """Some of the pub/sub topics."""
        return self.rng.sample(self.topics, self.rng.randint(1, len(self.topics)))

    def __enter__(self) -> "World":
        """Limits that are never reached in a small world are lower here."""
        # Many processes decode the same records: that is a third of the time. What that takes in memory is not counted.
        decoded = lru_cache(maxsize=5_000)(codec.decode_part)
        self._patches.enter_context(patch.object(codec, "decode_part", lambda value, charge=None: decoded(value)))
        if self.has("tiny"):
            smaller = partial(SessionSettings, max_waiting=self.rng.choice([1, 2, 5]))
            self._patches.enter_context(patch.object(subscriber, "SessionSettings", smaller))
            self._patches.enter_context(patch.object(receipts, "_MOST", self.rng.choice([2, 10])))
            self._patches.enter_context(patch.object(draft, "RENEWALS_ALWAYS_HOT", 0))
            self._patches.enter_context(patch.object(kernel, "_SPARSEST", self.rng.choice([0, 2])))
        if self.has("stores"):
            self._patches.enter_context(self.stores)
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.by_nonce.values():
            process.dead = True
        self._patches.close()

    # --- the schedule -------------------------------------------------------------------------------------------------

    @property
    def silent(self) -> bool:
        """Whether no broker answers."""
        return self.now < self.silent_until

    def pass_time(self, timeout_s: float) -> None:
        """Someone waits."""
        self.now += max(timeout_s, 0.001)
        if self.healing:
            self._set_time()
            self.sequencer.run()

    def let_others(self) -> None:
        """Others go on while a process calls Kafka."""
        self.moment += 1
        self.turns.let_others()

    def run(self, steps: int) -> None:
        """Random steps: the world moves, or one of the processes goes on by one call."""
        rng, alive = self.rng, self.turns.alive
        for _ in range(steps):
            self.moment += 1
            if rng.random() < 0.2:
                self.moves()
            if rng.random() < 0.02 or (len(alive) < len(self.slots) and rng.random() < 0.15):
                self.lives.begin(rng.choice(self.slots))
            process = self.turns.go_on(0.15, lambda process: not (self.has("races") or process.idle))
            if process is not None and self.has("crashes") and rng.random() < 0.003:
                self.lives.kill(process)

    # --- the rest of the world ----------------------------------------------------------------------------------------

    def moves(self) -> None:
        """Something happens that is no subscriber's doing."""
        rng = self.rng
        self.now += rng.choice([0.001, 0.1, 1])
        if rng.random() < 0.4:
            self.publish()
        if rng.random() < 0.3:
            self.sequencer.look()
        if rng.random() < 0.5:
            self.sequence()
        for name, share, happens in (
            ("zombies", 0.01, self._sleep),
            ("silence", 0.04, self._fall_silent),
            ("strays", 0.1, lambda: self.sequencer.stray(rng.choice([2, 6, 30]))),
            ("recovers", 0.02, self._recover),
            ("tells", 0.3, self.sequencer.snapshots.see_to_it),
            ("late", 0.1, self.sequencer.write_late),
            ("junk", 0.05, self.producers.write_junk),
            ("open", 0.1, self.producers.begin_or_end_transaction),
            ("compacts", 0.1, self.retention.compact),
            ("trims", 0.3, self.retention.trim),
            ("loses", 0.03, self.retention.lose),
            ("grows", 0.1, self.producers.grow),
            ("patterns", 0.02, self.producers.admit),
            ("deletes", 0.03, self.producers.delete_or_create),
            ("stale", 0.1, self.lives.renew_late),
            ("signed", 0.1, self.keys.forge),
            ("follows", 0.7, self.followers.go_on),
        ):
            if self.has(name) and rng.random() < share:
                happens()
        if self.late and not self.silent and rng.random() < 0.1:
            one = rng.choice(self.late)
            self.write_late(lambda late: late is one)
        if rng.random() < 0.3:
            self.sequencer.retire()

    def write_late(self, which: Callable[[Late], bool]) -> None:
        """What somebody gave up waiting for is written after all."""
        for late in [late for late in self.late if which(late)]:
            self.late.remove(late)
            self.kafka.append(late.partition, key=late.key, value=late.value, headers=late.headers)

    def _sleep(self) -> None:
        """Minutes pass for whoever is in the middle of something."""
        self.now += self.rng.choice([5, 20, 300])

    def _fall_silent(self) -> None:
        self.silent_until = self.now + self.rng.choice([3, 10, 30])

    def _recover(self) -> None:
        """The checkpoint is lost."""
        shards, most = len(self.sequencer.states), self.domain.stamps_partitions
        recover(self.sequencer, shards if self.rng.random() < 0.7 else self.rng.randint(1, most))

    def while_looking(self) -> None:
        """A look takes a while, and others do not wait for it."""
        if self.rng.random() < 0.05 and not self.healing:
            self.producers.publish()

    def publish(self) -> None:
        """Some events."""
        for _ in range(self.rng.randint(1, 4)):
            self.producers.publish()

    def _set_time(self) -> None:
        fallen_ms = self.rng.randint(0, 20_000) if self.has("falls") and self.rng.random() < 0.3 else 0
        self.sequencer.time_ms = START_MS + round(self.now * 1000) - fallen_ms

    def sequence(self) -> None:
        """The job runs, or dies after a part of its output, once or several times."""
        rng = self.rng
        self._set_time()
        if self.has("kills") and rng.random() < 0.25:
            self.sequencer.run(limit=rng.randint(1, 15), crash_after=rng.randint(0, 12))
        else:
            self.sequencer.run(limit=rng.choice([2, 6, 30]))
        if rng.random() < 0.1:
            self.sequencer.topic_order = tuple(rng.sample(self.kafka_topics, rng.randint(0, len(self.kafka_topics))))
        if rng.random() < 0.05:
            self.sequencer.restart()

    # --- the end ------------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """No more faults: everything that was published is stamped, and every id delivers all that it is owed."""
        self.silent_until = 0.0
        for partition in list(self.kafka.held):
            self.kafka.release(partition, lambda _: False)
        self.write_late(lambda _: self.rng.random() < 0.5)
        self.late.clear()
        self.turns.are_over = True
        self.sequencer.records_losses = True
        self.sequencer.event_topics += self.to_admit
        self.to_admit = []
        self.sequencer.retire()
        self._set_time()
        while self.sequencer.run():
            pass
        for process in list(self.turns.alive):
            self._let_go(process)
        for slot in self.slots:
            self.lives.settle(slot)
        for process in [slot.processes[-1] for slot in self.slots]:
            self.lives.close(process)
        if self.has("follows"):
            self.followers.settle()

    def _let_go(self, process: Process) -> None:
        """It is not killed amid of a call: then one that hangs would look like one that died. The newest goes on."""
        if not process.idle:
            self.lives.finish(process)
        newest = next(slot for slot in self.slots if slot.id == process.id).processes[-1]
        if not (process is newest and process.idle and process.started_at) or process.drained:
            self.lives.kill(process)

    def positions_of(self, id: str) -> Partition:  # noqa: A002
        """Where an id's positions are saved."""
        return Partition(self.names.positions, stamps_partition(id, self.domain.stamps_partitions))
