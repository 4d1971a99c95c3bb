"""The delivery machine alone: what it lets through, in which order, and what it refuses."""

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from deliveries import Deliver
from delivery_world import BEGIN, Feed, Row, ended, event, grant, one_event, positioned, stamped
from sources import src

from totalorder.errors import Contradiction, EventsLost, Fenced, WireError
from totalorder.sequencer.wire.control import Renewed
from totalorder.sequencer.wire.names import stamps_partition
from totalorder.sequencer.wire.position import Progress, SavedPosition, decode_saved, encode_saved
from totalorder.subscriber.delivery.effects import (
    Deliveries,
    Effect,
    Finished,
    Granted,
    PauseEvents,
    PauseStamps,
    ReadEvents,
    ReadStamps,
    ResumeEvents,
    ResumeStamps,
    StopEvents,
    StopStamps,
    Switched,
)
from totalorder.subscriber.delivery.machine import Delivery

# Rows are (topic, n, g, offset, entries); topics a, b, c … have ids 0, 1, 2 … and one Kafka partition each.
AB = ("a", "b")


def test_begins_at_its_grant() -> None:
    feed = Feed()
    assert feed.machine.start() == []
    effects = feed.answer(grant(AB, g=5, clock={"a": 2, "b": 0}, next_offsets={src("a"): 7}))
    assert effects == [
        ReadStamps(partition=0, offset=10),
        ReadEvents(source=src("a"), offset=7),
        Granted(generation=1, g=5, lease_s=0),
    ]


def test_an_entry_that_is_passed_is_met() -> None:
    """`>=` and not `==`: b1 asks for a >= 0 and comes when a has gone on to 1 long ago."""
    feed = Feed.granted(AB)
    feed.stamps(("a", 1, 2, 0, {}), ("b", 1, 3, 0, {"a": 0}))
    assert feed.events(("a", 0), ("b", 0)) == [("a", 1), ("b", 1)]


def test_waits_for_entries_for_its_predecessor_and_for_the_event() -> None:
    feed = Feed.granted(AB)
    feed.stamps(("a", 1, 2, 0, {}), ("a", 2, 3, 1, {}), ("b", 1, 4, 0, {"a": 2}))
    assert feed.events(("b", 0)) == []
    assert feed.events(("a", 0)) == [("a", 1)]
    assert feed.events(("a", 1)) == [("a", 2), ("b", 1)]


def test_events_may_come_long_before_their_stamps() -> None:
    feed = Feed.granted(AB)
    assert feed.events(("b", 0), ("a", 0)) == []
    assert feed.delivered(feed.stamps(("a", 1, 2, 0, {}), ("b", 1, 3, 0, {"a": 1}))) == [("a", 1), ("b", 1)]


def test_no_stamp_passes_before_the_answers_of_its_batch_are_known() -> None:
    feed = Feed.granted(AB)
    feed.events(("a", 0))
    assert feed.stamps(("a", 1, 2, 0, {}), control_g=3, g=3) == []
    other = Renewed(id="other", generation=1, nonce="x", g=3, offset=9, expires_ms=0, batch=2, incarnation=1)
    assert feed.delivered(feed.answer(other)) == [("a", 1)]


def test_changes_its_set_exactly_at_the_grant() -> None:
    feed = Feed.granted(AB)
    feed.events(("a", 0), ("b", 0), ("b", 1))
    effects = feed.answer(
        grant(("b", "c"), former=AB, g=4, generation=2, clock={"a": 1, "b": 1, "c": 3}, next_offsets={src("c"): 3})
    )
    assert effects == [ReadEvents(source=src("c"), offset=3), Granted(generation=2, g=4, lease_s=0)]
    feed.events(("c", 3))
    effects = feed.stamps(
        ("a", 1, 2, 0, {}), ("b", 1, 3, 0, {"a": 1}), ("c", 4, 5, 3, {}), ("a", 2, 6, 1, {}), ("b", 2, 7, 1, {"c": 4}),
        control_g=4,
    )  # fmt: skip
    assert feed.delivered(effects) == [("a", 1), ("b", 1), ("c", 4), ("b", 2)]
    assert [effect for effect in effects if not isinstance(effect, Deliver)] == [
        StopEvents(source=src("a")),
        Switched(g=4, topics=("b", "c")),
    ]


def test_a_new_process_deposes_this_one() -> None:
    feed = Feed.granted(AB)
    feed.events(("a", 0))
    with pytest.raises(Fenced, match="generation 2"):
        feed.answer(grant(AB, former=AB, g=9, generation=2, nonce="other", clock={"a": 0, "b": 0}))


