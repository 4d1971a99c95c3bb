"""Batches by columns beside kafka-python, which takes them apart record by record."""

import gzip
import struct
import zlib
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from kafka import TopicPartition
from kafka.consumer.fetcher import Fetcher
from kafka.errors import UnsupportedCodecError
from kafka.protocol.consumer import IsolationLevel
from kafka.record import MemoryRecords, MemoryRecordsBuilder
from kafka.record.default_records import DefaultRecordBase
from kafka.record.util import calc_crc32c
from zstandard import ZstdError

from totalorder.subscriber import kafka_batches
from totalorder.subscriber.kafka_batches import read_by_columns
from totalorder.subscriber.transport import Record

AT = TopicPartition("a", 3)
ALL = 1 << 30
NONE, GZIP = 0, 1
"""Compressions."""
LOG_APPEND_TIME = 0x08
BEHIND_LENGTH = struct.calcsize(">qi")


def batch(begin: int, records: list[Any], *, compression: int = NONE, producer: int = -1, attributes: int = 0) -> bytes:
    """Of (offset behind the last one, timestamp, key, value, headers)."""
    builder = MemoryRecordsBuilder(
        2,
        compression,
        ALL,
        offset=begin,
        transactional=producer >= 0,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
    )
    for skipped, *record in records:
        builder.skip(skipped)
        assert builder.append(*record) is not None
    builder.close()
    return with_attributes(bytearray(builder.buffer()), attributes)


def with_attributes(content: bytearray, attributes: int) -> bytes:
    at = DefaultRecordBase.ATTRIBUTES_OFFSET
    (former,) = struct.unpack_from(">h", content, at)
    struct.pack_into(">h", content, at, former | attributes)
    struct.pack_into(">I", content, DefaultRecordBase.CRC_OFFSET, calc_crc32c(memoryview(content)[at:]))
    return bytes(content)


def control(begin: int, producer: int, *, commits: bool) -> bytes:
    record: Any = (0, 7, struct.pack(">hh", 0, commits), bytes(6), [])
    return batch(begin, [record], producer=producer, attributes=0x20)


def ours(fetch_offset: int, content: bytes, **more: Any) -> Any:
    consumer = SimpleNamespace(_fetcher=SimpleNamespace())
    assert read_by_columns(consumer, {"a": "id-a"}.__getitem__) is consumer
    return consumer._fetcher.PartitionRecords(fetch_offset, AT, MemoryRecords(content), **more)


def plain(record: Any) -> Record:
    headers = tuple(record.headers)
    return Record(AT.topic, AT.partition, record.offset, record.key, record.value, headers, record.timestamp, "id-a")


def both(
    content: bytes, takes: list[int], *, fetch_offset: int = 0, aborted: Any = (), crcs: bool = True
) -> list[Record]:
    """What comes of them in so many at a time, all that the fetcher looks at being alike."""
    drained: list[Any] = []
    given: dict[str, Any] = {
        "check_crcs": crcs,
        "isolation_level": IsolationLevel.READ_COMMITTED,
        "aborted_transactions": [SimpleNamespace(producer_id=who, first_offset=at) for who, at in aborted],
        "on_drain": lambda one: drained.append(one.bytes_read > 0),
    }
    mine, twin = (
        ours(fetch_offset, content, **given),
        Fetcher.PartitionRecords(fetch_offset, AT, MemoryRecords(content), **given),
    )
    found: list[Record] = []
    for most in takes:
        if not twin:
            break
        came, expected = taken(mine, most), [plain(one) if hasattr(one, "offset") else one for one in taken(twin, most)]
        assert came == expected or (of_a_codec(expected) and came[0] is UnsupportedCodecError)
        found += [one for one in came if isinstance(one, Record)]
        assert all(type(one.headers) is tuple for one in found)
        assert (bool(mine), mine.leader_epoch) == (bool(twin), twin.leader_epoch)
        assert mine.next_fetch_offset == twin.next_fetch_offset
    assert drained in ([], [True, True], [False, False])
    return found


def taken(part: Any, most: int) -> list[Any]:
    try:
        return list(part.take(most))
    except Exception as error:
        return [type(error), str(error)]


def of_a_codec(told: list[Any]) -> bool:
    """Whether it is an error of a codec's own, which kafka-python lets through and we tell as one of Kafka's."""
    return told[:1] != [] and told[0] in (zlib.error, OSError, gzip.BadGzipFile, EOFError, RuntimeError, ZstdError)


SMALL = st.binary(max_size=3)
PAYLOADS = st.none() | SMALL | st.integers(0, 300).map(bytes)
NAMES = st.sampled_from(["", "h", "ü" * 70])
HEADERS: st.SearchStrategy[Any] = st.just([]) | st.lists(st.tuples(NAMES, PAYLOADS), max_size=3)
RECORDS = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 0, 1, 90, 20_000]),
        st.integers(0, 3) | st.integers(0, 1 << 45),
        *(PAYLOADS, PAYLOADS, HEADERS),
    ),
    min_size=1,
    max_size=12,
)
BATCHES = st.lists(
    st.tuples(
        RECORDS,
        st.sampled_from([NONE, NONE, GZIP]),
        st.sampled_from([-1, 5, 6]),
        st.sampled_from([0, LOG_APPEND_TIME]),
        st.sampled_from([None, True, False]),
    ),
    min_size=1,
    max_size=5,
)


def log_of(batches: list[Any]) -> tuple[bytes, int]:
    """Batches one behind another, transactions' ends among them; and the offset behind all."""
    content, end = b"", 0
    for records, compression, producer, attributes, commits in batches:
        content += batch(end, records, compression=compression, producer=producer, attributes=attributes)
        end += sum(skipped + 1 for skipped, *_ in records)
        if producer >= 0 and commits is not None:
            content += control(end, producer, commits=commits)
            end += 1
    return content, end


