"""The whole table of settings: what each name becomes, and that librdkafka takes it."""

from pathlib import Path

import pytest
from confluent_kafka import Consumer

from totalorder import kafka_settings
from totalorder.errors import SettingsError
from totalorder.librdkafka_settings import (
    FILES,
    IGNORED,
    OTHER_NAMES,
    REFUSED,
    SAME,
    SPECIAL,
    consumer_settings,
    known_names,
)

SERVERS = {"bootstrap.servers": "localhost:9092"}
DOCS = Path(__file__).parents[2] / "docs" / "kafka-settings.md"
VALUES = {
    "check.crcs": "false",
    "client.dns.lookup": "use_all_dns_ips",
    "client.id": "me",
    "client.rack": "r",
    # librdkafka wants these to fit to others that are not given here.
    "fetch.max.bytes": "2000000",
    "receive.message.max.bytes": "200000000",
    "reconnect.backoff.ms": "50",
    "sasl.kerberos.service.name": "kafka",
    "sasl.password": "p",
    "sasl.username": "u",
    "ssl.cipher.suites": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ssl.key.password": "p",
}


def translated(**given: str) -> dict[str, str]:
    made = consumer_settings("localhost:9092", {name.replace("_", "."): value for name, value in given.items()})
    return {name: value for name, value in made.items() if name not in SERVERS}


def test_every_name_that_other_clients_take_is_decided_on() -> None:
    """A user has one table for all clients: a name that kafka-python's translation takes must not end the job here."""
    taken = {*kafka_settings._names(), *kafka_settings._SPECIAL}
    assert taken - {*known_names()} == set(REFUSED)


def test_no_name_stands_twice() -> None:
    lists = [SAME, set(OTHER_NAMES), set(FILES), IGNORED, set(SPECIAL), set(REFUSED), set(kafka_settings._DECIDED)]
    assert sum(map(len, lists)) == len(set().union(*lists))


def test_every_name_stands_in_the_documentation() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for name in (*known_names(), *REFUSED, *kafka_settings._DECIDED):
        assert f"`{name}`" in text, name


@pytest.mark.parametrize("name", sorted({*SAME, *OTHER_NAMES} - {"ssl.keystore.key", "ssl.keystore.certificate.chain"}))
def test_names_that_keep_their_values(name: str) -> None:
    other = OTHER_NAMES.get(name, name)
    value = VALUES.get(other, "100000")
    if other.endswith(".pem"):
        value = "x"
    made = consumer_settings("localhost:9092", {f"kafka.{name}": value})
    assert made == {other: value} | SERVERS
    if not other.endswith(".pem"):
        Consumer({**made, "group.id": "g"}).close()


@pytest.mark.parametrize("name", sorted(IGNORED))
def test_names_that_mean_nothing_here(name: str) -> None:
    assert consumer_settings("localhost:9092", {name: "anything"}) == SERVERS


@pytest.mark.parametrize("name", sorted(FILES))
def test_files_must_be_there(name: str) -> None:
    assert consumer_settings("localhost:9092", {name: __file__}) == {FILES[name]: __file__} | SERVERS
    with pytest.raises(SettingsError, match=rf"no file nowhere \(for kafka\.{name}\)"):
        consumer_settings("localhost:9092", {name: "nowhere"})


@pytest.mark.parametrize("name", sorted({*REFUSED, *kafka_settings._DECIDED}))
def test_names_that_cannot_be_set(name: str) -> None:
    with pytest.raises(SettingsError, match=rf"kafka\.{name} cannot be set: "):
        consumer_settings("localhost:9092", {name: "x"})


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match=r"kafka\.sasl\.mechanim is no .*Did you mean kafka\.sasl\.mechanism\?"):
        translated(sasl_mechanim="PLAIN")
    with pytest.raises(SettingsError, match=r"kafka\.ssl\.provider is no setting"):
        translated(ssl_provider="x")


def test_security() -> None:
    assert translated(security_protocol="SASL_SSL") == {"security.protocol": "sasl_ssl"}
    assert translated(sasl_mechanism="SCRAM-SHA-512") == {"sasl.mechanism": "SCRAM-SHA-512"}
    assert translated(sasl_mechanisms="PLAIN") == {"sasl.mechanism": "PLAIN"}
    for bad in ({"security_protocol": "TLS"}, {"sasl_mechanism": "AWS_MSK_IAM"}, {"sasl_mechanism": "plain"}):
        with pytest.raises(SettingsError, match=r"not known here|no login that librdkafka can do"):
            translated(**bad)
    line = "org.apache.kafka.common.security.scram.ScramLoginModule required username='u' password=\"p;\";"
    assert translated(sasl_jaas_config=line) == {"sasl.username": "u", "sasl.password": "p;"}
    with pytest.raises(SettingsError, match="is not understood"):
        translated(sasl_jaas_config="Krb5LoginModule required;")


def test_stores(tmp_path: Path) -> None:
    pem, p12, jks = (tmp_path / f"store.{kind}" for kind in ("pem", "p12", "jks"))
    for path in (pem, p12, jks):
        path.touch()
    assert translated(ssl_truststore_location=str(pem)) == {"ssl.ca.location": str(pem)}
    given = {"ssl_truststore_location": str(jks), "ssl_truststore_type": "pem"}
    assert translated(**given) == {"ssl.ca.location": str(jks)}
    for path in (p12, jks):
        with pytest.raises(SettingsError, match=r"truststore\.type is (PKCS12|JKS), and librdkafka reads trusted"):
            translated(ssl_truststore_location=str(path), ssl_truststore_password="p")
    both = {"ssl.certificate.location": str(pem), "ssl.key.location": str(pem)}
    assert translated(ssl_keystore_location=str(pem), ssl_keystore_type="PEM") == both
    found = translated(ssl_keystore_location=str(p12), ssl_keystore_password="p")
    assert found == {"ssl.keystore.location": str(p12), "ssl.keystore.password": "p"}
    with pytest.raises(SettingsError, match=r"keystore\.type is JKS, and librdkafka reads PEM and PKCS12"):
        translated(ssl_keystore_location=str(jks))
    with pytest.raises(SettingsError, match="There is no file"):
        translated(ssl_keystore_location=str(tmp_path / "none.p12"))


def test_other_values() -> None:
    assert translated(ssl_endpoint_identification_algorithm="") == {"ssl.endpoint.identification.algorithm": "none"}
    assert translated(ssl_endpoint_identification_algorithm="HTTPS") == {
        "ssl.endpoint.identification.algorithm": "https"
    }
    assert translated(ssl_check_hostname="False") == {"ssl.endpoint.identification.algorithm": "none"}
    assert translated(request_timeout_ms="900000") == {"socket.timeout.ms": "300000"}
    assert translated(receive_buffer_bytes="-1") == {"socket.receive.buffer.bytes": "0"}
    assert translated(send_buffer_bytes="9") == {"socket.send.buffer.bytes": "9"}
    for bad in (
        {"ssl_endpoint_identification_algorithm": "x"},
        {"ssl_check_hostname": "x"},
        {"request_timeout_ms": "x"},
    ):
        with pytest.raises(SettingsError):
            translated(**bad)
