"""The Transport on confluent-kafka: librdkafka fetches and takes records apart in threads of its own.

Kafka is asked for the ids of topics behind each fetch, as always, but nobody waits for the answer: what came of topics
that are read by their ids is kept until it is there, and stamps and answers go on.
"""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, NamedTuple
from uuid import UUID

from confluent_kafka import Consumer, IsolationLevel, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec  # type: ignore[attr-defined]
from kafka.errors import (
    FencedLeaderEpochError,
    InvalidTopicError,
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    NotLeaderForPartitionError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
    UnknownLeaderEpochError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)

from totalorder import kafka_clients
from totalorder.errors import Error, SettingsError
from totalorder.kafka_errors import is_outage
from totalorder.librdkafka_consumer import DECIDED
from totalorder.librdkafka_settings import consumer_settings
from totalorder.subscriber.kafka_identities import Place
from totalorder.subscriber.kafka_transport import (
    ANSWER_S,
    IDENTIFY_S,
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
from totalorder.subscriber.librdkafka_errors import Heard, translated
from totalorder.subscriber.librdkafka_reader import Doubts, Failed, LibrdkafkaReader
from totalorder.subscriber.transport import Partition, Record

_DEFAULTS = {
    "reconnect.backoff.max.ms": "1000",
    "fetch.queue.backoff.ms": "5",
    "fetch.error.backoff.ms": "50",
    # What is read ahead, all partitions of a consumer together, is bounded by these; a fetch comes on top.
    "queued.max.messages.kbytes": "4096",
    "fetch.max.bytes": "2097152",
    "max.partition.fetch.bytes": "1048576",
    "check.crcs": "true",
    "receive.message.max.bytes": "1000000000",  # must exceed whatever fetch.max.bytes is set to
}
_DECIDED = {"log_level": "0"}
_PRODUCER = {
    "acks": "all",
    "enable.idempotence": "true",
    "linger.ms": "0",
    "message.timeout.ms": "0",  # never given up: how long to wait is the caller's decision
    "message.max.bytes": str(MAX_REQUEST_BYTES),
}
_MOST = 100_000
"""That are taken out of librdkafka's queue at a time."""
_AHEAD = 2
"""So many times what is returned at most is fetched ahead, however small the records are."""
_ABSENT = (UnknownTopicOrPartitionError, InvalidTopicError, UnknownTopicIdError)
_OTHER_LEADER = (FencedLeaderEpochError, LeaderNotAvailableError, NotLeaderForPartitionError, UnknownLeaderEpochError)
_LIVELY_SLICE_S = 0.01
_PRESSED_S, _PRESSED_SLICE_S = 0.1, 0.002
"""Events are looked for that often in a backlog, or while Kafka is asked for ids."""
_PAUSE_PER_PARTITION_S = 50e-6
"""After an answer for so many partitions the next question waits so long: each takes some 5 µs to be taken apart."""
_ASK_AGAIN_S = 0.2
_STALE_S = 2 * ANSWER_S
"""That nobody answered a question so long ago says nothing of now: the application has not polled meanwhile."""


class _Question(NamedTuple):
    """For topics' ids, on its way."""

    asked: float
    by_id: set[str]
    named: set[str]
    doubts: tuple[Doubts, Doubts]
    answers: Mapping[str, "Future[Any]"]


class LibrdkafkaTransport(KafkaTransport):
    """See Transport, and KafkaPythonTransport, which takes the same arguments.

    Records of `prompt` topics are returned as soon as they come, those of others within about 50 ms.
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
        # It says in words why a login or a certificate does not do, which librdkafka tells as an absent broker.
        kafka_clients.admin(bootstrap_servers, kafka, connect_timeout_s=connect_timeout_s).close()
        self._heard, self._most = Heard(), min(max_poll_records, _MOST)
        given = consumer_settings(bootstrap_servers, kafka or {})
        connection = _DEFAULTS | given | _DECIDED
        reading = connection | DECIDED | {"queued.min.messages": str(_AHEAD * self._most)}
        prompt_at_once = {"fetch.wait.max.ms": str(round(PROMPT_S * 1000))} | given
        leisurely = {"fetch.min.bytes": str(MANY_BYTES), "fetch.wait.max.ms": str(round(SLICE_S * 1000))} | given
        retried_ms = min(30_000, max(10, round(outage_timeout_s * 500)))
        writing = connection | _PRODUCER | {"socket.timeout.ms": str(retried_ms), "request.timeout.ms": str(retried_ms)}
        try:
            self._producer: Any = Producer(writing | {"error_cb": self._heard.note})
            self._admin: Any = AdminClient({**connection, "error_cb": self._heard.note})  # type: ignore[dict-item]
            consumers = [
                Consumer(reading | fetching | {"error_cb": self._heard.note})
                for fetching in (prompt_at_once, leisurely)
            ]
        except KafkaException as error:
            raise SettingsError(f"librdkafka refuses its settings: {error}", remedy="Change them") from error
        self._consumers = consumers
        self._first = LibrdkafkaReader(consumers[0], self._most, lambda _topic: "", at_once_bytes=PROMPT_BYTES)
        self._others = LibrdkafkaReader(consumers[1], self._most, lambda topic: self._by_id.id_of(topic))
        super().__init__(bootstrap_servers, outage_timeout_s, prompt=prompt, first=self._first, others=self._others)
        self._question: _Question | None = None
        self._much_came = False
        self._ask_at = self._came_at = self._try_again_at = 0.0
        self._closed = False

    # --- questions ----------------------------------------------------------------------------------------------------

    def _described(self, topics: Collection[str]) -> dict[str, Described]:
        """See KafkaTransport."""
        return _present(self._asked_for(topics))

    def _asked_for(self, topics: Collection[str]) -> Mapping[str, "Future[Any]"]:
        if not topics:
            return {}
        asked: Mapping[str, Future[Any]] = self._admin.describe_topics(
            TopicCollection(sorted(topics)), request_timeout=ANSWER_S
        )
        return asked

    def _policy(self, topic: str) -> str | None:
        """See KafkaTransport."""
        asked: Any = [ConfigResource(ConfigResource.Type.TOPIC, topic)]
        (answer,) = self._admin.describe_configs(asked, request_timeout=ANSWER_S).values()
        with suppress(TopicAuthorizationFailedError):
            return str(_result(answer)["cleanup.policy"].value)
        return None

    def _ends(self, partitions: Collection[Place], *, begin: bool) -> dict[Place, int]:
        """See KafkaTransport."""
        return {at: int(answer.offset) for at, answer in self._answered_ends(partitions, begin=begin).items()}

    def _answered_ends(self, partitions: Collection[Place], *, begin: bool) -> dict[Place, Any]:
        """With leaders' epochs. librdkafka 2.16 never looks for other leaders here than those that it knew first."""
        try:
            return self._ends_by_known_leaders(partitions, begin=begin)
        except _OTHER_LEADER:
            for topic in {at.topic for at in partitions}:
                try:
                    self._admin.list_topics(topic, timeout=ANSWER_S)
                except KafkaException as error:
                    raise translated(error.args[0]) from error
            return self._ends_by_known_leaders(partitions, begin=begin)

    def _ends_by_known_leaders(self, partitions: Collection[Place], *, begin: bool) -> dict[Place, Any]:
        spec: Any = OffsetSpec
        which = spec.earliest() if begin else spec.latest()
        answers = self._admin.list_offsets(
            {TopicPartition(*at): which for at in partitions},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=ANSWER_S,
        )
        return {Place(at.topic, at.partition): _result(answer) for at, answer in answers.items()}

    def _check_answers(self) -> None:
        """See KafkaTransport."""
        if wanted := [*self._first.next, *self._others.next]:
            self._ends(wanted, begin=False)

    def _failure(self) -> Exception | str | None:
        """See KafkaTransport."""
        self._admin.poll(0)
        return self._heard.failure

    # --- reading ------------------------------------------------------------------------------------------------------

    def _poll(self, timeout_s: float) -> list[Record]:
        """See KafkaTransport. What it waits for is prompt topics: events wait for stamps in most cases."""
        self._raise_failed()
        for wait_s in (0.0, timeout_s) if timeout_s > 0 else (0.0,):
            waited, other = self._first, self._others
            if not waited.is_reading:
                waited, other = other, waited
            came = waited.receive(min(wait_s, self._slice_s())), other.receive(0)
            if any(came):
                self._came_at, self._much_came = time.monotonic(), max(came) > self._most // 2
            self._hear()
            self._ask()
            if found := [*self._first.take(self._most), *self._others.take(self._most)]:
                return found
        return []

    def _slice_s(self) -> float:
        if self._question is not None or (self._much_came and time.monotonic() - self._came_at < _PRESSED_S):
            return _PRESSED_SLICE_S
        return _LIVELY_SLICE_S if is_lively(self._came_at) else SLICE_S

    def _raise_failed(self) -> None:
        """What is amiss with partitions of which all that came was returned: what cannot pass is raised, and the others
        are tried again, all at once, or as many as can be asked about in a moment.
        """
        begun_s, is_known = time.monotonic(), False
        if begun_s < self._try_again_at:
            return
        for reader in (self._first, self._others):
            while (found := reader.failed()) is not None:
                if not is_outage(found.error):
                    is_known = is_known or self._identify(self._by_id.names)
                    if is_known and found.at in reader.next:
                        self._check_failed(found)
                reader.again(found.at)
                if time.monotonic() - begun_s > _ASK_AGAIN_S:
                    return
                self._try_again_at = begun_s + _ASK_AGAIN_S

    def _check_failed(self, failed: Failed) -> None:
        error: KafkaError = failed.error
        if isinstance(error, _ABSENT):
            self._bearing(self._check_topics)
            return
        if self._bearing(lambda: self._is_there(failed)):
            return
        if isinstance(error, OffsetOutOfRangeError):
            error = OffsetOutOfRangeError({failed.at: failed.offset})
        explained = self._explained(error, {failed.at: failed.offset})
        if explained is not None:
            raise explained from error

    def _is_there(self, failed: Failed) -> bool:
        """Whether the log has the offset that was missed, and was never without: librdkafka tells it also to those who
        read the partition anew meanwhile, and a log that was cut short and has grown again must not pass for that.
        """
        if failed.missed is None:
            return False
        self._check_topics()
        end = self._answered_ends([failed.at], begin=False)[failed.at]
        if not self._ends([failed.at], begin=True)[failed.at] <= failed.missed <= int(end.offset):
            return False
        if failed.leader_epoch is None:
            return failed.missed != failed.first
        return bool(failed.leader_epoch == end.leader_epoch)  # a leader never cuts what it has written itself

    # --- topics' ids --------------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Asks for the ids of topics of which something came, or that wait to be read; of all, now and then."""
        now = time.monotonic()
        if self._question is not None or now < self._ask_at:
            return
        came, due = self._first.doubtful | self._others.doubtful, self._by_id.due
        if not came and not due:
            return
        named = {name for name in came if not self._by_id.id_of(name)}
        by_id = (came - named) | due
        if now >= self._identify_at:
            self._identify_at = now + IDENTIFY_S
            by_id |= self._by_id.names
        doubts = (self._first.doubts(), self._others.doubts())
        self._question = _Question(now, by_id, named, doubts, self._asked_for(by_id | named))

    def _hear(self) -> None:
        """Takes the answer when it is there."""
        question = self._question
        if question is None or not all(answer.done() for answer in question.answers.values()):
            return
        self._question, now = None, time.monotonic()
        try:
            described = self._compare(question)
        except KafkaError as error:
            self._doubt(question)
            if now - question.asked < _STALE_S:
                self._bear(error, question.asked)
        except Error:
            self._doubt(question)
            raise
        else:
            self._ask_at = now + _PAUSE_PER_PARTITION_S * sum(topic.partitions for topic in described.values())
            self._heard.failure = None
            self._outage.heard()

    def _doubt(self, question: _Question) -> None:
        self._ask_at = time.monotonic() + _ASK_AGAIN_S
        for reader, doubts in zip((self._first, self._others), question.doubts, strict=True):
            reader.doubt(doubts)

    def _compare(self, question: _Question) -> dict[str, Described]:
        """Confirms what came before the question; what is there."""
        described = _present(question.answers)
        present = {name: topic.topic_id for name, topic in described.items()}
        self._by_id.compare(question.by_id, present)
        self._compare_named({name: present[name] for name in question.named & present.keys()})
        for reader, doubts in zip((self._first, self._others), question.doubts, strict=True):
            reader.confirm(doubts)
        return described

    def _compare_named(self, found: Mapping[str, str]) -> None:
        """What is read by its name is returned before this; whoever got it hears at once that it may be of another.

        Of one that is missing librdkafka tells, or `_probe`: one broker may know of it later than another.
        """
        for name, topic_id in found.items():
            if self._reader(name).ids.setdefault(name, topic_id) != topic_id:
                self._check_topics()

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
        told: list[tuple[Any, Any]] = []
        try:
            self._producer.produce(
                partition.topic,
                value,
                key,
                partition.number,
                on_delivery=lambda error, record: told.append((error, record)),
                headers=list(headers),
            )
        except KafkaException as error:
            raise translated(error.args[0]) from error
        except BufferError as error:
            raise KafkaTimeoutError(str(error)) from error
        for wait_s in waits:
            self._producer.poll(min(wait_s, SLICE_S))
            if told:
                return self._delivered(partition, *told[0])
        raise KafkaTimeoutError

    def _delivered(self, partition: Partition, error: Any, record: Any) -> int:
        if error is None:
            if record.offset() < 0:  # it was written by an attempt whose answer was lost
                raise KafkaTimeoutError
            return int(record.offset())
        reason = translated(error)
        if isinstance(reason, UnknownTopicOrPartitionError):
            topic = self._described([partition.topic]).get(partition.topic)
            if topic is not None and partition.number >= topic.partitions:
                raise no_such_partition(partition) from reason
        raise reason

    def close(self) -> None:
        """See Transport."""
        if self._closed:
            return
        self._closed = True
        self._producer.purge()
        self._producer.flush(0)
        for consumer in self._consumers:
            consumer.close()
        del self._admin  # it has no other end


def _result(answer: "Future[Any]") -> Any:
    if not wait([answer], 2 * ANSWER_S).done:  # a TimeoutError may be of the application, which a signal handler raises
        raise KafkaTimeoutError
    try:
        return answer.result()
    except KafkaException as error:
        raise translated(error.args[0]) from error


def _present(answers: Mapping[str, "Future[Any]"]) -> dict[str, Described]:
    """Those of the topics that were asked for that are there; waits for the answers."""
    found = {}
    for name, answer in answers.items():
        with suppress(*_ABSENT):
            topic = _result(answer)
            found[name] = Described(_hexadecimal(topic.topic_id), len(topic.partitions))
    return found


def _hexadecimal(topic_id: Any) -> str:
    """As kafka-python, stamps and grants write it."""
    halves = (topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits())
    return str(UUID(bytes=b"".join((half % (1 << 64)).to_bytes(8, "big") for half in halves)))
