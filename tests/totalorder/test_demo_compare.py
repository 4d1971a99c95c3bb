"""The demo's comparison against brute force: its zero is worth something only if it counts what is there."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from totalorder.demo.compare import (
    Account,
    Agreement,
    account,
    agreement,
    all_agreements,
    inversions,
    total,
)

_EVENTS = st.integers(0, 2**50)
_ORDERS = st.lists(st.integers(0, 30), max_size=40)


def _array(numbers: list[int]) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def _inverted_pairs(order: list[int]) -> int:
    return sum(a > b for a, b in combinations(order, 2))


def _disagreements(first: list[int], second: list[int]) -> tuple[int, int]:
    """(common events, pairs of them in different order), from the definition."""
    common = sorted(set(first) & set(second))
    return len(common), sum(
        (first.index(a) < first.index(b)) != (second.index(a) < second.index(b)) for a, b in combinations(common, 2)
    )


@given(st.lists(_EVENTS, unique=True, max_size=80))
def test_inversions_equal_brute_force(order: list[int]) -> None:
    assert inversions(_array(order)) == _inverted_pairs(order)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 7, 8, 9, 64, 65])
def test_inversions_of_sorted_and_reversed(count: int) -> None:
    ascending = _array(list(range(count)))
    assert inversions(ascending) == 0
    assert inversions(ascending[::-1]) == count * (count - 1) // 2


def test_inversions_do_not_overflow_and_are_quick_on_a_whole_year() -> None:
    count = 660_000
    assert inversions(np.arange(count)[::-1]) == count * (count - 1) // 2


@given(_ORDERS, _ORDERS)
def test_agreement_equals_brute_force(first: list[int], second: list[int]) -> None:
    found = agreement(_array(first), _array(second))
    events, disagreements = _disagreements(first, second)
    assert found == Agreement(
        subscriber_pairs=1, events=events, event_pairs=events * (events - 1) // 2, disagreements=disagreements
    )


@given(st.permutations(range(20)), st.sets(st.integers(0, 19)), st.sets(st.integers(0, 19)))
def test_parts_of_one_order_never_disagree(order: list[int], mine: set[int], yours: set[int]) -> None:
    orders = {
        "mine": _array([event for event in order if event in mine]),
        "yours": _array([event for event in order if event in yours]),
        "all": _array(order),
    }
    found = total(list(all_agreements(orders).values()))
    assert (found.subscriber_pairs, found.disagreements) == (3, 0)


def test_one_swap_of_neighbours_is_one_disagreement() -> None:
    assert agreement(_array([1, 2, 3, 4]), _array([1, 3, 2, 4])).disagreements == 1


@given(st.sets(st.integers(0, 20)), st.lists(st.tuples(st.integers(0, 25), st.booleans()), max_size=40))
def test_account_equals_counting(expected: set[int], deliveries: list[tuple[int, bool]]) -> None:
    delivered = [event for event, _ in deliveries]
    flagged = np.array([flag for _, flag in deliveries], dtype=np.bool_)
    found = account(_array(sorted(expected)), _array(delivered), flagged)
    repetitions = [flag for index, (event, flag) in enumerate(deliveries) if event in delivered[:index]]
    assert found == Account(
        expected=len(expected),
        delivered=len(delivered),
        missing=len(expected - set(delivered)),
        repeated=repetitions.count(False),
        again=repetitions.count(True),
        foreign=len(set(delivered) - expected),
    )


@given(st.sets(st.integers(0, 20)), st.lists(st.integers(0, 25), max_size=40))
def test_an_account_is_exact_only_if_each_event_came_once(expected: set[int], delivered: list[int]) -> None:
    assert account(_array(sorted(expected)), _array(delivered)).exact == (sorted(delivered) == sorted(expected))
