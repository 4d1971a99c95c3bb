"""Where the next batch ends: at a look, or in a backlog at a time (docs/protocol.md, "The cut")."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import isqrt
from typing import Protocol

import numpy as np

from totalorder.streaming.cut.chunk import Ints
from totalorder.streaming.cut.looks import Waiting
from totalorder.streaming.cut.offset import BatchEnd, Looks

MAX_REQUESTS = 45
"""For one batch. Halving all of the time since 1970 takes 41."""
_ENOUGH = 0.8
"""A time before which so much of the limit lies will do."""
_AIM = 0.9


class Times(Protocol):
    """Kafka's offsets for times."""

    def offsets_at(self, places: Sequence[int], time_ms: int) -> Ints:
        """Of each of these places the offset of the first record, in the log's order, with at least this timestamp.

        -1 where there is none. `time_ms` is never negative. A place counts as in `Waiting.sources`.
        """


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A batch's end, or its begin itself where nothing waits. Of `waiting` offsets the batch takes `taken`.

    `requests` counts what was asked of `Times`. `backlog` is there when the batch ends within a slice.
    """

    end: BatchEnd
    waiting: int = 0
    taken: int = 0
    requests: int = 0
    backlog: "Backlog | None" = None


@dataclass(frozen=True, kw_only=True)
class Point:
    """Of a slice, what is older than `time_ms` goes to `ends`, by place."""

    time_ms: int
    ends: Ints


@dataclass(frozen=True, kw_only=True)
class Backlog:
    """How a batch ended within the slice that goes to `slice_ends` (by place): what helps to plan the next batch.

    All that is older than `time_ms` is taken, and a part of what has that very time where `is_tie`. `width_ms` is how
    much later that is than where the batch before it ended; None where that is not known. `later` is what was learnt of
    later times, ascending.
    """

    slice_ends: Ints
    time_ms: int
    is_tie: bool
    width_ms: int | None
    later: tuple[Point, ...]


def plan(
    begin: BatchEnd,
    waiting: Waiting,
    *,
    limit: int,
    order: int,
    times: Times,
    now_ms: int,
    tie_order: Sequence[int] = (),
    last: Planned | None = None,
) -> Planned:
    """The end of the batch behind `begin`, of at most `limit` offsets, at least one where anything waits.

    `waiting` is what waits behind `begin` (`LookLog.since`). All of it, or as many whole slices as fit. When not even
    the first one fits, the batch ends within it at a time: it takes what is older in each partition by its running
    timestamp (the largest since the log's begin, at most `now_ms`), as much as some requests to `times` find. What has
    one and the same running timestamp is taken topic by topic, in the order of the topics' numbers in `tie_order` (the
    others follow, by number), then by partition and offset. `order` goes into the end. `last` is what was planned
    before, if it is known: then one request mostly does.

    So a slice is taken in order of running timestamps: no event of a later batch has an earlier one than any of this
    batch's. Raises what `times` raises.
    """
    assert limit > 0, f"a limit of {limit}"
    assert now_ms >= 0, f"the time {now_ms}"
    total = int(waiting.counts.sum())
    if not total:
        return Planned(end=begin)
    bounds = list(accumulate(waiting.sizes.tolist(), initial=0))
    whole = int(np.searchsorted(np.cumsum(np.add.reduceat(waiting.counts, bounds[:-1])), limit, side="right"))
    if whole:
        end = end_at(begin, order, waiting, waiting.ends_after(whole), _looks(waiting, whole - 1))
        return Planned(end=end, waiting=total, taken=int(waiting.counts[: bounds[whole]].sum()))
    search = _Search(waiting, limit=limit, now_ms=now_ms, times=times)
    if last is not None and last.backlog is not None and last.end == begin:
        search.resume(last.backlog, last.taken)
    ends = search.run(tie_order)
    return Planned(
        end=end_at(begin, order, waiting, ends, Looks()),
        waiting=total,
        taken=int((ends - waiting.begins).sum()),
        requests=search.requests,
        backlog=search.backlog(),
    )


def end_at(begin: BatchEnd, order: int, waiting: Waiting, ends: Ints, looks: Looks) -> BatchEnd:
    """The end of the batch behind `begin`, from the ends by place."""
    flat = tuple(ends.tolist())
    bounds = pairwise(accumulate(waiting.topics.values(), initial=0))
    by_topic = {number: flat[first:last] for number, (first, last) in zip(waiting.topics, bounds, strict=True)}
    return BatchEnd(cut=begin.cut + 1, order=order, ends=by_topic, looks=looks)


def _looks(waiting: Waiting, count: int) -> Looks:
    """The first so many."""
    sizes = waiting.sizes[:count]
    advances = int(sizes.sum())
    return Looks(
        sizes=tuple(sizes.tolist()),
        places=tuple(waiting.places[:advances].tolist()),
        counts=tuple(waiting.counts[:advances].tolist()),
    )


class _Search:
    """For the largest time before which at most `limit` offsets of the first slice lie, as near as need be.

    Between two points: before `low` lies what may be taken, before `high` too much. At first their times are -1
    (nothing is older) and now + 1 (everything is, as no running timestamp is later than now).
    """

    def __init__(self, waiting: Waiting, *, limit: int, now_ms: int, times: Times) -> None:
        self._waiting = waiting
        self._slice_ends = waiting.ends_after(1)
        self._limit = limit
        self._now_ms = now_ms
        self._times = times
        self._low = Point(time_ms=-1, ends=waiting.begins)
        self._high = Point(time_ms=now_ms + 1, ends=self._slice_ends)
        self._halved = True
        self._later: list[Point] = []
        self._guesses_ms: list[int] = []
        self._resumed_ms: int | None = None
        self.requests = 0

    def resume(self, backlog: Backlog, taken: int) -> None:
        """Where the last batch ended in this same slice there is nothing older left; the next may be as wide."""
        if backlog.time_ms > self._now_ms or not np.array_equal(backlog.slice_ends, self._slice_ends):
            return
        self._resumed_ms = backlog.time_ms
        self._low = Point(time_ms=backlog.time_ms, ends=self._waiting.begins)
        for point in backlog.later:
            if point.time_ms <= self._now_ms:
                self._narrow(Point(time_ms=point.time_ms, ends=np.maximum(point.ends, self._waiting.begins)))
        self._later = list(backlog.later)
        if backlog.is_tie:
            self._guesses_ms.append(backlog.time_ms + 1)
        if backlog.width_ms:
            self._guesses_ms.append(backlog.time_ms + int(backlog.width_ms * _AIM * self._limit / taken))

    def run(self, tie_order: Sequence[int]) -> Ints:
        """The ends by place."""
        while self._count(self._low) < _ENOUGH * self._limit and not self._is_exact():
            self._ask(self._next_ms())
        return self._with_ties(tie_order) if self._is_exact() else self._low.ends

    def backlog(self) -> Backlog:
        """For the next batch, when this one's end was found."""
        time_ms = self._low.time_ms
        later = sorted((point for point in self._later if point.time_ms > time_ms), key=lambda point: point.time_ms)
        return Backlog(
            slice_ends=self._slice_ends,
            time_ms=time_ms,
            is_tie=self._is_exact(),
            width_ms=None if self._resumed_ms is None else time_ms - self._resumed_ms,
            later=tuple(later[:MAX_REQUESTS]),
        )

    def _count(self, point: Point) -> int:
        return int((point.ends - self._waiting.begins).sum())

    def _is_exact(self) -> bool:
        return self._high.time_ms - self._low.time_ms == 1

    def _next_ms(self) -> int:
        """A time between low and high: by a guess, or at each second turn, and when requests run short, the middle."""
        low_ms, high_ms = self._low.time_ms, self._high.time_ms
        middle_ms = (low_ms + high_ms) // 2
        if MAX_REQUESTS - self.requests <= (high_ms - low_ms - 1).bit_length():
            return middle_ms
        while self._guesses_ms:
            guess_ms = self._guesses_ms.pop(0)
            if low_ms < guess_ms < high_ms:
                return guess_ms
        if low_ms == -1 or (self._resumed_ms is None and high_ms == self._now_ms + 1):
            return self._by_age()
        self._halved = not self._halved
        return middle_ms if self._halved else self._by_density()

    def _by_age(self) -> int:
        """Nothing is known of how old the backlog is, a second or a year: halves the age's logarithm."""
        beyond_ms = self._now_ms + 2
        return self._inside(beyond_ms - isqrt((beyond_ms - self._low.time_ms) * (beyond_ms - self._high.time_ms)))

    def _by_density(self) -> int:
        """As if the offsets between low and high lay evenly."""
        low, high = self._count(self._low), self._count(self._high)
        gap_ms = self._high.time_ms - self._low.time_ms
        return self._inside(self._low.time_ms + int(gap_ms * (_AIM * self._limit - low) / (high - low)))

    def _inside(self, time_ms: int) -> int:
        return min(max(time_ms, self._low.time_ms + 1), self._high.time_ms - 1)

    def _ask(self, time_ms: int) -> None:
        low, high = self._low.ends, self._high.ends
        open_ = np.flatnonzero(low < high)
        answers = self._times.offsets_at(open_.tolist(), time_ms)
        self.requests += 1
        ends = low.copy()
        ends[open_] = np.clip(np.where(answers < 0, high[open_], answers), low[open_], high[open_])
        point = Point(time_ms=time_ms, ends=ends)
        self._later.append(point)
        self._narrow(point)

    def _narrow(self, point: Point) -> None:
        if self._count(point) <= self._limit:
            self._low = max(self._low, point, key=lambda known: known.time_ms)
        else:
            self._high = min(self._high, point, key=lambda known: known.time_ms)

    def _with_ties(self, tie_order: Sequence[int]) -> Ints:
        """What lies before low, and of what has just that time as much as there is room for, in the order of ties."""
        rank = {number: i - len(tie_order) for i, number in enumerate(tie_order)}
        order = sorted(
            range(len(self._low.ends)), key=lambda place: (rank.get(self._waiting.sources[place][0], 0), place)
        )
        tied = (self._high.ends - self._low.ends)[order]
        room = self._limit - self._count(self._low) - (np.cumsum(tied) - tied)
        ends = self._low.ends.copy()
        ends[order] += np.clip(room, 0, tied)
        return ends
