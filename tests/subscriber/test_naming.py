"""Which topic an event belongs to, as the sequencer's projection sees it."""

import zlib

import pytest

from totalorder.errors import WireError
from totalorder.subscriber.naming import block_of, topic_of
from totalorder.subscriber.transport import Record

Headers = tuple[tuple[str, bytes | None], ...]


def record(key: bytes | None = None, headers: Headers = ()) -> Record:
    return Record("kafka-topic", 0, 0, key, b"", headers, 0)


@pytest.mark.parametrize(
    ("raw", "topic"),
    [
        (b"orders", "orders"),
        ("zażółć".encode(), "zażółć"),
        (b" ", " "),
        (b"\x00", "\x00"),
        (b"x" * 255, "x" * 255),
        ("ż".encode() * 255, "ż" * 255),
        (b"x" * 256, None),
        (b"", None),
        (None, None),
        (b"\xff", None),
        (b"\xed\xa0\x80", None),  # a lone surrogate
        (b"\xc0\x80", None),  # an overlong form
    ],
)
def test_key_and_header_name_a_topic_by_the_same_rules(raw: bytes | None, topic: str | None) -> None:
    assert topic_of(record(key=raw), "key") == topic
    assert topic_of(record(headers=(("t", raw),)), "header:t") == topic
    assert topic_of(record(key=raw), "topic") == "kafka-topic"


def test_of_several_headers_the_last_counts_and_absent_is_none() -> None:
    headers: Headers = (("t", b"one"), ("t", b"two"), ("T", b"three"))
    assert topic_of(record(headers=headers), "header:t") == "two"
    assert topic_of(record(headers=(*headers, ("t", None))), "header:t") is None
    assert topic_of(record(), "header:t") is None


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(WireError, match="topic_by = 'colour'"):
        topic_of(record(), "colour")


def test_a_block_has_a_checksum_of_each_value() -> None:
    values = (None, b"", b"abc")
    records = [record()._replace(offset=3 + at, value=value) for at, value in enumerate(values)]
    offsets, topics, crcs, handles = block_of(records, "topic")
    assert (offsets, topics, handles) == ([3, 4, 5], ["kafka-topic"] * 3, records)
    assert crcs == [0, 0, zlib.crc32(b"abc")]
