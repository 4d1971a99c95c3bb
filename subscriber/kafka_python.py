"""The Transport on kafka-python: consumers without a group, one producer, no thread that runs application code."""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, TypeVar

from kafka import TopicPartition
from kafka.admin import OffsetSpec
from kafka.errors import (
    CorruptRecordError,
    InvalidTopicError,
    KafkaError,
    KafkaTimeoutError,
    LogTruncationError,
    OffsetOutOfRangeError,
    StaleMetadata,
    UnknownTopicOrPartitionError,
    UnsupportedCodecError,
)

from totalorder import kafka_clients
from totalorder.errors import BrokerUnavailable, Error, EventsLost
from totalorder.kafka_connections import failure_of
from totalorder.kafka_errors import is_outage, raise_for_code
from totalorder.kafka_settings import check_settings
from totalorder.subscriber import kafka_losses
from totalorder.subscriber.kafka_identities import Identities
from totalorder.subscriber.kafka_reader import Reader
from totalorder.subscriber.outage import Outage
from totalorder.subscriber.transport import Partition, Record

T = TypeVar("T")
_MAX_REQUEST_BYTES = 16 << 20
"""What the positions topic takes: a position holds every topic of its set and of changes that lie ahead."""
_RETRY_S = 0.2
_ANSWER_S = 3.0
"""A broker that takes longer to answer a question counts as one that does not."""
_BLOCK_S = 0.2
"""kafka-python's producer waits so long for a topic that it does not know yet; then it is called again."""
_PROMPT_S = 0.1
"""How long the broker holds a fetch of what is prompt when there is nothing. kafka-python 3.0.12 leaves partitions out
of a fetch whose records came just before it is sent: they are not asked for until it is answered."""
_SLICE_S = 0.05
"""How often events are fetched that come one by one: a fetch for each would keep client and broker busy, and they wait
for their stamps, which take longer and are fetched at once."""
_IDENTIFY_S = 2.0
"""How often Kafka is asked whether it still has the topics that are read by their ids, when no records come of them."""
_MANY_BYTES = 1 << 16
_UNREADABLE = (CorruptRecordError, UnsupportedCodecError)
_ABSENT = (UnknownTopicOrPartitionError.errno, InvalidTopicError.errno)
"""Of a topic that is not there, or has a name that none can have: a pub/sub topic's name may be of such a kind."""


