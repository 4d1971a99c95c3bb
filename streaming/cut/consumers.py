"""Kafka consumers that outlive a batch: Spark uses its Python workers again, and connections with them."""

from collections.abc import Mapping

from totalorder.librdkafka_settings import consumer_settings
from totalorder.streaming.cut.fast import FastReader
from totalorder.streaming.cut.ranges import ReadPlan
from totalorder.streaming.cut.records import Reader

MAX_READERS = 4
"""Of one process; of more, that which was used longest ago is closed."""
_DEFAULTS = {
    "fetch.wait.max.ms": "5",
    "fetch.queue.backoff.ms": "1",
    "fetch.error.backoff.ms": "50",
    "reconnect.backoff.max.ms": "1000",
    "check.crcs": "true",
}
_DECIDED = {
    "group.id": "totalorder",  # librdkafka wants one; it is never joined, nor are positions saved
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "enable.partition.eof": "true",
    "allow.auto.create.topics": "false",
    "log_level": "0",
}
_Key = tuple[str, frozenset[tuple[str, str]]]
_readers: dict[_Key, Reader] = {}


def of(plan: ReadPlan) -> Reader:
    """This process's reader for the plan's connection settings, made at the first call."""
    key = (plan.bootstrap_servers, frozenset(plan.kafka.items()))
    reader = _readers.pop(key, None)
    if reader is None:
        while len(_readers) >= MAX_READERS:
            _readers.pop(next(iter(_readers))).close()
        reader = FastReader(client_settings(plan.bootstrap_servers, plan.kafka))
    _readers[key] = reader  # the last is the one used last
    return reader


def client_settings(bootstrap_servers: str, kafka: Mapping[str, str]) -> dict[str, str]:
    """librdkafka's settings of a reader; raises SettingsError for what cannot be."""
    return {**_DEFAULTS, **consumer_settings(bootstrap_servers, kafka), **_DECIDED}
