"""Cutting by bytes."""

import numpy as np

from totalorder.sinks.pieces import chunks, runs


def test_runs_hold_as_much_as_they_may_and_what_is_too_large_goes_alone() -> None:
    sizes = np.array([3, 3, 4, 50, 0, 10, 1])
    assert list(runs(sizes, 10)) == [(0, 3), (3, 4), (4, 6), (6, 7)]
    assert list(runs(sizes, 1000)) == [(0, 7)]
    assert list(runs(sizes[:0], 10)) == []


def test_a_chunk_ends_with_what_fills_it() -> None:
    assert list(chunks([3, 3, 4, 50, 1], int, 10)) == [[3, 3, 4], [50], [1]]
    assert list(chunks([], int, 10)) == []
