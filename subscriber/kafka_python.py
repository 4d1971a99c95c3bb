"""The Transport on kafka-python: one consumer without a group, one producer, no thread that runs application code."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from kafka import TopicPartition
from kafka.errors import (
    CorruptRecordError,
    KafkaConnectionError,
    KafkaTimeoutError,
    NodeNotReadyError,
    OffsetOutOfRangeError,
)

from totalorder import kafka_clients
from totalorder.errors import BrokerUnavailable, EventsLost
from totalorder.subscriber.transport import Partition, Record

T = TypeVar("T")
_MAX_REQUEST_BYTES = 16 << 20
"""What the positions topic takes: a position holds every topic of its set and of changes that lie ahead."""
_RETRY_S = 0.2
_PROBE_AFTER_S = 5.0
"""An absent broker looks like an idle one: after this long without a record the broker is asked something."""
_PROBE_TIMEOUT_S = 2.0
_GATHER_S = 0.01
_FEW_RECORDS = 200
"""After a fetch of few records the next waits a little for more: one for each event of a slow stream would keep client
and broker busy, and most events wait for their stamps anyway."""
_PLACES_SHOWN = 5
_CONNECTION_ERRORS = (KafkaConnectionError, KafkaTimeoutError, NodeNotReadyError)


class KafkaPythonTransport:
    """See Transport. No broker for `outage_timeout_s` is borne, then BrokerUnavailable."""

    def __init__(
        self,
        bootstrap_servers: str,
        kafka: Mapping[str, str] | None = None,
        *,
        outage_timeout_s: float = 60.0,
        max_poll_records: int = 1_000,
    ) -> None:
        self._servers, self._outage_timeout_s = bootstrap_servers, outage_timeout_s
        self._closed = False
        settings = dict(kafka or {})
        self._consumer = kafka_clients.consumer(
            bootstrap_servers,
            settings,
            auto_offset_reset="none",
            max_poll_records=max_poll_records,
        )
        try:
            self._producer = kafka_clients.producer(
                bootstrap_servers,
                settings,
                delivery_timeout_ms=round(outage_timeout_s * 1000),
                request_timeout_ms=min(30_000, max(1, round(outage_timeout_s * 500))),
                max_block_ms=round(outage_timeout_s * 1000),
                max_request_size=_MAX_REQUEST_BYTES,
            )
        except BaseException:
            self._consumer.close()
            raise
        self._read: dict[TopicPartition, int | None] = {}
        """Every partition that is read; an offset where the consumer has yet to be told, or told again."""
        self._paused: set[TopicPartition] = set()
        """Not assigned for the time being. The consumer's own pause() is of no use: kafka-python 3.0.12 parks what it
        has fetched of a paused partition, and after resume() may neither return it nor fetch again, for ever."""
        self._next: dict[TopicPartition, int] = {}
        """Behind the last record that was returned."""
        self._changed = False
        self._fetch_at = 0.0
        self._asked = time.monotonic()
        """When a record or an answer came last, or the broker was asked in vain."""
        self._silent_since: float | None = None
        """The first time that it was asked in vain; an application that does not poll for long is no outage."""

    def partitions(self, topic: str) -> int:
        """See Transport."""
        return self._bearing(lambda: len(self._consumer.partitions_for_topic(topic) or ()))

    def beginning_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """See Transport."""
        wanted = [TopicPartition(*partition) for partition in partitions]
        found = self._bearing(lambda: self._consumer.beginning_offsets(wanted))
        return {Partition(*at): offset for at, offset in found.items()}

    def end_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """See Transport."""
        wanted = [TopicPartition(*partition) for partition in partitions]
        found = self._bearing(lambda: self._consumer.end_offsets(wanted))
        return {Partition(*at): offset for at, offset in found.items()}

    def read(self, partition: Partition, offset: int) -> None:
        """See Transport."""
        at = TopicPartition(*partition)
        self._read[at] = self._next[at] = offset
        self._paused.discard(at)
        self._changed = True

    def stop(self, partition: Partition) -> None:
        """See Transport."""
        at = TopicPartition(*partition)
        self._paused.discard(at)
        if at in self._read:
            del self._read[at], self._next[at]
            self._changed = True

    def pause(self, partition: Partition) -> None:
        """See Transport."""
        at = TopicPartition(*partition)
        if at not in self._paused:
            self._read[at] = self._next[at]
            self._paused.add(at)
            self._changed = True

    def resume(self, partition: Partition) -> None:
        """See Transport."""
        at = TopicPartition(*partition)
        if at in self._paused:
            self._paused.discard(at)
            self._changed = True

    def position(self, partition: Partition) -> int:
        """See Transport."""
        at = TopicPartition(*partition)
        told = self._read[at]
        if told is not None:
            return told
        return int(self._bearing(lambda: self._consumer.position(at)))

    def poll(self, timeout_s: float) -> Sequence[Record]:
        """See Transport."""
        self._tell()
        self._gather(timeout_s)
        found = self._poll(timeout_s)
        few = 0 < sum(map(len, found.values())) < _FEW_RECORDS
        self._fetch_at = time.monotonic() + _GATHER_S if few else 0.0
        if found:
            self._asked, self._silent_since = time.monotonic(), None
        elif time.monotonic() - self._asked > _PROBE_AFTER_S:
            self._probe()
        for at, records in found.items():
            self._next[at] = records[-1].offset + 1
        return [
            Record(
                record.topic,
                record.partition,
                record.offset,
                record.key,
                record.value,
                tuple(record.headers),
                record.timestamp,
            )
            for records in found.values()
            for record in records
        ]

    def _gather(self, timeout_s: float) -> None:
        wait_s = min(self._fetch_at - time.monotonic(), timeout_s)
        if wait_s > 0:
            time.sleep(wait_s)

    def _poll(self, timeout_s: float) -> Mapping[TopicPartition, Sequence[Any]]:
        with kafka_clients.kafka_errors(self._servers):
            try:
                found: Mapping[TopicPartition, Sequence[Any]] = self._consumer.poll(
                    timeout_ms=max(0, round(timeout_s * 1000))
                )
            except OffsetOutOfRangeError as error:
                raise self._out_of_range(error) from error
            except CorruptRecordError as error:
                raise self._unreadable(error) from error
            except _CONNECTION_ERRORS:
                return {}  # `_probe` measures how long
        return found

    def _tell(self) -> None:
        """Hands what changed since the last poll to the consumer, in one go: each assignment walks all partitions."""
        if not self._changed:
            return
        active = [at for at in self._read if at not in self._paused]
        self._consumer.assign(active)
        for at in active:
            offset = self._read[at]
            if offset is not None:
                self._consumer.seek(at, offset)
                self._read[at] = None
        self._changed = False

    def _probe(self) -> None:
        """Asks the broker for its topics when nothing came for a while."""
        try:
            self._consumer.end_offsets(list(self._read)[:1], timeout_ms=round(_PROBE_TIMEOUT_S * 1000))
            topics = self._consumer.topics()
        except _CONNECTION_ERRORS as error:
            self._asked = time.monotonic()
            self._silent_since = self._silent_since or self._asked
            silent_s = self._asked - self._silent_since
            if silent_s > self._outage_timeout_s:
                raise BrokerUnavailable(
                    f"no Kafka broker at {self._servers} has answered for {silent_s:.0f} s",
                    remedy="Check that it runs; a new subscriber goes on after what was acknowledged",
                ) from error
            return
        self._asked, self._silent_since = time.monotonic(), None
        gone = sorted({at.topic for at in self._read} - topics)
        if gone:
            raise EventsLost(
                f"Kafka topics that are still read were deleted: {', '.join(gone)}",
                remedy='Go on without them by start="new" (--new)',
            )

    def _out_of_range(self, error: OffsetOutOfRangeError) -> EventsLost:
        wanted: Mapping[TopicPartition, int] = error.args[0] if error.args else {}
        places = ", ".join(f"{at.topic}[{at.partition}]@{offset}" for at, offset in wanted.items())
        return EventsLost(
            f"{places or 'a partition'} is not in Kafka: retention removed it, or the topic was recreated",
            remedy='Raise the retention of the topic; go on without what is lost by start="new" (--new)',
        )

    def _unreadable(self, error: CorruptRecordError) -> EventsLost:
        shown = [f"{at.topic}[{at.partition}]@{offset}" for at, offset in sorted(self._next.items())[:_PLACES_SHOWN]]
        more = f" or of {len(self._next) - len(shown)} more partitions" if len(self._next) > len(shown) else ""
        return EventsLost(
            f"a record at or behind {', '.join(shown)}{more} cannot be read: {error}",
            remedy="Header names must be UTF-8 and records whole. Mend their producer; go on without what is lost by "
            'start="new" (--new)',
        )

    def _bearing(self, ask: Callable[[], T]) -> T:
        """Asks the broker, again and again while it cannot be reached."""
        deadline = time.monotonic() + self._outage_timeout_s
        with kafka_clients.kafka_errors(self._servers):
            while True:
                try:
                    return ask()
                except _CONNECTION_ERRORS:
                    if time.monotonic() >= deadline:
                        raise
                    time.sleep(_RETRY_S)

    def send(
        self,
        partition: Partition,
        key: bytes | None,
        value: bytes | None,
        *,
        headers: Sequence[tuple[str, bytes]] = (),
        timeout_s: float | None = None,
    ) -> int:
        """See Transport."""
        with kafka_clients.kafka_errors(self._servers):
            future = self._producer.send(
                partition.topic, value=value, key=key, headers=list(headers), partition=partition.number
            )
            return int(future.get(timeout=self._outage_timeout_s if timeout_s is None else timeout_s).offset)

    def close(self) -> None:
        """See Transport."""
        if self._closed:
            return
        self._closed = True
        try:
            self._producer.close(timeout=_PROBE_TIMEOUT_S)
        finally:
            self._consumer.close(autocommit=False, timeout_ms=round(_PROBE_TIMEOUT_S * 1000))
