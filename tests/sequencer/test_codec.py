"""Stamps on the wire: what goes in comes out, in however many parts; what does not belong is refused by name."""

import json
import random
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from engine_world import DOMAIN, configs, rows_of, run, same_rows
from hypothesis import given, strategies as st
from reference import Event, Item, change, events
from sources import src

from totalorder.config import Settings
from totalorder.errors import LimitExceeded, WireError
from totalorder.sequencer.wire import codec
from totalorder.sequencer.wire.codec import StampsAssembler, WireRecord, decode_part, encode_stamps
from totalorder.sequencer.wire.limits import MAX_BATCH_BYTES, MAX_PART_BYTES, MAX_TIME_MS, MAX_TOPICS_PER_SUBSCRIPTION
from totalorder.sequencer.wire.stamps import Source, StampedBatch, StampRows

topics = st.sampled_from(["T", "X", "Z", "été", "a" * 200])
histories: st.SearchStrategy[list[Item]] = st.lists(
    st.one_of(topics.map(Event), topics.map(Event), st.builds(change, st.sampled_from("rs"), st.sets(topics))),
    min_size=1,
    max_size=40,
)


def stamped(items: list[Item], partitions: int = 1) -> StampedBatch:
    _, effects = run([rows_of(items)], configs(partitions=partitions))
    return effects[0].stamps[0]


def feed(assembler: StampsAssembler, records: list[WireRecord]) -> list[StampedBatch]:
    found = [assembler.add(record.value, dict(record.headers)) for record in records]
    return [batch for batch in found if batch is not None]


def reader() -> StampsAssembler:
    return StampsAssembler(domain=DOMAIN, partition=0)


@given(items=histories, partitions=st.integers(1, 3))
def test_what_goes_in_comes_out(items: list[Item], partitions: int) -> None:
    batch = stamped(items, partitions)
    (record,) = encode_stamps(batch)
    (out,) = feed(reader(), [record])
    assert same_rows(out, batch)
    assert out.digest == batch.digest
    assert replace(out, rows=batch.rows) == replace(batch, rows=batch.rows)


@given(items=histories, limit=st.integers(300, 700))
def test_parts_join_to_the_same_content(items: list[Item], limit: int) -> None:
    batch = stamped(items)
    records = list(encode_stamps(batch, max_part_bytes=limit))
    assert all(len(record.value) <= limit or len(decode_part(record.value).rows) <= 1 for record in records)
    (out,) = feed(reader(), records)
    assert same_rows(out, batch)
    assert out.names == batch.names


def many_parts() -> tuple[StampedBatch, list[WireRecord]]:
    batch = stamped([change("r", "TXZ"), *events("TXZ" * 400)])
    records = list(encode_stamps(batch, max_part_bytes=500))
    assert len(records) > 2
    return batch, records


def test_a_batch_that_is_begun_anew_counts_once() -> None:
    batch, records = many_parts()
    assembler = reader()
    found = feed(assembler, [*records[:2], *records])
    assert [b.digest for b in found] == [batch.digest]
    assert not assembler.waiting


def test_a_batch_is_complete_only_with_its_last_part() -> None:
    _, records = many_parts()
    assembler = reader()
    assert feed(assembler, records[:-1]) == []
    assert assembler.waiting


def test_the_tail_of_a_batch_that_began_before_the_reader_is_passed_over() -> None:
    batch, records = many_parts()
    assert [b.digest for b in feed(reader(), [*records[1:], *records])] == [batch.digest]


def placed(assembler: StampsAssembler, records: list[WireRecord]) -> list[tuple[str, int]]:
    """Digest and first offset of each batch that records at the offsets 0, 1, 2 … complete."""
    found = []
    for offset, record in enumerate(records):
        batch = assembler.add(record.value, dict(record.headers), offset=offset)
        if batch is not None:
            found.append((batch.digest, assembler.began_at))
    return found


def test_parts_of_an_attempt_that_died_may_stand_between_those_of_the_present_one() -> None:
    """A process of the job that was replaced may still write; whoever wrote all parts has written the batch."""
    batch, new = many_parts()
    old = list(new)
    for log in (
        [new[0], old[1], *new[1:]],
        [new[0], old[0], *new[1:]],
        [old[0], new[0], old[1], *new[1:]],
        [new[0], new[1], old[0], old[1], *new[2:]],
    ):
        assert (batch.digest, log.index(new[0])) in placed(reader(), log)


