"""Logins and TLS against a real broker: what fits connects, and what cannot pass is told at once and by its reason."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from secure_broker import PASSWORD, USER, SecureBroker

from totalorder import kafka_clients
from totalorder.errors import BrokerUnavailable, SettingsError
from totalorder.subscriber import Subscriber
from totalorder.subscriber.clients import CLIENTS, Client, transport_of
from totalorder.subscriber.transport import Partition

pytestmark = pytest.mark.broker
QUOTED = PASSWORD.replace("\\", "\\\\").replace("'", "\\'")
LONG_S = 60.0
MADE = [kafka_clients.consumer, kafka_clients.producer, kafka_clients.admin]


@pytest.fixture(scope="module")
def secure() -> Iterator[SecureBroker]:
    with SecureBroker() as running:
        yield running


def login(quoted: str = QUOTED, protocol: str = "SASL_PLAINTEXT", mechanism: str = "PLAIN") -> dict[str, str]:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    line = f"{module} required username='{USER}' password='{quoted}';"
    return {"security.protocol": protocol, "sasl.mechanism": mechanism, "sasl.jaas.config": line}


def tls(secure: SecureBroker) -> dict[str, str]:
    return {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(secure.certificate)}


@pytest.mark.parametrize("make", MADE)
def test_what_fits_connects(secure: SecureBroker, make: Any) -> None:
    make(secure.login, login()).close()
    make(secure.tls, {"security.protocol": "SSL"} | tls(secure)).close()
    make(secure.both, login(protocol="sasl_ssl") | tls(secure)).close()


def refusal(servers: str, settings: dict[str, str], make: Any = kafka_clients.consumer) -> str:
    """What is told at once, though there would be much time to try again."""
    begun = time.monotonic()
    with pytest.raises(SettingsError) as told:
        make(servers, settings, connect_timeout_s=LONG_S)
    assert time.monotonic() - begun < LONG_S / 2
    return str(told.value)


@pytest.mark.parametrize("make", MADE)
def test_a_wrong_password_is_told_at_once(secure: SecureBroker, make: Any) -> None:
    for servers, settings in (
        (secure.login, login("wrong")),
        (secure.both, login("wrong", "SASL_SSL") | tls(secure)),
    ):
        said = refusal(servers, settings, make)
        assert f"{servers} refused the login: Authentication failed: Invalid username or password. Correct" in said


@pytest.mark.parametrize("client", CLIENTS)
def test_a_subscriber_is_told_of_its_wrong_password(secure: SecureBroker, client: Client) -> None:
    with pytest.raises(SettingsError, match="refused the login: Authentication failed"):
        Subscriber(["orders"], id="s", domain="d", bootstrap_servers=secure.login, kafka=login("wrong"), client=client)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_subscribers_transport_reads_writes_and_asks_behind_tls_and_a_login(
    secure: SecureBroker, client: Client
) -> None:
    with kafka_clients.admin(secure.bootstrap_servers) as admin:
        admin.create_topics({client: {"num_partitions": 1}})
        admin.wait_for_topics([client])
    place = Partition(client, 0)
    for servers, settings in (
        (secure.login, login()),
        (secure.tls, {"security.protocol": "SSL"} | tls(secure)),
        (secure.both, login(protocol="SASL_SSL") | tls(secure)),
    ):
        transport = transport_of(client)(servers, settings)
        try:
            offset = transport.send(place, b"key", b"value", headers=[("name", b"x")])
            assert transport.end_offsets([place]) == {place: offset + 1}
            transport.read(place, offset)
            (record,) = transport.poll(30)
            assert record[2:6] == (offset, b"key", b"value", (("name", b"x"),))
        finally:
            transport.close()


def test_a_mechanism_that_the_broker_does_not_offer(secure: SecureBroker) -> None:
    for settings in (
        login(mechanism="SCRAM-SHA-256"),
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"},
    ):
        assert "does not offer the kafka.sasl.mechanism" in refusal(secure.login, settings)


def test_a_login_where_none_is_taken(secure: SecureBroker) -> None:
    said = refusal(secure.bootstrap_servers, login())
    assert "takes no login at this address, and kafka.security.protocol=SASL_PLAINTEXT" in said


def test_certificates_that_do_not_fit(secure: SecureBroker) -> None:
    assert "TLS with the Kafka broker" in refusal(secure.tls, {"security.protocol": "SSL"})
    assert "self-signed certificate" in refusal(secure.both, login(protocol="SASL_SSL"))
    no_certificate = {"security.protocol": "SSL", "ssl.ca.location": __file__}
    assert "no certificate or crl found" in refusal(secure.tls, no_certificate)


@pytest.mark.parametrize("settings", [{}, login()])
def test_a_client_without_tls_where_it_is_expected(secure: SecureBroker, settings: dict[str, str]) -> None:
    protocol = settings.get("security.protocol", "PLAINTEXT")
    said = refusal(secure.tls, settings)
    assert f"does not speak Kafka's protocol without TLS, and kafka.security.protocol={protocol}." in said


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_a_broker_that_only_hangs_up_expects_another_protocol(secure: SecureBroker, protocol: str) -> None:
    """It says no word, and may be one that is just going down: that is borne for the time given."""
    settings = {"security.protocol": protocol} | (tls(secure) if protocol == "SSL" else {})
    with pytest.raises(BrokerUnavailable, match=rf"hangs up: does it expect another .*than {protocol}\?"):
        kafka_clients.admin(secure.login, settings, connect_timeout_s=1.0)
