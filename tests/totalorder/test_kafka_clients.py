"""Settings in Java's and librdkafka's names become kafka-python's; what cannot be is refused by name."""

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.errors import BrokerUnavailable, SettingsError
from totalorder.kafka_settings import Role, check_settings, client_settings, server_list

PLAIN_JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="us\\"er" password="p;w=1";'


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("security.protocol", "sasl_ssl", {"security_protocol": "SASL_SSL"}),
        ("kafka.client.id", "till", {"client_id": "till"}),
        ("request.timeout.ms", "40000", {"request_timeout_ms": 40_000}),
        ("sasl.mechanism", "SCRAM-SHA-512", {"sasl_mechanism": "SCRAM-SHA-512"}),
        ("sasl.mechanisms", "PLAIN", {"sasl_mechanism": "PLAIN"}),
        ("sasl.username", "u", {"sasl_plain_username": "u"}),
        ("sasl.password", "p", {"sasl_plain_password": "p"}),
        ("sasl.jaas.config", PLAIN_JAAS, {"sasl_plain_username": 'us"er', "sasl_plain_password": "p;w=1"}),
        ("ssl.endpoint.identification.algorithm", "", {"ssl_check_hostname": False}),
        ("ssl.endpoint.identification.algorithm", "HTTPS", {"ssl_check_hostname": True}),
        ("ssl.key.password", "secret", {"ssl_password": "secret"}),
        ("fetch.min.bytes", "7", {"fetch_min_bytes": 7}),
        ("fetch.wait.max.ms", "5", {"fetch_max_wait_ms": 5}),
        ("receive.buffer.bytes", "65536", {"receive_buffer_bytes": 65_536}),
        ("check.crcs", "false", {"check_crcs": False}),
    ],
)
def test_translation_for_a_consumer(name: str, value: str, expected: dict[str, Any]) -> None:
    assert client_settings({name: value}, "consumer") == expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("linger.ms", "5", {"linger_ms": 5}),
        ("compression.type", "zstd", {"compression_type": "zstd"}),
        ("compression.type", "none", {"compression_type": None}),
        ("max.request.size", "2000000", {"max_request_size": 2_000_000}),
        ("fetch.min.bytes", "7", {}),
    ],
)
def test_translation_for_a_producer(name: str, value: str, expected: dict[str, Any]) -> None:
    assert client_settings({name: value}, "producer") == expected


