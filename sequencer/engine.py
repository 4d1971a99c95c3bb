"""The topic managers and sequencing groups of one shard: `step(state, batch) -> (state, effects)`.

A batch is known whole, so every topic manager fills its entries of every timestamp in one pass over the batch in π; the
paper's hops from topic manager to topic manager (§3.4) fall away. Same state, same rows in any order: same effects.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from totalorder.errors import StateError
from totalorder.sequencer.batch import Batch
from totalorder.sequencer.draft import Draft
from totalorder.sequencer.invariants import check_step
from totalorder.sequencer.order import SliceFalls, pi_order
from totalorder.sequencer.registry import Registry
from totalorder.sequencer.stamper import Stamper
from totalorder.sequencer.state import NO_RENEWALS, Cold, EngineConfig, Hot, State
from totalorder.sequencer.wire.control import (
    Answer,
    BadRequest,
    Claim,
    Retire,
    claim_in,
    may_say,
    parse_request,
    skips_in,
)
from totalorder.sequencer.wire.invariants import due
from totalorder.sequencer.wire.limits import MAX_KAFKA_TOPICS
from totalorder.sequencer.wire.names import DomainTopics
from totalorder.sequencer.wire.numbering import present
from totalorder.sequencer.wire.signing import Signatures
from totalorder.sequencer.wire.stamps import KafkaTopic, Source, StampedBatch, StampRows, first_digest

Ints = npt.NDArray[np.int64]

__all__ = ["Effects", "EngineConfig", "State", "initial_state", "step"]


@dataclass(frozen=True, kw_only=True)
class Effects:
    """What a step wants done; all of it may be written again after a crash, with equal content.

    `answers` go to grants, in order, and come from shard 0 alone; `stamps` hold one StampedBatch for each stamps
    partition of the shard. `unroutable` lists, sorted, the events (Kafka topic, partition, offset) whose pub/sub topic
    could not be told: they take no position and nobody is owed them; nor any of the `late` ones, whose Kafka topics
    were retired before them. `unsigned` counts the requests that were refused for want of a signature. `cold_changed`
    says that the cold state must be written too. `asked_at` is the offset on control of the last record by which the
    job asks for a snapshot of the state behind the batch.
    """

    stamps: tuple[StampedBatch, ...] = ()
    answers: tuple[Answer, ...] = ()
    unroutable: tuple[tuple[str, int, int], ...] = ()
    cold_changed: bool = False
    events: int = 0
    late: int = 0
    controls: int = 0
    unsigned: int = 0
    asked_at: int | None = None


def initial_state(config: EngineConfig) -> State:
    """The state of a domain in which nothing has happened yet."""
    none = np.zeros(0, dtype=np.int64)
    digests = {p: first_digest(config.domain, p, config.identity) for p in config.own_partitions()}
    hot = Hot(
        batch=0,
        g=0,
        control_g=0,
        clocks=none,
        last_g=none,
        next_offsets=none,
        digests=digests,
        owed={},
        rekey=frozenset(),
        opening=frozenset(),
        renewed=NO_RENEWALS,
    )
    return State(
        hot=hot,
        cold=Cold(
            config=config,
            kafka_topics=(),
            retired={},
            sources=(),
            topics=(),
            subscriptions={},
            counts={},
        ),
    )


def step(
    state: State,
    batch: Batch,
    starts: Mapping[Source, int],
    *,
    signatures: Signatures | None = None,
    claimed_at: int | None = None,
) -> tuple[State, Effects]:
    """Runs one batch.

    With `signatures` requests must be signed; they are part of what a batch's content depends on.

    `starts` holds the recorded first offset of event partitions that the domain does not begin at 0, `claimed_at` the
    offset on control of the claim by which the job has the domain; None where that does not matter. Raises StateError
    when the rows contradict the state (an offset seen before: the topic was recreated, or the checkpoint is older than
    the stamps), LimitExceeded when the domain has too many topics.

    Claims are between sequencers: they take no position and get no answer, and a batch of claims alone is none; nor is
    one of events of retired topics. A claim of the next incarnation behind the job's own ends this one: StateError. The
    job's own claim, written once more, asks for a snapshot.
    """
    claims = {row: claim for row, value in batch.control.items() if (claim := claim_in(value)) is not None}
    asked_at = None
    if claimed_at is not None:
        behind = {int(batch.offset[row]): claim for row, claim in claims.items() if batch.offset[row] > claimed_at}
        _require_undisputed(state.cold.config, behind.values())
        asked_at = max((at for at, claim in behind.items() if _is_own(claim, state.cold.config)), default=None)
    batch = batch.without(list(claims))
    late = _late(state.cold, batch)
    batch = batch.without(late)
    if len(batch.offset) == 0:
        return state, Effects(late=len(late), asked_at=asked_at)
    run = _Run(state, batch, starts, signatures, late=len(late))
    run.walk()
    after, effects = run.finish()
    if due():
        check_step(state, after, effects.events)
    return after, replace(effects, asked_at=asked_at)


class _Run:
    """One step's working copies; dropped after it."""

    def __init__(
        self, state: State, batch: Batch, starts: Mapping[Source, int], signatures: Signatures | None, *, late: int
    ) -> None:
        self.before = state
        self.batch = batch
        self.draft = draft = Draft(state)
        self.source = _number_sources(draft, batch, _passed_over(draft, batch, signatures))
        self.late_before, self.late = late, 0
        self.in_pi = self._in_pi()
        draft.number_topics(self._topics_shown(signatures))
        self.topic = np.array([draft.topic_ids.get(name, -1) for name in batch.topics] + [-1])[batch.topic]
        self.begins = _first_offsets(state.hot.next_offsets, draft, starts)
        self.next_offsets = self.begins.copy()
        self.stamper = Stamper(state.hot, draft)
        self.registry = Registry(
            draft,
            self.stamper,
            starts,
            control_g=state.hot.control_g,
            batch_number=state.hot.batch + 1,
            time_ms=batch.time_ms,
            signatures=signatures,
        )
        self._check_offsets()

    def _check_offsets(self) -> None:
        events = self.source >= 0
        seen = self.batch.offset[events] < self.next_offsets[self.source[events]]
        if seen.any():
            row = np.flatnonzero(events)[np.flatnonzero(seen)[0]]
            topic, _, partition = self.draft.source(int(self.source[row]))
            raise StateError(
                f"offset {self.batch.offset[row]} of {topic}[{partition}] comes a second time; "
                f"{self.next_offsets[self.source[row]]} was to be next",
                remedy="The topic was recreated, or the checkpoint is an old copy: `totalorder recover` makes one anew",
            )

    def walk(self) -> None:
        """Expires leases, then goes through the batch in π: runs of events between control records."""
        batch, registry = self.batch, self.registry
        registry.expire()
        rows = self.in_pi
        rows = rows[(self.topic[rows] >= 0) | (self.source[rows] < 0)]
        done = 0
        for at in np.flatnonzero(self.source[rows] < 0).tolist():
            self._events(rows[done:at])
            row = int(rows[at])
            registry.handle(batch.control[row], int(batch.offset[row]), self.next_offsets)
            done = at + 1
        self._events(rows[done:])

    def _topics_shown(self, signatures: Signatures | None) -> Sequence[str]:
        """The pub/sub topics that stamps will show, but for those of events that cannot be stamped: what is late would
        take a number that nobody sees, and a recovery could not tell it.
        """
        batch = self.batch
        named = {row: _retired_by(value, signatures) for row, value in batch.control.items()}
        retired = {row: topic for row, topic in named.items() if topic is not None}
        if not retired and not self.late_before:
            return batch.topics
        shown = batch.topic >= 0
        for at in np.flatnonzero(np.isin(self.in_pi, list(retired))).tolist():
            code = [topic == retired[int(self.in_pi[at])] for topic in batch.kafka_topics]
            behind = self.in_pi[at:]
            shown[behind] &= ~np.array(code)[batch.kafka_topic[behind]]
        return [batch.topics[code] for code in np.unique(batch.topic[shown]).tolist()]

    def _in_pi(self) -> Ints:
        batch = self.batch
        try:
            return pi_order(
                slice_=batch.slice,
                rank=_ranks(self.draft, batch),
                precedence=_precedences(self.draft, batch),
                partition=batch.partition,
                offset=batch.offset,
                timestamp_ms=batch.timestamp_ms,
                time_ms=batch.time_ms,
            )
        except SliceFalls as fall:
            topic, partition, offset = self._coordinates(fall.row)
            raise StateError(
                f"offset {offset} of {topic}[{partition}] is in slice {batch.slice[fall.row]} of cut {batch.cut}, and "
                "an earlier offset in a later slice",
                remedy="That is a fault of totalorder: please report it with the domain's record of that cut",
            ) from None

    def _events(self, rows: Ints) -> None:
        if self._retires:
            rows = self._without_late(rows)
        if len(rows) == 0:
            return
        batch = self.batch
        self.stamper.stamp(
            topic=self.topic[rows], source=self.source[rows], offset=batch.offset[rows], crc=batch.crc[rows]
        )
        # π never inverts the offsets of a partition, and of several values for one place the last one stays.
        self.next_offsets[self.source[rows]] = batch.offset[rows] + 1

    def _without_late(self, rows: Ints) -> Ints:
        is_late = self._retired_sources()[self.source[rows]]
        self.late += int(is_late.sum())
        return rows[~is_late]

    def finish(self) -> tuple[State, Effects]:
        """The state after the batch, and what is to be written."""
        batch, stamper = self.batch, self.stamper
        cold, renewed = self.draft.finish()
        events = self.source >= 0
        lost = np.flatnonzero(events & (self.topic < 0))
        if self._retires:
            lost = self._without_late(lost)
        np.maximum.at(self.next_offsets, self.source[lost], batch.offset[lost] + 1)
        advanced = np.flatnonzero(self.next_offsets != self.begins)
        rises = self.next_offsets[advanced] > self.begins[advanced]
        assert rises.all(), f"the next offset of {self.draft.source(int(advanced[np.argmin(rises)]))} fell"
        frontier = StampedBatch(
            domain=cold.config.domain,
            partition=0,
            partitions=cold.config.stamps_partitions,
            incarnation=cold.config.incarnation,
            batch=self.before.hot.batch + 1,
            time_ms=batch.time_ms,
            cut=batch.cut,
            min_subscriptions=cold.config.min_subscriptions,
            g=stamper.g,
            control_g=self.registry.control_g,
            sources=tuple(self.draft.source(index) for index in advanced.tolist()),
            ends=tuple(self.next_offsets[advanced].tolist()),
            names={},
            rows=StampRows.empty(),
            previous_digest="",
        )
        rows = stamper.rows()
        stamps = tuple(
            self._stamped(frontier, advanced, partition, rows.get(partition, frontier.rows), cold)
            for partition in cold.config.own_partitions()
        )
        next_offsets = self.next_offsets
        if self._retires:
            kept = np.flatnonzero(~self._retired_sources())
            next_offsets = next_offsets[kept]
            cold = replace(cold, sources=tuple(cold.sources[index] for index in kept.tolist()))
        hot = Hot(
            batch=frontier.batch,
            g=stamper.g,
            control_g=self.registry.control_g,
            clocks=stamper.clocks,
            last_g=stamper.last_g,
            next_offsets=next_offsets,
            digests={stamped.partition: stamped.digest for stamped in stamps},
            owed=stamper.owed(),
            rekey=frozenset(stamper.rekey),
            opening=frozenset(stamper.opening),
            renewed=renewed,
        )
        effects = Effects(
            stamps=stamps,
            answers=tuple(self.registry.answers) if cold.config.shard == 0 else (),
            unroutable=tuple(sorted(self._coordinates(int(row)) for row in lost)),
            cold_changed=cold is not self.before.cold,
            events=int(events.sum()) - len(lost) - self.late,
            late=self.late_before + self.late,
            controls=len(batch.control),
            unsigned=self.registry.unsigned,
        )
        self._check_counts(hot, cold, effects.events)
        return State(hot=hot, cold=cold), effects

    def _check_counts(self, hot: Hot, cold: Cold, events: int) -> None:
        """Every position of π is an event's or an answer's, and every name has its counter."""
        former, answers = self.before.hot, len(self.registry.answers)
        assert hot.g == former.g + events + answers, f"g {former.g} to {hot.g} for {events} events, {answers} answers"
        assert former.control_g <= hot.control_g <= hot.g, f"control_g {hot.control_g} behind g {hot.g}, or it fell"
        assert len(hot.clocks) == len(hot.last_g) == len(cold.topics), "a topic without its clock"
        assert len(hot.next_offsets) == len(cold.sources), "an event partition without its next offset"

    @property
    def _retires(self) -> bool:
        """Whether a topic is retired in this batch."""
        return self.draft.retired is not self.before.cold.retired

    def _retired_sources(self) -> npt.NDArray[np.bool_]:
        """Of each source, whether its topic is retired by now."""
        ranks = np.array([rank for rank, _ in self.draft.sources], dtype=np.int64)
        return np.isin(ranks, list(self.draft.retired))

    def _stamped(
        self, frontier: StampedBatch, advanced: Ints, partition: int, rows: StampRows, cold: Cold
    ) -> StampedBatch:
        ids = present(rows.topic, rows.entry_topic, size=len(cold.topics)).tolist()
        return replace(
            frontier,
            partition=partition,
            names={topic: cold.topics[topic] for topic in ids},
            rows=replace(rows, source=np.searchsorted(advanced, rows.source)),
            previous_digest=self.before.hot.digests[partition],
        ).sealed()

    def _coordinates(self, row: int) -> tuple[str, int, int]:
        batch = self.batch
        return (
            batch.kafka_topics[int(batch.kafka_topic[row])].name,
            int(batch.partition[row]),
            int(batch.offset[row]),
        )


