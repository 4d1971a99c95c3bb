"""The machine against a dumb twin: the real engine's stamps in any interleaving against π counted from scratch."""

import random
from collections.abc import Sequence
from itertools import pairwise

from deliveries import Deliver
from delivery_world import one_event, plain
from engine_world import DOMAIN, KAFKA_PARTITIONS, configs, rows_of, run
from hypothesis import given, settings, strategies as st
from reference import Change, Event, Item, Loss, reference_deliveries, reference_intervals

from totalorder.sequencer.batch import Row
from totalorder.sequencer.wire.control import Skipped
from totalorder.sequencer.wire.stamps import Source, StampedBatch
from totalorder.subscriber.delivery.effects import DeliverLost, ReadEvents, ReadStamps
from totalorder.subscriber.delivery.machine import Delivery

TOPICS = "abcd"
ME = "me"

sets = st.frozensets(st.sampled_from(TOPICS), min_size=1)
changes = st.builds(Change, st.sampled_from([ME, "r", "q"]), sets)
losses = st.builds(Loss, st.integers(0, KAFKA_PARTITIONS - 1), st.integers(1, 3))
events = st.builds(Event, st.sampled_from(TOPICS))


def _worlds(*kinds: st.SearchStrategy[Item]) -> st.SearchStrategy[list[Item]]:
    """Of most a subscriber has something: where it comes late, or never, there is little to compare."""
    first = st.lists(st.builds(Change, st.just(ME), sets), max_size=1)
    some, many = (st.lists(st.one_of(events, events, *kinds), min_size=least, max_size=40) for least in (1, 15))
    return st.builds(list.__add__, first, st.one_of(some, many))


whole_worlds, worlds = _worlds(changes), _worlds(changes, losses)


class Logs:
    """What the engine wrote, and one machine that reads it in an order that the seed says.

    With `ghosts` the machine reads some of what is lost before it is gone.
    """

    def __init__(
        self, items: Sequence[Item], cuts: Sequence[int], *, shards: int, m: int, ghosts: random.Random | None = None
    ) -> None:
        self.rows = rows_of(items, topic_id="i")
        bounds = [0, *sorted(cuts), len(self.rows)]
        batches = [self.rows[start:end] for start, end in pairwise(bounds)]
        _, effects = run(batches, configs(shards=shards, m=m))
        self.answers = [answer for effect in effects for answer in effect.answers]
        self.stamps: dict[int, list[StampedBatch]] = {}
        for effect in effects:
            for stamped in effect.stamps:
                self.stamps.setdefault(stamped.partition, []).append(stamped)
        self.events: dict[Source, list[Row]] = {}
        for row in self.rows:
            if row.control is None:
                self.events.setdefault(Source(row.kafka_topic, row.topic_id, row.partition), []).append(row)
        if ghosts is not None:
            for source, begin, end in self.lost():
                more = [
                    Row(source.topic, source.partition, offset, 0, ghosts.choice(TOPICS), 7, topic_id=source.topic_id)
                    for offset in range(begin, end)
                    if ghosts.random() < 0.5
                ]
                log = self.events.setdefault(source, [])
                log[:] = sorted([*log, *more], key=lambda row: row.offset)

    def lost(self) -> list[tuple[Source, int, int]]:
        """What was lost, in the order of its positions."""
        return [
            (Source(answer.topic, answer.topic_id, partition), begin, end)
            for answer in self.answers
            if isinstance(answer, Skipped)
            for partition, (begin, end) in answer.lost.items()
        ]

    def deliver(self, rng: random.Random, machine: Delivery) -> list[Deliver | DeliverLost]:
        """Everything that the machine delivers when it reads to all ends."""
        delivered: list[Deliver | DeliverLost] = []
        reading: dict[object, int] = {"grants": 0}
        effects: Sequence[object] = plain(machine.start())
        while True:
            for effect in effects:
                if isinstance(effect, Deliver | DeliverLost):
                    delivered.append(effect)
                elif isinstance(effect, ReadStamps):
                    reading[effect.partition] = effect.offset
                elif isinstance(effect, ReadEvents):
                    log = self.events.get(effect.source, [])
                    reading[effect.source] = sum(row.offset < effect.offset for row in log)
            todo = [key for key, index in reading.items() if index < len(self._log(key))]
            if not todo:
                return delivered
            effects = self._next(machine, rng.choice(todo), reading)

    def _log(self, key: object) -> Sequence[object]:
        if key == "grants":
            return self.answers
        return self.stamps.get(key, []) if isinstance(key, int) else self.events.get(key, [])  # type: ignore[call-overload]

    def _next(self, machine: Delivery, key: object, reading: dict[object, int]) -> Sequence[object]:
        index = reading[key]
        reading[key] = index + 1
        if key == "grants":
            return plain(machine.answer(self.answers[index]))
        if isinstance(key, int):
            return plain(machine.stamped(self.stamps[key][index], offset=index, next_offset=index + 1))
        row = self.events[key][index]  # type: ignore[index]
        return one_event(machine, source=key, offset=row.offset, topic=row.topic, crc=row.crc, handle=row)  # type: ignore[arg-type]


