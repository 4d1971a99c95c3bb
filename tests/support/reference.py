"""The dumb twin of totalorder's protocol: everything is counted from scratch out of the list pi, in O(n^2).

Of the records of a batch `reference_order` makes their part of pi; all else begins with the list.

An item's place in the list is its position: `items[0]` has g = 1. Events and subscription changes alike take one.
Clever code (the sequencer's kernel, the subscriber's machine) is compared with this; nothing here is fast or
incremental, so that each rule can be read off one expression. The rules:

- `n` is the event's number in its topic, an entry X the number of X's events before the event's position;
- SG_T at a position: T, and each X that at least `min_subscriptions` live subscriptions hold together with T;
- closing entries: when X leaves SG_T, the first event of T after that still carries the entry X;
- opening entries (only `opening=True`, see `reference_stamps`).
"""

import operator
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from totalorder.sequencer.wire.stamps import KafkaTopic


@dataclass(frozen=True)
class Event:
    """An event of a topic."""

    topic: str


@dataclass(frozen=True)
class Change:
    """From this position on subscription `id` holds exactly `topics` (none: it is gone). It may also change nothing."""

    id: str
    topics: frozenset[str]


@dataclass(frozen=True)
class Loss:
    """Here so many offsets of an event partition are lost, which may have held events of any topic."""

    partition: int
    count: int


Item: TypeAlias = Event | Change | Loss
Rule: TypeAlias = Callable[[int, int], bool]
"""(sub_LC's number, the entry) -> may the event pass? Ours is `>=`."""

Intervals: TypeAlias = Sequence[tuple[int, frozenset[str]]]
"""[(p, topics)]: the set in force for positions after p, up to and including the next pair's p."""


@dataclass(frozen=True, kw_only=True)
class ReferenceStamp:
    """An event's timestamp with all its entries (no delta coding): topic X -> X's events before position g."""

    g: int
    topic: str
    n: int
    entries: dict[str, int]


class Logged(NamedTuple):
    """What decides the place of a Kafka record in its batch."""

    kafka_topic: str
    partition: int
    offset: int
    timestamp_ms: int
    slice: int
    topic_id: str = ""


def reference_order(
    records: Sequence[Logged], *, time_ms: int, topic_order: Sequence[str], ranks: Mapping[KafkaTopic, int]
) -> list[Logged]:
    """The records in the order of pi. `ranks` are by name and id of the Kafka topic.

    Where an event ties with control, which alone has no rank, control is first.
    """

    def tau(record: Logged) -> int:
        log = [other for other in records if (*other[:2], other.topic_id) == (*record[:2], record.topic_id)]
        same = [other for other in log if other.offset <= record.offset]
        return min(time_ms, max(other.timestamp_ms for other in same))

    def key(record: Logged) -> tuple[int, ...]:
        name, incarnation = record.kafka_topic, KafkaTopic(record.kafka_topic, record.topic_id)
        preference = [*topic_order, name].index(name)  # none: behind all that are in the list
        topic = (preference, ranks[incarnation]) if incarnation in ranks else (-1, -1)
        return (record.slice, tau(record), *topic, record.partition, record.offset)

    return sorted(records, key=key)


def change(subscription: str, topics: Iterable[str] = ()) -> Change:
    """A `Change` that takes any iterable of topics: `change("r", "TX")`."""
    return Change(subscription, frozenset(topics))


def events(topics: Iterable[str]) -> list[Item]:
    """One event for each topic, in this order: `events("TXT")`."""
    return [Event(topic) for topic in topics]


def reference_clock(items: Sequence[Item], position: int) -> Counter[str]:
    """LC of every topic after `position` (0: before the first item); a topic without events counts 0."""
    return Counter(item.topic for item in items[:position] if isinstance(item, Event))


def reference_subscriptions(items: Sequence[Item], position: int) -> dict[str, frozenset[str]]:
    """The live subscriptions after `position`."""
    latest = {item.id: item.topics for item in items[:position] if isinstance(item, Change)}
    return {subscription: topics for subscription, topics in latest.items() if topics}


