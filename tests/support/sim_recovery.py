"""A lost checkpoint made anew from a SimKafka, in the steps of `totalorder recover` (docs/adr/0016)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from recovery_world import canonical
from sim_cuts import Cut, read_cuts, taken
from sim_sequencer import SimSequencer

from totalorder.sequencer.codec import encode_stamps
from totalorder.sequencer.control import Answer, Claim, answer_key, decode_answer, encode_answer, encode_claim
from totalorder.sequencer.cuts import Cut as PublicCut
from totalorder.sequencer.engine import Effects
from totalorder.sequencer.recovery import ControlLog, Recovery, StampsLog
from totalorder.sequencer.stamps import Source, StampedBatch
from totalorder.subscriber.transport import Partition, Record


@dataclass
class _Past:
    """What Kafka has of the domain; answers with their records' times."""

    made: Recovery
    log: StampsLog
    newest: tuple[PublicCut, ...]
    answers: list[tuple[Answer, int]]


@dataclass
class _Last:
    """The newest cut; where its batch had to be run again, that, what it gave, and which stamps partitions lack it."""

    cut: PublicCut
    is_over: bool = True
    batch: Cut | None = None
    effects: Effects | None = None
    missed: frozenset[int] = frozenset()


def recover(lost: SimSequencer, shards: int) -> bool:
    """The job goes on with what Kafka tells, in so many shards; False where that is not enough for now.

    What is recovered must be what was lost: the states behind the last batch, which may have been on its way.
    """
    past = _read(lost, shards)
    last = _last(lost, past) if past.newest else None
    if last is None:
        return False
    claim = Claim(incarnation=lost.incarnation + 1, owner="recovered")
    lost.kafka.append(Partition(lost.names.control, 0), value=encode_claim(claim))
    if lost.planned is not None:
        lost.forget(lost.planned.looks)  # it is run again as its cut says, or never
    if last.batch is not None:
        _write_missing(lost, past, last)
    if lost.planned is not None and last.is_over:
        batch = last.batch or lost.planned
        lost.commit(batch, lost.results(batch))
    past.made.in_incarnation(lost.incarnation)
    if shards == len(lost.states):
        assert canonical(past.made.states) == canonical(lost.states), "what is recovered is not what was lost"
    del lost.batches[last.cut.cut - (not last.is_over) :]
    ends = last.cut.ends if last.is_over else last.cut.begins
    places = map(Partition.of, last.cut.sources)
    lost.take_over(past.made.states, dict(zip(places, ends.tolist(), strict=True)))
    return True


# --- reading ----------------------------------------------------------------------------------------------------------


def _read(lost: SimSequencer, shards: int) -> _Past:
    kafka, names = lost.kafka, lost.names
    cuts, newest = read_cuts(kafka.logs.get(Partition(names.cuts, 0), []), lost.domain.name)
    control = kafka.logs.get(Partition(names.control, 0), [])
    made = Recovery.from_the_first(
        config=replace(lost.config(0), incarnation=1, shards=shards),
        starts=_starts(cuts),
        control=ControlLog((record.offset, record.value or b"") for record in control),
        signatures=lost.signatures,
    )
    log = _absorbed(lost, made)
    grants = kafka.logs.get(Partition(names.grants, 0), [])
    answers = [(decode_answer(record.value or b""), record.timestamp_ms) for record in grants]
    return _Past(made, log, newest, answers)


def _absorbed(lost: SimSequencer, made: Recovery) -> StampsLog:
    """Goes on to the last batch that all stamps partitions have; records come of any partition first."""
    partitions = range(lost.domain.stamps_partitions)
    log = StampsLog(lost.domain.name, len(partitions))
    left = {number: list(lost.kafka.logs.get(Partition(lost.names.stamps, number), [])) for number in partitions}
    while any(left.values()):
        number = lost.rng.choice([number for number, records in left.items() if records])
        for record in left[number][:9]:
            log.add(number, record.value, _headers(record), record.offset)
        del left[number][:9]
        while (batch := log.take()) is not None:
            made.absorb(batch)
    return log


def _headers(record: Record) -> dict[str, bytes]:
    return {name: value for name, value in record.headers if value is not None}


