"""The peers on Kafka, all with kafka-python and the settings of totalorder's own clients."""

import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from kafka import TopicPartition

from totalorder import kafka_clients
from totalorder.bench.peers.load import TOPICS, topic_name
from totalorder.bench.peers.merge import Key, MergeBuffer
from totalorder.sequencer.wire.codec import StampsAssembler
from totalorder.sequencer.wire.names import DomainTopics

SINGLE = "everything"
DOMAIN = "bench"
_LINGER_MS = 5
_FLUSH_TIMEOUT_S = 60.0
_GRANT_TIMEOUT_S = 120.0
_MAX_POLL_RECORDS = 1_000
_STAMPS_POLL_MS = 50


def kafka_topics(prefix: str, *, single: bool) -> list[str]:
    """The topics that a peer's events go to, of one partition each; where `single`, one for everything."""
    return [prefix + (SINGLE if single else topic_name(topic)) for topic in range(1 if single else TOPICS)]


class KafkaPublisher:
    """A producer; into one topic for everything where `single`, with the topic's name as the key."""

    def __init__(self, servers: str, prefix: str, *, single: bool) -> None:
        self._client = kafka_clients.producer(servers, linger_ms=_LINGER_MS)
        self._prefix, self._single = prefix, single
        self._sent: list[Any] = []

    def send(self, topic: int, value: bytes, timestamp_ms: int) -> None:
        """Publishes one event."""
        where, key = (SINGLE, topic_name(topic).encode()) if self._single else (topic_name(topic), None)
        self._sent.append(self._client.send(self._prefix + where, value=value, key=key, timestamp_ms=timestamp_ms))

    def pause(self, seconds: float) -> None:
        """Waits for the next event's moment."""
        time.sleep(seconds)

    def flush(self) -> None:
        """Waits until Kafka has acknowledged everything; SystemExit if it has not."""
        self._client.flush(timeout=_FLUSH_TIMEOUT_S)
        failed = [each.exception for each in self._sent if not each.succeeded()]
        if failed:
            raise SystemExit(f"{len(failed)} of {len(self._sent)} events were not acknowledged: {failed[0]}")
        self._sent.clear()

    def close(self) -> None:
        """Lets go of the connection."""
        self._client.close()


class PlainSource:
    """Consumers without an order of their own; with `only`, of a topic that holds everything, those with such keys."""

    dropped = 0
    """Events that came too late."""

    def __init__(self, servers: str, kafka_topics: list[str], *, only: frozenset[str] | None = None) -> None:
        self._servers = servers
        self._partitions = [TopicPartition(name, 0) for name in kafka_topics]
        self._only = None if only is None else {name.encode() for name in only}

    def prepare(self) -> None:
        """Nothing has to be known of a plain consumer beforehand."""

    def open(self) -> None:
        """Begins to read, at the first event."""
        self._consumer = kafka_clients.consumer(
            self._servers, auto_offset_reset="earliest", max_poll_records=_MAX_POLL_RECORDS
        )
        self._consumer.assign(self._partitions)

    def poll(self, timeout_s: float) -> Iterator[bytes]:
        """The events that have come."""
        for record in self._records(timeout_s):
            if self._only is None or record.key in self._only:
                yield record.value

    def close(self) -> None:
        """Lets go of the connection."""
        self._consumer.close()

    def _records(self, timeout_s: float) -> Iterator[Any]:
        for records in self._consumer.poll(timeout_ms=round(timeout_s * 1000)).values():
            yield from records


class MergeSource(PlainSource):
    """A plain consumer whose records go through a MergeBuffer."""

    def __init__(self, servers: str, kafka_topics: list[str], *, wait_ms: int) -> None:
        super().__init__(servers, kafka_topics)
        self._buffer = MergeBuffer(wait_ms)
        self._seen: dict[TopicPartition, tuple[int, int]] = {}
        """Partition → next offset and greatest timestamp that came."""

    def poll(self, timeout_s: float) -> Iterator[bytes]:
        """The events whose wait is over."""
        now_ms = time.monotonic() * 1000
        for record in self._records(self._buffer.wait_s(now_ms, timeout_s)):
            at = TopicPartition(record.topic, record.partition)
            greatest_ms = max(record.timestamp, self._seen.get(at, (0, 0))[1])
            self._seen[at] = record.offset + 1, greatest_ms
            key = Key(record.timestamp, record.topic, record.partition, record.offset)
            self._buffer.add(key, record.value, time.monotonic() * 1000)
        self.dropped = self._buffer.dropped
        yield from self._buffer.release(time.monotonic() * 1000, lagging_ms=self._lagging_ms())

    def _lagging_ms(self) -> float:
        """See MergeBuffer.release; a partition of which nothing is known yet holds everything back."""
        found = float("inf")
        for at in self._partitions:
            offset, greatest_ms = self._seen.get(at, (0, 0))
            end = self._consumer.highwater(at)
            if end is None or offset < end:
                found = min(found, greatest_ms)
        return found


class TotalorderSource:
    """totalorder's Subscriber as it comes, but for positions: saved each second, as nobody else here saves any."""

    dropped = 0

    def __init__(self, servers: str, topics: list[str], *, id: str) -> None:  # noqa: A002
        self._topics = topics
        self._settings: Mapping[str, Any] = {
            "id": id,
            "domain": DOMAIN,
            "bootstrap_servers": servers,
            "start_timeout_s": _GRANT_TIMEOUT_S,
            "save_interval_s": 1.0,
        }

    def prepare(self) -> None:
        """Subscribes, since events from before a subscription are not delivered, and goes away again."""
        from totalorder import Subscriber

        Subscriber(self._topics, **self._settings).close()

    def open(self) -> None:
        """Begins to read, at the first event after the subscription."""
        from totalorder import Subscriber

        self._subscriber = Subscriber(self._topics, **self._settings)

    def poll(self, timeout_s: float) -> Iterator[bytes]:
        """The events that have come and are in order."""
        for _ in range(_MAX_POLL_RECORDS):
            event = self._subscriber.poll(timeout_s)
            if event is None:
                return
            yield event.value or b""
            self._subscriber.ack(event)
            timeout_s = 0.0

    def close(self) -> None:
        """Ends in good order."""
        self._subscriber.close()


class StampCount:
    """Counts the stamps of the domain, to tell when the sequencer is through with what was published."""

    def __init__(self, servers: str) -> None:
        self._topic = DomainTopics(domain=DOMAIN).stamps
        self._consumer = kafka_clients.consumer(servers, auto_offset_reset="earliest")
        self._assemblers: dict[int, StampsAssembler] = {}
        self._counts: dict[tuple[int, int], int] = {}

    def __enter__(self) -> Self:
        partitions = [TopicPartition(self._topic, each) for each in self._consumer.partitions_for_topic(self._topic)]
        self._consumer.assign(partitions)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    def count(self) -> int:
        """The stamps so far; a batch that was written twice counts once."""
        for records in self._consumer.poll(timeout_ms=_STAMPS_POLL_MS).values():
            for record in records:
                self._add(record)
        return sum(self._counts.values())

    def _add(self, record: Any) -> None:
        at = record.partition
        assembler = self._assemblers.setdefault(at, StampsAssembler(domain=DOMAIN, partition=at))
        batch = assembler.add(record.value, dict(record.headers))
        if batch is not None:
            self._counts[at, batch.batch] = len(batch.rows)
