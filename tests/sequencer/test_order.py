"""π against its definition, read off row by row."""

import random

import numpy as np
import pytest
from hypothesis import given, strategies as st

from totalorder.sequencer.order import pi_order

rows = st.lists(
    st.tuples(st.integers(-1, 2), st.integers(0, 2), st.integers(0, 30), st.integers(-5, 50)),
    unique_by=lambda row: row[:3],
    max_size=30,
)
Row = tuple[int, int, int, int]


def naive(table: list[Row], time_ms: int) -> list[Row]:
    """τ = the largest timestamp at or before the offset in the row's partition, at most the batch's time."""

    def tau(row: Row) -> int:
        return min(time_ms, max(t for r, p, o, t in table if (r, p) == row[:2] and o <= row[2]))

    return sorted(table, key=lambda row: (tau(row), *row[:3]))


def clever(table: list[Row], time_ms: int) -> list[Row]:
    columns = [np.array([row[i] for row in table], dtype=np.int64) for i in range(4)]
    order = pi_order(rank=columns[0], partition=columns[1], offset=columns[2], timestamp_ms=columns[3], time_ms=time_ms)
    return [table[i] for i in order]


@given(table=rows, time_ms=st.integers(0, 50), rng=st.randoms(use_true_random=False))
def test_pi_is_its_definition_whatever_the_order_of_rows(table: list[Row], time_ms: int, rng: random.Random) -> None:
    expected = naive(table, time_ms)
    assert clever(table, time_ms) == expected
    assert clever(rng.sample(table, len(table)), time_ms) == expected


@given(table=rows, time_ms=st.integers(0, 50))
def test_pi_never_inverts_offsets_of_a_partition(table: list[Row], time_ms: int) -> None:
    last: dict[tuple[int, int], int] = {}
    for rank, partition, offset, _ in clever(table, time_ms):
        assert last.get((rank, partition), -1) < offset
        last[(rank, partition)] = offset


@pytest.mark.parametrize(("future", "expected"), [(10**15, [(0, 0, 0), (1, 0, 0), (0, 0, 1), (1, 0, 1)])])
def test_a_clock_years_ahead_cannot_drag_its_partition_past_the_batch(
    future: int, expected: list[tuple[int, int, int]]
) -> None:
    table = [(0, 0, 0, 1), (0, 0, 1, future), (1, 0, 0, 2), (1, 0, 1, 100)]
    assert [row[:3] for row in clever(table, 100)] == expected
