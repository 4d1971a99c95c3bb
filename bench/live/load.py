"""What publishes to the compared jobs, and what receives from them: each a process, so that none waits for another's
interpreter."""

import contextlib
import gc
import multiprocessing
import random
import signal
import struct
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from statistics import median
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from totalorder.errors import EnvironmentProblem, Error
from totalorder.subscriber import Subscriber
from totalorder.subscriber.clients import Client

Floats = npt.NDArray[np.float64]
VALUE_BYTES = 200
READY_TIMEOUT_S = 120.0
_SENT = struct.Struct("<d")
BACKLOG_RATE = 5_000
"""Events a second that a backlog seems to have been published at: topics alternate in π as they do live."""
_GRAIN_S = 0.001
_POLL_S = 0.05
_AT_ONCE = 1_000
"""So many events are taken at most at a time."""
_END_S = 30.0
_BACKLOG_S = 300.0
_PROCESSES = multiprocessing.get_context("spawn")


class Worker:
    """A process that does one thing; killed at the end of the block, if it still runs."""

    def __init__(self, work: Callable[..., None], *arguments: object) -> None:
        self.pipe, theirs = _PROCESSES.Pipe()
        self._process = _PROCESSES.Process(target=_work, args=(theirs, work, arguments), daemon=True)
        self._process.start()
        theirs.close()

    def hear(self, what: str, timeout_s: float) -> Any:
        """What it says next; Error when it ends without a word, or says nothing in time."""
        try:
            if self.pipe.poll(timeout_s):
                return self.pipe.recv()
        except (EOFError, ConnectionError):
            raise Error(f"the process that was to {what} has ended", remedy="Its own words are above") from None
        raise Error(f"the process that was to {what} took more than {timeout_s:g} s")

    def ended(self, within_s: float) -> bool:
        """Whether it ends within the time; Error when it failed."""
        self._process.join(within_s)
        if self._process.exitcode:
            raise Error(f"a process that publishes failed (code {self._process.exitcode})", remedy="See above")
        return self._process.exitcode is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self.pipe.close()

    def kill(self) -> None:
        """By SIGKILL; comes back when it has ended."""
        self._process.kill()
        self._process.join()


def _work(pipe: Connection, work: Callable[..., None], arguments: Sequence[object]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which then kills this process
    work(pipe, *arguments)


# --- publishing -------------------------------------------------------------------------------------------------------


def publish_backlog(_: Connection, servers: str, topics: Sequence[str], keys: Sequence[str | None]) -> None:
    """An event for each key, in turn to the topics, with times as if they had been published at an even rate."""
    producer, padding = fast_producer(servers), _padding()
    began_ms = round(time.time() * 1_000) - len(keys) * 1_000 // BACKLOG_RATE
    for number, key in enumerate(keys):
        value = _SENT.pack(0.0) + padding[number % len(padding)]
        _send(producer, topics[number % len(topics)], value, began_ms + number * 1_000 // BACKLOG_RATE, key)
    _flush(producer)


def publish_paced(
    pipe: Connection, servers: str, topics: Sequence[str], rate: int, seconds: float, partitions: int = 1
) -> None:
    """Events at an even rate but for a millisecond, in turn to the topics, and in each to its partitions; each begins
    with the time at which it was sent. To wake up for each event alone would take a tenth of a core from what is
    measured. Says at its end after how many seconds the broker had acknowledged an event, in the median.
    """
    producer, padding = fast_producer(servers), _padding()
    began = time.time()
    acknowledged_s: list[float] = []

    def acknowledged(_: object, record: Any) -> None:
        acknowledged_s.append(time.time() - _SENT.unpack_from(record.value())[0])

    for number in range(round(rate * seconds)):
        producer.poll(0)
        pause_s = began + number / rate - time.time()
        if pause_s > _GRAIN_S:
            time.sleep(pause_s)
        turn, topic = divmod(number, len(topics))
        value = _SENT.pack(time.time()) + padding[number % len(padding)]
        _send(producer, topics[topic], value, 0, partition=turn % partitions, on_delivery=acknowledged)
    _flush(producer)
    pipe.send(median(acknowledged_s))


def _padding() -> list[bytes]:
    """Bytes that no compression shortens, for so many values that a batch does not repeat them often."""
    source = random.Random(1)
    return [source.randbytes(VALUE_BYTES - _SENT.size) for _ in range(4_096)]


def fast_producer(servers: str, **more: object) -> Any:
    """A confluent-kafka producer; `more` are settings of it. EnvironmentProblem where that is not installed."""
    try:
        from confluent_kafka import Producer
    except ImportError:
        raise EnvironmentProblem(
            "confluent-kafka is not installed, and no other producer is fast enough here",
            remedy="pip install 'totalorder[fast]'",
        ) from None
    return Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 1_000_000, **more})


