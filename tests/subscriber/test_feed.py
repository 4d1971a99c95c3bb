"""What is given to a machine of what comes, and what is read for it: above all, what is on its way when it turns."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from delivery_world import Row, grant, stamped
from sim_kafka import SimKafka, SimTransport

from totalorder.errors import EventsLost
from totalorder.sequencer.wire.codec import encode_stamps
from totalorder.sequencer.wire.control import Answer, encode_answer
from totalorder.sequencer.wire.stamps import Source, StampedBatch
from totalorder.subscriber.delivery.effects import PauseEvents, ReadEvents, ReadStamps, ResumeEvents
from totalorder.subscriber.delivery.events import GONE
from totalorder.subscriber.feed import Feed
from totalorder.subscriber.transport import Partition, Record

STAMPS, GRANTS, CUTS = (Partition(f"d.{topic}", 0) for topic in ("stamps", "grants", "cuts"))
GRANT = grant("a", g=1, clock={"a": 0})


class Taker:
    """Stands for the machine: writes down what it is given, and answers by `then`."""

    def __init__(self) -> None:
        self.kafka = SimKafka()
        for topic in ("d.stamps", "d.grants", "d.cuts", "orders"):
            self.kafka.create(topic, 1)
        self.source = Source("orders", self.kafka.ids["orders"], 0)
        self.events_at = Partition.of(self.source)
        self.transport = SimTransport(self.kafka, random.Random(0), lambda timeout_s: None, most=9, fair=True)
        self.feed = Feed(self.transport, "d", self)
        self.given: list[Any] = []
        self.then: Callable[[], None] = lambda: None

    def _give(self, what: Any) -> None:
        self.given.append(what)
        self.then()

    def take_answer(self, answer: Answer, /) -> None:
        self._give(answer.g)

    def take_stamps(self, batch: StampedBatch, offsets: range, /) -> None:
        self._give((batch.batch, offsets))

    def take_events(self, source: Source, records: list[Record], /) -> None:
        self._give([record.offset for record in records])

    def take_gone(self, source: Source, offset: int, /) -> None:
        self._give((source, offset))

    def take_others(self, records: list[Record], /) -> None:
        self._give([(record.topic, record.offset) for record in records])

    def read(self, offset: int = 0) -> None:
        self.feed.apply(ReadEvents(source=self.source, offset=offset))

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.kafka.append(Partition("orders", 0), value=b"v")

    def write_stamps(self, batch: StampedBatch, most_bytes: int = 10_000) -> int:
        """In how many parts."""
        parts = encode_stamps(batch, most_bytes)
        for part in parts:
            self.kafka.append(STAMPS, value=part.value, headers=part.headers)
        return len(parts)


def test_events_that_are_on_their_way_when_the_machine_turns_are_not_given() -> None:
    """They are not what it asked for, and come once more where they are."""
    taker = Taker()
    taker.publish(3)
    taker.read(1)
    taker.then = lambda: taker.read(0)
    taker.kafka.append(GRANTS, value=encode_answer(GRANT))
    records = taker.kafka.records(GRANTS, 0, 1) + taker.transport.poll(0)
    taker.feed.give(records)
    assert taker.given == [1], "the answer"
    taker.then = lambda: None
    taker.feed.pump(0)
    assert taker.given == [1, [0, 1, 2]]


def test_stamps_that_are_on_their_way_when_the_machine_turns_are_not_given() -> None:
    taker = Taker()
    for number in (2, 3, 4):
        taker.write_stamps(stamped([], partition=0, batch=number))
    taker.feed.apply(ReadStamps(partition=0, offset=1))
    taker.then = lambda: taker.feed.apply(ReadStamps(partition=0, offset=0))
    taker.feed.pump(0)
    taker.then = lambda: None
    taker.feed.pump(0)
    assert taker.given == [(3, range(1, 2)), (2, range(1)), (3, range(1, 2)), (4, range(2, 3))]


def test_a_batch_lies_where_all_its_parts_lie() -> None:
    """Whoever reads it again must begin at the first."""
    taker = Taker()
    taker.write_stamps(stamped([], partition=0, batch=2))
    rows: list[Row] = [("a", n, n + 1, n - 1, {}) for n in (1, 2, 3)]
    assert taker.write_stamps(stamped(rows, partition=0, batch=3), most_bytes=1) == 3
    taker.feed.apply(ReadStamps(partition=0, offset=1))
    taker.feed.pump(0)
    assert taker.given == [(3, range(1, 4))]


@pytest.mark.parametrize("paused", [False, True])
def test_what_the_machine_has_paused_stays_paused_when_the_application_takes_again(paused: bool) -> None:
    taker = Taker()
    taker.publish(1)
    taker.read()
    if paused:
        taker.feed.apply(PauseEvents(source=taker.source))
    taker.feed.hold(holding=True)
    taker.feed.pump(0)
    assert taker.given == []
    taker.feed.hold(holding=False)
    taker.feed.pump(0)
    assert taker.given == ([] if paused else [[0]])
    taker.feed.apply(ResumeEvents(source=taker.source))
    taker.feed.pump(0)
    assert taker.given == [[0]]


@pytest.mark.parametrize("holding", [False, True])
def test_what_kafka_has_removed_is_told_and_reading_goes_on_behind_it(holding: bool) -> None:
    taker = Taker()
    taker.publish(5)
    taker.read()
    taker.kafka.trim(Partition("orders", 0), 3)
    taker.feed.pump(0)
    taker.feed.hold(holding=holding)
    taker.feed.pump(0)
    assert taker.given == [(taker.source, 3), *([] if holding else [[3, 4]])]


def test_a_topic_that_has_vanished_is_told_behind_its_last_records() -> None:
    taker = Taker()
    taker.publish(2)
    taker.read()
    taker.feed.pump(0)
    taker.kafka.delete("orders")
    taker.feed.pump(0)
    taker.feed.pump(0)
    assert taker.given == [[0, 1], (taker.source, GONE)]
    taker.feed.apply(PauseEvents(source=taker.source))  # the machine may say that yet
    assert taker.feed.event_partitions == {}


def test_records_of_the_domains_own_are_counted_one_by_one() -> None:
    """Whoever reads them to their end sees by that whether some were missing."""
    taker = Taker()
    taker.publish(2)
    taker.read()
    for at in (CUTS, CUTS, GRANTS, STAMPS):
        taker.kafka.append(at, value=encode_answer(GRANT) if at == GRANTS else b"")
        taker.transport.read(at, 0)
    taker.feed.pump(0)
    assert taker.feed.given == {CUTS: 2, GRANTS: 1}


def test_cuts_that_kafka_has_removed_are_passed_over_and_stamps_are_not() -> None:
    taker = Taker()
    for at in (CUTS, CUTS, STAMPS, STAMPS):
        taker.kafka.append(at, value=b"")
    taker.transport.read(CUTS, 0)
    taker.kafka.trim(CUTS, 1)
    taker.feed.pump(0)
    taker.feed.pump(0)
    assert taker.given == [[("d.cuts", 1)]]
    taker.feed.apply(ReadStamps(partition=0, offset=0))
    taker.kafka.trim(STAMPS, 1)
    with pytest.raises(EventsLost):
        taker.feed.pump(0)
