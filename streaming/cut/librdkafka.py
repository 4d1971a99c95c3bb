"""The C library that confluent-kafka brings along, called directly: messages by the thousand, not one by one.

Its simple consumer is used: partitions are started and stopped one at a time, all of them feed one queue, and no group
has a part in it. What is relied on is in its public header: these functions, and the fields of a message.
"""

import ctypes
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import numpy as np
import numpy.typing as npt

from totalorder.errors import BrokerUnavailable, EnvironmentProblem, SettingsError

Addresses = npt.NDArray[np.uint64]
LEAST_VERSION, ABOVE_VERSION = 0x02000000, 0x03000000
"""Versions of one major number keep the header compatible."""
_NO_OFFSET = -1001
_CONSUMER = 1
_NO_CONSUMER_CLOSE = 0x8
_REASON_BYTES = 512
_CONF_OK = 0
_SAID = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_void_p)
_SIGNATURES: Mapping[str, tuple[Any, ...]] = {
    # name: what it returns, what it takes
    "version": (c_int,),
    "conf_new": (c_void_p,),
    "conf_destroy": (None, c_void_p),
    "conf_set": (c_int, c_void_p, c_char_p, c_char_p, c_char_p, c_size_t),
    "conf_set_error_cb": (None, c_void_p, _SAID),
    "new": (c_void_p, c_int, c_void_p, c_char_p, c_size_t),
    "destroy_flags": (None, c_void_p, c_int),
    "poll": (c_int, c_void_p, c_int),
    "queue_new": (c_void_p, c_void_p),
    "queue_destroy": (None, c_void_p),
    "topic_new": (c_void_p, c_void_p, c_char_p, c_void_p),
    "topic_destroy": (None, c_void_p),
    "topic_name": (c_char_p, c_void_p),
    "consume_start_queue": (c_int, c_void_p, c_int32, c_int64, c_void_p),
    "consume_stop": (c_int, c_void_p, c_int32),
    "consume_batch_queue": (c_ssize_t, c_void_p, c_int, c_void_p, c_size_t),
    "get_watermark_offsets": (c_int, c_void_p, c_char_p, c_int32, c_void_p, c_void_p),
    "topic_partition_list_new": (c_void_p, c_int),
    "topic_partition_list_add": (c_void_p, c_void_p, c_char_p, c_int32),
    "topic_partition_list_destroy": (None, c_void_p),
    "position": (c_int, c_void_p, c_void_p),
    "pause_partitions": (c_int, c_void_p, c_void_p),
    "resume_partitions": (c_int, c_void_p, c_void_p),
    "last_error": (c_int,),
    "err2str": (c_char_p, c_int),
    "message_broker_id": (c_int32, c_void_p),
    "message_timestamp": (c_int64, c_void_p, c_void_p),
    "message_headers": (c_int, c_void_p, c_void_p),
    "header_get_last": (c_int, c_void_p, c_char_p, c_void_p, c_void_p),
    "message_destroy": (None, c_void_p),
}


class Message(ctypes.Structure):
    """rd_kafka_message_t."""

    _fields_ = [
        ("err", c_int),
        ("topic", c_void_p),
        ("partition", c_int32),
        ("payload", c_void_p),
        ("size", c_size_t),
        ("key", c_void_p),
        ("key_size", c_size_t),
        ("offset", c_int64),
        ("private", c_void_p),
    ]

    def value(self, most_bytes: int) -> bytes:
        """The value's first bytes; none for null."""
        return ctypes.string_at(self.payload, min(self.size, most_bytes)) if self.payload else b""


class _TopicPartition(ctypes.Structure):
    """rd_kafka_topic_partition_t."""

    _fields_ = [
        ("topic", c_char_p),
        ("partition", c_int32),
        ("offset", c_int64),
        ("metadata", c_void_p),
        ("metadata_size", c_size_t),
        ("opaque", c_void_p),
        ("err", c_int),
        ("private", c_void_p),
    ]


class _TopicPartitionList(ctypes.Structure):
    """rd_kafka_topic_partition_list_t."""

    _fields_ = [("cnt", c_int), ("size", c_int), ("elems", ctypes.POINTER(_TopicPartition))]


class Functions(NamedTuple):
    """Addresses of what compiled code calls for each message."""

    timestamp: int
    headers: int
    last_header: int
    destroy: int


