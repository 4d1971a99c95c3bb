"""Where a later process goes on, to the offset: neither behind anything that is owed, nor before what is done with."""

import json
from dataclasses import replace

import pytest
from deliveries import Deliver
from delivery_world import Feed, Row, ended, grant, one_event, plain, positioned, stamped
from sources import src

from totalorder.errors import Contradiction, EventsLost, Fenced, WireError
from totalorder.sequencer.wire.control import Renewed, encode_answer
from totalorder.sequencer.wire.names import stamps_partition
from totalorder.sequencer.wire.position import SavedPosition, decode_saved, encode_saved
from totalorder.sequencer.wire.stamps import Source, StampedBatch
from totalorder.subscriber.delivery.effects import Effect, Finished

AB = ("a", "b")
ZERO, ONE = (next(c for c in "abcdefgh" if stamps_partition(c, 2) == number) for number in (0, 1))
BOTH = (ZERO, ONE)
NONE_YET = dict.fromkeys(BOTH, 0)


def going_on() -> Feed:
    """A later process of one that was granted BOTH, each stamped in a partition of its own."""
    feed = Feed(position=positioned(BOTH, partitions=2), partitions=2)
    feed.answer(grant(BOTH, former=BOTH, g=2, generation=2, clock=NONE_YET, partitions=2))
    return feed


def in_one_source(batch: StampedBatch, source: Source, end: int) -> StampedBatch:
    """The batch with all its events in one event partition, as where they are named by key."""
    rows = replace(batch.rows, source=batch.rows.source * 0)
    return replace(batch, rows=rows, sources=(source,), ends=(end,)).sealed()


def tags(effects: list[Effect]) -> list[str | None]:
    return [effect.tag for effect in plain(effects) if isinstance(effect, Deliver)]


def test_all_that_was_promised_is_flagged_and_nothing_behind_it() -> None:
    feed = Feed(position=positioned(AB), delivered_through=3)
    feed.answer(grant(AB, former=AB, g=2, generation=2, clock={"a": 0, "b": 0}))
    feed.events(("a", 0), ("a", 1))
    assert tags(feed.stamps(("a", 1, 3, 0, {}), ("a", 2, 4, 1, {}), control_g=2)) == ["redelivered", None]


def test_an_event_waits_for_one_before_it_in_its_partition_whose_stamp_is_still_to_come() -> None:
    source, feed = src("k"), Feed(partitions=2)
    first = grant(BOTH, g=1, clock=NONE_YET, next_offsets={source: 0}, partitions=2)
    feed.answer(replace(first, topic_by="key"))
    for offset, topic in enumerate(BOTH):
        assert one_event(feed.machine, source=source, offset=offset, topic=topic, crc=0) == []
    earlier: Row = (ZERO, 1, 2, 0, {})
    later: Row = (ONE, 1, 3, 1, {})
    one, zero = (
        in_one_source(stamped([row], partition=part, partitions=2, g=3), source, 2)
        for part, row in ((1, later), (0, earlier))
    )
    assert feed.delivered(feed.again(one)) == []
    assert feed.delivered(feed.again(zero)) == [(ZERO, 1), (ONE, 1)]


def test_behind_an_acknowledged_event_reading_goes_on() -> None:
    """Though another stamps partition has not told how far the event partition has come."""
    feed = going_on()
    feed.stamps((ZERO, 1, 3, 0, {}), partition=0, g=3, control_g=2)
    feed.events((ZERO, 0))
    feed.machine.acknowledge(1)
    assert feed.machine.position().sources == {src(ZERO): 1, src(ONE): 0}


def test_of_what_comes_in_one_block_any_part_may_be_acknowledged() -> None:
    feed = Feed.granted(AB)
    feed.events(("a", 0), ("a", 1), ("b", 0))
    assert len(feed.delivered(feed.stamps(("a", 1, 2, 0, {}), ("a", 2, 3, 1, {}), ("b", 1, 4, 0, {}), g=4))) == 3
    places = []
    for sequence in (1, 2, 3):
        feed.machine.acknowledge(sequence)
        position = feed.machine.position()
        counts = {topic: position.clock[number] for number, topic in position.topics.items()}
        places.append((position.g, counts, [position.sources[src(topic)] for topic in AB]))
    assert places == [(2, {"a": 1, "b": 0}, [1, 0]), (3, {"a": 2, "b": 0}, [2, 0]), (4, {"a": 2, "b": 1}, [2, 1])]