def test_parts_of_another_batch_may_stand_between_those_of_this_one() -> None:
    batch, records = many_parts()
    before = replace(batch, batch=batch.batch - 1).sealed()
    older = list(encode_stamps(before, max_part_bytes=500))
    log = [records[0], older[0], records[1], *older[1:], *records[2:]]
    assert placed(reader(), log) == [(before.digest, 1), (batch.digest, 0)]


def test_an_attempt_that_was_cut_otherwise_spoils_none() -> None:
    """Another release may cut the same content elsewhere, into as many parts."""
    batch, records = many_parts()
    size = 500
    while len(other := list(encode_stamps(batch, max_part_bytes=size))) == len(records) and other == records:
        size += 20
    parts = b"%d" % len(records)
    odd = [WireRecord(value=record.value, headers=_with(record, parts=parts)) for record in other[:2]]
    assert placed(reader(), [*odd, *records])[-1][0] == batch.digest


def _with(record: WireRecord, **headers: bytes) -> tuple[tuple[str, bytes], ...]:
    return tuple((dict(record.headers) | headers).items())


def test_attempts_that_never_end_are_few() -> None:
    _, records = many_parts()
    assembler = reader()
    assert placed(assembler, [*[records[0]] * 50, *records]) != []
    placed(assembler, [records[0]] * 50)
    assert len(assembler._attempts) <= 4


def test_a_missing_middle_part_never_makes_a_batch() -> None:
    _, records = many_parts()
    assert feed(reader(), [records[0], *records[2:]]) == []


def altered(record: WireRecord, **headers: bytes) -> dict[str, bytes]:
    return dict(record.headers) | headers


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"kind": b"other"}, "no header kind=stamps"),
        ({"version": b"9"}, "has version b'9'; this program reads 4"),
        ({"version": b"3"}, "has version b'3'; this program reads 4"),
        ({"part": b"x"}, "headers are not those of stamps"),
        ({"part": b"3"}, "part 3 of 1"),
        ({"parts": b"99999999"}, "part 0 of 99999999"),
        ({"batch": b"2"}, "belongs to d[0] batch 1"),
    ],
)
def test_foreign_headers_are_refused_by_name(headers: dict[str, bytes], message: str) -> None:
    (record,) = encode_stamps(stamped(events("T")))
    with pytest.raises(WireError) as caught:
        reader().add(record.value, altered(record, **headers))
    assert message in str(caught.value)


def test_a_record_of_another_partition_is_refused() -> None:
    (record,) = encode_stamps(stamped(events("T")))
    with pytest.raises(WireError, match="belongs to d"):
        StampsAssembler(domain=DOMAIN, partition=1).add(record.value, dict(record.headers))


def test_a_content_that_does_not_give_its_digest_is_refused() -> None:
    batch = stamped(events("TT"))
    forged = replace(batch, rows=replace(batch.rows, crc=batch.rows.crc + 1))
    (record,) = encode_stamps(forged)
    with pytest.raises(WireError, match="does not give its digest"):
        reader().add(record.value, dict(record.headers))


@given(junk=st.binary(max_size=200))
def test_junk_is_refused(junk: bytes) -> None:
    for value in (junk, bytes(pa.compress(junk, codec="zstd", asbytes=True))):
        with pytest.raises(WireError):
            decode_part(value)


def raw_of(record: WireRecord) -> tuple[dict[str, Any], bytes]:
    """The directory and the columns of a record."""
    raw = bytes(pa.CompressedInputStream(pa.BufferReader(record.value), "zstd").read())
    end = 4 + int.from_bytes(raw[:4], "little")
    return json.loads(raw[4:end]), raw[end:]


def value_of(directory: str, columns: bytes) -> bytes:
    head = directory.encode()
    return bytes(pa.compress(len(head).to_bytes(4, "little") + head + columns, codec="zstd", asbytes=True))


