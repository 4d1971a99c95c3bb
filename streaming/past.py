"""What Kafka has of a domain's past, read to recover its state: snapshots, stamps, control, grants and cuts."""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from operator import gt

from kafka import KafkaConsumer, TopicPartition

from totalorder.config import Settings
from totalorder.errors import BrokerUnavailable, StateError, WireError
from totalorder.sequencer.recovery import StampsLog
from totalorder.sequencer.snapshot import Snapshot, SnapshotAssembler, SnapshotMark, decode_mark
from totalorder.sequencer.wire.control import Answer, Grant, answer_key, decode_answer
from totalorder.sequencer.wire.cuts import Cut, CutsAssembler
from totalorder.sequencer.wire.limits import MAX_CONTROL_BYTES
from totalorder.sequencer.wire.stamps import StampedBatch
from totalorder.streaming import reading
from totalorder.streaming.reading import Ranges

_POLL_MS = 200
_AHEAD, _AHEAD_BYTES = 256, 64_000_000
"""Batches of one partition that wait for another, and what they take; one that is so far ahead is not read on."""
_NEWEST_CUTS = 512
"""Records at the end of cuts among which there is a key cut, even where many came twice."""


def written_ranges(settings: Settings) -> Ranges:
    """What stamps, grants and cuts hold now."""
    topics = settings.own_topics
    with reading.reader(settings) as consumer:
        return reading.held(consumer, {topics.stamps: settings.stamps_partitions, topics.grants: 1, topics.cuts: 1})


def ends_of(ranges: Ranges) -> dict[TopicPartition, int]:
    """Up to where they go. Where they begin retention decides, at any time."""
    return {at: end for at, (_, end) in ranges.items()}


def marks(settings: Settings, most: int) -> list[SnapshotMark]:
    """The snapshots that were whole, newest first, so many at most. Records that are no marks say nothing: there may be
    older ones that are. BrokerUnavailable.
    """
    found: deque[SnapshotMark] = deque(maxlen=most)
    with reading.reader(settings) as consumer:
        ranges = reading.held(consumer, {settings.own_topics.state: 1})
        for record in reading.records(consumer, ranges, settings.broker_timeout_s, trimmed=True):
            with contextlib.suppress(WireError):
                if (mark := decode_mark(record.value, dict(record.headers), settings.domain)) is not None:
                    found.append(mark)
    return list(reversed(found))


def snapshot(settings: Settings, mark: SnapshotMark) -> Snapshot:
    """The snapshot of a mark. StateError or WireError where it is not whole, or not what a sequencer writes."""
    assembler = SnapshotAssembler(mark=mark)
    with reading.reader(settings) as consumer:
        ranges = reading.held(consumer, {settings.own_topics.state: 1})
        for record in reading.records(consumer, ranges, settings.broker_timeout_s, trimmed=True):
            with contextlib.suppress(WireError):
                assembler.add(record.value, dict(record.headers))
    return assembler.snapshot()


def behind(ranges: Ranges, mark: SnapshotMark, stamps: str) -> Ranges:
    """The ranges, of stamps only what can lie behind a snapshot."""
    return {
        at: (max(begin, mark.stamps_begins[at.partition]) if at.topic == stamps else begin, end)
        for at, (begin, end) in ranges.items()
    }


def batches(settings: Settings, ranges: Ranges, log: StampsLog) -> Iterator[tuple[StampedBatch, ...]]:
    """Every batch that all stamps partitions have, in order; `log` then has the rest.

    WireError, Contradiction, StateError for what is not a whole past; BrokerUnavailable.
    """
    mine = {at: bounds for at, bounds in ranges.items() if at.topic == settings.own_topics.stamps}
    waiting = {at: end for at, (begin, end) in mine.items() if begin < end}
    with reading.reader(settings) as consumer:
        consumer.assign(sorted(waiting))
        for at in waiting:
            consumer.seek(at, mine[at][0])
        heard_s = time.monotonic()
        while waiting and _pause(consumer, waiting, log):
            found = consumer.poll(timeout_ms=_POLL_MS)
            if found:
                heard_s = time.monotonic()
            elif time.monotonic() > heard_s + settings.broker_timeout_s:
                raise BrokerUnavailable(
                    f"the broker sent nothing of {settings.own_topics.stamps} for {settings.broker_timeout_s:g} s",
                    remedy="Look at the broker; starting again is safe",
                )
            for at, records in found.items():
                for record in records:
                    if record.offset < mine[at][1]:
                        log.add(record.partition, record.value, dict(record.headers), record.offset)
                    while (batch := log.take()) is not None:
                        yield batch
            waiting = {at: end for at, end in waiting.items() if consumer.position(at) < end}


def _pause(consumer: KafkaConsumer, waiting: Mapping[TopicPartition, int], log: StampsLog) -> bool:
    """Lets partitions that are far ahead wait for the others; False where none is left to be read."""
    ahead = {at for at in waiting if any(map(gt, log.waiting(at.partition), (_AHEAD, _AHEAD_BYTES)))}
    consumer.pause(*ahead)
    consumer.resume(*(waiting.keys() - ahead))
    return len(ahead) < len(waiting)


