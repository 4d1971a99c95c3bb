"""Questions for offsets and topics as bytes, and Kafka's answers read back: no I/O, and nothing believed unchecked.

A question is asked hundreds of times a second, so its bytes are made once, and an answer of known shape is read as
arrays: a Python object for each partition cost 20 ms a look at 1,000 partitions. ListOffsets 6 and Metadata 11 are what
brokers from 2.8 to 4.1 speak; older ones have no topic ids.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

import numpy as np
import numpy.typing as npt

from totalorder.errors import Error

Ints = npt.NDArray[np.int64]

LIST_OFFSETS, METADATA = 2, 3
VERSIONS = {LIST_OFFSETS: 6, METADATA: 11}
"""Of each request, by its API key."""
NAMES = {LIST_OFFSETS: "ListOffsets", METADATA: "Metadata"}
LATEST, EARLIEST = -1, -2
"""In the place of a time: the end of what is committed, and the first offset that Kafka has."""
MAX_ANSWER_BYTES = 1 << 26
UNKNOWN_TOPIC = 3

_CLIENT_ID = b"totalorder-look"
_READ_COMMITTED = 1
_NO_OPERATIONS_NO_CREATION = bytes(2)
_NO_ID = bytes(16)
_ENTRY = np.dtype(
    [("partition", ">i4"), ("error", ">i2"), ("time", ">i8"), ("offset", ">i8"), ("epoch", ">i4"), ("tags", "u1")]
)


class AnswerError(Error):
    """A broker's answer is not what its protocol says, or not to what was asked."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"A Kafka broker's answer cannot be read: {reason}",
            remedy="Check what answers at its address, and that it is an Apache Kafka broker of version 2.8 or newer",
        )


# --- offsets ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Offsets:
    """Columns by the order of the question. `error` is 0 where the offset holds; -1 is no offset and no epoch."""

    offset: Ints
    error: Ints
    epoch: Ints
    throttle_ms: int


class _Shape(NamedTuple):
    """Where an answer has what; another one of the same size and fixed bytes is read in the same places."""

    size: int
    throttle_at: int
    entries_at: Ints
    fixed_at: Ints
    fixed: npt.NDArray[np.uint8]