@pytest.mark.parametrize("role", ["consumer", "producer", "admin"])
def test_pem_stores(tmp_path: Path, role: Role) -> None:
    pem = tmp_path / "ca.pem"
    pem.write_text("")
    keystore = tmp_path / "client.store"
    keystore.write_text("")
    settings = {
        "ssl.truststore.location": str(pem),
        "ssl.keystore.location": str(keystore),
        "ssl.keystore.type": "pem",
    }
    assert client_settings(settings, role) == {"ssl_cafile": str(pem), "ssl_certfile": str(keystore)}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group.id": "g"}, r"kafka\.group\.id cannot be set: .*assigns them itself"),
        ({"kafka.enable.auto.commit": "true"}, "cannot be set"),
        ({"isolation.level": "read_uncommitted"}, "aborted transactions"),
        ({"bootstrap.servers": "x:1"}, "bootstrap_servers"),
        ({"securty.protocol": "SSL"}, r"Did you mean kafka\.security\.protocol\?"),
        ({"ssl.trustore.location": "x"}, r"Did you mean kafka\.ssl\.truststore\.location\?"),
        ({"zzz": "1"}, "no Kafka client setting"),
        ({"api.version": "1"}, "no Kafka client setting"),
        ({"request.timeout.ms": "soon"}, "not a whole number"),
        ({"check.crcs": "maybe"}, "not true or false"),
        ({"ssl.truststore.location": "/store.jks"}, "reads no other key store"),
        ({"ssl.ca.location": "/no/such/ca.pem"}, "no file /no/such/ca.pem"),
        ({"ssl.endpoint.identification.algorithm": "dns"}, "unknown"),
        ({"sasl.jaas.config": "com.example.OtherLoginModule required;"}, "jaas.config is not understood"),
        ({"sasl.jaas.config": 'x.PlainLoginModule required username="u";'}, "jaas.config is not understood"),
        (
            {"security.protocol": "SASL-SSL"},
            r"kafka\.security\.protocol='SASL-SSL'.*PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL",
        ),
        ({"security.protocol": "SSLL"}, "security.protocol='SSLL' is not known here"),
        ({"security.protocol": ""}, "security.protocol='' is not known here"),
        ({"sasl.mechanism": "plain"}, "sasl.mechanism='plain'.*Use one of PLAIN, SCRAM-SHA-256"),
        ({"sasl.mechanisms": "SCRAM-SHA-1"}, "sasl.mechanisms='SCRAM-SHA-1'"),
        ({"compression.type": "zip"}, "compression.type='zip'.*none, gzip, snappy, lz4, zstd"),
        ({"compression.codec": "ZSTD"}, "compression.codec='ZSTD'"),
        ({"client.dns.lookup": "all"}, "client.dns.lookup='all'.*use_all_dns_ips"),
        ({"ssl.truststore.type": "JKS", "ssl.truststore.location": "ca.pem"}, "truststore.type='JKS' is not PEM"),
        ({"ssl.keystore.type": "PEN"}, "keystore.type='PEN' is not PEM"),
    ],
)
@pytest.mark.parametrize("role", ["consumer", "producer", "admin"])
def test_refused_settings(role: Role, settings: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        client_settings(settings, role)


LOGIN = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": PLAIN_JAAS}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            LOGIN | {"security.protocol": "PLAINTEXT"},
            r"kafka\.sasl\.mechanism is given, and .*PLAINTEXT logs nobody in",
        ),
        ({"sasl.jaas.config": PLAIN_JAAS}, r"kafka\.sasl\.jaas\.config is given, and .*PLAINTEXT logs nobody in"),
        ({"security.protocol": "SSL", "sasl.username": "u"}, r"sasl\.username is given, and .*=SSL logs nobody in"),
        ({"ssl.ca.location": __file__}, r"ssl\.ca\.location is given, and .*PLAINTEXT encrypts nothing"),
        (LOGIN | {"security.protocol": "SASL_PLAINTEXT", "ssl.certificate.location": __file__}, "encrypts nothing"),
        ({"security.protocol": "SASL_SSL"}, r"there is no kafka\.sasl\.mechanism"),
        ({"security.protocol": "sasl_ssl", "sasl.mechanism": "PLAIN", "sasl.username": "u"}, "needs a user and a pass"),
    ],
)
@pytest.mark.parametrize("make", [kafka_clients.consumer, kafka_clients.producer, kafka_clients.admin])
def test_settings_that_cannot_be_meant_together(make: Any, settings: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        make("127.0.0.1:1", settings, connect_timeout_s=0.1)


def test_settings_that_belong_together() -> None:
    check_settings({})
    check_settings(LOGIN)
    check_settings({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"})
    check_settings({"kafka.security.protocol": "ssl", "ssl.ca.location": __file__})


@pytest.mark.parametrize("given", [["localhost:9092"], None, 9092])
def test_addresses_are_one_text(given: Any) -> None:
    with pytest.raises(SettingsError, match=r"bootstrap_servers is .*and no text\. Write all of them in one text"):
        server_list(given)


def test_settings_are_a_table() -> None:
    with pytest.raises(SettingsError, match=r"kafka is .*and no table"):
        kafka_clients.consumer("127.0.0.1:1", ["security.protocol=SSL"])  # type: ignore[arg-type]


@pytest.mark.parametrize("servers", ["", "localhost", "localhost:", ":9092", "localhost:x", "a:1,b", "localhost:70000"])
def test_bad_addresses_are_refused(servers: str) -> None:
    with pytest.raises(SettingsError, match="bootstrap_servers"):
        server_list(servers)


def test_addresses() -> None:
    assert server_list("a:1, b:2,") == ["a:1", "b:2"]


@pytest.mark.parametrize("make", [kafka_clients.consumer, kafka_clients.producer, kafka_clients.admin])
def test_absent_broker_is_an_error_in_time_that_leaves_no_thread(make: Any) -> None:
    before = threading.active_count()
    with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1 could be used within 0\.3 s .*ECONNREFUSED"):
        make("127.0.0.1:1", connect_timeout_s=0.3)
    assert threading.active_count() == before


@pytest.mark.timeout(60)
@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
@pytest.mark.parametrize("make", [kafka_clients.consumer, kafka_clients.producer, kafka_clients.admin])
def test_one_that_takes_connections_and_says_nothing_is_given_up_in_time(make: Any, protocol: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        servers = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(BrokerUnavailable, match=r"could be used within 0\.3 s"):
            make(servers, {"security.protocol": protocol}, connect_timeout_s=0.3)


@pytest.mark.broker
def test_settings_that_do_not_fit_together_are_a_settings_error(broker: LocalBroker) -> None:
    with pytest.raises(SettingsError, match="request_timeout_ms"):
        kafka_clients.consumer(broker.bootstrap_servers, {"request.timeout.ms": "1"})


@pytest.mark.broker
def test_clients_have_safe_defaults(broker: LocalBroker) -> None:
    producer = kafka_clients.producer(broker.bootstrap_servers)
    consumer = kafka_clients.consumer(broker.bootstrap_servers, {"max.poll.records": "7"})
    assert producer.config["acks"] == -1
    assert producer.config["enable_idempotence"] is True
    assert consumer.config["isolation_level"] == "read_committed"
    assert consumer.config["group_id"] is None
    assert consumer.config["max_poll_records"] == 7
    producer.close()
    consumer.close()