def _is_own(claim: Claim, config: EngineConfig) -> bool:
    return (claim.incarnation, claim.owner) == (config.incarnation, config.identity)


def _require_undisputed(config: EngineConfig, claims: Iterable[Claim]) -> None:
    """StateError where a recovered checkpoint has taken the domain over."""
    later = next((claim for claim in claims if claim.incarnation == config.incarnation + 1), None)
    if later is not None:
        raise StateError(
            f"domain {config.domain} was taken over by the checkpoint with the identity {later.owner}, in incarnation "
            f"{later.incarnation}, and this checkpoint is of incarnation {config.incarnation}",
            remedy="Run the job on the recovered checkpoint; where there is none, `totalorder recover` makes one",
        )


def _retired_by(value: bytes, signatures: Signatures | None) -> KafkaTopic | None:
    """The Kafka topic that a control record takes out; None for any other record, and for one that is refused."""
    if not may_say(b"retire", value):
        return None
    try:
        request = parse_request(value, signatures)
    except BadRequest:
        return None
    return KafkaTopic(request.topic, request.topic_id) if isinstance(request, Retire) else None


def _late(cold: Cold, batch: Batch) -> list[int]:
    """Rows of topics that were retired before the batch."""
    if not cold.retired:
        return []
    is_late = np.array([cold.ranks.get(topic, -1) in cold.retired for topic in batch.kafka_topics])
    found: list[int] = np.flatnonzero(is_late[batch.kafka_topic]).tolist()
    return found


