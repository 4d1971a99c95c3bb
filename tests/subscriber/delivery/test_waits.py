"""What the machine says that it waits for, at each step of a delivery."""

from delivery_world import Feed, grant
from sources import src

from totalorder.sequencer.wire.names import stamps_partition
from totalorder.subscriber.delivery.waits import Wait

AB = ("a", "b")


def test_before_its_grant_it_waits_for_that_and_behind_it_for_nothing() -> None:
    feed = Feed()
    assert feed.machine.waits() == [Wait(kind="grant")]
    feed.answer(grant(AB, g=1, clock={"a": 0, "b": 0}, next_offsets={src("a"): 0, src("b"): 0}))
    assert feed.machine.waits() == []


def test_an_event_without_a_stamp_waits_for_stamps_in_each_partition() -> None:
    feed = Feed.granted(AB)
    feed.events(("a", 4), ("a", 5), ("b", 2))
    assert feed.machine.waits() == [
        Wait(kind="stamps", topic="a", source=src("a"), offset=4, stamps_partition=0),
        Wait(kind="stamps", topic="b", source=src("b"), offset=2, stamps_partition=0),
    ]


def test_a_stamp_without_its_event_waits_for_that() -> None:
    feed = Feed.granted(AB)
    feed.stamps(("a", 1, 2, 0, {}), ("b", 1, 3, 0, {"a": 1}))
    feed.events(("b", 0))
    assert feed.machine.waits() == [Wait(kind="event", topic="a", source=src("a"), offset=0, g=2)]
    feed.events(("a", 0))
    assert feed.machine.waits() == []


def test_stamps_that_come_in_one_partition_wait_for_those_of_the_other() -> None:
    home = {name: stamps_partition(name, 2) for name in "abcdefgh"}
    one = next(name for name, number in home.items() if number == 0)
    other = next(name for name, number in home.items() if number == 1)
    feed = Feed(partitions=2)
    topics = sorted((one, other))
    clock = dict.fromkeys(topics, 0)
    feed.answer(grant(topics, g=1, clock=clock, partitions=2, next_offsets={src(name): 0 for name in topics}))
    feed.stamps((one, 1, 3, 0, {other: 1}), partition=0, g=3)
    feed.events((one, 0))
    assert feed.machine.waits() == [Wait(kind="stamps", topic=one, source=src(one), offset=0, stamps_partition=1, g=3)]
    feed.stamps(partition=1, g=8, control_g=7)
    assert [(wait.kind, wait.stamps_partition) for wait in feed.machine.waits()] == [("answers", 1)]


def test_stamps_behind_an_answer_that_has_not_come_wait_for_that() -> None:
    feed = Feed.granted(AB)
    feed.events(("a", 0))
    feed.stamps(("a", 1, 8, 0, {}), control_g=7)
    assert [wait.kind for wait in feed.machine.waits()] == ["answers"]


def test_a_change_that_lies_ahead_waits_for_the_order_through_it() -> None:
    feed = Feed.granted(AB)
    feed.answer(grant(AB[:1], g=5, clock={"a": 2, "b": 0}, former=AB, generation=2, next_offsets={src("a"): 2}))
    assert feed.machine.waits() == [Wait(kind="stamps", stamps_partition=0, g=5)]


def test_an_end_waits_for_nothing() -> None:
    feed = Feed.granted(AB)
    feed.events(("a", 0))
    feed.machine.drop()
    assert feed.machine.waits() == []


def test_what_comes_twice_is_counted_and_dropped() -> None:
    feed = Feed.granted(AB)
    feed.events(("a", 0), ("a", 1), ("a", 1), ("a", 0))
    assert feed.machine.repeated_records == 2
    assert feed.machine.buffered().events == 2
    assert feed.machine.heads == [("a", 0)]