@pytest.fixture(autouse=True, scope="module")
def _small_stretches() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kafka_batches, "_FEW", 2)
        patch.setattr(kafka_batches, "_AT_ONCE", 4)
        yield


@pytest.mark.parametrize("attributes", [0, LOG_APPEND_TIME])
@pytest.mark.parametrize("compression", [NONE, GZIP])
def test_a_batch_has_what_kafka_python_has_however_much_is_taken_at_a_time(compression: int, attributes: int) -> None:
    """And whatever lies before what was to be fetched, as in batches that are compressed."""
    records: list[Any] = [(0, 5, None, b"v", []), (2, 6, b"k", None, [("h", b"x"), ("", None)]), (0, 7, b"", b"", [])]
    content = batch(3, records * 4, compression=compression, attributes=attributes)
    for most in (2, 3, 50):
        assert [one.offset for one in both(content, [most] * 9, fetch_offset=12)] == [12, 13, 16, 17, 18, 21, 22]


BROKEN = {
    "a value is shorter than its record has it": (b"\x08abc\0", b"\x06abc\0"),
    "a value is longer than its record": (b"\x08abc\0", b"\x0eabc\0"),
    "the name of a header ends before it begins": (b"\x02\0\x01", b"\x04\x01\x01"),
    "headers are fewer than none": (b"\x02\0\x01", b"\x01\0\x01"),
    "a record ends before it begins": (b"\x18\0\0", b"\x01\0\0"),
}


@pytest.mark.parametrize("number", [0, 5])
@pytest.mark.parametrize("what", BROKEN)
def test_a_record_that_is_broken_is_told_behind_those_before_it(what: str, number: int) -> None:
    sound: Any = (0, 5, None, b"abc\0", [("", None)])
    content = batch(0, [sound] * 6)
    was, is_now = BROKEN[what]
    assert content.count(was) == 6, "each record has it once"
    parts = content.split(was)
    broken = was.join(parts[: number + 1]) + is_now + was.join(parts[number + 1 :])
    for most in (3, 50):
        found = both(with_attributes(bytearray(broken), 0), [most] * 9)
        assert [one.offset for one in found] == [*range(number)]


def test_what_lies_behind_the_last_record_is_told() -> None:
    """And so is a record that is not there."""
    content = batch(0, [(0, 5, None, b"v", [])] * 6)
    (at,) = (at for at in range(len(content)) if content[at : at + 4] == struct.pack(">i", 6))
    for count in (5, 7):
        changed = content[:at] + struct.pack(">i", count) + content[at + 4 :]
        assert len(both(with_attributes(bytearray(changed), 0), [4] * 9)) == min(count, 6)


def test_a_large_batch_is_taken_apart_by_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is not, where it is not as it should be, or too large."""
    monkeypatch.setattr(kafka_batches, "_FEW", 100)
    monkeypatch.setattr(kafka_batches, "_AT_ONCE", 1_000)
    slow: list[int] = []

    def noted(_: object, done: int, __: None) -> Any:
        slow.append(done)
        return ()

    monkeypatch.setattr(kafka_batches, "islice", noted)
    records: list[Any] = [(0, 5, None, b"v" * 200, [])] * 2_500
    content = batch(7, records, compression=GZIP)
    part = ours(9, content)
    assert [len(part.take(900)) for _ in range(4)] == [900, 900, 698, 0]
    assert slow == []
    monkeypatch.setattr(kafka_batches, "_MOST_BYTES", 400_000)
    assert ours(9, content).take(9) == []
    assert ours(9, batch(7, records[:99])).take(9) == []
    assert slow == [0, 0]


@settings(max_examples=300)
@given(
    BATCHES,
    st.lists(st.integers(1, 9), min_size=1),
    st.floats(0, 1),
    st.lists(st.tuples(st.sampled_from([5, 6]), st.integers(0, 60)), max_size=3),
)
def test_columns_have_what_kafka_python_has(
    batches: list[Any], takes: list[int], share: float, aborted: list[Any]
) -> None:
    content, end = log_of(batches)
    both(content, [*takes, *[50] * 9], fetch_offset=round(share * end), aborted=aborted)


@settings(max_examples=500)
@given(BATCHES, st.floats(0, 1, exclude_max=True), st.integers(1, 255), st.booleans())
def test_what_is_broken_is_told_as_kafka_python_tells_it(
    batches: list[Any], share: float, flip: int, crcs: bool
) -> None:
    """Behind the same records. What says how long a batch is stays, as a fetch is cut by it before."""
    content, begin = bytearray(log_of(batches)[0]), BEHIND_LENGTH
    content[begin + int(share * (len(log_of(batches[:1])[0]) - begin))] ^= flip
    both(bytes(content), [3] * 30, fetch_offset=-(1 << 62), crcs=crcs)


def test_aborted_transactions_leave_nothing() -> None:
    records = [(0, 5, b"k", b"v", [("h", None)])] * 6
    content = (
        batch(0, records, producer=5)
        + batch(6, records, producer=6)
        + control(12, 5, commits=False)
        + control(13, 6, commits=True)
        + batch(14, records, producer=5)
    )
    found = both(content, [4] * 9, aborted=[(5, 0)])
    assert [one.offset for one in found] == [*range(6, 12), *range(14, 20)]


def test_records_of_old_formats_come_one_by_one() -> None:
    for magic in (0, 1):
        builder = MemoryRecordsBuilder(magic, NONE, ALL, offset=3)
        for number in range(8):
            builder.append(number, b"k", bytes([number]))
        builder.close()
        assert len(both(bytes(builder.buffer()), [5, 5, 5])) == 8