def _ranks(draft: Draft, batch: Batch) -> Ints:
    """Rank of each row's Kafka topic; -1 for control, which goes before events of the same slice and τ."""
    return np.array([draft.ranks.get(topic, -1) for topic in batch.kafka_topics], dtype=np.int64)[batch.kafka_topic]


def _precedences(draft: Draft, batch: Batch) -> Ints:
    """Place of each row's Kafka topic in `topic_order`, its length for a topic that is not there; -1 for control."""
    place = {name: at for at, name in enumerate(batch.topic_order)}
    of_topic = [place.get(topic.name, len(place)) if topic in draft.ranks else -1 for topic in batch.kafka_topics]
    return np.array(of_topic, dtype=np.int64)[batch.kafka_topic]


def _passed_over(draft: Draft, batch: Batch, signatures: Signatures | None) -> list[Source]:
    """Event partitions of which requests of the batch pass something over, whether it has records of them or not."""
    skips = skips_in(batch.control.values(), signatures)
    sources = [Source(skip.topic, skip.topic_id, skip.partition) for skip in skips]
    found = [source for source in sources if draft.ranks.get(source.kafka_topic, -1) not in draft.retired]
    room = MAX_KAFKA_TOPICS - len(draft.kafka_topics)
    return found if len({source.kafka_topic for source in found} - draft.ranks.keys()) <= room else []


