"""How long the broker may hold a fetch of events: longer where it asks for many partitions."""

from collections.abc import Callable

import pytest
from kafka import TopicPartition

from totalorder.broker import LocalBroker
from totalorder.subscriber.kafka_python import KafkaPythonTransport
from totalorder.subscriber.kafka_reader import LONGEST_WAIT_MS, fetch_wait_ms
from totalorder.subscriber.transport import Partition


def test_a_fetch_waits_longer_the_more_partitions_it_asks_for() -> None:
    waits_ms = [fetch_wait_ms(50, partitions) for partitions in range(2_000)]
    assert waits_ms == sorted(waits_ms)
    assert (waits_ms[4], waits_ms[250], waits_ms[500], waits_ms[1_000], waits_ms[-1]) == (50, 50, 100, 200, 200)
    assert fetch_wait_ms(300, 4) == fetch_wait_ms(300, 2_000) == 300, "never less than it was told"
    assert waits_ms[-1] == LONGEST_WAIT_MS


@pytest.mark.broker
@pytest.mark.parametrize(
    ("given", "waits_ms"), [({}, [100, 50]), ({"fetch.max.wait.ms": "70"}, [70, 70]), ({"client.id": "x"}, [100, 50])]
)
def test_the_broker_is_asked_to_hold_them_for_that_time(
    broker: LocalBroker, new_topic: Callable[..., str], given: dict[str, str], waits_ms: list[int]
) -> None:
    """As many partitions as are read just now count, and a setting of the user's own is not touched."""
    topic, prompt = new_topic("wide", partitions=500), new_topic("prompt")
    transport = KafkaPythonTransport(broker.bootstrap_servers, given, prompt=[prompt])
    found = []
    try:
        transport.read(Partition(prompt, 0), 0)
        for partition in range(500):
            transport.read(Partition(topic, partition), 0)
        transport.poll(0.1)
        found.append(asked_ms(transport, TopicPartition(topic, 0)))
        for partition in range(4, 500):
            transport.stop(Partition(topic, partition))
        transport.poll(0.1)
        found.append(asked_ms(transport, TopicPartition(topic, 0)))
        assert transport._first.consumer._fetcher.config["fetch_max_wait_ms"] == int(
            given.get("fetch.max.wait.ms", 100)
        )
    finally:
        transport.close()
    assert found == waits_ms


def asked_ms(transport: KafkaPythonTransport, source: TopicPartition) -> int:
    """What the next fetch of events would say."""
    consumer = transport._others.consumer
    assert source in consumer.assignment()
    return int(consumer._fetcher.config["fetch_max_wait_ms"])
