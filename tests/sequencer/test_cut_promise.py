"""The promise of the cut: what is later by more than a look is never before, whatever the clocks say.

Real time is known here alone, in µs. π is made of slices and of the records' own times, which are decades off.
"""

import random
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from hypothesis import given, strategies as st

from totalorder.sequencer.order import pi_order

Source = tuple[int, int]
"""Rank and partition."""
SOURCES: list[Source] = [(-1, 0), (0, 0), (0, 1), (1, 0)]
DECADES_MS = 10**12
END_US = 100
BATCH_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Append:
    """A record as it came into the log, at a moment of real time."""

    at_us: int
    source: Source
    timestamp_ms: int
    offset: int


@dataclass(frozen=True)
class Look:
    """When the end of each source was asked for; the look begins and ends with the first and the last of them."""

    asked_us: dict[Source, int]

    @property
    def begin_us(self) -> int:
        return min(self.asked_us.values())

    @property
    def end_us(self) -> int:
        return max(self.asked_us.values())


CLOCKS_MS = [0, 0, 2, -2, -2_000, DECADES_MS, -DECADES_MS]


def appends(rng: random.Random, count: int) -> list[Append]:
    """In the order of real time; each source's producer has a clock of its own, and at times another one."""
    clock = {source: rng.choice(CLOCKS_MS) for source in SOURCES}
    ends = dict.fromkeys(SOURCES, 0)
    found = []
    for at_us in sorted(rng.sample(range(END_US), count)):
        source = rng.choice(SOURCES)
        off_ms = clock[source] if rng.random() < 0.8 else rng.choice(CLOCKS_MS)
        ends[source] += rng.randint(1, 2)  # some offsets hold no record
        found.append(Append(at_us, source, BATCH_MS + at_us + off_ms, ends[source]))
    return found


def looks_at(rng: random.Random) -> list[Look]:
    """One after another, from before the first append to behind the last, each as long as it likes."""
    found: list[Look] = []
    longest, pause = rng.choice([0, 3, 20]), rng.choice([1, 12])
    now = -longest - rng.randint(0, 10)
    while not found or found[-1].begin_us <= END_US:
        found.append(Look({source: now + rng.randint(0, longest) for source in SOURCES}))
        now = found[-1].end_us + rng.randint(1, pause)
    return found


def slice_of(record: Append, looks: list[Look]) -> int:
    """The first look that has it."""
    return next(number for number, look in enumerate(looks) if record.at_us < look.asked_us[record.source])


def in_pi(slices: list[list[Append]], divided: dict[int, dict[Source, int]]) -> list[Append]:
    """Batch after batch; a batch ends within each slice that is divided, and has so many of each source of it."""
    order: list[Append] = []
    batch: list[list[Append]] = []
    for number, records in enumerate(slices):
        if number in divided:
            part = [r for at, r in enumerate(records) if place(records, at) < divided[number][r.source]]
            order += sorted_batch([*batch, part])
            batch, records = [], [record for record in records if record not in part]
        batch.append(records)
    return order + sorted_batch(batch)


def place(records: list[Append], at: int) -> int:
    """How many records of the same source are before it."""
    return sum(record.source == records[at].source for record in records[:at])


def sorted_batch(slices: list[list[Append]]) -> list[Append]:
    rows = [(number, record) for number, records in enumerate(slices) for record in records]

    def column(values: list[int]) -> np.ndarray:
        return np.array(values, dtype=np.int64)

    order = pi_order(
        slice_=column([number for number, _ in rows]),
        rank=column([record.source[0] for _, record in rows]),
        precedence=column([-record.source[0] if record.source[0] >= 0 else -9 for _, record in rows]),
        partition=column([record.source[1] for _, record in rows]),
        offset=column([record.offset for _, record in rows]),
        timestamp_ms=column([record.timestamp_ms for _, record in rows]),
        time_ms=BATCH_MS,
    )
    return [rows[row][1] for row in order.tolist()]


@given(seed=st.integers(0, 2**32), count=st.integers(0, 40))
def test_what_is_later_by_more_than_a_look_is_never_before(seed: int, count: int) -> None:
    rng = random.Random(seed)
    records, looks = appends(rng, count), looks_at(rng)
    slices = [[record for record in records if slice_of(record, looks) == number] for number in range(len(looks))]
    bounds = rng.sample(range(len(looks)), rng.randint(0, 4))
    order = in_pi(slices, {bound: {source: rng.randint(0, 3) for source in SOURCES} for bound in bounds})
    assert sorted(order, key=lambda record: record.at_us) == records
    period_us = max(later.begin_us - look.begin_us for look, later in pairwise(looks))
    duration_us = max(look.end_us - look.begin_us for look in looks)
    for at, earlier in enumerate(order):
        for later in order[at + 1 :]:
            assert later.at_us + period_us + duration_us >= earlier.at_us, (period_us, duration_us)


def test_closer_than_that_the_clocks_or_a_look_under_way_may_put_the_later_one_first() -> None:
    """A parent that a look just missed, and a child that the next one, which has both, got at its very end."""
    first, second = SOURCES[1], SOURCES[3]
    looks = [Look(dict.fromkeys(SOURCES, 5)), Look(dict.fromkeys(SOURCES, 15) | {second: 19})]
    parent, child = Append(5, first, BATCH_MS, 0), Append(18, second, BATCH_MS - 1, 0)
    assert [slice_of(record, looks) for record in (parent, child)] == [1, 1]
    assert in_pi([[], [parent, child]], {}) == [child, parent]
    # The look began before the parent was there, and came to the child's partition after the child.
    looks = [Look(dict.fromkeys(SOURCES, 5) | {second: 9}), Look(dict.fromkeys(SOURCES, 10))]
    parent, child = Append(5, first, BATCH_MS, 0), Append(8, second, BATCH_MS, 0)
    assert [slice_of(record, looks) for record in (parent, child)] == [1, 0]
    assert in_pi([[child], [parent]], {}) == [child, parent]
