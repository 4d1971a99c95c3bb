"""Partitions that librdkafka cannot read, many at a time."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import KafkaError, NotLeaderForPartitionError, TopicAuthorizationFailedError

from totalorder.subscriber.librdkafka import LibrdkafkaTransport


@dataclass
class Reader:
    """Has partitions that failed, each with this error, until they are tried again."""

    error: KafkaError
    left: list[str]
    tried: list[str] = field(default_factory=list)

    @property
    def next(self) -> Iterable[str]:
        return self.left

    def failed(self) -> Any:
        return SimpleNamespace(at=self.left[0], error=self.error) if self.left else None

    def again(self, at: str) -> None:
        self.left.remove(at)
        self.tried.append(at)


class Transport(LibrdkafkaTransport):
    """Without a broker; `asked` names what it asks of one."""

    def __init__(self, *readers: Reader) -> None:
        self._first, self._others = readers  # type: ignore[assignment]
        self._try_again_at = 0.0
        self._by_id = SimpleNamespace(names=("t",))  # type: ignore[assignment]
        self.asked: list[str] = []

    def _identify(self, names: Iterable[str]) -> bool:
        self.asked.append("ids")
        return True

    def _check_failed(self, failed: Any) -> None:
        self.asked.append(failed.at)


ALL = [f"t[{number}]" for number in range(500)]


def test_all_that_failed_for_want_of_a_leader_is_tried_again_at_once() -> None:
    first, others = Reader(NotLeaderForPartitionError(), ALL[:7]), Reader(NotLeaderForPartitionError(), ALL[7:])
    transport = Transport(first, others)
    transport._raise_failed()
    assert (first.tried, others.tried, transport.asked) == (ALL[:7], ALL[7:], [])
    first.left.append("t[0]")
    transport._raise_failed()
    assert first.left, "what fails again at once is not tried without a pause"


def test_topics_are_asked_for_once_and_each_partition_that_cannot_be_read_is_asked_about() -> None:
    reader = Reader(TopicAuthorizationFailedError(), ALL[:30])
    transport = Transport(reader, Reader(NotLeaderForPartitionError(), []))
    transport._raise_failed()
    assert reader.tried == ALL[:30]
    assert transport.asked == ["ids", *ALL[:30]]


def test_questions_take_a_moment_at_a_time_and_the_next_poll_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, now = Reader(TopicAuthorizationFailedError(), ALL[:30]), [0.0]
    monkeypatch.setattr("totalorder.subscriber.librdkafka.time", SimpleNamespace(monotonic=lambda: now[0]))
    transport = Transport(reader, Reader(NotLeaderForPartitionError(), []))

    def check(failed: Any) -> None:
        now[0] += 0.07

    transport._check_failed = check  # type: ignore[method-assign]
    polls = 0
    while reader.left:
        transport._raise_failed()
        now[0] += 0.05
        polls += 1
    assert polls == 10
