"""Cuts on a real broker: there in order once they are acknowledged, whatever the broker does meanwhile."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from frozen import frozen
from kafka import TopicPartition
from secure_broker import PASSWORD, USER, SecureBroker

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.errors import BrokerUnavailable, Error, SettingsError
from totalorder.sequencer.wire.codec import WireRecord
from totalorder.sequencer.wire.cuts import Cut, CutEncoder, CutsAssembler
from totalorder.sequencer.wire.limits import MAX_ROW_BYTES
from totalorder.sequencer.wire.stamps import Source
from totalorder.streaming.cut.publisher import Publisher

pytestmark = pytest.mark.broker
A = Source("a", "id-a", 0)


def cut(number: int) -> Cut:
    return Cut.of(domain="d", incarnation=1, cut=number, sources=(A,), begins=[number - 1], ends=[number], looks=[])


def there(broker: LocalBroker, topic: str) -> list[int]:
    """The numbers of the cuts on the topic."""
    place, assembler = TopicPartition(topic, 0), CutsAssembler(domain="d")
    found: list[int] = []
    with kafka_clients.consumer(broker.bootstrap_servers) as consumer:
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        end = consumer.end_offsets([place])[place]
        deadline = time.monotonic() + 30
        while consumer.position(place) < end:
            assert time.monotonic() < deadline
            for records in consumer.poll(timeout_ms=500).values():
                for record in records:
                    found += [one.cut for one in assembler.add(record.value, dict(record.headers))]
    return found


@pytest.fixture
def publisher(broker: LocalBroker, new_topic: Callable[..., str]) -> Iterator[Publisher]:
    made = Publisher(broker.bootstrap_servers, {"client.id": "it", "linger.ms": "500"}, new_topic("d.cuts"))
    yield made
    made.close()


def test_what_is_acknowledged_is_there_in_order(broker: LocalBroker, publisher: Publisher) -> None:
    encoder = CutEncoder(key_every=3)
    publisher.await_acknowledged(0)
    for number in range(1, 11):
        publisher.send(encoder.encode(cut(number)))
        if number % 2:
            publisher.await_acknowledged(30)
    publisher.await_acknowledged(30)
    assert there(broker, publisher._topic) == list(range(1, 11))


def test_the_largest_record_is_taken(broker: LocalBroker, new_topic: Callable[..., str]) -> None:
    topic = new_topic("large.cuts", max_message_bytes=str(16 << 20))
    publisher = Publisher(broker.bootstrap_servers, {}, topic)
    publisher.send(WireRecord(value=np.random.default_rng(1).bytes(MAX_ROW_BYTES), headers=()))
    publisher.await_acknowledged(30)
    publisher.close()


def test_a_broker_that_stands_still_is_waited_for_as_long_as_is_said_and_then_again(
    broker: LocalBroker, publisher: Publisher
) -> None:
    publisher.send(CutEncoder().encode(cut(1)))
    publisher.await_acknowledged(30)
    with frozen(broker):
        publisher.send(CutEncoder().encode(cut(2)))
        with pytest.raises(BrokerUnavailable, match=r"did not acknowledge a record of d\.cuts.* within 0\.3 s"):
            publisher.await_acknowledged(0.3)
    publisher.await_acknowledged(60)
    assert there(broker, publisher._topic) == [1, 2]


def test_an_absent_broker_is_named() -> None:
    publisher = Publisher("127.0.0.1:1", {}, "d.cuts")
    publisher.send(CutEncoder().encode(cut(1)))
    with pytest.raises(BrokerUnavailable, match=r"last it was said: .*127\.0\.0\.1:1"):
        publisher.await_acknowledged(2)
    publisher.close()


def test_a_record_that_the_broker_refuses_stops_what_comes_behind_it(
    broker: LocalBroker, new_topic: Callable[..., str]
) -> None:
    publisher = Publisher(broker.bootstrap_servers, {}, new_topic("small.cuts", max_message_bytes="1000"))
    publisher.send(WireRecord(value=np.random.default_rng(1).bytes(10_000), headers=()))
    with pytest.raises(Error, match=r"could not be written to small\.cuts"):
        publisher.await_acknowledged(30)
    with pytest.raises(Error, match=r"could not be written to small\.cuts"):
        publisher.send(CutEncoder().encode(cut(1)))
    publisher.close()


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    with SecureBroker(data_dir=tmp_path_factory.mktemp("secure")) as running:
        yield running


def test_login_and_tls_as_the_java_client_names_them(secure: SecureBroker, tmp_path: Path) -> None:
    with kafka_clients.admin(secure.bootstrap_servers) as admin:
        admin.create_topics({"d.cuts": {"num_partitions": 1}})
        admin.wait_for_topics(["d.cuts"])
    kafka = {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(secure.certificate),
        "sasl.mechanism": "PLAIN",
        "sasl.plain.username": USER,
        "sasl.plain.password": PASSWORD,
    }
    publisher = Publisher(secure.both, kafka, "d.cuts")
    publisher.send(CutEncoder().encode(cut(1)))
    publisher.await_acknowledged(30)
    publisher.close()
    wrong = Publisher(secure.both, kafka | {"sasl.plain.password": "wrong"}, "d.cuts")
    wrong.send(CutEncoder().encode(cut(2)))
    with pytest.raises(SettingsError, match="refused the login"):
        wrong.await_acknowledged(30)
    wrong.close()
    assert there(secure, "d.cuts") == [1]


def test_a_value_that_cannot_be_is_told() -> None:
    """The source's process makes it first: else the job would end with Python's own words."""
    with pytest.raises(SettingsError, match=r"librdkafka refuses its settings: .*fetch\.min\.bytes"):
        Publisher("127.0.0.1:1", {"fetch.min.bytes": "many"}, "d.cuts")


def test_an_unknown_setting_is_named() -> None:
    with pytest.raises(SettingsError, match=r"kafka\.lingr\.ms is no setting"):
        Publisher("127.0.0.1:1", {"lingr.ms": "1"}, "d.cuts")
