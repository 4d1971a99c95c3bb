"""Cuts on the wire: where each batch was cut out of the event partitions, one Kafka record a batch on `<domain>.cuts`.

With the events themselves, the stamps' batch times and the topics' ranks, cuts give π to everybody who reads Kafka,
without Spark's write-ahead log (protocol.md, "Cuts in public").

The value of a record is a zstd frame around a head in JSON and columns of integers as byte planes (planes.py). A *key
cut* names all sources and says where each begins, so that reading can start at it; the cuts behind it say only how far
sources advanced, and go on where the cut before ends. A check tells which that is: two processes of a job may have
written cuts of one number, and only from one of the two the next cut goes on.
"""

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from totalorder.errors import Contradiction, EventsLost, LimitExceeded, SettingsError, WireError
from totalorder.sequencer.wire.codec import WireRecord, unpacked
from totalorder.sequencer.wire.limits import (
    MAX_CUT_ADVANCES,
    MAX_CUT_SLICES,
    MAX_CUT_SOURCES,
    MAX_DIRECTORY_BYTES,
    MAX_KAFKA_TOPIC_CHARS,
    MAX_PARTITION_NUMBER,
    MAX_RAW_PART_BYTES,
    MAX_ROW_BYTES,
    MAX_TOPIC_ID_CHARS,
)
from totalorder.sequencer.wire.names import DomainTopics
from totalorder.sequencer.wire.numbering import differences
from totalorder.sequencer.wire.planes import from_planes, to_planes, width_of
from totalorder.sequencer.wire.stamps import Source

Ints = npt.NDArray[np.int64]
VERSION = 1
KIND = "cuts"
KEY_EVERY = 64
"""At the latest each so many cuts a key cut: reading starts at one, so it reads at most so many in vain."""
_KEY_EACH_S = 600.0
"""And the first cut behind so long a time: where few batches come, retention takes a key cut before the next would."""
_LEVEL = 6
_LENGTH = struct.Struct("<I")
_MOST_OFFSET = 1 << 62
"""No offset gets there; sums below it cannot overflow."""
_CHECK_BYTES, _DIGEST_BYTES = 8, 16
_UNREADABLE = (
    *(pa.ArrowException, SettingsError, OSError, ValueError, KeyError, TypeError, AttributeError, IndexError),
    *(struct.error, RecursionError, OverflowError),  # cut short, JSON too deep, numbers too large
)
_FOREIGN = "Only the sequencer may write there; look for another writer and restrict it"
_TWO_WRITERS = "Two sequencers write to this domain, or a checkpoint was replaced: stop one, begin a new domain"


