"""Errors of Kafka that pass by themselves are an outage, whatever the broker calls them; the others stay refusals."""

import inspect

import pytest
from kafka import errors as kafka
from kafka.errors import KafkaError, RetriableError

from totalorder.errors import BrokerUnavailable, Error
from totalorder.kafka_clients import kafka_errors
from totalorder.kafka_errors import raise_for_code

RETRIABLE = [kind for _, kind in inspect.getmembers(kafka, inspect.isclass) if issubclass(kind, RetriableError)]


@pytest.mark.parametrize("kind", RETRIABLE)
def test_what_is_retriable_is_an_outage(kind: type[KafkaError]) -> None:
    with pytest.raises(BrokerUnavailable, match="h:1") as caught, kafka_errors("h:1"):
        raise kind
    assert "refused" not in str(caught.value)


def test_one_that_stands_still_did_not_answer_and_one_that_elects_cannot_yet() -> None:
    with pytest.raises(BrokerUnavailable, match=r"did not answer in time .*after 15000 ms"), kafka_errors("h:1"):
        raise kafka.RequestTimedOutError("Request timed out after 15000 ms")
    says = r"cannot answer this just now \(LeaderNotAvailableError: describing topic a"
    with pytest.raises(BrokerUnavailable, match=says), kafka_errors("h:1"):
        raise_for_code(5, "describing topic a")


def test_a_controller_that_nobody_knows_is_an_outage_and_another_fault_of_python_is_not() -> None:
    with pytest.raises(BrokerUnavailable), kafka_errors("h:1"):
        raise RuntimeError("Failed to find active controller id!")
    with pytest.raises(RuntimeError, match="else"), kafka_errors("h:1"):
        raise RuntimeError("something else")


def test_a_refusal_stays_one() -> None:
    says = "refused: TopicAuthorizationFailedError: describing topic a"
    with pytest.raises(Error, match=says) as caught, kafka_errors("h:1"):
        raise_for_code(29, "describing topic a")
    assert not isinstance(caught.value, BrokerUnavailable)
    raise_for_code(0, "describing topic a")
