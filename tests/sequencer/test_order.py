"""π against its definition, read off row by row."""

import random

import numpy as np
import pytest
from hypothesis import given, strategies as st

from totalorder.sequencer.order import SliceFalls, pi_order

Row = tuple[int, int, int, int, int]
"""Rank, partition, offset, timestamp, slice."""
Precedence = tuple[int, int, int]
"""By rank, from 0; control, of rank -1, has -1."""
PRECEDENCES = st.sampled_from([(0, 0, 0), (2, 1, 0), (1, 0, 1)])


@st.composite
def tables(draw: st.DrawFn) -> list[Row]:
    """Rows in any order; along a partition slices rise with offsets."""
    places = st.tuples(st.integers(-1, 2), st.integers(0, 2), st.integers(0, 30))
    found = draw(st.lists(st.tuples(places, st.integers(-5, 50)), unique_by=lambda row: row[0], max_size=30))
    most = draw(st.sampled_from([0, 1, 4]))
    slices = draw(st.lists(st.integers(0, most), min_size=len(found), max_size=len(found)))
    rising: dict[tuple[int, int], list[int]] = {}
    for ((rank, partition, _), _), slice_ in zip(found, sorted(slices), strict=True):
        rising.setdefault((rank, partition), []).append(slice_)
    in_order = [(*at, time, rising[at[:2]].pop(0)) for at, time in sorted(found)]
    return draw(st.permutations(in_order))


def naive(table: list[Row], time_ms: int, precedence: Precedence) -> list[Row]:
    """τ = the largest timestamp at or before the offset in the row's partition, at most the batch's time."""

    def tau(row: Row) -> int:
        return min(time_ms, max(t for r, p, o, t, _ in table if (r, p) == row[:2] and o <= row[2]))

    return sorted(table, key=lambda row: (row[4], tau(row), [*precedence, -1][row[0]], *row[:3]))


def clever(table: list[Row], time_ms: int, precedence: Precedence = (0, 0, 0)) -> list[Row]:
    columns = [np.array([row[i] for row in table], dtype=np.int64) for i in range(5)]
    order = pi_order(
        slice_=columns[4],
        rank=columns[0],
        precedence=np.array([*precedence, -1])[columns[0]],
        partition=columns[1],
        offset=columns[2],
        timestamp_ms=columns[3],
        time_ms=time_ms,
    )
    return [table[i] for i in order]


@given(table=tables(), time_ms=st.integers(0, 50), precedence=PRECEDENCES, rng=st.randoms(use_true_random=False))
def test_pi_is_its_definition_whatever_the_order_of_rows(
    table: list[Row], time_ms: int, precedence: Precedence, rng: random.Random
) -> None:
    expected = naive(table, time_ms, precedence)
    assert clever(table, time_ms, precedence) == expected
    assert clever(rng.sample(table, len(table)), time_ms, precedence) == expected


@given(table=tables(), time_ms=st.integers(0, 50), precedence=PRECEDENCES)
def test_pi_never_inverts_offsets_of_a_partition(table: list[Row], time_ms: int, precedence: Precedence) -> None:
    last: dict[tuple[int, int], int] = {}
    for rank, partition, offset, *_ in clever(table, time_ms, precedence):
        assert last.get((rank, partition), -1) < offset
        last[(rank, partition)] = offset


@given(table=tables(), data=st.data())
def test_slices_that_fall_along_a_partition_are_refused(table: list[Row], data: st.DataObject) -> None:
    """The row that is named has an earlier one of its partition in a later slice."""
    table = [*table, (1, 7, 3, 0, 0), (1, 7, 9, 0, 1)]
    first = data.draw(st.sampled_from(table))
    later = [row for row in table if row[:2] == first[:2] and row[2] > first[2]]
    table = [row if row != first else (*row[:4], max([5, *(other[4] for other in table)]) + 1) for row in table]
    if not later:
        clever(table, 0)
        return
    with pytest.raises(SliceFalls) as fall:
        clever(table, 0)
    named = table[fall.value.row]
    assert any(row[:2] == named[:2] and row[2] < named[2] and row[4] > named[4] for row in table)


@pytest.mark.parametrize(("future", "expected"), [(10**15, [(0, 0, 0), (1, 0, 0), (0, 0, 1), (1, 0, 1)])])
def test_a_clock_years_ahead_cannot_drag_its_partition_past_the_batch(
    future: int, expected: list[tuple[int, int, int]]
) -> None:
    table = [(0, 0, 0, 1, 0), (0, 0, 1, future, 0), (1, 0, 0, 2, 0), (1, 0, 1, 100, 0)]
    assert [row[:3] for row in clever(table, 100)] == expected
