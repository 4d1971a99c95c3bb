"""Record batches that become very large when unpacked, and their way to a broker: no client of Kafka's sends such."""

import gzip
import io
import socket
import struct
import time
import zlib
from collections.abc import Callable

import lz4.frame
import zstandard
from kafka.record.util import calc_crc32c

CODECS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "gzip": (1, lambda content: gzip.compress(content, mtime=0)),
    "lz4": (3, lambda content: lz4.frame.compress(content, block_linked=False)),
    "zstd": (4, lambda content: zstandard.ZstdCompressor().compress(content)),
}
MB, HEAD_BYTES = 1 << 20, 61
"""The latter stand before the records of a batch."""


def zeros(count: int, codec: str) -> bytes:
    """A batch of one record whose value is so many zeros, most of which are never unpacked here."""
    head = b"\0" + _varint(0) + _varint(0) + _varint(-1) + _varint(count)
    content = _varint(len(head) + count + 1) + head
    return packed(_compressed(content, count, codec), CODECS[codec][0])


def packed(content: bytes, attributes: int, count: int = 1) -> bytes:
    """A batch of so many records, which are packed already."""
    now = int(time.time() * 1000)
    rest = struct.pack(">hiqqqhii", attributes, count - 1, now, now, -1, -1, -1, count) + content
    return struct.pack(">qiibI", 0, len(rest) + 9, -1, 2, calc_crc32c(memoryview(rest))) + rest


def publish(bootstrap_servers: str, topic: str, batch: bytes) -> int:
    """Has the broker write it to partition 0; Kafka's code for how that went, 0 for well."""
    host, _, port = bootstrap_servers.partition(":")
    name, acks, timeout_ms, most_s = _text(topic), -1, 30_000, 60
    body = struct.pack(">hhi", -1, acks, timeout_ms) + struct.pack(">i", 1) + name
    body += struct.pack(">iii", 1, 0, len(batch)) + batch
    request = struct.pack(">hhi", 0, 7, 1) + _text("packed") + body  # Produce, version 7: the first that takes zstd
    with socket.create_connection((host, int(port)), timeout=most_s) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as answers:
            (size,) = struct.unpack(">i", answers.read(4))
            answer = io.BytesIO(answers.read(size))
    answer.seek(4 + 4 + len(name) + 4 + 4)  # the request's number, topics, this one's name, partitions, this one
    (code,) = struct.unpack(">h", answer.read(2))
    return int(code)


def _compressed(head: bytes, count: int, codec: str) -> bytes:
    """The head, so many zeros, and one more, in pieces."""
    if codec == "lz4":
        return CODECS[codec][1](head + bytes(count + 1))
    made = zlib.compressobj(9, zlib.DEFLATED, 31) if codec == "gzip" else zstandard.ZstdCompressor().compressobj()
    whole, rest = divmod(count + 1, MB)
    return b"".join(
        [
            made.compress(head),
            *(made.compress(bytes(MB)) for _ in range(whole)),
            made.compress(bytes(rest)),
            made.flush(),
        ]
    )


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def _varint(value: int) -> bytes:
    left, made = value << 1 ^ value >> 63, bytearray()
    while left > 127:
        made.append(left & 127 | 128)
        left >>= 7
    return bytes([*made, left])