class OffsetsQuestion:
    """One broker is asked for the offsets of these partitions, as readers of committed records see them."""

    def __init__(self, asked: Sequence[tuple[str, int]], time_ms: int = LATEST) -> None:
        """`asked`: topic and partition, none twice. `time_ms`: the first offset with at least this time; or LATEST or
        EARLIEST.
        """
        self._places: dict[str, dict[int, int]] = {}
        for place, (topic, partition) in enumerate(asked):
            self._places.setdefault(topic, {})[partition] = place
        self._partitions = np.array([partition for _, partition in asked], np.int64)
        self._shape: _Shape | None = None
        self._last: tuple[bytes, Offsets] | None = None
        self.request = _framed(LIST_OFFSETS, self._body(time_ms))

    def _body(self, time_ms: int) -> bytes:
        parts = [struct.pack(">ib", -1, _READ_COMMITTED), _uvarint(len(self._places) + 1)]
        for topic, places in self._places.items():
            parts += [_compact(topic), _uvarint(len(places) + 1)]
            parts += [struct.pack(">iiqB", partition, -1, time_ms, 0) for partition in places]
            parts.append(b"\0")
        return b"".join([*parts, b"\0"])

    def read(self, answer: bytes) -> Offsets:
        """`answer`: without its length in front. The same object as before where the answer is. Raises AnswerError."""
        if self._last is not None and self._last[0] == answer:
            return self._last[1]
        found = self._read_as_before(answer)
        if found is None:
            self._shape = self._walked(answer)
            found = self._read_as_before(answer)
        if found is None:
            raise AnswerError("its parts do not agree")
        self._last = (answer, found)
        return found

    def _read_as_before(self, answer: bytes) -> Offsets | None:
        shape = self._shape
        if shape is None or len(answer) != shape.size:
            return None
        if not np.array_equal(np.frombuffer(answer, np.uint8)[shape.fixed_at], shape.fixed):
            return None
        # A view that has an entry at every byte: taking from it copies each entry as one piece.
        entries = np.ndarray((max(0, shape.size - _ENTRY.itemsize + 1),), _ENTRY, answer, strides=(1,))[
            shape.entries_at
        ]
        if entries["tags"].any() or not np.array_equal(entries["partition"], self._partitions):
            return None
        (throttle_ms,) = struct.unpack_from(">i", answer, shape.throttle_at)
        return Offsets(
            offset=_checked(entries["offset"].astype(np.int64)),
            error=entries["error"].astype(np.int64),
            epoch=_checked(entries["epoch"].astype(np.int64)),
            throttle_ms=max(0, throttle_ms),
        )

    def _walked(self, answer: bytes) -> _Shape:
        at = _Cursor(answer)
        at.header(LIST_OFFSETS)
        throttle_at = at.skip(4)
        entries_at, left = np.full(len(self._partitions), -1, np.int64), len(self._partitions)
        for _ in range(at.count()):
            places = self._places.get(at.text(), {})
            for _ in range(at.count()):
                start = at.skip(_ENTRY.itemsize - 1)
                place = places.get(struct.unpack_from(">i", answer, start)[0], -1)
                if place < 0 or entries_at[place] >= 0:
                    raise AnswerError("it names a partition that was not asked for, or one twice")
                if at.skip(1) and answer[at.at - 1]:
                    raise AnswerError("an offset comes with what this version of the protocol has not")
                entries_at[place], left = start, left - 1
            at.tags()
        at.tags()
        at.end()
        if left:
            raise AnswerError(f"{left} of the partitions that were asked for are missing")
        return _shape_of(answer, throttle_at, entries_at)


def _shape_of(answer: bytes, throttle_at: int, entries_at: Ints) -> _Shape:
    data = np.frombuffer(answer, np.uint8)
    fixed = np.ones(len(data), np.bool_)
    fixed[throttle_at : throttle_at + 4] = False
    fixed[(entries_at[:, None] + np.arange(_ENTRY.itemsize)).ravel()] = False
    fixed_at = np.flatnonzero(fixed)
    return _Shape(len(data), throttle_at, entries_at, fixed_at, data[fixed_at])


def _checked(numbers: Ints) -> Ints:
    if len(numbers) and int(numbers.min()) < -1:
        raise AnswerError("an offset or a leader's epoch is less than -1")
    return numbers


# --- topics -----------------------------------------------------------------------------------------------------------


class Address(NamedTuple):
    """Of a broker."""

    host: str
    port: int


