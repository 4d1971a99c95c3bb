"""Receipts on the wire: what goes in comes out, in however many records; what does not belong is refused by name."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from sources import src

from totalorder.errors import SettingsError, WireError
from totalorder.sequencer.wire import receipts as module
from totalorder.sequencer.wire.limits import MAX_TIME_MS
from totalorder.sequencer.wire.receipts import HEADERS, Receipts, decode_receipts, encode_receipts
from totalorder.sequencer.wire.stamps import Source

Row = tuple[object, ...]
BIG = 2**63 - 1
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=255)
ids = st.text("0-A", max_size=64)
sources = st.builds(Source, names, ids, st.integers(0, 2**31 - 1))


def ints(values: list[int]) -> Any:
    return np.array(values, dtype=np.int64)


@st.composite
def journals(draw: st.DrawFn) -> Receipts:
    """Deliveries as a process may have them, and wilder: numbers anywhere in 64 bits."""
    count = draw(st.integers(1, 30))

    def column(values: st.SearchStrategy[int]) -> list[int]:
        return draw(st.lists(values, min_size=count, max_size=count))

    topics = tuple(draw(st.lists(names, min_size=1, max_size=4, unique=True)))
    places = tuple(draw(st.lists(sources, min_size=1, max_size=4, unique=True)))
    positive = st.one_of(st.integers(1, 100), st.integers(1, 2**62 - 1))
    lost = np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    return Receipts(
        domain="d.e-f",
        id=draw(st.sampled_from(["s", "a" * 128, "me@here:1"])),
        nonce="n0",
        topics=topics,
        sources=places,
        generation=ints(sorted(column(positive))),
        sequence=ints(sorted(draw(st.sets(positive, min_size=count, max_size=count)))),
        topic=ints(column(st.integers(0, len(topics) - 1))),
        source=ints(column(st.integers(0, len(places) - 1))),
        offset=ints(column(st.integers(0, BIG))),
        n=np.where(lost & (ints(column(st.integers(0, 1))) == 0), 0, ints(column(positive))),
        g=ints(column(positive)),
        redelivered=np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count))),
        lost=lost,
        delivered_ms=ints(column(st.integers(0, MAX_TIME_MS))),
    )


def rows(receipts: Receipts) -> list[Row]:
    """Each delivery with all that it says, names written out."""
    head = (receipts.domain, receipts.id, receipts.nonce)
    plain = ("generation", "sequence", "offset", "n", "g", "redelivered", "lost", "delivered_ms")
    return [
        (*head, receipts.topics[topic], receipts.sources[source], *rest)
        for topic, source, *rest in zip(
            receipts.topic.tolist(),
            receipts.source.tolist(),
            *(getattr(receipts, name).tolist() for name in plain),
            strict=True,
        )
    ]


def some(count: int = 3) -> Receipts:
    up = np.arange(1, count + 1, dtype=np.int64)
    return Receipts(
        domain="d",
        id="s",
        nonce="n",
        topics=("T", "X"),
        sources=(src("T", 0), src("X", 1)),
        generation=up * 0 + 1,
        sequence=up,
        topic=up % 2,
        source=up % 2,
        offset=up * 10,
        n=up,
        g=up * 2,
        redelivered=up > 2,
        lost=up == 2,
        delivered_ms=up * 1000,
    )


@given(receipts=journals())
def test_what_goes_in_comes_out(receipts: Receipts) -> None:
    (record,) = encode_receipts(receipts)
    out = decode_receipts(record.value, dict(record.headers))
    assert rows(out) == rows(receipts)
    assert out.redelivered.dtype == out.lost.dtype == np.bool_


def test_only_what_was_never_stamped_has_no_number() -> None:
    none = np.zeros(3, dtype=np.int64)
    with pytest.raises(ValueError, match="n is out of range"):
        replace(some(), n=none)
    assert len(replace(some(), n=none, lost=np.ones(3, dtype=np.bool_))) == 3


@given(receipts=journals(), limit=st.integers(1, 2_000))
def test_each_record_stands_by_itself(receipts: Receipts, limit: int) -> None:
    records = encode_receipts(receipts, max_part_bytes=limit)
    parts = [decode_receipts(record.value, dict(record.headers)) for record in records]
    assert all(len(record.value) <= limit or len(part) == 1 for record, part in zip(records, parts, strict=True))
    assert [row for part in parts for row in rows(part)] == rows(receipts)


def test_many_deliveries_go_in_several_records_and_take_few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    many = some(10_000)
    (record,) = encode_receipts(many)
    assert len(record.value) < 2 * len(many)
    monkeypatch.setattr(module, "MAX_RECEIPTS_PER_RECORD", 3_000)
    records = encode_receipts(many)
    assert [len(decode_receipts(record.value, dict(HEADERS))) for record in records] == [2_500] * 4


def test_no_deliveries_make_no_record() -> None:
    assert encode_receipts(some(0)) == ()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"id": "a/b"}, "not usable"),
        ({"nonce": ""}, "not usable"),
        ({"topics": ("T", "")}, "topics"),
        ({"topics": ("T",)}, "topic is out of range"),
        ({"sources": (src("T"), src("X", -1))}, "no event partition"),
        ({"sources": (src("T"), src("X", 2**31))}, "no event partition"),
        ({"sources": (src("T"), src("X", 1, "i" * 65))}, "no event partition"),
        ({"sources": (src("T"),)}, "source is out of range"),
        ({"generation": ints([0, 1, 1])}, "generation is out of range"),
        ({"generation": ints([2, 2, 1])}, "generation falls"),
        ({"sequence": ints([0, 1, 2])}, "sequence is out of range"),
        ({"sequence": ints([1, 1, 2])}, "sequence does not rise"),
        ({"offset": ints([-1, 0, 0])}, "offset is out of range"),
        ({"n": ints([1, 2, 0])}, "n is out of range"),
        ({"g": ints([1, 2, -BIG])}, "g is out of range"),
        ({"g": ints([1, 2, 2**62])}, "g is out of range"),
        ({"n": ints([1, 2, 2**62])}, "n is out of range"),
        ({"sequence": ints([1, 2, 2**62])}, "sequence is out of range"),
        ({"delivered_ms": ints([1, 2, MAX_TIME_MS + 1])}, "delivered_ms is out of range"),
        ({"offset": ints([1, 2])}, "differ in length"),
    ],
)
def test_what_cannot_be_is_refused_when_made(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        replace(some(), **wrong)


def test_a_domain_that_cannot_be_is_refused() -> None:
    with pytest.raises(SettingsError, match="domain"):
        replace(some(), domain="a b")


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({}, "no header kind=receipts"),
        ({"kind": b"stamps", "version": b"1"}, "no header kind=receipts"),
        ({"kind": b"receipts", "version": b"1"}, "version b'1'"),
        ({"kind": b"receipts"}, "version None"),
    ],
)
def test_foreign_headers_are_refused_by_name(headers: dict[str, bytes], why: str) -> None:
    (record,) = encode_receipts(some())
    with pytest.raises(WireError) as caught:
        decode_receipts(record.value, headers)
    assert why in str(caught.value)


def test_no_value_and_a_bomb_are_refused() -> None:
    with pytest.raises(WireError, match="no value"):
        decode_receipts(None, dict(HEADERS))
    bomb = bytes(pa.compress(bytes(70_000_000), codec="zstd", asbytes=True))
    with pytest.raises(WireError, match="more than 24000000 bytes"):
        decode_receipts(bomb, dict(HEADERS))


@given(junk=st.binary(max_size=200))
def test_junk_is_refused(junk: bytes) -> None:
    for value in (junk, bytes(pa.compress(junk, codec="zstd", asbytes=True))):
        with pytest.raises(WireError):
            decode_receipts(value, dict(HEADERS))


def decoded_or_refused(value: bytes) -> None:
    """Hostile bytes give receipts that hold together, or a WireError; anything else fails the test."""
    try:
        out = decode_receipts(value, dict(HEADERS))
    except WireError:
        return
    assert 0 < len(rows(out)) == len(out)


@given(receipts=journals(), cuts=st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=8))
def test_changed_bytes_never_raise_anything_else(receipts: Receipts, cuts: list[tuple[int, int]]) -> None:
    (record,) = encode_receipts(receipts)
    raw = pa.CompressedInputStream(pa.BufferReader(record.value), "zstd").read()
    for whole, pack in ((record.value, bytes), (raw, packed)):
        changed = bytearray(whole)
        for at, byte in cuts:
            changed[at % len(changed)] = byte
        decoded_or_refused(pack(bytes(changed)))
        decoded_or_refused(pack(bytes(changed[: cuts[0][0] % len(changed)])))


def packed(raw: bytes) -> bytes:
    return bytes(pa.compress(raw, codec="zstd", asbytes=True))


def forged(directory: object, batches: int = 1, **columns: pa.Array) -> bytes:
    """A record with the columns of `some` but those given, under this directory (as text, or to be made text)."""
    (record,) = encode_receipts(some())
    with pa.ipc.open_stream(pa.CompressedInputStream(pa.BufferReader(record.value), "zstd").read()) as reader:
        batch = reader.read_next_batch()
    text = directory if isinstance(directory, bytes) else json.dumps(directory).encode()
    schema = batch.schema.with_metadata({b"totalorder": text})
    arrays = [columns.get(field.name, batch.column(field.name)) for field in schema]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for _ in range(batches):
            writer.write_batch(pa.record_batch(arrays, schema=schema))
    return packed(sink.getvalue().to_pybytes())


DIRECTORY = {
    "domain": "d",
    "id": "s",
    "nonce": "n",
    "topics": ["T", "X"],
    "sources": [["T", "id-T", 0], ["X", "id-X", 1]],
}
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=4)),
    max_leaves=6,
)


def test_the_forger_can_also_write_what_is_right() -> None:
    assert rows(decode_receipts(forged(DIRECTORY), dict(HEADERS))) == rows(some())


@given(name=st.sampled_from([*DIRECTORY, "other"]), value=json_values)
def test_forged_directories_never_raise_anything_else(name: str, value: object) -> None:
    decoded_or_refused(forged(DIRECTORY | {name: value}))


@given(directory=json_values)
def test_foreign_directories_are_refused(directory: object) -> None:
    with pytest.raises(WireError):
        decode_receipts(forged(directory), dict(HEADERS))


@given(
    name=st.sampled_from(["generation", "sequence", "offset", "n", "g", "delivered_ms"]),
    values=st.lists(st.one_of(st.none(), st.integers(-BIG - 1, BIG)), min_size=3, max_size=3),
)
def test_forged_columns_never_raise_anything_else(name: str, values: list[int | None]) -> None:
    decoded_or_refused(forged(DIRECTORY, **{name: pa.array(values, pa.int64())}))


def test_columns_that_are_compressed_once_more_are_not_unpacked() -> None:
    """Arrow would unpack them without a limit: 472 bytes were a gigabyte."""
    (record,) = encode_receipts(some())
    with pa.ipc.open_stream(pa.CompressedInputStream(pa.BufferReader(record.value), "zstd").read()) as reader:
        schema = reader.schema
    size = 1_000_000
    arrays = [pa.array(np.zeros(size), field.type) for field in schema]
    for compression in ("zstd", "lz4", None):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
            writer.write_batch(pa.record_batch([array[: size if compression else 200_000] for array in arrays], schema))
        before, why = pa.total_allocated_bytes(), "compressed once more" if compression else "200000 rows"
        with pytest.raises(WireError, match=why):
            decode_receipts(packed(sink.getvalue().to_pybytes()), dict(HEADERS))
        assert pa.total_allocated_bytes() - before < size


def test_receipts_that_a_reader_would_not_take_go_in_several_records(monkeypatch: pytest.MonkeyPatch) -> None:
    many = some(1_000)
    monkeypatch.setattr(module, "MAX_RAW_RECEIPTS_BYTES", 30_000)
    records = encode_receipts(many)
    assert len(records) > 1
    assert [row for record in records for row in rows(decode_receipts(record.value, dict(HEADERS)))] == rows(many)


def test_what_only_a_forger_writes_is_refused() -> None:
    missing = pa.array([1, None, 1], pa.int64())
    for value, why in (
        (forged(DIRECTORY, n=missing), "a value is missing"),
        (forged(DIRECTORY, batches=0), "End of Arrow stream"),
        (forged(b"[" * 100_000), "nested too deep"),
    ):
        with pytest.raises(WireError, match=why):
            decode_receipts(value, dict(HEADERS))