def reference_group(items: Sequence[Item], position: int, topic: str, min_subscriptions: int) -> set[str]:
    """SG_topic without the topic itself, after `position`."""
    holders = [topics for topics in reference_subscriptions(items, position).values() if topic in topics]
    together = Counter(other for topics in holders for other in topics if other != topic)
    return {other for other, count in together.items() if count >= min_subscriptions}


def reference_stamps(
    items: Sequence[Item], min_subscriptions: int, *, closing: bool = True, opening: bool = False
) -> list[ReferenceStamp]:
    """The stamp of each event of pi, in pi's order; control items take a g and yield no stamp.

    `closing=False` leaves the closing entries out, to show why they are there. `opening=True` adds opening entries:
    when a subscription gains X at p, the first event of X after p carries an entry for each topic that ANY one
    subscription holds together with X. With m = 1 that changes nothing; with m = 2 pairwise order needs it as soon as
    a subscription swaps topics (tests/model/test_reference.py tells the story).
    """
    stamps = []
    for g, item in enumerate(items, 1):
        if isinstance(item, Event):
            group = reference_group(items, g, item.topic, min_subscriptions)
            for q in _changes_since_previous(items, g, item.topic):
                if closing:
                    group |= reference_group(items, q - 1, item.topic, min_subscriptions)
                if opening and _gains(items, q, item.topic):
                    group |= reference_group(items, g, item.topic, 1)
            clock = reference_clock(items, g - 1)
            entries = {other: clock[other] for other in sorted(group)}
            stamps.append(ReferenceStamp(g=g, topic=item.topic, n=clock[item.topic] + 1, entries=entries))
    return stamps


def _changes_since_previous(items: Sequence[Item], g: int, topic: str) -> list[int]:
    """Positions of the changes between the topic's previous event (or the start) and position g."""
    previous = max((at for at, item in enumerate(items[: g - 1], 1) if item == Event(topic)), default=0)
    return [at for at in range(previous + 1, g) if isinstance(items[at - 1], Change)]


def _gains(items: Sequence[Item], q: int, topic: str) -> bool:
    """Does the change at position q give its subscription a topic that it did not hold?"""
    changed = items[q - 1]
    assert isinstance(changed, Change)
    return topic in changed.topics - reference_subscriptions(items, q - 1).get(changed.id, frozenset())


def reference_intervals(items: Sequence[Item], subscription: str) -> list[tuple[int, frozenset[str]]]:
    """The subscription's sets with the positions that they hold from."""
    return [(p, item.topics) for p, item in enumerate(items, 1) if isinstance(item, Change) and item.id == subscription]


def reference_deliveries(items: Sequence[Item], intervals: Intervals) -> list[int]:
    """The positions g that a subscriber with these sets delivers: pi restricted, at each one, to the set in force.

    A loss is told to all who hold a topic.
    """
    delivered = []
    for g, item in enumerate(items, 1):
        in_force = ([frozenset[str]()] + [topics for p, topics in intervals if p < g])[-1]
        if item.topic in in_force if isinstance(item, Event) else isinstance(item, Loss) and in_force:
            delivered.append(g)
    return delivered


