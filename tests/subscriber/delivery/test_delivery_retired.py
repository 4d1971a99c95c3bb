"""Kafka topics that go away under a subscriber: what is owed of them, what is not, and what is forgotten when."""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from deliveries import Deliver
from delivery_world import BEGIN, Feed, Row, grant, one_event, positioned, said, stamped
from sources import src

from totalorder.sequencer.wire.control import Retired
from totalorder.sequencer.wire.names import stamps_partition
from totalorder.sequencer.wire.position import SavedPosition, StampsMark, decode_saved, encode_saved
from totalorder.sequencer.wire.stamps import Source
from totalorder.subscriber.delivery.effects import (
    DeliverLost,
    Effect,
    PauseEvents,
    ReadEvents,
    ResumeEvents,
    StopEvents,
)
from totalorder.subscriber.delivery.events import GONE
from totalorder.subscriber.delivery.partition import StampsPartition
from totalorder.subscriber.losses import not_skipped

AB = ("a", "b")
ZERO, ONE = (next(c for c in "abcdefgh" if stamps_partition(c, 2) == number) for number in (0, 1))
OLD, NEW = src("a"), src("a", 0, "again")


def retired(source: Source, g: int) -> Retired:
    who: dict[str, Any] = {"id": "job", "nonce": "n", "batch": 1, "incarnation": 1}
    return Retired(**who, g=g, offset=7, topic=source.topic, topic_id=source.topic_id, lost={})


def new_event(feed: Feed, offset: int) -> list[Effect]:
    """An event of the topic that was made again."""
    return feed._keep(one_event(feed.machine, source=NEW, offset=offset, topic="a", crc=0, handle=("new", offset)))


def new_stamps(feed: Feed, *places: tuple[int, int, int], **fields: object) -> list[Effect]:
    """Stamps (n, g, offset) of the topic that was made again."""
    rows: list[Row] = [("a", n, g, offset, {}) for n, g, offset in places]
    made = stamped(rows, partition=0, batch=len(feed.log) + 2, previous=feed.last.digest, **fields)  # type: ignore[arg-type]
    ends = {NEW if source == OLD else source: end for source, end in made.next_offsets.items()}
    made = replace(made, sources=tuple(ends), ends=tuple(ends.values())).sealed()
    feed._batches[0], feed._digests[0] = made.batch, made.digest
    return feed.again(made)


def handles(feed: Feed) -> list[object]:
    return [deliver.handle for deliver in feed.all if isinstance(deliver, Deliver)]


def test_what_is_gone_and_owed_to_nobody_is_no_loss() -> None:
    feed = Feed.granted(AB)
    feed.stamps(("a", 1, 2, 0, {}))
    feed.events(("a", 0))
    assert feed.machine.gone(OLD, GONE) == []
    feed.stamps(("b", 1, 3, 0, {"a": 1}))
    assert feed.events(("b", 0)) == [("b", 1)]
    assert ReadEvents(source=NEW, offset=0) in new_stamps(feed, (2, 4, 0))
    assert feed.delivered(new_event(feed, 0)) == [("a", 2)]


def test_what_was_read_before_it_was_gone_is_delivered_when_it_is_stamped() -> None:
    feed = Feed.granted(AB)
    feed.events(("a", 0), ("a", 1))
    feed.machine.gone(OLD, GONE)
    feed.stamps(("a", 1, 2, 0, {}), ("a", 2, 3, 1, {}))
    assert feed.names == [("a", 1), ("a", 2)]


@pytest.mark.parametrize("stamped_first", [True, False])
def test_what_is_gone_and_owed_is_told_by_topic_and_id(stamped_first: bool) -> None:
    feed = Feed.granted(AB)
    feed.events(("a", 0))
    told = r"a\[0\]@1 of topic 'a' is stamped \(g 3, n 2\).* Kafka topic a with id id-a was deleted, or created again"
    inputs: list[Callable[[], object]] = [
        lambda: feed.stamps(("a", 1, 2, 0, {}), ("a", 2, 3, 1, {})),
        lambda: feed._keep(feed.machine.gone(OLD, GONE)),
    ]
    for one in inputs if stamped_first else reversed(inputs):
        one()
    delivered, loss = feed.all
    assert (delivered.g, loss.g) == (2, 3)
    assert isinstance(loss, DeliverLost)
    assert re.match(told, not_skipped(loss, "").what)


def test_what_is_gone_comes_as_lost_and_then_the_new_ones() -> None:
    feed = Feed.granted(AB)
    feed.events(("a", 0))
    feed.machine.gone(OLD, GONE)
    feed.stamps(("a", 1, 2, 0, {}), ("a", 2, 3, 1, {}), ("b", 1, 4, 0, {"a": 2}))
    feed.events(("b", 0))
    new_stamps(feed, (3, 5, 0))
    new_event(feed, 0)
    places = [(each, each.begin if isinstance(each, DeliverLost) else each.offset) for each in feed.all]
    assert [(said(each), each.source, offset) for each, offset in places] == [
        (None, OLD, 0),
        ("lost", OLD, 1),
        (None, src("b"), 0),
        (None, NEW, 0),
    ]


