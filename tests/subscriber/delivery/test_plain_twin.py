"""The machine of columns beside the one that takes event by event: the same in every step, however it is fed."""

import random
from collections.abc import Sequence
from itertools import pairwise
from string import ascii_lowercase
from typing import Any

import pytest
from deliveries import Deliver
from delivery_world import plain
from engine_world import DOMAIN, configs, rows_of, run
from hypothesis import given, settings, strategies as st
from plain_delivery import PlainDelivery
from reference import Change, Event, Item, Loss, reference_deliveries, reference_intervals

from totalorder.errors import Error
from totalorder.sequencer.batch import Row
from totalorder.sequencer.wire.control import Grant, Retired
from totalorder.sequencer.wire.names import stamps_partition
from totalorder.sequencer.wire.position import Progress
from totalorder.sequencer.wire.stamps import Source, StampedBatch
from totalorder.subscriber.delivery import order, owed, rows
from totalorder.subscriber.delivery.effects import (
    DeliverLost,
    Finished,
    Granted,
    PauseEvents,
    PauseStamps,
    ReadEvents,
    ReadStamps,
    ResumeEvents,
    ResumeStamps,
    StopEvents,
    StopStamps,
    Switched,
)
from totalorder.subscriber.delivery.events import GONE, EventBlock
from totalorder.subscriber.delivery.machine import Delivery

TOPICS = [next(c for c in ascii_lowercase if stamps_partition(c, 4) == number) for number in range(4)]
"""Each has its stamps in another partition."""
ME = "me"
TOLD = Deliver | DeliverLost | Switched | Finished | Granted

changes = st.builds(Change, st.sampled_from([ME, ME, "r", "q"]), st.frozensets(st.sampled_from(TOPICS), min_size=1))
ends = st.just(Change(ME, frozenset()))
events = st.builds(Event, st.sampled_from(TOPICS))
losses = st.builds(Loss, st.integers(0, 2), st.integers(1, 3))
begins = st.builds(Change, st.just(ME), st.frozensets(st.sampled_from(TOPICS), min_size=2))


def worlds(*kinds: st.SearchStrategy[Item]) -> st.SearchStrategy[list[Item]]:
    """π that begins with a subscription of ours; half of all that follows are events."""
    rest = st.lists(st.one_of(*[events] * len(kinds), *kinds), min_size=1, max_size=60)
    return st.builds(lambda first, items: [first, *items], begins, rest)


many_worlds = worlds(changes, losses, ends)
whole_worlds = worlds(changes)