class GreedySubscriber:
    """Delivers whatever the delivery rule allows, as soon as it can; full vectors, unbounded buffer.

    Stamps may come in any order. Through a change of its set at p it delivers what the old set owes up to p, all of it,
    and only then goes on with the new set from the clock at p. `delivered` lists positions g in the order of delivery.
    """

    def __init__(self, items: Sequence[Item], intervals: Intervals, *, rule: Rule = operator.ge) -> None:
        self.delivered: list[int] = []
        self._sets = list(intervals)
        self._clocks = [reference_clock(items, p) for p, _ in intervals]
        self._ends = [p for p, _ in intervals[1:]] + [len(items)]
        self._held: list[ReferenceStamp] = []
        self._rule = rule
        self._phase = -1
        self._sub_lc: dict[str, int] = {}
        self._enter_next_set()

    def receive(self, stamp: ReferenceStamp) -> None:
        """Take one stamp in and deliver everything that has become deliverable."""
        self._held.append(stamp)
        while ready := next((held for held in self._held if self._is_deliverable(held)), None):
            self._held.remove(ready)
            self._sub_lc[ready.topic] = ready.n
            self.delivered.append(ready.g)
            self._enter_next_set()

    def _is_deliverable(self, stamp: ReferenceStamp) -> bool:
        if stamp.topic not in self._sub_lc or stamp.g > self._ends[self._phase]:
            return False
        gates = [(self._sub_lc[other], number) for other, number in stamp.entries.items() if other in self._sub_lc]
        return self._sub_lc[stamp.topic] == stamp.n - 1 and all(self._rule(mine, number) for mine, number in gates)

    def _enter_next_set(self) -> None:
        """Move on for as long as the present set owes nothing before its end."""
        while self._phase + 1 < len(self._sets) and self._owes_nothing():
            self._phase += 1
            clock = self._clocks[self._phase]
            self._sub_lc = {topic: clock[topic] for topic in self._sets[self._phase][1]}

    def _owes_nothing(self) -> bool:
        return self._phase < 0 or all(
            number == self._clocks[self._phase + 1][topic] for topic, number in self._sub_lc.items()
        )


def feed(subscriber: GreedySubscriber, stamps: Iterable[ReferenceStamp], rng: random.Random) -> list[int]:
    """Interleave the stamps' per-topic streams (each kept in order) at random; return what was delivered."""
    streams: dict[str, list[ReferenceStamp]] = {}
    for stamp in stamps:
        streams.setdefault(stamp.topic, []).append(stamp)
    while streams:
        topic = rng.choice(sorted(streams))
        subscriber.receive(streams[topic].pop(0))
        if not streams[topic]:
            del streams[topic]
    return subscriber.delivered


def first_disagreement(one: Sequence[int], other: Sequence[int]) -> tuple[int, int] | None:
    """Two positions that both sequences hold, in opposite orders; None if there are none (pairwise TNO)."""
    shared = [g for g in one if g in set(other)]
    for at, earlier in enumerate(shared):
        for later in shared[at + 1 :]:
            if other.index(earlier) > other.index(later):
                return earlier, later
    return None


class ReferenceLeases:
    """Leases by the words of the protocol page, for one batch after the other: every lease is looked at in each."""

    def __init__(self) -> None:
        self.generations: dict[str, int] = {}
        self.held: dict[str, tuple[int, int]] = {}
        """Live subscription -> its lease in ms (0: it never ends) and when it ends."""

    def begin(self, time_ms: int) -> list[str]:
        """The ids whose leases end at the start of the batch, in order."""
        ended = sorted(id_ for id_, (lease_ms, end_ms) in self.held.items() if lease_ms and end_ms <= time_ms)
        for id_ in ended:
            del self.held[id_]
        return ended

    def subscribe(self, id_: str, lease_ms: int, time_ms: int) -> None:
        """The next generation of `id_`, with a lease of its own."""
        self.generations[id_] = self.generations.get(id_, 0) + 1
        self.held[id_] = (lease_ms, time_ms + lease_ms)

    def renew(self, id_: str, time_ms: int) -> int | None:
        """When the lease ends from now on; None for an id without a live subscription."""
        if id_ not in self.held:
            return None
        lease_ms, _ = self.held[id_]
        self.held[id_] = (lease_ms, time_ms + lease_ms)
        return time_ms + lease_ms

    def unsubscribe(self, id_: str) -> bool:
        """Whether there was something to end."""
        if id_ not in self.held:
            return False
        self.generations[id_] += 1
        del self.held[id_]
        return True
