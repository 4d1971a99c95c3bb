"""A task of the source: reads its ranges, and packs what comes into chunks."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from totalorder.errors import BrokerUnavailable, StateError, TopicChanged
from totalorder.streaming.cut import consumers
from totalorder.streaming.cut.chunk import MAX_EVENTS, Chunk
from totalorder.streaming.cut.ranges import Range, ReadPlan
from totalorder.streaming.cut.records import NONE, Names, Reader, Records

Ints = npt.NDArray[np.int64]
Verify = Callable[[ReadPlan], Mapping[str, str | None]]
"""Asks the brokers for the present ids of the plan's topics; None for one that is not there."""
MAX_CHUNK_BYTES = 8_000_000
"""Of the values of control records in one chunk, but for the last of them."""


class _Piece(NamedTuple):
    """Records of the plan's range number `at`."""

    at: int
    records: Records


def read(plan: ReadPlan, *, verify: Verify | None = None, reader: Reader | None = None) -> Iterator[Chunk]:
    """Every committed record of the plan's ranges, each chunk verified before it is handed out; none for no records.

    `verify` is asked behind the reading of each chunk, where none came, and while nothing comes; `reader` is one to use
    in the place of this process's own. Raises StateError for offsets that Kafka no longer has, TopicChanged for topics
    that are other ones than those planned; BrokerUnavailable when nothing came of what is missing for `silence_s`.
    """
    reader = consumers.of(plan) if reader is None else reader
    names = Names()
    for pieces in _batched(_read(plan, names, verify, reader)):
        if verify is not None and (changed := _changed(plan, verify(plan))) is not None:
            raise _other(changed, reader)
        if pieces:
            yield _packed(plan, pieces, names)


def _read(plan: ReadPlan, names: Names, verify: Verify | None, reader: Reader) -> Iterator[tuple[int, Records]]:
    """What the reader brings. Offsets that Kafka has not may be those of another topic than the planned one."""
    try:
        yield from reader.read(plan, names, _Quiet(plan, verify, reader))
    except StateError as error:
        if verify is not None and (changed := _changed(plan, verify(plan))) is not None:
            raise _other(changed, reader) from error
        raise


class _Changed(NamedTuple):
    """A topic that is not the one that was planned, and the id that it has now."""

    topic: str
    planned: str
    present: str | None


def _changed(plan: ReadPlan, found: Mapping[str, str | None]) -> _Changed | None:
    for wanted in plan.ranges:
        present = found.get(wanted.topic)
        if present != wanted.topic_id:
            return _Changed(wanted.topic, wanted.topic_id, present)
    return None


def _other(changed: _Changed, reader: Reader) -> TopicChanged:
    """What was read ahead of it is dropped."""
    reader.forget(changed.topic)
    did = "deleted and created again" if changed.present else "deleted"
    return TopicChanged(
        f"topic {changed.topic} was {did} before all of it was stamped (planned was id {changed.planned}, "
        f"now it is {changed.present})",
        remedy="Start the job again",
    )


class _Quiet:
    """Asks, while nothing comes, whether the topics are those that were planned: of one that is gone nothing will.

    Raises TopicChanged where that is told twice in a row, since a broker may not have heard yet of a topic that is new.
    """

    def __init__(self, plan: ReadPlan, verify: Verify | None, reader: Reader) -> None:
        self._plan, self._verify, self._reader = plan, verify, reader
        self._last: _Changed | None = None

    def __call__(self) -> None:
        if self._verify is None:
            return
        try:
            changed = _changed(self._plan, self._verify(self._plan))
        except BrokerUnavailable:  # how long that is borne, the reader says
            return
        if changed is not None and changed == self._last:
            raise _other(changed, self._reader)
        self._last = changed


def _batched(pieces: Iterator[tuple[int, Records]]) -> Iterator[list[_Piece]]:
    """Pieces together, at most MAX_EVENTS records at a time, and not much more than MAX_CHUNK_BYTES of values.

    The last come when all is read, and are none where nothing was.
    """
    held: list[_Piece] = []
    events = size = 0
    for at, records in pieces:
        for part in _cut(records):
            held_bytes = sum(map(len, part.control.values()))
            if held and (events + len(part.offset) > MAX_EVENTS or size + held_bytes > MAX_CHUNK_BYTES):
                yield held
                held, events, size = [], 0, 0
            held.append(_Piece(at, part))
            events, size = events + len(part.offset), size + held_bytes
    yield held


def _cut(records: Records) -> Iterator[Records]:
    """The records in parts that fit a chunk; of control records, each by itself."""
    step = 1 if records.control else MAX_EVENTS
    for begin in range(0, len(records.offset), step):
        yield records.part(begin, begin + step) if len(records.offset) > step else records


def _packed(plan: ReadPlan, pieces: list[_Piece], names: Names) -> Chunk:
    pieces = sorted(pieces, key=lambda piece: piece.at)  # those of one range stay in order
    used = sorted({at for at, _ in pieces})
    number = {at: source for source, at in enumerate(used)}
    counts = [len(records.offset) for _, records in pieces]
    starts = np.cumsum([0, *counts]).tolist()
    topic, named = _used_names(np.concatenate([records.topic for _, records in pieces]), names)
    return Chunk(
        cut=plan.cut,
        topic_order=plan.topic_order,
        sources=tuple(plan.ranges[at].source for at in used),
        names=named,
        source=np.repeat([number[at] for at, _ in pieces], counts),
        offset=np.concatenate([records.offset for _, records in pieces]),
        timestamp_ms=np.concatenate([records.timestamp_ms for _, records in pieces]),
        crc=np.concatenate([records.crc for _, records in pieces]),
        slice=np.concatenate([_slices(plan.ranges[at], records) for at, records in pieces]),
        topic=topic,
        control={
            start + place: value
            for start, (_, records) in zip(starts, pieces, strict=False)
            for place, value in records.control.items()
        },
    )


def _slices(wanted: Range, records: Records) -> Ints:
    """The number of the slice of each record."""
    if len(wanted.slices) == 1:
        return np.full(len(records.offset), wanted.slices[0].slice, dtype=np.int64)
    ends = np.array([part.end for part in wanted.slices], dtype=np.int64)
    numbers = np.array([part.slice for part in wanted.slices], dtype=np.int64)
    return numbers[np.searchsorted(ends, records.offset, side="right")]


def _used_names(codes: Ints, names: Names) -> tuple[Ints, tuple[str, ...]]:
    """The codes anew for the names that this chunk has, in the order in which these were met."""
    used, places = np.unique(codes, return_inverse=True)
    nameless = int(len(used) > 0 and used[0] == NONE)
    return places - nameless, tuple(names[code] for code in used[nameless:].tolist())
