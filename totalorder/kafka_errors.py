"""Which errors of kafka-python are an outage: they pass by themselves, and the same question may be asked again.

A broker that stands still, restarts, elects a leader or has not heard the news says so in two dozen ways; each of them
is retriable by Kafka's own table of errors.
"""

from kafka.errors import (
    BrokerNotAvailableError,
    KafkaConnectionError,
    KafkaTimeoutError,
    NodeNotReadyError,
    RequestTimedOutError,
    RetriableError,
    UnknownBrokerIdError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    for_code,
)

from totalorder.errors import BrokerUnavailable

_SILENT = (KafkaConnectionError, KafkaTimeoutError, NodeNotReadyError, RequestTimedOutError)
_NO_CONTROLLER = "active controller"
"""In kafka-python's words, a RuntimeError, for a controller that has just been replaced twice."""


def is_outage(error: BaseException) -> bool:
    """Whether an error of kafka-python passes with time; a topic that is not there does not come by waiting."""
    if isinstance(error, UnknownTopicOrPartitionError | UnknownTopicIdError):
        return False
    if isinstance(error, RetriableError | BrokerNotAvailableError | UnknownBrokerIdError):
        return True
    return isinstance(error, RuntimeError) and _NO_CONTROLLER in str(error)


def raise_for_code(code: int, about: str) -> None:
    """Raises kafka-python's error for an error code that stands in an answer; 0 is none."""
    if code:
        raise for_code(code)(about)


def unavailable(bootstrap_servers: str, error: Exception) -> BrokerUnavailable:
    """What to tell about an outage."""
    silent = isinstance(error, _SILENT)
    did = "did not answer in time" if silent else "cannot answer this just now"
    said = str(error) if silent else f"{type(error).__name__}: {error.args[0] if error.args else 'no more is known'}"
    return BrokerUnavailable(
        f"The Kafka broker at {bootstrap_servers} {did} ({said})", remedy="Check that it runs and can be reached."
    )
