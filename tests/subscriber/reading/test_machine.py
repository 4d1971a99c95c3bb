"""The machine of a Reader, where no broker shows it: what waits for what, and what cannot be."""

import re
from typing import Any

import pytest
from delivery_world import stamped
from sources import src

from totalorder.errors import Contradiction, EventsLost
from totalorder.sequencer.wire.control import Retired, Skipped
from totalorder.sequencer.wire.position import StampsMark
from totalorder.sequencer.wire.stamps import StampedBatch
from totalorder.subscriber.delivery.effects import (
    Deliveries,
    DeliverLost,
    PauseStamps,
    ReadEvents,
    ReadStamps,
    ReadStampsAnew,
    ResumeStamps,
    StopEvents,
)
from totalorder.subscriber.delivery.events import EventBlock
from totalorder.subscriber.losses import not_skipped
from totalorder.subscriber.reading.choice import Choice
from totalorder.subscriber.reading.machine import Reading

Row = tuple[str, int, int, int]


class Feed:
    """A Reading of a and b, whose stamps are in partitions 0 and 1, with all that comes out of it."""

    def __init__(self, **settings: Any) -> None:
        marks = {number: StampsMark(offset=0, batch=0) for number in range(2)}
        given: dict[str, Any] = {"marks": marks, **settings}
        self.machine = Reading(domain="d", partitions=2, choice=Choice(pattern="[ab]"), **given)
        self.effects = self.machine.start()
        self.last: dict[int, StampedBatch] = {}

    def stamps(self, batch: int, partition: int, *rows: Row, g: int, **fields: Any) -> list[Any]:
        before = self.last.get(partition)
        made = stamped(
            [(*row, {}) for row in rows],
            partition=partition,
            batch=batch,
            g=g,
            control_g=fields.pop("control_g", 0),
            partitions=2,
            previous=before.digest if before else "",
            next_offsets=fields.pop("ends", {src("a"): 10 * batch, src("b"): 10 * batch}),
        )
        self.last[partition] = made
        return self._keep(self.machine.stamped(made))

    def events(self, topic: str, *offsets: int) -> list[Any]:
        block = EventBlock(list(offsets), [], [0] * len(offsets), [f"{topic}{offset}" for offset in offsets])
        return self._keep(self.machine.events(src(topic), block))

    def _keep(self, effects: list[Any]) -> list[Any]:
        self.effects += effects
        return effects

    @property
    def handed(self) -> list[Any]:
        """Handles in order, and g of what is lost."""
        found: list[Any] = []
        for effect in self.effects:
            found += effect.handles if isinstance(effect, Deliveries) else []
            found += [effect.g] if isinstance(effect, DeliverLost) else []
        return found


def skipped(topic: str, g: int, begin: int, end: int) -> Skipped:
    return Skipped(
        id="job", nonce="n", topic=topic, topic_id=src(topic).topic_id, g=g, offset=0, batch=1, incarnation=1,
        lost={0: (begin, end)},
    )  # fmt: skip


def test_a_batch_waits_for_all_partitions_and_for_the_answers_through_its_end() -> None:
    feed = Feed()
    assert feed.effects == [ReadStamps(partition=0, offset=0), ReadStamps(partition=1, offset=0)]
    feed.stamps(1, 0, ("a", 1, 1, 3), g=2, control_g=2)
    assert not any(isinstance(effect, ReadEvents) for effect in feed.effects)
    feed.stamps(1, 1, g=2, control_g=2)
    assert not any(isinstance(effect, ReadEvents) for effect in feed.effects)
    feed._keep(feed.machine.answer(skipped("z", 2, 5, 7)))
    assert feed.effects[-1] == ReadEvents(source=src("a"), offset=3)
    feed.events("a", 3)
    assert feed.handed == ["a3", 2]
    said = r"z\[0\]@5 to 6 were removed from Kafka before they were stamped \(g 2\)"
    assert isinstance(loss := feed.effects[-1], DeliverLost)
    assert re.match(said, not_skipped(loss, "").what)


def test_a_loss_is_told_between_what_lies_around_it() -> None:
    feed = Feed()
    feed.machine.answer(skipped("a", 2, 4, 6))
    feed.machine.answer(skipped("a", 2, 4, 6))
    for partition, rows in enumerate([[("a", 1, 1, 3), ("a", 2, 4, 6)], [("b", 1, 3, 0)]]):
        feed.stamps(1, partition, *rows, g=4, control_g=2)
    feed.events("b", 0)
    feed.events("a", 3, 6)
    assert feed.handed == ["a3", 2, "b0", "a6"]


