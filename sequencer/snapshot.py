"""Snapshots of the sequencer's state on `<domain>.state`: where a recovery begins that need not know the whole past.

Behind one batch every shard tells its state, in parts; once that batch is over, and so on stamps as a whole, a *mark*
says so, and what else a checkpoint has: where the event partitions stand, and where on stamps the batch lies. Older
snapshots are of no use from then on. Digests tie a snapshot to stamps: it has those of its batch, and recovery compares
them with what stands there (recovery.py, docs/adr/0016).
"""

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from totalorder.errors import LimitExceeded, StateError, WireError
from totalorder.sequencer.sound import require_sound
from totalorder.sequencer.state import State, decode_cold, decode_hot, encode_cold, encode_hot
from totalorder.sequencer.wire.budget import parse_json
from totalorder.sequencer.wire.codec import WireRecord
from totalorder.sequencer.wire.cuts import Cut
from totalorder.sequencer.wire.limits import (
    MAX_ANSWER_BYTES,
    MAX_COUNT,
    MAX_CUT_SOURCES,
    MAX_JSON_UNITS,
    MAX_KAFKA_TOPIC_CHARS,
    MAX_PART_BYTES,
    MAX_PARTS,
    MAX_SHARDS,
    MAX_STAMPS_PARTITIONS,
    MAX_STATE_BYTES,
    MAX_TOPIC_ID_CHARS,
)
from totalorder.sequencer.wire.stamps import DIGEST_BYTES, Source

VERSION = 1
PART, MARK = "part", "mark"
_LEVEL = 3
_LENGTH = struct.Struct("<Q")
_FOREIGN = "Only the sequencer may write there; look for another writer and restrict it"
_MOST_KEYS = 1_000
_SMALL_BYTES, _MOST_TIMES, _AT_ONCE_BYTES = 16_000_000, 200, 1 << 20
"""Counters of topics without events take nothing when packed, names and numbers a tenth or so."""
_UNITS_A_BYTE = 8
"""Values of a state's description (budget.py) for each byte that came; a subscription has 26, and takes seven at least.
"""
_PART_OVERHEAD = 500
"""What a part takes beside its bytes, at most."""


@dataclass(frozen=True, kw_only=True)
class SnapshotMark:
    """Says that the state of every shard behind batch `batch` is there, of which stamps have all.

    `cut` is the last one that was over, `ends` where it ends in each event partition that is read, and on control,
    `starts` where event partitions begin that do not begin at 0, `topic_order` the topics that decide ties.
    `stamps_begins` are offsets on the stamps partitions before which no later batch has anything, mostly before the
    batch itself; `stamps_ends` are others, behind it, None where later batches may have been begun by then. `keys` are
    the prints of the control keys by which requests were judged (signing.py).
    """

    domain: str
    incarnation: int
    batch: int
    shards: int
    cut: int
    ends: Mapping[Source, int]
    starts: Mapping[Source, int]
    topic_order: tuple[str, ...]
    stamps_begins: tuple[int, ...]
    stamps_ends: tuple[int, ...] | None
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A mark and the states that it speaks of, by shard; they are sound in themselves, and agree with each other.

    `states` lack the counts of groups: `with_counts` (shards.py) fills them in.
    """

    mark: SnapshotMark
    states: tuple[State, ...]


def encode_parts(state: State, max_part_bytes: int = MAX_PART_BYTES) -> Iterator[WireRecord]:
    """The records of one shard's state, in order."""
    hot, config = encode_hot(state.hot), state.cold.config
    # Counts follow from the subscriptions, and can be larger than all the rest.
    raw = b"".join((_LENGTH.pack(len(hot)), hot, encode_cold(replace(state.cold, counts={}))))
    packed = bytes(pa.Codec("zstd", compression_level=_LEVEL).compress(raw, asbytes=True))
    begins = range(0, len(packed), max_part_bytes)
    for part, begin in enumerate(begins):
        headers = {
            "kind": PART,
            "version": VERSION,
            "incarnation": config.incarnation,
            "batch": state.hot.batch,
            "shard": config.shard,
            "digest": _digest_of(raw),
            "part": part,
            "parts": len(begins),
        }
        yield WireRecord(value=packed[begin : begin + max_part_bytes], headers=_headers(headers))


def encode_mark(mark: SnapshotMark) -> WireRecord:
    """The record of a mark."""
    content = {
        "domain": mark.domain,
        "incarnation": mark.incarnation,
        "batch": mark.batch,
        "shards": mark.shards,
        "cut": mark.cut,
        "ends": _by_topic(mark.ends),
        "starts": _by_topic(mark.starts),
        "topic_order": mark.topic_order,
        "stamps_begins": mark.stamps_begins,
        "stamps_ends": mark.stamps_ends,
        "keys": mark.keys,
    }
    value = json.dumps(content, separators=(",", ":")).encode()
    headers = {"kind": MARK, "version": VERSION, "incarnation": mark.incarnation, "batch": mark.batch}
    return WireRecord(value=value, headers=_headers(headers))


