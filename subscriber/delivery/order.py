"""The order between stamps that are owed: which may be delivered next, once their events are here.

`Line` is for m = 1. There entries make every subscriber follow π: who may go next is the π-least of what is owed, and
is so for certain once every stamps partition of the set is complete through it, or its entries say that nothing else
comes before it. So rows are put in line once, as stamps come, whatever events do; and what is delivered is always the
front of the line, through the first row whose event has not come.

`Pool` is for m = 2, where an event need not wait for all that lies before it in π: for what is before it in its topic
and in its event partition, and for what its entries say.
"""

from collections import deque
from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from totalorder.subscriber.delivery.events import NOT_YET
from totalorder.subscriber.delivery.rows import Rows, counts, groups

Found = npt.NDArray[np.int8]
Taken = tuple[Rows, Found]
Clock = Mapping[int, int]
_FIRST, _MOST = 16, 4_096
"""So many rows are looked at together: not many more than have come, however many are in line."""
_SMALL = 256
"""Fewer rows than this that follow each other in line are kept together."""
_LOOK_AHEAD = 64


class Arrivals(Protocol):
    """What is known of the events that are stamped."""

    def has_come(self, number: int, offset: int) -> bool:
        """Whether the next event that is owed of a partition, by its number, may be HERE or LOST: a quick look."""
        ...

    def statuses(self, rows: Rows) -> Found:
        """NOT_YET, LOST or HERE of the events that rows in the order of g stamp, the next ones of their partitions."""
        ...


class Order(Protocol):
    """Rows that are owed and not delivered."""

    def add(self, partition: int, rows: Rows) -> None:
        """Rows of the next batch of a stamps partition, in the order of g."""
        ...

    def settle(self, complete_g: int, last: int, *, by_entries: bool) -> Rows | None:
        """All is known through `complete_g` of π, and entries may tell of more; behind `last` another set begins.

        Returns a row whose entries tell of what does not come before it in π, where there is one.
        """
        ...

    def take(self, through: int, events: Arrivals) -> Taken | None:
        """Some of the rows through `through` of π that may be delivered and whose events have come or are lost, and
        which of both; None when there are none.
        """
        ...

    def switch(self, clock: Clock) -> None:
        """Another set is in force, with this clock."""
        ...

    @property
    def first_g(self) -> int | None:
        """The π-least of all that is known."""
        ...

    @property
    def first(self) -> Rows | None:
        """Its row."""
        ...

    @property
    def rows(self) -> Rows:
        """All of them, in the order of g."""
        ...

    def check_whole(self, delivered: Clock) -> None:
        """Dear (sequencer/wire/invariants.py): `delivered` is LC of what was taken."""
        ...

    def __len__(self) -> int: ...


class Line:
    """See Order, and above."""

    def __init__(self, clock: Clock) -> None:
        self._placed: deque[Rows] = deque()
        self._behind: dict[int, deque[Rows]] = {}
        """By stamps partition, what is not in line yet."""
        self._clock = dict(clock)
        """LC of what is in line."""

    def __len__(self) -> int:
        return sum(map(len, self._placed)) + sum(len(rows) for queue in self._behind.values() for rows in queue)

    @property
    def first_g(self) -> int | None:
        """See Order."""
        return None if (first := self.first) is None else int(first.g[0])

    @property
    def first(self) -> Rows | None:
        """See Order."""
        heads = [queue[0] for queue in (self._placed, *self._behind.values()) if queue]
        first = min(heads, key=lambda rows: int(rows.g[0]), default=None)
        return None if first is None else first.part(0, 1)

    @property
    def rows(self) -> Rows:
        """See Order."""
        return _merged([*self._placed, *(rows for queue in self._behind.values() for rows in queue)])

    def check_whole(self, delivered: Clock) -> None:
        """See Order."""
        for queue in (self._placed, *self._behind.values()):
            assert all(map(len, queue)), "there are empty rows in line"
            g = Rows.joined(list(queue)).g
            assert (g[1:] >= g[:-1]).all(), "what is in line is not in the order of g"
        clock = dict(delivered)
        for topic, count in counts(Rows.joined(list(self._placed)).topic):
            clock[topic] += count
        assert clock == self._clock, f"the line has come to {self._clock}, and by its rows to {clock}"

    def add(self, partition: int, rows: Rows) -> None:
        """See Order."""
        self._behind.setdefault(partition, deque()).append(rows)

    def switch(self, clock: Clock) -> None:
        """See Order."""
        self._clock = dict(clock)

    def settle(self, complete_g: int, last: int, *, by_entries: bool) -> Rows | None:
        """See Order."""
        certain = min(complete_g, last)
        known = [front for queue in self._behind.values() for front in _fronts(queue, certain)]
        if known:
            rows = _merged(known)
            if by_entries and (wrong := _ahead_of_entries(rows, self._clock)) is not None:
                return rows.part(wrong, wrong + 1)
            self._place(rows)
        while by_entries and self._place_by_entries(last):
            pass
        return None

    def _place(self, rows: Rows) -> None:
        for topic, at in groups(rows.topic):
            self._clock[topic] = int(rows.n[at][-1])
        while self._placed and (len(self._placed[-1]) < _SMALL or self._placed[-1].g[-1] > rows.g[0]):
            # Many small batches would be many small deliveries. And what entries should have told of is not overtaken.
            rows = _merged([self._placed.pop(), rows])
        self._placed.append(rows)

    def _place_by_entries(self, last: int) -> bool:
        """Puts some of what is known in line; whether there may be more."""
        # Of what is not looked at entries tell as of what is not known.
        heads = [queue[0].part(0, _LOOK_AHEAD) for queue in self._behind.values() if queue]
        merged = _merged(heads)
        count = self._certain(merged, last)
        if not count:
            return False
        through = int(merged.g[count - 1])
        for queue in self._behind.values():
            _fronts(queue, through)
        self._place(merged.part(0, count))
        return True

    def _certain(self, rows: Rows, last: int) -> int:
        """How many of the rows through `last`, in the order of π, have entries that tell all that comes before."""
        clock, count = dict(self._clock), 0
        for topic, n, g, gates in zip(*rows.table[:3].tolist(), rows.each_gates(), strict=True):
            if g > last or any(clock[gate] < least for gate, least in gates):
                break
            clock[topic] = n
            count += 1
        return count

    def take(self, through: int, events: Arrivals) -> Taken | None:
        """See Order: of the front of the line."""
        if not self._placed:
            return None
        rows = self._placed[0]
        if not events.has_come(int(rows.source[0]), int(rows.offset[0])):
            return None
        most = min(_MOST, int(np.searchsorted(rows.g, through, side="right")))
        count = min(_FIRST, most)
        found = events.statuses(rows.part(0, count))
        while count < most and found[-1] != NOT_YET:
            count = min(8 * count, most)
            found = events.statuses(rows.part(0, count))
        missing = np.flatnonzero(found == NOT_YET)
        came = int(missing[0]) if len(missing) else count
        if not came:
            return None
        if came == len(rows):
            self._placed.popleft()
        else:
            self._placed[0] = rows.part(came, len(rows))
        return rows.part(0, came), found[:came]


