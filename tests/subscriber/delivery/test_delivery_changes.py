"""Changes of the set while events are under way, and what a later process needs to know of them."""

from dataclasses import replace

import pytest
from delivery_world import BEGIN, Feed, Row, ended, grant, one_event, positioned, stamped
from sources import src

from totalorder.errors import Contradiction
from totalorder.sequencer.wire.names import stamps_partition
from totalorder.sequencer.wire.position import StampsMark
from totalorder.subscriber.delivery.effects import PauseStamps, ReadEvents, ReadStamps, ResumeStamps, StopStamps

AB = ("a", "b")
ZERO, ONE = (next(c for c in "abcdefgh" if stamps_partition(c, 2) == number) for number in (0, 1))
BOTH = (ZERO, ONE)


def test_a_topic_that_left_and_came_back_is_read_from_where_it_came_back() -> None:
    """Both changes are known when the first is acknowledged: the events between them belong to nobody."""
    feed = Feed.granted(AB)
    feed.answer(grant(("b",), former=AB, g=3, generation=2, clock={"a": 1, "b": 0}))
    back = grant(AB, former=("b",), g=6, generation=3, clock={"a": 3, "b": 0}, next_offsets={src("a"): 3})
    feed.answer(back)
    feed.stamps(("a", 1, 2, 0, {}), g=2, control_g=1)
    feed.events(("a", 0))
    feed.machine.acknowledge(1)
    position = feed.machine.position()
    assert (position.g, position.switched_g) == (6, 6)
    assert position.sources == {src("a"): 3, src("b"): 0}
    later = Feed(position=position)
    later.answer(replace(back, g=9, generation=4, former=AB, clock={"a": 4, "b": 0}))
    later.events(*(("a", offset) for offset in range(position.sources[src("a")], 4)))
    later.again(stamped([("a", 4, 7, 3, {})], partition=0, batch=3, g=9, control_g=9, previous=feed.last.digest))
    assert later.names == [("a", 4)]


def test_a_shared_event_partition_is_read_from_where_another_of_its_topics_joined() -> None:
    """By key: what lies before the change, of a topic that was not in the set, has no stamp for this subscriber."""
    source, feed = src("k"), Feed()
    first = grant(("a",), g=1, clock={"a": 0}, next_offsets={source: 0})
    feed.answer(replace(first, topic_by="key"))
    more = grant(AB, former=("a",), g=5, generation=2, clock={"a": 1, "b": 2}, next_offsets={source: 3})
    feed.answer(replace(more, topic_by="key"))
    batch = replace(stamped([("a", 1, 2, 0, {})], partition=0, g=2), sources=(source,), ends=(1,))
    feed.again(batch.sealed())
    one_event(feed.machine, source=source, offset=0, topic="a", crc=0)
    feed.machine.acknowledge(1)
    assert (feed.machine.topics, feed.machine.position().sources) == (AB, {source: 3})


def test_a_stamps_partition_that_is_read_again_holds_no_position_back() -> None:
    """What was not released when it was stopped is never released: it must not be waited for."""
    both = (ZERO, ONE)
    feed = Feed(position=positioned(both, partitions=2), partitions=2)
    feed.answer(grant(both, former=both, g=2, generation=2, clock=dict.fromkeys(both, 0), partitions=2))
    feed.stamps(partition=0, g=9, control_g=9)  # not released: answers are known through 4
    feed.answer(grant((ONE,), former=both, g=4, generation=3, clock=dict.fromkeys(both, 0), partitions=2))
    assert StopStamps(partition=0) in feed.last_effects
    back = grant(both, former=(ONE,), g=11, generation=4, clock=dict.fromkeys(both, 0), partitions=2)
    feed.answer(replace(back, batch=3))
    feed.stamps(partition=0, g=12, control_g=11)
    mark = feed.machine.position().stamps[0]
    assert (mark.offset, mark.batch) == (feed.offsets[-1] + 1, feed.last.batch)