def test_stops_behind_the_end_of_the_subscription() -> None:
    feed = Feed.granted(AB)
    feed.events(("a", 0), ("a", 1))
    feed.answer(ended("unsubscribed", generation=2, g=3, clock={"a": 1, "b": 0}))
    effects = feed.stamps(("a", 1, 2, 0, {}), ("a", 2, 4, 1, {}), control_g=3)
    assert feed.delivered(effects) == [("a", 1)]
    assert effects[-1] == Finished(g=3, reason="unsubscribed")
    assert feed.events(("a", 2)) == []


ZERO, ONE = (next(c for c in "abcdefgh" if stamps_partition(c, 2) == number) for number in (0, 1))


def test_a_lapse_is_healed_in_the_order_of_frontiers() -> None:
    """Between lapse and new grant stamps may lack entries: the least g goes first, once all is known through it."""
    both = (ZERO, ONE)
    feed = Feed(position=positioned(both, partitions=2), partitions=2)
    feed.answer(ended("expired", generation=1, g=3, clock=dict.fromkeys(both, 0)))
    feed.answer(grant(both, g=6, generation=2, continuous=False, clock=dict.fromkeys(both, 1), partitions=2))
    feed.events((ZERO, 0), (ONE, 0), (ZERO, 1))
    assert feed.stamps((ONE, 1, 5, 0, {}), partition=1, control_g=6, g=8) == []
    effects = feed.stamps((ZERO, 1, 4, 0, {}), (ZERO, 2, 7, 1, {ONE: 1}), partition=0, control_g=6, g=8)
    assert feed.delivered(effects) == [(ZERO, 1), (ONE, 1), (ZERO, 2)]


def test_frontiers_are_those_of_the_set_in_force() -> None:
    """The former set's stamps lie in another partition, which is read no longer: nothing waits for it."""
    feed = Feed(position=positioned((ZERO,), partitions=2), partitions=2)
    feed.answer(grant((ONE,), former=(ZERO,), g=2, generation=2, clock={ZERO: 0, ONE: 0}, partitions=2))
    feed.answer(grant((ONE,), former=(ONE,), g=6, generation=4, clock={ONE: 1}, partitions=2))  # a link is missing
    feed.stamps((ONE, 1, 5, 0, {}), partition=1, control_g=6, g=8)
    assert feed.events((ONE, 0)) == [(ONE, 1)]


def test_with_m_2_a_lapse_stops_the_subscriber_after_what_came_before_it() -> None:
    feed = Feed(position=positioned(AB, m=2), m=2)
    feed.answer(ended("expired", generation=1, g=3, clock={"a": 1, "b": 0}))
    feed.answer(grant(AB, g=6, generation=2, continuous=False, clock={"a": 1, "b": 1}, m=2))
    feed.stamps(("a", 1, 2, 0, {}), ("b", 1, 5, 0, {}), control_g=6, g=8)
    with pytest.raises(EventsLost, match="lease ran out at g 3"):
        feed.events(("a", 0), ("b", 0))


def test_a_missing_link_of_the_chain_is_bridged_by_frontiers() -> None:
    feed = Feed(position=positioned(AB))
    feed.answer(grant(AB, former=("a",), g=6, generation=4, clock={"a": 1, "b": 1}))
    feed.events(("a", 0), ("b", 0))
    assert feed.delivered(feed.stamps(("b", 1, 4, 0, {}), ("a", 1, 5, 0, {}), control_g=6, g=6)) == [("b", 1), ("a", 1)]
    assert feed.machine.g == 6


def test_tags_what_a_former_process_may_have_delivered() -> None:
    feed = Feed(position=positioned(AB), delivered_through=4)
    feed.answer(grant(AB, former=AB, g=4, generation=2, clock={"a": 1, "b": 0}))
    feed.stamps(("a", 1, 2, 0, {}), ("a", 2, 5, 1, {}), control_g=4)
    feed.events(("a", 0), ("a", 1))
    assert [deliver.tag for deliver in feed.all] == ["redelivered", None]


# --- contradictions ---------------------------------------------------------------------------------------------------


def two_digests(feed: Feed) -> None:
    feed.stamps(("a", 1, 2, 0, {}))
    feed.again(replace(feed.last, time_ms=77).sealed())