class KafkaPythonTransport:
    """See Transport. No broker for `outage_timeout_s` is borne, then BrokerUnavailable; at the start, one that does not
    answer within `connect_timeout_s`. A call takes some seconds longer than it is told to when no broker answers.

    Records of `prompt` topics are returned as soon as they come, those of others within about 50 ms, or 200 ms where
    1,000 partitions are read.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        kafka: Mapping[str, str] | None = None,
        *,
        prompt: Collection[str] = (),
        connect_timeout_s: float = kafka_clients.CONNECT_TIMEOUT_S,
        outage_timeout_s: float = 60.0,
        max_poll_records: int = 1_000,
    ) -> None:
        self._servers, self._prompt = bootstrap_servers, prompt
        self._outage = Outage(bootstrap_servers, outage_timeout_s)
        check_settings(kafka or {})
        settings = dict(kafka or {})
        prompt_at_once = {"fetch.max.wait.ms": str(round(_PROMPT_S * 1000))} | settings
        leisurely = {"fetch.min.bytes": str(_MANY_BYTES), "fetch.max.wait.ms": str(round(_SLICE_S * 1000))} | settings
        self._others_asked = -math.inf
        """When those that are not prompt were asked last."""
        with ExitStack() as made:

            def client(make: Callable[..., Any], given: Mapping[str, str], **arguments: object) -> Any:
                one = make(bootstrap_servers, given, connect_timeout_s=connect_timeout_s, **arguments)
                made.callback(one.close)
                return one

            consuming: dict[str, object] = {"auto_offset_reset": "none", "max_poll_records": max_poll_records}
            self._first = Reader(client(kafka_clients.consumer, prompt_at_once, **consuming))
            wait_ms = None if "fetch.max.wait.ms" in settings else _SLICE_S * 1000
            self._others = Reader(client(kafka_clients.consumer, leisurely, **consuming), wait_ms=wait_ms)
            self._readers = (self._first, self._others)
            another: dict[str, Any] = {"connect_timeout_s": _ANSWER_S, **consuming}
            self._by_id = Identities(
                self._others,
                lambda: kafka_clients.consumer(bootstrap_servers, leisurely, **another),
                time.monotonic,
            )
            self._identify_at = -math.inf
            self._admin = client(kafka_clients.admin, settings, request_timeout_ms=round(_ANSWER_S * 1000))
            self._producer = client(
                kafka_clients.producer,
                settings,
                delivery_timeout_ms=round(outage_timeout_s * 1000),
                request_timeout_ms=min(30_000, max(1, round(outage_timeout_s * 500))),
                max_block_ms=round(_BLOCK_S * 1000),
                max_request_size=_MAX_REQUEST_BYTES,
            )
            made.pop_all()
        self._closed = False

    def _reader(self, topic: str) -> Reader:
        """What reads a topic that is read by its name alone."""
        return self._first if topic in self._prompt else self._others

    # --- questions ----------------------------------------------------------------------------------------------------

    def partitions(self, topic: str) -> int:
        """See Transport."""
        described = self._bearing(lambda: self._described([topic]))
        return len(described[topic]["partitions"]) if topic in described else 0

    def beginning_offsets(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """See Transport."""
        return self._bearing(lambda: self._offsets(partitions, OffsetSpec.EARLIEST))

    def end_offsets(self, partitions: Collection[Partition], *, once: bool = False) -> dict[Partition, int]:
        """See Transport."""
        ask = self._once if once else self._bearing
        return ask(lambda: self._offsets(partitions, OffsetSpec.LATEST))

    def _offsets(self, partitions: Collection[Partition], spec: OffsetSpec) -> dict[Partition, int]:
        """Of committed records. A consumer's question would wait behind its fetch, which the broker holds for long."""
        wanted = {_place(partition): partition for partition in partitions}
        asked = dict.fromkeys(wanted, spec)
        found = self._admin.list_partition_offsets(asked, "read_committed") if asked else {}
        return {wanted[at]: place.offset for at, place in found.items()}

    def _described(self, topics: Collection[str]) -> dict[str, Any]:
        """Those of the topics that exist, as kafka-python describes them."""
        found = self._admin.describe_topics(sorted(topics)) if topics else []
        for topic in found:
            if topic["error_code"] not in _ABSENT:
                raise_for_code(topic["error_code"], f"describing topic {topic['name']}")
        return {topic["name"]: topic for topic in found if topic["error_code"] == 0}

    def _bearing(self, ask: Callable[[], T]) -> T:
        """Asks the broker, again and again while it cannot be reached."""
        while True:
            with suppress(BrokerUnavailable):
                return self._once(ask)
            self._outage.raise_if_over()
            time.sleep(_RETRY_S)

    def _once(self, ask: Callable[[], T]) -> T:
        """Asks the broker; BrokerUnavailable when it does not answer."""
        asked = time.monotonic()
        try:
            answer = ask()
        except KafkaError as error:
            self._bear(error, asked)
            raise kafka_clients.explained(self._servers, error) from error
        self._outage.heard()
        return answer

    def _bear(self, error: KafkaError, asked: float) -> None:
        """Raises what is no outage, or one that lasts too long."""
        if not is_outage(error):
            raise kafka_clients.explained(self._servers, error) from error
        clients = (self._admin, self._first.consumer)
        failures = (failure for client in clients if (failure := failure_of(client)) is not None)
        self._outage.missed(asked, next(failures, None if isinstance(error, KafkaTimeoutError) else error))

    # --- reading ------------------------------------------------------------------------------------------------------

    def read(self, partition: Partition, offset: int) -> None:
        """See Transport."""
        if partition.topic_id:
            self._by_id.read(partition, offset)
        else:
            self._reader(partition.topic).read(_place(partition), offset)

    def stop(self, partition: Partition) -> None:
        """See Transport."""
        if partition.topic_id:
            self._by_id.stop(partition)
        else:
            self._reader(partition.topic).stop(_place(partition))

    def pause(self, partition: Partition) -> None:
        """See Transport."""
        if partition.topic_id:
            self._by_id.pause(partition)
        else:
            self._reader(partition.topic).pause(_place(partition))

    def resume(self, partition: Partition) -> None:
        """See Transport."""
        if partition.topic_id:
            self._by_id.resume(partition)
        else:
            self._reader(partition.topic).resume(_place(partition))

    def position(self, partition: Partition) -> int:
        """See Transport."""
        try:
            reader = self._others if partition.topic_id else self._reader(partition.topic)
            return reader.position(_place(partition))
        except KafkaError as error:
            raise kafka_clients.explained(self._servers, error) from error

    def poll(self, timeout_s: float) -> list[Record]:
        """See Transport."""
        deadline = time.monotonic() + timeout_s
        self._identify(self._by_id.due)
        found = self._poll(timeout_s)
        while not found and (left_s := deadline - time.monotonic()) > 0:
            found = self._poll(left_s)
        if found:
            self._outage.heard()
        else:
            self._outage.raise_if_over()
            if self._outage.wants_question:
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
                self._by_id.id_of(record.topic),
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
        try:
            found = [*prompt, *self._take(self._others, 0)]
        except EventsLost:
            if prompt:
                return prompt  # they are taken and must not be lost too; the other ones will be missed again
            raise
        return found or self._take(self._first if self._first.next else self._others, min(timeout_s, _SLICE_S))

    def _take(self, reader: Reader, timeout_s: float) -> list[list[Any]]:
        try:
            return self._identified(reader, reader.poll(timeout_s))
        except KafkaError as error:
            if is_outage(error):
                return []  # `_probe` measures how long
            if isinstance(error, LogTruncationError) and not error.divergent_offsets.keys() & reader.next.keys():
                return []  # of what is read no longer
            if not self._identify(self._by_id.names):
                return []
            explained = self._explained(error)
            if explained is None:
                return []
            raise explained from error

    def _identified(self, reader: Reader, found: Mapping[TopicPartition, list[Any]]) -> list[list[Any]]:
        """What was fetched of the very topics that it was to be of: their ids are asked for behind the fetch."""
        if reader is not self._others:
            return list(found.values())
        read = {at: Partition(at.topic, at.partition, self._by_id.id_of(at.topic)) for at in found}
        is_due = time.monotonic() >= self._identify_at
        asked = self._identify(self._by_id.names if is_due else {at.topic for at in read.values() if at.topic_id})
        doubted = {
            at: partition
            for at, partition in read.items()
            if partition.topic_id and not (asked and self._by_id.id_of(at.topic) == partition.topic_id)
        }
        for at, partition in doubted.items():
            self._by_id.read_again(partition, found[at][0].offset)
        return [records for at, records in found.items() if at not in doubted]

    def _identify(self, names: Collection[str]) -> bool:
        """Asks for the ids of topics that are read by them; False when no broker answers."""
        if not names:
            return True

        def compare() -> None:
            present = {name: str(topic["topic_id"]) for name, topic in self._described(names).items()}
            self._by_id.compare(names, present)

        self._identify_at = time.monotonic() + _IDENTIFY_S
        with suppress(BrokerUnavailable):
            self._once(compare)
            return True
        self._outage.raise_if_over()
        return False

    def vanished(self) -> list[Partition]:
        """See Transport."""
        return self._by_id.vanished()

    def _probe(self) -> None:
        """Asks the broker for the topics and ends of what is read, when nothing came for a while."""
        with suppress(BrokerUnavailable):
            self._once(self._check_all)
        self._outage.raise_if_over()

    def _check_all(self) -> None:
        self._check_topics()
        self._identify(self._by_id.names)
        # Whoever knows the topics may not be the one that is to give the records.
        for reader in self._readers:
            _check_answers(reader)

    def _check_topics(self) -> None:
        """Raises EventsLost when a topic that is read by its name is gone, or is another one now."""
        for reader in self._readers:
            topics = {at.topic for at in reader.next} - self._by_id.names
            ids = {name: str(topic["topic_id"]) for name, topic in self._described(topics).items()}
            others = {name for name, found in ids.items() if reader.ids.setdefault(name, found) != found}
            if others or topics - ids.keys():
                raise kafka_losses.gone(self._named(reader.next), topics - ids.keys(), others)

    # --- what is lost -------------------------------------------------------------------------------------------------

    def _explained(self, error: KafkaError) -> Error | None:
        """An error of a consumer that is no outage, as totalorder's; None when it is of topics that are gone."""
        if isinstance(error, LogTruncationError):
            read = self._reader(next(iter(error.divergent_offsets)).topic).next
            return self._lost({at: read[at] for at in error.divergent_offsets if at in read})
        if isinstance(error, OffsetOutOfRangeError):
            wanted = error.args[0] if error.args else {}
            still_read = {at for reader in self._readers for at in reader.next}
            return self._lost({at: offset for at, offset in wanted.items() if at in still_read})
        if isinstance(error, _UNREADABLE):
            positions = {at: offset for reader in self._readers for at, offset in reader.next.items()}
            return kafka_losses.unreadable(self._named(positions), error)
        return kafka_clients.explained(self._servers, error)

    def _lost(self, wanted: Mapping[TopicPartition, int]) -> Error | None:
        """What became of offsets that Kafka does not have; of all that is read, where retention removed them."""
        self._bearing(self._check_topics)
        if not wanted:
            return None
        positions = {at: reader.position(at) for reader in self._readers for at in reader.next} | dict(wanted)
        named = self._named(positions)
        removed = kafka_losses.removed(named, self.beginning_offsets(named))
        if removed is not None:
            return removed
        ends = self.end_offsets(self._named(wanted))
        return kafka_losses.cut_short(self._named(wanted), ends)

    def _named(self, offsets: Mapping[TopicPartition, int]) -> dict[Partition, int]:
        """The same by partitions with the ids that they are read by."""
        return {Partition(at.topic, at.partition, self._by_id.id_of(at.topic)): end for at, end in offsets.items()}

    # --- writing ------------------------------------------------------------------------------------------------------

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
        asked = time.monotonic()
        deadline = asked + (max(_ANSWER_S, self._outage.left_s) if timeout_s is None else timeout_s)
        try:
            offset = self._sent(partition, key, value, list(headers), deadline)
        except KafkaError as error:
            if timeout_s is None:
                self._refuse_deleted(partition.topic, error)
            self._bear(error, asked)
            raise kafka_clients.explained(self._servers, error) from error
        self._outage.heard()
        return offset

    def _sent(
        self,
        partition: Partition,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes]],
        deadline: float,
    ) -> int:
        while True:
            try:
                future = self._producer.send(
                    partition.topic, value=value, key=key, headers=headers, partition=partition.number
                )
            except KafkaTimeoutError:  # the topic is not known yet
                if time.monotonic() >= deadline:
                    raise
            except ValueError as error:
                raise Error(
                    f"the Kafka topic {partition.topic} has no partition {partition.number} to write to",
                    remedy="It was created again with fewer: `totalorder sequence` says what can be done",
                ) from error
            else:
                return int(future.get(timeout=max(0.0, deadline - time.monotonic())).offset)

    def _refuse_deleted(self, topic: str, error: KafkaError) -> None:
        """To a producer a topic that is gone is one that the broker does not know yet."""
        try:
            there = topic in self._described([topic])
        except KafkaError:
            return  # then the first error is the one to tell
        if not there:
            raise Error(
                f"the Kafka topic {topic} was deleted, and this subscriber must write there",
                remedy="`totalorder sequence` stops for the same reason, and says what can be done",
            ) from error

    def close(self) -> None:
        """See Transport."""
        if self._closed:
            return
        self._closed = True
        with ExitStack() as ends:
            for reader in self._readers:
                ends.callback(reader.consumer.close, autocommit=False, timeout_ms=round(_ANSWER_S * 1000))
            ends.callback(self._admin.close)
            ends.callback(kafka_clients.close_producer, self._producer, _ANSWER_S)


def _place(partition: Partition) -> TopicPartition:
    return TopicPartition(partition.topic, partition.number)


def _check_answers(reader: Reader) -> None:
    """Asks through the consumer's own connections for the ends of what it reads; raises what ails them."""
    try:
        reader.consumer.end_offsets(list(reader.next), timeout_ms=round(_ANSWER_S * 1000))
    except KeyError as error:  # kafka-python 3.0.12 asks for those alone whose leader it knows, and looks for all
        raise StaleMetadata(str(error)) from error
