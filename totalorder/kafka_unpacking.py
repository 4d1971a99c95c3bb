"""What a producer had Kafka compress, unpacked up to a bound: kafka-python has none, and some kB become gigabytes.

A broker that keeps batches as they come (`compression.type=producer`) looks whether their records are whole, and never
at how large they become. Snappy is left to kafka-python: its shortest copies of three bytes stand for 64 at most, so
that no batch grows to more than 22 times its size. So are formats of before Kafka 0.11, which no broker takes any more.
"""

import gzip
import io
import zlib
from collections.abc import Callable
from typing import Any

import lz4.frame
import zstandard
from kafka import TopicPartition
from kafka.consumer.fetcher import Fetcher
from kafka.errors import UnsupportedCodecError
from kafka.record.default_records import DefaultRecordBatch

MAX_UNPACKED_BYTES = 256 << 20
"""Most bytes of the records of a batch. A producer fills batches by what they take when packed, a megabyte at most
unless brokers and producers were told otherwise: so it may pack them a hundred times smaller and more.
"""
_AT_ONCE_BYTES = 1 << 18
_STREAMS: dict[int, Callable[[io.BytesIO], Any]] = {
    DefaultRecordBatch.CODEC_GZIP: lambda packed: gzip.GzipFile(fileobj=packed),
    DefaultRecordBatch.CODEC_LZ4: lz4.frame.LZ4FrameFile,
    DefaultRecordBatch.CODEC_ZSTD: lambda packed: zstandard.ZstdDecompressor().stream_reader(
        packed, read_across_frames=True
    ),
}
_DAMAGED = (OSError, EOFError, RuntimeError, ValueError, zlib.error, zstandard.ZstdError)


def bounded(consumer: Any) -> Any:
    """Returns the consumer, which unpacks no more than the bound from now on: its `poll` raises UnsupportedCodecError,
    which says where, at a batch that goes beyond, and again each time.
    """

    def parsed(fetch_offset: int, at: TopicPartition, records: Any, *given: Any, **more: Any) -> Any:
        return Fetcher.PartitionRecords(fetch_offset, at, BoundedBatches(records, at), *given, **more)

    consumer._fetcher.PartitionRecords = parsed
    return consumer


class BoundedBatches:
    """kafka-python's batches of a partition, each of which is unpacked up to the bound."""

    def __init__(self, records: Any, at: TopicPartition) -> None:
        self._records, self._at = records, at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._records, name)

    def next_batch(self) -> Any:
        """The next one, if there is one."""
        batch = self._records.next_batch()
        if type(batch) is DefaultRecordBatch and batch.compression_type in _STREAMS:
            return _Bounded(batch, self._at)
        return batch


class _Bounded(DefaultRecordBatch):  # type: ignore[misc]
    """A batch of kafka-python's that is packed."""

    _buffer: Any
    _pos: int
    _decompressed: bool

    def __init__(self, batch: DefaultRecordBatch, at: TopicPartition) -> None:
        for name in DefaultRecordBatch.__slots__:
            setattr(self, name, getattr(batch, name))
        self._at = at

    def _maybe_uncompress(self) -> None:
        """See DefaultRecordBatch."""
        if self._decompressed:
            return
        packed = io.BytesIO(memoryview(self._buffer)[self._pos :])
        try:
            unpacked = _unpacked(_STREAMS[self.compression_type](packed))
        except _DAMAGED as error:
            raise self._refused(f"cannot be unpacked: {error!r:.200}") from None
        if len(unpacked) > MAX_UNPACKED_BYTES:
            raise self._refused(f"has more than {MAX_UNPACKED_BYTES:,} bytes when unpacked")
        self._buffer, self._pos, self._decompressed = unpacked, 0, True

    def _refused(self, why: str) -> UnsupportedCodecError:
        at = self._at
        return UnsupportedCodecError(f"what is packed at {at.topic}[{at.partition}]@{self.base_offset} {why}")


def _unpacked(stream: Any) -> bytearray:
    """All of it, or a little more than the bound."""
    content = bytearray()
    while len(content) <= MAX_UNPACKED_BYTES and (more := stream.read(_AT_ONCE_BYTES)):
        content += more
    return content
