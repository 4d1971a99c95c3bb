"""In which order the transport on kafka-python asks its two consumers."""

from typing import Any

import pytest

from totalorder.subscriber.kafka_python import KafkaPythonTransport


class Asked:
    """A transport whose consumers always have something, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.transport = KafkaPythonTransport.__new__(KafkaPythonTransport)
        settings: dict[str, Any] = {"_first": "stamps", "_others": "events", "_others_asked": -1.0}
        vars(self.transport).update(settings, _take=lambda reader, _timeout_s: [[reader]])
        monkeypatch.setattr("totalorder.subscriber.kafka_python.time.monotonic", lambda: self.now)

    def after(self, seconds: float) -> list[str]:
        """What a poll finds that much later."""
        self.now += seconds
        return [record for records in self.transport._poll(0.0) for record in records]


def test_events_wait_for_stamps_but_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch)
    assert asked.after(0) == ["stamps", "events"]
    assert [asked.after(0.02) for _ in range(4)] == [["stamps"], ["stamps"], ["stamps", "events"], ["stamps"]]


def test_who_polls_seldom_gets_both(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch)
    assert [asked.after(0.1) for _ in range(3)] == [["stamps", "events"]] * 3
