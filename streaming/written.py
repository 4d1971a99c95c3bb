"""What the domain's stamps and grants hold already: a checkpoint that does not account for it is behind."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from totalorder.config import Settings
from totalorder.errors import StateError, WireError
from totalorder.sequencer.wire.codec import decode_part
from totalorder.sequencer.wire.control import decode_answer
from totalorder.sequencer.wire.stamps import Source, StampedBatch
from totalorder.streaming import reading

_LOOK_BACK = 4
"""Records at a partition's end that are looked at: the last one may repeat an older batch, since the sink writes at
least once."""
_OLD = (
    "State was lost, the checkpoint is an old copy, control_key_file has other keys than when that batch ran, or "
    "another sequencer writes to this domain: restore the newest checkpoint or the keys, or make the checkpoint anew "
    "by `totalorder recover`"
)


@dataclass(frozen=True, kw_only=True)
class Tail:
    """The newest batch of one stamps partition, as far as it was written; every part of it says this."""

    batch: int
    time_ms: int
    digest: str


@dataclass(frozen=True, kw_only=True)
class Written:
    """`tails` by stamps partition; `next_offsets` of what the newest batches on stamps advance; `answered` is the
    newest answer to a control record: its batch, and the record's offset. A domain without any of it has the defaults.
    """

    tails: Mapping[int, Tail] = field(default_factory=dict)
    next_offsets: Mapping[Source, int] = field(default_factory=dict)
    answered: tuple[int, int] = (0, -1)

    def without(self, topic_ids: Collection[str]) -> Self:
        """The same without the offsets of topics with these ids."""
        kept = {source: offset for source, offset in self.next_offsets.items() if source.topic_id not in topic_ids}
        return replace(self, next_offsets=kept)

    @property
    def stamped(self) -> Tail | None:
        """The newest batch on stamps, in whatever partition."""
        return max(self.tails.values(), key=lambda tail: tail.batch, default=None)

    @property
    def newest(self) -> int:
        """The newest batch of which anything is there; 0 for none. Answers are written before stamps."""
        return max(self.stamped.batch if self.stamped else 0, self.answered[0])

    def is_past(self, offsets: Mapping[Source, int], starts: Mapping[Source, int], control: Source) -> bool:
        """Whether a record from these offsets on is stamped or answered; a source without one begins at `starts`."""
        return self._answers_are_past(offsets, control) or self.stamps_are_past(offsets, starts, control)

    def stamps_are_past(self, offsets: Mapping[Source, int], starts: Mapping[Source, int], control: Source) -> bool:
        """The same of the newest batch on stamps alone; the control records of that one are told by its answers."""
        if any(end > offsets.get(at, starts.get(at, 0)) for at, end in self.next_offsets.items()):
            return True
        answered_in_it = self.stamped is not None and self.answered[0] == self.stamped.batch
        return answered_in_it and self._answers_are_past(offsets, control)

    def _answers_are_past(self, offsets: Mapping[Source, int], control: Source) -> bool:
        return self.answered[1] >= offsets.get(control, 0)


def read_written(settings: Settings, partitions: Mapping[str, int]) -> Written:
    """Reads the ends of stamps and of grants; `partitions` counts those of the topics that exist.

    WireError for a record there that the sequencer cannot have written; BrokerUnavailable.
    """
    topics = settings.own_topics
    counts = {topic: partitions.get(topic, 0) for topic in (topics.stamps, topics.grants)}
    if not any(counts.values()):
        return Written()
    with reading.reader(settings) as consumer:
        ranges = reading.held(consumer, counts)
        last = {source: (max(begin, end - _LOOK_BACK), end) for source, (begin, end) in ranges.items()}
        found = list(reading.records(consumer, last, settings.broker_timeout_s))
    parts = [_part(settings.domain, record) for record in found if record.topic == topics.stamps]
    return _written(parts, [record.value for record in found if record.topic == topics.grants])


def _part(domain: str, record: Any) -> StampedBatch:
    part = decode_part(record.value)
    if (part.domain, part.partition) != (domain, record.partition):
        raise WireError(
            f"{record.topic}[{record.partition}] has a stamp of {part.domain}[{part.partition}] at {record.offset}",
            remedy="Look for another writer and restrict it",
        )
    return part


def _written(parts: Sequence[StampedBatch], answers: Iterable[bytes]) -> Written:
    newest: dict[int, StampedBatch] = {}
    for part in parts:
        if part.partition not in newest or part.batch >= newest[part.partition].batch:
            newest[part.partition] = part
    next_offsets: dict[Source, int] = {}
    for part in parts:
        next_offsets |= {source: max(end, next_offsets.get(source, 0)) for source, end in part.next_offsets.items()}
    answered = [decode_answer(value) for value in answers]
    return Written(
        tails={
            partition: Tail(batch=part.batch, time_ms=part.time_ms, digest=part.digest)
            for partition, part in newest.items()
        },
        next_offsets=next_offsets,
        answered=max(((answer.batch, answer.offset) for answer in answered if answer.offset >= 0), default=(0, -1)),
    )


def require_reached(tails: Mapping[int, Tail], batch: int, where: str) -> None:
    """StateError where a state at the end of `batch` cannot go on to the newest batch on stamps."""
    newest = max((tail.batch for tail in tails.values()), default=0)
    if batch + 1 < newest:
        raise StateError(f"{where} stands at batch {batch}, and stamps have batch {newest}", remedy=_OLD)


def require_agreement(tails: Mapping[int, Tail], batch: int, digests: Mapping[int, str], time_ms: int | None) -> None:
    """StateError where stamps have a batch with other content than the one at hand.

    `digests` are those of the partitions that the caller has; the batch's time, where it is known, counts for all.
    """
    for partition, tail in tails.items():
        if tail.batch != batch:
            continue
        digest = digests.get(partition, tail.digest)
        if digest != tail.digest or time_ms not in (None, tail.time_ms):
            raise StateError(
                f"batch {batch} of stamps partition {partition} has the digest {tail.digest[:12]} and the time "
                f"{tail.time_ms}, and by this checkpoint it has {digest[:12]} and {time_ms}",
                remedy=_OLD,
            )
