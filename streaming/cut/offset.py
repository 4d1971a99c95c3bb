"""What Spark's write-ahead log holds of each batch: where it ends in every partition, and the looks that cut it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple, Self

import numpy as np

from totalorder.errors import StateError
from totalorder.streaming.cut.chunk import Ints
from totalorder.streaming.cut.ranges import SliceEnd

VERSION = 1
MAX_PLACES = 100_000
"""Partitions of a domain."""
MAX_LOOKS = 2_000
"""Looks within one batch."""
MAX_ADVANCES = 20_000
"""Of all looks of one batch together, besides one for each partition."""
MAX_NUMBER = 2**31 - 1
MAX_OFFSET = 2**53
"""So that no sum of what was checked overflows; a partition with a million records a second has 285 years to it."""
_FIELDS = frozenset({"version", "cut", "order", "ends", "looks"})
_REMEDY = "Restore the checkpoint from a copy, or make it anew by `totalorder recover`"
_SLICE_END: Callable[[tuple[int, int]], SliceEnd] = partial(tuple.__new__, SliceEnd)
"""`SliceEnd._make` in half of its time, which is most of what `slices_of` takes."""


class Advance(NamedTuple):
    """In a look the partition was further by so many offsets than in the look before.

    `place` counts partitions flat, in order of (topic number, partition), as `BatchEnd.places` does.
    """

    place: int
    offsets: int


@dataclass(frozen=True, kw_only=True)
class Looks:
    """Looks, oldest first, as columns: look k has `sizes[k]` advances; `places` and `counts` have those of all in turn.

    Iterating gives the advances of each look. Places ascend within a look.
    """

    sizes: tuple[int, ...] = ()
    places: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()

    @classmethod
    def of(cls, looks: Iterable[Iterable[tuple[int, int]]]) -> Self:
        """From the (place, count) pairs of each look."""
        rows = [list(look) for look in looks]
        pairs = list(chain.from_iterable(rows))
        return cls(
            sizes=tuple(map(len, rows)),
            places=tuple(place for place, _ in pairs),
            counts=tuple(count for _, count in pairs),
        )

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[tuple[Advance, ...]]:
        advances = list(map(Advance, self.places, self.counts))
        for begin, end in pairwise(accumulate(self.sizes, initial=0)):
            yield tuple(advances[begin:end])

    @cached_property
    def columns(self) -> tuple[Ints, Ints, Ints]:
        """Sizes, places and counts as arrays."""
        return _ints(self.sizes), _ints(self.places), _ints(self.counts)

    @cached_property
    def look_of(self) -> Ints:
        """The number of each advance's look."""
        return np.repeat(np.arange(len(self.sizes)), self.columns[0])


@dataclass(frozen=True, kw_only=True)
class BatchEnd:
    """The end of a batch, and so the beginning of the next.

    `cut` counts batches from 1 (0 is where the domain begins). `order` is the number of the list of topics that decides
    ties, among those that the domain's record has; -1 for none. `ends` holds the next offset of each partition, by the
    topic's number in the domain's record, in ascending order. `looks` are the looks within the batch, oldest first,
    each as what had advanced since the look before (the first: since the batch's begin). What the last one lacks to the
    ends is the last slice. So slice k holds what look k has and look k - 1 has not.

    StateError when made of what cannot be.
    """

    cut: int
    order: int
    ends: Mapping[int, tuple[int, ...]]
    looks: Looks = Looks()

    def __post_init__(self) -> None:
        problem = _problem_of_ends(self) or _problem_of_looks(self)
        if problem:
            raise StateError(f"no batch can end like this: {problem}", remedy=_REMEDY)

    @cached_property
    def flat(self) -> Ints:
        """`ends` as one array, by place."""
        return _ints(tuple(chain.from_iterable(self.ends.values())))

    @cached_property
    def shape(self) -> dict[int, int]:
        """How many partitions each topic has, by its number, ascending."""
        return {number: len(ends) for number, ends in self.ends.items()}

    @property
    def places(self) -> list[tuple[int, int]]:
        """(topic number, partition) of each place."""
        return places_of(self.shape)

    def encode(self) -> dict[str, Any]:
        """For Spark's log, as JSON has it: each look is a list place, count, place, count …"""
        flat = np.column_stack(self.looks.columns[1:]).ravel().tolist()
        bounds = accumulate(self.looks.sizes, initial=0)
        return {
            "version": VERSION,
            "cut": self.cut,
            "order": self.order,
            "ends": {str(number): list(ends) for number, ends in self.ends.items()},
            "looks": [flat[2 * begin : 2 * end] for begin, end in pairwise(bounds)],
        }

    @classmethod
    def decode(cls, content: Mapping[str, Any], where: str) -> Self:
        """Reads `encode`; StateError, which names `where`, when it is damaged or of another version."""
        if not isinstance(content, Mapping) or "version" not in content:
            raise StateError(f"{where} is damaged (no version)", remedy=_REMEDY)
        if type(content["version"]) is not int or content["version"] != VERSION:
            raise StateError(
                f"{where} has version {content['version']!r:.40}; this program reads version {VERSION}",
                remedy="Run the release that wrote it, or one whose CHANGELOG says that it converts this version",
            )
        try:
            return cls(**_checked(content))
        except (StateError, ValueError) as error:
            raise StateError(f"{where} is damaged ({getattr(error, 'what', error)})", remedy=_REMEDY) from None