@pytest.mark.parametrize("directory", ["[" * 100_000, '{"ids":[' + "9" * 400 + "]}", "{}", "7"])
def test_odd_directories_are_refused(directory: str) -> None:
    with pytest.raises(WireError):
        decode_part(value_of(directory, b""))


@pytest.mark.parametrize(
    ("name", "odd"),
    [
        ("rows", -1),
        ("rows", 2_000_001),
        ("rows", 4),
        ("entries", 5_000_001),
        ("entries", 0),
        ("widths", [1] * 11),
        ("widths", [0] * 12),
        ("widths", [9] * 12),
        ("widths", [1.0] * 12),
        ("ids", [0, 0]),
        ("ids", [1, -1]),
        ("base", [0]),
        ("base", [[0], [0]]),
        ("base", [0.0, 0.0]),
        ("ids", [[0], [1]]),
        ("g", -1),
        ("g", 2**63),
        ("time_ms", 2**63),
        ("cut", -1),
        ("cut", "1"),
        ("previous_digest", "\ud800"),
        ("names", ["T", "\ud800"]),
        ("first", [0]),
        ("first", ["0", "0"]),
        ("sources", []),
        ("sources", 0),
        ("sources", 2),
        ("sources", -1),
        ("sources", 100_001),
        ("sources", 1.0),
        ("entries", -1),
        ("kafka_topics", []),
        ("kafka_topics", [["all"]]),
        ("kafka_topics", [["all", 7]]),
        ("kafka_topics", [["all", "", 0]]),
        ("kafka_topics", None),
        ("names", ["T"]),
        ("digest", "00"),
        ("partition", 5_000),
    ],
)
def test_a_directory_that_does_not_fit_is_refused(name: str, odd: object) -> None:
    directory, columns = raw_of(encode_stamps(stamped([change("r", "TX"), *events("TXT")]))[0])
    assert decode_part(value_of(json.dumps(directory), columns))
    with pytest.raises(WireError):
        decode_part(value_of(json.dumps(directory | {name: odd}), columns))


def test_columns_that_are_too_long_or_too_short_are_refused() -> None:
    directory, columns = raw_of(encode_stamps(stamped([change("r", "TX"), *events("TXT")]))[0])
    for odd in (columns + b"\0", columns[:-1], b""):
        with pytest.raises(WireError):
            decode_part(value_of(json.dumps(directory), odd))


def test_no_columns_unpack_to_more_than_a_record_may_hold() -> None:
    """A directory may not promise values that no bytes stand for."""
    directory, _ = raw_of(encode_stamps(stamped(events("T")))[0])
    for rows, entries, why in (
        (500_000, 0, "less or more behind the directory"),
        (1, 1_900_000, "less or more behind the directory"),
        (2_000_000, 0, "too many rows"),
        (1, 5_000_000, "too many rows"),
    ):
        with pytest.raises(WireError, match=why):
            decode_part(value_of(json.dumps(directory | {"rows": rows, "entries": entries}), bytes(1_000)))


