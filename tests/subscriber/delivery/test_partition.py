"""A stamps partition over restarts and changes: what is refused, and from where a later process reads on."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from delivery_world import BEGIN, Row, stamped

from totalorder.errors import Contradiction, EventsLost
from totalorder.sequencer.wire.chain import REMEMBERED_BATCHES
from totalorder.sequencer.wire.position import StampsMark
from totalorder.sequencer.wire.stamps import StampedBatch
from totalorder.subscriber.delivery.partition import StampsPartition

FIRST = stamped([("a", 1, 2, 0, {})], partition=0, batch=5)


class Log:
    """A partition, and batches that follow each other in its log."""

    def __init__(self, part: StampsPartition, last: StampedBatch) -> None:
        self.part, self.last, self.offset = part, last, part.next_offset

    def follow(self, *rows: Row, g: int | None = None, control_g: int = 1) -> StampedBatch:
        """The next batch, unread."""
        number, at = self.last.batch + 1, self.last.g + 1 if g is None else g
        return stamped(rows, partition=0, batch=number, g=at, control_g=control_g, previous=self.last.digest)

    def read(self, batch: StampedBatch) -> bool:
        self.offset += 1
        taken = self.part.admit(batch, offset=self.offset - 1, next_offset=self.offset)
        self.last = batch if taken else self.last
        return taken


@pytest.fixture
def resumed() -> Log:
    """Read on behind batch 5."""
    mark = StampsMark(offset=BEGIN, batch=FIRST.batch, digest=FIRST.digest)
    return Log(StampsPartition("d", 0, mark), FIRST)


@pytest.mark.parametrize(
    ("batch", "error", "says"),
    [
        (lambda log: replace(log.follow(), batch=7).sealed(), EventsLost, "from batch 5 to 7"),
        (
            lambda log: replace(log.follow(), previous_digest="0" * 32).sealed(),
            Contradiction,
            "does not continue batch 5",
        ),
        (lambda _: replace(FIRST, time_ms=1).sealed(), Contradiction, "has batch 5 twice"),
    ],
)
def test_the_batch_before_a_position_is_part_of_the_chain(
    resumed: Log, batch: Callable[[Log], StampedBatch], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        resumed.read(batch(resumed))


def test_the_order_never_runs_backwards_from_batch_to_batch(resumed: Log) -> None:
    assert resumed.read(resumed.follow(g=9))
    with pytest.raises(Contradiction, match="does not continue batch 6"):
        resumed.read(resumed.follow(g=8))


def test_the_latest_batches_are_those_that_are_remembered(resumed: Log) -> None:
    for _ in range(REMEMBERED_BATCHES + 3):
        assert resumed.read(resumed.follow())
    assert not resumed.read(resumed.last)
    assert not resumed.read(replace(FIRST, time_ms=1).sealed())  # long ago
    with pytest.raises(Contradiction, match="twice"):
        resumed.read(replace(resumed.last, time_ms=1).sealed())


def test_a_batch_that_waits_for_answers_is_read_again_by_a_later_process(resumed: Log) -> None:
    """None of its rows is counted yet: it must not pass for one that is done with."""
    assert resumed.read(resumed.follow(("a", 2, 7, 1, {}), control_g=1))
    assert resumed.read(resumed.follow(("a", 3, 9, 2, {}), control_g=8))
    assert resumed.part.release(1) is not None
    assert resumed.part.release(1) is None
    assert resumed.part.resume_mark() == StampsMark(
        offset=BEGIN + 1, batch=6, digest=resumed.part.held[0][0].previous_digest
    )


def test_where_reading_begins_again_nothing_is_known_of_what_lies_between(resumed: Log) -> None:
    assert resumed.read(resumed.follow())
    assert resumed.part.release(1) is not None
    resumed.part.stop()
    resumed.part.read_again(StampsMark(offset=BEGIN + 20, batch=29))
    assert resumed.part.resume_mark() == StampsMark(offset=BEGIN + 20, batch=29)
    assert not resumed.read(replace(resumed.follow(), batch=28, previous_digest="elsewhere").sealed())
    assert resumed.read(replace(resumed.follow(), batch=30, previous_digest="elsewhere").sealed())