def requests(settings: Settings, wanted: int) -> Generator[tuple[int, bytes], None, None]:
    """Offset and value of every record on control from offset `wanted` on, as batches have them. StateError where the
    first are gone.
    """
    with reading.reader(settings) as consumer:
        ((control, (begin, end)),) = reading.held(consumer, {settings.own_topics.control: 1}).items()
        if begin > wanted:
            raise StateError(
                f"{control.topic} begins at offset {begin}, and {wanted} is needed: who subscribed to what is lost",
                remedy="Begin a new domain, and let control keep everything",
            )
        for record in reading.records(consumer, {control: (wanted, end)}, settings.broker_timeout_s):
            yield record.offset, (record.value or b"")[: MAX_CONTROL_BYTES + 1]


@dataclass(frozen=True, kw_only=True)
class Answered:
    """What grants have of a batch and of those behind it: `answers`, and by key the g of the newest. `topic_by` is what
    grants say that names topics, None where there is none; `time_ms` Kafka's time of the last record.
    """

    answers: tuple[Answer, ...]
    newest_g: Mapping[bytes, int]
    topic_by: str | None
    time_ms: int

    def has(self, answer: Answer) -> bool:
        """Whether it is there, or one that stands in its place by now."""
        return self.newest_g.get(answer_key(answer), 0) >= answer.g


def answers_since(settings: Settings, ranges: Ranges, batch: int) -> Answered:
    """The answers of this batch and of those behind it. WireError for what is no answer; BrokerUnavailable."""
    mine = {at: bounds for at, bounds in ranges.items() if at.topic == settings.own_topics.grants}
    found: list[Answer] = []
    newest_g: dict[bytes, int] = {}
    topic_by, time_ms = None, 0
    with reading.reader(settings) as consumer:
        for record in reading.records(consumer, mine, settings.broker_timeout_s):
            answer = decode_answer(record.value)
            topic_by = answer.topic_by if isinstance(answer, Grant) else topic_by
            if answer.batch >= batch:
                found.append(answer)
                newest_g[record.key] = max(answer.g, newest_g.get(record.key, 0))
                time_ms = record.timestamp
    return Answered(answers=tuple(found), newest_g=newest_g, topic_by=topic_by, time_ms=time_ms)


def first_cut(settings: Settings, ranges: Ranges) -> Cut:
    """The domain's first cut. StateError where it is gone."""
    at, (begin, end) = _cuts(settings, ranges)
    found = _newest(settings, at, begin, min(end, begin + 1))
    if not found or found[0].cut != 1:
        raise StateError(
            f"{at.topic} does not begin with cut 1 any more: where the domain begins cannot be known",
            remedy="Without a snapshot it is needed: begin a new domain, and keep stamps and cuts longer",
        )
    return found[0]


def newest_cuts(settings: Settings, ranges: Ranges, *, behind: Cut | None = None) -> tuple[Cut, ...]:
    """The contents that the newest cut has come with, the one that counts last; none where there are no cuts, or no key
    cut among them. That is not needed `behind` a cut that is known, which is the newest where there is no other.
    """
    at, (begin, end) = _cuts(settings, ranges)
    if behind is not None:
        return _newest(settings, at, begin, end, behind)
    return _newest(settings, at, max(begin, end - _NEWEST_CUTS), end) or _newest(settings, at, begin, end)


def _cuts(settings: Settings, ranges: Ranges) -> tuple[TopicPartition, tuple[int, int]]:
    (found,) = ((at, bounds) for at, bounds in ranges.items() if at.topic == settings.own_topics.cuts)
    return found


def _newest(settings: Settings, at: TopicPartition, begin: int, end: int, behind: Cut | None = None) -> tuple[Cut, ...]:
    assembler = CutsAssembler(domain=settings.domain, behind=behind)
    with reading.reader(settings) as consumer:
        for record in reading.records(consumer, {at: (begin, end)}, settings.broker_timeout_s):
            assembler.add(record.value, dict(record.headers))
    return assembler.newest


def settle(settings: Settings, settle_s: float, say: Callable[[str], None]) -> Ranges:
    """What is written once nothing has been added for `settle_s`; StateError where that takes ten times as long."""
    found, since_s = written_ranges(settings), time.monotonic()
    until_s = since_s + 10 * settle_s
    say(f"waiting until nothing is written for {settle_s:g} s")
    while time.monotonic() < since_s + settle_s:
        time.sleep(min(0.2, settle_s))
        now = written_ranges(settings)
        if ends_of(now) == ends_of(found):
            continue
        found, since_s = now, time.monotonic()
        if since_s > until_s:
            raise StateError(
                f"somebody still writes to {settings.own_topics.stamps}, grants or cuts",
                remedy="Stop the sequencer of the domain, and run this again",
            )
    return found