class World:
    """What the engine wrote, and both machines, which read it as the seed says."""

    def __init__(
        self,
        items: Sequence[Item],
        rng: random.Random,
        *,
        shards: int,
        m: int,
        forgotten: bool = False,
        retired: bool = False,
        position: Progress | None = None,
        cuts: list[int] | None = None,
        **settings: Any,
    ) -> None:
        self.rng, self.m = rng, m
        records = rows_of(items, topic_id="i")
        self.cuts = sorted(rng.choices(range(len(records) + 1), k=rng.randrange(12))) if cuts is None else cuts
        batches = [records[start:end] for start, end in pairwise([0, *self.cuts, len(records)])]
        _, effects = run(batches, configs(shards=shards, m=m))
        self.answers = [answer for effect in effects for answer in effect.answers]
        if forgotten:
            self._forget_links()
        if retired:
            who_says: dict[str, Any] = {
                "id": "job",
                "nonce": "n",
                "batch": 1,
                "incarnation": 1,
                "offset": 7,
                "lost": {},
            }
            self.answers.append(Retired(**who_says, g=len(records), topic="all", topic_id="i"))
        self.stamps: dict[int, list[StampedBatch]] = {}
        for effect in effects:
            for stamped in effect.stamps:
                self.stamps.setdefault(stamped.partition, []).append(stamped)
        self.events: dict[Source, list[Row]] = {}
        for row in records:
            if row.control is None:
                self.events.setdefault(Source(row.kafka_topic, row.topic_id, row.partition), []).append(row)
        who: dict[str, Any] = {"id": ME, "nonce": "n", "domain": DOMAIN, "position": position}
        self.machines = Delivery(**who, **settings), PlainDelivery(**who, **settings)
        self.told: tuple[list[Any], list[Any]] = [], []
        self.failed: Error | None = None
        self.reading: dict[object, int] = {"grants": 0}
        self.paused: set[object] = set()
        self.gone: dict[Source, int] = {}
        self.both("start")

    def _forget_links(self) -> None:
        """Compaction takes own grants that a later one follows: entries cannot be trusted over the hole."""
        own = [answer for answer in self.answers if isinstance(answer, Grant) and answer.id == ME]
        taken = [answer for answer in own[1:-1] if self.rng.random() < 0.5]
        self.answers = [answer for answer in self.answers if answer not in taken]

    def both(self, call: str, *arguments: Any, **named: Any) -> None:
        """One call of both machines, with the same outcome."""
        found: list[list[Any]] = []
        errors: list[Error | None] = []
        for machine in self.machines:
            error = None
            effects: list[Any] = []
            try:
                effects = self._call(machine, call, *arguments, **named)
            except Error as raised:
                error = raised
            found.append(effects)
            errors.append(error)
        assert str(errors[0]) == str(errors[1])
        self.failed = errors[0]
        if self.failed is None:
            self._compare(*found)

    def _call(self, machine: Any, call: str, *arguments: Any, **named: Any) -> list[Any]:
        if call != "events" or isinstance(machine, Delivery):
            return plain(getattr(machine, call)(*arguments, **named) or [])
        source, block = arguments
        return [
            effect
            for offset, topic, crc, handle in zip(*block, strict=True)
            for effect in machine.event(source=source, offset=offset, topic=topic, crc=crc, handle=handle)
        ]

    def _compare(self, ours: list[Any], theirs: list[Any]) -> None:
        for told, effects in zip(self.told, (ours, theirs), strict=True):
            told += [_told(effect) for effect in effects if isinstance(effect, TOLD)]
        if self.m == 1:
            assert self.told[0] == self.told[1]
        else:
            self._compare_unordered()
        for kinds in ((ReadEvents, StopEvents), (ReadStamps, StopStamps)):
            last = [{_place(one): one for one in effects if isinstance(one, kinds)} for effects in (ours, theirs)]
            assert last[0] == last[1]
        one, other = (machine.buffered() for machine in self.machines)
        assert one == other
        if self.m == 1 or not one.unacknowledged:
            assert self.machines[0].position() == self.machines[1].position()
        for effect in ours:
            self._carry_out(effect)

    def _compare_unordered(self) -> None:
        """With m = 2 either may hand out first what nothing puts in order; each topic and partition is in order."""
        one, other = ([each for each in told if isinstance(each, Deliver)] for told in self.told)
        assert sorted(each[:-1] for each in map(_bare, one)) == sorted(each[:-1] for each in map(_bare, other))
        for key in ("topic", "source"):
            for value in {getattr(each, key) for each in one}:
                assert [each.g for each in one if getattr(each, key) == value] == [
                    each.g for each in other if getattr(each, key) == value
                ]
        assert [each.sequence for each in one] == list(range(1, len(one) + 1))

    def _carry_out(self, effect: Any) -> None:
        if isinstance(effect, ReadStamps):
            self.reading[effect.partition] = effect.offset
            self.paused.discard(effect.partition)
        elif isinstance(effect, ReadEvents):
            self.reading[effect.source] = sum(row.offset < effect.offset for row in self.events.get(effect.source, []))
            self.paused.discard(effect.source)
        elif isinstance(effect, StopEvents | StopStamps):
            self.reading.pop(_place(effect), None)
        elif isinstance(effect, PauseEvents | PauseStamps):
            self.paused.add(_place(effect))
        elif isinstance(effect, ResumeEvents | ResumeStamps):
            self.paused.discard(_place(effect))

    # --- steps --------------------------------------------------------------------------------------------------------

    def read_on(self, *, most: int = 5, faults: bool = True) -> bool:
        """One step; False when all is read."""
        todo = [key for key, at in self.reading.items() if at < len(self._log(key)) and key not in self.paused]
        if not todo:
            return False
        key, chance = self.rng.choice(todo), self.rng.random()
        if faults and chance < 0.1:
            self._repeat()
        elif faults and chance < 0.2:
            self.both("acknowledge", self.rng.randint(0, len(self.told[0])))
        else:
            self._read(key, self.rng.randint(1, most))
        return True

    def _log(self, key: object) -> Sequence[Any]:
        if key == "grants":
            return self.answers
        return self.stamps.get(key, []) if isinstance(key, int) else self.events.get(key, [])  # type: ignore[call-overload]

    def _read(self, key: object, most: int) -> None:
        at = self.reading[key]
        log = self._log(key)[at : at + most]
        if key == "grants":
            self.reading[key] = at + 1
            self.both("answer", log[0])
        elif isinstance(key, int):
            self.reading[key] = at + 1
            self.both("stamped", log[0], offset=at, next_offset=at + 1)
        else:
            self.reading[key] = at + len(log)
            self.both("events", key, block_of(log))

    def _repeat(self) -> None:
        """A batch, or events, that were read come once more."""
        number = self.rng.choice(list(self.stamps))
        read = self.reading.get(number, 0)
        if read:
            at = self.rng.randrange(read)
            self.both("stamped", self.stamps[number][at], offset=read, next_offset=read)
        for source, log in self.events.items():
            read = self.reading.get(source, 0)
            if read and self.failed is None:
                start, end = self.rng.randrange(read), min(len(log), read + self.rng.randint(0, 2))
                self.reading[source] = end
                self.both("events", source, block_of(log[start:end]))

    def trim(self) -> None:
        """Kafka loses the oldest of a partition, or the whole of it."""
        source = self.rng.choice(list(self.events))
        if source not in self.reading:
            return
        log, at = self.events[source], self.reading[source]
        end = self.rng.randint(at, len(log))
        whole = self.rng.random() < 0.3
        offset = GONE if whole else log[end].offset if end < len(log) else log[-1].offset + 1
        self.reading[source] = len(log) if whole else end
        self.both("gone", source, offset)

    def live(self, *, trims: bool = False) -> None:
        """To all ends, or to the first error."""
        while self.failed is None and self.read_on():
            if trims and self.failed is None and self.events and self.rng.random() < 0.05:
                self.trim()


