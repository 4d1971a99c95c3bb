"""The event partitions: which are read from where, what of them has come and waits for its turn, what is owed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from totalorder.errors import Contradiction
from totalorder.sequencer.wire.control import Skipped
from totalorder.sequencer.wire.stamps import KafkaTopic, Source
from totalorder.subscriber.delivery.effects import (
    Effect,
    PauseEvents,
    ReadEvents,
    ResumeEvents,
    StopEvents,
)
from totalorder.subscriber.delivery.owed import Owed
from totalorder.subscriber.delivery.rows import Rows, among, groups
from totalorder.subscriber.delivery.sets import Sets
from totalorder.subscriber.delivery.stamps import Stamps

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
GONE = 2**63 - 1
"""Behind all offsets: of a topic that Kafka has no longer, nothing is left below."""
NOT_YET, LOST, HERE = 0, 1, 2
"""Of a stamped event: it has not come, or not all before it; Kafka has it no longer; it is the next of its partition.
That it is the next holds where all before it are delivered."""
_UNKNOWN = -1
_OFFSET_TOPIC_G = [4, 0, 2]
"""Lines of Rows.table."""
NONE: Ints = np.zeros((3, 0), dtype=np.int64)
"""No offsets, topic ids and g."""


class EventBlock(NamedTuple):
    """Records of one event partition in the order of its log, as columns.

    `topics` are pub/sub topics, None where one cannot be told; `crcs` are crc32 of the values; `handles` come out again
    with the deliveries.
    """

    offsets: Sequence[int]
    topics: Sequence[str | None]
    crcs: Sequence[int]
    handles: list[object]


@dataclass(eq=False)
class EventPartition:
    """State of one that is read. Nothing that is owed lies below `delivered_to`."""

    source: Source
    read_from: int
    received_to: int
    owed: Owed
    delivered_to: int = 0
    ready_batch: int = 0
    """0, or the batch through which all stamps must be known before the first offset to read is certain."""
    paused: bool = False
    closed: bool = False
    """Whether nothing more of it will be stamped."""
    held: Ints = field(default_factory=lambda: np.zeros((3, 0), np.int64))
    """Offset, topic id and crc32 of each event that waits for its turn, in the order of offsets."""
    handles: list[object] = field(default_factory=list)

    def hold(self, held: Ints, handles: list[object]) -> None:
        """More events wait."""
        assert held.shape[1] == len(handles), "each event that waits has its handle"
        rises = not self.handles or held[0, 0] > self.held[0, -1]
        assert rises, f"{source_name(self.source)} holds offsets that do not rise"
        self.held = np.concatenate((self.held, held), axis=1) if self.handles else held
        self.handles += handles

    def keep(self, wanted: Bools) -> None:
        """The other ones that wait are not wanted."""
        if not wanted.all():
            self.held = self.held[:, wanted]
            self.handles = [self.handles[at] for at in np.flatnonzero(wanted).tolist()]

    def release(self, count: int) -> list[object]:
        """The first ones wait no longer."""
        assert count <= len(self.handles), f"{count} events of {source_name(self.source)} are let go, and fewer wait"
        released, self.handles = self.handles[:count], self.handles[count:]
        self.held = self.held[:, count:]
        return released

    def check_whole(self, max_buffered: int) -> None:
        """Dear (sequencer/wire/invariants.py)."""
        name, offsets = source_name(self.source), self.held[0]
        assert self.held.shape == (3, len(self.handles)), f"{name} holds other events than it has handles of"
        assert (offsets[1:] > offsets[:-1]).all(), f"{name} holds offsets that do not rise"
        assert not len(offsets) or offsets[-1] < self.received_to, f"{name} holds what has not come"
        assert len(offsets) < max_buffered or self.paused, f"{name} holds {len(offsets)} events, and is not paused"
        assert not self.paused or len(offsets) > max_buffered // 2, f"{name} is paused for {len(offsets)} events"
        self.owed.check_whole()

    def found_behind(self, offset: int) -> int:
        """Where reading went on behind an offset that is lost, as far as that is known; GONE where its topic is."""
        at = int(np.searchsorted(self.held[0], offset))
        return int(self.held[0, at]) if at < len(self.handles) else self.received_to

    def statuses(self, offsets: Ints) -> npt.NDArray[np.int8]:
        """NOT_YET, LOST or HERE for each of the offsets that are owed next."""
        if self.ready_batch or not (self.handles or offsets[0] < self.received_to):
            return np.zeros(len(offsets), dtype=np.int8)
        held = self.held[0]
        same = min(len(held), len(offsets))
        if np.array_equal(held[:same], offsets[:same]):
            # All that wait are next, as where nothing is missing: what is owed behind them is lost, or has not come.
            behind = np.where(offsets[same:] < self.received_to, LOST, NOT_YET)
            return np.concatenate((np.full(same, HERE), behind)).astype(np.int8)
        at = np.searchsorted(held, offsets)
        here = held.take(at, mode="clip") == offsets
        # One that waits without a stamp lets nothing pass: only those before, that are taken too, may lie before it.
        is_next = at == np.cumsum(here) - here
        known = is_next & (here | (offsets < self.received_to))
        return np.where(known, np.where(here, HERE, LOST), NOT_YET).astype(np.int8)


class Events:
    """All event partitions that the subscription has read, by number.

    `effects` takes what is to be done, `contradicts` makes the error for what cannot be.
    """

    def __init__(
        self,
        sets: Sets,
        effects: list[Effect],
        stamps: Stamps,
        contradicts: Callable[[str], Contradiction],
        *,
        max_buffered: int,
    ) -> None:
        self._sets, self._effects, self._stamps, self._contradicts = sets, effects, stamps, contradicts
        self._max_buffered = max_buffered
        self.sources: list[Source] = []
        """By number, for as long as the machine lives."""
        self.owed: list[Owed] = []
        """By number: what is stamped and not acknowledged, also of those that are read no longer."""
        self._numbers: dict[Source, int] = {}
        self.read: dict[Source, EventPartition] = {}
        """Those that are read."""
        self._unready: set[Source] = set()
        self._retiring: dict[KafkaTopic, int] = {}
        """By topic the position behind which none of it is stamped, until all stamps through there are known."""
        self.closed: set[Source] = set()
        """Those of which all is delivered that will ever be stamped."""
        self.repeated = 0
        """How many records came once more, and were dropped."""
        self._skipped: dict[Source, list[tuple[int, int]]] = {}
        """Offsets that were never stamped, and never will be."""

    def number(self, source: Source) -> int:
        """The number of an event partition."""
        number = self._numbers.get(source)
        if number is None:
            number = self._numbers[source] = len(self.sources)
            self.sources.append(source)
            self.owed.append(Owed())
        return number

    @property
    def held(self) -> int:
        """How many events wait."""
        return sum(len(state.handles) for state in self.read.values())

    @property
    def heads(self) -> list[object]:
        """The handle of the first event that waits, of each partition that has one."""
        return [state.handles[0] for state in self.read.values() if state.handles]

    def oldest_owed(self, source: Source) -> int | None:
        """The first offset that is stamped and not acknowledged."""
        number = self._numbers.get(source)
        return None if number is None else self.owed[number].oldest

    # --- what is read -------------------------------------------------------------------------------------------------

    def begin(self, source: Source, offset: int) -> EventPartition:
        """Reads an event partition from an offset on, anew if it was read before."""
        state = self.read.get(source)
        if state is None:
            state = EventPartition(source, offset, offset, self.owed[self.number(source)])
            self.read[source] = state
        else:
            state.read_from = state.received_to = offset
            state.release(len(state.handles))
            self._resume(state)
        self._effects.append(ReadEvents(source=source, offset=offset))
        return state

    def join(self, source: Source, offset: int, *, again: bool) -> None:
        """A set is ahead whose events lie from `offset` on; `again` where topics join it."""
        state = self.read.get(source)
        if state is None:
            self.begin(source, offset)
        elif self._sets.topic_by != "topic" and again and offset < state.received_to:
            # Events of the new topics were let pass when they were read.
            self.begin(source, min(offset, int(state.held[0, 0])) if state.handles else offset)

    def forget_dropped(self) -> None:
        """Stops reading what no set needs any more."""
        if self._sets.topic_by == "topic":
            for source in [source for source in self.read if source.topic not in self._sets.ids]:
                self._stop(source)

    def _stop(self, source: Source) -> None:
        del self.read[source]
        self._unready.discard(source)
        self._effects.append(StopEvents(source=source))

    def _resume(self, state: EventPartition) -> None:
        if state.paused and len(state.handles) <= self._max_buffered // 2:
            state.paused = False
            self._effects.append(ResumeEvents(source=state.source))

    # --- events -------------------------------------------------------------------------------------------------------

    def take(self, source: Source, block: EventBlock) -> bool:
        """The next records of a partition; False when none of them was awaited."""
        state = self.read.get(source)
        if state is None or not block.offsets:
            return False
        offsets, topics, crcs, handles = block
        if offsets[0] < state.received_to:
            begin = sum(offset < state.received_to for offset in offsets)
            self.repeated += begin
            if begin == len(offsets):
                return False
            offsets, topics, crcs, handles = offsets[begin:], topics[begin:], crcs[begin:], handles[begin:]
        state.received_to = offsets[-1] + 1
        held = np.empty((3, len(offsets)), dtype=np.int64)
        held[0], held[1], held[2] = offsets, self._ids(topics), crcs
        wanted = self._wanted(held, state)
        if not wanted.all():
            self._check_unwanted(state, held[0, ~wanted], [topics[at] for at in np.flatnonzero(~wanted).tolist()])
            held = held[:, wanted]
            handles = [handles[at] for at in np.flatnonzero(wanted).tolist()]
        if handles:
            state.hold(held, handles)
            self.check_first(state)
            if len(state.handles) >= self._max_buffered and not state.paused:
                state.paused = True
                self._effects.append(PauseEvents(source=source))
        return True

    def _ids(self, topics: Sequence[str | None]) -> int | list[int]:
        """Topic ids: one for all where all are of one topic, as where Kafka topics name them."""
        ids = self._sets.ids
        if topics.count(topics[0]) == len(topics):
            return _UNKNOWN if topics[0] is None else ids.get(topics[0], _UNKNOWN)
        return [_UNKNOWN if topic is None else ids.get(topic, _UNKNOWN) for topic in topics]

    def gone(self, source: Source, offset: int) -> bool:
        """Kafka has nothing below `offset` of a partition any longer; False when that is nothing new."""
        state = self.read.get(source)
        if state is None or offset <= state.received_to:
            return False
        state.received_to = offset
        return True

    def _wanted(self, held: Ints, state: EventPartition) -> Bools:
        """Which events are, or may turn out to be, some that a set of the chain is owed."""
        offsets, ids = held[0], held[1]
        wanted: Bools = among(ids, self._sets.topics) & (offsets >= state.delivered_to)
        for switch in self._sets.switches:
            wanted |= among(ids, switch.topics) & (offsets >= switch.next_offsets.get(state.source, 0))
        never = np.full(len(offsets), state.closed) | self._is_skipped(state.source, offsets)
        if never.any():
            wanted &= ~never | state.owed.has(offsets)
        return wanted

    def _check_unwanted(self, state: EventPartition, offsets: Ints, topics: list[str | None]) -> None:
        """None of them may be stamped as one that is owed."""
        wrong = np.flatnonzero(state.owed.has(offsets))
        if len(wrong):
            offset = int(offsets[wrong[0]])
            raise self._mistaken(state, offset, state.owed.topic_of(offset), topics[wrong[0]])

    def _mistaken(self, state: EventPartition, offset: int, stamped: int, topic: str | None) -> Contradiction:
        return self._contradicts(
            f"{place(state.source, offset)} is stamped as an event of {self._sets.names[stamped]!r}, and by "
            f"topic_by={self._sets.topic_by!r} it is one of {topic!r}"
        )

    def check_first(self, state: EventPartition) -> None:
        """Contradiction where the first event that waits has no stamp, and will have none."""
        if not state.handles:
            return
        offset, topic = int(state.held[0, 0]), int(state.held[1, 0])
        if state.owed.next == offset or topic not in self._sets.topics:
            return
        if any(topic not in switch.topics for switch in self._sets.switches):
            return  # it may lie behind the position where its topic is dropped
        part = self._stamps.holding(topic)
        if part.frontier.get(state.source, 0) > offset and not state.owed.has(np.array([offset]))[0]:
            raise self._contradicts(
                f"{place(state.source, offset)} of topic {self._sets.names[topic]!r} has no stamp, though "
                f"{part.name} is complete through offset {part.frontier[state.source] - 1} of it"
            )

    # --- stamps -------------------------------------------------------------------------------------------------------

    def owe(self, rows: Rows, batch: int) -> None:
        """Sees to it that the events that rows of a batch stamp are read."""
        for number, at in groups(rows.source):
            self._owe(self.sources[number], number, rows.table[_OFFSET_TOPIC_G][:, at], batch)

    def _owe(self, source: Source, number: int, stamped: Ints, batch: int) -> None:
        offsets = stamped[0]
        disorder = self.owed[number].add(stamped)
        if disorder is not None:
            (offset, _, g), (behind, _, other) = (column.tolist() for column in disorder)
            raise self._contradicts(
                f"{place(source, offset)} is stamped twice, as g {g} and {other}"
                if offset == behind
                else f"{place(source, offset)} is stamped as g {g}, and {place(source, behind)} as g {other}"
            )
        skipped = np.flatnonzero(self._is_skipped(source, offsets))
        if len(skipped):
            offset, _, g = stamped[:, skipped[0]].tolist()
            raise self._contradicts(f"{place(source, offset)} is stamped, as g {g}, and was told as lost before that")
        state, first = self.read.get(source), int(offsets[0])
        if state is None:
            state = self.begin(source, first)
        elif first < state.delivered_to:
            raise self._contradicts(
                f"{place(source, first)} is stamped after {state.delivered_to - 1}, which has passed"
            )
        elif first < state.read_from:
            self.begin(source, first)
        else:
            return
        # Other stamps partitions may still name a smaller offset, in this batch or one before: not in a later one, for
        # which a partition may be paused until what is owed of this batch is delivered.
        state.ready_batch = batch
        self._unready.add(source)

    def frontier_moved(self, through_batch: int, through_g: int) -> None:
        """All stamps are known through a batch, which ends at a position of π."""
        for source in [source for source in self._unready if self.read[source].ready_batch <= through_batch]:
            self._unready.discard(source)
            self.read[source].ready_batch = 0
        self._close_retired(through_g)
        for state in self.read.values():
            self.check_first(state)

    # --- what comes out -----------------------------------------------------------------------------------------------

    def has_come(self, number: int, offset: int) -> bool:
        """Whether the next event that is owed of a partition, by its number, may be HERE or LOST: a quick look."""
        state = self.read[self.sources[number]]
        return not state.ready_batch and (offset < state.received_to)

    def statuses(self, rows: Rows) -> npt.NDArray[np.int8]:
        """NOT_YET, LOST or HERE of the events that rows in the order of g stamp, the next ones of their partitions."""
        found = np.zeros(len(rows), dtype=np.int8)
        for number, at in groups(rows.source):
            state, offsets = self.read[self.sources[number]], rows.offset[at]
            assert np.array_equal(state.owed.pending[0, : len(offsets)], offsets), "π follows offsets in a partition"
            found[at] = state.statuses(offsets)
        return found

    def release(self, rows: Rows, here: Bools) -> tuple[list[object], list[EventPartition]]:
        """The events of rows, where they are `here`, are delivered now.

        Returns their handles, None where lost, and the partitions that they were of, which `go_on` then.
        """
        found = np.full(len(rows), None, dtype=object)
        states = []
        for number, at in groups(rows.source):
            state = self.read[self.sources[number]]
            places = np.arange(len(rows))[at]
            came = places[here[at]]
            self._check(rows, came, state)
            before, state.delivered_to = state.delivered_to, int(rows.offset[places[-1]]) + 1
            assert before < state.delivered_to, f"{source_name(state.source)} is delivered again from {before} on"
            state.owed.deliver(len(places))
            handles = state.release(len(came))
            states.append(state)
            if len(came) == len(rows):
                return handles, states
            found[came] = np.fromiter(handles, dtype=object, count=len(handles))
        return found.tolist(), states

    def go_on(self, states: list[EventPartition]) -> None:
        """Something of these partitions is delivered."""
        for state in states:
            self.check_first(state)
            self._resume(state)
            self._stop_closed(state)

    def _check(self, rows: Rows, came: Ints, state: EventPartition) -> None:
        """The first events that wait are those that the rows stamp."""
        held = state.held[:, : len(came)]
        wrong = np.flatnonzero(held[1] != rows.topic[came])
        if len(wrong):
            offset, topic = held[:2, wrong[0]].tolist()
            raise self._mistaken(state, offset, int(rows.topic[came[wrong[0]]]), self._sets.names[topic])
        wrong = np.flatnonzero(held[2] != rows.crc[came])
        if len(wrong):
            offset, crc, stamped = int(held[0, wrong[0]]), int(held[2, wrong[0]]), int(rows.crc[came[wrong[0]]])
            raise self._contradicts(
                f"{place(state.source, offset)} has a value with crc32 {crc:08x}; its stamp says {stamped:08x}"
            )

    def found_behind(self, number: int, offset: int) -> int:
        """The same of a partition by its number."""
        return self.read[self.sources[number]].found_behind(offset)

    # --- sets that change, topics that leave --------------------------------------------------------------------------

    def switched(self, g: int, next_offsets: Mapping[Source, int]) -> None:
        """Another set is in force from `g` on: what lies before it has passed, all of topics that were retired by then
        too.
        """
        for source, state in list(self.read.items()):
            state.delivered_to = max(state.delivered_to, next_offsets.get(source, 0))
            state.closed |= self._retiring.get(source.kafka_topic, g + 1) <= g
            state.keep(self._wanted(state.held, state))
            self._resume(state)
            self._stop_closed(state)

    def retire(self, topic: KafkaTopic, g: int) -> None:
        """Nothing of a topic is stamped behind `g`."""
        self._retiring[topic] = g

    def _close_retired(self, through: int) -> None:
        """Forgets what has no stamp of topics of which nothing more will be stamped."""
        over = {topic for topic, g in self._retiring.items() if g <= through}
        if not over:
            return
        self._retiring = {topic: g for topic, g in self._retiring.items() if g > through}
        self._stamps.forget_retired(over)
        for state in [state for source, state in self.read.items() if source.kafka_topic in over]:
            state.closed = True
            state.keep(state.owed.has(state.held[0]))
            self._resume(state)
            self._stop_closed(state)

    def _stop_closed(self, state: EventPartition) -> None:
        """Reads a partition no longer of which all is delivered that will ever be stamped."""
        if state.closed and state.owed.next is None:
            self._stop(state.source)
            self.closed.add(state.source)

    def skip(self, answer: Skipped) -> bool:
        """What was lost before it was stamped is never stamped; False for a repetition."""
        for source, begin, end in ranges(answer):
            if (begin, end) in self._skipped.setdefault(source, []):
                return False
            self._skipped[source].append((begin, end))
            if (state := self.read.get(source)) is not None:
                state.keep((state.held[0] < begin) | (state.held[0] >= end))
                self._resume(state)
                self.check_first(state)
        return True

    def check_whole(self, rows: Rows) -> None:
        """Dear (sequencer/wire/invariants.py): rows are those that are in the order and not delivered."""
        in_order = by_source(rows)
        for number, (source, owed) in enumerate(zip(self.sources, self.owed, strict=True)):
            name, state = source_name(source), self.read.get(source)
            stamped = in_order.get(number, NONE)
            stamped = stamped[:, np.argsort(stamped[0], kind="stable")]
            assert np.array_equal(stamped, owed.pending), f"what is in the order of {name} is not what is owed of it"
            assert state is not None or owed.next is None, f"{name} owes an event and is not read"
            assert state is None or state.owed is owed, f"{name} owes two things"
        for source, state in self.read.items():
            name = source_name(source)
            state.check_whole(self._max_buffered)
            assert self._wanted(state.held, state).all(), f"{name} holds an event that no set wants"
            first = state.owed.next
            assert first is None or first >= state.delivered_to, f"{name} owes what lies before its deliveries"
            assert (source in self._unready) == (state.ready_batch > 0), f"{name} waits for a batch, or does not"
        assert self._unready <= self.read.keys(), "what is not read waits for a batch"

    def _is_skipped(self, source: Source, offsets: Ints) -> Bools:
        found = np.zeros(len(offsets), dtype=np.bool_)
        for begin, end in self._skipped.get(source, ()):
            found |= (begin <= offsets) & (offsets < end)
        return found


def by_source(rows: Rows) -> dict[int, Ints]:
    """By event partition's number the offsets, topic ids and g of rows."""
    return {number: rows.table[_OFFSET_TOPIC_G][:, at] for number, at in groups(rows.source)} if len(rows) else {}


def ranges(answer: Skipped) -> list[tuple[Source, int, int]]:
    """What was lost, at most one range."""
    return [(Source(answer.topic, answer.topic_id, part), begin, end) for part, (begin, end) in answer.lost.items()]


def place(source: Source, offset: int) -> str:
    """An offset of an event partition, for messages."""
    return f"{source_name(source)}@{offset}"


def source_name(source: Source) -> str:
    """An event partition, for messages."""
    return f"{source.topic}[{source.partition}]"
