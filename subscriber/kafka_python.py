"""The Transport on kafka-python: consumers without a group, one producer, no thread that runs application code."""

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import Any

from kafka import TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.errors import (
    InvalidTopicError,
    KafkaError,
    KafkaTimeoutError,
    LogTruncationError,
    StaleMetadata,
    UnknownTopicOrPartitionError,
)

from totalorder import kafka_clients
from totalorder.errors import EventsLost
from totalorder.kafka_connections import failure_of
from totalorder.kafka_errors import is_outage, raise_for_code
from totalorder.kafka_settings import check_settings
from totalorder.subscriber.kafka_batches import read_by_columns
from totalorder.subscriber.kafka_identities import Place
from totalorder.subscriber.kafka_reader import Reader
from totalorder.subscriber.kafka_transport import (
    ANSWER_S,
    KEPT_BYTES,
    KEPT_RECORDS,
    MANY_BYTES,
    MAX_REQUEST_BYTES,
    PROMPT_BYTES,
    PROMPT_S,
    SLICE_S,
    Described,
    KafkaTransport,
    is_lively,
    no_such_partition,
)
from totalorder.subscriber.transport import Partition, Record

_BLOCK_S = 0.2
"""kafka-python's producer waits so long for a topic that it does not know yet; then it is called again."""
_LIVELY_SLICE_S, _IDLE_SLICE_S = 0.02, 0.5
"""So long stamps are waited for before events are looked for. They were fetched when stamps come, which ends the wait.
"""
_POLICY = "cleanup.policy"
_LAST_S = 0.5
"""For what is being written at the end, which nobody waits for any more: whoever wrote it has given up, or was
interrupted."""
_ABSENT = (UnknownTopicOrPartitionError.errno, InvalidTopicError.errno)
"""Of a topic that is not there, or has a name that none can have: a pub/sub topic's name may be of such a kind."""


