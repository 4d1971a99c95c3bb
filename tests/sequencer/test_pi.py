"""π from cuts, records and stamps alone is the engine's, and stamps that say otherwise are found."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from engine_world import DOMAIN, configs
from reference import Logged, reference_order
from sources import src

from totalorder.errors import Contradiction
from totalorder.sequencer.batch import Batch, Row
from totalorder.sequencer.engine import initial_state, step
from totalorder.sequencer.pi import Records, misplaced, order_of, ranked
from totalorder.sequencer.wire.cuts import Cut, CutEncoder, CutsAssembler
from totalorder.sequencer.wire.stamps import KafkaTopic, Source, StampedBatch

CONTROL = Source(f"{DOMAIN}.control", "id", 0)
SOURCES = (CONTROL, *(src(topic, partition) for topic in "ab" for partition in range(2)))
LATER = (src("Z"), src("c"), src("a", 0, "again"), src("Z", 1, "again"))


@dataclass
class Published:
    """A batch: its cut, what the cut took of event partitions, and what the engine made of it."""

    cut: Cut
    logged: list[Logged]
    time_ms: int
    stamps: tuple[StampedBatch, ...]

    @property
    def records(self) -> Records:
        places = {source: place for place, source in enumerate(self.cut.sources)}
        columns = [
            (places[Source(row.kafka_topic, row.topic_id, row.partition)], row.offset, row.timestamp_ms)
            for row in self.logged
        ]
        source, offset, timestamp_ms = np.array(columns, dtype=np.int64).reshape(-1, 3).T
        return Records(source=source, offset=offset, timestamp_ms=timestamp_ms)


class Story:
    """A random domain: topics join, clocks lie, some offsets hold no record, and some events tell no topic."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.ends = dict.fromkeys(SOURCES, 0)
        self.order = tuple(self.rng.sample(["a", "b", "Z"], self.rng.randint(0, 3)))
        self.state = initial_state(configs(partitions=2)[0])

    def batch(self, number: int) -> Published:
        if self.rng.random() < 0.5:
            self.ends = {source: self.rng.randint(0, 9) for source in LATER} | self.ends
        begins, slices = dict(self.ends), self.rng.randint(1, 4)
        advanced = [self.advance() for _ in range(slices)]
        logged = [row for slice_, look in enumerate(advanced) for row in self.publish(slice_, look)]
        sources = list(begins)
        cut = Cut.of(
            domain=DOMAIN,
            incarnation=1,
            cut=number,
            sources=sources,
            begins=list(begins.values()),
            ends=list(self.ends.values()),
            looks=[[(sources.index(source), count) for source, count in look.items()] for look in advanced[:-1]],
            topic_order=self.order,
        )
        self.rng.shuffle(logged)
        rows = [row_of(row, self.rng) for row in logged]
        self.state, effects = step(self.state, Batch.of(15, rows, cut=number, topic_order=self.order), {})
        events = [row for row in logged if row.kafka_topic != CONTROL.topic]
        return Published(cut=cut, logged=events, time_ms=15, stamps=effects.stamps)

    def advance(self) -> dict[Source, int]:
        return {CONTROL: 1} | {source: self.rng.randint(1, 3) for source in self.ends if self.rng.random() < 0.6}

    def publish(self, slice_: int, look: Mapping[Source, int]) -> Iterator[Logged]:
        for source, count in look.items():
            begin = self.ends[source]
            self.ends[source] += count
            for offset in range(begin, begin + count):
                if source == CONTROL or self.rng.random() < 0.9:
                    yield Logged(*source[::2], offset, self.rng.randint(0, 20), slice_, source.topic_id)


def story(seed: int, *, batches: int = 4) -> list[Published]:
    """The first batches of a random domain."""
    told = Story(seed)
    return [told.batch(number) for number in range(1, batches + 1)]


def row_of(row: Logged, rng: random.Random) -> Row:
    control = b"" if row.kafka_topic == CONTROL.topic else None
    return Row(*row[:4], topic=rng.choice(["T", "U", ""]), control=control, slice=row.slice, topic_id=row.topic_id)


@pytest.mark.parametrize("seed", range(60))
def test_it_is_that_of_the_definition_and_of_the_stamps(seed: int) -> None:
    ranks: Mapping[KafkaTopic, int] = {}
    encoder, assembler = CutEncoder(key_every=2), CutsAssembler(domain=DOMAIN)
    for batch in story(seed):
        ranks = ranked(ranks, batch.stamps[0])
        record = encoder.encode(batch.cut)
        (cut,) = assembler.add(record.value, dict(record.headers))
        order = order_of(cut, batch.records, time_ms=batch.time_ms, ranks=ranks)
        expected = reference_order(batch.logged, time_ms=batch.time_ms, topic_order=batch.cut.topic_order, ranks=ranks)
        assert [batch.logged[row] for row in order.tolist()] == expected
        assert misplaced(cut, batch.records, batch.stamps, ranks) is None


def test_two_events_that_changed_places_are_found() -> None:
    found = 0
    for seed in range(60):
        ranks: Mapping[KafkaTopic, int] = {}
        for batch in story(seed):
            ranks = ranked(ranks, batch.stamps[0])
            forged = with_two_exchanged(batch.stamps)
            if forged is not None:
                found += 1
                assert misplaced(batch.cut, batch.records, forged, ranks) is not None
    assert found > 50


def with_two_exchanged(stamps: Sequence[StampedBatch]) -> list[StampedBatch] | None:
    """The first two events of one stamps partition have each other's g."""
    for at, one in enumerate(stamps):
        if len(one.rows) >= 2:
            g = one.rows.g.copy()
            g[:2] = g[1::-1]
            return [*stamps[:at], replace(one, rows=replace(one.rows, g=g)), *stamps[at + 1 :]]
    return None


def test_what_does_not_belong_together_is_a_contradiction() -> None:
    batch = next(one for one in story(1) if any(len(stamped.rows) for stamped in one.stamps))
    ranks = ranked({}, batch.stamps[0])
    records = batch.records
    with pytest.raises(Contradiction, match="not those of cut"):
        misplaced(replace(batch.cut, cut=9), records, batch.stamps, ranks)
    with pytest.raises(Contradiction, match="stamps know nothing of"):
        order_of(batch.cut, records, time_ms=15, ranks={})
    moved = Records(source=records.source, offset=records.offset + 100, timestamp_ms=records.timestamp_ms)
    with pytest.raises(Contradiction, match=rf"is no record of cut {batch.cut.cut}"):
        order_of(batch.cut, moved, time_ms=15, ranks=ranks)
    none = Records(source=records.source[:0], offset=records.offset[:0], timestamp_ms=records.timestamp_ms[:0])
    with pytest.raises(Contradiction, match=rf"is no record of cut {batch.cut.cut}"):
        misplaced(batch.cut, none, batch.stamps, ranks)


def test_slices_of_records_are_those_of_a_dumb_twin() -> None:
    for batch in story(3, batches=30):
        cut = batch.cut
        for at, source in enumerate(cut.sources):
            for offset in range(int(cut.begins[at]) - 2, int(cut.ends[at]) + 3):
                parts = [part.slice for part in cut.parts if part.source == source and part.begin <= offset < part.end]
                (found,) = cut.slices_at(np.array([at]), np.array([offset])).tolist()
                assert [found] == (parts or [-1])