def another_chain(feed: Feed) -> None:
    feed.stamps(("a", 1, 2, 0, {}))
    feed.again(replace(feed.last, batch=feed.last.batch + 1, previous_digest="0" * 32).sealed())


def two_stamps_for_one_event(feed: Feed) -> None:
    feed.stamps(("a", 1, 2, 0, {}), ("a", 2, 3, 0, {}))


def a_stamp_for_a_passed_offset(feed: Feed) -> None:
    feed.stamps(("a", 1, 2, 5, {}))
    feed.events(("a", 5))
    feed.stamps(("a", 2, 3, 4, {}))


def another_value(feed: Feed) -> None:
    feed.stamps(("a", 1, 2, 0, {}))
    one_event(feed.machine, source=src("a"), offset=0, topic="a", crc=1)


def no_stamp(feed: Feed) -> None:
    feed.events(("a", 0), ("a", 1))
    feed.stamps(("a", 1, 2, 1, {}))


def no_stamp_for_a_late_event(feed: Feed) -> None:
    feed.stamps(("b", 1, 2, 0, {}), next_offsets={src("a"): 3})
    feed.events(("a", 2))


def another_topic(feed: Feed) -> None:
    one_event(feed.machine, source=src("a"), offset=0, topic="b", crc=0)
    feed.stamps(("a", 1, 2, 0, {}))


def no_topic(feed: Feed) -> None:
    feed.stamps(("a", 1, 2, 0, {}))
    one_event(feed.machine, source=src("a"), offset=0, topic=None, crc=0)


def order_run_backwards(feed: Feed) -> None:
    feed.stamps(("a", 1, 4, 0, {}), ("b", 1, 3, 0, {"a": 1}))
    feed.events(("a", 0), ("b", 0))


def another_domain(feed: Feed) -> None:
    feed.again(replace(stamped([], partition=0), domain="other").sealed())


def another_number_for_a_topic(feed: Feed) -> None:
    feed.again(replace(stamped([("b", 1, 2, 0, {})], partition=0), names={1: "a"}).sealed())


@pytest.mark.parametrize(
    ("scene", "says"),
    [
        (two_digests, "twice, with digests"),
        (another_chain, "does not continue batch"),
        (two_stamps_for_one_event, r"a\[0\]@0 is stamped twice, as g 2 and 3"),
        (a_stamp_for_a_passed_offset, r"a\[0\]@4 is stamped after 5"),
        (another_value, "crc32"),
        (no_stamp, r"a\[0\]@0 of topic 'a' has no stamp"),
        (no_stamp_for_a_late_event, r"a\[0\]@2 of topic 'a' has no stamp"),
        (another_topic, "one of 'b'"),
        (no_topic, "one of None"),
        (order_run_backwards, "has g 3, and by its entries others with a greater g come first"),
        (another_domain, "domain"),
        (another_number_for_a_topic, "another number for topic 'a'"),
    ],
)
def test_contradictions_stop_it_and_deliver_nothing_more(scene: Callable[[Feed], None], says: str) -> None:
    feed = Feed.granted(AB)
    before = list(feed.all)
    with pytest.raises(Contradiction, match=says):
        scene(feed)
    assert all(deliver.n == 1 for deliver in feed.all[len(before) :])


def test_with_m_2_unrelated_topics_may_be_out_of_order_but_never_one_topic() -> None:
    feed = Feed.granted(AB, m=2)
    feed.stamps(("a", 1, 4, 0, {}), ("b", 1, 3, 0, {}), m=2)
    assert feed.events(("a", 0), ("b", 0)) == [("a", 1), ("b", 1)]


# --- losses -----------------------------------------------------------------------------------------------------------


def test_a_lost_event_is_told_in_its_place_with_what_reading_went_on_at() -> None:
    feed = Feed.granted(AB)
    feed.stamps(("a", 1, 2, 0, {}), ("b", 1, 3, 0, {"a": 1}), ("a", 2, 4, 1, {"b": 1}), ("a", 3, 5, 7, {}))
    feed.events(("a", 7), ("b", 0))
    assert [(each.g, getattr(each, "found", None)) for each in feed.all] == [(2, 7), (3, None), (4, 7), (5, None)]
    feed.stamps(("a", 4, 6, 8, {}))
    feed._keep(feed.machine.gone(src("a"), 12))
    feed.stamps(("a", 5, 7, 9, {}))
    assert [(each.g, getattr(each, "found", None)) for each in feed.all[4:]] == [(6, 12), (7, 12)]


