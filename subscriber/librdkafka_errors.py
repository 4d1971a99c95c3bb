"""What librdkafka says when something is amiss, as kafka-python's errors: what passes by itself is decided by those."""

from typing import Any

from confluent_kafka import KafkaError as Told
from kafka.errors import (
    CorruptRecordError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    OffsetOutOfRangeError,
    SaslAuthenticationFailedError,
    UnknownTopicOrPartitionError,
    UnsupportedCodecError,
    for_code,
)

END_OF_PARTITION, OFFSET_MISSING = int(Told._PARTITION_EOF), int(Told._AUTO_OFFSET_RESET)
_LEAST_OF_BROKERS = -1
"""What is less is librdkafka's own."""
_OWN: dict[int, type[KafkaError]] = {
    Told._ALL_BROKERS_DOWN: KafkaConnectionError,
    Told._RESOLVE: KafkaConnectionError,
    Told._SSL: KafkaConnectionError,
    Told._TRANSPORT: KafkaConnectionError,
    Told._UNKNOWN_BROKER: KafkaConnectionError,
    Told._AUTHENTICATION: SaslAuthenticationFailedError,
    Told._IN_PROGRESS: KafkaTimeoutError,
    Told._MSG_TIMED_OUT: KafkaTimeoutError,
    Told._NOENT: LeaderNotAvailableError,
    Told._PREV_IN_PROGRESS: KafkaTimeoutError,
    Told._QUEUE_FULL: KafkaTimeoutError,
    Told._RETRY: KafkaTimeoutError,
    Told._TIMED_OUT: KafkaTimeoutError,
    Told._TIMED_OUT_QUEUE: KafkaTimeoutError,
    Told._WAIT_CACHE: KafkaTimeoutError,
    Told._UNKNOWN_PARTITION: UnknownTopicOrPartitionError,
    Told._UNKNOWN_TOPIC: UnknownTopicOrPartitionError,
    Told._AUTO_OFFSET_RESET: OffsetOutOfRangeError,
    Told._LOG_TRUNCATION: OffsetOutOfRangeError,
    Told._BAD_COMPRESSION: UnsupportedCodecError,
    Told._BAD_MSG: CorruptRecordError,
    Told._NOT_IMPLEMENTED: UnsupportedCodecError,
}


def translated(error: Any) -> KafkaError:
    """kafka-python's error for one of confluent-kafka's, with its text."""
    code, text = error.code(), str(error.str())
    if code >= _LEAST_OF_BROKERS:
        found: KafkaError = for_code(code)(text)
        return found
    return _OWN.get(code, KafkaError)(text)


class Heard:
    """What the clients of one transport said last of their connections, for whoever waits in vain."""

    def __init__(self) -> None:
        self.failure: str | None = None

    def note(self, error: Any) -> None:
        """Takes what is amiss with a client as a whole; most of it passes."""
        if error.code() != Told._ALL_BROKERS_DOWN or self.failure is None:  # that only counts what was said before
            self.failure = str(error.str())
