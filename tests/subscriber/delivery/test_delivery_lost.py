"""What was lost before it was stamped, as a subscriber's machine tells it: at its place, once, to whom it concerns."""

from dataclasses import replace
from typing import Any

import pytest
from deliveries import Deliver
from delivery_world import Feed, grant, positioned
from sources import src

from totalorder.errors import Contradiction
from totalorder.sequencer.wire.control import Answer, Skipped
from totalorder.sequencer.wire.names import stamps_partition
from totalorder.sequencer.wire.position import SavedPosition, decode_saved, encode_saved
from totalorder.subscriber.delivery.effects import DeliverLost, ResumeEvents

AB = ("a", "b")
A, B = src("a"), src("b")


def skipped(g: int, begin: int, end: int, topic: str = "a") -> Skipped:
    who: dict[str, Any] = {"id": "job", "nonce": "n", "batch": 1, "incarnation": 1}
    source = src(topic)
    return Skipped(**who, g=g, offset=g, topic=source.topic, topic_id=source.topic_id, lost={0: (begin, end)})


def told(feed: Feed) -> list[tuple[int, str]]:
    """(g, what) in the order of delivery."""
    return [(each.g, "lost" if isinstance(each, DeliverLost) else str(each.topic)) for each in feed.all]


def test_it_comes_behind_all_that_lies_before_it_and_before_all_behind_it() -> None:
    feed = Feed.granted(AB)
    feed.answer(skipped(4, 1, 9))
    feed.stamps(("a", 1, 2, 0, {}), ("b", 1, 3, 0, {"a": 1}), ("b", 2, 5, 1, {}), ("a", 2, 6, 9, {"b": 2}), control_g=4)
    assert feed.events(("a", 0)) == [("a", 1)]
    assert told(feed) == [(2, "a")], "b 1 lies before it and has not come"
    feed.events(("b", 0))
    assert told(feed) == [(2, "a"), (3, "b"), (4, "lost")]
    feed.events(("a", 9), ("b", 1))
    assert told(feed)[3:] == [(5, "b"), (6, "a")]
    (loss,) = [each for each in feed.all if isinstance(each, DeliverLost)]
    assert loss == DeliverLost(topic="a", source=A, begin=1, end=9, n=0, g=4, tag=None, sequence=3, found=9)
    assert [each.sequence for each in feed.all] == [1, 2, 3, 4, 5]


def test_what_waited_behind_it_follows_at_once() -> None:
    feed = Feed.granted(AB)
    feed.events(("a", 0), ("a", 9), ("b", 0), ("b", 1))
    feed.answer(skipped(4, 1, 9))
    feed.stamps(("a", 1, 2, 0, {}), ("b", 1, 3, 0, {"a": 1}), ("b", 2, 5, 1, {}), ("a", 2, 6, 9, {"b": 2}), control_g=4)
    assert told(feed) == [(2, "a"), (3, "b"), (4, "lost"), (5, "b"), (6, "a")]


def test_it_waits_for_the_stamps_of_all_partitions() -> None:
    zero, one = (next(c for c in "abcdefgh" if stamps_partition(c, 2) == number) for number in (0, 1))
    feed = Feed(position=positioned((zero, one), partitions=2), partitions=2)
    feed.machine._live = True
    feed.answer(skipped(3, 0, 9, zero))
    feed.stamps(partition=0, g=3, control_g=3)
    assert told(feed) == []
    feed.stamps(partition=1, g=3, control_g=3)
    assert told(feed) == [(3, "lost")]


def test_who_does_not_hold_the_topic_is_told_nothing() -> None:
    feed = Feed.granted(AB)
    feed.answer(skipped(3, 0, 9, "c"))
    feed.stamps(("a", 1, 4, 0, {}), control_g=3)
    assert feed.events(("a", 0)) == [("a", 1)]
    assert told(feed) == [(4, "a")]


@pytest.mark.parametrize(("before", "holds"), [(True, True), (False, False)])
def test_the_set_in_force_at_its_place_decides(before: bool, holds: bool) -> None:
    """A change to b alone lies behind it, or before it."""
    feed = Feed.granted(AB)
    change_g, loss_g = (4, 3) if before else (3, 4)
    change = grant(["b"], g=change_g, clock={"a": 1, "b": 0}, former=AB, generation=2, next_offsets={B: 0})
    answers: list[Answer] = [skipped(loss_g, 1, 9), change]
    for answer in sorted(answers, key=lambda answer: answer.g):  # they come before what lies before them
        feed.answer(answer)
    feed.stamps(("a", 1, 2, 0, {}), ("b", 1, 5, 0, {}), control_g=4, g=5)
    feed.events(("b", 0), ("a", 0))
    assert told(feed) == [(2, "a")] + [(loss_g, "lost")] * holds + [(5, "b")]


