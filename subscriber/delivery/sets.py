"""The chain of sets of topics: the one in force, and the changes of it that lie ahead."""

import math
from collections import deque
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from totalorder.errors import Contradiction, EventsLost
from totalorder.sequencer.wire.control import Link
from totalorder.sequencer.wire.position import Progress, partitions_of
from totalorder.sequencer.wire.stamps import StampedBatch
from totalorder.subscriber.delivery.switches import Switch, switch_of

Ints = npt.NDArray[np.int64]


class Sets:
    """The sets that a subscription has from the place on that delivery has reached, and the names of their topics.

    `contradicts` makes the error for what cannot be.
    """

    def __init__(self, contradicts: Callable[[str], Contradiction]) -> None:
        self._contradicts = contradicts
        self.generation = 0
        """Of the last change that is known, 0 before the first one."""
        self.chain_g = 0
        """Its position."""
        self.stamps_partitions = self.min_subscriptions = 1
        self.topic_by = "topic"
        self.topics: Mapping[int, str] = {}
        """The set in force."""
        self.switches: deque[Switch] = deque()
        self.names: dict[int, str] = {}
        """Of the topics of all sets."""
        self.ids: dict[str, int] = {}
        self._expected: dict[int, int] = {}
        """By topic the number of its next stamp."""
        self._joins: dict[int, deque[tuple[int, int]]] = {}
        """By topic the positions at which it joins, each with its clock there."""

    def begin(self, position: Progress) -> None:
        """What a position says, but for the changes that lie ahead."""
        self.stamps_partitions, self.min_subscriptions = position.stamps_partitions, position.min_subscriptions
        self.topic_by = position.topic_by
        self.generation, self.chain_g = position.generation, position.switched_g
        self.topics = dict(position.topics)
        self._expected = {topic: n + 1 for topic, n in position.clock.items()}
        self._name(self.topics)

    # --- changes ------------------------------------------------------------------------------------------------------

    def link(self, answer: Link) -> tuple[Switch, set[int]]:
        """Appends a change to the chain; returns it, and the topics that it brings."""
        if self.switches and self.switches[-1].lapse and self.min_subscriptions == 1:
            # The lease ran out and the id was subscribed again. That loses nothing: the old set goes on until then.
            self.switches.pop()
        assert answer.g > self.chain_g, f"a change at g {answer.g} is taken behind the one at {self.chain_g}"
        former = self.switches[-1].topics if self.switches else self.topics
        switch = switch_of(answer, generation=self.generation, topics=former)
        if not switch.exact and former and self.min_subscriptions > 1:
            raise self._unordered(answer.id, "links of its chain of grants are gone", switch.g)
        self.generation, self.chain_g = answer.generation, answer.g
        self.switches.append(switch)
        self._name(switch.topics)
        joined = switch.topics.keys() - former.keys()
        for topic in joined:
            self._joins.setdefault(topic, deque()).append((switch.g, switch.clock[topic]))
        return switch, joined

    def take_switch(self) -> Switch:
        """The next set is in force now."""
        switch = self.switches.popleft()
        self.topics = switch.topics
        for topic in self.topics:
            # Stamps from before the switch may still come from a partition that is read anew: they are known to be old.
            self._join(topic, switch.g + 1)
        return switch

    def forget_dropped(self) -> set[int]:
        """Keeps what the set in force or one ahead needs; returns the stamps partitions that hold it."""
        wanted = {topic: name for switch in self.switches for topic, name in switch.topics.items()} | {**self.topics}
        self.names, self.ids = {}, {}
        self._name(wanted)
        self._expected = {topic: n for topic, n in self._expected.items() if topic in wanted}
        return self.partitions_of(wanted)

    def check_healed(self, id: str) -> None:  # noqa: A002
        """EventsLost where a lapse of the subscriber id is followed by something: with m = 2 it cannot be healed.

        While an id is not subscribed it does not count, and others may deliver in an order of their own what only
        its absence left without entries; by frontiers this one could contradict them.
        """
        if len(self.switches) > 1:
            raise self._unordered(id, f"the lease ran out at g {self.switches[0].g}", self.switches[1].g)

    def _unordered(self, id: str, why: str, g: int) -> EventsLost:  # noqa: A002
        return EventsLost(
            f"subscriber {id!r}: {why}; with min_subscriptions = 2 the events from there to g {g} cannot be put "
            "in an order that all share",
            remedy='start="now" (--start now) begins at the present and gives up all that is owed; '
            "give the subscription a longer lease_s",
        )

    # --- what can be asked --------------------------------------------------------------------------------------------

    @property
    def in_frontier_order(self) -> bool:
        """Whether entries cannot be trusted before the next change."""
        return bool(self.switches) and not self.switches[0].exact

    def partitions_of(self, *sets: Mapping[int, str]) -> set[int]:
        """The stamps partitions that hold the timestamps of sets."""
        return partitions_of((name for topics in sets for name in topics.values()), self.stamps_partitions)

    def intervals(self) -> list[tuple[float, Mapping[int, str]]]:
        """The sets that are owed the events from the set in force on, each with the position through which it holds.

        Behind a lapse it is the old set: what heals the lapse, in this process or a later one, is owed them.
        """
        found: list[tuple[float, Mapping[int, str]]] = []
        in_force = self.topics
        for switch in self.switches:
            if switch.lapse:
                break
            found.append((switch.g, in_force))
            in_force = switch.topics
        return [*found, (math.inf, in_force)]

    def count(self, topic: int, n: Ints, g: Ints) -> npt.NDArray[np.bool_]:
        """Which of a topic's stamps, at rising positions, are new; they are counted on. EventsLost where some are
        missing.
        """
        new = np.zeros(len(n), dtype=np.bool_)
        joins = self._joins.get(topic)
        start = 0
        while start < len(n):
            self._join(topic, int(g[start]))
            end = int(np.searchsorted(g, joins[0][0], side="right")) if joins else len(n)
            expected = self._expected[topic]
            # Seen are those below the greatest before; the others must each be one more than that.
            before = np.maximum.accumulate(np.append(expected - 1, n[start:end]))
            missing = np.flatnonzero(n[start:end] > before[:-1] + 1)
            if len(missing):
                first = missing[0]
                raise EventsLost(
                    f"the stamps {before[first] + 1} to {n[start + first] - 1} of {self.names[topic]!r} are missing "
                    f"before g {g[start + first]}",
                    remedy='start="now" (--start now) goes on behind the present end, and gives up what is owed before',
                )
            new[start:end] = n[start:end] > before[:-1]
            self._expected[topic] = int(before[-1]) + 1
            start = end
        return new

    def check(self, batch: StampedBatch, domain: str) -> None:
        """Contradiction for a batch of another domain, of other settings, or with other numbers of topics."""
        found = (batch.domain, batch.partitions, batch.min_subscriptions)
        if found != (domain, self.stamps_partitions, self.min_subscriptions):
            raise self._contradicts(
                f"batch {batch.batch} was made with domain, stamps_partitions, min_subscriptions = {found}, and the "
                f"grant says {(domain, self.stamps_partitions, self.min_subscriptions)}"
            )
        for topic, name in batch.names.items():
            if self.names.get(topic, name) != name or self.ids.get(name, topic) != topic:
                raise self._contradicts(f"batch {batch.batch} has another number for topic {name!r}: {topic}")

    def check_whole(self, g: int) -> None:
        """Dear (sequencer/wire/invariants.py): delivery has reached `g`."""
        changes = [switch.g for switch in self.switches]
        assert changes == sorted(set(changes)), "changes ahead do not follow each other"
        assert not changes or g < changes[0], f"delivery is at g {g}, and the change at {changes[0]} lies ahead"
        assert not changes or changes[-1] == self.chain_g, "the last change ahead is not the last one that is known"
        for topics in (self.topics, *(switch.topics for switch in self.switches)):
            assert topics.items() <= self.names.items(), "a set has a topic without its name"
        assert self.ids == {name: topic for topic, name in self.names.items()}, "names and numbers of topics differ"
        assert len(self.ids) == len(self.names), "two topics have one name"
        assert self.topics.keys() <= self._expected.keys(), "a topic of the set in force is not counted"

    def _join(self, topic: int, g: int) -> None:
        """Counts a topic from its clock at the last switch before `g` that brought it."""
        joins = self._joins.get(topic)
        while joins and g > joins[0][0]:
            self._expected[topic] = joins.popleft()[1] + 1
            if not joins:
                del self._joins[topic]

    def _name(self, topics: Mapping[int, str]) -> None:
        self.names.update(topics)
        self.ids = {name: topic for topic, name in self.names.items()}
