"""Packing and unpacking of columns, and what is refused."""

import json
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from totalorder.errors import StateError
from totalorder.sequencer.wire.stamps import Source
from totalorder.streaming.cut.chunk import _HEAD, COLUMNS, Chunk, decode, encode

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


def ints(values: Any) -> Any:
    return np.array(values, dtype=np.int64)


@st.composite
def made(draw: st.DrawFn) -> Chunk:
    """Chunks of any kind, small and of a size at which columns are packed narrowly."""
    rows = draw(st.one_of(st.integers(0, 20), st.just(600)))
    names, count = draw(st.lists(TEXTS, max_size=4)), draw(st.integers(1, 3))
    sources = [Source(draw(TEXTS), draw(TEXTS), draw(st.integers(0, 2**31 - 1))) for _ in range(count)]
    chance = np.random.default_rng(draw(st.integers(0, 99)))
    span = draw(st.sampled_from([1, 3, 2**8, 2**16, 2**32, 2**40]))
    places = draw(st.sets(st.integers(0, rows - 1), max_size=3)) if rows else set()
    return Chunk(
        cut=draw(st.integers(0, 2**40)),
        topic_order=tuple(draw(st.lists(TEXTS, max_size=3))),
        sources=tuple(sources),
        names=tuple(names),
        source=np.sort(chance.integers(0, count, rows)),
        offset=draw(st.sampled_from([0, 2**33, 2**62])) + np.cumsum(chance.integers(1, 1 + span, rows)),
        timestamp_ms=chance.integers(-span, span, rows),
        crc=chance.integers(0, 2**32, rows),
        slice=chance.integers(0, min(span, 2**31), rows),
        topic=chance.integers(-1, len(names), rows),
        control={place: draw(st.binary(max_size=9)) for place in places},
    )


def assert_equal(one: Chunk, other: Chunk) -> None:
    for name in ("cut", "topic_order", "sources", "names", "control"):
        assert getattr(one, name) == getattr(other, name)
    for name in COLUMNS:
        column = getattr(other, name)
        assert column.dtype == np.int64
        assert getattr(one, name).tolist() == column.tolist()


@given(made())
def test_what_was_packed_comes_back(chunk: Chunk) -> None:
    assert_equal(chunk, decode(encode(chunk)))
    assert encode(decode(encode(chunk))) == encode(chunk)


@given(made(), st.data())
def test_damage_is_told_or_harmless(chunk: Chunk, data: st.DataObject) -> None:
    """Whatever comes back from other bytes has the form that it must have; all else is a StateError."""
    packed = bytearray(encode(chunk))
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(packed)))
    for damaged in (bytes(packed), bytes(packed[:cut]), bytes(packed) + b"x"):
        try:
            found = decode(damaged)
        except StateError:
            continue
        assert_equal(found, decode(encode(found)))


def test_no_memory_is_taken_for_rows_that_are_not_there() -> None:
    columns: dict[str, Any] = {name: np.tile(getattr(small(), name), 200) for name in COLUMNS}
    packed = bytearray(encode(replace(small(), control={}, **columns)))
    magic, version, _, length = _HEAD.unpack_from(packed)
    _HEAD.pack_into(packed, 0, magic, version, 2**29, length)
    with pytest.raises(StateError, match="536870912 rows do not fit"):
        decode(bytes(packed))


def small() -> Chunk:
    return Chunk(
        cut=3,
        topic_order=("b", "a"),
        sources=(Source("a", "id-a", 0), Source("b", "id-b", 4)),
        names=("x", "y"),
        source=ints([0, 0, 1]),
        offset=ints([5, 9, 2]),
        timestamp_ms=ints([-1, 0, 7]),
        crc=ints([0, 2**32 - 1, 5]),
        slice=ints([0, 3, 1]),
        topic=ints([-1, 0, 1]),
        control={2: b"ask"},
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"source": ints([0, 0, 2])}, "column source"),
        ({"source": ints([-1, 0, 1])}, "column source"),
        ({"offset": ints([5, 5, 2])}, "do not ascend"),
        ({"offset": ints([9, 5, 2])}, "do not ascend"),
        ({"offset": ints([-1, 5, 2])}, "column offset"),
        ({"crc": ints([0, 2**32, 5])}, "column crc"),
        ({"slice": ints([0, -1, 1])}, "column slice"),
        ({"topic": ints([-2, 0, 1])}, "column topic"),
        ({"topic": ints([-1, 0, 2])}, "column topic"),
        ({"control": {3: b""}}, "stands at no row"),
        ({"cut": -1}, "out of its range"),
        ({"cut": "x"}, "other things"),
        ({"names": ("x", 5)}, "other things"),
        ({"topic_order": (None,)}, "other things"),
        ({"sources": (("a", "id-a", 0), ("b", 5, 4))}, "other things"),
        ({"sources": (("a", "id-a", 0), ("b", "id-b", -4))}, "out of its range"),
        ({"sources": (("a", "id-a", 0), ("b", "id-b", True))}, "other things"),
        ({"control": {0: bytes(1_000_002)}}, "a control record has 1000002 bytes"),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, Any], reason: str) -> None:
    assert_equal(small(), decode(encode(small())))
    with pytest.raises(StateError, match=reason):
        decode(encode(replace(small(), **change)))


def test_what_is_none_is_refused() -> None:
    packed = encode(small())
    version = struct.pack("<4sH", b"TOCH", 2) + packed[6:]
    for data in (b"", b"TOCH", b"XXXX" + packed[4:], version, packed[:-1], packed + b"x"):
        with pytest.raises(StateError, match="what a task of the source has packed cannot be read"):
            decode(data)
    for text in (b"[" * 5_000, b"{}", b"3", json.dumps({"columns": [["<i8", "x"]] * 6}).encode()):
        with pytest.raises(StateError):
            decode(struct.pack("<4sHII", b"TOCH", 1, 0, len(text)) + text)
