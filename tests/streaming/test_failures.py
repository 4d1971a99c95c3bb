"""Errors on their way from a worker through Spark's messages."""

import pytest

from totalorder.errors import BrokerUnavailable, Error, EventsLost, LimitExceeded, StateError
from totalorder.streaming.failures import WorkerFailure, error_from, is_passing

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
        ("something else", Error),
    ],
)
def test_sparks_own_errors_become_ours(text: str, kind: type[Error]) -> None:
    found = error_from(SPARK.format(text))
    assert type(found) is kind
    assert "\n" not in str(found)


def test_an_empty_message() -> None:
    assert "no reason given" in str(error_from(""))


def test_only_what_may_pass_is_tried_again() -> None:
    assert is_passing(SPARK.format("org.apache.spark.SparkException: Python worker failed to connect back."))
    assert not is_passing(SPARK.format("something else"))
    assert not is_passing(SPARK.format(str(WorkerFailure(Error("Python worker failed to connect back")))))