def decode_mark(value: bytes | None, headers: Mapping[str, bytes], domain: str) -> SnapshotMark | None:
    """The mark that a record of the state topic is; None for a part. WireError for anything else."""
    if _kind(headers) == PART:
        return None
    try:
        return _mark(parse_json(value or b"", MAX_ANSWER_BYTES), domain)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WireError(f"a mark of {domain}.state cannot be read: {error!r:.200}", remedy=_FOREIGN) from None


def cut_of(mark: SnapshotMark) -> Cut:
    """The cut of a mark's batch, of which only the ends are told. StateError for what cannot be one."""
    sources, ends = tuple(mark.ends), tuple(mark.ends.values())
    try:
        return Cut.of(
            domain=mark.domain,
            incarnation=mark.incarnation,
            cut=mark.cut,
            sources=sources,
            begins=ends,
            ends=ends,
            looks=(),
            topic_order=mark.topic_order,
        )
    except (ValueError, LimitExceeded) as error:
        raise StateError(f"the mark of batch {mark.batch} tells of no cut: {error}", remedy=_FOREIGN) from None


@dataclass(eq=False)
class SnapshotAssembler:
    """Puts the snapshot of a mark together again, from all records of the state topic in order.

    A batch that ran again told its state again: parts of equal content stand for each other.
    """

    mark: SnapshotMark
    _attempts: dict[tuple[int, str, int], dict[int, bytes]] = field(default_factory=dict)
    """By shard, digest and number of parts, the parts that have come."""
    _held: int = 0

    def add(self, value: bytes | None, headers: Mapping[str, bytes]) -> None:
        """Takes the next record; WireError for one that is none of these, or is more than a state may be."""
        if _kind(headers) != PART:
            return
        try:
            incarnation, batch, shard, part, parts = (
                _number(headers[name]) for name in ("incarnation", "batch", "shard", "part", "parts")
            )
            digest = headers["digest"].decode("ascii")
        except (KeyError, ValueError):
            raise self._error("its headers are not those of a part") from None
        if (incarnation, batch) != (self.mark.incarnation, self.mark.batch):
            return
        if value is None or not (part < parts <= MAX_PARTS and shard < self.mark.shards):
            raise self._error(f"it is part {part} of {parts} of shard {shard}")
        self._held += len(value) + _PART_OVERHEAD
        if self._held > MAX_STATE_BYTES:
            raise self._error(f"the parts of batch {batch} have more than {MAX_STATE_BYTES} bytes")
        key = (shard, digest, parts)
        self._attempts.setdefault(key, {})[part] = value

    def snapshot(self) -> Snapshot:
        """What the parts give. StateError where some are missing, damaged, or say two things; WireError."""
        found: dict[int, tuple[bytes, int]] = {}
        for (shard, digest, parts), values in self._attempts.items():
            if len(values) < parts:
                continue
            packed = b"".join(values[part] for part in range(parts))
            content = _unpacked(packed)
            if _digest_of(content) != digest:
                raise self._error(f"the state of shard {shard} is not what its digest says")
            told = content, MAX_JSON_UNITS + _UNITS_A_BYTE * len(packed)
            if found.setdefault(shard, told)[0] != content:
                raise StateError(f"{self._name} says two things of shard {shard}", remedy=_FOREIGN)
        missing = sorted(set(range(self.mark.shards)) - found.keys())
        if missing:
            raise StateError(f"{self._name} lacks the state of shard {missing[0]}", remedy="")
        self._attempts.clear()
        states = tuple(_state(*found.pop(shard)) for shard in range(self.mark.shards))
        require_sound(states, self.mark.domain, self.mark.batch, self._name)
        return Snapshot(mark=self.mark, states=states)

    @property
    def _name(self) -> str:
        return f"the snapshot of batch {self.mark.batch} on {self.mark.domain}.state"

    def _error(self, why: str) -> WireError:
        return WireError(f"a record of {self.mark.domain}.state is not usable: {why}", remedy=_FOREIGN)


def _state(content: bytes, most_units: int) -> State:
    (length,) = _LENGTH.unpack_from(content)
    middle = _LENGTH.size + length
    return State(
        hot=decode_hot(content[_LENGTH.size : middle], most_units), cold=decode_cold(content[middle:], most_units)
    )