def test_what_one_stamps_partition_knows_is_not_known_of_all() -> None:
    """The other may have a stamp of what lies before."""
    feed = going_on()
    feed.stamps(partition=0, g=9, control_g=2, next_offsets={src(ONE): 9})
    assert feed.machine.position().sources[src(ONE)] == 0
    feed.stamps((ONE, 1, 5, 4, {}), partition=1, g=9, control_g=2, next_offsets={src(ONE): 9})
    assert feed.machine.position().sources[src(ONE)] == 4


def test_one_that_is_over_is_deposed_too() -> None:
    """What it has ready may be handed out only while nobody else begins with it."""
    feed = Feed.granted(AB)
    feed.answer(ended("unsubscribed", generation=2, g=3, clock={"a": 0, "b": 0}))
    feed.stamps(g=3, control_g=3)
    with pytest.raises(Fenced, match="generation 3"):
        feed.answer(grant(AB, g=5, generation=3, nonce="other", clock={"a": 0, "b": 0}))


@pytest.mark.parametrize(("reason", "generation"), [("expired", 2), ("unsubscribed", 3)])
def test_the_end_of_what_another_process_was_granted_deposes_too(reason: str, generation: int) -> None:
    """Compaction may have left nothing else of it."""
    feed = Feed.granted(AB)
    with pytest.raises(Fenced, match=f"generation {generation}"):
        feed.answer(ended(reason, generation=generation, g=5, nonce="other", clock={"a": 0, "b": 0}))


def test_who_only_ends_a_subscription_deposes_nobody() -> None:
    feed = Feed.granted(AB)
    effects = feed.answer(ended("unsubscribed", generation=2, g=5, nonce="operator", clock={"a": 0, "b": 0}))
    assert Finished(g=5, reason="unsubscribed") in effects


def test_a_topic_that_left_and_came_back_counts_from_where_it_came_back() -> None:
    """Both changes are known when its next stamp comes; what was between them was for others."""
    feed = Feed(position=positioned(("a",)))
    feed.answer(grant(AB, former=("a",), g=5, generation=2, clock={"a": 1, "b": 3}))
    feed.answer(grant(("a",), former=AB, g=10, generation=3, clock={"a": 1, "b": 3}))
    feed.answer(grant(AB, former=("a",), g=20, generation=4, clock={"a": 1, "b": 5}, next_offsets={src("b"): 5}))
    between: list[Row] = [("b", 4, 11, 3, {}), ("b", 5, 12, 4, {})]
    feed.stamps(("a", 1, 3, 0, {}), *between, ("b", 6, 21, 5, {}), g=21, control_g=20)
    assert feed.events(("b", 5), ("a", 0)) == [("a", 1), ("b", 6)]


def test_a_change_that_was_known_does_not_set_reading_back() -> None:
    """A former process knew more of the event partition than was known at the change."""
    change = grant(AB, former=AB, g=5, generation=2, clock={"a": 0, "b": 0}, next_offsets={src("a"): 3, src("b"): 0})
    feed = Feed(position=replace(positioned(AB), sources={src("a"): 40, src("b"): 0}, pending=(change,)))
    feed.answer(grant(AB, former=AB, g=6, generation=3, clock={"a": 0, "b": 0}))
    feed.stamps(g=6, control_g=6)
    position = feed.machine.position()
    assert (position.switched_g, position.pending) == (6, ())
    assert position.sources == {src("a"): 40, src("b"): 0}


def test_what_lies_behind_a_lapse_is_owed_to_the_process_that_heals_it() -> None:
    """It stood in the same batch as what came before the lapse, and in the same event partition."""
    feed = Feed.granted(AB)
    feed.answer(ended("expired", generation=1, g=3, clock={"a": 1, "b": 0}))
    feed.events(("a", 0), ("a", 1))
    assert feed.delivered(feed.stamps(("a", 1, 2, 0, {}), ("a", 2, 5, 1, {}), g=5, control_g=3)) == [("a", 1)]
    feed.machine.acknowledge(1)
    later = Feed(position=feed.machine.position())
    later.answer(ended("expired", generation=1, g=3, clock={"a": 1, "b": 0}))
    later.answer(grant(AB, g=6, generation=2, continuous=False, clock={"a": 2, "b": 0}))
    later.replay(feed.log)
    later.again(stamped([], partition=0, batch=3, g=6, control_g=6, previous=feed.last.digest))
    assert later.events(("a", 1)) == [("a", 2)]


def test_one_stamp_that_is_missing_is_a_loss() -> None:
    feed = Feed.granted(AB)
    with pytest.raises(EventsLost, match=r"the stamps 1 to 1 of 'a' are missing before g 3"):
        feed.stamps(("a", 2, 3, 1, {}))


@pytest.mark.parametrize("names", [{0: "x"}, {7: "a"}])
def test_another_numbering_of_topics_is_a_contradiction(names: dict[int, str]) -> None:
    feed = Feed.granted(AB)
    with pytest.raises(Contradiction, match="has another number for topic"):
        feed.again(replace(stamped([], partition=0), names=names).sealed())