def _number_sources(draft: Draft, batch: Batch, more: Sequence[Source]) -> Ints:
    """Index of each row's event partition, -1 for control records; numbers what is seen for the first time, and these
    `more`.
    """
    control = DomainTopics(domain=draft.config.domain).control
    seen = [*batch.kafka_topics, *(source.kafka_topic for source in more)]
    draft.number_kafka_topics(topic for topic in seen if topic.name != control)
    width = int(batch.partition.max()) + 1
    pairs, of_row = np.unique(batch.kafka_topic * width + batch.partition, return_inverse=True)
    ranks = [draft.ranks.get(topic, -1) for topic in batch.kafka_topics]
    sources = [(ranks[pair // width], pair % width) for pair in pairs.tolist()]
    passed = [(draft.ranks.get(source.kafka_topic, -1), source.partition) for source in more]
    draft.number_sources(source for source in [*sources, *passed] if source[0] >= 0)
    index = np.array([draft.source_ids.get(source, -1) for source in sources], dtype=np.int64)
    return index[of_row]


def _first_offsets(known: Ints, draft: Draft, starts: Mapping[Source, int]) -> Ints:
    """The next offset of each event partition before the batch; new ones begin where the domain recorded it."""
    fresh = [starts.get(draft.source(index), 0) for index in range(len(known), len(draft.sources))]
    return np.concatenate([known, np.array(fresh, dtype=np.int64)])
