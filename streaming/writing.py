"""Writing single records to the domain's own topics from the driver, where Spark's sink does not."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kafka import KafkaProducer

from totalorder import kafka_clients
from totalorder.config import Settings

OWN_MAX_BYTES = 16 << 20
"""A grant repeats the names of a subscription several times, so it may be larger than the request was."""


@contextmanager
def writer(settings: Settings) -> Iterator[KafkaProducer]:
    """A producer that gives up after `broker_timeout_s`; inside the block Kafka's errors are totalorder's."""
    timeout_ms = round(settings.broker_timeout_s * 1000)
    with (
        kafka_clients.producer(
            settings.bootstrap_servers,
            settings.kafka,
            connect_timeout_s=settings.broker_timeout_s,
            request_timeout_ms=max(1, timeout_ms // 2),
            max_block_ms=timeout_ms,
            max_request_size=OWN_MAX_BYTES,
        ) as producer,
        kafka_clients.kafka_errors(settings.bootstrap_servers),
    ):
        yield producer


def write(settings: Settings, topic: str, value: bytes, headers: Sequence[tuple[str, bytes]] = ()) -> int:
    """Writes a record to partition 0; returns its offset once it is acknowledged. BrokerUnavailable."""
    with writer(settings) as producer:
        sent = producer.send(topic, value=value, headers=list(headers), partition=0)
        return int(sent.get(settings.broker_timeout_s).offset)
