"""What may pass is borne for so many seconds, however often it is tried."""

import threading
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from totalorder.config import make_settings
from totalorder.errors import BrokerUnavailable, Error
from totalorder.streaming import patience, runner
from totalorder.streaming.patience import BrokerWatch, Patience, borne
from totalorder.streaming.runner import Sequencer

NO_WORKER = "org.apache.spark.SparkException: Python worker failed to connect back."


def test_it_is_over_by_time_and_begins_anew_after_a_success() -> None:
    patience = Patience(10)
    assert [patience.bears(at) for at in (100, 101, 110, 110.5)] == [True, True, True, False]
    assert (patience.lasts_s, patience.left_s) == (10.5, -0.5)
    patience.end()
    assert not patience.tried
    assert patience.bears(111)
    assert patience.lasts_s == 0


def test_failures_far_apart_are_two_faults_where_it_is_said_so() -> None:
    for apart_s, borne_both in ((10, True), (30, False)):
        patience = Patience(10, apart_s=apart_s)
        assert [patience.bears(at) for at in (0, 21)] == [True, borne_both]


def unavailable() -> None:
    raise BrokerUnavailable("the broker at h:1 stands still")


def test_an_outage_has_a_line_at_its_begin_and_its_end_and_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    with capture_logs() as logs:
        watch = BrokerWatch(structlog.get_logger())
        assert not watch.is_away
        assert [watch.answers(unavailable), watch.answers(unavailable)] == [False, False]
        assert watch.is_away
        assert watch.answers(lambda: None)
        assert not watch.is_away
        assert not watch.answers(unavailable)
    begins, ends = "the broker does not answer", "the broker answers again"
    assert [line["event"] for line in logs] == [begins, ends, begins]
    assert logs[0]["gives_up_in_s"] == patience.OUTAGE_S
    monkeypatch.setattr(patience, "OUTAGE_S", 0.0)
    watch = BrokerWatch(structlog.get_logger())
    watch.answers(unavailable)
    with pytest.raises(BrokerUnavailable):
        watch.answers(unavailable)


def test_a_question_is_asked_again_until_its_time_is_over_or_a_stop_is_asked_for() -> None:
    asked: list[int] = []

    def third() -> str:
        asked.append(1)
        if len(asked) < 3:
            unavailable()
        return "answer"

    assert borne(third, 60, threading.Event()) == "answer"
    with pytest.raises(BrokerUnavailable):
        borne(unavailable, 0, threading.Event())
    stopping = threading.Event()
    stopping.set()
    with pytest.raises(BrokerUnavailable):
        borne(unavailable, 60, stopping)


def test_a_worker_that_a_busy_machine_keeps_from_answering_is_tried_more_than_three_times(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(runner, "_REVIVAL_PAUSE_S", 0)
    sequencer = Sequencer(make_settings(topics=("a",), checkpoint_dir=str(tmp_path)))
    for _ in range(10):
        sequencer._revive_or_raise(Error("no worker"), NO_WORKER)
    with pytest.raises(Error, match="else"):
        sequencer._revive_or_raise(Error("something else"), "something else")
    sequencer._revivals.bound_s = -1
    with pytest.raises(Error, match="no worker"):
        sequencer._revive_or_raise(Error("no worker"), NO_WORKER)
