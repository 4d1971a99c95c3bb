"""Pure: in how many pairs of events do two delivery orders disagree, and is a delivery complete?

Events are numbers (see journal.py), a delivery order is an array of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Of `events` common events there are `event_pairs` pairs; in `disagreements` of them the two orders differ.

    Sums over several pairs of subscribers (`subscriber_pairs`), or one pair alone.
    """

    subscriber_pairs: int
    events: int
    event_pairs: int
    disagreements: int

    def __add__(self, other: "Agreement") -> "Agreement":
        return Agreement(
            subscriber_pairs=self.subscriber_pairs + other.subscriber_pairs,
            events=self.events + other.events,
            event_pairs=self.event_pairs + other.event_pairs,
            disagreements=self.disagreements + other.disagreements,
        )


NONE = Agreement(subscriber_pairs=0, events=0, event_pairs=0, disagreements=0)


@dataclass(frozen=True, kw_only=True)
class Account:
    """What became of the events that a subscriber had to deliver, each once."""

    expected: int
    delivered: int
    missing: int
    repeated: int
    """Deliveries of what had been delivered before, without a flag that says so."""
    again: int
    """The same with the flag: the process was killed before it had acknowledged them."""
    foreign: int
    """Delivered without having been expected: never published, or not of its topics."""

    @property
    def exact(self) -> bool:
        """Whether every expected event was delivered once, and nothing else."""
        return not (self.missing or self.repeated or self.foreign)


def inversions(order: Ints) -> int:
    """Number of pairs i < j with order[i] > order[j], for distinct numbers, in O(n log n).

    Decides bit by bit from the highest: two numbers part at the highest bit in which they differ, and are inverted if
    there the first has a one and the second a zero. Elements that are equal in all higher bits stand together, in their
    original order, so at each bit it is enough to count the ones before each zero within its group.
    """
    count = len(order)
    values = np.empty(count, dtype=np.int64)
    values[np.argsort(order, kind="stable")] = np.arange(count)
    total = 0
    for bit in range(max(count - 1, 0).bit_length() - 1, -1, -1):
        prefix = values >> bit
        ones = prefix & 1
        ones_before = np.cumsum(ones) - ones
        group = prefix >> 1
        group_start = np.searchsorted(group, group)
        total += int((ones_before - ones_before[group_start])[ones == 0].sum())
        values = values[np.argsort(prefix, kind="stable")]
    return total


def agreement(first: Ints, second: Ints) -> Agreement:
    """Compares two delivery orders on their common events; of an event delivered twice the first delivery counts."""
    first, second = _first_deliveries(first), _first_deliveries(second)
    _, in_first, in_second = np.intersect1d(first, second, assume_unique=True, return_indices=True)
    count = len(in_first)
    return Agreement(
        subscriber_pairs=1,
        events=count,
        event_pairs=count * (count - 1) // 2,
        disagreements=inversions(in_second[np.argsort(in_first)]),
    )


def all_agreements(orders: Mapping[str, Ints]) -> dict[tuple[str, str], Agreement]:
    """Every pair of subscribers compared."""
    return {(a, b): agreement(orders[a], orders[b]) for a, b in combinations(orders, 2)}


def total(parts: Sequence[Agreement]) -> Agreement:
    """The sum."""
    return sum(parts, NONE)


def account(expected: Ints, delivered: Ints, again: npt.NDArray[np.bool_] | None = None) -> Account:
    """Holds what was delivered against what had to be (`expected` has no event twice).

    `again` marks deliveries that were flagged as possible repetitions.
    """
    once, first = np.unique(delivered, return_index=True)
    repeated = np.ones(len(delivered), dtype=np.bool_)
    repeated[first] = False
    flagged = np.zeros(len(delivered), dtype=np.bool_) if again is None else again
    return Account(
        expected=len(expected),
        delivered=len(delivered),
        missing=len(np.setdiff1d(expected, once, assume_unique=True)),
        repeated=int((repeated & ~flagged).sum()),
        again=int((repeated & flagged).sum()),
        foreign=len(np.setdiff1d(once, expected, assume_unique=True)),
    )


def _first_deliveries(order: Ints) -> Ints:
    _, index = np.unique(order, return_index=True)
    return order[np.sort(index)]
