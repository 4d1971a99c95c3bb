"""The log of batches: few lines however many batches, none lost, each of them for who asks for that."""

from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from totalorder.streaming.batch_log import PERIOD_S, BatchLog
from totalorder.streaming.progress import BatchProgress


class Clock:
    """Seconds, as far as it is told."""

    at_s = 1_000.0

    def __call__(self) -> float:
        return self.at_s


def batch(
    number: int,
    *,
    events: int = 1,
    unroutable: int = 0,
    late: int = 0,
    unsigned: int = 0,
    trigger_ms: int = 100,
    look_ms: float = 5.2,
    silent: int = 0,
) -> BatchProgress:
    figures = {
        "batch": number,
        "events": events,
        "controls": 1,
        "unroutable": unroutable,
        "unroutable_at": f"a[0]@{number}" if unroutable else "",
        "late": late,
        "unsigned": unsigned,
        "g_first": number * 10,
        "g_last": number * 10 + 9,
    }
    durations_ms = {"triggerExecution": trigger_ms, "addBatch": 50}
    looks = {"longest_ms": look_ms, "silent": silent, "share": 0.0312}
    return BatchProgress(planned=number - 1, figures=figures, durations_ms=durations_ms, looks=looks)


def run(*, verbose: bool, **more: int) -> list[dict[str, Any]]:
    """Five batches a second for a minute."""
    clock = Clock()
    with capture_logs() as logs:
        log = BatchLog(structlog.get_logger(), verbose=verbose, now_s=clock)
        for number in range(1, 301):
            log.add(batch(number, **more, trigger_ms=100 + number))
            log.say_if_due()
            clock.at_s += 0.2
        log.say()
        log.say()
    return list(map(dict, logs))


def test_a_summary_each_few_seconds_holds_all_that_came() -> None:
    logs = run(verbose=False)
    assert len(logs) == 60 / PERIOD_S + 1
    assert {line["event"] for line in logs} == {"batches"}
    assert sum(line["count"] for line in logs) == sum(line["events"] for line in logs) == 300
    assert logs[0]["count"] == 1, "the first is said at once"
    second = logs[1]
    assert (second["newest"], second["g"]) == (26, "20..269")
    assert (second["trigger_ms"], second["longest_ms"]) == (114, 126)
    assert all(len(" ".join(f"{key}={value}" for key, value in line.items())) < 132 for line in logs)


def test_one_after_a_silence_is_said_at_once() -> None:
    clock = Clock()
    with capture_logs() as logs:
        log = BatchLog(structlog.get_logger(), verbose=False, now_s=clock)
        for silent_s in (PERIOD_S, 0.1, 0):
            log.add(batch(1))
            log.say_if_due()
            clock.at_s += silent_s
    assert [line["count"] for line in logs] == [1, 1]


def test_each_batch_for_who_asks_for_it() -> None:
    logs = run(verbose=True)
    assert [line["batch"] for line in logs] == list(range(1, 301))
    assert logs[0] == {
        "event": "batch",
        "log_level": "info",
        "batch": 1,
        "events": 1,
        "controls": 1,
        "unroutable": 0,
        "unsigned": 0,
        "g": "10..19",
        "trigger_ms": 101,
        "plan_ms": None,
        "add_batch_ms": 50,
        "log_ms": 0,
        "events_per_s": 10,
        "look_ms": 5,
        "looks_share": 0.031,
    }


def test_unsigned_requests_are_told_once() -> None:
    """Who writes them may write any number; each batch's own line has their count."""
    (warning,) = [line for line in run(verbose=True, unsigned=2) if line["log_level"] == "warning"]
    assert warning["event"] == "control records refused that no key of control_key_file has signed"
    assert "control_key" in warning["remedy"]
    assert [line["unsigned"] for line in run(verbose=True, unsigned=2) if line["event"] == "batch"] == [2] * 300


def test_events_without_a_topic_are_counted_in_as_few_lines() -> None:
    warnings = [line for line in run(verbose=False, unroutable=2) if line["log_level"] == "warning"]
    assert len(warnings) == 60 / PERIOD_S + 1
    assert sum(line["count"] for line in warnings) == 600
    assert warnings[1]["at"] == "a[0]@2"


def test_events_of_retired_topics_are_counted_in_as_few_lines() -> None:
    warnings = [line for line in run(verbose=False, late=3) if line["log_level"] == "warning"]
    assert {line["event"] for line in warnings} == {"events of retired topics left out"}
    assert (len(warnings), sum(line["count"] for line in warnings)) == (60 / PERIOD_S + 1, 900)


def test_the_longest_look_of_the_batches_is_told() -> None:
    with capture_logs() as logs:
        log = BatchLog(structlog.get_logger(), verbose=False)
        for number, look_ms in enumerate((5.0, 250.4, 7)):
            log.add(batch(number, look_ms=look_ms))
        log.say()
    assert [line["look_ms"] for line in logs] == [250]


@pytest.mark.parametrize("verbose", [False, True])
def test_partitions_that_looks_go_without_are_told_where_there_are_any(verbose: bool) -> None:
    """The promise of looks does not hold for them meanwhile."""
    with capture_logs() as logs:
        log = BatchLog(structlog.get_logger(), verbose=verbose)
        for silent in (0, 3, 2):
            log.add(batch(1, silent=silent))
        log.say()
    assert [line.get("silent") for line in logs] == ([None, 3, 2] if verbose else [3])