def test_what_a_part_takes_is_known_before_its_columns_are_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal values take nothing on the wire: 952 bytes were half a gigabyte."""
    directory, columns = raw_of(encode_stamps(stamped(events("T")))[0])
    bomb = value_of(json.dumps(directory | {"rows": 2_000_000}), bytes(20_000_000))
    behind = value_of(json.dumps(directory), columns + bytes(60_000_000))
    assert len(bomb) < 2_000
    monkeypatch.setattr(codec, "from_planes", lambda *_: pytest.fail("a column was made"))
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="too many rows"):
            decode_part(bomb)
        with pytest.raises(WireError, match="less or more behind"):
            decode_part(behind)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1_000_000


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"base": [2**62 - 1]}, "n is out of range"),
        ({"base": [2**63 - 1]}, "n is out of range"),
        ({"base": [-5]}, "n is out of range"),
        ({"first": [0, 2**62]}, "g is out of range"),
        ({"first": [0, 2**63 - 1]}, "g is out of range"),
        ({"first": [0, 0]}, "g is out of range"),
        ({"g": 2}, "g is out of range"),
        ({"g": 2**62}, "g, control_g or time_ms"),
        ({"control_g": 2**62}, "g, control_g or time_ms"),
        ({"time_ms": MAX_TIME_MS + 1}, "g, control_g or time_ms"),
    ],
)
def test_numbers_that_no_domain_reaches_are_refused(changed: dict[str, Any], why: str) -> None:
    """What is summed may go over 64 bits, to where it looks well."""
    directory, columns = raw_of(encode_stamps(stamped(events("TTT")))[0])
    assert len(decode_part(value_of(json.dumps(directory), columns)).rows) == 3
    with pytest.raises(WireError, match=why):
        decode_part(value_of(json.dumps(directory | changed), columns))


def test_events_of_a_topic_that_do_not_stand_in_order_are_refused() -> None:
    batch = stamped(events("TTT"))
    falls = replace(batch.rows, g=batch.rows.g[[0, 2, 1]])
    with pytest.raises(WireError, match="do not stand in order"):
        feed(reader(), list(encode_stamps(replace(batch, rows=falls).sealed())))


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_is_refused_or_caught_by_the_digest(at: int, bit: int) -> None:
    batch = stamped([change("r", "TX"), *events("TXT")])
    (record,) = encode_stamps(batch)
    value = bytearray(record.value)
    value[at % len(value)] ^= 1 << bit
    try:
        out = reader().add(bytes(value), dict(record.headers))
    except WireError:
        return
    assert out is not None
    assert same_rows(out, batch)


def test_no_value_and_a_bomb_are_refused() -> None:
    with pytest.raises(WireError, match="no value"):
        decode_part(None)
    bomb = bytes(pa.compress(bytes(70_000_000), codec="zstd", asbytes=True))
    with pytest.raises(WireError, match="JSONDecodeError"):
        decode_part(bomb)


def test_parts_that_never_complete_cost_what_they_cost_on_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first part's rows again and again: on the wire they pack into next to nothing."""
    _, records = many_parts()
    monkeypatch.setattr(codec, "decode_part", lambda *_: pytest.fail("a part was unpacked"))
    assembler = reader()
    for part in range(1_000):
        assembler.add(records[0].value, altered(records[0], part=b"%d" % part, parts=b"10000"))
    (attempt,) = assembler._attempts
    assert attempt.size == 1_000 * len(records[0].value)
    monkeypatch.setattr(codec, "MAX_BATCH_BYTES", 1_001 * len(records[0].value) - 1)
    with pytest.raises(WireError, match=r"not usable: batch 1 has more stamps, entries or topics than a batch may"):
        assembler.add(records[0].value, altered(records[0], part=b"1000", parts=b"10000"))
    assert not assembler.waiting


def test_parts_that_are_whole_and_too_many_are_not_unpacked_to_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    _, records = many_parts()
    size = codec.bytes_of(decode_part(records[0].value).rows)
    made: list[int] = []
    columns = codec._columns
    monkeypatch.setattr(codec, "_columns", lambda *args: made.append(1) or columns(*args))  # type: ignore[func-returns-value]
    monkeypatch.setattr(codec, "MAX_BATCH_BYTES", 3 * size)
    assembler = reader()
    for part in range(9):
        assembler.add(records[0].value, altered(records[0], part=b"%d" % part, parts=b"10"))
    with pytest.raises(WireError, match=r"not usable: batch 1 has more stamps, entries or topics than a batch may"):
        assembler.add(records[0].value, altered(records[0], part=b"9", parts=b"10"))
    assert len(made) == 3
    assert not assembler.waiting


def test_a_batch_never_names_more_topics_than_a_domain_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    (record,) = encode_stamps(stamped(events("TXZ")))
    monkeypatch.setattr(codec, "MAX_TOPICS_PER_DOMAIN", 3)
    assert feed(reader(), [record])
    monkeypatch.setattr(codec, "MAX_TOPICS_PER_DOMAIN", 2)
    with pytest.raises(WireError, match="more stamps, entries or topics"):
        feed(reader(), [record])


def test_the_largest_batch_that_is_written_is_read_and_a_larger_one_is_not_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch, _ = many_parts()
    monkeypatch.setattr(codec, "MAX_BATCH_BYTES", codec.bytes_of(batch.rows))
    (out,) = feed(reader(), list(encode_stamps(batch, max_part_bytes=500)))
    assert same_rows(out, batch)
    monkeypatch.setattr(codec, "MAX_BATCH_BYTES", codec.bytes_of(batch.rows) - 1)
    with pytest.raises(LimitExceeded, match=r"batch 1 has 1200 stamps with \d+ entries. Lower max_events_per_batch"):
        encode_stamps(batch)