@settings(max_examples=150, deadline=None)
@given(worlds, st.lists(st.integers(0, 40), max_size=5), st.integers(1, 4), st.integers(0, 2**32))
def test_delivers_exactly_what_pi_says(items: list[Item], cuts: list[int], shards: int, seed: int) -> None:
    rng = random.Random(seed)
    logs = Logs(items, [min(cut, len(items)) for cut in cuts], shards=shards, m=1, ghosts=rng)
    machine = Delivery(id=ME, nonce="n", domain=DOMAIN, max_buffered=10**6)
    delivered = logs.deliver(rng, machine)
    expected = reference_deliveries(items, reference_intervals(items, ME))
    assert [deliver.g for deliver in delivered] == expected
    assert [deliver.sequence for deliver in delivered] == list(range(1, len(expected) + 1))
    told = [(each.source, each.begin, each.end) for each in delivered if isinstance(each, DeliverLost)]
    places = [g for g, item in enumerate(items, 1) if isinstance(item, Loss)]
    assert told == [each for g, each in zip(places, logs.lost(), strict=True) if g in expected]
    machine.acknowledge(len(delivered))
    assert machine.buffered().events == 0


@settings(max_examples=100, deadline=None)
@given(whole_worlds, st.lists(st.integers(0, 40), max_size=5), st.integers(1, 4), st.integers(0, 2**32))
def test_with_m_2_each_topic_is_whole_and_common_pairs_agree(
    items: list[Item], cuts: list[int], shards: int, seed: int
) -> None:
    logs = Logs(items, [min(cut, len(items)) for cut in cuts], shards=shards, m=2)
    rng = random.Random(seed)
    sequences = {}
    for id_ in (ME, "r", "q"):
        machine = Delivery(id=id_, nonce="n", domain=DOMAIN, max_buffered=10**6)
        sequences[id_] = [deliver.g for deliver in logs.deliver(rng, machine)]
        assert sorted(sequences[id_]) == reference_deliveries(items, reference_intervals(items, id_))
    for one in sequences.values():
        for other in sequences.values():
            common = set(one) & set(other)
            assert [g for g in one if g in common] == [g for g in other if g in common]


@settings(max_examples=100, deadline=None)
@given(worlds, st.lists(st.integers(0, 40), max_size=5), st.data())
def test_goes_on_from_any_acknowledged_place(items: list[Item], cuts: list[int], data: st.DataObject) -> None:
    """A second machine from a position of the first delivers exactly the rest, with the chain known or read again."""
    cuts = [min(cut, len(items)) for cut in cuts]
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    first = Delivery(id=ME, nonce="n", domain=DOMAIN, max_buffered=10**6)
    expected = [deliver.g for deliver in Logs(items, cuts, shards=1, m=1).deliver(rng, first)]
    acked = data.draw(st.integers(0, len(expected)))
    first.acknowledge(acked)
    if not reference_intervals(items, ME):
        return
    second = Delivery(id=ME, nonce="n", domain=DOMAIN, position=first.position(), max_buffered=10**6)
    with_its_grant = [*items, Change(ME, frozenset(TOPICS))]
    logs = Logs(with_its_grant, [*cuts, len(items)], shards=1, m=1)
    assert [deliver.g for deliver in logs.deliver(rng, second)] == expected[acked:]