def _send(
    producer: Any,
    topic: str,
    value: bytes,
    timestamp_ms: int,
    key: str | None = None,
    partition: int = 0,
    on_delivery: Callable[..., None] | None = None,
) -> None:
    while True:
        try:
            producer.produce(
                topic, value=value, key=key, partition=partition, timestamp=timestamp_ms, on_delivery=on_delivery
            )
            return
        except BufferError:
            producer.poll(_POLL_S)


def fill(servers: str, topics: Sequence[str], keys: Sequence[str | None]) -> None:
    """Runs `publish_backlog` to its end."""
    with Worker(publish_backlog, servers, topics, keys) as publisher:
        if not publisher.ended(_BACKLOG_S):
            raise Error(f"publishing a backlog took more than {_BACKLOG_S:g} s", remedy="Look at the broker's machine")


def _flush(producer: Any) -> None:
    if left := producer.flush(_END_S):
        raise Error(f"the broker did not take {left} events within {_END_S:g} s")


# --- receiving --------------------------------------------------------------------------------------------------------


class Receiver(Worker):
    """A process that notes when each event came; made when it is ready."""

    def __init__(self, work: Callable[..., None], *arguments: object) -> None:
        super().__init__(work, *arguments)
        try:
            self.hear("receive", READY_TIMEOUT_S)
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def all_of(self, expected: int, timeout_s: float) -> Floats:
        """A row (sent, received) of each event until now, in seconds, as soon as there are so many or the time is over.

        It may be asked again: it goes on receiving.
        """
        with contextlib.suppress(ConnectionError):  # one that has ended is heard of next
            self.pipe.send((expected, timeout_s))
        rows: Floats = self.hear("receive", timeout_s + _END_S)
        return rows


def receive_plain(pipe: Connection, servers: str, topics: Sequence[str], partitions: int = 1) -> None:
    """Reads topics as fast as a plain consumer can."""
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": "false"}
    consumer = Consumer(settings | {"fetch.wait.max.ms": "5"})
    sources = [TopicPartition(topic, partition) for topic in topics for partition in range(partitions)]
    for source in sources:
        _, source.offset = consumer.get_watermark_offsets(source, timeout=READY_TIMEOUT_S)
    consumer.assign(sources)

    def values() -> list[bytes]:
        first = consumer.poll(_POLL_S)
        came = [] if first is None else [first, *consumer.consume(_AT_ONCE, 0)]
        return [value for record in came if record.error() is None and (value := record.value()) is not None]

    _note(pipe, values)


def receive_ordered(
    pipe: Connection, servers: str, topics: Sequence[str], domain: str, client: Client = "confluent"
) -> None:
    """A subscriber of all topics as an application has it that takes what is there, like that consumer: it acknowledges
    that, positions are saved each second.
    """
    with Subscriber(
        topics,
        id="bench",
        domain=domain,
        bootstrap_servers=servers,
        client=client,
        start_timeout_s=90,
        save_interval_s=1,
    ) as subscriber:

        def values() -> list[bytes]:
            batch = subscriber.poll_batch(_AT_ONCE, _POLL_S)
            subscriber.ack(batch)
            return [value for value in batch.value if value is not None]

        _note(pipe, values)


def _note(pipe: Connection, values: Callable[[], list[bytes]]) -> None:
    """Notes when each value comes, and says it as often as the other side asks and there are as many as it expects;
    until that side is gone.
    """
    gc.freeze()  # what was imported: to walk it takes a tenth of a second where cores are contended
    pipe.send("ready")
    rows: list[tuple[float, float]] = []
    expected, deadline, look_at = None, float("inf"), 0.0
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            found = values()
            now = time.time()
            rows.extend((_SENT.unpack_from(value)[0], now) for value in found)
            if expected is not None and (len(rows) >= expected or time.monotonic() >= deadline):
                pipe.send(np.array(rows).reshape(-1, 2))
                expected = None
            if expected is None and now >= look_at:
                look_at = now + _POLL_S
                if pipe.poll():
                    expected, timeout_s = pipe.recv()
                    deadline = time.monotonic() + timeout_s
