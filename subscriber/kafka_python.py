"""The Transport on kafka-python: consumers without a group, one producer, no thread that runs application code."""

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
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
from totalorder.errors import BrokerUnavailable, Error, EventsLost
from totalorder.subscriber.transport import Partition, Record

T = TypeVar("T")
_MAX_REQUEST_BYTES = 16 << 20
"""What the positions topic takes: a position holds every topic of its set and of changes that lie ahead."""
_RETRY_S = 0.2
_PROBE_AFTER_S = 5.0
"""An absent broker looks like an idle one: after this long without a record the broker is asked something."""
_PROBE_TIMEOUT_S = 2.0
_PROMPT_S = 0.1
"""How long the broker holds a fetch of what is prompt when there is nothing. kafka-python 3.0.12 leaves partitions out
of a fetch whose records came just before it is sent: they are not asked for until it is answered."""
_SLICE_S = 0.05
"""How often events are fetched that come one by one: a fetch for each would keep client and broker busy, and they wait
for their stamps, which take longer and are fetched at once."""
_MANY_BYTES = 1 << 16
_PLACES_SHOWN = 5
_CONNECTION_ERRORS = (KafkaConnectionError, KafkaTimeoutError, NodeNotReadyError)


class _Reader:
    """A consumer and the partitions that it reads."""

    def __init__(self, consumer: Any) -> None:
        self.consumer = consumer
        self.next: dict[TopicPartition, int] = {}
        """Of every partition that is read: the offset behind the last record that was returned."""
        self._tell_from: dict[TopicPartition, int] = {}
        """Where the consumer has yet to be told, or told again, to read from."""
        self._paused: set[TopicPartition] = set()
        """Not assigned for the time being. The consumer's own pause() is of no use: kafka-python 3.0.12 parks what it
        has fetched of a paused partition, and after resume() may neither return it nor fetch again, for ever."""
        self._changed = False

    def read(self, at: TopicPartition, offset: int) -> None:
        self._tell_from[at] = self.next[at] = offset
        self._paused.discard(at)
        self._changed = True

    def stop(self, at: TopicPartition) -> None:
        self._paused.discard(at)
        if at in self.next:
            del self.next[at]
            self._tell_from.pop(at, None)
            self._changed = True

    def pause(self, at: TopicPartition) -> None:
        if at not in self._paused:
            self._tell_from[at] = self.next[at]
            self._paused.add(at)
            self._changed = True

    def resume(self, at: TopicPartition) -> None:
        if at in self._paused:
            self._paused.discard(at)
            self._changed = True

    def told_from(self, at: TopicPartition) -> int | None:
        """The offset to begin at where the consumer does not know of it yet."""
        return self._tell_from.get(at)

    def poll(self, timeout_s: float) -> Mapping[TopicPartition, list[Any]]:
        self._tell()
        if not self.next and timeout_s == 0:
            return {}
        found: Mapping[TopicPartition, list[Any]] = self.consumer.poll(timeout_ms=max(0, round(timeout_s * 1000)))
        for at, records in found.items():
            self.next[at] = records[-1].offset + 1
        return found

    def _tell(self) -> None:
        """Hands what changed since the last poll to the consumer, in one go: each assignment walks all partitions."""
        if not self._changed:
            return
        active = [at for at in self.next if at not in self._paused]
        self.consumer.assign(active)
        for at in active:
            offset = self._tell_from.pop(at, None)
            if offset is not None:
                self.consumer.seek(at, offset)
        self._changed = False