def test_a_lost_stamp_and_a_lost_batch_have_names() -> None:
    with pytest.raises(EventsLost, match="stamps 1 to 2 of 'a' are missing before g 5"):
        Feed.granted(AB).stamps(("a", 3, 5, 0, {}))
    feed = Feed.granted(AB)
    feed.stamps(("a", 1, 2, 0, {}))
    with pytest.raises(EventsLost, match="from batch 2 to 4"):
        feed.again(replace(stamped([], partition=0), batch=4, g=9).sealed())


# --- repetitions ------------------------------------------------------------------------------------------------------


def test_a_part_of_what_is_delivered_has_its_own_numbers() -> None:
    feed = Feed.granted(AB)
    feed.events(("a", 0), ("a", 1), ("b", 0))
    batch = stamped([("a", 1, 2, 0, {}), ("a", 2, 3, 1, {}), ("b", 1, 4, 0, {})], partition=0)
    (whole,) = feed.machine.stamped(batch, offset=BEGIN, next_offset=BEGIN + 1)
    assert isinstance(whole, Deliveries)
    for part in (whole.part(1, 3), whole.part(0, 3).part(1, 3), whole.part(1, 3).part(0, 2)):
        assert (part.first, part.rows.g.tolist(), part.handles) == (2, [3, 4], [("a", 1), ("b", 0)])


def test_repeated_records_change_nothing() -> None:
    feed = Feed.granted(AB)
    feed.events(("a", 0))
    assert feed.delivered(feed.stamps(("a", 1, 2, 0, {}))) == [("a", 1)]
    assert feed.again(feed.last) == []
    assert feed.events(("a", 0)) == []
    assert feed.answer(feed.grant) == []
    assert feed.machine.buffered().repeated_batches == 1


def test_what_is_older_than_the_grant_is_passed_over_and_what_is_newer_than_the_next_batch_is_missed() -> None:
    feed = Feed.granted(AB)
    assert feed.again(stamped([("a", 1, 1, 0, {})], partition=0, batch=1)) == []
    with pytest.raises(EventsLost, match="from batch 1 to 3"):
        feed.again(replace(stamped([], partition=0), batch=3, g=9).sealed())


def test_a_repetition_does_not_move_the_place_to_go_on() -> None:
    """It may end between the parts of the next batch, which a later process needs from the first part on."""
    feed = Feed.granted(AB)
    feed.stamps(("a", 1, 2, 0, {}))
    feed.events(("a", 0))
    feed.machine.acknowledge(1)
    before = feed.machine.position().stamps[0]
    assert before.offset == feed.offsets[-1] + 1
    feed.machine.stamped(feed.last, offset=before.offset + 1, next_offset=before.offset + 3)
    assert feed.machine.position().stamps[0] == before


def test_a_deposed_jobs_batches_are_passed_over() -> None:
    feed = Feed.granted(AB)
    feed.stamps(("a", 1, 2, 0, {}), incarnation=2)
    assert feed.again(replace(feed.last, incarnation=1, batch=9, g=99).sealed()) == []
    assert feed.delivered(feed.stamps(("a", 2, 3, 1, {}), incarnation=2)) == []
    assert feed.events(("a", 0), ("a", 1)) == [("a", 1), ("a", 2)]


# --- memory -----------------------------------------------------------------------------------------------------------


def test_pauses_what_is_too_much_and_resumes_when_half_is_gone() -> None:
    feed = Feed.granted(AB, max_buffered=2, max_waiting=2)
    assert event(feed.machine, "a", 0) == []
    assert event(feed.machine, "a", 1) == [PauseEvents(source=src("a"))]
    effects = feed.stamps(("a", 1, 2, 0, {}), ("b", 1, 3, 0, {"a": 1}), ("b", 2, 4, 1, {}))
    assert [effect for effect in effects if not isinstance(effect, Deliver)] == [
        ReadEvents(source=src("b"), offset=0),
        PauseStamps(partition=0),
        ResumeEvents(source=src("a")),
    ]
    assert ResumeStamps(partition=0) in event(feed.machine, "b", 0)


def test_partitions_that_no_topic_needs_are_read_no_longer() -> None:
    both = (ZERO, ONE)
    feed = Feed(position=positioned(both, partitions=2), partitions=2)
    feed.answer(grant((ONE,), former=both, g=2, generation=2, clock=dict.fromkeys(both, 0), partitions=2))
    assert StopStamps(partition=0) in feed.last_effects


# --- positions --------------------------------------------------------------------------------------------------------