def _starts(cuts: Mapping[int, PublicCut]) -> dict[Source, int]:
    """Where event partitions begin that do not begin at 0: where the first cut has them that names them."""
    first: dict[Source, int] = {}
    for cut in cuts.values():
        for source, begin in zip(cut.sources, cut.begins.tolist(), strict=True):
            first.setdefault(source, begin)
    return {source: begin for source, begin in first.items() if begin}


# --- the last batch ---------------------------------------------------------------------------------------------------


def _last(lost: SimSequencer, past: _Past) -> _Last | None:
    """The last batch as a whole: one that is not on all stamps, or not on grants, is run again as its cut says. None
    where Kafka has its events no longer.
    """
    made, begun, newest = past.made, past.log.begun(), past.newest[-1]
    before = made.last[0].cut if made.last else 0
    more = [(answer, time_ms) for answer, time_ms in past.answers if answer.batch > made.batch]
    if not (begun or more):
        if newest.cut > before:  # planned, and nothing of it is written, or it has nothing that is stamped
            return _Last(newest, is_over=False)
        if len(past.newest) == 1 and not _missing(past, made.answers):
            return _Last(newest)
    elif {one.cut for one in begun} - {newest.cut} or {one.batch for one in begun} - {made.batch + 1}:
        raise AssertionError(f"{begun} was begun, and next is batch {made.batch + 1} of {newest}")
    if not all(_is_whole(lost, cut) for cut in past.newest):
        return None
    if not (begun or more):
        return _run_again(lost, past, made.last, made.last[0].time_ms, again=True)
    made.in_incarnation(begun[0].incarnation if begun else more[0][0].incarnation)
    return _run_again(lost, past, begun, begun[0].time_ms if begun else more[-1][1])


def _is_whole(lost: SimSequencer, cut: PublicCut) -> bool:
    """Whether Kafka still has all that a cut takes."""
    places = [(Partition.of(source), begin) for _, source, begin, _ in cut.parts]
    return all(lost.kafka.has(at) and lost.kafka.begin(at) <= begin for at, begin in places)


def _run_again(
    lost: SimSequencer, past: _Past, stamps: Sequence[StampedBatch], time_ms: int, *, again: bool = False
) -> _Last:
    """Of the contents that the cut came with, the shortest that gives what is there."""
    made, missed = past.made, frozenset[int]()
    if not again:
        missed = frozenset(range(lost.domain.stamps_partitions)) - past.log.whole()
    number, digests = made.batch + (not again), {one.partition: one.digest for one in stamps}
    there = {answer.g: encode_answer(answer) for answer, _ in past.answers if answer.batch == number}
    for cut in sorted(past.newest, key=lambda cut: int(cut.ends.sum())):
        batch = Cut(cut.cut, time_ms, cut.topic_order, taken(cut, lost.kafka.ever), {}, [])
        if not any(batch.slices):
            continue
        after, effects = made.run(lost.batch(batch), again=again)
        given = {answer.g: encode_answer(answer) for answer in effects.answers}
        found = {one.partition: one.digest for one in effects.stamps}
        if digests.items() <= found.items() and there.items() <= given.items():
            if not again:
                made.control.take(effects.controls)
                made.go_on(after, effects)
            return _Last(cut, batch=batch, effects=effects, missed=missed)
    raise AssertionError(f"what is there of batch {number} does not come out again")


def _write_missing(lost: SimSequencer, past: _Past, last: _Last) -> None:
    """What the last batch lacks; answers go first, as always."""
    kafka, names = lost.kafka, lost.names
    assert last.effects is not None
    for answer in _missing(past, last.effects.answers):
        kafka.append(Partition(names.grants, 0), key=answer_key(answer), value=encode_answer(answer))
    for one in last.effects.stamps:
        for part in encode_stamps(one) if one.partition in last.missed else ():
            kafka.append(Partition(names.stamps, one.partition), value=part.value, headers=part.headers)


def _missing(past: _Past, answers: Sequence[Answer]) -> Sequence[Answer]:
    """From the first on that is not there, and in whose place none stands by now."""
    newest: dict[bytes, int] = {}
    for answer, _ in past.answers:
        newest[answer_key(answer)] = max(answer.g, newest.get(answer_key(answer), 0))
    places = (at for at, answer in enumerate(answers) if newest.get(answer_key(answer), 0) < answer.g)
    return answers[next(places, len(answers)) :]
