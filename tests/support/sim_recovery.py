"""A lost checkpoint made anew from a SimKafka, in the steps of `totalorder recover` (docs/adr/0016)."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from recovery_world import canonical
from sim_cuts import Cut, read_cuts, taken
from sim_sequencer import SimSequencer, identity_of

from totalorder.errors import EventsLost, StateError
from totalorder.sequencer.engine import Effects, EngineConfig
from totalorder.sequencer.recovery import ControlLog, Recovery, StampsLog, require_all
from totalorder.sequencer.shards import of_shards
from totalorder.sequencer.snapshot import Snapshot, SnapshotAssembler, SnapshotMark, cut_of, decode_mark
from totalorder.sequencer.state import State
from totalorder.sequencer.wire.codec import encode_stamps
from totalorder.sequencer.wire.control import Answer, Claim, answer_key, decode_answer, encode_answer, encode_claim
from totalorder.sequencer.wire.cuts import Cut as PublicCut, CutsAssembler
from totalorder.sequencer.wire.stamps import Source, StampedBatch
from totalorder.subscriber.transport import Partition, Record


@dataclass
class _Past:
    """What Kafka has of the domain, from a snapshot on or from the first batch; answers with their records' times."""

    made: Recovery
    log: StampsLog
    snapshot: Snapshot | None
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
    last = _last(lost, past) if past is not None and past.newest else None
    if past is None or last is None:
        return False
    lost.begun_behind += past.snapshot is not None
    claim = Claim(incarnation=lost.incarnation + 1, owner=identity_of(lost.incarnation + 1))
    claimed_at = lost.kafka.append(Partition(lost.names.control, 0), value=encode_claim(claim))
    if lost.planned is not None:
        lost.forget(lost.planned.looks)  # it is run again as its cut says, or never
    if last.batch is not None:
        _write_missing(lost, past, last)
    if lost.planned is not None and last.is_over:
        batch = last.batch or lost.planned
        lost.commit(batch, lost.results(batch))
    past.made.in_incarnation(lost.incarnation)
    former = of_shards(lost.states, past.made.config) if shards != len(lost.states) else lost.states
    assert _canonical(past.made.states, lost) == _canonical(former, lost), "what is recovered is not what was lost"
    del lost.batches[last.cut.cut - (not last.is_over) :]
    ends = last.cut.ends if last.is_over else last.cut.begins
    places = map(Partition.of, last.cut.sources)
    lost.take_over(past.made.states, dict(zip(places, ends.tolist(), strict=True)), claimed_at)
    return True


def _canonical(states: Sequence[State], lost: SimSequencer) -> object:
    """Whichever checkpoint they were in."""
    mine = {"identity": lost.identity, "incarnation": lost.incarnation}
    return canonical(
        [replace(one, cold=replace(one.cold, config=replace(one.cold.config, **mine))) for one in states]  # type: ignore[arg-type]
    )


# --- reading ----------------------------------------------------------------------------------------------------------


def _read(lost: SimSequencer, shards: int) -> _Past | None:
    """From the newest snapshot on that gives all, or from the first batch on; None where neither does, which is right
    only where something is gone.
    """
    beginnings: list[Callable[[], _Past]] = [partial(_behind, lost, shards, mark) for mark in _marks(lost)]
    beginnings.append(partial(_from_the_first, lost, shards))
    found = []
    for beginning in beginnings:
        with suppress(StateError, EventsLost):
            found.append(beginning())
    states = [_canonical(past.made.states, lost) for past in found]
    assert all(state == states[0] for state in states), "snapshots tell of different pasts"
    if not found:
        assert not any(_is_there(lost, mark) for mark in (*_marks(lost), None)), "nothing is gone, and all is refused"
    return found[0] if found else None


def _marks(lost: SimSequencer) -> list[SnapshotMark]:
    """Newest first."""
    records = lost.kafka.logs.get(Partition(lost.names.state, 0), [])
    marks = [decode_mark(record.value, _headers(record), lost.domain.name) for record in records]
    return [mark for mark in reversed(marks) if mark is not None]


def _is_there(lost: SimSequencer, mark: SnapshotMark | None) -> bool:
    """Whether nothing is gone of stamps and cuts since a snapshot, or since the domain began. What came late proves
    nothing: where cuts begin with an old one that was written once more, those behind it may be gone.
    """
    begins = (mark.stamps_ends or mark.stamps_begins) if mark is not None else (0,) * lost.domain.stamps_partitions
    stamps = all(_bounds(lost)[at][0] <= begin for at, begin in enumerate(begins))
    at = Partition(lost.names.cuts, 0)
    if mark is None:
        return stamps and not lost.kafka.begin(at)
    later = (record.offset for record in lost.kafka.ever(at) if int(_headers(record)["cut"]) > mark.cut)
    return stamps and lost.kafka.begin(at) <= next(later, lost.kafka.end(at))