def test_what_is_gone_before_its_first_offset_is_certain_is_told_once_it_is() -> None:
    """The stamps of the other partition come last, and nothing of the topic follows."""
    both, source = (ZERO, ONE), src("k")
    feed = Feed(partitions=2)
    feed.answer(grant(both, g=1, clock=dict.fromkeys(both, 0), partitions=2))
    found: list[list[Row]] = [[(ZERO, 1, 2, 0, {})], []]
    made = [stamped(rows, partition=at, g=2, partitions=2) for at, rows in enumerate(found)]
    one, other = (replace(batch, sources=(source,), ends=(1,)).sealed() for batch in made)
    assert feed.again(one) == [ReadEvents(source=source, offset=0)]
    assert feed._keep(feed.machine.gone(source, GONE)) == []
    feed.again(other)
    assert [(said(deliver), deliver.topic, deliver.n) for deliver in feed.all] == [("lost", ZERO, 1)]


def test_events_that_nobody_will_stamp_are_forgotten_when_all_stamps_before_are_known() -> None:
    feed = Feed.granted(AB)
    feed.events(("a", 0), ("a", 1), ("a", 2))
    assert feed.answer(retired(OLD, 3)) == []
    feed.stamps(("a", 1, 2, 0, {}), control_g=1, g=2)
    assert feed.machine.buffered().events == 2
    effects = feed.stamps(control_g=3, g=3)
    assert effects == [StopEvents(source=OLD)]
    assert feed.machine.buffered().events == 0
    assert feed.events(("a", 3)) == []
    new_stamps(feed, (2, 4, 0), control_g=3)
    assert feed.delivered(new_event(feed, 0)) == [("a", 2)]
    assert handles(feed) == [("a", 0), ("new", 0)]


def test_a_retired_topic_is_read_for_as_long_as_something_is_owed() -> None:
    feed = Feed.granted(AB)
    feed.events(("a", 0))
    feed.answer(retired(OLD, 4))
    feed.stamps(("a", 1, 2, 0, {}), ("a", 2, 3, 5, {}), control_g=4, g=4)
    assert StopEvents(source=OLD) not in feed.last_effects
    assert feed.events(("a", 2)) == []
    assert feed.machine.buffered().events == 0
    assert feed.events(("a", 5)) == [("a", 2)]
    assert feed.last_effects[-1] == StopEvents(source=OLD)
    assert feed.events(("a", 6)) == []


def test_events_that_are_forgotten_make_room() -> None:
    """A partition that was paused for them holds nothing that is owed."""
    feed = Feed.granted(AB, max_buffered=2)
    feed.answer(retired(OLD, 3))
    feed.events(("a", 0), ("a", 1))
    assert feed.last_effects == [PauseEvents(source=OLD)]
    assert ResumeEvents(source=OLD) in feed.stamps(("a", 1, 2, 4, {}), control_g=3, g=3)
    assert feed.events(("a", 4)) == [("a", 1)]


def test_a_retired_topic_waits_for_the_stamps_of_all_partitions() -> None:
    zero, one = (next(c for c in "abcdefgh" if stamps_partition(c, 2) == number) for number in (0, 1))
    feed = Feed(position=positioned((zero, one), partitions=2), partitions=2)
    feed.machine._live = True
    source = src(zero)
    feed.events((zero, 0))
    feed.answer(retired(source, 3))
    assert StopEvents(source=source) not in feed.stamps(partition=0, g=3, control_g=3)
    assert StopEvents(source=source) in feed.stamps(partition=1, g=3, control_g=3)


def test_a_position_forgets_a_retired_topic_when_all_of_it_is_acknowledged() -> None:
    feed = Feed.granted(AB)
    feed.answer(retired(OLD, 4))
    feed.stamps(("a", 1, 2, 0, {}), ("a", 2, 3, 1, {}), control_g=4, g=4)
    feed.events(("a", 0), ("a", 1))
    new_stamps(feed, (3, 5, 0), control_g=4)
    new_event(feed, 0)
    feed.machine.acknowledge(1)
    assert feed.machine.position().sources == {OLD: 1, src("b"): 0}
    feed.machine.acknowledge(2)
    assert feed.machine.position().sources == {src("b"): 0}
    feed.machine.acknowledge(3)
    assert feed.machine.position().sources == {src("b"): 0, NEW: 1}