def test_a_stamps_partition_that_is_read_again_is_loaded_with_nothing() -> None:
    """What it held when it was stopped counts no more: else it would be paused, and never resumed."""
    feed = Feed(position=positioned(BOTH, partitions=2), partitions=2, max_waiting=2)
    feed.answer(grant(BOTH, former=BOTH, g=2, generation=2, clock=dict.fromkeys(BOTH, 0), partitions=2))
    feed.stamps((ZERO, 1, 8, 0, {}), (ZERO, 2, 9, 1, {}), partition=0, g=9, control_g=9)
    assert feed.last_effects == [PauseStamps(partition=0)]
    feed.answer(grant((ONE,), former=BOTH, g=4, generation=3, clock=dict.fromkeys(BOTH, 0), partitions=2))
    assert StopStamps(partition=0) in feed.last_effects
    back = grant(BOTH, former=(ONE,), g=11, generation=4, clock={ZERO: 2, ONE: 0}, partitions=2)
    feed.answer(replace(back, batch=3, stamps_ends={0: BEGIN + 5}, next_offsets={src(ZERO): 2}))
    assert ReadStamps(partition=0, offset=BEGIN + 5) in feed.last_effects
    assert feed.stamps((ZERO, 3, 12, 2, {}), partition=0, control_g=11) == []
    assert feed.stamps((ZERO, 4, 13, 3, {}), partition=0, control_g=11) == [PauseStamps(partition=0)]
    assert feed.events((ZERO, 2)) == [(ZERO, 3)]
    assert ResumeStamps(partition=0) in feed.last_effects


def test_a_stamps_partition_that_is_read_no_longer_holds_no_offset_back() -> None:
    """Else the offset of an event partition in which nothing happens for us would age out of retention."""
    feed = Feed(position=positioned(BOTH, partitions=2), partitions=2)
    feed.answer(grant((ONE,), former=BOTH, g=2, generation=2, clock=dict.fromkeys(BOTH, 0), partitions=2))
    feed.stamps(partition=1, g=9, control_g=2, next_offsets={src(ONE): 40})
    assert feed.machine.position().sources == {src(ONE): 40}


def test_a_position_knows_where_the_stamps_of_a_coming_set_lie() -> None:
    position = replace(positioned((ZERO,), partitions=2), stamps={0: StampsMark(offset=BEGIN, batch=1)})
    feed = Feed(position=position, partitions=2)
    coming = grant(BOTH, former=(ZERO,), g=4, generation=2, clock={ZERO: 1, ONE: 0}, partitions=2)
    feed.answer(replace(coming, stamps_ends={0: BEGIN, 1: BEGIN + 5}))
    assert feed.last_effects[0] == ReadStamps(partition=1, offset=BEGIN + 5)
    position = feed.machine.position()
    assert ({number: mark.offset for number, mark in position.stamps.items()}, len(position.pending)) == (
        {0: BEGIN, 1: BEGIN + 5},
        1,
    )


def test_a_change_that_lies_ahead_outlives_its_answer() -> None:
    """Compaction keeps an id's last answer only: that c joined at 4 is known from the position alone."""
    feed = Feed(position=positioned(AB))
    feed.answer(grant(("b", "c"), former=AB, g=4, generation=2, clock={"a": 1, "b": 0, "c": 0}))
    later = Feed(position=feed.machine.position())
    again = grant(("b", "c"), former=("b", "c"), g=9, generation=3, clock={"b": 0, "c": 1})
    later.answer(again)
    later.stamps(("a", 1, 2, 0, {}), ("c", 1, 5, 0, {}), g=9, control_g=9)
    assert later.events(("a", 0), ("c", 0)) == [("a", 1), ("c", 1)]


def test_what_waits_from_before_a_topic_joined_its_event_partition_is_kept() -> None:
    """By key: the partition is read anew for the topic that joins, and the old one's event lies before that."""
    source, feed = src("k"), Feed()
    first = grant(("a",), g=1, clock={"a": 0}, next_offsets={source: 0})
    feed.answer(replace(first, topic_by="key"))
    for offset, topic in enumerate("aab"):
        assert one_event(feed.machine, source=source, offset=offset, topic=topic, crc=0) == []
    more = grant(AB, former=("a",), g=4, generation=2, clock={"a": 2, "b": 0}, next_offsets={source: 2})
    effects = feed.answer(replace(more, topic_by="key"))
    assert effects[0] == ReadEvents(source=source, offset=0)
    rows: list[Row] = [("a", 1, 2, 0, {}), ("a", 2, 3, 1, {}), ("b", 1, 5, 2, {})]
    batch = replace(stamped(rows, partition=0, g=5, control_g=4), sources=(source,), ends=(3,))
    one_source = replace(batch.rows, source=batch.rows.source * 0)
    feed.again(replace(batch, rows=one_source).sealed())
    for offset, topic in enumerate("aab"):
        feed._keep(one_event(feed.machine, source=source, offset=offset, topic=topic, crc=0))
    assert feed.names == [("a", 1), ("a", 2), ("b", 1)]


