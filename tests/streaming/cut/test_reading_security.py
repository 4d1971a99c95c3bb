"""Reading from a broker that asks for a login, for TLS, and for both; settings in Java's names."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from cut_world import chunks, plan_of, rows_of, whole
from secure_broker import PASSWORD, SCRAM, USER, SecureBroker

from totalorder import kafka_clients
from totalorder.errors import BrokerUnavailable, SettingsError
from totalorder.sequencer.wire.codec import WireRecord
from totalorder.streaming.cut import consumers
from totalorder.streaming.cut.fast import FastReader
from totalorder.streaming.cut.plain import PlainReader
from totalorder.streaming.cut.publisher import Publisher
from totalorder.streaming.cut.questions import Questions
from totalorder.streaming.cut.records import Reader

pytestmark = pytest.mark.broker
QUOTED = PASSWORD.replace("\\", "\\\\").replace("'", "\\'")
TOPIC = "secured"
LONG_S = 1_000.0


@pytest.fixture(scope="module")
def secure() -> Iterator[SecureBroker]:
    with SecureBroker() as running:
        with kafka_clients.admin(running.bootstrap_servers) as admin:
            admin.create_topics({name: {"num_partitions": 1} for name in (TOPIC, "scram.cuts")})
            admin.wait_for_topics([TOPIC, "scram.cuts"])
        producer: Any = Producer({"bootstrap.servers": running.bootstrap_servers})
        producer.produce(TOPIC, b"one", partition=0)
        assert producer.flush(60) == 0
        yield running


@pytest.fixture(params=[PlainReader, FastReader])
def kind(request: pytest.FixtureRequest) -> Callable[[dict[str, str]], Reader]:
    return request.param  # type: ignore[no-any-return]


def jaas(quoted: str = QUOTED) -> dict[str, str]:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return {"sasl.jaas.config": f"{module} required username='{USER}' password='{quoted}';"}


def scram(password: str) -> dict[str, str]:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    line = f"{module} required username='bob' password='{password}';"
    return {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": SCRAM, "sasl.jaas.config": line}


def login(protocol: str = "SASL_PLAINTEXT", quoted: str = QUOTED) -> dict[str, str]:
    return {"security.protocol": protocol, "sasl.mechanism": "PLAIN"} | jaas(quoted)


def read(kind: Callable[[dict[str, str]], Reader], servers: str, kafka: dict[str, str], silence_s: float) -> int:
    reader = kind(consumers.client_settings(servers, kafka))
    try:
        return len(rows_of(chunks(plan_of(servers, [whole(TOPIC, 0, 0, 1)], kafka=kafka, silence_s=silence_s), reader)))
    finally:
        reader.close()


def test_what_fits_reads(kind: Callable[[dict[str, str]], Reader], secure: SecureBroker) -> None:
    pem = str(secure.certificate)
    trusted = [
        {"ssl.truststore.location": pem},
        {"ssl.truststore.location": pem, "ssl.truststore.type": "PEM"},
        {"ssl.truststore.certificates": secure.certificate.read_text(encoding="utf-8")},
        {"ssl.ca.location": pem},
        {"ssl.cafile": pem},
    ]
    plain = {"security.protocol": "sasl_plaintext", "sasl.mechanisms": "PLAIN"}
    assert read(kind, secure.login, login(), LONG_S) == 1
    for user, password in (("sasl.username", "sasl.password"), ("sasl.plain.username", "sasl.plain.password")):
        assert read(kind, secure.login, plain | {user: USER, password: PASSWORD}, LONG_S) == 1
    for store in trusted:
        assert read(kind, secure.tls, {"security.protocol": "SSL"} | store, LONG_S) == 1
        assert read(kind, secure.both, login("SASL_SSL") | store, LONG_S) == 1


def test_scram_reads_looks_and_writes(kind: Callable[[dict[str, str]], Reader], secure: SecureBroker) -> None:
    """The looker's questions go by kafka-python, the rest by librdkafka."""
    secure.add_scram_user("bob", "s3cret word")
    given = scram("s3cret word")
    asked = Questions(secure.login, given, timeout_s=30)
    assert asked.ends([(TOPIC, 0)]).tolist() == [1]
    asked.close()
    assert read(kind, secure.login, given, LONG_S) == 1
    publisher = Publisher(secure.login, given, "scram.cuts")
    publisher.send(WireRecord(value=b"cut", headers=()))
    publisher.await_acknowledged(30)
    publisher.close()
    with pytest.raises(SettingsError, match="refused the login"):
        read(kind, secure.login, scram("wrong"), LONG_S)


def test_a_key_store_is_read(kind: Callable[[dict[str, str]], Reader], secure: SecureBroker) -> None:
    """The broker asks for no client's certificate: what can be seen is that the file opens by its password alone."""
    settings = {"security.protocol": "SSL", "ssl.truststore.location": str(secure.certificate)}
    settings |= {"ssl.keystore.location": str(secure.data_dir / "broker.p12")}
    assert read(kind, secure.tls, settings | {"ssl.keystore.password": "changeit"}, LONG_S) == 1
    if kind is FastReader:
        with pytest.raises(SettingsError, match="librdkafka refuses its settings: "):
            read(kind, secure.tls, settings | {"ssl.keystore.password": "wrong"}, LONG_S)


def test_a_wrong_password_is_told_at_once(kind: Callable[[dict[str, str]], Reader], secure: SecureBroker) -> None:
    with pytest.raises(SettingsError, match=r"refused the login: .*Invalid username or password"):
        read(kind, secure.login, login(quoted="wrong"), LONG_S)


def test_a_certificate_that_nobody_trusts(kind: Callable[[dict[str, str]], Reader], secure: SecureBroker) -> None:
    with pytest.raises(BrokerUnavailable, match=r"sent nothing .*secured\[0\] 0 to 1; last it was said: .*SSL"):
        read(kind, secure.tls, {"security.protocol": "SSL"}, 3.0)
