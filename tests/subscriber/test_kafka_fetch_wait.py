"""How long the broker may hold a fetch: longer where it asks for many partitions, and while nothing comes."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition
from waiting import wait_until

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.subscriber.kafka_identities import Place
from totalorder.subscriber.kafka_python import KafkaPythonTransport
from totalorder.subscriber.kafka_reader import IDLE_MS, LONGEST_WAIT_MS, Reader, fetch_wait_ms
from totalorder.subscriber.transport import Partition, Record


def test_a_fetch_waits_longer_the_more_partitions_it_asks_for() -> None:
    waits_ms = [fetch_wait_ms(50, partitions) for partitions in range(2_000)]
    assert waits_ms == sorted(waits_ms)
    assert (waits_ms[4], waits_ms[250], waits_ms[500], waits_ms[1_000], waits_ms[-1]) == (50, 50, 100, 200, 200)
    assert fetch_wait_ms(300, 4) == fetch_wait_ms(300, 2_000) == 300, "never less than it was told"
    assert waits_ms[-1] == LONGEST_WAIT_MS


A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def consumer(config: dict[str, Any], fetchable: list[TopicPartition]) -> Any:
    """One whose next fetch would ask for these."""
    fetcher = SimpleNamespace(
        config=config,
        _fetchable_partitions=lambda: fetchable,
        _completed_fetches=[],
        _nodes_with_pending_fetch_requests=set(),
    )
    return SimpleNamespace(_fetcher=fetcher, assign=lambda _: None, seek=lambda *_: None, poll=lambda **_: {})


@pytest.mark.parametrize("is_idle", [True, False])
@pytest.mark.parametrize("rests", [True, False])
@pytest.mark.parametrize("fetchable", [[A, B], [A]])
@pytest.mark.parametrize("paused", [[], [Place(*B)]])
def test_only_a_fetch_that_asks_for_all_that_is_read_is_held_for_long(
    is_idle: bool, rests: bool, fetchable: list[TopicPartition], paused: list[Place]
) -> None:
    """What is left out of it, since it came just before, would wait for its end."""
    config = {"fetch_max_wait_ms": 7, "fetch_min_bytes": 9}
    one = consumer(config, fetchable)
    reader = Reader(one, lambda: None, most=1, most_bytes=1, wait_ms=50, rests=rests)
    for at in (A, B):
        reader.read(Place(*at), 0)
    for place in paused:
        reader.pause(place)
    reader.is_idle = is_idle
    reader.poll(0)
    assert one._fetcher._fetchable_partitions() == fetchable
    is_long = is_idle and rests and fetchable == [A, B] and not paused
    assert config == {
        "fetch_max_wait_ms": IDLE_MS if is_long else 50,
        "fetch_min_bytes": 1 if is_long else 9,
    }


def test_another_consumer_is_asked_alike() -> None:
    config = {"fetch_max_wait_ms": 7, "fetch_min_bytes": 9}
    another = consumer(config, [])
    one = consumer({"fetch_min_bytes": 9}, [])
    one.close = lambda **_: None
    reader = Reader(one, lambda: another, most=1, most_bytes=1, wait_ms=60)
    reader.renew()
    another._fetcher._fetchable_partitions()
    assert config == {"fetch_max_wait_ms": 60, "fetch_min_bytes": 9}


def test_no_more_than_a_fetch_is_asked_for_until_it_is_answered() -> None:
    one, polled = consumer({"fetch_min_bytes": 9}, []), list[int]()

    def poll(timeout_ms: int, max_records: int) -> dict[TopicPartition, list[Any]]:
        polled.append(timeout_ms)
        one._fetcher._nodes_with_pending_fetch_requests = {1, 2}
        return {}

    one.poll = poll
    reader = Reader(one, lambda: None, most=1, most_bytes=1)
    reader.read(Place(*A), 0)

    def polls(*timeouts_s: float) -> list[int]:
        polled.clear()
        for timeout_s in timeouts_s:
            reader.poll(timeout_s)
        return polled

    assert polls(0, 0, 0.1, 0) == [0, 100]
    one._fetcher._nodes_with_pending_fetch_requests = {1}  # nothing was in the answer
    assert polls(0, 0) == [0]
    one._fetcher._completed_fetches = ["something"]
    assert polls(0, 0) == [0, 0]
    one._fetcher._completed_fetches = []
    reader.read(Place(*B), 0)
    assert polls(0, 0) == [0]


LIVELY, IDLE = True, False


@pytest.mark.broker
@pytest.mark.parametrize(
    ("given", "lively", "waits_ms"),
    [
        ({}, LIVELY, [100, 50]),
        ({"fetch.max.wait.ms": "70"}, LIVELY, [70, 70]),
        ({"client.id": "x"}, LIVELY, [100, 50]),
        ({}, IDLE, [IDLE_MS, IDLE_MS]),
        ({"fetch.max.wait.ms": "70"}, IDLE, [70, 70]),
        ({"fetch.min.bytes": "2"}, IDLE, [100, 50]),
    ],
)
def test_the_broker_is_asked_to_hold_them_for_that_time(
    broker: LocalBroker,
    new_topic: Callable[..., str],
    given: dict[str, str],
    lively: bool,
    waits_ms: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many partitions as are read just now count, and a setting of the user's own is not touched."""
    monkeypatch.setattr("totalorder.subscriber.kafka_python.is_lively", lambda _: lively)
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
        prompt_ms = IDLE_MS if IDLE_MS in waits_ms else 100
        assert transport._first.consumer._fetcher.config["fetch_max_wait_ms"] == int(
            given.get("fetch.max.wait.ms", prompt_ms)
        )
    finally:
        transport.close()
    assert found == waits_ms


@pytest.mark.broker
def test_what_comes_while_a_fetch_is_held_ends_it(
    broker: LocalBroker, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long that is to be held, and however little came."""
    monkeypatch.setattr("totalorder.subscriber.kafka_python.is_lively", lambda _: False)
    monkeypatch.setattr("totalorder.subscriber.kafka_reader.IDLE_MS", 20_000)
    topic, prompt = new_topic("events"), new_topic("prompt")
    transport = KafkaPythonTransport(broker.bootstrap_servers, prompt=[prompt])
    found: list[Record] = []

    def has_come() -> bool:
        found.extend(transport.poll(1))
        return bool(found)

    try:
        with kafka_clients.producer(broker.bootstrap_servers) as producer:
            for name in (topic, prompt):
                transport.read(Partition(name, 0), 0)
            assert transport.poll(0.5) == []
            for name in (topic, prompt):
                producer.send(name, value=b"one", partition=0).get(10)
                wait_until(has_come, "a record came", bound_s=15)
                assert [(record.topic, record.value) for record in found] == [(name, b"one")]
                found.clear()
    finally:
        transport.close()


def asked_ms(transport: KafkaPythonTransport, source: TopicPartition) -> int:
    """What the next fetch of events would say."""
    consumer = transport._others.consumer
    assert source in consumer.assignment()
    return int(consumer._fetcher.config["fetch_max_wait_ms"])