def test_events_that_come_before_their_stamps_wait_and_others_are_let_go() -> None:
    feed = Feed()
    for partition in range(2):
        feed.stamps(1, partition, *([("a", 1, 1, 3)] if not partition else []), g=1, ends={src("a"): 4})
    feed.events("a", 3, 4, 5, 6)
    assert feed.handed == ["a3"]
    assert feed.machine.held == (3, 0)
    for partition in range(2):
        feed.stamps(2, partition, *([("a", 2, 3, 5)] if not partition else []), g=3, ends={src("a"): 6})
    assert feed.handed == ["a3", "a5"]
    assert feed.machine.held == (1, 0)


def test_a_partition_that_is_ahead_is_paused_and_the_one_behind_is_not() -> None:
    feed = Feed(max_waiting=2)
    feed.stamps(1, 0, ("a", 1, 1, 0), ("a", 2, 2, 1), g=2)
    assert feed.effects[-1] == PauseStamps(partition=0)
    feed.stamps(1, 1, g=2)
    assert PauseStamps(partition=1) in feed.effects
    feed.events("a", 0, 1)
    assert {effect.partition for effect in feed.effects if isinstance(effect, ResumeStamps)} == {0, 1}


def test_a_retired_topic_is_read_no_longer_once_all_of_it_is_delivered() -> None:
    feed = Feed()
    source = src("a")
    answer = Retired(
        id="job", nonce="n", topic="a", topic_id=source.topic_id, g=2, offset=0, batch=1, incarnation=1, lost={}
    )
    feed.machine.answer(answer)
    for partition in range(2):
        feed.stamps(1, partition, *([("a", 1, 1, 0)] if not partition else []), g=2, control_g=2)
    assert StopEvents(source=source) not in feed.effects
    feed.events("a", 0, 1)
    assert StopEvents(source=source) in feed.effects
    assert feed.machine.held == (0, 0)


def test_what_the_search_missed_is_found_from_the_beginning_on_and_else_it_is_lost() -> None:
    marks = {number: StampsMark(offset=7, batch=1) for number in range(2)}
    feed = Feed(marks=marks)
    assert feed.stamps(3, 0, g=9) == [ReadStampsAnew(partition=0)]
    feed.last.clear()
    for batch in (1, 2, 3):
        feed.stamps(batch, 0, g=3 * batch)
    feed.last.clear()
    for batch in (2, 3):
        feed.stamps(batch, 1, g=3 * batch)
    assert feed.machine._batches.g == 9
    with pytest.raises(EventsLost, match="goes from batch 3 to 5"):
        feed.stamps(5, 0, g=20)


@pytest.mark.parametrize(
    ("second", "why"),
    [
        ([("b", 1, 1, 0)], "one position is stamped twice"),
        ([("b", 1, 9, 0)], "batch 1 ends at g 3 behind 0, and stamps another one"),
    ],
)
def test_stamps_that_contradict_each_other_reach_nobody(second: list[Row], why: str) -> None:
    feed = Feed()
    feed.stamps(1, 0, ("a", 1, 1, 0), g=3)
    with pytest.raises(Contradiction, match=why):
        feed.stamps(1, 1, *second, g=3)


def test_what_has_passed_is_not_stamped_again() -> None:
    feed = Feed()
    for partition in range(2):
        feed.stamps(1, partition, *([("a", 1, 1, 3)] if not partition else []), g=1)
    feed.stamps(2, 1, g=2, ends={src("a"): 20})
    with pytest.raises(Contradiction, match=r"a\[0\]@5 to 5 are stamped twice, .* outside their batch, which ends at"):
        feed.stamps(2, 0, ("a", 2, 2, 5), g=2, ends={src("a"): 20})


def test_partitions_that_tell_of_another_end_of_a_batch_contradict() -> None:
    feed = Feed()
    feed.stamps(1, 0, ("a", 1, 1, 0), g=3)
    with pytest.raises(Contradiction, match="tell of batch 1 that it ends at g 3, of 1 at 4"):
        feed.stamps(1, 1, g=4)


def test_numbers_of_a_topic_have_no_gap() -> None:
    feed = Feed()
    for partition in range(2):
        feed.stamps(1, partition, *([("a", 5, 1, 0)] if not partition else []), g=1)
    feed.stamps(2, 1, g=2)
    with pytest.raises(Contradiction, match="event 7 of 'a' in batch 2 follows 5"):
        feed.stamps(2, 0, ("a", 7, 2, 11), g=2)