class KafkaPythonTransport:
    """See Transport. No broker for `outage_timeout_s` is borne, then BrokerUnavailable.

    Records of `prompt` topics are returned as soon as they come, those of others within about 50 ms.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        kafka: Mapping[str, str] | None = None,
        *,
        prompt: Collection[str] = (),
        outage_timeout_s: float = 60.0,
        max_poll_records: int = 1_000,
    ) -> None:
        self._servers, self._outage_timeout_s, self._prompt = bootstrap_servers, outage_timeout_s, prompt
        self._closed = False
        settings = dict(kafka or {})
        prompt_at_once = {"fetch.max.wait.ms": str(round(_PROMPT_S * 1000))} | settings
        leisurely = {"fetch.min.bytes": str(_MANY_BYTES), "fetch.max.wait.ms": str(round(_SLICE_S * 1000))} | settings
        self._readers: list[_Reader] = []
        try:
            for given in (prompt_at_once, leisurely):
                consumer = kafka_clients.consumer(
                    bootstrap_servers, given, auto_offset_reset="none", max_poll_records=max_poll_records
                )
                self._readers.append(_Reader(consumer))
            self._producer = kafka_clients.producer(
                bootstrap_servers,
                settings,
                delivery_timeout_ms=round(outage_timeout_s * 1000),
                request_timeout_ms=min(30_000, max(1, round(outage_timeout_s * 500))),
                max_block_ms=round(outage_timeout_s * 1000),
                max_request_size=_MAX_REQUEST_BYTES,
            )
        except BaseException:
            for reader in self._readers:
                reader.consumer.close()
            raise
        self._first, self._others = self._readers
        self._others_asked = -math.inf
        """When those that are not prompt were asked last."""
        self._consumer = self._first.consumer
        """For questions."""
        self._asked = time.monotonic()
        """When a record or an answer came last, or the broker was asked in vain."""
        self._silent_since: float | None = None
        """The first time that it was asked in vain; an application that does not poll for long is no outage."""

    def _reader(self, topic: str) -> _Reader:
        return self._first if topic in self._prompt else self._others

    def partitions(self, topic: str) -> int:
        """See Transport."""
        return self._bearing(lambda: len(self._consumer.partitions_for_topic(topic) or ()))

    def beginning_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """See Transport."""
        wanted = [TopicPartition(*partition) for partition in partitions]
        found = self._bearing(lambda: self._consumer.beginning_offsets(wanted))
        return {Partition(*at): offset for at, offset in found.items()}

    def end_offsets(self, partitions: Iterable[Partition], *, timeout_s: float | None = None) -> dict[Partition, int]:
        """See Transport."""
        wanted = [TopicPartition(*partition) for partition in partitions]
        if timeout_s is None:
            found = self._bearing(lambda: self._consumer.end_offsets(wanted))
        else:
            with kafka_clients.kafka_errors(self._servers):
                found = self._consumer.end_offsets(wanted, timeout_ms=round(timeout_s * 1000))
        return {Partition(*at): offset for at, offset in found.items()}

    def read(self, partition: Partition, offset: int) -> None:
        """See Transport."""
        self._reader(partition.topic).read(TopicPartition(*partition), offset)

    def stop(self, partition: Partition) -> None:
        """See Transport."""
        self._reader(partition.topic).stop(TopicPartition(*partition))

    def pause(self, partition: Partition) -> None:
        """See Transport."""
        self._reader(partition.topic).pause(TopicPartition(*partition))

    def resume(self, partition: Partition) -> None:
        """See Transport."""
        self._reader(partition.topic).resume(TopicPartition(*partition))

    def position(self, partition: Partition) -> int:
        """See Transport."""
        reader, at = self._reader(partition.topic), TopicPartition(*partition)
        told = reader.told_from(at)
        return told if told is not None else int(self._bearing(lambda: reader.consumer.position(at)))

    def poll(self, timeout_s: float) -> list[Record]:
        """See Transport."""
        deadline = time.monotonic() + timeout_s
        found = self._poll(timeout_s)
        while not found and (left_s := deadline - time.monotonic()) > 0:
            found = self._poll(left_s)
        if found:
            self._asked, self._silent_since = time.monotonic(), None
        elif time.monotonic() - self._asked > _PROBE_AFTER_S:
            self._probe()
        records = [
            Record(
                record.topic,
                record.partition,
                record.offset,
                record.key,
                record.value,
                tuple(record.headers),
                record.timestamp,
            )
            for taken in found
            for record in taken
        ]
        for taken in found:
            taken.clear()  # kafka-python leaves it in a cycle of frames and errors, for the garbage collector to find
        return records

    def _poll(self, timeout_s: float) -> list[list[Any]]:
        """What has come, of prompt topics first; without any, waits a little for prompt topics.

        Events wait for stamps in most cases: they are taken apart behind them, unless they were not asked for lately.
        """
        prompt, now = self._take(self._first, 0), time.monotonic()
        if prompt and now - self._others_asked < _SLICE_S:
            return prompt
        self._others_asked = now
        found = [*prompt, *self._take(self._others, 0)]
        return found or self._take(self._first if self._first.next else self._others, min(timeout_s, _SLICE_S))

    def _take(self, reader: _Reader, timeout_s: float) -> list[list[Any]]:
        with kafka_clients.kafka_errors(self._servers):
            try:
                return list(reader.poll(timeout_s).values())
            except OffsetOutOfRangeError as error:
                raise self._out_of_range(error) from error
            except CorruptRecordError as error:
                raise self._unreadable(error) from error
            except _CONNECTION_ERRORS:
                return []  # `_probe` measures how long

    def _probe(self) -> None:
        """Asks the broker for its topics when nothing came for a while."""
        try:
            gone = self._gone({at.topic for at in self._places()})
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
        if gone:
            raise EventsLost(
                f"Kafka topics that are still read were deleted: {', '.join(gone)}",
                remedy='Go on without them by start="new" (--new)',
            )

    def _gone(self, topics: Set[str]) -> list[str]:
        """Those that the broker has no longer; kafka-python's connection errors when it does not answer."""
        self._consumer.end_offsets(self._places()[:1], timeout_ms=round(_PROBE_TIMEOUT_S * 1000))
        return sorted(topics - self._consumer.topics())

    def _out_of_range(self, error: OffsetOutOfRangeError) -> EventsLost:
        wanted: Mapping[TopicPartition, int] = error.args[0] if error.args else {}
        places = ", ".join(f"{at.topic}[{at.partition}]@{offset}" for at, offset in wanted.items())
        return EventsLost(
            f"{places or 'a partition'} is not in Kafka: retention removed it, or the topic was recreated",
            remedy='Raise the retention of the topic; go on without what is lost by start="new" (--new)',
        )

    def _places(self) -> list[TopicPartition]:
        return [at for reader in self._readers for at in reader.next]

    def _unreadable(self, error: CorruptRecordError) -> EventsLost:
        behind = {at: offset for reader in self._readers for at, offset in reader.next.items()}
        shown = [f"{at.topic}[{at.partition}]@{offset}" for at, offset in sorted(behind.items())[:_PLACES_SHOWN]]
        more = f" or of {len(behind) - len(shown)} more partitions" if len(behind) > len(shown) else ""
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
            try:
                future = self._producer.send(
                    partition.topic, value=value, key=key, headers=list(headers), partition=partition.number
                )
                return int(future.get(timeout=self._outage_timeout_s if timeout_s is None else timeout_s).offset)
            except KafkaTimeoutError as error:
                # To a producer a topic that is gone is one that the broker does not know yet.
                if timeout_s is None and self._gone({partition.topic}):
                    raise Error(
                        f"the Kafka topic {partition.topic} was deleted, and this subscriber must write there",
                        remedy="`totalorder sequence` stops for the same reason, and says what can be done",
                    ) from error
                raise

    def close(self) -> None:
        """See Transport."""
        if self._closed:
            return
        self._closed = True
        try:
            self._producer.close(timeout=_PROBE_TIMEOUT_S)
        finally:
            for reader in self._readers:
                reader.consumer.close(autocommit=False, timeout_ms=round(_PROBE_TIMEOUT_S * 1000))