class Topic(NamedTuple):
    """`leaders`: a broker's number for each partition, -1 where there is none. `topic_id` as a UUID is written."""

    topic_id: str
    leaders: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What one broker knows: `topics` has those of the asked ones that exist, `errors` codes of those that may."""

    brokers: dict[int, Address]
    topics: dict[str, Topic]
    errors: dict[str, int]


def metadata_request(topics: Iterable[str]) -> bytes:
    """Asks for ids, partitions and leaders of these topics, none of which is made by asking."""
    names = sorted(set(topics))
    entries = [_NO_ID + _compact(name) + b"\0" for name in names]
    return _framed(METADATA, _uvarint(len(names) + 1) + b"".join(entries) + _NO_OPERATIONS_NO_CREATION + b"\0")


def read_metadata(answer: bytes) -> Cluster:
    """`answer`: without its length in front. Raises AnswerError."""
    at = _Cursor(answer)
    at.header(METADATA)
    at.skip(4)
    brokers = dict(_broker(at) for _ in range(at.count()))
    at.text()  # the cluster's id
    at.skip(4)  # its controller
    topics: dict[str, Topic] = {}
    errors: dict[str, int] = {}
    for _ in range(at.count()):
        code, name, topic = _topic(at)
        if name in topics or name in errors:
            raise AnswerError("it has a topic twice")
        if code == 0:
            topics[name] = topic
        elif code != UNKNOWN_TOPIC:
            errors[name] = code
    at.tags()
    at.end()
    return Cluster(brokers=brokers, topics=topics, errors=errors)


def _broker(at: "_Cursor") -> tuple[int, Address]:
    number, host, port = at.number(">i"), at.text(), at.number(">i")
    at.text()  # its rack
    at.tags()
    if not host or not 0 < port < 1 << 16:
        raise AnswerError(f"broker {number} has no address")
    return number, Address(host, port)


def _topic(at: "_Cursor") -> tuple[int, str, Topic]:
    code, name = at.number(">h"), at.text()
    topic_id = str(UUID(bytes=at.bytes(16)))
    at.skip(1)  # whether it is one of Kafka's own
    leaders = dict(_leader(at) for _ in range(at.count()))
    at.skip(4)  # what one may do with it
    at.tags()
    if sorted(leaders) != list(range(len(leaders))) or (code == 0 and not leaders):
        raise AnswerError(f"the partitions of topic {name!r} have gaps")
    return code, name, Topic(topic_id, tuple(leaders[partition] for partition in range(len(leaders))))


def _leader(at: "_Cursor") -> tuple[int, int]:
    at.skip(2)  # an error: there is no leader then, or a replica is missing
    partition, leader, _ = at.number(">i"), at.number(">i"), at.skip(4)
    for _ in range(3):  # replicas, those in sync, those away
        at.skip(4 * at.count())
    at.tags()
    return partition, leader


# --- bytes ------------------------------------------------------------------------------------------------------------


def _framed(key: int, body: bytes) -> bytes:
    # The key is also the number by which an answer says what it answers: one question at a time is under way.
    head = struct.pack(">hhih", key, VERSIONS[key], key, len(_CLIENT_ID)) + _CLIENT_ID + b"\0"
    return struct.pack(">i", len(head) + len(body)) + head + body


def _uvarint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _compact(text: str) -> bytes:
    encoded = text.encode()
    return _uvarint(len(encoded) + 1) + encoded


class _Cursor:
    """Reads from the front; what would lie behind the end raises AnswerError."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def skip(self, size: int) -> int:
        """Returns where the skipped bytes begin."""
        start = self.at
        if size < 0 or start + size > len(self._data):
            raise AnswerError("it is cut short")
        self.at = start + size
        return start

    def bytes(self, size: int) -> bytes:
        start = self.skip(size)
        return self._data[start : self.at]

    def number(self, form: str) -> int:
        number: int = struct.unpack_from(form, self._data, self.skip(struct.calcsize(form)))[0]
        return number

    def uvarint(self) -> int:
        number = 0
        for shift in range(0, 35, 7):
            byte = self._data[self.skip(1)]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise AnswerError("a number is too long")

    def count(self) -> int:
        """Of an array, each of whose entries takes at least a byte."""
        count = max(0, self.uvarint() - 1)
        if count > len(self._data) - self.at:
            raise AnswerError("it is cut short")
        return count

    def text(self) -> str:
        """Empty where it is missing."""
        try:
            return self.bytes(max(0, self.uvarint() - 1)).decode()
        except UnicodeDecodeError:
            raise AnswerError("a name is not UTF-8") from None

    def tags(self) -> None:
        """Skips fields that only newer clients know."""
        for _ in range(self.uvarint()):
            self.uvarint()
            self.skip(self.uvarint())

    def header(self, key: int) -> None:
        if self.number(">i") != key:
            raise AnswerError("it answers another question")
        self.tags()

    def end(self) -> None:
        if self.at != len(self._data):
            raise AnswerError("it is longer than it should be")