class SlicePart(NamedTuple):
    """The offsets from `begin` to before `end` of a source belong to slice number `slice` of a cut."""

    slice: int
    source: Source
    begin: int
    end: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Cut:
    """One batch's share of the event partitions, in slices: what came between two looks at their ends.

    `cut` counts 1, 2, 3 … `begins` holds by place in `sources` where the batch begins. In slice s, source
    `place[i]` advances by `count[i]` offsets, for i from `slice_start[s]` to before `slice_start[s + 1]`, places
    ascending; what does not advance is left out. There are as many slices as looks within the batch, which may be empty
    ones, and a last one for what lies behind the last look. Of equal record times within a slice the topic that stands
    earlier in `topic_order` wins. ValueError for what cannot be.
    """

    domain: str
    incarnation: int
    cut: int
    sources: tuple[Source, ...]
    begins: Ints
    slice_start: Ints
    place: Ints
    count: Ints
    topic_order: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        DomainTopics(domain=self.domain)
        _check_within("cut", self.cut, 1)
        _check_within("incarnation", self.incarnation, 0)
        _table(self.domain, self.sources, self.topic_order)
        if self.begins.shape != (len(self.sources),) or (self.begins < 0).any():
            raise ValueError("a source begins nowhere, or below 0")
        self._check_advances()
        # Counted as floats first, which cannot overflow: then the sums of integers cannot either.
        most = self.begins + np.bincount(self.place, self.count, minlength=len(self.begins))
        if (most >= _MOST_OFFSET).any():
            raise ValueError("a source ends beyond all offsets")

    def _check_advances(self) -> None:
        bounds = self.slice_start
        if self.place.shape != self.count.shape or self.place.ndim != 1:
            raise ValueError("the columns differ in length")
        if len(bounds) < 2 or bounds[0] != 0 or bounds[-1] != len(self.place) or (bounds[1:] < bounds[:-1]).any():
            raise ValueError("the slices do not fit what advanced")
        if not len(self.place):
            return
        if self.count.min() < 1 or self.place.min() < 0 or self.place.max() >= len(self.sources):
            raise ValueError("a source that is not there advances, or one does not advance")
        rises = self.place[1:] > self.place[:-1]
        firsts = bounds[1:-1]
        rises[firsts[(firsts > 0) & (firsts < len(self.place))] - 1] = True
        if not rises.all():
            raise ValueError("the sources of a slice do not ascend")

    @classmethod
    def of(
        cls,
        *,
        domain: str,
        incarnation: int,
        cut: int,
        sources: Sequence[Source],
        begins: Sequence[int],
        ends: Sequence[int],
        looks: Iterable[Iterable[tuple[int, int]]],
        topic_order: Sequence[str] = (),
    ) -> "Cut":
        """The cut from what a batch's offset says: `begins` and `ends` by place in `sources`, and of each look what had
        advanced since the look before, as (place, count). ValueError where a look is beyond the ends.
        """
        slices = [sorted(look) for look in looks]
        rest = np.array(ends, dtype=np.int64) - np.array(begins, dtype=np.int64)
        for place, count in chain.from_iterable(slices):
            if not 0 <= place < len(rest):
                raise ValueError("a look has a place where no source is")
            rest[place] -= count
        if (rest < 0).any():
            raise ValueError("a look is beyond the batch's end")
        moved = np.flatnonzero(rest)
        slices.append(list(zip(moved.tolist(), rest[moved].tolist(), strict=True)))
        flat = list(chain.from_iterable(slices))
        return cls(
            domain=domain,
            incarnation=incarnation,
            cut=cut,
            sources=tuple(sources),
            begins=np.array(begins, dtype=np.int64),
            slice_start=np.cumsum([0, *map(len, slices)], dtype=np.int64),
            place=np.array([place for place, _ in flat], dtype=np.int64),
            count=np.array([count for _, count in flat], dtype=np.int64),
            topic_order=tuple(topic_order),
        )

    @cached_property
    def ends(self) -> Ints:
        """By place in `sources`: the next offset behind the batch."""
        found = self.begins.copy()
        np.add.at(found, self.place, self.count)
        return found

    @property
    def looks(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Of each look, what had advanced since the look before, as `Cut.of` takes it."""
        pairs = list(zip(self.place.tolist(), self.count.tolist(), strict=True))
        return tuple(tuple(pairs[start:end]) for start, end in pairwise(self.slice_start.tolist()))[:-1]

    @property
    def slice_of(self) -> Ints:
        """The number of the slice of each advance, from 0."""
        return np.repeat(np.arange(len(self.slice_start) - 1), np.diff(self.slice_start))

    @cached_property
    def begin(self) -> Ints:
        """Of each advance the offset at which it begins; it ends `count` later."""
        by_place = self._by_place
        place, count = self.place[by_place], self.count[by_place]
        taken = np.cumsum(count) - count
        firsts = np.flatnonzero(differences(place, -1))
        before = taken - np.repeat(taken[firsts], np.diff(np.append(firsts, len(place))))
        found = np.empty_like(before)
        found[by_place] = before
        return found + self.begins[self.place]

    @cached_property
    def _by_place(self) -> Ints:
        """The numbers of the advances, those of each source together, in order of slices."""
        return np.argsort(self.place, kind="stable")

    @cached_property
    def parts(self) -> tuple[SlicePart, ...]:
        """All that the batch takes, by slice and place."""
        columns = (self.slice_of, self.place, self.begin, self.begin + self.count)
        return tuple(
            SlicePart(number, self.sources[at], begin, end)
            for number, at, begin, end in zip(*(column.tolist() for column in columns), strict=True)
        )

    def slices_at(self, place: Ints, offset: Ints) -> Ints:
        """The number of the slice that has each of these records; -1 where the batch does not take it."""
        found = np.full(len(offset), -1, dtype=np.int64)
        places, ends, numbers = (
            column[self._by_place] for column in (self.place, self.begin + self.count, self.slice_of)
        )
        for one in np.unique(place).tolist():
            rows = np.flatnonzero((place == one) & (offset >= self.begins[one]) & (offset < self.ends[one]))
            first, last = np.searchsorted(places, [one, one + 1])
            found[rows] = numbers[first:last][np.searchsorted(ends[first:last], offset[rows], side="right")]
        return found

    @cached_property
    def digest(self) -> str:
        """BLAKE2b of 16 bytes, in hex, over all that π depends on: equal for a cut that was written once more."""
        head = [self.domain, self.incarnation, self.cut, self.topic_order, self.parts]
        return hashlib.blake2b(json.dumps(head).encode(), digest_size=_DIGEST_BYTES).hexdigest()

    @property
    def begin_check(self) -> str:
        """Tells where the cut begins; equal to `end_check` of the cut that it goes on from, if it needs no key cut."""
        return _check(self._table, self.cut - 1, self.begins)

    @property
    def end_check(self) -> str:
        """Tells where the cut ends."""
        return _check(self._table, self.cut, self.ends)

    @property
    def _table(self) -> bytes:
        return _table(self.domain, self.sources, self.topic_order)

    def same_as(self, other: "Cut") -> bool:
        """Whether both say the same, of sources that do not advance too."""
        return (self.digest, self.begin_check) == (other.digest, other.begin_check)

    def continues(self, before: "Cut") -> bool:
        """Whether this is the next cut, and begins where `before` ends in each source that both have."""
        ends = dict(zip(before.sources, before.ends.tolist(), strict=True))
        begins = zip(self.sources, self.begins.tolist(), strict=True)
        return self.cut == before.cut + 1 and all(ends.get(source, begin) == begin for source, begin in begins)


def _check(table: bytes, cut: int, offsets: Ints) -> str:
    content = table + struct.pack("<q", cut) + np.ascontiguousarray(offsets, dtype="<i8").tobytes()
    return hashlib.blake2b(content, digest_size=_CHECK_BYTES).hexdigest()


@lru_cache(maxsize=4)
def _table(domain: str, sources: tuple[Source, ...], topic_order: tuple[str, ...]) -> bytes:
    """A digest of what a cut that is no key cut has from the one before. ValueError for what cannot be.

    Kept, since it is the same in nearly all cuts, and a thousand sources take a millisecond.
    """
    if len(set(sources)) != len(sources):
        raise ValueError("a source is there twice")
    if len(set(topic_order)) != len(topic_order):
        raise ValueError("a topic is twice in topic_order")
    for topic in {*topic_order, *(source.topic for source in sources)}:
        _check_text(topic, MAX_KAFKA_TOPIC_CHARS)
    for topic_id in {source.topic_id for source in sources}:
        _check_text(topic_id, MAX_TOPIC_ID_CHARS)
    for source in sources:
        if type(source.partition) is not int or not 0 <= source.partition <= MAX_PARTITION_NUMBER:
            raise ValueError("a partition is out of range")
    text = json.dumps([domain, sources, topic_order]).encode()
    return hashlib.blake2b(text, digest_size=_CHECK_BYTES).digest()


def _check_within(name: str, value: object, least: int) -> None:
    if type(value) is not int or not least <= value < _MOST_OFFSET:
        raise ValueError(f"{name} is out of range")


def _check_text(text: object, most: int) -> None:
    if not isinstance(text, str) or not 0 < len(text) <= most:
        raise ValueError(f"a name or an id is no text of up to {most} characters")
    text.encode()


# --- writing ----------------------------------------------------------------------------------------------------------


class _Head(NamedTuple):
    """What stands before the columns; as a JSON list, since names would be half of a small cut.

    `topics` are (name, id), of a key cut only, whose columns are topic, partition and begin of its sources, and then
    those of all cuts: lengths of slices, place and count of what advanced. `widths` are the columns'.
    """

    domain: str
    incarnation: int
    cut: int
    check: str
    slices: int
    advances: int
    widths: list[int]
    sources: int = 0
    topics: list[tuple[str, str]] | None = None
    topic_order: list[str] | None = None


class CutEncoder:
    """Makes the records of one process, cut by cut; the first one is a key cut."""

    def __init__(self, *, key_every: int = KEY_EVERY) -> None:
        self._key_every = key_every
        self._last: Cut | None = None
        self._since_key, self._key_s = 0, 0.0

    def encode(self, cut: Cut, *, now_s: float = 0.0) -> WireRecord:
        """The record of the next cut, at a time. LimitExceeded when it has more than a cut may have, or needs too many
        bytes.
        """
        _check_limits(cut)
        last = self._last
        self._since_key += 1
        is_due = self._since_key >= self._key_every or now_s - self._key_s >= _KEY_EACH_S
        is_key = last is None or is_due or cut.begin_check != last.end_check
        record = encode_cut(cut, is_key=is_key)
        self._last = cut
        if is_key:
            self._since_key, self._key_s = 0, now_s
        return record


def encode_cut(cut: Cut, *, is_key: bool) -> WireRecord:
    """The record of one cut; one that is no key cut can be read only behind the cut before."""
    columns = {"slices": np.diff(cut.slice_start), "place": _steps_in_slices(cut), "count": cut.count}
    topics = list(dict.fromkeys(source[:2] for source in cut.sources))
    if is_key:
        columns = _source_columns(cut, topics) | columns
    widths = [width_of(column) for column in columns.values()]
    head = _Head(
        domain=cut.domain,
        incarnation=cut.incarnation,
        cut=cut.cut,
        check=cut.begin_check,
        slices=len(cut.slice_start) - 1,
        advances=len(cut.place),
        widths=widths,
        sources=len(cut.sources),
        topics=topics if is_key else None,
        topic_order=list(cut.topic_order) if is_key else None,
    )
    text = json.dumps(head if is_key else head[:-3], separators=(",", ":")).encode()
    planes = [to_planes(column, width) for column, width in zip(columns.values(), widths, strict=True)]
    raw = b"".join([_LENGTH.pack(len(text)), text, *planes])
    value = bytes(pa.Codec("zstd", compression_level=_LEVEL).compress(raw, asbytes=True))
    if len(raw) > MAX_RAW_PART_BYTES or len(text) > MAX_DIRECTORY_BYTES or len(value) > MAX_ROW_BYTES:
        raise LimitExceeded(
            f"cut {cut.cut} needs {len(raw)} bytes, {len(text)} of them for its head, and {len(value)} when packed",
            remedy="Use fewer event partitions, or shorter names of topics",
        )
    return WireRecord(value=value, headers=_headers(cut, is_key=is_key))


def _headers(cut: Cut, *, is_key: bool) -> tuple[tuple[str, bytes], ...]:
    fields: dict[str, str | int] = {
        "kind": KIND,
        "version": VERSION,
        "incarnation": cut.incarnation,
        "cut": cut.cut,
        "key": int(is_key),
    }
    return tuple((name, str(value).encode()) for name, value in fields.items())


def _check_limits(cut: Cut) -> None:
    found = {
        "sources": (len(cut.sources), MAX_CUT_SOURCES),
        "slices": (len(cut.slice_start) - 1, MAX_CUT_SLICES),
        "advances": (len(cut.place), MAX_CUT_ADVANCES),
    }
    for what, (size, most) in found.items():
        if size > most:
            raise LimitExceeded(f"cut {cut.cut} has {size} {what}, and may have {most}", remedy="Use fewer partitions")


def _source_columns(cut: Cut, topics: Sequence[tuple[str, str]]) -> dict[str, Ints]:
    number = {topic: at for at, topic in enumerate(topics)}
    topic = np.array([number[source[:2]] for source in cut.sources], dtype=np.int64)
    partition = np.array([source.partition for source in cut.sources], dtype=np.int64)
    return {"topic": differences(topic, 0), "partition": differences(partition, 0), "begin": cut.begins}


def _steps_in_slices(cut: Cut) -> Ints:
    """Each place's distance to the one before it in its slice; the first of a slice as it is."""
    steps = differences(cut.place, 0)
    firsts = _first_of_slices(cut.slice_start)
    steps[firsts] = cut.place[firsts]
    return steps


def _first_of_slices(slice_start: Ints) -> Ints:
    return slice_start[:-1][np.diff(slice_start) > 0]


# --- reading ----------------------------------------------------------------------------------------------------------


def is_key_cut(headers: Mapping[str, bytes]) -> bool:
    """Whether reading can start at the record with these headers."""
    return headers.get("key") == b"1"


class CutsAssembler:
    """Reads the cuts of a domain in log order, from the first key cut on, or `behind` a cut that is known.

    A cut that was planned, published and never written to Spark's log is planned anew by the job's next process, and
    then comes once more under its number, with another content. The last one counts, unless the next cut goes on from
    another: nothing was stamped of those from which none goes on. Whoever has stamps too compares. Where reading began
    at such a cut, it begins anew.
    """

    def __init__(self, *, domain: str, behind: Cut | None = None) -> None:
        self._domain, self._behind = domain, behind
        self._before: Cut | None = None
        """The cut from which the newest ones go on."""
        self._newest: list[Cut] = [behind] if behind else []
        """Those of the greatest number that has come, the one that counts last."""

    @property
    def newest(self) -> tuple[Cut, ...]:
        """The contents that the cut of the greatest number has come with, the one that counts last."""
        return tuple(self._newest)

    def add(self, value: bytes | None, headers: Mapping[str, bytes]) -> tuple[Cut, ...]:
        """Takes the next record. Returns the cuts that count from now on, each in the place of any of its number: one,
        two where a next cut shows which one of several counted, or none for what was there before, for what a sequencer
        wrote that another one replaced, and for what goes on from a cut that lies before the first key cut.

        WireError for a record that is no cut of this domain; EventsLost where cuts are missing before it; Contradiction
        where it does not go on from the one before.
        """
        incarnation, number = self._place(headers)
        if not self._newest:
            return self._begin(value, headers)
        newest = self._newest[-1]
        if incarnation < newest.incarnation or (incarnation == newest.incarnation and number < newest.cut):
            return ()
        try:
            return self._again(value, headers) if number == newest.cut else self._next(value, headers, number)
        except (Contradiction, EventsLost):
            if self._before is not None or newest.cut == 1 or newest is self._behind:
                raise
            # From the key cut at which reading began nothing has gone on: it never ran, and came late.
            self._newest = []
            return self._begin(value, headers)

    def _begin(self, value: bytes | None, headers: Mapping[str, bytes]) -> tuple[Cut, ...]:
        if is_key_cut(headers):
            self._newest = [self._read(value, headers, ())]
        return tuple(self._newest)

    def _next(self, value: bytes | None, headers: Mapping[str, bytes], number: int) -> tuple[Cut, ...]:
        last = self._newest[-1].cut
        if number > last + 1:
            raise EventsLost(
                f"{self._domain}.cuts goes from cut {last} to {number}: Kafka no longer has what lies between",
                remedy="Nothing was skipped. Begin anew at what Kafka still has",
            )
        cut = self._read(value, headers, self._newest)
        # Of several the one that has the most of its sources, since a new source may begin anywhere; or the last.
        fitting = [known for known in reversed(self._newest) if cut.continues(known)]
        before = max(fitting, key=lambda known: len(set(known.sources) & set(cut.sources)), default=None)
        if before is None:
            raise self._goes_on_from_another(cut.cut)
        shown = (before, cut) if before is not self._newest[-1] else (cut,)
        self._before, self._newest = before, [cut]
        return shown

    def _again(self, value: bytes | None, headers: Mapping[str, bytes]) -> tuple[Cut, ...]:
        before = () if self._before is None else (self._before,)
        if not before and not is_key_cut(headers):
            return ()
        cut = self._read(value, headers, before)
        if before and not cut.continues(*before):
            raise self._goes_on_from_another(cut.cut)
        if cut.same_as(self._newest[-1]):
            return ()
        others = [known for known in self._newest if not known.same_as(cut)]
        self._newest = [*others[1 - _MOST_KNOWN :], cut]
        return (cut,)

    def _read(self, value: bytes | None, headers: Mapping[str, bytes], before: Iterable[Cut]) -> Cut:
        """The whole cut of a record that goes on from one of these, if it is no key cut."""
        if value is None:
            raise self._error("it has no value")
        with _readable():
            head, columns = _unpack(value)
        if (head.domain, head.incarnation, head.cut) != (self._domain, *self._place(headers)):
            raise self._error(f"it says that it is cut {head.cut} of {head.domain}")
        with _readable():
            if head.topics is not None:
                return _key_cut(head, columns)
            for known in before:
                if known.end_check == head.check:
                    return _cut(head, columns, known.sources, known.ends, known.topic_order)
        raise self._goes_on_from_another(head.cut)

    def _goes_on_from_another(self, number: int) -> Contradiction:
        return Contradiction(
            f"cut {number} of {self._domain}.cuts does not go on from cut {number - 1} as it stands there",
            remedy=_TWO_WRITERS,
        )

    def _place(self, headers: Mapping[str, bytes]) -> tuple[int, int]:
        if headers.get("kind") != KIND.encode():
            raise self._error(f"it has no header kind={KIND}")
        if headers.get("version") != str(VERSION).encode():
            raise WireError(
                f"a record of cuts has version {headers.get('version')!r}; this program reads {VERSION}",
                remedy="Update totalorder on this side",
            )
        try:
            return int(headers["incarnation"]), int(headers["cut"])
        except (KeyError, ValueError):
            raise self._error("its headers are not those of cuts") from None

    def _error(self, why: str) -> WireError:
        return WireError(f"a record of {self._domain}.cuts is not usable: {why}", remedy=_FOREIGN)


_MOST_KNOWN = 4
"""Cuts of one number that are kept: a job has one process, and now and then one that is dying."""


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except _UNREADABLE as error:
        raise WireError(f"a record of cuts cannot be read: {error!r}", remedy=_FOREIGN) from None


def _unpack(value: bytes) -> tuple[_Head, list[Ints]]:
    head, planes = unpacked(value, lambda head: sum(size * width for size, width in _layout(_Head(*head))))
    head = _Head(*head)
    return head, _columns(head, planes)


def _layout(head: _Head) -> list[tuple[int, int]]:
    """Length and bytes a value of each column, in the order in which they are written."""
    for name, most in (("slices", MAX_CUT_SLICES), ("advances", MAX_CUT_ADVANCES), ("sources", MAX_CUT_SOURCES)):
        size = getattr(head, name)
        if type(size) is not int or not 0 <= size <= most:
            raise ValueError(f"{size!r} {name}")
    sizes = [head.sources] * 3 if head.topics is not None else []
    sizes += [head.slices, head.advances, head.advances]
    return list(zip(sizes, head.widths, strict=True))


def _columns(head: _Head, planes: memoryview) -> list[Ints]:
    """The columns as they were written, each of its full length."""
    found = []
    for size, width in _layout(head):
        column, planes = from_planes(planes, size, width)
        found.append(column)
    return found


def _key_cut(head: _Head, columns: Sequence[Ints]) -> Cut:
    topic, partition, begins, *advances = columns
    places = zip(np.cumsum(topic).tolist(), np.cumsum(partition).tolist(), strict=True)
    topics = {at: (name, topic_id) for at, (name, topic_id) in enumerate(map(_list, _list(head.topics)))}
    sources = tuple(Source(*topics[at], number) for at, number in places)
    cut = _cut(head, advances, sources, begins, tuple(_list(head.topic_order)))
    if cut.begin_check != head.check:
        raise ValueError("the check is that of another beginning")
    return cut


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r} is no list")
    return value


def _cut(
    head: _Head, advances: Sequence[Ints], sources: tuple[Source, ...], begins: Ints, topic_order: tuple[str, ...]
) -> Cut:
    lengths, steps, count = advances
    if lengths.min(initial=0) < 0 or lengths.max(initial=0) > len(steps) or lengths.sum() != len(steps):
        raise ValueError("the slices do not fit what advanced")
    slice_start = np.append(0, np.cumsum(lengths))
    climbed, firsts = np.cumsum(steps), _first_of_slices(slice_start)
    before = climbed[firsts] - steps[firsts]
    return Cut(
        domain=head.domain,
        incarnation=head.incarnation,
        cut=head.cut,
        sources=sources,
        begins=begins,
        slice_start=slice_start,
        place=climbed - np.repeat(before, lengths[lengths > 0]),
        count=count,
        topic_order=topic_order,
    )