def test_a_batch_of_the_default_size_in_which_everybody_shares_everything_is_legal() -> None:
    size = Settings.model_fields["max_events_per_batch"].default
    most = 57 * size + 16 * size * MAX_TOPICS_PER_SUBSCRIPTION
    assert most < MAX_BATCH_BYTES
    rows = many_parts()[0].rows
    assert codec.bytes_of(rows) + 8 == sum(getattr(rows, name).nbytes for name in StampRows.__dataclass_fields__)


def test_a_directory_with_too_many_values_is_not_even_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("totalorder.sequencer.wire.budget.json.loads", lambda _: pytest.fail("it was parsed"))
    with pytest.raises(WireError, match="more values than 1500000 numbers' worth"):
        decode_part(value_of("[[]" + ",[]" * 300_000 + "]", b""))


def test_a_directory_with_more_values_than_a_reader_takes_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = stamped(events([f"topic-{number}" for number in range(60)]))
    monkeypatch.setattr("totalorder.sequencer.wire.budget.MAX_JSON_UNITS", 200)
    records = list(encode_stamps(batch))
    assert len(records) > 1
    (out,) = feed(reader(), records)
    assert same_rows(out, batch)


@pytest.mark.parametrize("hostile", ["[[]" + ",[]" * 5_000 + "]", "[" * 8_000 + "]" * 8_000])
def test_a_directory_that_is_too_long_is_not_even_parsed(monkeypatch: pytest.MonkeyPatch, hostile: str) -> None:
    parsed: list[bytes] = []
    monkeypatch.setattr(codec, "MAX_DIRECTORY_BYTES", 10_000)
    monkeypatch.setattr(json, "loads", parsed.append)
    with pytest.raises(WireError, match="its directory has more than 10000 bytes"):
        decode_part(value_of(hostile, b""))
    assert not parsed


