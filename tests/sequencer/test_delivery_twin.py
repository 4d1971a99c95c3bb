"""The machine against a dumb twin: the real engine's stamps in any interleaving against π counted from scratch."""

import random
from collections.abc import Sequence
from itertools import pairwise

from engine_world import DOMAIN, configs, rows_of, run
from hypothesis import given, settings, strategies as st
from reference import Change, Event, Item, reference_deliveries, reference_intervals
from sources import bare

from totalorder.sequencer.batch import Row
from totalorder.sequencer.delivery import Delivery
from totalorder.sequencer.delivery_effects import Deliver, ReadEvents, ReadStamps
from totalorder.sequencer.stamps import Source, StampedBatch

TOPICS = "abcd"
ME = "me"

changes = st.builds(Change, st.sampled_from([ME, "r", "q"]), st.frozensets(st.sampled_from(TOPICS), min_size=1))
worlds = st.lists(st.one_of(st.builds(Event, st.sampled_from(TOPICS)), changes), min_size=1, max_size=40)


class Logs:
    """What the engine wrote, and one machine that reads it in an order that the seed says."""

    def __init__(self, items: Sequence[Item], cuts: Sequence[int], *, shards: int, m: int) -> None:
        self.rows = rows_of(items)
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
                self.events.setdefault(bare(row.kafka_topic, row.partition), []).append(row)

    def deliver(self, rng: random.Random, machine: Delivery) -> list[Deliver]:
        """Everything that the machine delivers when it reads to all ends."""
        delivered: list[Deliver] = []
        reading: dict[object, int] = {"grants": 0}
        effects: Sequence[object] = machine.start()
        while True:
            for effect in effects:
                if isinstance(effect, Deliver):
                    delivered.append(effect)
                elif isinstance(effect, ReadStamps):
                    reading[effect.partition] = effect.offset
                elif isinstance(effect, ReadEvents):
                    reading[effect.source] = effect.offset
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
            return machine.answer(self.answers[index])
        if isinstance(key, int):
            return machine.stamped(self.stamps[key][index], offset=index, next_offset=index + 1)
        row = self.events[key][index]  # type: ignore[index]
        return machine.event(source=key, offset=row.offset, topic=row.topic, crc=row.crc, handle=row)  # type: ignore[arg-type]


@settings(max_examples=150, deadline=None)
@given(worlds, st.lists(st.integers(0, 40), max_size=5), st.integers(1, 4), st.integers(0, 2**32))
def test_delivers_exactly_what_pi_says(items: list[Item], cuts: list[int], shards: int, seed: int) -> None:
    logs = Logs(items, [min(cut, len(items)) for cut in cuts], shards=shards, m=1)
    machine = Delivery(id=ME, nonce="n", domain=DOMAIN, max_buffered=10**6)
    delivered = logs.deliver(random.Random(seed), machine)
    expected = reference_deliveries(items, reference_intervals(items, ME))
    assert [deliver.g for deliver in delivered] == expected
    machine.acknowledge(len(delivered))
    assert machine.buffered().events == 0


@settings(max_examples=100, deadline=None)
@given(worlds, st.lists(st.integers(0, 40), max_size=5), st.integers(1, 4), st.integers(0, 2**32))
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