def test_an_event_that_is_read_twice_waits_once() -> None:
    """Else its second copy would stand before all that follows, for ever."""
    feed = Feed.granted(AB)
    assert feed.events(("a", 0), ("a", 0), ("a", 1)) == []
    assert feed.delivered(feed.stamps(("a", 1, 2, 0, {}), ("a", 2, 3, 1, {}))) == [("a", 1), ("a", 2)]


def saved(generation: int, g: int, switched_g: int = 1) -> SavedPosition:
    position = replace(positioned(AB), g=g, switched_g=switched_g)
    return SavedPosition(id="s", generation=generation, nonce="me", delivered_through=0, position=position)


def test_the_newest_position_is_that_of_the_newest_process_and_not_the_furthest() -> None:
    """A process that was deposed may still save what it acknowledged, and knows of no change since."""
    ascending = [saved(1, 9), saved(2, 3), saved(2, 4, 1), saved(2, 4, 4), saved(2, 5, 1)]
    descending = ascending[::-1]
    assert sorted(descending, key=lambda one: one.age) == ascending


def test_no_process_overwrites_what_a_later_one_has_saved() -> None:
    assert (saved(1, 9).key, saved(2, 3).key) == (b"s/1", b"s/2")


def test_only_changes_may_be_pending() -> None:
    record = json.loads(encode_saved(saved(1, 1)))
    renewed = Renewed(id="s", generation=1, nonce="me", g=3, offset=9, expires_ms=0, batch=2, incarnation=1)
    record["pending"] = [json.loads(encode_answer(renewed))]
    with pytest.raises(WireError, match="a pending answer changes nothing"):
        decode_saved(json.dumps(record).encode())


def test_what_entries_put_in_line_waits_for_frontiers_once_links_are_missing() -> None:
    """Behind a link that is gone entries may leave out what this one is owed."""
    feed = going_on()
    assert feed.stamps((ONE, 1, 5, 0, {}), partition=1, g=5, control_g=2) == [], "its event has not come"
    feed.answer(
        grant(BOTH, former=BOTH, g=9, generation=4, clock={ZERO: 0, ONE: 1}, continuous=False, partitions=2, nonce="me")
    )
    assert feed.events((ONE, 0)) == []
    assert feed.delivered(feed.stamps(partition=0, g=5, control_g=2)) == [(ONE, 1)]


def test_what_lies_behind_a_change_counts_for_entries_behind_it_too() -> None:
    """Known by its entries before the change is passed, it is in line only then: the change brings its own clock."""
    feed = going_on()
    feed.answer(grant(BOTH, former=BOTH, g=4, generation=3, clock={ZERO: 1, ONE: 0}, partitions=2))
    feed.stamps((ONE, 1, 5, 0, {}), partition=1, g=5, control_g=4)
    feed.stamps((ZERO, 1, 3, 0, {}), partition=0, g=5, control_g=4)
    assert feed.events((ZERO, 0)) == [(ZERO, 1)]
    feed.stamps((ZERO, 2, 6, 1, {ONE: 1}), partition=0, g=6, control_g=4)
    feed.stamps(partition=1, g=6, control_g=4)
    assert feed.events((ONE, 0), (ZERO, 1)) == [(ONE, 1), (ZERO, 2)]


def test_what_comes_before_something_that_was_delivered_contradicts_it() -> None:
    """Here an entry is missing: nothing told the one partition that the other has something before."""
    feed = going_on()
    feed.stamps((ONE, 1, 11, 0, {}), partition=1, g=11, control_g=2)
    assert feed.events((ONE, 0)) == [(ONE, 1)]
    feed.events((ZERO, 0))
    with pytest.raises(Contradiction, match="has g 10, and 11 has passed"):
        feed.stamps((ZERO, 1, 10, 0, {}), partition=0, g=11, control_g=2)


def test_what_an_acknowledged_change_dropped_is_forgotten_though_a_later_one_brings_it_again() -> None:
    feed = Feed.granted(AB)
    feed.stamps(("a", 1, 2, 0, {}))
    assert feed.events(("a", 0)) == [("a", 1)]
    ends = {src("a"): 1, src("b"): 3}
    feed.answer(grant(("a",), former=AB, g=3, generation=2, clock={"a": 1, "b": 0}, next_offsets=ends))
    feed.machine.acknowledge(1)
    feed.answer(grant(AB, former=("a",), g=9, generation=3, clock={"a": 2, "b": 4}, next_offsets={src("b"): 5}))
    assert feed.machine.position().sources == {src("a"): 1}
