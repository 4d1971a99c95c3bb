"""What a broker keeps of stamps: a topic like the domain's own, written as the Spark job writes it."""

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from kafka import KafkaAdminClient

from totalorder import kafka_clients
from totalorder.config import make_settings
from totalorder.sequencer.wire.codec import WireRecord
from totalorder.streaming.preflight import own_topics
from totalorder.streaming.query import sink_options
from totalorder.streaming.topics import Topics

_DECIDED_BY_CLIENTS = {"kafka.bootstrap.servers", "kafka.acks", "kafka.enable.idempotence"}
"""kafka_clients sets these itself, to what the sink has."""
_TIMEOUT_S = 60


class StampsLog:
    """The stamps topic of a domain of its own, and its size in bytes."""

    def __init__(self, bootstrap_servers: str, domain: str) -> None:
        """Makes the topic as the job's preflight does, and a producer with the settings of its sink."""
        settings = make_settings(
            domain=domain, bootstrap_servers=bootstrap_servers, topics=("events",), checkpoint_dir="unused"
        )
        self._topic = settings.own_topics.stamps
        topics = Topics(settings)
        topics.create(topic for topic in own_topics(settings) if topic.name == self._topic)
        topics.close()
        options = sink_options(settings)
        sink = {name: value for name, value in options.items() if name not in _DECIDED_BY_CLIENTS}
        self._admin = kafka_clients.admin(bootstrap_servers)
        self._producer = kafka_clients.producer(bootstrap_servers, sink)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._producer.close()
        self._admin.close()

    def write(self, batch: Iterable[tuple[int, WireRecord]]) -> None:
        """Sends the records (stamps partition, record) of one batch, and waits until the broker has them all."""
        sent = [
            self._producer.send(self._topic, value=record.value, headers=list(record.headers), partition=partition)
            for partition, record in batch
        ]
        self._producer.flush(_TIMEOUT_S)
        for future in sent:
            future.get(_TIMEOUT_S)

    def size(self) -> int:
        """Bytes of the topic's log, all partitions: batch headers, record headers and values."""
        return log_bytes(self._admin, self._topic)


def log_bytes(admin: KafkaAdminClient, name: str) -> int:
    """What the brokers keep of a topic, all partitions."""
    return sum(
        partition["partition_size"]
        for broker in admin.describe_log_dirs([name])
        for directory in broker["log_dirs"]
        for topic in directory["topics"]
        if topic["name"] == name
        for partition in topic["partitions"]
    )
