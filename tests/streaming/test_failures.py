"""Errors on their way from a worker through Spark's messages."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from totalorder.errors import BrokerUnavailable, Defect, Error, EventsLost, LimitExceeded, StateError
from totalorder.streaming.failures import (
    WorkerFailure,
    error_from,
    explained,
    is_passing,
    say_trace,
    text_of,
    words_of,
)

SPARK = "[STREAM_FAILED] Query [id = x] terminated with exception: Job aborted\nTraceback:\n  File x\n{}\n\tat java\n"


@pytest.mark.parametrize("kind", [Error, StateError, LimitExceeded, Defect])
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


def test_the_whole_trace_of_what_is_no_error_of_ours_is_logged() -> None:
    ours, others = (SPARK.format(f"x: {what}") for what in (WorkerFailure(BrokerUnavailable("no broker")), "KeyError"))
    with capture_logs() as logs:
        say_trace(structlog.get_logger(), ours)
        say_trace(structlog.get_logger(), f"{others}\n=== Streaming Query ===\na plan")
    assert logs == [{"event": "spark failed", "log_level": "error", "trace": f"{others}\n"}]


def test_the_trace_of_a_defect_of_ours_which_is_to_be_reported_is_logged_too() -> None:
    ours = SPARK.format(f"x: {WorkerFailure(Defect('a state is broken'))}")
    assert not is_passing(ours)
    with capture_logs() as logs:
        say_trace(structlog.get_logger(), ours)
    assert logs == [{"event": "spark failed", "log_level": "error", "trace": ours}]


def test_a_job_tells_an_assertion_of_ours_as_a_defect() -> None:
    ours: dict[str, Any] = {"__name__": "totalorder.told"}
    exec("def fail():\n    raise AssertionError('out of turn')", ours)
    with pytest.raises(AssertionError) as failed:
        ours["fail"]()
    found = explained(failed.value, "the sequencer")
    assert isinstance(found, Defect)
    assert "does not hold: out of turn" in str(found)
    assert "starting again goes on with it" in str(found)
    assert type(explained(AssertionError("of theirs"), "the sequencer")) is Error


def test_an_empty_message() -> None:
    assert "no reason given" in str(error_from(""))


def test_a_java_without_memory_says_what_helps() -> None:
    assert "spark.driver.memory" in str(error_from(SPARK.format("java.lang.OutOfMemoryError: Java heap space")))


@pytest.mark.parametrize("word", ["", "[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] ", "Incomplete log file "])
def test_a_full_disk_is_told_before_what_it_leads_to(word: str, tmp_path: Path) -> None:
    text = SPARK.format(f"{word}java.io.IOException: No space left on device")
    found = error_from(text, (str(tmp_path), "/no/such"))
    assert type(found) is Error
    assert re.fullmatch(rf"a disk is full: .*; free now: [\d.,]+ MB under {tmp_path}", found.what)
    assert not is_passing(text)


def test_a_state_that_cannot_be_written_is_not_a_damaged_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = SPARK.format("[CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT] Error writing state store files")
    disks = (str(tmp_path), "/no/such")
    assert type(found := error_from(text, disks)) is Error
    assert "the Spark query failed" in found.what
    monkeypatch.setattr("totalorder.streaming.failures._FULL_BYTES", 1 << 62)
    assert error_from(text, disks).what.startswith("a disk is full")


def test_a_full_disk_may_be_told_by_the_trace_alone() -> None:
    failure = OfQuery("org.apache.spark.SparkException: x\nCaused by: java.io.IOException: No space left on device\n")
    assert error_from(words_of(failure)).what == "a disk is full: No space left on device"


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


class OfQuery(Exception):
    """A query's failure as pyspark tells it: the trace is the cause's."""

    def __init__(self, trace: str) -> None:
        super().__init__(SPARK.format("(no cause message)"))
        self._cause = SimpleNamespace(_stackTrace=trace)


RUNNER = "\tat org.apache.spark.sql.execution.python.streaming.PythonStreamingSourceRunner.latestOffset(x.scala:235)\n"
READ = "\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:386)\n"


@pytest.mark.parametrize(
    "trace",
    [
        f"java.io.EOFException\n{READ}{RUNNER}",
        f"java.net.SocketException: Broken pipe\n{READ * 7}{RUNNER}",
        f"java.net.SocketException: Connection reset by peer\n{READ}{RUNNER}",
        f"java.io.IOException: Broken pipe\n{RUNNER}",
    ],
)
def test_a_process_of_the_source_that_was_killed_is_borne(trace: str) -> None:
    text = words_of(OfQuery(trace))
    assert is_passing(text)
    assert error_from(text).what == "the Python process of the source has ended without a word"
    assert not is_passing(f"{text} KAFKA_DATA_LOSS")


def test_a_worker_that_was_killed_is_borne() -> None:
    text = SPARK.format("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)")
    assert is_passing(text)
    assert error_from(text).what == "a Python worker of Spark has ended without a word"
    assert not is_passing(f"{text} KAFKA_DATA_LOSS")
    assert not is_passing(SPARK.format(str(WorkerFailure(Error("Python worker exited unexpectedly (crashed)")))))


@pytest.mark.parametrize(
    "trace",
    [
        "",
        f"java.io.EOFException\n{READ}\tat org.apache.hadoop.fs.FSDataInputStream.readInt(x.java:1)\n",
        f"java.io.EOFException\n{READ * 13}{RUNNER}",
        f"org.apache.spark.api.python.PythonException: Traceback\njava.io.EOFException\n{RUNNER}",
    ],
)
def test_whatever_else_ends_a_source_is_not(trace: str) -> None:
    text = words_of(OfQuery(trace))
    assert text == SPARK.format("(no cause message)")
    assert not is_passing(text)


def test_a_failure_without_a_cause_is_what_it_says() -> None:
    assert words_of(ValueError("x")) == "x"