def _unpacked(packed: bytes) -> bytes:
    """What a state's parts hold. It may be so many times larger than it came, and no more is unpacked."""
    most, content = min(MAX_STATE_BYTES, _SMALL_BYTES + _MOST_TIMES * len(packed)), bytearray()
    try:
        with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
            while len(content) <= most and (more := stream.read(_AT_ONCE_BYTES)):
                content += more
    except (pa.ArrowException, OSError, ValueError) as error:
        raise WireError(f"a state cannot be unpacked: {error!r:.200}", remedy=_FOREIGN) from None
    if not _LENGTH.size <= len(content) <= most:
        raise WireError(f"a state has {len(content)} bytes or more when unpacked", remedy=_FOREIGN)
    return bytes(content)


def _mark(content: Mapping[str, Any], domain: str) -> SnapshotMark:
    ends = content["stamps_ends"]
    mark = SnapshotMark(
        domain=_text(content["domain"]),
        incarnation=_within(content["incarnation"], 1),
        batch=_within(content["batch"], 1),
        shards=_within(content["shards"], 1, MAX_SHARDS),
        cut=_within(content["cut"], 1),
        ends=_sources(content["ends"]),
        starts=_sources(content["starts"]),
        topic_order=tuple(_text(name, MAX_KAFKA_TOPIC_CHARS) for name in content["topic_order"]),
        stamps_begins=_offsets(content["stamps_begins"]),
        stamps_ends=None if ends is None else _offsets(ends),
        keys=tuple(_text(print_, 64) for print_ in content["keys"]),
    )
    partitions = len(mark.stamps_begins)
    if mark.domain != domain or not mark.shards <= partitions <= MAX_STAMPS_PARTITIONS:
        raise ValueError(f"it is of domain {mark.domain:.99}, with {partitions} stamps partitions")
    if mark.stamps_ends is not None:
        if len(mark.stamps_ends) != partitions:
            raise ValueError("it has not one end for each stamps partition")
        if any(begin > end for begin, end in zip(mark.stamps_begins, mark.stamps_ends, strict=True)):
            raise ValueError("a stamps partition ends before where it had ended")
    if [source.partition for source in mark.ends if source.topic == f"{domain}.control"] != [0]:
        raise ValueError("it does not say where control goes on")
    if len(set(mark.topic_order)) < len(mark.topic_order) or len(mark.keys) > _MOST_KEYS:
        raise ValueError("topic_order names a topic twice, or there are too many keys")
    return mark


def _by_topic(offsets: Mapping[Source, int]) -> list[list[object]]:
    """A row [Kafka topic, id, list of [partition, offset]] for each topic."""
    found: dict[tuple[str, str], list[list[int]]] = {}
    for source, offset in offsets.items():
        found.setdefault(source.kafka_topic, []).append([source.partition, offset])
    return [[topic, topic_id, sorted(rows)] for (topic, topic_id), rows in found.items()]


def _sources(rows: Sequence[Any]) -> dict[Source, int]:
    """Undoes `_by_topic`."""
    found = {}
    for topic, topic_id, offsets in rows:
        name, id_ = _text(topic, MAX_KAFKA_TOPIC_CHARS), _text(topic_id, MAX_TOPIC_ID_CHARS)
        for partition, offset in offsets:
            found[Source(name, id_, _within(partition, 0, MAX_CUT_SOURCES))] = _within(offset, 0)
    return found


def _offsets(values: Sequence[Any]) -> tuple[int, ...]:
    return tuple(_within(value, 0) for value in values)


def _within(value: object, least: int, most: int = MAX_COUNT) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{value!r:.60} is no number from {least} to {most}")
    return value


def _text(value: object, most: int = 256) -> str:
    if type(value) is not str or len(value) > most:
        raise ValueError(f"{value!r:.60} is no text of {most} characters at most")
    return value


def _number(value: bytes) -> int:
    if not value.isdigit() or len(value) > 19:
        raise ValueError("no number")
    return int(value)


def _kind(headers: Mapping[str, bytes]) -> str:
    kind = headers.get("kind")
    if kind not in (PART.encode(), MARK.encode()):
        raise WireError("a record of state has neither kind=part nor kind=mark", remedy=_FOREIGN)
    if headers.get("version") != str(VERSION).encode():
        raise WireError(
            f"a record of state has version {headers.get('version')!r}; this program reads {VERSION}",
            remedy="Update totalorder on this side",
        )
    return kind.decode()


def _headers(fields: Mapping[str, object]) -> tuple[tuple[str, bytes], ...]:
    return tuple((name, str(value).encode()) for name, value in fields.items())


def _digest_of(content: bytes) -> str:
    return blake2b(content, digest_size=DIGEST_BYTES).hexdigest()
