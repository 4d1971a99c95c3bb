"""A record that is written while no broker takes it: how long it is waited for, and what is said of that."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError
from logged import by_us

from totalorder.errors import BrokerUnavailable
from totalorder.subscriber.kafka_transport import Described, KafkaTransport
from totalorder.subscriber.transport import Partition

PLACE = Partition("d.positions", 1)


class Clock:
    now = 1_000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("totalorder.subscriber.kafka_transport.time.monotonic", lambda: made.now)
    return made


class Slow(KafkaTransport):
    """Takes a record after so many seconds of a clock."""

    def __init__(self, clock: Clock, takes_s: float) -> None:
        reader: Any = None
        super().__init__("b:1", 60.0, prompt=(), first=reader, others=reader)
        self.clock, self.takes_s = clock, takes_s
        self.longest_s = 0.0

    def _sent(
        self,
        partition: Partition,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        waits: Iterable[float],
    ) -> int:
        taken_at = self.clock.now + self.takes_s
        for wait_s in waits:
            assert wait_s > 0, "it turns without end"
            self.longest_s = max(self.longest_s, wait_s)
            self.clock.now = min(self.clock.now + wait_s, taken_at)
            if self.clock.now == taken_at:
                return 7
        raise KafkaTimeoutError

    def _described(self, topics: Iterable[str]) -> dict[str, Described]:
        return {topic: Described("id", 2) for topic in topics}

    def _failure(self) -> None:
        return None

    def _ends(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    _policy = _poll = _check_answers = close = _ends


def test_a_write_that_waits_says_so_and_goes_on(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    transport = Slow(clock, 10)
    assert transport.send(PLACE, b"k", b"v") == 7
    assert by_us(caplog) == [
        "no Kafka broker at b:1 takes records; it is waited for, 57 s",
        "the Kafka broker at b:1 takes records again, after 10 s",
    ]
    assert transport.longest_s == 3
    assert transport.silent_s == 0


def test_one_that_takes_a_little_says_nothing(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    assert Slow(clock, 2.9).send(PLACE, b"k", b"v") == 7
    assert by_us(caplog) == []


def test_one_that_is_never_taken_ends_at_the_time_set(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    transport, begun = Slow(clock, 1e9), clock.now
    with pytest.raises(BrokerUnavailable, match="no Kafka broker at b:1 has answered for 60 s"):
        transport.send(PLACE, b"k", b"v")
    assert clock.now == begun + 60
    assert len(by_us(caplog)) == 1


def test_one_that_is_waited_for_shortly_waits_no_longer(clock: Clock) -> None:
    transport, begun = Slow(clock, 1e9), clock.now
    with pytest.raises(BrokerUnavailable):
        transport.send(PLACE, b"k", b"v", timeout_s=2.0)
    assert clock.now == begun + 2
    assert transport.silent_s == 2


def test_what_was_tried_in_vain_in_one_outage_counts_little_in_the_next(clock: Clock) -> None:
    transport = Slow(clock, 1e9)
    for _ in range(2):
        with pytest.raises(BrokerUnavailable, match="The Kafka broker at b:1"):
            transport.send(PLACE, b"k", b"v", timeout_s=2.0)
        transport._outage.heard()
        clock.now += 57
    assert transport.silent_s == 2 + 10 + 2 + 10
    transport.takes_s = 1
    transport.send(PLACE, b"k", b"v", timeout_s=2.0)
    assert transport.silent_s == 0