def test_a_position_holds_what_is_acknowledged_and_no_more() -> None:
    feed = Feed.granted(AB)
    feed.events(("a", 0), ("a", 1), ("b", 0))
    feed.stamps(("a", 1, 2, 0, {}), ("a", 2, 3, 1, {}))
    feed.stamps(("b", 1, 4, 0, {"a": 2}))
    assert feed.names == [("a", 1), ("a", 2), ("b", 1)]
    first = feed.machine.position()
    assert (first.g, dict(first.clock), dict(first.sources)) == (
        1,
        {0: 0, 1: 0},
        {src("a"): 0, src("b"): 0},
    )
    assert first.stamps[0].offset == feed.offsets[0]
    feed.machine.acknowledge(2)
    second = feed.machine.position()
    assert (second.g, dict(second.clock), dict(second.sources)) == (
        3,
        {0: 2, 1: 0},
        {src("a"): 2, src("b"): 0},
    )
    assert (second.stamps[0].offset, second.stamps[0].batch) == (feed.offsets[1], 2)
    again = Feed(position=second)
    again.answer(grant(AB, former=AB, g=9, generation=2, clock={"a": 2, "b": 1}))
    again.offsets = list(feed.offsets)
    again.replay(feed.log)
    again.events(("a", 2), ("b", 0))
    assert again.names == [("b", 1)]


def test_saved_positions_survive_the_wire_and_damage_is_found() -> None:
    feed = Feed.granted(AB)
    feed.answer(grant(("b",), former=AB, g=4, generation=2, clock={"a": 1, "b": 1}))
    saved = SavedPosition(id="s", generation=2, nonce="me", delivered_through=3, position=feed.machine.position())
    assert decode_saved(encode_saved(saved)) == saved
    assert not {"stored", "anew"} & json.loads(encode_saved(saved)).keys(), "older programs write none"
    with pytest.raises(WireError, match="anew is of a position that follows a database"):
        decode_saved(json.dumps(json.loads(encode_saved(saved)) | {"anew": True}).encode())
    saved = replace(saved, stored=True)
    assert decode_saved(encode_saved(saved)) == saved
    saved = replace(saved, anew=True)
    value = encode_saved(saved)
    assert decode_saved(value) == saved
    record = json.loads(value)
    for name in record:
        bad = [None, [[1]], -1.5] + (["x"] if name not in ("id", "nonce", "topic_by") else [])
        for wrong in bad:
            if wrong != record[name]:
                with pytest.raises(WireError):
                    decode_saved(json.dumps(record | {name: wrong}).encode())
    for value in (b"", b"\xff", b"[]", b"{}"):
        with pytest.raises(WireError):
            decode_saved(value)


def test_acknowledging_more_than_was_delivered_does_no_harm() -> None:
    feed = Feed.granted(AB)
    feed.events(("a", 0))
    feed.stamps(("a", 1, 2, 0, {}))
    feed.machine.acknowledge(100)
    assert feed.machine.acknowledged_sequence == 1


def test_a_position_must_hold_what_it_needs() -> None:
    position = positioned(AB)
    with pytest.raises(ValueError, match="clock"):
        replace(position, clock={})
    with pytest.raises(ValueError, match="stamps partition"):
        replace(position, stamps={})
    assert isinstance(position, Progress)
    assert Delivery(id="s", nonce="me", domain="d", position=position).topics == AB


def test_waits_with_a_new_event_partition_until_its_first_offset_is_certain() -> None:
    """Two topics share an event partition that is seen for the first time; the stamps of the later one come first."""
    both, source = (ZERO, ONE), src("k")
    feed = Feed(m=2, partitions=2)
    feed.answer(grant(both, g=1, clock=dict.fromkeys(both, 0), m=2, partitions=2))

    def batch(topic: str, g: int, offset: int, partition: int) -> list[tuple[str, int]]:
        made = stamped([(topic, 1, g, offset, {})], partition=partition, g=3, m=2, partitions=2)
        return feed.delivered(feed.again(replace(made, sources=(source,), ends=(2,)).sealed()))

    def come(topic: str, offset: int) -> list[tuple[str, int]]:
        return feed.delivered(one_event(feed.machine, source=source, offset=offset, topic=topic, crc=0))

    assert batch(ZERO, 3, 1, partition=0) == []
    assert feed.last_effects == [ReadEvents(source=source, offset=1)]
    assert come(ZERO, 1) == []
    assert batch(ONE, 2, 0, partition=1) == []
    assert feed.last_effects == [ReadEvents(source=source, offset=0)]
    assert come(ONE, 0) == [(ONE, 1)]
    assert come(ZERO, 1) == [(ZERO, 1)]


