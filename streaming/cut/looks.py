"""What the looker has seen and no batch has taken yet: looks, each as the partitions that had advanced and how far."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from totalorder.streaming.cut.chunk import Ints
from totalorder.streaming.cut.offset import MAX_ADVANCES, MAX_LOOKS, BatchEnd, laid_out, places_of

_NEVER = 2**62
"""No end of a partition is as high."""


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """What waits behind a batch's end: looks as columns, oldest first, clipped to what lies behind it.

    `topics` has the count of partitions of each topic, by its number, ascending; a place counts them flat. `begins` are
    the offsets where the next batch begins, by place. Look k has `sizes[k]` advances, at least one; of each, `places`
    has the partition, ascending within the look, `ends` its end there, and `counts` how much that is more than before.
    """

    topics: dict[int, int]
    begins: Ints
    sizes: Ints
    places: Ints
    ends: Ints
    counts: Ints

    @cached_property
    def sources(self) -> list[tuple[int, int]]:
        """(topic number, partition) of each place."""
        return places_of(self.topics)

    def without(self, numbers: Collection[int]) -> "Waiting":
        """The same without what waits of the topics with these numbers; their places stay."""
        if not numbers:
            return self
        number_of = np.repeat(list(self.topics), list(self.topics.values()))
        kept = ~np.isin(number_of[self.places], list(numbers))
        look = np.repeat(np.arange(len(self.sizes)), self.sizes)[kept]
        sizes = np.bincount(look)
        return replace(
            self, sizes=sizes[sizes > 0], places=self.places[kept], ends=self.ends[kept], counts=self.counts[kept]
        )

    def ends_after(self, looks: int) -> Ints:
        """The ends by place that the first so many looks leave."""
        advances = int(self.sizes[:looks].sum())
        result = self.begins.copy()
        np.maximum.at(result, self.places[:advances], self.ends[:advances])
        return result


@dataclass(frozen=True, kw_only=True)
class _Look:
    """The places (in the log's own numbering, ascending) that had advanced, and their ends.

    `after_ms` is when the look made before it began, `began_ms` and `ended_ms` are its own; of looks that were merged
    `after_ms` is the first one's. None where no look was made before.
    """

    places: Ints
    ends: Ints
    after_ms: float | None
    ended_ms: float

    @property
    def period_ms(self) -> float:
        """Two events of this slice, or of it and a slice beside it, keep their order when they are further apart."""
        return 0.0 if self.after_ms is None else self.ended_ms - self.after_ms

    def merged(self, later: "_Look") -> "_Look":
        """One look in the place of this and the next one."""
        places = np.concatenate((later.places, self.places))
        kept, first = np.unique(places, return_index=True)
        ends = np.concatenate((later.ends, self.ends))[first]
        return _Look(places=kept, ends=ends, after_ms=self.after_ms, ended_ms=later.ended_ms)

    def behind(self, base: Ints) -> "_Look | None":
        """What of it lies behind `base`; None for nothing."""
        open_ = self.ends > base[self.places]
        if open_.all():
            return self
        if not open_.any():
            return None
        return _Look(places=self.places[open_], ends=self.ends[open_], after_ms=self.after_ms, ended_ms=self.ended_ms)


class LookLog:
    """The looks that no batch has taken, thinned out when there are too many. Not for several threads at once.

    Sources (topic number, partition) are numbered in the order in which they become known; each begins at its start, as
    if all looks before had seen it there. Behind a restart, `taken` says first how far batches went. A look that
    advances nothing is not kept, but the time of the next one counts from it. When full, every second look goes into
    the next, and from then on so many are made one, until half of the room is free: slices grow evenly, and
    `longest_period_ms` says how far.

    The promise: what is published more than `longest_period_ms` after another event was acknowledged is in a later
    slice. It holds from the first look that had both partitions; what that one brings is a backlog, in time's order.
    """

    def __init__(self, *, max_looks: int = MAX_LOOKS, max_advances: int = MAX_ADVANCES) -> None:
        self._max_looks = max_looks
        self._max_advances = max_advances
        self._topics: dict[int, int] = {}
        self._retired: set[int] = set()
        self._numbers = self._partitions = self._starts = self._base = self._last = _none()
        self._looks: list[_Look] = []
        self._advances = 0
        self._stride = 1
        self._newest = 0
        self._began_ms: float | None = None

    @property
    def sources(self) -> list[tuple[int, int]]:
        """(topic number, partition), in the order of the ends that `add` takes; the retired too."""
        return list(zip(self._numbers.tolist(), self._partitions.tolist(), strict=True))

    @property
    def width(self) -> int:
        """How many sources there are, with the retired."""
        return len(self._numbers)

    @property
    def longest_period_ms(self) -> float:
        """Of the looks that wait."""
        return max((look.period_ms for look in self._looks), default=0.0)

    def __len__(self) -> int:
        return len(self._looks)

    def know(self, sources: Sequence[tuple[int, int]], starts: Sequence[int]) -> None:
        """More sources, each with the offset from which the domain reads it; a topic's partitions in order."""
        for number, partition in sources:
            assert number not in self._retired, f"topic number {number} was retired"
            assert partition == self._topics.get(number, 0), f"partition {partition} of topic {number} is out of turn"
            self._topics[number] = partition + 1
        self._numbers = np.append(self._numbers, [number for number, _ in sources]).astype(np.int64)
        self._partitions = np.append(self._partitions, [partition for _, partition in sources]).astype(np.int64)
        more = np.array(starts, dtype=np.int64)
        assert len(more) == len(sources), f"{len(sources)} sources with {len(more)} starts"
        self._starts, self._base, self._last = (
            np.concatenate((known, more)) for known in (self._starts, self._base, self._last)
        )

    def seen(self, number: int) -> dict[int, int]:
        """How far each partition of a topic that is not retired was seen to go, or to begin."""
        places = np.flatnonzero(self._numbers == number)
        return dict(zip(self._partitions[places].tolist(), self._last[places].tolist(), strict=True))

    def retire(self, number: int) -> None:
        """The topic is over: what of it waits is forgotten, and batches that are planned from now on have it not."""
        self._retired.add(number)
        over = self._numbers == number
        self._base[over] = self._last[over] = _NEVER
        self._forget_taken()

    def add(self, ends: Ints, *, began_ms: float, ended_ms: float) -> bool:
        """A look: the ends of the first so many sources, read between two times of a clock that never goes back.

        -1 stands for no answer. That and an end that is lower than before count as no advance. False when nothing
        advanced.
        """
        after_ms, self._began_ms = self._began_ms, began_ms
        last = self._last[: len(ends)]
        places = np.flatnonzero(ends > last)
        if not len(places):
            return False
        last[places] = ends[places]
        self._keep(_Look(places=places, ends=ends[places], after_ms=after_ms, ended_ms=ended_ms))
        return True

    def _keep(self, look: _Look) -> None:
        if self._looks and self._newest < self._stride:
            before = self._looks.pop()
            self._advances -= len(before.places)
            look = before.merged(look)
            self._newest += 1
        else:
            self._newest = 1
        self._looks.append(look)
        self._advances += len(look.places)
        while self._is_full():
            self._thin_out()

    def _is_full(self, share: float = 1.0) -> bool:
        room = max(self._max_advances, int(np.count_nonzero(self._base < _NEVER)))
        return len(self._looks) > share * self._max_looks or self._advances > share * room

    def _thin_out(self) -> None:
        """Every second look goes into the next; an odd one at the end stays as it is, until more come."""
        odd = self._looks[len(self._looks) // 2 * 2 :]
        pairs = zip(self._looks[::2], self._looks[1::2], strict=False)
        self._looks = [one.merged(other) for one, other in pairs] + odd
        self._advances = sum(len(look.places) for look in self._looks)
        self._newest += 0 if odd else self._stride
        self._stride *= 2

    def taken(self, end: BatchEnd) -> float:
        """A batch goes to `end`: forgets what lies before it, and gives the longest period in ms of what it took."""
        place = self._places(end.shape)
        known = np.flatnonzero(place >= 0)
        self._base[known] = np.maximum(self._base[known], end.flat[place[known]])
        self._last = np.maximum(self._last, self._base)
        period_ms = self._forget_taken()
        if not self._is_full(share=0.5):
            self._stride = 1
        return period_ms

    def _forget_taken(self) -> float:
        """Looks are clipped to what lies behind the base; gives the longest period in ms of those that were."""
        rests = [(look, look.behind(self._base)) for look in self._looks]
        self._looks = [rest for _, rest in rests if rest is not None]
        self._advances = sum(len(look.places) for look in self._looks)
        return max((look.period_ms for look, rest in rests if rest is not look), default=0.0)

    def since(self, begin: BatchEnd) -> Waiting:
        """What waits behind `begin`. A source that it has not begins at its start.

        What was taken already, and lies behind `begin` all the same, comes as one look before the others.
        """
        shape = self._shape(begin)
        place_of = self._places(shape)
        begins = laid_out(begin.ends, shape, self._starts_by_place(place_of, shape))
        columns = [(np.arange(len(self._base)), self._base), *((look.places, look.ends) for look in self._looks)]
        look = np.repeat(np.arange(len(columns)), [len(places) for places, _ in columns])
        place = place_of[np.concatenate([places for places, _ in columns])]
        ends = np.concatenate([ends for _, ends in columns])
        waits = np.flatnonzero(place >= 0)
        waits = waits[ends[waits] > begins[place[waits]]]
        waits = waits[np.lexsort((place[waits], look[waits]))]
        look, place, ends = look[waits], place[waits], ends[waits]
        sizes = np.bincount(look)
        counts = _counts(begins, place, ends)
        return Waiting(topics=shape, begins=begins, sizes=sizes[sizes > 0], places=place, ends=ends, counts=counts)

    def _shape(self, begin: BatchEnd) -> dict[int, int]:
        """Partitions of each topic that is not retired, known here or from `begin`."""
        numbers = (begin.shape.keys() | self._topics.keys()) - self._retired
        return {number: max(begin.shape.get(number, 0), self._topics.get(number, 0)) for number in sorted(numbers)}

    def _places(self, shape: dict[int, int]) -> Ints:
        """The place in `shape` of each source; -1 for those that it has not."""
        if not shape:
            return np.full(len(self._numbers), -1)
        numbers = np.array(list(shape), dtype=np.int64)
        partitions = np.array(list(shape.values()), dtype=np.int64)
        topic = np.minimum(np.searchsorted(numbers, self._numbers), len(numbers) - 1)
        known = (numbers[topic] == self._numbers) & (self._partitions < partitions[topic])
        return np.where(known, (np.cumsum(partitions) - partitions)[topic] + self._partitions, -1)

    def _starts_by_place(self, place_of: Ints, shape: dict[int, int]) -> Ints:
        """0 where no source is known."""
        result = np.zeros(sum(shape.values()), dtype=np.int64)
        known = place_of >= 0
        result[place_of[known]] = self._starts[known]
        return result


def _none() -> Ints:
    return np.zeros(0, dtype=np.int64)


def _counts(begins: Ints, place: Ints, ends: Ints) -> Ints:
    """How far each advance, oldest first, goes beyond the one of the same place before it."""
    by_place = np.argsort(place, kind="stable")
    place, ends = place[by_place], ends[by_place]
    before = np.concatenate((ends[:1], ends[:-1]))
    first = np.diff(place, prepend=-1) != 0
    before[first] = begins[place[first]]
    counts = np.empty(len(ends), dtype=np.int64)
    counts[by_place] = ends - before
    return counts
