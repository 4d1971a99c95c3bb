"""What is compressed in Kafka is unpacked up to a bound by kafka-python, whoever reads."""

import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import packed_batches
import pytest
from kafka import TopicPartition
from kafka.consumer.fetcher import Fetcher
from kafka.errors import UnsupportedCodecError
from kafka.record import MemoryRecords, MemoryRecordsBuilder
from packed_batches import CODECS, MB

from totalorder import kafka_unpacking
from totalorder.broker import LocalBroker
from totalorder.config import make_settings
from totalorder.errors import Error
from totalorder.kafka_unpacking import MAX_UNPACKED_BYTES, bounded
from totalorder.streaming import reading
from totalorder.subscriber.kafka_batches import read_by_columns
from totalorder.subscriber.transport import Record

NewTopic = Callable[..., str]
AT = TopicPartition("orders", 3)
WAYS: dict[str, Callable[[Any], Any]] = {
    "as kafka-python's records": bounded,
    "by columns": lambda consumer: read_by_columns(consumer, lambda _: ""),
}


@pytest.fixture(params=sorted(WAYS))
def read(request: pytest.FixtureRequest) -> Callable[[bytes], list[Any]]:
    """All records of what a fetch brought, as either kind of consumer has them."""

    def all_of(content: bytes) -> list[Any]:
        consumer = WAYS[request.param](SimpleNamespace(_fetcher=SimpleNamespace()))
        found: list[Any] = consumer._fetcher.PartitionRecords(0, AT, MemoryRecords(content)).take(1_000)
        return found

    return all_of


def built(compression: int, values: list[bytes]) -> bytes:
    builder = MemoryRecordsBuilder(2, compression, 1 << 30)
    for value in values:
        assert builder.append(7, b"key", value, [("h", b"x")]) is not None
    builder.close()
    return bytes(builder.buffer())


def _time(record: Any) -> int:
    return int(record.timestamp_ms if isinstance(record, Record) else record.timestamp)


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize("compression", range(5))
def test_what_is_packed_comes_as_kafka_python_has_it(
    read: Callable[[bytes], list[Any]], compression: int, count: int
) -> None:
    content = built(compression, [b"%d" % number * 50 for number in range(count)]) * 2
    expected = Fetcher.PartitionRecords(0, AT, MemoryRecords(content)).take(1_000)
    assert len(expected) == 2 * count
    found = read(content)
    assert [(one.offset, one.key, one.value, tuple(one.headers), _time(one)) for one in found] == [
        (one.offset, one.key, one.value, tuple(one.headers), _time(one)) for one in expected
    ]


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_a_batch_may_have_so_many_bytes_unpacked_and_no_more(
    read: Callable[[bytes], list[Any]], codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = packed_batches.zeros(5_000, codec)
    (whole,) = read(content)
    assert whole.value == bytes(5_000)
    beside = 9  # lengths, and what else stands around that value
    monkeypatch.setattr(kafka_unpacking, "MAX_UNPACKED_BYTES", 5_000 + beside)
    assert read(content) == [whole]
    with pytest.raises(UnsupportedCodecError, match=r"orders\[3\]@0 has more than 5,009 bytes when unpacked"):
        read(packed_batches.zeros(5_001, codec))


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_what_is_packed_in_several_pieces_comes_as_a_whole(read: Callable[[bytes], list[Any]], codec: str) -> None:
    plain = built(0, [b"some", b"values"])
    whole, content = read(plain), plain[packed_batches.HEAD_BYTES :]
    attributes, compress = CODECS[codec]
    found = read(packed_batches.packed(compress(content[:9]) + compress(content[9:]), attributes, count=2))
    assert [one.value for one in found] == [one.value for one in whole] == [b"some", b"values"]


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_of_one_that_is_larger_little_more_is_unpacked(
    read: Callable[[bytes], list[Any]], codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_unpacking, "MAX_UNPACKED_BYTES", 2 * MB)
    content = packed_batches.zeros(64 * MB, codec)
    tracemalloc.start()
    try:
        with pytest.raises(UnsupportedCodecError):
            read(content)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 12 * MB


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_what_is_damaged_is_told_and_not_passed_over(read: Callable[[bytes], list[Any]], codec: str) -> None:
    for content in (b"", b"rubbish", CODECS[codec][1](bytes(5_000))[:-9]):
        with pytest.raises(Exception, match=r"cannot be unpacked|invalid record|invalid number") as told:
            read(packed_batches.packed(content, CODECS[codec][0]))
        assert type(told.value).__module__ == "kafka.errors"


# --- on a broker ------------------------------------------------------------------------------------------------------

_READING = """
import resource, sys
from totalorder.errors import EventsLost
from totalorder.subscriber import kafka_python, librdkafka
from totalorder.subscriber.transport import Partition

servers, topic = sys.argv[1:]
transport = TRANSPORT(servers, prompt=[topic])
transport.read(Partition(topic, 0), 0)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    while not transport.poll(1):
        pass
except EventsLost as error:
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024, error)
"""


def stopped(transport: str, broker: LocalBroker, topic: str) -> tuple[int, str]:
    """By how many MB a process grew that read the topic by this transport, and what it said in the end."""
    command = [sys.executable, "-c", _READING.replace("TRANSPORT", transport), broker.bootstrap_servers, topic]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    grown_mb, _, words = told.partition(" ")
    return int(grown_mb), words


@pytest.fixture(scope="module")
def gigabyte() -> bytes:
    """A batch that becomes one."""
    batch = packed_batches.zeros(1_000 * MB, "zstd")
    assert len(batch) < 50_000
    return batch


@pytest.mark.broker
def test_some_kilobytes_that_a_broker_takes_do_not_become_a_gigabyte_in_a_subscriber(
    broker: LocalBroker, new_topic: NewTopic, gigabyte: bytes
) -> None:
    topic = new_topic("packed")
    assert packed_batches.publish(broker.bootstrap_servers, topic, gigabyte) == 0
    grown_mb, words = stopped("kafka_python.KafkaPythonTransport", broker, topic)
    assert f"{topic}[0]@0 has more than {MAX_UNPACKED_BYTES:,} bytes when unpacked" in words
    assert grown_mb < 400


@pytest.mark.broker
def test_librdkafka_unpacks_no_more_zstd_than_it_may_receive(
    broker: LocalBroker, new_topic: NewTopic, gigabyte: bytes
) -> None:
    """Of gzip and lz4 it has no bound: docs/operating.md says so."""
    topic = new_topic("packed")
    assert packed_batches.publish(broker.bootstrap_servers, topic, gigabyte) == 0
    _, words = stopped("librdkafka.LibrdkafkaTransport", broker, topic)
    assert re.search(rf"{topic}\[0\]@0 cannot be read: .*Decompression", words) is not None


@pytest.mark.broker
def test_what_the_job_and_the_commands_read_by_kafka_python_is_bounded_too(
    broker: LocalBroker, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_unpacking, "MAX_UNPACKED_BYTES", 2 * MB)
    topic = new_topic("packed")
    assert packed_batches.publish(broker.bootstrap_servers, topic, packed_batches.zeros(3 * MB, "gzip")) == 0
    settings = make_settings(domain="d", topics=[topic], bootstrap_servers=broker.bootstrap_servers, checkpoint_dir="/")
    with (
        pytest.raises(Error, match=rf"{topic}\[0\]@0 has more than 2,097,152 bytes when unpacked"),
        reading.reader(settings) as consumer,
    ):
        list(reading.records(consumer, reading.held(consumer, {topic: 1}), 10))