def test_a_later_process_goes_on_from_a_position_with_a_topic_that_is_gone() -> None:
    """Both of one name are in the position; nothing of the former one is owed any more, or one event of it."""
    for owed in (0, 1):
        position = replace(positioned(AB), sources={OLD: 1, NEW: 0, src("b"): 0}, clock={0: 1, 1: 0})
        saved = SavedPosition(id="s", generation=1, nonce="x", delivered_through=0, position=position)
        position = decode_saved(encode_saved(saved)).position
        feed = Feed(position=position)
        feed.machine._live = True
        feed.answer(retired(OLD, 5))
        feed.machine.gone(OLD, GONE)
        if owed:
            feed.stamps(("a", 2, 4, 1, {}), control_g=1, g=4)
        else:
            feed.stamps(control_g=1, g=4)
        new_stamps(feed, (2 + owed, 6, 0), control_g=5)
        new_event(feed, 0)
        assert [(said(deliver), deliver.n) for deliver in feed.all] == [("lost", 2)] * owed + [(None, 2 + owed)]
        feed.machine.acknowledge(9)
        assert feed.machine.position().sources == {NEW: 1, src("b"): 0}


def test_who_stamps_an_event_of_a_former_topic_never_gets_one_of_the_present() -> None:
    """The new topic's event comes first, at the same offset: it is another's."""
    feed = Feed.granted(AB)
    one_event(feed.machine, source=NEW, offset=0, topic="a", crc=0, handle="wrong")
    feed.stamps(("a", 1, 2, 0, {}))
    assert feed.all == []
    assert feed.events(("a", 0)) == [("a", 1)]
    assert handles(feed) == [("a", 0)]


# --- the frontier, which is told in steps -----------------------------------------------------------------------------


def frontier_batches(rng: random.Random) -> tuple[list[dict[Source, int]], list[dict[Source, int]]]:
    """What each batch advances, and what all partitions are at behind it."""
    pool = [OLD, NEW, src("b"), src("b", 1)]
    ends: dict[Source, int] = {}
    steps, full = [], []
    for _ in range(rng.randint(1, 12)):
        step = {source: ends.get(source, 0) + rng.randint(1, 5) for source in rng.sample(pool, rng.randint(0, 3))}
        ends = ends | step
        steps.append(step)
        full.append(ends)
    return steps, full


def part_read(mark: int, steps: Sequence[dict[Source, int]], digests: dict[int, str]) -> StampsPartition:
    return StampsPartition("d", 0, StampsMark(offset=BEGIN, batch=mark, digest=digests.get(mark, "")))


@pytest.mark.parametrize("seed", range(40))
def test_steps_add_up_to_the_frontier_that_each_batch_once_told_whole(seed: int) -> None:
    """Also in a partition that is read from a later batch on than another one: what it skipped the other tells."""
    rng = random.Random(seed)
    steps, full = frontier_batches(rng)
    batches, previous = [], ""
    for number, step in enumerate(steps, 1):
        made = stamped([], partition=0, batch=number, g=number, control_g=0, next_offsets=step, previous=previous)
        batches.append(made)
        previous = made.digest
    digests = {batch.batch: batch.digest for batch in batches}
    late = rng.randint(0, len(steps))
    parts = [part_read(0, steps, digests), part_read(late, steps, digests)]
    done = [0, late]
    while sum(done) < 2 * len(steps):
        at = rng.choice([at for at in (0, 1) if done[at] < len(steps)])
        parts[at].admit(batches[done[at]], offset=done[at], next_offset=done[at] + 1)
        released = parts[at].release(10**9)
        assert released is not None
        parts[at].complete(released[0])
        for part in parts:
            part.learn(released[0])
        done[at] += 1
        assert parts[0].frontier == (full[done[0] - 1] if done[0] else {})
        whole = full[done[1] - 1] if done[1] else {}
        assert all(end <= whole.get(source, 0) for source, end in parts[1].frontier.items())
        if done[0] >= late:
            assert parts[1].frontier == whole


def test_a_machine_learns_what_its_partition_skipped_from_the_other_one() -> None:
    """Else the offset of an event partition in which nothing happens again would age out of retention."""
    zero, one = (next(c for c in "abcdefgh" if stamps_partition(c, 2) == number) for number in (0, 1))
    source = src("all")
    position = replace(
        positioned((zero, one), partitions=2),
        sources={source: 3},
        stamps={0: StampsMark(offset=BEGIN, batch=1), 1: StampsMark(offset=BEGIN, batch=2)},
        topic_by="key",
    )
    feed = Feed(position=position, partitions=2)
    feed.machine._live = True
    feed.answer(retired(src("another"), 1))
    feed.stamps(partition=0, g=2, control_g=1, next_offsets={source: 9})
    assert feed.machine.position().sources == {source: 9}
