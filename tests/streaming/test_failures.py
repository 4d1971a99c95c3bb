"""Errors on their way from a worker through Spark's messages."""

import pytest

from totalorder.errors import BrokerUnavailable, Error, EventsLost, LimitExceeded, StateError
from totalorder.streaming.failures import WorkerFailure, error_from, is_passing, text_of

SPARK = "[STREAM_FAILED] Query [id = x] terminated with exception: Job aborted\nTraceback:\n  File x\n{}\n\tat java\n"


@pytest.mark.parametrize("kind", [Error, StateError, LimitExceeded])
def test_an_error_comes_through_whole(kind: type[Error]) -> None:
    sent = kind('topic "ä"\nof two lines {x}', remedy="do this")
    found = error_from(SPARK.format(f"totalorder.streaming.failures.WorkerFailure: {WorkerFailure(sent)}"))
    assert type(found) is kind
    assert (found.what, found.remedy) == (sent.what, sent.remedy)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("[KAFKA_DATA_LOSS.START_OFFSET_RESET] Some data may have been lost", EventsLost),
        ("[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] error", StateError),
        ("java.lang.IllegalStateException: Incomplete log file in the offset log", StateError),
        ("org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment", BrokerUnavailable),
        ("org.apache.kafka.common.errors.NotLeaderOrFollowerException: not the leader", BrokerUnavailable),
        ("java.lang.OutOfMemoryError: Java heap space", Error),
        ("something else", Error),
    ],
)
def test_sparks_own_errors_become_ours(text: str, kind: type[Error]) -> None:
    found = error_from(SPARK.format(text))
    assert type(found) is kind
    assert "\n" not in str(found)


def test_an_empty_message() -> None:
    assert "no reason given" in str(error_from(""))


def test_a_java_without_memory_says_what_helps() -> None:
    assert "spark.driver.memory" in str(error_from(SPARK.format("java.lang.OutOfMemoryError: Java heap space")))


@pytest.mark.parametrize("name", ["Timeout", "Disconnect", "NotLeaderOrFollower", "NotEnoughReplicasAfterAppend"])
def test_a_broker_that_is_away_or_elects_is_waited_for(name: str) -> None:
    text = SPARK.format(f"org.apache.kafka.common.errors.{name}Exception: words")
    assert is_passing(text)
    assert not is_passing(f"{text} KAFKA_DATA_LOSS")
    assert not is_passing(f"{text} CANNOT_LOAD_STATE_STORE")


def test_a_message_that_nobody_can_give_any_more() -> None:
    class OfJava(Exception):
        def __str__(self) -> str:
            raise ConnectionRefusedError

    assert text_of(OfJava()) == "OfJava"
    assert text_of(ValueError("x")) == "x"


def test_only_what_may_pass_is_tried_again() -> None:
    assert is_passing(SPARK.format("org.apache.spark.SparkException: Python worker failed to connect back."))
    assert not is_passing(SPARK.format("something else"))
    assert not is_passing(SPARK.format(str(WorkerFailure(Error("Python worker failed to connect back")))))
