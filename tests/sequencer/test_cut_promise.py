"""The promise of the cut: what is later by more than a look is never before, whatever the clocks say.

Real time is known here alone, in µs. π is made of slices and of the records' own times, which are decades off.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from hypothesis import given, strategies as st

from totalorder.sequencer.order import pi_order

Source = tuple[int, int]
"""Rank and partition."""
SOURCES: list[Source] = [(-1, 0), (0, 0), (0, 1), (1, 0)]
DECADES_MS = 10**12
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


clocks_ms = st.sampled_from([0, 0, 2, -2, -2_000, DECADES_MS, -DECADES_MS])


@st.composite
def appends(draw: st.DrawFn) -> list[Append]:
    """In the order of real time; each source's producer has a clock of its own, and at times another one."""
    clock = {source: draw(clocks_ms) for source in SOURCES}
    ends = dict.fromkeys(SOURCES, 0)
    found = []
    for at_us in sorted(draw(st.lists(st.integers(0, 100), unique=True, max_size=25))):
        source = draw(st.sampled_from(SOURCES))
        off_ms = clock[source] if draw(st.integers(0, 4)) else draw(clocks_ms)
        ends[source] += draw(st.integers(1, 2))  # some offsets hold no record
        found.append(Append(at_us, source, BATCH_MS + at_us + off_ms, ends[source]))
    return found


@st.composite
def looks(draw: st.DrawFn) -> list[Look]:
    """One after another, from before the first append to behind the last, each as long as it likes."""
    found: list[Look] = []
    now = -draw(st.integers(0, 10))
    while not found or found[-1].begin_us <= 100:
        asked = {source: now + draw(st.integers(0, 8)) for source in SOURCES}
        found.append(Look(asked))
        now = found[-1].end_us + draw(st.integers(1, 12))
    return found


def slice_of(record: Append, looks: list[Look]) -> int:
    """The first look that has it."""
    return next(number for number, look in enumerate(looks) if record.at_us < look.asked_us[record.source])


def in_pi(slices: list[list[Append]], bounds: list[int], divided: dict[int, dict[Source, int]]) -> list[Append]:
    """Batch after batch; a batch ends before the slice of each bound, or with a part of it: so many of each source."""
    order: list[Append] = []
    batch: list[list[Append]] = []
    for number, records in enumerate(slices):
        if number in bounds:
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


parts = st.fixed_dictionaries({source: st.integers(0, 3) for source in SOURCES})


@given(records=appends(), looks=looks(), data=st.data())
def test_what_is_later_by_more_than_a_look_is_never_before(
    records: list[Append], looks: list[Look], data: st.DataObject
) -> None:
    slices: list[list[Append]] = [[] for _ in looks]
    for record in records:
        slices[slice_of(record, looks)].append(record)
    bounds = data.draw(st.lists(st.integers(0, len(looks) - 1), unique=True, max_size=4))
    order = in_pi(slices, bounds, {bound: data.draw(parts) for bound in bounds})
    assert sorted(order, key=lambda record: record.at_us) == records
    period_us = max((later.begin_us - look.begin_us for look, later in pairwise(looks)), default=0)
    duration_us = max(look.end_us - look.begin_us for look in looks)
    for at, earlier in enumerate(order):
        for later in order[at + 1 :]:
            assert later.at_us + period_us + duration_us >= earlier.at_us, (period_us, duration_us)


def test_a_look_under_way_may_have_the_later_one_alone() -> None:
    """So nothing is promised of events that are closer than a look takes."""
    first, second = SOURCES[1], SOURCES[3]
    parent, child = Append(5, first, BATCH_MS, 0), Append(8, second, BATCH_MS, 0)
    under_way, after = Look(dict.fromkeys(SOURCES, 5) | {second: 9}), Look(dict.fromkeys(SOURCES, 10))
    slices = [[r for r in (parent, child) if slice_of(r, [under_way, after]) == number] for number in range(2)]
    assert in_pi(slices, [], {}) == [child, parent]
