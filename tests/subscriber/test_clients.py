"""Which Kafka client a Subscriber uses, and what is said where it is not installed."""

import sys

import pytest

from totalorder.errors import EnvironmentProblem, SettingsError
from totalorder.subscriber import Subscriber
from totalorder.subscriber.clients import transport_of
from totalorder.subscriber.kafka_python import KafkaPythonTransport
from totalorder.subscriber.librdkafka import LibrdkafkaTransport


def test_each_client_has_its_transport() -> None:
    assert transport_of("kafka-python") is KafkaPythonTransport
    assert transport_of("confluent") is LibrdkafkaTransport


def test_an_unknown_client_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"client = 'aiokafka' is unknown. Use 'kafka-python' or 'confluent'"):
        Subscriber(["t"], id="s", domain="d", client="aiokafka")  # type: ignore[arg-type]


def test_a_client_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("totalorder.subscriber.librdkafka")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(EnvironmentProblem, match=r"needs the package confluent-kafka.*totalorder\[fast\]"):
        Subscriber(["t"], id="s", domain="d", client="confluent")
    assert transport_of("kafka-python") is KafkaPythonTransport