def test_what_a_topic_had_before_it_joined_is_let_pass_though_it_is_read_behind_the_change() -> None:
    """By key: the partition is read anew from an event of the old topic on, and with that the change is passed."""
    source, feed = src("k"), Feed()
    feed.answer(replace(grant(("a",), g=1, clock={"a": 0}, next_offsets={source: 0}), topic_by="key"))
    for offset, topic in enumerate("abb"):
        assert one_event(feed.machine, source=source, offset=offset, topic=topic, crc=0) == []
    more = grant(AB, former=("a",), g=4, generation=2, clock={"a": 1, "b": 1}, next_offsets={source: 2})
    assert ReadEvents(source=source, offset=0) in feed.answer(replace(more, topic_by="key"))
    rows: list[Row] = [("a", 1, 2, 0, {}), ("b", 2, 5, 2, {})]
    batch = replace(stamped(rows, partition=0, g=5, control_g=4), sources=(source,), ends=(3,))
    feed.again(replace(batch, rows=replace(batch.rows, source=batch.rows.source * 0)).sealed())
    for offset, topic in enumerate("abb"):
        feed._keep(one_event(feed.machine, source=source, offset=offset, topic=topic, crc=0))
    assert feed.names == [("a", 1), ("b", 2)]
    assert feed.machine.buffered().events == 0


def test_what_joins_is_counted_from_the_change_on_also_where_order_is_by_pairs() -> None:
    feed = Feed.granted(("a",), m=2)
    more = grant(AB, former=("a",), g=3, generation=2, clock={"a": 1, "b": 4}, next_offsets={src("b"): 4}, m=2)
    feed.answer(more)
    feed.stamps(("a", 1, 2, 0, {}), ("b", 5, 4, 4, {}), g=4, control_g=3)
    assert feed.events(("a", 0), ("b", 4)) == [("a", 1), ("b", 5)]


def test_what_lies_behind_a_change_waits_for_it_also_where_order_is_by_pairs() -> None:
    """With m = 2 nothing else would hold it: its entries tell of nothing that is missing."""
    feed = Feed.granted(AB, m=2)
    feed.answer(grant(AB, former=AB, g=3, generation=2, clock={"a": 1, "b": 0}, m=2))
    feed.stamps(("a", 1, 2, 0, {}), ("b", 1, 4, 0, {}), g=4, control_g=3)
    assert feed.events(("b", 0)) == []
    assert feed.events(("a", 0)) == [("a", 1), ("b", 1)]


def test_what_waits_for_a_stamps_partition_goes_on_when_that_is_dropped() -> None:
    """No batch may follow for hours: nothing else would set it going."""
    feed = Feed(partitions=2)
    feed.answer(grant(BOTH, g=1, clock=dict.fromkeys(BOTH, 0), next_offsets={src(ZERO): 0}, partitions=2))
    feed.answer(grant((ONE,), former=BOTH, g=3, generation=2, clock={ZERO: 1, ONE: 0}, partitions=2))
    feed.stamps((ZERO, 1, 2, 0, {}), partition=0, g=2, control_g=2)
    feed.stamps(partition=1, g=2, control_g=2)
    feed.stamps((ONE, 1, 4, 0, {}), partition=1, g=4, control_g=3)
    assert feed.events((ONE, 0)) == []  # partition 0 may still name a smaller offset
    assert feed.events((ZERO, 0)) == [(ZERO, 1), (ONE, 1)]


def test_stamps_that_came_before_a_gap_in_the_chain_are_put_in_order_too() -> None:
    feed = Feed(position=positioned(AB))
    feed.answer(grant(AB, former=AB, g=2, generation=2, clock=dict.fromkeys(AB, 0)))
    feed.stamps(("a", 1, 4, 0, {}), ("b", 1, 3, 0, {}), g=6, control_g=2)
    feed.answer(ended("expired", generation=2, g=5, clock={"a": 1, "b": 1}))
    feed.answer(grant(AB, former=AB, g=6, generation=5, clock={"a": 1, "b": 1}, continuous=False))
    assert feed.events(("a", 0), ("b", 0)) == [("b", 1), ("a", 1)]
    assert feed.machine.g == 6


def test_a_stamp_for_an_offset_before_the_position_is_a_contradiction() -> None:
    feed = Feed(position=replace(positioned(AB), sources={src("a"): 5, src("b"): 0}))
    feed.answer(grant(AB, former=AB, g=2, generation=2, clock=dict.fromkeys(AB, 0)))
    with pytest.raises(Contradiction, match=r"a\[0\]@4 is stamped after 4"):
        feed.stamps(("a", 1, 3, 4, {}), control_g=2)
