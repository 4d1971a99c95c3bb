"""How a job ends that could not start, or whose Java is gone: the cause is told, whatever else fails on the way out."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from py4j.protocol import Py4JError
from structlog.testing import capture_logs

from totalorder.config import make_settings
from totalorder.errors import Error, SettingsError
from totalorder.streaming import runner
from totalorder.streaming.failures import explained
from totalorder.streaming.record import DomainRecord
from totalorder.streaming.runner import Sequencer
from totalorder.streaming.store import LocalStore


class OfJava(Py4JError):  # type: ignore[misc]
    """An error whose message is asked of Java, as py4j's are."""

    java_runs = True

    def __str__(self) -> str:
        if not self.java_runs:
            raise ConnectionRefusedError("[Errno 111] Connection refused")
        return "java.lang.OutOfMemoryError: Java heap space"


@pytest.fixture
def sequencer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sequencer:
    """A job that cannot start, and whose Java ends with its clean-up."""

    class Failing(Sequencer):
        def _prepare(self) -> None:
            raise OfJava

        def _stop_query(self) -> None:
            OfJava.java_runs = False
            raise OfJava

    monkeypatch.setattr(OfJava, "java_runs", True)
    return Failing(make_settings(topics=("a",), checkpoint_dir=str(tmp_path)))


def test_a_start_that_fails_is_explained_before_java_is_ended(sequencer: Sequencer) -> None:
    with capture_logs() as logs, pytest.raises(Error, match=r"Java's memory was full: .*OutOfMemoryError"):
        sequencer.start()
    assert [line["event"] for line in logs] == ["while stopping", "sequencer stopped"]
    assert sequencer.wait(0) is True


def test_a_start_that_fails_after_a_stop_was_asked_for_is_a_stop(sequencer: Sequencer) -> None:
    sequencer.request_stop()
    with capture_logs() as logs:
        sequencer.start()
    assert logs[-1] == {
        "event": "stopped before it was ready",
        "log_level": "warning",
        "domain": sequencer.settings.domain,
        "reason": "Java's memory was full: java.lang.OutOfMemoryError: Java heap space",
    }
    assert sequencer.wait(0) is True


def test_a_clean_up_that_fails_hides_neither_a_cause_nor_what_comes_behind_it(sequencer: Sequencer) -> None:
    ended = []
    sequencer._unlock = lambda: ended.append("unlocked")  # type: ignore[method-assign]
    with capture_logs():
        sequencer._release()
    assert ended == ["unlocked"]


def test_a_full_disk_is_told_by_whoever_meets_it(tmp_path: Path) -> None:
    told = explained(OSError(errno.ENOSPC, "No space left on device", "x"), "the sequencer", (str(tmp_path),))
    assert told.what.startswith("a disk is full: [Errno 28] No space left on device: 'x'; free now: ")


class NoWorker(Py4JError):  # type: ignore[misc]
    """As the warming of Spark's workers ends with on a busy machine."""

    def __str__(self) -> str:
        return "org.apache.spark.SparkException: Python worker failed to connect back."


@pytest.fixture
def begin(sequencer: Sequencer, monkeypatch: pytest.MonkeyPatch) -> Callable[[type[Exception]], None]:
    """Has the job begin a query, which ends with an error."""

    def run(error: type[Exception]) -> None:
        monkeypatch.setattr(runner, "start_query", lambda *_, **__: _raise(error))
        sequencer._record = DomainRecord.begin(sequencer.settings, topics=[], own_ids={})
        sequencer._store = LocalStore(Path(sequencer.settings.checkpoint_dir))
        sequencer._tails = {}
        sequencer._spark = object()  # type: ignore[assignment]
        with capture_logs():
            sequencer._begin_query()

    return run


def _raise(error: type[Exception]) -> None:
    raise error


def test_a_query_that_cannot_be_started_is_explained_before_it_is_stopped(
    begin: Callable[[type[Exception]], None],
) -> None:
    with pytest.raises(Error, match="Java's memory was full"):
        begin(OfJava)


def test_workers_that_are_slow_to_be_warmed_are_waited_for(
    begin: Callable[[type[Exception]], None], sequencer: Sequencer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_REVIVAL_PAUSE_S", 0)
    for _ in range(5):
        begin(NoWorker)
        assert not sequencer._is_running()


def test_kafka_settings_that_the_reading_cannot_have_are_told_before_anything_starts(tmp_path: Path) -> None:
    given = make_settings(topics=("a",), checkpoint_dir=str(tmp_path), kafka={"ssl.truststore.location": "/trust.jks"})
    with pytest.raises(SettingsError, match=r"truststore\.type is JKS, and librdkafka reads"):
        Sequencer(given).start()