class Library:
    """The functions of librdkafka, by their names without `rd_kafka_`."""

    def __init__(self, path: str) -> None:
        loaded = ctypes.CDLL(path)
        for name, (result, *arguments) in _SIGNATURES.items():
            function = getattr(loaded, f"rd_kafka_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        names = ("message_timestamp", "message_headers", "header_get_last", "message_destroy")
        self.functions = Functions(*(ctypes.cast(getattr(self, name), c_void_p).value or 0 for name in names))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


@cache
def library() -> Library:
    """The library that confluent-kafka has loaded; EnvironmentProblem where it cannot be called directly."""
    package = Path(confluent_kafka.__file__).parent
    folders = (package.with_name("confluent_kafka.libs"), package / ".dylibs")
    paths = [path for folder in folders for path in sorted(folder.glob("librdkafka*"))]
    if len(paths) != 1:
        raise EnvironmentProblem(f"confluent-kafka brings {len(paths)} files of librdkafka along, not one")
    if ctypes.sizeof(c_void_p) != 8 or sys.byteorder != "little":
        raise EnvironmentProblem("this machine is none of 64 bits, the lowest byte first")
    try:
        found = Library(str(paths[0]))
    except (OSError, AttributeError) as error:
        raise EnvironmentProblem(f"librdkafka cannot be used: {error}") from error
    if not LEAST_VERSION <= found.version() < ABOVE_VERSION or found.version() != confluent_kafka.libversion()[1]:
        raise EnvironmentProblem(f"librdkafka has version {found.version():#x}, which is not known here")
    return found


class Client:
    """A simple consumer: partitions that are started fill one queue. Not for use from several threads at once."""

    def __init__(self, settings: Mapping[str, str], said: Callable[[int, str], None]) -> None:
        """`said` is told an error's code and text within `poll`; raises SettingsError."""
        self._library = library()
        # The library keeps the function's address only.
        self._said = _SAID(lambda _client, code, text, _opaque: said(code, text.decode(errors="replace")))
        self._client = self._made(settings)
        self._queue = self._library.queue_new(self._client)
        self._topics: dict[str, int] = {}

    def _made(self, settings: Mapping[str, str]) -> int:
        reason = ctypes.create_string_buffer(_REASON_BYTES)
        conf = self._library.conf_new()
        self._library.conf_set_error_cb(conf, self._said)
        made = None
        if all(
            self._library.conf_set(conf, name.encode(), value.encode(), reason, len(reason)) == _CONF_OK
            for name, value in settings.items()
        ):
            made = self._library.new(_CONSUMER, conf, reason, len(reason))
        if not made:
            self._library.conf_destroy(conf)
            raise SettingsError(
                f"librdkafka refuses its settings: {reason.value.decode(errors='replace')}", remedy="Change them"
            )
        return int(made)

    def start(self, topic: str, partition: int, offset: int) -> None:
        """Fetches a partition from an offset on; it must not be started already."""
        self._require(self._library.consume_start_queue(self._topic(topic), partition, offset, self._queue), topic)

    def stop(self, topic: str, partition: int) -> None:
        """Fetches a partition no more; what is in the queue of it never comes."""
        self._require(self._library.consume_stop(self._topic(topic), partition), topic)

    def keep(self, topics: Collection[str]) -> None:
        """Lets go of all other topics; none of their partitions may be started."""
        for name in self._topics.keys() - set(topics):
            self._library.topic_destroy(self._topics.pop(name))

    def poll(self, addresses: Addresses, most: int, timeout_ms: int) -> int:
        """Fills in the addresses of up to `most` messages, waiting so long for that many; their number."""
        got = self._library.consume_batch_queue(self._queue, timeout_ms, addresses.ctypes.data, most)
        if got < 0:
            raise BrokerUnavailable(f"librdkafka cannot read: {self._last_error()}")
        return int(got)

    def hear(self) -> None:
        """Lets the client say what is amiss."""
        self._library.poll(self._client, 0)

    def pause(self, places: Collection[tuple[str, int]]) -> None:
        """Fetches started partitions no more until they are resumed, and waits for nothing: a stop waits for the
        library's own thread, partition after partition. What is in the queue of them comes anew then.
        """
        with self._listed(places) as listed:
            self._library.pause_partitions(self._client, listed)

    def resume(self, places: Collection[tuple[str, int]]) -> None:
        """Paused partitions are to be fetched again, from behind what came out of the queue.

        One of which the library has not heard yet that it is paused stays so for ever: a stop of another one first
        waits for that. And the thread that fetches may sleep for a second before it hears of this: a start of another
        one afterwards wakes up that of its broker.
        """
        with self._listed(places) as listed:
            self._library.resume_partitions(self._client, listed)

    def positions(self, places: Collection[tuple[str, int]]) -> list[int | None]:
        """Of each partition the offset behind all that came out of the queue, markers of transactions included."""
        with self._listed(places) as listed:
            self._library.position(self._client, listed)
            elements = ctypes.cast(listed, ctypes.POINTER(_TopicPartitionList)).contents.elems
            offsets = [int(elements[at].offset) for at in range(len(places))]
        return [None if offset == _NO_OFFSET else offset for offset in offsets]

    @contextmanager
    def _listed(self, places: Collection[tuple[str, int]]) -> Iterator[int]:
        """The library's own list of these partitions."""
        listed = self._library.topic_partition_list_new(len(places))
        try:
            for topic, partition in places:
                self._library.topic_partition_list_add(listed, topic.encode(), partition)
            yield listed
        finally:
            self._library.topic_partition_list_destroy(listed)

    def high_watermark(self, topic: str, partition: int) -> int:
        """Where the partition ended when it was fetched last; 0 when that is not known."""
        low, high = c_int64(), c_int64()
        code = self._library.get_watermark_offsets(self._client, topic.encode(), partition, byref(low), byref(high))
        return max(0, high.value) if code == 0 else 0

    def topic_name(self, topic: int) -> str:
        """The name of a message's topic."""
        return str(self._library.topic_name(topic).decode())

    def broker(self, message: int) -> int:
        """The id of the broker that the message at this address came from; -1 when that is not known."""
        return int(self._library.message_broker_id(message))

    def close(self) -> None:
        """Ends the connections; nothing may be started any more."""
        for topic in self._topics.values():
            self._library.topic_destroy(topic)
        self._library.queue_destroy(self._queue)
        self._library.destroy_flags(self._client, _NO_CONSUMER_CLOSE)

    def _topic(self, name: str) -> int:
        if name not in self._topics:
            self._topics[name] = int(self._library.topic_new(self._client, name.encode(), None) or 0)
        return self._topics[name]

    def _require(self, result: int, topic: str) -> None:
        if result:
            raise BrokerUnavailable(f"librdkafka cannot read topic {topic}: {self._last_error()}")

    def _last_error(self) -> str:
        return str(self._library.err2str(self._library.last_error()).decode())