class Span(NamedTuple):
    """What a batch has of one partition: offsets `begin` to before `end`, of the topic with this number."""

    number: int
    partition: int
    begin: int
    end: int
    slices: tuple[SliceEnd, ...]


def places_of(shape: Mapping[int, int]) -> list[tuple[int, int]]:
    """(topic number, partition) of each place, from the count of partitions by number."""
    return [(number, partition) for number in sorted(shape) for partition in range(shape[number])]


def laid_out(ends: Mapping[int, tuple[int, ...]], shape: Mapping[int, int], default: Ints) -> Ints:
    """`ends` as an array by the places of `shape`, which has all of them; what `ends` has not is as in `default`."""
    result = default.copy()
    first = 0
    for number, partitions in shape.items():
        known = ends.get(number, ())
        result[first : first + len(known)] = known
        first += partitions
    return result


def slices_of(begin: BatchEnd, end: BatchEnd, starts: Mapping[tuple[int, int], int]) -> list[Span]:
    """What the batch from `begin` to `end` has, by place; partitions with nothing are left out.

    A topic or partition that `begin` has not begins at what `starts` says of (topic number, partition), else at 0; a
    topic that `end` has not was retired. StateError when `end` is not that of the batch behind `begin`.
    """
    begins = _begins(begin, end, starts)
    rows, bounds = _slice_ends(begins, end)
    slices = list(map(_SLICE_END, rows))
    return [
        Span(number, partition, at, until, tuple(slices[first:last]))
        for (number, partition), at, until, (first, last) in zip(
            end.places, begins.tolist(), end.flat.tolist(), pairwise(bounds), strict=True
        )
        if last > first
    ]


def _begins(begin: BatchEnd, end: BatchEnd, starts: Mapping[tuple[int, int], int]) -> Ints:
    """Where the batch begins, by the places of `end`."""
    if end.cut != begin.cut + 1:
        raise _contradiction(begin, end, "one does not follow the other")
    if begin.shape == end.shape:
        return begin.flat
    for number, partitions in begin.shape.items():
        if partitions > end.shape.get(number, partitions):
            raise _contradiction(begin, end, f"topic number {number} has lost partitions")
    return laid_out(begin.ends, end.shape, _ints(tuple(starts.get(place, 0) for place in end.places)))


def _slice_ends(begins: Ints, end: BatchEnd) -> tuple[list[tuple[int, int]], list[int]]:
    """(slice, its end) of all partitions, by place and slice, and where each place's begin in that list."""
    _, places, counts = end.looks.columns
    looked = begins.copy()
    np.add.at(looked, places, counts)
    if np.any(looked > end.flat):
        raise _too_short(end, looked)
    rest = np.flatnonzero(looked < end.flat)
    place = np.concatenate((places, rest))
    slice_number = np.concatenate((end.looks.look_of, np.full(len(rest), len(end.looks))))
    count = np.concatenate((counts, (end.flat - looked)[rest]))
    by_place = np.argsort(place, kind="stable")
    bounds = np.searchsorted(place[by_place], np.arange(len(begins) + 1))
    passed = np.concatenate(([0], np.cumsum(count[by_place])))
    until = passed[1:] + (begins - passed[bounds[:-1]])[place[by_place]]
    return list(zip(slice_number[by_place].tolist(), until.tolist(), strict=True)), bounds.tolist()