def test_an_event_partition_waits_for_no_stamps_behind_its_first_offset() -> None:
    """Its first stamps come from a partition that is ahead. The other one is paused until what it holds is delivered:
    nothing may wait for that one's next batch.
    """
    both, source = (ZERO, ONE), src("all")
    feed = Feed(partitions=2, max_waiting=2)
    feed.answer(grant(both, g=1, clock=dict.fromkeys(both, 0), partitions=2))
    ends = {2: (3, 2), 3: (4, 3)}

    def batch(number: int, *rows: Row, partition: int) -> list[Effect]:
        g, end = ends[number]
        made = stamped(rows, partition=partition, partitions=2, batch=number, g=g, previous=digests[partition])
        made = replace(made, sources=(source,), ends=(end,)).sealed()
        digests[partition] = made.digest
        return feed.again(made)

    digests = {0: "", 1: ""}
    batch(2, partition=1)
    batch(3, (ONE, 1, 4, 2, {ZERO: 2}), partition=1)
    assert feed.last_effects == [ReadEvents(source=source, offset=2)]
    batch(2, (ZERO, 1, 2, 0, {}), (ZERO, 2, 3, 1, {}), partition=0)
    assert feed.last_effects == [ReadEvents(source=source, offset=0), PauseStamps(partition=0)]
    for topic, offset in ((ZERO, 0), (ZERO, 1), (ONE, 2)):
        feed._keep(one_event(feed.machine, source=source, offset=offset, topic=topic, crc=0))
    assert feed.names == [(ZERO, 1), (ZERO, 2), (ONE, 1)]


def test_a_stopped_stamps_partition_is_read_again_from_where_it_was_released() -> None:
    """Until the change of the set is acknowledged, a later process goes through the old set's partitions once more."""
    both = (ZERO, ONE)
    feed = Feed(position=positioned(both, partitions=2), partitions=2)
    feed.answer(grant(both, former=both, g=2, generation=2, clock=dict.fromkeys(both, 0), partitions=2))
    feed.events((ONE, 0))
    feed.stamps((ONE, 1, 3, 0, {}), partition=1, g=3, control_g=2)
    feed.stamps(partition=0, g=3, control_g=2)
    feed.stamps(partition=0, g=9, control_g=9)  # not released: answers are known through 4
    feed.answer(grant((ONE,), former=both, g=4, generation=3, clock={ZERO: 0, ONE: 1}, partitions=2))
    assert StopStamps(partition=0) in feed.last_effects
    mark = feed.machine.position().stamps[0]
    assert (mark.offset, mark.batch) == (feed.offsets[2], feed.log[1].batch)


def test_with_m_2_a_clock_may_be_past_an_entry() -> None:
    """When X leaves the sequencing group of T, T's next event carries X's clock once more; X need not wait for it."""
    feed = Feed.granted(AB, m=2)
    feed.stamps(("b", 1, 2, 0, {}), ("a", 1, 3, 0, {"b": 1}), ("b", 2, 4, 1, {}))
    assert feed.events(("b", 0), ("b", 1)) == [("b", 1), ("b", 2)]
    assert feed.events(("a", 0)) == [("a", 1)]


def test_with_m_2_an_event_waits_for_its_entries_and_for_what_is_before_it_in_its_partition() -> None:
    one, other, feed = src("k"), src("l"), Feed(m=2)
    first = grant("abc", g=1, clock=dict.fromkeys("abc", 0), next_offsets={one: 0, other: 0}, m=2)
    feed.answer(replace(first, topic_by="key"))
    # a waits for b, which lies in another Kafka partition; c waits for nothing, but lies behind a.
    made = stamped([("a", 1, 3, 0, {"b": 1}), ("b", 1, 2, 0, {}), ("c", 1, 4, 1, {})], partition=0, m=2)
    rows = replace(made.rows, source=np.array([0, 1, 0]))
    feed.again(replace(made, rows=rows, sources=(one, other), ends=(2, 1)).sealed())
    for offset, topic in ((0, "a"), (1, "c")):
        assert one_event(feed.machine, source=one, offset=offset, topic=topic, crc=0) == []
    effects = one_event(feed.machine, source=other, offset=0, topic="b", crc=0)
    assert feed.delivered(effects) == [("b", 1), ("a", 1), ("c", 1)]
