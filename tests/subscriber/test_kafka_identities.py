"""Which topics are read, by Kafka's ids, when brokers do not agree at once: nothing is gone before it is certain."""

from typing import Any

import pytest

from totalorder.subscriber.kafka_identities import ASK_AGAIN_S, CERTAIN_S, Identities, Place
from totalorder.subscriber.kafka_reader import Reader
from totalorder.subscriber.transport import Partition

OLD, NEW, OTHER = Partition("a", 0, "1"), Partition("a", 0, "2"), Partition("b", 0, "1")
PLACE = Place("a", 0)


class Consumer:
    """Only ever closed."""

    def __init__(self) -> None:
        self.closed = False

    def close(self, **_: Any) -> None:
        self.closed = True


class Asked:
    """What is read, a clock, and what Kafka says."""

    def __init__(self) -> None:
        self.now = 0.0
        self.consumers = [Consumer()]
        self.reader = Reader(self.consumers[0], self._another, most=1_000, most_bytes=1_000_000)
        self.by_id = Identities(self.reader, lambda: self.now)

    def _another(self) -> Consumer:
        self.consumers.append(Consumer())
        return self.consumers[-1]

    def told(self, after_s: float = 0.0, /, **present: str) -> list[Partition]:
        """Kafka has these ids, and no other topic; what is gone then."""
        self.now += after_s
        self.by_id.compare({"a", "b"}, present)
        return self.by_id.vanished()


@pytest.fixture
def asked() -> Asked:
    """Reads the topic with id 1 from offset 5."""
    made = Asked()
    made.by_id.read(OLD, 5)
    made.told(a="1")
    assert made.reader.next == {PLACE: 5}
    return made


def test_nothing_is_read_before_its_id_is_known() -> None:
    asked = Asked()
    asked.by_id.read(OLD, 5)
    assert asked.by_id.due == {"a"}
    assert asked.reader.next == {}
    asked.told()
    assert asked.by_id.due == set()
    asked.now += ASK_AGAIN_S
    assert asked.by_id.due == {"a"}
    asked.told(a="1")
    assert (asked.reader.next, asked.by_id.id_of("a")) == ({PLACE: 5}, "1")
    asked.now += ASK_AGAIN_S
    assert asked.by_id.due == set()


def test_what_waits_is_asked_for_however_often_others_are(asked: Asked) -> None:
    """That a question for what came of others is on its way, or one follows the other, must not put it off."""
    asked.by_id.read(OTHER, 0)
    for _ in range(2):
        assert asked.by_id.due == {"b"}
        for _ in range(5):
            asked.by_id.compare({"a"}, {"a": "1"})
            assert asked.by_id.due == {"b"}
        assert asked.told(a="1") == []
        assert asked.by_id.due == set(), "not at once again"
        for _ in range(3):
            asked.now += ASK_AGAIN_S / 2
            asked.by_id.compare({"a"}, {"a": "1"})
    assert asked.by_id.due == {"b"}


def test_a_topic_that_one_broker_does_not_know_is_read_on_when_another_one_does(asked: Asked) -> None:
    asked.reader.next[PLACE] = 8
    asked.by_id.pause(OLD)
    for present in ({}, {"a": "0"}):
        assert asked.told(**present) == []
        assert (asked.reader.next, asked.by_id.id_of("a")) == ({}, "")
        assert asked.told(CERTAIN_S - 0.1) == []
        assert asked.told(a="1") == []
        assert asked.reader.next == {PLACE: 8}
        assert asked.reader.is_paused(PLACE)
    assert len(asked.consumers) == 1, "it holds nothing of another topic"


def test_what_is_missed_for_long_is_gone_and_told_once(asked: Asked) -> None:
    asked.by_id.read(OTHER, 0)
    assert asked.told(b="1") == []
    assert asked.told(CERTAIN_S - 0.1, b="1") == []
    assert asked.told(0.1, b="1") == [OLD]
    assert asked.told(CERTAIN_S, b="1") == []
    assert asked.reader.next == {Place("b", 0): 0}


def test_a_short_miss_does_not_count_for_a_later_one(asked: Asked) -> None:
    asked.told()
    asked.told(CERTAIN_S - 0.1, a="1")
    asked.told()
    assert asked.told(CERTAIN_S - 0.1) == []
    assert asked.told(0.2) == [OLD]


def test_a_topic_that_comes_after_another_of_its_name_is_read_by_another_consumer(asked: Asked) -> None:
    asked.by_id.read(NEW, 5)
    assert asked.told(a="2") == []
    assert (asked.reader.next, asked.by_id.id_of("a")) == ({PLACE: 5}, "2")
    assert [consumer.closed for consumer in asked.consumers] == [True, False]
    assert asked.reader.consumer is asked.consumers[-1]
    assert asked.told(CERTAIN_S, a="2") == [OLD]
    assert asked.reader.next == {PLACE: 5}
    assert len(asked.consumers) == 2


def test_a_former_topic_that_is_asked_for_later_does_not_take_the_place_of_the_present(asked: Asked) -> None:
    asked.by_id.read(NEW, 0)
    asked.told(a="2")
    asked.by_id.read(OLD, 3)
    asked.by_id.pause(OLD)
    asked.by_id.stop(OLD)
    for change in (asked.by_id.pause, asked.by_id.resume, asked.by_id.stop):
        change(OLD)
    assert asked.told(a="2") == []
    assert asked.reader.next == {PLACE: 0}
    assert not asked.reader.is_paused(PLACE)
    assert asked.told(CERTAIN_S, a="2") == []


def test_what_was_fetched_under_doubt_is_fetched_again(asked: Asked) -> None:
    asked.reader.next[PLACE] = 9
    asked.by_id.read_again(OLD, 6)
    assert asked.reader.next == {PLACE: 6}
    asked.told()
    asked.by_id.read_again(OLD, 4)
    asked.told(a="1")
    assert asked.reader.next == {PLACE: 4}


def test_who_reads_no_longer_is_told_of_no_loss(asked: Asked) -> None:
    asked.told()
    asked.by_id.stop(OLD)
    assert asked.told(CERTAIN_S) == []
    asked.by_id.read(OLD, 1)
    asked.by_id.stop(OLD)
    assert asked.told(a="1") == []
    assert asked.reader.next == {}
