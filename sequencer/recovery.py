"""The sequencer's state from Kafka alone: from a snapshot of it on, every batch that is on stamps is run again, from
its own stamps; without a snapshot from the domain's first batch on.

Stamps tell what a step needs to know of a batch: its time, which events it has, and in which order. What they leave out
is on control, which keeps everything: the positions of π between the stamps are those of requests, in the order of
their offsets, behind those of the leases that ran out. So no event has to be there any more. The digests that come out
must be those on stamps, batch by batch, and so must those of the snapshot: what was recovered is what was lost, or
there is an error (docs/adr/0016).
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Self

import numpy as np
import numpy.typing as npt

from totalorder.errors import Contradiction, EventsLost, StateError
from totalorder.sequencer.batch import Batch
from totalorder.sequencer.engine import Effects, initial_state, step
from totalorder.sequencer.shards import of_shards, with_counts
from totalorder.sequencer.snapshot import Snapshot, SnapshotMark
from totalorder.sequencer.state import EngineConfig, State
from totalorder.sequencer.wire.chain import Chain
from totalorder.sequencer.wire.codec import StampsAssembler, bytes_of
from totalorder.sequencer.wire.control import Answer, claim_in
from totalorder.sequencer.wire.names import DomainTopics
from totalorder.sequencer.wire.numbering import present
from totalorder.sequencer.wire.signing import Signatures
from totalorder.sequencer.wire.stamps import Source, StampedBatch

Ints = npt.NDArray[np.int64]
_ANOTHER = "Other settings than the domain's were given, or something else than the sequencer writes to its topics"
_GONE = (
    "Without all stamps since a snapshot, or since the domain began, the clocks cannot be known: restore a copy of the "
    "checkpoint that is newer than all that was stamped, or begin a new domain, and keep stamps longer"
)


def require_all(domain: str, bounds: Mapping[int, tuple[int, int]], *, behind: SnapshotMark | None = None) -> None:
    """StateError where a stamps partition may lack some of what came `behind` a snapshot, or since the domain began.
    `bounds` are where each begins by now, and ends.

    Retention takes the oldest, so all of a later batch is there if the partition still begins where none had been
    written yet: at the snapshot's `stamps_ends`, or else its `stamps_begins`. Which batches are there shows neither
    that all are, nor that some are not. A job that was replaced may write any batch of the past once more, also the
    snapshot's own and the next ones: left alone behind later ones that are gone, they look like the newest. And where
    only claims came between the request for a snapshot and the snapshot, its batch lies further back, so that what came
    late may be all that is read.
    """
    for partition, (begin, end) in bounds.items():
        first = (behind.stamps_ends or behind.stamps_begins)[partition] if behind else 0
        if begin > first:
            raise StateError(
                f"{domain}.stamps[{partition}] begins at offset {begin} by now, and is needed from offset {first} on",
                remedy=_GONE,
            )
        if end < first:
            raise StateError(
                f"{domain}.stamps[{partition}] ends at offset {end}, and had reached offset {first}", remedy=_GONE
            )


class StampsLog:
    """The batches of all stamps partitions, each when every partition has it; records may come of any partition first.

    A partition's own rules are those of its chain: what a job wrote twice, or one that was replaced, is left
    out, and two contents of one batch are a Contradiction.
    """

    def __init__(self, domain: str, partitions: int, *, behind: Snapshot | None = None) -> None:
        """Batches `behind` a snapshot are wanted; those before are passed over, and its own must have its digests."""
        numbers, states = range(partitions), behind.states if behind else ()
        digests = {part: digest for state in states for part, digest in state.hot.digests.items()}
        last = behind.mark.batch if behind else 0
        self._assemblers = [StampsAssembler(domain=domain, partition=number) for number in numbers]
        self._chains = [Chain(domain, number, batch=last, digest=digests.get(number, "")) for number in numbers]
        self._waiting: list[deque[StampedBatch]] = [deque() for _ in numbers]

    def add(self, partition: int, value: bytes | None, headers: Mapping[str, bytes], offset: int) -> None:
        """Takes the next record of a partition. WireError, Contradiction; StateError where it does not have all."""
        assembler, chain = self._assemblers[partition], self._chains[partition]
        batch = assembler.add(value, headers, offset=offset)
        if batch is None:
            return
        try:
            admitted = chain.admit(batch)
        except EventsLost as lost:
            raise StateError(lost.what, remedy=_GONE) from None
        if admitted:
            self._waiting[partition].append(batch)

    def waiting(self, partition: int) -> tuple[int, int]:
        """How many batches of a partition wait for those of others, and what memory their stamps take."""
        batches = self._waiting[partition]
        return len(batches), sum(bytes_of(one.rows) for one in batches)

    def take(self) -> tuple[StampedBatch, ...] | None:
        """The next batch, by partition, once all have it."""
        if not all(self._waiting):
            return None
        found = tuple(waiting.popleft() for waiting in self._waiting)
        _require_one(found)
        return found

    def whole(self) -> frozenset[int]:
        """The partitions that have all of the batch that others have not."""
        return frozenset(number for number, waiting in enumerate(self._waiting) if waiting)

    def begun(self) -> tuple[StampedBatch, ...]:
        """What there is of a batch that not all partitions have, or not as a whole: a part stands for its partition."""
        whole = [waiting[0] for waiting in self._waiting if waiting]
        if any(len(waiting) > 1 for waiting in self._waiting):
            raise StateError(
                f"stamps have batch {whole[0].batch + 1}, and not in all partitions batch {whole[0].batch}",
                remedy=_ANOTHER,
            )
        parts = [assembler.begun for assembler in self._assemblers]
        lasts = [chain.last for chain in self._chains]
        found = (*whole, *(part for part, last in zip(parts, lasts, strict=True) if part and part.batch > last))
        _require_one(found)
        return found


def _require_one(batches: Sequence[StampedBatch]) -> None:
    """Contradiction where stamps partitions do not have the same batch."""
    for one in batches:
        if _frame(one) != _frame(batches[0]):
            raise Contradiction(
                f"stamps partitions {batches[0].partition} and {one.partition} of {one.domain} say different things of "
                f"batch {one.batch}",
                remedy=_ANOTHER,
            )


def _frame(one: StampedBatch) -> tuple[object, ...]:
    """What all partitions say of a batch."""
    return (one.batch, one.incarnation, one.time_ms, one.cut, one.g, one.control_g, one.sources, one.ends)


class ControlLog:
    """The requests on control in order; claims, which have no position, are passed over."""

    def __init__(self, records: Iterable[tuple[int, bytes]]) -> None:
        """`records`: offset and value of each, from the first one on."""
        self._requests = ((offset, value) for offset, value in records if claim_in(value) is None)
        self._ahead: list[tuple[int, bytes]] = []
        self.next_offset = 0
        """Behind the last one that was taken."""

    def take(self, count: int) -> list[tuple[int, bytes]]:
        """The next ones; StateError where there are not so many."""
        found = [*self._ahead[:count], *islice(self._requests, max(0, count - len(self._ahead)))]
        self._ahead = self._ahead[count:]
        if len(found) < count:
            raise StateError(f"stamps know of {count - len(found)} more requests than control has", remedy=_ANOTHER)
        if found:
            self.next_offset = found[-1][0] + 1
        return found

    def upcoming(self) -> int | None:
        """The offset of the next one, None where there is none."""
        self._ahead = self._ahead or list(islice(self._requests, 1))
        return self._ahead[0][0] if self._ahead else None


@dataclass(kw_only=True)
class Recovery:
    """The domain's state as stamps and control tell it, batch by batch: `from_the_first`, or `behind` a snapshot.

    `config` says which shards are wanted; stamps do not depend on them, so all is done in one. `starts` are the offsets
    at which event partitions begin that do not begin at 0; `control` has the requests from the beginning on. With
    `signatures`, all of them must be signed: batches do not tell with which keys they ran.
    """

    config: EngineConfig
    state: State
    starts: Mapping[Source, int]
    control: ControlLog
    signatures: Signatures | None = None
    cut: int = 0
    """The cut of the last batch, 0 for none."""
    before: State | None = None
    """The state before the last batch that was run."""
    last: tuple[StampedBatch, ...] = ()
    """The last batch that was run, by stamps partition; none before the first."""
    answers: tuple[Answer, ...] = field(default=())
    """What it answered to requests. Lower bounds of offsets in there may be lower than on grants."""

    @classmethod
    def from_the_first(
        cls,
        config: EngineConfig,
        starts: Mapping[Source, int],
        control: ControlLog,
        signatures: Signatures | None = None,
    ) -> Self:
        """Begins with the domain."""
        state = initial_state(_in_one(config))
        return cls(config=config, state=state, starts=starts, control=control, signatures=signatures)

    @classmethod
    def behind(
        cls, snapshot: Snapshot, config: EngineConfig, control: ControlLog, signatures: Signatures | None = None
    ) -> Self:
        """Begins with a snapshot; `control` has the requests from where that says that control goes on. StateError for
        settings that are not the domain's, and control keys that are not those of the snapshot.
        """
        mark, was = snapshot.mark, snapshot.states[0].cold.config
        for name in _FIXED:
            _require_setting(name, getattr(was, name), getattr(config, name))
        _require_keys(mark.keys, signatures)
        config = replace(config, identity=was.identity, incarnation=was.incarnation)
        (state,) = of_shards(snapshot.states, _in_one(config))
        return cls(
            config=config,
            state=with_counts(state),
            starts=mark.starts,
            control=control,
            signatures=signatures,
            cut=mark.cut,
        )

    @property
    def batch(self) -> int:
        """The number of the last batch, 0 for none."""
        return self.state.hot.batch

    @property
    def states(self) -> tuple[State, ...]:
        """The state by shard."""
        return of_shards([self.state], replace(self.config, incarnation=self.state.cold.config.incarnation))

    def absorb(self, stamped: Sequence[StampedBatch]) -> None:
        """Goes on by one batch, given by stamps partition. StateError where it does not come out as it stands there."""
        first = stamped[0]
        self._require_settings(first)
        if not self.batch:
            self._begin({one.partition: one.previous_digest for one in stamped})
        self.in_incarnation(first.incarnation)
        batch = _past(self.state, stamped, self.control)
        after, effects = self.run(batch)
        made = {one.partition: one.digest for one in effects.stamps}
        for one in stamped:
            if made.get(one.partition) != one.digest:
                raise StateError(
                    f"batch {one.batch} of stamps partition {one.partition} is not what follows from control and from "
                    "the batches before it",
                    remedy=f"{_ANOTHER} (keyframe_every is {self.config.keyframe_every})",
                )
        self.go_on(after, effects)

    def run(self, batch: Batch, *, again: bool = False) -> tuple[State, Effects]:
        """The state behind a batch, and what it writes; `go_on` takes it for what came next. With `again` it is the
        last batch once more.
        """
        return step(self.basis(again=again), batch, self.starts, signatures=self.signatures)

    def basis(self, *, again: bool) -> State:
        """What the next batch goes on from, or the last one did."""
        return self.before if again and self.before is not None else self.state

    def in_incarnation(self, incarnation: int) -> None:
        """From here on batches are of this incarnation."""
        cold = self.state.cold
        if cold.config.incarnation != incarnation:
            self.state = replace(self.state, cold=replace(cold, config=replace(cold.config, incarnation=incarnation)))

    def go_on(self, after: State, effects: Effects) -> None:
        """Takes what `run` gave as the last batch."""
        self.before, self.state = self.state, after
        self.last, self.answers = effects.stamps, effects.answers
        self.cut = self.last[0].cut if self.last else self.cut

    def _begin(self, digests: Mapping[int, str]) -> None:
        """The first batch says what its digests go on from."""
        self.state = replace(self.state, hot=replace(self.state.hot, digests=digests))

    def _require_settings(self, stamped: StampedBatch) -> None:
        for name, found in (
            ("domain", stamped.domain),
            ("stamps_partitions", stamped.partitions),
            ("min_subscriptions", stamped.min_subscriptions),
        ):
            _require_setting(name, found, getattr(self.config, name))


def _in_one(config: EngineConfig) -> EngineConfig:
    return replace(config, shards=1, shard=0)


_FIXED = ("domain", "stamps_partitions", "min_subscriptions", "topic_by", "keyframe_every")


def _require_setting(name: str, found: object, given: object) -> None:
    if given != found:
        raise StateError(f"the domain has {name} = {found!r}", remedy=f"Set it so; given is {given!r}")


def _require_keys(prints: Sequence[str], signatures: Signatures | None) -> None:
    """StateError where a key is not given by which requests were judged when a snapshot was made."""
    missing = set(prints) - set(signatures.prints if signatures else ())
    if missing:
        raise StateError(
            f"requests were judged by {len(prints)} control keys when the snapshot was made, and {len(missing)} of "
            "them are not in control_key_file",
            remedy="Hand the former keys in behind the present ones",
        )


def _past(state: State, stamped: Sequence[StampedBatch], control: ControlLog) -> Batch:
    """A batch of which a step makes these stamps: its records stand in the order of their positions in π.

    Records that belong to no pub/sub topic are not on stamps; only how far the batch went tells of the last of them.
    """
    frame = stamped[0]
    name, source, offset, crc, g = _events(stamped)
    requests = _requests(state, frame, g, control)
    unroutable = _unroutable(frame, source, offset)
    names = sorted(set(name))
    sources = [*frame.sources, Source(DomainTopics(domain=frame.domain).control, "", 0)]
    topics = list(dict.fromkeys(each.kafka_topic for each in sources))
    code, place = {each: at for at, each in enumerate(names)}, {each: at for at, each in enumerate(topics)}
    none = np.full(len(requests) + len(unroutable), -1, dtype=np.int64)
    at_source = np.concatenate(
        [source, np.full(len(requests), len(frame.sources)), np.array([at for at, _ in unroutable], dtype=np.int64)]
    )
    return Batch(
        time_ms=frame.time_ms,
        cut=frame.cut,
        topic_order=(),
        kafka_topics=tuple(topics),
        topics=tuple(names),
        kafka_topic=np.array([place[each.kafka_topic] for each in sources], dtype=np.int64)[at_source],
        partition=np.array([each.partition for each in sources], dtype=np.int64)[at_source],
        offset=np.concatenate(
            [offset, _ints(at for _, at, _ in requests), _ints(at for _, at in unroutable)],
        ),
        timestamp_ms=np.zeros(len(at_source), dtype=np.int64),
        topic=np.concatenate([_ints(code[each] for each in name), none]),
        crc=np.concatenate([crc, none]),
        slice=np.concatenate([g, _ints(at for at, _, _ in requests), np.full(len(unroutable), frame.g + 1)]),
        control={len(g) + number: value for number, (_, _, value) in enumerate(requests)},
    )


def _events(stamped: Sequence[StampedBatch]) -> tuple[list[str], Ints, Ints, Ints, Ints]:
    """Pub/sub topic, source, offset, crc32 and g of every event of the batch."""
    names = [one.names[topic] for one in stamped for topic in one.rows.topic.tolist()]
    rows = [one.rows for one in stamped]
    columns = [np.concatenate([getattr(each, name) for each in rows]) for name in ("source", "offset", "crc", "g")]
    return names, columns[0], columns[1], columns[2], columns[3]


def _requests(state: State, frame: StampedBatch, g: Ints, control: ControlLog) -> list[tuple[int, int, bytes]]:
    """Position in π, offset and value of each request of the batch. Its first positions are those of ended leases."""
    expired = int(np.count_nonzero(state.expiries() <= frame.time_ms))
    first = state.hot.g + expired + 1
    size = frame.g + 1 - first
    if size < 0 or (len(g) and not first <= g.min() <= g.max() <= frame.g):
        raise StateError(
            f"the positions of batch {frame.batch} are not those that come next, from {first} to {frame.g}",
            remedy=_ANOTHER,
        )
    taken = present(g - first, size=size)
    free = np.setdiff1d(np.arange(size), taken, assume_unique=True) + first
    found = control.take(len(free))
    return [(at, offset, value) for at, (offset, value) in zip(free.tolist(), found, strict=True)]


def _unroutable(frame: StampedBatch, source: Ints, offset: Ints) -> list[tuple[int, int]]:
    """Source and offset of the last record of each partition, where no stamp has it."""
    ends = np.zeros(len(frame.sources), dtype=np.int64)
    np.maximum.at(ends, source, offset + 1)
    return [(at, end - 1) for at, end in enumerate(frame.ends) if end > ends[at]]


def _ints(values: Iterable[int]) -> Ints:
    return np.fromiter(values, dtype=np.int64)