@pytest.mark.parametrize("limit", ["MAX_DIRECTORY_BYTES", "MAX_RAW_PART_BYTES"])
def test_a_directory_that_a_reader_would_not_take_is_cut(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """Names of one character over and over pack into nothing, and unpack into more than a reader takes."""
    batch = stamped(events([f"{'😀' * 250}{number}" for number in range(60)]))
    monkeypatch.setattr(codec, limit, 60_000)
    records = list(encode_stamps(batch))
    assert len(records) > 1
    (out,) = feed(reader(), records)
    assert same_rows(out, batch)
    monkeypatch.setattr(codec, limit, 3_000)
    with pytest.raises(LimitExceeded, match=r"one stamp of batch 1 needs \d+ bytes, \d+ of them for its directory"):
        encode_stamps(batch)


def test_a_stamp_with_enormous_names_gets_a_record_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(5)
    names = ["".join(chr(rng.randrange(0x4E00, 0x9FFF)) for _ in range(255)) for _ in range(1_000)]
    batch = stamped([change("r", names), *events(names[:3])])
    records = list(encode_stamps(batch))
    assert max(len(record.value) for record in records) > MAX_PART_BYTES
    (out,) = feed(reader(), records)
    assert same_rows(out, batch)
    monkeypatch.setattr(codec, "MAX_ROW_BYTES", 10_000)
    with pytest.raises(LimitExceeded, match="one stamp of batch 1 needs"):
        encode_stamps(batch, max_part_bytes=10_000)


def test_parts_that_differ_in_what_they_have_in_common_are_refused() -> None:
    """The digest covers the last part's directory: a first part with fewer sources must not come through with it."""
    batch, records = many_parts()
    odds: tuple[dict[str, Any], ...] = (
        {"sources": (*batch.sources[:-1], src("other"))},
        {"sources": tuple(source._replace(topic_id="other") for source in batch.sources)},
        {"sources": batch.sources[::-1]},
        {"ends": tuple(end + 1 for end in batch.ends)},
        {"time_ms": 1},
        {"cut": 2},
    )
    for odd in odds:
        other, *_ = encode_stamps(replace(batch, **odd), max_part_bytes=500)
        first = WireRecord(value=other.value, headers=records[0].headers)
        with pytest.raises(WireError, match="does not fit the first one of batch 1"):
            feed(reader(), [first, *records[1:]])


sources = st.dictionaries(
    st.builds(src, st.sampled_from(["a", "b", "été"]), st.integers(0, 2**31 - 1), st.sampled_from(["", "1", "2"])),
    st.one_of(st.integers(0, 100), st.integers(0, 2**63 - 1)),
    max_size=8,
)


@given(ends=sources)
def test_the_event_partitions_come_out_as_they_went_in(ends: dict[Source, int]) -> None:
    """Two topics of one name among them, in any order, with ends of any size."""
    batch = replace(stamped([change("r", "T")]), sources=tuple(ends), ends=tuple(ends.values())).sealed()
    (out,) = feed(reader(), list(encode_stamps(batch)))
    assert (out.sources, out.ends, out.digest) == (batch.sources, batch.ends, batch.digest)
    assert out.next_offsets == ends


def test_a_digest_covers_every_part_of_an_event_partition() -> None:
    batch = replace(stamped([change("r", "T")]), sources=(src("a"), src("b", 1)), ends=(3, 4))
    others: list[dict[str, Any]] = [
        {"sources": (src("a"), src("b", 2))},
        {"sources": (src("a"), src("b", 1, "again"))},
        {"sources": (src("c"), src("b", 1))},
        {"sources": (src("b", 1), src("a"))},
        {"ends": (3, 5)},
        {"ends": (4, 3)},
        {"sources": (src("a"),), "ends": (3,)},
    ]
    assert len({batch.compute_digest(), *(replace(batch, **other).compute_digest() for other in others)}) == 8


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ({"sources": (src("a"), src("a"))}, "there twice"),
        ({"sources": (src("a", -1), src("b"))}, "number of a partition is out of range"),
        ({"sources": (src("a", 2**31), src("b"))}, "number of a partition is out of range"),
        ({"ends": (-1, 0)}, "ends below 0"),
    ],
)
def test_event_partitions_that_cannot_be_are_refused(odd: dict[str, Any], why: str) -> None:
    batch = replace(stamped([change("r", "T")]), sources=(src("a"), src("b")), ends=(0, 0))
    assert feed(reader(), list(encode_stamps(batch.sealed())))
    with pytest.raises(WireError, match=why):
        feed(reader(), list(encode_stamps(replace(batch, **odd).sealed())))


def test_the_columns_of_event_partitions_may_hold_anything_and_are_refused() -> None:
    """Each byte of theirs with any value: what comes through gives the digest."""
    batch = replace(stamped([change("r", "T")]), sources=(src("a"), src("b", 1)), ends=(3, 300)).sealed()
    (record,) = encode_stamps(batch)
    directory, columns = raw_of(record)
    size = 2 * sum(directory["widths"][:3])
    assert size == 8
    for place in range(size):
        for value in range(256):
            odd = columns[:place] + bytes([value]) + columns[place + 1 :]
            if odd == columns:
                continue
            with pytest.raises(WireError):
                reader().add(value_of(json.dumps(directory), odd), dict(record.headers))


def test_a_digest_tells_rows_from_entries() -> None:
    """The columns are hashed one behind the other: where one ends and the next begins must count too."""
    empty = StampRows.empty()
    ones = np.ones(2, dtype=np.int64)
    rows = replace(empty, topic=ones)
    other = replace(empty, n=ones)
    batch = stamped(events("T"))
    assert replace(batch, rows=rows).compute_digest() != replace(batch, rows=other).compute_digest()


def test_large_batches_stay_under_the_limit() -> None:
    rng = random.Random(7)
    names = [f"topic-{i}" for i in range(60)]
    items: list[Item] = [change(f"s{i}", rng.sample(names, 20)) for i in range(30)]
    items += [Event(rng.choice(names)) for _ in range(5_000)]
    batch = stamped(items)
    records = list(encode_stamps(batch, max_part_bytes=20_000))
    assert max(len(record.value) for record in records) <= 20_000
    (out,) = feed(reader(), records)
    assert same_rows(out, batch)
