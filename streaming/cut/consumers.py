"""Kafka consumers that outlive a batch: Spark uses its Python workers again, and connections with them."""

from collections.abc import Mapping
from functools import cache

import structlog
from confluent_kafka import KafkaException

from totalorder.errors import EnvironmentProblem, SettingsError
from totalorder.librdkafka_consumer import DECIDED
from totalorder.librdkafka_settings import consumer_settings
from totalorder.streaming.cut.plain import PlainReader
from totalorder.streaming.cut.ranges import ReadPlan
from totalorder.streaming.cut.records import Reader

MAX_READERS = 4
"""Of one process; of more, that which was used longest ago is closed."""
_DEFAULTS = {
    # A fetch that waits at the end of a partition keeps the next one on its connection waiting.
    "fetch.wait.max.ms": "5",
    "fetch.queue.backoff.ms": "5",
    "fetch.error.backoff.ms": "50",
    "reconnect.backoff.max.ms": "1000",
    # What is read ahead, all partitions together, is bounded by these two.
    "queued.max.messages.kbytes": "16384",
    "fetch.max.bytes": "8388608",
    "max.partition.fetch.bytes": "2097152",
    "check.crcs": "true",
    "receive.message.max.bytes": "1000000000",  # must exceed whatever fetch.max.bytes is set to
}
_DECIDED = DECIDED | {"log_level": "0"}  # what is amiss is told by the error of whoever waits in vain
_Key = tuple[str, frozenset[tuple[str, str]]]
_readers: dict[_Key, Reader] = {}


def of(plan: ReadPlan) -> Reader:
    """This process's reader for the plan's connection settings, made at the first call; SettingsError for such as
    cannot be.
    """
    key = (plan.bootstrap_servers, frozenset(plan.kafka.items()))
    reader = _readers.pop(key, None)
    if reader is None:
        while len(_readers) >= MAX_READERS:
            _readers.pop(next(iter(_readers))).close()
        reader = make(client_settings(plan.bootstrap_servers, plan.kafka))
    _readers[key] = reader  # the last is the one used last
    return reader


def client_settings(bootstrap_servers: str, kafka: Mapping[str, str]) -> dict[str, str]:
    """librdkafka's settings of a reader; raises SettingsError for what cannot be."""
    return {**_DEFAULTS, **consumer_settings(bootstrap_servers, kafka), **_DECIDED}


def make(settings: Mapping[str, str]) -> Reader:
    """A fast reader, or a plain one where librdkafka cannot be called directly."""
    if is_fast():
        from totalorder.streaming.cut.fast import FastReader

        return FastReader(settings)
    return plain(settings)


def plain(settings: Mapping[str, str]) -> Reader:
    """A plain reader; SettingsError for what librdkafka refuses."""
    try:
        return PlainReader(settings)
    except KafkaException as error:
        raise SettingsError(f"librdkafka refuses its settings: {error}", remedy="Change them") from error


@cache
def is_fast() -> bool:
    """Whether librdkafka can be called directly by compiled code; where it cannot, a log line says so, once."""
    try:
        from totalorder.streaming.cut import messages

        messages.warm()
    except (EnvironmentProblem, ImportError) as error:
        structlog.get_logger().warning("events are read the slow way", reason=str(error))
        return False
    return True


def close() -> None:
    """Ends all connections of this process."""
    while _readers:
        _readers.popitem()[1].close()