class Pool:
    """See Order, and above."""

    def __init__(self, clock: Clock) -> None:
        self._rows = Rows.empty()
        self._clock = dict(clock)
        """LC of what was taken."""

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def first_g(self) -> int | None:
        """See Order."""
        return int(self._rows.g[0]) if len(self._rows) else None

    @property
    def first(self) -> Rows | None:
        """See Order."""
        return self._rows.part(0, 1) if len(self._rows) else None

    @property
    def rows(self) -> Rows:
        """See Order."""
        return self._rows

    def check_whole(self, delivered: Clock) -> None:
        """See Order."""
        assert (self._rows.g[1:] >= self._rows.g[:-1]).all(), "what is known is not in the order of g"
        assert dict(delivered) == self._clock, f"the pool has come to {self._clock}, and delivery to {delivered}"

    def add(self, partition: int, rows: Rows) -> None:  # noqa: ARG002
        """See Order."""
        self._rows = _merged([self._rows, rows])

    def settle(self, complete_g: int, last: int, *, by_entries: bool) -> Rows | None:
        """See Order: what may go is seen when it is asked for."""

    def switch(self, clock: Clock) -> None:
        """See Order."""
        self._clock = dict(clock)

    def take(self, through: int, events: Arrivals) -> Taken | None:
        """See Order."""
        rows = self._rows.part(0, int(np.searchsorted(self._rows.g, through, side="right")))
        found = events.statuses(rows)
        if not found.any():
            return None
        # All that an event waits for lies before it in π, so one walk sees all that may go.
        picked = np.zeros(len(self._rows), dtype=np.bool_)
        reached, stuck = self._clock, set()
        columns = (*rows.table[:4].tolist(), found.tolist(), rows.each_gates())
        for at, (topic, n, _, source, status, gates) in enumerate(zip(*columns, strict=True)):
            if (
                status == NOT_YET
                or source in stuck
                or reached[topic] != n - 1
                or any(reached[gate] < least for gate, least in gates)
            ):
                stuck.add(source)
            else:
                reached[topic] = n
                picked[at] = True
        if not picked.any():
            return None
        places = np.flatnonzero(picked)
        self._rows = self._rows.take(np.flatnonzero(~picked))
        return rows.take(places), found[places]


def _fronts(queue: deque[Rows], through: int) -> list[Rows]:
    """Takes all rows through a position off a queue."""
    found = []
    while queue and (count := int(np.searchsorted(queue[0].g, through, side="right"))):
        rows = queue.popleft()
        found.append(rows.part(0, count))
        if count < len(rows):
            queue.appendleft(rows.part(count, len(rows)))
            break
    return found


def _merged(parts: list[Rows]) -> Rows:
    """All rows in the order of g."""
    rows = Rows.joined(parts)
    rising = bool((rows.g[1:] >= rows.g[:-1]).all())
    return rows if rising else rows.take(np.argsort(rows.g, kind="stable"))


def _ahead_of_entries(rows: Rows, clock: Clock) -> int | None:
    """The first of some rows in the order of π before which not all comes that its entries tell of; `clock` is LC
    before them.
    """
    begin, end = int(rows.starts[0]), int(rows.starts[-1])
    topics, least = rows.gates[:, begin:end]
    row = np.repeat(np.arange(len(rows)), np.diff(rows.starts))
    places = {topic: np.arange(len(rows))[at] for topic, at in groups(rows.topic)}
    wrong = []
    for topic, at in groups(topics):
        before = np.searchsorted(places[topic], row[at]) if topic in places else 0
        wrong += row[at][clock[topic] + before < least[at]].tolist()[:1]
    return min(wrong, default=None)