def test_what_lies_before_the_grant_is_not_told() -> None:
    feed = Feed()
    feed.answer(skipped(1, 0, 9))
    feed.answer(grant(AB, g=2, clock={"a": 0, "b": 0}, next_offsets={A: 9, B: 0}))
    feed.stamps(("a", 1, 3, 9, {}), control_g=2)
    feed.events(("a", 9))
    assert told(feed) == [(3, "a")]


def test_a_repeated_answer_is_one() -> None:
    feed = Feed.granted(AB)
    feed.answer(skipped(3, 0, 9))
    feed.answer(skipped(3, 0, 9))
    feed.stamps(g=3, control_g=3)
    feed.answer(skipped(3, 0, 9))
    feed.stamps(("a", 1, 4, 9, {}), control_g=3)
    feed.events(("a", 9))
    assert told(feed) == [(3, "lost"), (4, "a")]


@pytest.mark.parametrize("first", [True, False])
def test_what_was_read_before_it_was_gone_is_forgotten(first: bool) -> None:
    """It has no stamp, though stamps are complete behind it; and it makes room."""
    feed = Feed.granted(AB, max_buffered=2)
    if first:
        feed.events(("a", 0), ("a", 1))
    feed.answer(skipped(3, 0, 9))
    assert (ResumeEvents(source=A) in feed.last_effects) == first
    if not first:
        feed.events(("a", 0), ("a", 1))
    feed.stamps(("a", 1, 4, 9, {}), control_g=3, next_offsets={A: 10})
    assert feed.events(("a", 9)) == [("a", 1)]
    assert told(feed) == [(3, "lost"), (4, "a")]


def test_who_stamps_what_was_called_lost_contradicts_itself() -> None:
    feed = Feed.granted(AB)
    feed.answer(skipped(3, 0, 9))
    with pytest.raises(Contradiction, match=r"a\[0\]@4 is stamped, as g 4, and was told as lost before that"):
        feed.stamps(("a", 1, 4, 4, {}), control_g=3)


def test_a_later_process_is_told_what_was_not_acknowledged_and_nothing_else() -> None:
    first = Feed.granted(AB)
    first.answer(skipped(3, 1, 9))
    first.stamps(("a", 1, 2, 0, {}), control_g=1)
    first.stamps(("b", 1, 4, 0, {}), control_g=3)
    first.events(("a", 0), ("b", 0))
    assert told(first) == [(2, "a"), (3, "lost"), (4, "b")]
    for acknowledged, owed in ((1, [(3, "lost"), (4, "b")]), (2, [(4, "b")])):
        first.machine.acknowledge(acknowledged)
        position = first.machine.position()
        saved = SavedPosition(id="s", generation=1, nonce="x", delivered_through=3, position=position)
        second = Feed(position=decode_saved(encode_saved(saved)).position, delivered_through=3)
        second.machine._live = True
        second.answer(skipped(3, 1, 9))
        second.replay(first.log)
        second.events(("b", 0))
        assert told(second) == owed
        assert {each.tag for each in second.all if isinstance(each, DeliverLost)} <= {"redelivered"}


def test_where_keys_name_topics_it_may_have_been_of_any() -> None:
    feed = Feed()
    feed.answer(replace(grant(AB, g=1, clock={"a": 0, "b": 0}), topic_by="key"))
    feed.answer(skipped(3, 0, 9, "all"))
    feed.stamps(g=3, control_g=3)
    (loss,) = feed.all
    assert isinstance(loss, DeliverLost)
    assert (loss.topic, loss.source) == (None, src("all"))


def test_dropping_the_subscription_drops_it_too() -> None:
    feed = Feed.granted(AB)
    feed.answer(skipped(3, 0, 9))
    feed.machine.drop()
    feed.stamps(g=3, control_g=3)
    assert [each for each in feed.all if not isinstance(each, Deliver)] == []


def test_where_frontiers_put_events_in_order_it_is_in_that_order_too() -> None:
    """The lease had run out, and the id was granted anew at g 6."""
    feed = Feed.granted(AB)
    feed.events(("b", 0), ("b", 1), ("a", 9))
    feed.answer(skipped(3, 0, 9))
    feed.answer(grant(AB, g=6, clock={"a": 1, "b": 2}, former=AB, generation=2, continuous=False))
    feed.stamps(("b", 1, 2, 0, {}), ("b", 2, 4, 1, {}), ("a", 1, 5, 9, {}), control_g=6, g=6)
    assert told(feed) == [(2, "b"), (3, "lost"), (4, "b"), (5, "a")]
