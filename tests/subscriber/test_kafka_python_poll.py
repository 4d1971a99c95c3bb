"""In which order the transport on kafka-python asks its two consumers."""

from collections.abc import Collection
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from totalorder.subscriber.kafka_identities import Identities, Place
from totalorder.subscriber.kafka_python import KafkaPythonTransport
from totalorder.subscriber.kafka_reader import Reader
from totalorder.subscriber.kafka_transport import IDENTIFY_S, Described
from totalorder.subscriber.outage import Outage
from totalorder.subscriber.transport import Partition, Record


class Asked:
    """A transport whose consumers always have something, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.transport = KafkaPythonTransport.__new__(KafkaPythonTransport)
        settings: dict[str, Any] = {"_first": "stamps", "_others": "events", "_others_asked": -1.0, "_came_at": -1.0}
        vars(self.transport).update(settings, _take=lambda reader, _timeout_s: [[reader]])
        monkeypatch.setattr("totalorder.subscriber.kafka_python.time.monotonic", lambda: self.now)

    def after(self, seconds: float) -> list[Any]:
        """What a poll finds that much later."""
        self.now += seconds
        return [record for records in self.transport._came(0.0) for record in records]


def test_events_wait_for_stamps_but_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch)
    assert asked.after(0) == ["stamps", "events"]
    assert [asked.after(0.02) for _ in range(4)] == [["stamps"], ["stamps"], ["stamps", "events"], ["stamps"]]


def test_events_are_looked_for_more_often_while_something_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, waits_s = Asked(monkeypatch), list[float]()
    transport = asked.transport

    def note(_: object, timeout_s: float) -> list[Any]:
        waits_s.append(timeout_s)
        return []

    vars(transport)["_first"] = type("Reader", (), {"next": True})()
    vars(transport)["_take"] = note
    vars(transport)["_came_at"] = 10.0
    for asked.now in (10.5, 11.5):
        transport._came(5.0)
    assert waits_s == [0, 0, 0.02, 0, 0, 0.5]


def test_who_polls_seldom_gets_both(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch)
    assert [asked.after(0.1) for _ in range(3)] == [["stamps", "events"]] * 3


def test_a_topic_of_which_nothing_comes_is_asked_for_however_often_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be gone: that must be noticed while events of others come all the time."""
    asked = Asked(monkeypatch)
    reader = Reader(None, lambda: None, most=1, most_bytes=1)
    by_id, told = Identities(reader, lambda: asked.now), list[tuple[float, set[str]]]()
    for name in "ab":
        by_id.read(Partition(name, 0, name), 0)
    by_id.compare("ab", {"a": "a", "b": "b"})

    def described(topics: Collection[str]) -> dict[str, Described]:
        told.append((asked.now, set(topics)))
        return {name: Described(name, 1) for name in topics}

    transport: Any = SimpleNamespace(_by_id=by_id, _described=described, _outage=Outage("it", 60), _identify_at=0.0)
    vars(asked.transport).update(vars(transport), _others=reader)
    record = Record("a", 0, 7, None, b"", (), 0, "a")
    for _ in range(100):
        asked.now += 0.05
        assert asked.transport._identified(reader, {Place("a", 0): [record]})
    both = [at for at, names in told if names == {"a", "b"}]
    assert len(told) == 100
    assert [later - at < IDENTIFY_S + 0.1 for at, later in pairwise([*both, asked.now])] == [True, True, True]