class KafkaPythonTransport(KafkaTransport):
    """See Transport. No broker for `outage_timeout_s` is borne, then BrokerUnavailable; at the start, one that does not
    answer within `connect_timeout_s`. A call takes some seconds longer than it is told to when no broker answers.

    Records of `prompt` topics are returned as soon as they come, those of others within about 50 ms, or 200 ms where
    1,000 partitions are read. Behind a second in which nothing came the first of a partition that is new may take half
    a second.
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
        check_settings(kafka or {})
        settings = dict(kafka or {})
        # kafka-python 3.0.12 leaves partitions out of a fetch whose records came just before it is sent: they are not
        # asked for until it is answered.
        prompt_at_once = {"fetch.max.wait.ms": str(round(PROMPT_S * 1000))} | settings
        leisurely = {"fetch.min.bytes": str(MANY_BYTES), "fetch.max.wait.ms": str(round(SLICE_S * 1000))} | settings
        self._came_at, self._others_asked = time.monotonic(), -math.inf
        """When something came last, and when those that are not prompt were asked."""
        with ExitStack() as made:

            def client(make: Callable[..., Any], given: Mapping[str, str], **arguments: object) -> Any:
                one = make(bootstrap_servers, given, connect_timeout_s=connect_timeout_s, **arguments)
                made.callback(one.close)
                return one

            consuming: dict[str, object] = {"auto_offset_reset": "none", "max_poll_records": max_poll_records}
            another: dict[str, Any] = {"connect_timeout_s": ANSWER_S, **consuming}

            def reader(given: Mapping[str, str], **how: Any) -> Reader:
                one = client(kafka_clients.consumer, given, **consuming)
                make_another = partial(kafka_clients.consumer, bootstrap_servers, given, **another)
                return Reader(
                    read_by_columns(one, self._id_of),
                    lambda: read_by_columns(make_another(), self._id_of),
                    most=max_poll_records,
                    **how,
                )

            def waiting(seconds: float) -> dict[str, Any]:
                is_told = "fetch.max.wait.ms" in settings
                return {"wait_ms": None if is_told else seconds * 1000, "rests": "fetch.min.bytes" not in settings}

            self._first = reader(prompt_at_once, most_bytes=PROMPT_BYTES, **waiting(PROMPT_S))
            self._others = reader(leisurely, most_bytes=KEPT_BYTES, most_kept=KEPT_RECORDS, **waiting(SLICE_S))
            self._admin = client(kafka_clients.admin, settings, request_timeout_ms=round(ANSWER_S * 1000))
            self._producer = client(
                kafka_clients.producer,
                settings,
                request_timeout_ms=min(30_000, max(1, round(outage_timeout_s * 500))),
                max_block_ms=round(_BLOCK_S * 1000),
                max_request_size=MAX_REQUEST_BYTES,
            )
            made.pop_all()
        super().__init__(bootstrap_servers, outage_timeout_s, prompt=prompt, first=self._first, others=self._others)
        self._closed = False

    # --- questions ----------------------------------------------------------------------------------------------------

    def _described(self, topics: Collection[str]) -> dict[str, Described]:
        """See KafkaTransport."""
        found = self._admin.describe_topics(sorted(topics)) if topics else []
        for topic in found:
            if topic["error_code"] not in _ABSENT:
                raise_for_code(topic["error_code"], f"describing topic {topic['name']}")
        return {
            topic["name"]: Described(str(topic["topic_id"]), len(topic["partitions"]))
            for topic in found
            if topic["error_code"] == 0
        }

    def _policy(self, topic: str) -> str | None:
        """See KafkaTransport. kafka-python 3.0.12 has no error for what may not be seen: it leaves it out."""
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, [_POLICY])
        found = self._admin.describe_configs([resource], config_filter="all")["topic"][topic]
        return str(found[_POLICY]["value"]) if _POLICY in found else None

    def _ends(self, partitions: Collection[Place], *, begin: bool) -> dict[Place, int]:
        """See KafkaTransport. A consumer's question would wait behind its fetch, which the broker holds for long."""
        spec = OffsetSpec.EARLIEST if begin else OffsetSpec.LATEST
        asked = {TopicPartition(*at): spec for at in partitions}
        found = self._admin.list_partition_offsets(asked, "read_committed")
        return {Place(*at): place.offset for at, place in found.items()}

    def _failure(self) -> Exception | str | None:
        """See KafkaTransport."""
        clients = (self._admin, self._first.consumer)
        return next((failure for client in clients if (failure := failure_of(client)) is not None), None)

    # --- reading ------------------------------------------------------------------------------------------------------

    def _poll(self, timeout_s: float) -> list[Record]:
        """See KafkaTransport."""
        self._identify(self._by_id.due)
        found = self._came(timeout_s)
        records = list(chain.from_iterable(found))
        for taken in found:
            taken.clear()  # kafka-python leaves it in a cycle of frames and errors, for the garbage collector to find
        return records

    def _id_of(self, topic: str) -> str:
        return self._by_id.id_of(topic)

    def _came(self, timeout_s: float) -> list[list[Record]]:
        """What has come, of prompt topics first; without any, waits a little for prompt topics.

        Events wait for stamps in most cases: they are taken apart behind them, unless they were not asked for lately.
        """
        prompt, now = self._take(self._first, 0), time.monotonic()
        if prompt and now - self._others_asked < SLICE_S:
            return prompt
        self._others_asked = now
        try:
            found = [*prompt, *self._take(self._others, 0)]
        except EventsLost:
            if prompt:
                return prompt  # they are taken and must not be lost too; the other ones will be missed again
            raise
        if not found:
            waited = self._first if self._first.next else self._others
            found = self._take(waited, min(timeout_s, _LIVELY_SLICE_S if is_lively(self._came_at) else _IDLE_SLICE_S))
        if found:
            self._came_at = now
        return found

    def _take(self, reader: Reader, timeout_s: float) -> list[list[Record]]:
        if kept := reader.take():
            return kept
        reader.is_idle = not is_lively(self._came_at)
        try:
            for at, records in self._identified(reader, reader.poll(timeout_s)).items():
                assert isinstance(records[0], Record), "kafka-python makes them as `read_by_columns` told it to"
                reader.keep(at, records)
            return reader.take()
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

    def _identified(self, reader: Reader, found: Mapping[Place, list[Record]]) -> Mapping[Place, list[Record]]:
        """What was fetched of the very topics that it was to be of: their ids are asked for behind the fetch."""
        if reader is not self._others:
            return found
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
        return {at: records for at, records in found.items() if at not in doubted}

    def _check_answers(self) -> None:
        """See KafkaTransport."""
        for reader in (self._first, self._others):
            _check_answers(reader)

    # --- writing ------------------------------------------------------------------------------------------------------

    def _sent(
        self,
        partition: Partition,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        waits: Iterable[float],
    ) -> int:
        """See KafkaTransport."""
        future: Any = None
        for wait_s in waits:
            try:
                if future is None:
                    future = self._producer.send(
                        partition.topic, value=value, key=key, headers=headers, partition=partition.number
                    )
                return int(future.get(timeout=wait_s).offset)
            except KafkaTimeoutError:  # it takes longer, or the topic is not known yet
                if future is not None and future.is_done:
                    raise
            except ValueError as error:
                raise no_such_partition(partition) from error
        raise KafkaTimeoutError

    def close(self) -> None:
        """See Transport."""
        if self._closed:
            return
        self._closed = True
        with ExitStack() as ends:
            for reader in (self._first, self._others):
                ends.callback(reader.consumer.close, autocommit=False, timeout_ms=round(ANSWER_S * 1000))
            ends.callback(self._admin.close)
            ends.callback(self._producer.close, timeout=_LAST_S)


def _check_answers(reader: Reader) -> None:
    """Asks through the consumer's own connections for the ends of what it reads; raises what ails them."""
    try:
        partitions = [TopicPartition(*at) for at in reader.next]
        reader.consumer.end_offsets(partitions, timeout_ms=round(ANSWER_S * 1000))
    except KeyError as error:  # kafka-python 3.0.12 asks for those alone whose leader it knows, and looks for all
        raise StaleMetadata(str(error)) from error