def block_of(log: Sequence[Row]) -> EventBlock:
    return EventBlock(
        [row.offset for row in log], [row.topic for row in log], [row.crc for row in log], list(map(tuple, log))
    )


def _told(effect: Any) -> Any:
    """How far reading had gone on behind a loss hangs on how much was fed at a time."""
    return effect._replace(found=0) if isinstance(effect, DeliverLost) else effect


def _place(effect: Any) -> object:
    return getattr(effect, "source", getattr(effect, "partition", None))


def _bare(deliver: Deliver) -> tuple[Any, ...]:
    return (deliver.g, deliver.topic, deliver.n, deliver.source, deliver.offset, sorted(deliver.entries.items()), 0)


@pytest.fixture(autouse=True, params=["narrow", "as it is"])
def looks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How much is looked at, kept and counted together, also as little as can be."""
    if request.param == "narrow":
        for module, name, value in (
            (order, "_LOOK_AHEAD", 2),
            (order, "_FIRST", 1),
            (order, "_MOST", 3),
            (order, "_SMALL", 2),
            (rows, "_FEW", 0),
            (owed, "_LEAST", 1),
        ):
            monkeypatch.setattr(module, name, value)


seeds = st.integers(0, 2**32)
tiny = st.fixed_dictionaries(
    {"max_buffered": st.sampled_from([1, 2, 5, 1000]), "max_waiting": st.sampled_from([1, 4, 50_000])}
)


@settings(max_examples=150, deadline=None)
@given(many_worlds, st.integers(1, 4), tiny, seeds)
def test_the_same_comes_out_in_every_step(items: list[Item], shards: int, limits: dict[str, Any], seed: int) -> None:
    world = World(items, random.Random(seed), shards=shards, m=1, **limits)
    world.live()
    assert world.failed is None
    expected = reference_deliveries(items, reference_intervals(items, ME))
    told = [each.g for each in world.told[0] if isinstance(each, Deliver | DeliverLost)]
    over = any(isinstance(each, Finished) for each in world.told[0])
    assert told == (expected[: len(told)] if over else expected)


@settings(max_examples=100, deadline=None)
@given(many_worlds, st.integers(1, 4), tiny, seeds)
def test_the_same_of_what_kafka_has_no_longer(
    items: list[Item], shards: int, limits: dict[str, Any], seed: int
) -> None:
    world = World(items, random.Random(seed), shards=shards, m=1, retired=True, **limits)
    world.live(trims=True)


@settings(max_examples=100, deadline=None)
@given(many_worlds, st.integers(1, 4), tiny, seeds)
def test_the_same_by_frontiers_where_links_are_missing(
    items: list[Item], shards: int, limits: dict[str, Any], seed: int
) -> None:
    world = World(items, random.Random(seed), shards=shards, m=1, forgotten=True, **limits)
    world.live()


@settings(max_examples=100, deadline=None)
@given(whole_worlds, st.integers(1, 4), tiny, seeds)
def test_with_m_2_the_same_events_come_in_every_step(
    items: list[Item], shards: int, limits: dict[str, Any], seed: int
) -> None:
    world = World(items, random.Random(seed), shards=shards, m=2, **limits)
    world.live()


@settings(max_examples=100, deadline=None)
@given(many_worlds, st.integers(1, 4), tiny, seeds)
def test_both_go_on_alike_from_any_position(items: list[Item], shards: int, limits: dict[str, Any], seed: int) -> None:
    rng = random.Random(seed)
    first = World(items, rng, shards=shards, m=1, **limits)
    for _ in range(rng.randrange(60)):
        if not first.read_on():
            break
    first.both("acknowledge", rng.randint(0, len(first.told[0])))
    if not first.machines[0].position().generation:
        return
    last = max(each.g for each in [*first.told[0], Granted(generation=0, g=0, lease_s=0)])
    again = [*items, Change(ME, frozenset(TOPICS[:2]))]
    second = World(
        again,
        rng,
        shards=shards,
        m=1,
        cuts=[*first.cuts, len(items)],
        position=first.machines[0].position(),
        delivered_through=rng.randint(0, last),
        **limits,
    )
    second.live()
    assert second.failed is None


def test_it_would_see_a_difference() -> None:
    """A machine that forgets one event of a block does not pass."""

    class Careless(Delivery):
        def events(self, source: Source, block: EventBlock) -> Any:
            return super().events(source, EventBlock(*(column[:-1] for column in block)))  # type: ignore[arg-type]

    items: list[Item] = [Change(ME, frozenset(TOPICS[:2])), *[Event(TOPICS[0]), Event(TOPICS[1])] * 5]
    world = World(items, random.Random(1), shards=1, m=1)
    world.machines = Careless(id=ME, nonce="n", domain=DOMAIN), world.machines[1]
    with pytest.raises(AssertionError):
        world.live()