def _behind(lost: SimSequencer, shards: int, mark: SnapshotMark) -> _Past:
    assembler = SnapshotAssembler(mark=mark)
    for record in lost.kafka.logs.get(Partition(lost.names.state, 0), []):
        assembler.add(record.value, _headers(record))
    snapshot = assembler.snapshot()
    (goes_on,) = (offset for source, offset in mark.ends.items() if source.topic == lost.names.control)
    made = Recovery.behind(snapshot, _config(lost, shards), _requests(lost, goes_on), lost.signatures)
    # The job admits no topic whose beginning is gone, and that of a world does.
    later = {source: begin for source, begin in lost.starts.items() if source not in mark.ends}
    made.starts = {**mark.starts, **later}
    log = StampsLog(lost.domain.name, lost.domain.stamps_partitions, behind=snapshot)
    require_all(lost.domain.name, _bounds(lost), behind=mark)
    _absorb(lost, made, log, mark.stamps_begins)
    own = cut_of(mark)
    newest = _newest_cuts(lost) or _newest_cuts(lost, own)
    if not made.last and newest[-1].cut == own.cut:
        ends = dict(zip(own.sources, own.ends.tolist(), strict=True))
        assert any(dict(zip(cut.sources, cut.ends.tolist(), strict=True)) == ends for cut in newest), f"{own}: {newest}"
        newest = (own,)
    return _Past(made, log, snapshot, newest, _answers(lost))


def _from_the_first(lost: SimSequencer, shards: int) -> _Past:
    cuts, newest = read_cuts(lost.kafka.logs.get(Partition(lost.names.cuts, 0), []), lost.domain.name)
    if lost.kafka.begin(Partition(lost.names.cuts, 0)):
        raise StateError("the first cut is gone")
    config = replace(_config(lost, shards), identity=identity_of(1), incarnation=1)
    # Of a topic that was gone before any cut named it, what is lost is told too large: nothing else hangs on its start.
    starts = lost.starts | _starts(cuts)
    made = Recovery.from_the_first(config, starts, _requests(lost, 0), lost.signatures)
    log = StampsLog(lost.domain.name, lost.domain.stamps_partitions)
    require_all(lost.domain.name, _bounds(lost))
    _absorb(lost, made, log, (0,) * lost.domain.stamps_partitions)
    return _Past(made, log, None, newest, _answers(lost))


def _config(lost: SimSequencer, shards: int) -> EngineConfig:
    return replace(lost.config(0), shards=shards)


def _requests(lost: SimSequencer, begin: int) -> ControlLog:
    control = lost.kafka.logs.get(Partition(lost.names.control, 0), [])
    return ControlLog((record.offset, record.value or b"") for record in control if record.offset >= begin)


def _newest_cuts(lost: SimSequencer, behind: PublicCut | None = None) -> tuple[PublicCut, ...]:
    assembler = CutsAssembler(domain=lost.domain.name, behind=behind)
    for record in lost.kafka.logs.get(Partition(lost.names.cuts, 0), []):
        assembler.add(record.value, _headers(record))
    return assembler.newest


def _answers(lost: SimSequencer) -> list[tuple[Answer, int]]:
    grants = lost.kafka.logs.get(Partition(lost.names.grants, 0), [])
    return [(decode_answer(record.value or b""), record.timestamp_ms) for record in grants]


def _bounds(lost: SimSequencer) -> dict[int, tuple[int, int]]:
    """Where the stamps partitions begin and end."""
    places = [Partition(lost.names.stamps, number) for number in range(lost.domain.stamps_partitions)]
    return {at.number: (lost.kafka.begin(at), lost.kafka.end(at)) for at in places}


def _absorb(lost: SimSequencer, made: Recovery, log: StampsLog, begins: Sequence[int]) -> None:
    """Goes on to the last batch that all stamps partitions have; records come of any partition first."""
    left = {
        at: [record for record in lost.kafka.logs.get(Partition(lost.names.stamps, at), []) if record.offset >= begin]
        for at, begin in enumerate(begins)
    }
    while any(left.values()):
        number = lost.rng.choice([number for number, records in left.items() if records])
        for record in left[number][:9]:
            log.add(number, record.value, _headers(record), record.offset)
        del left[number][:9]
        while (batch := log.take()) is not None:
            made.absorb(batch)


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
    where Kafka has its events no longer, or not its cut.
    """
    made, begun, newest = past.made, past.log.begun(), past.newest[-1]
    before = made.cut
    more = [(answer, time_ms) for answer, time_ms in past.answers if answer.batch > made.batch]
    if newest.cut < before or ((begun or more) and newest.cut == before):
        return None  # the cuts end before the stamps
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
