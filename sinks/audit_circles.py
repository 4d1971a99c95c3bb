"""Circles in what several subscribers received: the part of common-order.sql that SQL cannot say."""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from pyspark.sql import Row


class Link(NamedTuple):
    """One link of a circle: `subscriber` received `earlier` before `later`."""

    subscriber: str
    earlier: str
    later: str


def find_circle(received: Mapping[str, Sequence[str]]) -> list[Link]:
    """A circle in the orders in which subscribers received events; empty where one order fits them all.

    `received` holds each subscriber's events, none twice. Takes time in proportion to their number.
    """
    start = _on_a_circle(received)
    return [] if start is None else _shortest(received, start)


def _on_a_circle(received: Mapping[str, Sequence[str]]) -> str | None:
    """An event of some circle: takes away all before which nothing is left, then walks back along what stays."""
    followers: dict[str, list[str]] = {}
    waits_for: Counter[str] = Counter()
    for events in received.values():
        for earlier, later in pairwise(events):
            followers.setdefault(earlier, []).append(later)
            waits_for[later] += 1
    free = [event for event in followers if not waits_for[event]]
    while free:
        for later in followers.get(free.pop(), ()):
            waits_for[later] -= 1
            if not waits_for[later]:
                free.append(later)
    left = +waits_for
    before = {later: earlier for earlier in left for later in followers.get(earlier, ()) if later in left}
    event = next(iter(left), None)
    seen: set[str] = set()
    while event is not None and event not in seen:
        seen.add(event)
        event = before[event]
    return event


def _shortest(received: Mapping[str, Sequence[str]], start: str) -> list[Link]:
    """The circle through `start` with the fewest links, one link being any two events of one subscriber's order."""
    places: dict[str, list[tuple[str, int]]] = {}
    for subscriber, events in received.items():
        for place, event in enumerate(events):
            places.setdefault(event, []).append((subscriber, place))
    reached_from = {subscriber: len(events) for subscriber, events in received.items()}
    links: dict[str, Link] = {}
    queue = deque([start])
    while start not in links:
        earlier = queue.popleft()
        for subscriber, place in places[earlier]:
            for later in received[subscriber][place + 1 : reached_from[subscriber]]:
                if later not in links:
                    links[later] = Link(subscriber, earlier, later)
                    queue.append(later)
            reached_from[subscriber] = min(reached_from[subscriber], place + 1)
    circle = [links[start]]
    while circle[0].earlier != start:
        circle.insert(0, links[circle[0].earlier])
    if circle[0].subscriber == circle[-1].subscriber:  # `start` lies between the ends of one link
        last = circle.pop()
        circle[0] = Link(last.subscriber, last.earlier, circle[0].later)
    return circle


class FindCircle:
    """`find_circle` as a table function of Spark: rows (subscriber, …, event) in each subscriber's order."""

    RETURNS = "subscriber STRING, received STRING, before STRING"

    def __init__(self) -> None:
        self._received: dict[str, list[str]] = {}

    def eval(self, row: Row) -> None:
        """Takes one delivery in."""
        self._received.setdefault(row["subscriber"], []).append(row["event"])

    def terminate(self) -> Iterator[Link]:
        """The circle's links, once all deliveries are there."""
        yield from find_circle(self._received)