def _too_short(end: BatchEnd, looked: Ints) -> StateError:
    place = int(np.argmax(looked > end.flat))
    number, partition = end.places[place]
    return StateError(
        f"cut {end.cut} ends partition {partition} of topic number {number} at {end.flat[place]}, before its begin "
        f"with its looks ({looked[place]})",
        remedy=_REMEDY,
    )


def _contradiction(begin: BatchEnd, end: BatchEnd, problem: str) -> StateError:
    return StateError(f"cuts {begin.cut} and {end.cut} are no begin and end of one batch: {problem}", remedy=_REMEDY)


def _ints(values: tuple[int, ...]) -> Ints:
    array = np.array(values, dtype=np.int64)
    array.flags.writeable = False
    return array


def _checked(content: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of BatchEnd, of the right types; ValueError when they are not."""
    if content.keys() != _FIELDS:
        raise ValueError(f"its fields are {sorted(map(str, content))!r:.200}")
    ends, looks = content["ends"], content["looks"]
    if not isinstance(ends, Mapping) or not isinstance(looks, list | tuple):
        raise ValueError("its ends are no mapping or its looks no list")
    rows = [*ends.values(), *looks]
    if not all(isinstance(row, list | tuple) for row in rows):
        raise ValueError("an entry of its ends or looks is no list")
    if any(len(look) % 2 for look in looks):
        raise ValueError("a look has a place without a count")
    numbers = {_number(text): tuple(row) for text, row in ends.items()}
    pairs = tuple(chain.from_iterable(looks))
    if not {type(content["cut"]), type(content["order"]), *map(type, chain(*numbers.values(), pairs))} <= {int}:
        raise ValueError("what must be an integer is none")
    return {
        "cut": content["cut"],
        "order": content["order"],
        "ends": dict(sorted(numbers.items())),
        "looks": Looks(sizes=tuple(len(look) // 2 for look in looks), places=pairs[::2], counts=pairs[1::2]),
    }


def _number(text: Any) -> int:
    if isinstance(text, str) and len(text) <= 10 and text.isascii() and text.isdigit() and str(int(text)) == text:
        return int(text)
    raise ValueError(f"{text!r:.40} is no topic's number")


def _problem_of_ends(end: BatchEnd) -> str:
    """What is wrong with all but the looks; nothing when all is well."""
    if not 0 <= end.cut <= MAX_OFFSET or not -1 <= end.order <= MAX_NUMBER:
        return f"cut {end.cut} with order {end.order}"
    numbers = list(end.ends)
    if numbers != sorted(numbers) or (numbers and not 0 <= numbers[0] <= numbers[-1] <= MAX_NUMBER):
        return "its topics' numbers do not ascend, or are out of range"
    if not all(end.ends.values()):
        return "a topic has no partition"
    if sum(map(len, end.ends.values())) > MAX_PLACES:
        return f"it has more than {MAX_PLACES:,} partitions"
    offsets = [bound for ends in end.ends.values() for bound in (min(ends), max(ends))]
    if offsets and not 0 <= min(offsets) <= max(offsets) <= MAX_OFFSET:
        return "an offset is out of range"
    return ""


def _problem_of_looks(end: BatchEnd) -> str:
    """What is wrong with the looks, when all else is well."""
    looks = end.looks
    if not looks.sizes:
        return "there are advances without a look" if looks.places or looks.counts else ""
    if len(looks) > MAX_LOOKS or len(looks.places) > MAX_ADVANCES + len(end.flat):
        return f"{len(looks):,} looks with {len(looks.places):,} advances are too many"
    try:
        sizes, places, counts = looks.columns
    except OverflowError:
        return "the place or count of an advance is out of range"
    if sizes.min() < 1 or not sizes.sum() == len(places) == len(counts):
        return "a look is empty, or its columns differ in length"
    if places.min() < 0 or places.max() >= len(end.flat):
        return "an advance is of no partition"
    if counts.min() < 1 or counts.max() > MAX_OFFSET:
        return "the count of an advance is out of range"
    if np.any((np.diff(looks.look_of) == 0) & (np.diff(places) <= 0)):
        return "the places of a look do not ascend"
    if np.any(np.bincount(places, weights=counts, minlength=len(end.flat)) > end.flat):
        return "the looks have more than the ends"
    return ""
