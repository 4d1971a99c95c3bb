"""The last batch of a domain that is recovered: what of it is missing on grants and stamps, and where it ends."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from totalorder.config import Settings
from totalorder.errors import StateError
from totalorder.sequencer.batch import Batch
from totalorder.sequencer.engine import Effects
from totalorder.sequencer.recovery import Recovery, StampsLog
from totalorder.sequencer.state import State
from totalorder.sequencer.wire.codec import encode_stamps
from totalorder.sequencer.wire.control import Answer, Renewed, answer_key, encode_answer, skips_in
from totalorder.sequencer.wire.cuts import Cut
from totalorder.sequencer.wire.signing import Signatures
from totalorder.sequencer.wire.stamps import Source, StampedBatch
from totalorder.streaming import writing
from totalorder.streaming.cut.batches import to_batch
from totalorder.streaming.cut.chunk import Chunk
from totalorder.streaming.cut.ranges import Range, SliceEnd
from totalorder.streaming.cut.source_settings import SourceSettings
from totalorder.streaming.past import Answered
from totalorder.streaming.topics import Topics

AGAIN = "Look for what else writes to the domain's topics; where its past is gone, begin a new domain"


@dataclass(frozen=True, kw_only=True)
class Last:
    """The last batch as a whole: what of it is missing, and the cut that is over with it, or that runs next."""

    answers: tuple[Answer, ...] = ()
    stamps: tuple[StampedBatch, ...] = ()
    cut: Cut
    is_over: bool


@dataclass(frozen=True, eq=False)
class Completing:
    """Of the domain as it is `made` up to the last batch that all stamps partitions have; `answered` is what grants
    have of that one and of those behind it.
    """

    _settings: Settings
    _topics: Topics
    _made: Recovery
    _answered: Answered
    _say: Callable[[str], None]

    def last(self, log: StampsLog, newest: Sequence[Cut]) -> Last:
        """What is missing of the newest batch. One that is not on all stamps is run again as its cut says.

        `log` has what stamps have besides; `newest` are the contents that the newest cut came with.
        """
        made, answered, cut, begun = self._made, self._answered, newest[-1], log.begun()
        more = [answer for answer in answered.answers if answer.batch > made.batch]
        if cut.cut < made.cut or ((begun or more) and cut.cut == made.cut):
            raise StateError(f"the cuts end before the stamps, with cut {cut.cut}", remedy=AGAIN)
        if begun or more:
            self._require_next(begun, more, cut)
            made.in_incarnation((*begun, *more)[0].incarnation)
            self._say(f"batch {made.batch + 1} is not on all stamps: it is run again")
            missed = frozenset(range(self._settings.stamps_partitions)) - log.whole()
            return self._completed(begun, newest, missed=missed)
        if cut.cut > made.cut:  # planned, and nothing of it is written, or it has nothing that is stamped
            return Last(cut=cut, is_over=False)
        missing = [answer for answer in made.answers if not answered.has(answer)]
        if not missing and len({tuple(one.ends.tolist()) for one in newest}) == 1:
            return Last(cut=cut, is_over=True)
        return self._completed(made.last, newest, again=True)

    def _require_next(self, begun: Sequence[StampedBatch], more: Sequence[Answer], cut: Cut) -> None:
        number = self._made.batch + 1
        for one in begun:
            if (one.batch, one.cut) != (number, cut.cut):
                raise StateError(
                    f"stamps partition {one.partition} has batch {one.batch} of cut {one.cut} begun, and next is batch "
                    f"{number} of cut {cut.cut}",
                    remedy=AGAIN,
                )
        if any(answer.batch != number for answer in more):
            raise StateError(f"grants have answers of a batch behind {number}, and stamps not", remedy=AGAIN)

    def _completed(
        self,
        begun: Sequence[StampedBatch],
        candidates: Sequence[Cut],
        *,
        again: bool = False,
        missed: frozenset[int] = frozenset(),
    ) -> Last:
        """What the batch lacks, once it is run again: of the contents that its cut came with, one gives what is there.

        Where several do, that which takes least: what it leaves will be read with the next one.
        """
        made, answered = self._made, self._answered
        time_ms = begun[0].time_ms if begun else _time_of(made, answered)
        number = made.batch + (not again)
        for cut in sorted(candidates, key=lambda cut: int(cut.ends.sum())):
            batch = self._batch(cut, time_ms, made.basis(again=again))
            after, effects = made.run(batch, again=again) if batch is not None else (made.state, Effects())
            if not _agrees(effects, begun, [answer for answer in answered.answers if answer.batch == number]):
                continue
            if not again:
                made.control.take(effects.controls)
                made.go_on(after, effects)
            stamps = tuple(one for one in effects.stamps if one.partition in missed)
            return Last(answers=_missing(effects, answered), stamps=stamps, cut=cut, is_over=True)
        raise StateError(
            f"batch {number} was begun, and what is there of it does not come out again from its events and requests",
            remedy=f"An event topic may have lost records, or was deleted. {AGAIN}",
        )

    def _batch(self, cut: Cut, time_ms: int, state: State) -> Batch | None:
        """The records of a cut, read again; None where it has none. Those of topics that are gone are left out, and
        what its own requests on control pass over.
        """
        # Only here: a past whose last batch is whole needs no reading of events.
        from totalorder.streaming.cut import reading
        from totalorder.streaming.cut.verifying import present_ids

        settings, control = self._settings, self._settings.own_topics.control
        present = self._topics.ids({source.topic for source in cut.sources})
        retired = {state.cold.kafka_topics[rank] for rank in state.cold.retired}
        ranges = [
            wanted
            for wanted in _ranges(cut)
            if present.get(wanted.topic) == wanted.topic_id and wanted.source.kafka_topic not in retired
        ]

        def read(ranges: Sequence[Range]) -> list[Chunk]:
            plan = SourceSettings.of(settings, "").plan(cut=cut.cut, topic_order=cut.topic_order, ranges=ranges)
            return list(reading.read(plan, verify=present_ids)) if ranges else []

        chunks = read([wanted for wanted in ranges if wanted.topic == control])
        passed = _passed_over(chunks, self._made.signatures)
        events = [wanted for wanted in ranges if wanted.topic != control]
        chunks += read([wanted for wanted in events if wanted.end > passed.get(wanted.source, 0)])
        if not chunks:
            return None
        return to_batch(chunks, time_ms=time_ms, control_topic=control, topic_by=settings.topic_by)


def _passed_over(chunks: Sequence[Chunk], signatures: Signatures | None) -> dict[Source, int]:
    """By event partition the offset to before which requests say that all is lost. A batch that passes something over
    takes nothing else of that partition.
    """
    passed: dict[Source, int] = {}
    for skip in skips_in((value for chunk in chunks for value in chunk.control.values()), signatures):
        source = Source(skip.topic, skip.topic_id, skip.partition)
        passed[source] = max(skip.end, passed.get(source, 0))
    return passed


def write(settings: Settings, last: Last) -> None:
    """Writes what the last batch lacks; answers go first, as always."""
    names = settings.own_topics
    if not (last.answers or last.stamps):
        return
    with writing.writer(settings) as producer:
        sent = [
            producer.send(names.grants, key=answer_key(answer), value=encode_answer(answer), partition=0)
            for answer in last.answers
        ]
        for one in last.stamps:
            for part in encode_stamps(one):
                headers = list(part.headers)
                sent.append(producer.send(names.stamps, value=part.value, headers=headers, partition=one.partition))
        for each in sent:
            each.get(settings.broker_timeout_s)


def _time_of(made: Recovery, answered: Answered) -> int:
    """A time for a batch of which nothing but answers is there. A renewed lease tells it; else any that gives the same
    answers will do, since nobody has seen another, and Kafka's of the last answer is near.
    """
    for answer in answered.answers:
        if isinstance(answer, Renewed) and answer.batch > made.batch:
            held = made.state.cold.subscriptions.get(answer.id)
            if held is not None and held.generation == answer.generation:
                return answer.expires_ms - held.lease_ms
    return answered.time_ms


def _agrees(effects: Effects, begun: Sequence[StampedBatch], answers: Sequence[Answer]) -> bool:
    """Whether what a batch gives is what is there of it."""
    digests = {one.partition: one.digest for one in effects.stamps}
    if any(digests.get(one.partition) != one.digest for one in begun):
        return False
    made = {answer.g: encode_answer(answer) for answer in effects.answers}
    return all(made.get(answer.g) == encode_answer(answer) for answer in answers)


def _missing(effects: Effects, answered: Answered) -> tuple[Answer, ...]:
    """The answers from the first one on that is not there: one behind another of its key must stay behind it."""
    answers = effects.answers
    first = next((at for at, answer in enumerate(answers) if not answered.has(answer)), len(answers))
    return answers[first:]


def _ranges(cut: Cut) -> list[Range]:
    """What the cut takes, by source."""
    slices: dict[Source, list[SliceEnd]] = {}
    begins: dict[Source, int] = {}
    for part in cut.parts:
        begins.setdefault(part.source, part.begin)
        slices.setdefault(part.source, []).append(SliceEnd(part.slice, part.end))
    return [
        Range(
            topic=source.topic,
            topic_id=source.topic_id,
            partition=source.partition,
            begin=begins[source],
            end=ends[-1].end,
            slices=tuple(ends),
        )
        for source, ends in slices.items()
    ]
