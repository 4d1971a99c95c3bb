"""The delivery machine event by event and stamp by stamp: the dumb twin of totalorder.subscriber.delivery.

An event is delivered when its stamp is the next of its topic, its entries are met (or, by frontiers, its g is the
least), it lies before the next switch, and it is the first of its event partition that is still owed.
"""

import heapq
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from deliveries import Deliver

from totalorder.errors import Contradiction, EventsLost, Fenced, LimitExceeded
from totalorder.sequencer.wire.control import Answer, Ended, Grant, Retired, Skipped
from totalorder.sequencer.wire.names import stamps_partition
from totalorder.sequencer.wire.position import Progress, StampsMark, partitions_of
from totalorder.sequencer.wire.stamps import KafkaTopic, Source, Stamp, StampedBatch
from totalorder.subscriber.delivery.effects import (
    DeliverLost,
    Finished,
    Granted,
    PauseEvents,
    PauseStamps,
    ReadEvents,
    ReadStamps,
    ResumeEvents,
    ResumeStamps,
    StopEvents,
    StopStamps,
    Switched,
    Tag,
)
from totalorder.subscriber.delivery.machine import Buffered
from totalorder.subscriber.delivery.partition import BatchMark, StampsPartition
from totalorder.subscriber.delivery.switches import Switch, switch_of

Ints = npt.NDArray[np.int64]
MAX_UNACKNOWLEDGED = 1_000_000
"""More than this delivered and not acknowledged means that the application forgot to acknowledge."""


class _Row(NamedTuple):
    """A stamp that is owed. `gates` are its entries for topics of the set in force at `g`."""

    topic: int
    n: int
    g: int
    source: Source
    offset: int
    crc: int
    gates: list[tuple[int, int]]
    partition: StampsPartition
    mark: BatchMark


class _Held(NamedTuple):
    """An event that waits for its turn."""

    offset: int
    topic: int
    crc: int
    handle: object


@dataclass(eq=False)
class _EventPartition:
    """One event partition. Nothing that is owed lies below `delivered_to`."""

    read_from: int
    received_to: int
    delivered_to: int = 0
    ready_batch: int = 0
    """0, or the batch through which all stamps must be known before the first offset to read is certain."""
    paused: bool = False
    due: list[int] = field(default_factory=list)
    """A heap of the offsets of the stamps that wait for its events."""
    closed: bool = False
    """Whether nothing more of it will be stamped."""
    queue: deque[_Held] = field(default_factory=deque)


@dataclass
class _Acknowledged:
    """The set in force, clocks and offsets as far as the application has acknowledged."""

    generation: int
    switched_g: int
    g: int
    topics: Mapping[int, str]
    clock: dict[int, int]
    sources: dict[Source, int]


class PlainDelivery:
    """The machine of one process of a subscriber id. After an error it must not be used any more.

    `nonce` tells the process's own answers from others'. `position` is where to go on; without one it begins at the
    first grant of its own. `delivered_through`: a former process may have delivered events up to this g that come
    again. What Kafka has no longer is told in its place (DeliverLost).
    `max_buffered` events per event partition and `max_waiting` stamps per stamps partition are held before the
    partition is paused.
    """

    def __init__(
        self,
        *,
        id: str,  # noqa: A002
        nonce: str,
        domain: str,
        position: Progress | None = None,
        delivered_through: int = 0,
        max_buffered: int = 1_000,
        max_waiting: int = 50_000,
    ) -> None:
        self._id, self._nonce, self._domain = id, nonce, domain
        self._delivered_through = delivered_through
        self._max_buffered, self._max_waiting = max_buffered, max_waiting
        self._effects: list[Any] = []
        self._live = self._over = self._dropped = False
        self._answers_g = 0
        self._generation = 0
        self._chain_g = 0
        self._stamps_partitions = self._min_subscriptions = 1
        self._topic_by = "topic"
        self._g = 0
        self._topics: Mapping[int, str] = {}
        self._clock: dict[int, int] = {}
        self._switches: deque[Switch] = deque()
        self._names: dict[int, str] = {}
        self._ids: dict[str, int] = {}
        self._wanted: Ints = np.zeros(0, dtype=np.int64)
        self._expected: dict[int, int] = {}
        self._joins: dict[int, deque[tuple[int, int]]] = {}
        self._parts: dict[int, StampsPartition] = {}
        self._stamped_by: list[StampsPartition] = []
        """The partitions that hold the stamps of the set in force."""
        self._sources: dict[Source, _EventPartition] = {}
        self._unready: set[Source] = set()
        self._retiring: dict[KafkaTopic, int] = {}
        """By topic the position behind which none of it is stamped, until all stamps through there are known."""
        self._closed: set[Source] = set()
        self._notices: deque[Skipped] = deque()
        """What was lost before it was stamped, from the place on that delivery has reached."""
        self._skipped: dict[Source, list[tuple[int, int]]] = {}
        """Offsets that were never stamped, and never will be."""
        self._rows: dict[tuple[Source, int], _Row] = {}
        self._waiting: dict[int, deque[_Row]] = {}
        self._todo: set[int] = set()
        self._blocked: dict[tuple[int, int], set[int]] = {}
        """By the clock, as (topic, n), that is not yet reached: the topics whose next event waits for it."""
        self._by_g: list[tuple[int, int]] = []
        self._lagging = -1
        self._sequence = 0
        self._acked_sequence = 0
        self._unacked: deque[_Row | Skipped | Switch] = deque()
        self._passed: deque[Switch] = deque()
        """The switches among `_unacked`."""
        self._owed_offsets: dict[Source, list[int]] = {}
        """Heaps of the offsets of all rows that are not acknowledged: a position is made for each acknowledgement."""
        self._acked = _Acknowledged(0, 0, 0, {}, {}, {})
        if position is not None:
            self._begin(position)

    # --- inputs -------------------------------------------------------------------------------------------------------

    def start(self) -> list[Any]:
        """What must be read from the position that the machine was made with; nothing without one."""
        return self._flush()

    def answer(self, answer: Answer) -> list[Any]:
        """The next record of grants. Fenced when another process has taken the id over."""
        self._answers_g = max(self._answers_g, answer.g)
        if not self._dropped and isinstance(answer, Grant | Ended) and answer.id == self._id:
            self._take_link(answer)
        elif isinstance(answer, Retired):
            self._retiring[KafkaTopic(answer.topic, answer.topic_id)] = answer.g
        elif isinstance(answer, Skipped):
            self._note_skipped(answer)
        self._advance()
        return self._flush()

    def stamped(self, batch: StampedBatch, *, offset: int, next_offset: int) -> list[Any]:
        """The next complete batch of its stamps partition; its parts lie in the log from `offset` to `next_offset`."""
        part = self._parts.get(batch.partition)
        if self._over or part is None or not part.reading:
            return []
        self._check_domain(batch)
        if part.admit(batch, offset=offset, next_offset=next_offset):
            self._advance()
            self._regulate(part)
        return self._flush()

    def event(self, *, source: Source, offset: int, topic: str | None, crc: int, handle: object = None) -> list[Any]:
        """The next record of an event partition; `topic` is None when its pub/sub topic cannot be told."""
        state = self._sources.get(source)
        if self._over or state is None or offset < state.received_to:
            return []
        state.received_to = offset + 1
        wanted = self._ids.get(topic) if topic is not None else None
        if wanted is not None and self._is_owed(wanted, source, offset, state):
            state.queue.append(_Held(offset, wanted, crc, handle))
            if len(state.queue) >= self._max_buffered and not state.paused:
                state.paused = True
                self._effects.append(PauseEvents(source=source))
            if len(state.queue) > 1:
                return self._flush()  # only the first of its partition can be deliverable
            self._new_head(source, state)
        elif (source, offset) in self._rows:
            self._check_topic(self._rows[source, offset], topic)
        self._advance()
        return self._flush()

    def gone(self, source: Source, offset: int) -> list[Any]:
        """Kafka has nothing below `offset` of an event partition any longer; the next record lies there or behind.

        With events.GONE its topic is not there any more, or is another one under the same name.
        """
        state = self._sources.get(source)
        if self._over or state is None or offset <= state.received_to:
            return []
        state.received_to = offset
        self._new_head(source, state)
        self._advance()
        return self._flush()

    def acknowledge(self, sequence: int) -> None:
        """Everything through delivery number `sequence` is done with."""
        while self._acked_sequence < min(sequence, self._sequence):
            item = self._unacked.popleft()
            if isinstance(item, Switch):
                self._acknowledge_switch(item)
                continue
            self._acked_sequence += 1
            self._acked.g = max(self._acked.g, item.g)
            if isinstance(item, _Row):
                self._acked.clock[item.topic] = item.n
                self._acked.sources[item.source] = item.offset + 1
                item.mark.outstanding -= 1
                # Within an event partition delivery follows offsets, so this is the least.
                heapq.heappop(self._owed_offsets[item.source])
        self._acknowledge_switches()

    def drop(self) -> None:
        """Delivers nothing more: what was owed is given up, and the position is the end of the chain."""
        self._over = self._dropped = True
        self._unacked.clear()
        self._passed.clear()
        self._owed_offsets.clear()
        self._switches.clear()
        self._notices.clear()
        self._rows.clear()
        self._acked_sequence = self._sequence
        self._acked = _Acknowledged(self._generation, self._chain_g, self._chain_g, {}, {}, {})

    # --- what can be asked --------------------------------------------------------------------------------------------

    @property
    def topics(self) -> tuple[str, ...]:
        """The set in force, sorted."""
        return tuple(sorted(self._topics.values()))

    @property
    def g(self) -> int:
        """The last position of π that was passed: by an event delivered, or a switch."""
        return self._g

    @property
    def acknowledged_g(self) -> int:
        """Like `g`, of what is acknowledged."""
        return self._acked.g

    @property
    def topic_by(self) -> str:
        """What names an event's pub/sub topic, as the grants say."""
        return self._topic_by

    @property
    def delivered_through(self) -> int:
        """Events up to here may have been delivered by a former process."""
        return self._delivered_through

    @property
    def acknowledged_sequence(self) -> int:
        """The last delivery that was acknowledged."""
        return self._acked_sequence

    def buffered(self) -> Buffered:
        """Counts of what is held."""
        return Buffered(
            events=sum(len(state.queue) for state in self._sources.values()),
            stamps=len(self._rows) + sum(part.held_rows for part in self._parts.values()),
            unacknowledged=self._sequence - self._acked_sequence,
            repeated_batches=sum(part.repeated for part in self._parts.values()),
        )

    def position(self) -> Progress:
        """The position as acknowledged."""
        acked = self._acked
        switches = [*self._passed, *self._switches]
        needed = self._partitions_of(acked.topics, *(switch.topics for switch in switches))
        return Progress(
            generation=acked.generation,
            switched_g=acked.switched_g,
            g=acked.g,
            topics=dict(acked.topics),
            clock=dict(acked.clock),
            pending=tuple(switch.answer for switch in switches),
            sources=self._resume_offsets(),
            stamps={number: self._parts[number].resume_mark() for number in needed},
            stamps_partitions=self._stamps_partitions,
            min_subscriptions=self._min_subscriptions,
            topic_by=self._topic_by,
        )

    def _resume_offsets(self) -> dict[Source, int]:
        """Per event partition: the oldest record that is not acknowledged, or else how far all stamps are known.

        The second keeps the offset of a partition that has no event for us from falling out of retention.
        """
        frontiers = [part.frontier for part in self._parts.values() if part.reading]
        offsets = {}
        for source, acked_to in self._acked.sources.items():
            known = min((frontier.get(source, 0) for frontier in frontiers), default=0)
            owed = self._owed_offsets.get(source)
            if source in self._closed and not owed:
                continue
            offsets[source] = max(acked_to, min(known, owed[0]) if owed else known)
        return offsets

    # --- the chain of sets --------------------------------------------------------------------------------------------

    def _begin(self, position: Progress) -> None:
        self._stamps_partitions = position.stamps_partitions
        self._min_subscriptions, self._topic_by = position.min_subscriptions, position.topic_by
        self._generation, self._chain_g = position.generation, position.switched_g
        self._g, self._topics, self._clock = position.g, dict(position.topics), dict(position.clock)
        self._expected = {topic: n + 1 for topic, n in self._clock.items()}
        self._acked = _Acknowledged(
            position.generation,
            position.switched_g,
            position.g,
            self._topics,
            dict(self._clock),
            dict(position.sources),
        )
        self._name(self._topics)
        for number, mark in position.stamps.items():
            self._parts[number] = StampsPartition(self._domain, number, mark)
            self._effects.append(ReadStamps(partition=number, offset=mark.offset))
        self._find_stamped_by()
        for source, offset in position.sources.items():
            self._read(source, offset).delivered_to = offset
        for link in position.pending:
            self._link(link)

    def _take_link(self, answer: Grant | Ended) -> None:
        own = answer.nonce == self._nonce
        if answer.g <= self._chain_g:
            return  # a repetition, or history from before the position
        if self._live and not own and self._is_anothers(answer):
            # Also one that is over: what it has ready may be handed out only while nobody else begins with it.
            raise Fenced(
                f"another process took over subscriber id {self._id!r} with generation {answer.generation}, at g "
                f"{answer.g}; this one, of generation {self._generation}, has stopped",
                remedy="Give each process an id of its own, or run one process per id",
            )
        if self._over:
            return
        if self._generation:
            self._link(answer)
        elif isinstance(answer, Grant) and own:
            self._begin(Progress.at(answer))
        if own and isinstance(answer, Grant):
            self._live = True
            self._effects.append(Granted(generation=answer.generation, g=answer.g, lease_s=answer.lease_s))

    def _is_anothers(self, answer: Grant | Ended) -> bool:
        """Whether another process was granted the id since: compaction may have left only the end of what it had."""
        return isinstance(answer, Grant) or answer.reason == "expired" or answer.generation > self._generation + 1

    def _link(self, answer: Grant | Ended) -> None:
        """Appends a change to the chain and begins to read what it adds."""
        if self._switches and self._switches[-1].lapse and self._min_subscriptions == 1:
            # The lease ran out and the id was subscribed again. That loses nothing: the old set goes on until then.
            self._switches.pop()
        former = self._switches[-1].topics if self._switches else self._topics
        switch = switch_of(answer, generation=self._generation, topics=former)
        if not switch.exact and former and self._min_subscriptions > 1:
            raise self._unordered("links of its chain of grants are gone", switch.g)
        self._generation, self._chain_g = answer.generation, answer.g
        self._switches.append(switch)
        self._name(switch.topics)
        joined = switch.topics.keys() - former.keys()
        for topic in joined:
            self._joins.setdefault(topic, deque()).append((switch.g, switch.clock[topic]))
        if isinstance(answer, Grant):
            for number in sorted(self._partitions_of(switch.topics)):
                self._read_stamps(number, StampsMark.of(answer, number))
            self._read_joined(switch, joined)
        if not switch.exact and len(self._switches) == 1:
            self._enter_frontier_order()

    def _read_stamps(self, number: int, mark: StampsMark) -> None:
        part = self._parts.get(number)
        if part is None:
            self._parts[number] = StampsPartition(self._domain, number, mark)
        elif part.reading:
            return
        else:
            part.read_again(mark)
        self._effects.append(ReadStamps(partition=number, offset=mark.offset))

    def _read_joined(self, switch: Switch, joined: set[int]) -> None:
        """Begins to read the event partitions of topics that join, from the exact cut at the switch."""
        names = {switch.topics[topic] for topic in joined}
        for source, offset in switch.next_offsets.items():
            if self._topic_by == "topic" and source.topic not in names:
                continue
            state = self._sources.get(source)
            if state is None:
                self._read(source, offset)
            elif self._topic_by != "topic" and joined and offset < state.received_to:
                # Events of the new topics were let pass when they were read.
                self._read(source, min([offset, *(held.offset for held in state.queue)]))

    def _switch_due(self) -> bool:
        if not self._switches:
            return False
        switch = self._switches[0]
        if not switch.exact:
            owed = bool(self._by_g) and self._by_g[0][0] <= switch.g
            return not owed and self._complete_g() >= switch.g
        if self._lagging in self._topics and self._clock[self._lagging] < switch.clock[self._lagging]:
            return False
        for topic, name in self._topics.items():
            if self._clock[topic] > switch.clock[topic]:
                raise self._contradicts(f"event {self._clock[topic]} of {name!r} was stamped before {switch.g}")
            if self._clock[topic] < switch.clock[topic]:
                self._lagging = topic
                return False
        return True

    def _switch(self) -> None:
        """The old set is delivered through the position of the change: the new one takes its place."""
        switch = self._switches.popleft()
        for topic in self._topics.keys() & switch.topics.keys():
            if self._clock[topic] != switch.clock[topic]:
                raise self._contradicts(f"{self._topics[topic]!r} has {self._clock[topic]} events at {switch.g}")
        self._g = max(self._g, switch.g)
        self._topics, self._clock = switch.topics, {topic: switch.clock[topic] for topic in switch.topics}
        for topic in self._topics:
            # Stamps from before the switch may still come from a partition that is read anew: they are known to be old.
            self._join(topic, switch.g + 1)
        self._find_stamped_by()
        self._blocked, self._lagging, self._by_g = {}, -1, []
        self._unacked.append(switch)
        self._passed.append(switch)
        self._acknowledge_switches()
        self._forget_dropped()
        for source, state in list(self._sources.items()):
            state.delivered_to = max(state.delivered_to, switch.next_offsets.get(source, 0))
            state.closed |= self._retiring.get(source.kafka_topic, switch.g + 1) <= switch.g
            kept = [held for held in state.queue if self._is_owed(held.topic, source, held.offset, state)]
            state.queue = deque(kept)
            self._resume(source, state)
            self._stop_closed(source, state)
        self._todo = set(self._topics)
        self._frontier_moved()  # the partitions that are read are fewer now
        if not switch.topics and not self._switches:
            self._finish(switch)
        else:
            self._effects.append(Switched(g=switch.g, topics=self.topics))
        if self._switches and not self._switches[0].exact:
            self._enter_frontier_order()

    def _check_healed(self) -> None:
        """With m = 2 a lapse cannot be healed.

        While an id is not subscribed it does not count, and others may deliver in an order of their own what only
        its absence left without entries; by frontiers this one could contradict them.
        """
        if len(self._switches) > 1:
            raise self._unordered(f"the lease ran out at g {self._switches[0].g}", self._switches[1].g)

    def _unordered(self, why: str, g: int) -> EventsLost:
        return EventsLost(
            f"subscriber {self._id!r}: {why}; with min_subscriptions = 2 the events from there to g {g} cannot be put "
            "in an order that all share",
            remedy='start="now" (--start now) begins at the present and gives up all that is owed; '
            "give the subscription a longer lease_s",
        )

    def _finish(self, switch: Switch) -> None:
        assert isinstance(switch.answer, Ended)
        self._over = True
        self._effects.append(Finished(g=switch.g, reason=switch.answer.reason))

    def _forget_dropped(self) -> None:
        """Stops reading what neither the set in force nor a pending one needs."""
        wanted = {topic: name for switch in self._switches for topic, name in switch.topics.items()} | {**self._topics}
        self._names, self._ids = {}, {}
        self._name(wanted)
        self._expected = {topic: n for topic, n in self._expected.items() if topic in wanted}
        for number in self._parts.keys() - self._partitions_of(wanted):
            part = self._parts[number]
            if part.reading:
                part.stop()
                self._effects.append(StopStamps(partition=number))
        if self._topic_by == "topic":
            for source in [source for source in self._sources if source.topic not in self._ids]:
                del self._sources[source]
                self._unready.discard(source)
                self._effects.append(StopEvents(source=source))

    def _acknowledge_switches(self) -> None:
        while self._unacked and isinstance(self._unacked[0], Switch):
            self._acknowledge_switch(self._unacked.popleft())  # type: ignore[arg-type]

    def _acknowledge_switch(self, switch: Switch) -> None:
        self._passed.popleft()
        acked = self._acked
        acked.generation, acked.switched_g = switch.answer.generation, switch.g
        acked.g = max(acked.g, switch.g)
        acked.topics, acked.clock = switch.topics, {topic: switch.clock[topic] for topic in switch.topics}
        for source, offset in switch.next_offsets.items():
            acked.sources[source] = max(acked.sources.get(source, 0), offset)
        if self._topic_by == "topic":
            pending = [switch.topics for switch in (*self._passed, *self._switches)]
            names = {name for topics in (acked.topics, *pending) for name in topics.values()}
            acked.sources = {source: offset for source, offset in acked.sources.items() if source.topic in names}

    def _name(self, topics: Mapping[int, str]) -> None:
        self._names.update(topics)
        self._ids = {name: topic for topic, name in self._names.items()}
        self._wanted = np.array(sorted(self._names), dtype=np.int64)

    def _partitions_of(self, *sets: Mapping[int, str]) -> set[int]:
        return partitions_of((name for topics in sets for name in topics.values()), self._stamps_partitions)

    def _find_stamped_by(self) -> None:
        self._stamped_by = [self._parts[number] for number in self._partitions_of(self._topics)]

    def _set_at(self, g: int) -> Mapping[int, str]:
        """The set that is owed the events at a position that is not before the set in force now.

        Behind a lapse it is the old set: what heals the lapse, in this process or a later one, is owed them.
        """
        in_force = self._topics
        for switch in self._switches:
            if g <= switch.g or switch.lapse:
                break
            in_force = switch.topics
        return in_force

    # --- stamps -------------------------------------------------------------------------------------------------------

    def _release(self) -> None:
        """Takes the rows of every batch up to whose end all answers are known."""
        for part in self._parts.values():
            moved = False
            while released := part.release(self._answers_g):
                batch, mark = released
                for stamp in batch.rows.plain(np.flatnonzero(np.isin(batch.rows.topic, self._wanted))):
                    self._take_row(part, batch, mark, stamp)
                part.complete(batch)
                for other in self._parts.values():
                    other.learn(batch)
                moved = True
            if moved:
                self._regulate(part)
                self._frontier_moved()

    def _take_row(self, part: StampsPartition, batch: StampedBatch, mark: BatchMark, stamp: Stamp) -> None:
        topic, n, g, number, offset, crc, entries = stamp
        in_force = self._set_at(g)
        if topic not in in_force or not self._is_next(topic, n, g):
            return
        source = batch.sources[number]
        place = (source, offset)
        if place in self._rows:
            raise self._contradicts(f"{_place(*place)} is stamped twice, as g {self._rows[place].g} and {g}")
        if self._is_skipped(source, offset):
            raise self._contradicts(f"{_place(*place)} is stamped, as g {g}, and was told as lost before that")
        self._find_event(source, offset, batch.batch)
        heapq.heappush(self._sources[source].due, offset)
        gates = [entry for entry in entries if entry[0] in in_force and entry[0] != topic]
        row = _Row(topic, n, g, source, offset, crc, gates, part, mark)
        self._rows[place] = row
        heapq.heappush(self._owed_offsets.setdefault(source, []), offset)
        queue = self._waiting.setdefault(topic, deque())
        queue.append(row)
        part.waiting += 1
        mark.outstanding += 1
        self._todo.add(topic)
        if self._in_frontier_order():
            heapq.heappush(self._by_g, (g, topic))

    def _is_next(self, topic: int, n: int, g: int) -> bool:
        """Whether a stamp is the next of its topic; False when it was seen before."""
        self._join(topic, g)
        expected = self._expected[topic]
        if n > expected:
            raise EventsLost(
                f"the stamps {expected} to {n - 1} of {self._names[topic]!r} are missing before g {g}",
                remedy='start="now" (--start now) goes on behind the present end, and gives up what is owed before',
            )
        if n < expected:
            return False
        self._expected[topic] = n + 1
        return True

    def _join(self, topic: int, g: int) -> None:
        """Counts a topic from its clock at the last switch before `g` that brought it."""
        joins = self._joins.get(topic)
        while joins and g > joins[0][0]:
            self._expected[topic] = joins.popleft()[1] + 1

    def _find_event(self, source: Source, offset: int, batch: int) -> None:
        """Sees to it that a stamped event is read."""
        state = self._sources.get(source)
        if state is None:
            state = self._read(source, offset)
        elif offset < state.delivered_to:
            raise self._contradicts(
                f"{_place(source, offset)} is stamped after {state.delivered_to - 1}, which has passed"
            )
        elif offset < state.read_from:
            self._read(source, offset)
        else:
            return
        # Other stamps partitions may still name a smaller offset, in this batch or one before: not in a later one, for
        # which a partition may be paused until what is owed of this batch is delivered.
        state.ready_batch = batch
        self._unready.add(source)

    def _frontier_moved(self) -> None:
        through = min((part.complete_batch for part in self._parts.values() if part.reading), default=0)
        for source in [source for source in self._unready if self._sources[source].ready_batch <= through]:
            self._unready.discard(source)
            self._sources[source].ready_batch = 0
        self._close_retired()
        for source, state in self._sources.items():
            self._new_head(source, state)

    def _close_retired(self) -> None:
        """Forgets what has no stamp of topics of which nothing more will be stamped."""
        if not self._retiring:
            return
        through = min((part.complete_g for part in self._parts.values() if part.reading), default=0)
        over = {topic for topic, g in self._retiring.items() if g <= through}
        self._retiring = {topic: g for topic, g in self._retiring.items() if g > through}
        for part in self._parts.values():
            part.frontier = {source: end for source, end in part.frontier.items() if source.kafka_topic not in over}
        for source in [source for source in self._sources if source.kafka_topic in over]:
            state = self._sources[source]
            state.closed = True
            state.queue = deque(held for held in state.queue if (source, held.offset) in self._rows)
            self._resume(source, state)
            self._stop_closed(source, state)

    def _stop_closed(self, source: Source, state: _EventPartition) -> None:
        """Reads a partition no longer of which all is delivered that will ever be stamped."""
        if state.closed and not state.due:
            del self._sources[source]
            self._unready.discard(source)
            self._closed.add(source)
            self._effects.append(StopEvents(source=source))

    def _check_domain(self, batch: StampedBatch) -> None:
        found = (batch.domain, batch.partitions, batch.min_subscriptions)
        if found != (self._domain, self._stamps_partitions, self._min_subscriptions):
            raise self._contradicts(
                f"batch {batch.batch} was made with domain, stamps_partitions, min_subscriptions = {found}, and the "
                f"grant says {(self._domain, self._stamps_partitions, self._min_subscriptions)}"
            )
        for topic, name in batch.names.items():
            if self._names.get(topic, name) != name or self._ids.get(name, topic) != topic:
                raise self._contradicts(f"batch {batch.batch} has another number for topic {name!r}: {topic}")

    def _complete_g(self) -> int:
        """π is known through here for the set in force."""
        return min((part.complete_g for part in self._stamped_by), default=2**63)

    def _regulate(self, part: StampsPartition) -> None:
        load = part.waiting + part.held_rows
        if load >= self._max_waiting and not part.paused and part.reading:
            part.paused = True
            self._effects.append(PauseStamps(partition=part.partition))
        elif load <= self._max_waiting // 2 and part.paused:
            part.paused = False
            self._effects.append(ResumeStamps(partition=part.partition))

    # --- events -------------------------------------------------------------------------------------------------------

    def _read(self, source: Source, offset: int) -> _EventPartition:
        """Reads an event partition from an offset on, anew if it was read before."""
        state = self._sources.get(source)
        if state is None:
            state = self._sources[source] = _EventPartition(offset, offset)
        else:
            state.read_from = state.received_to = offset
            state.queue.clear()
            self._resume(source, state)
        self._effects.append(ReadEvents(source=source, offset=offset))
        return state

    def _is_owed(self, topic: int, source: Source, offset: int, state: _EventPartition) -> bool:
        """Whether an event is, or may turn out to be, one that a set of the chain is owed."""
        if (state.closed or self._is_skipped(source, offset)) and (source, offset) not in self._rows:
            return False
        if topic in self._topics and offset >= state.delivered_to:
            return True
        return any(topic in switch.topics and offset >= switch.next_offsets.get(source, 0) for switch in self._switches)

    def _new_head(self, source: Source, state: _EventPartition) -> None:
        """Another event is the first of its partition, or more stamps are known: is it deliverable, or unstamped?

        Or else is what is due now not among those that have come? What is lost has no event that could say so.
        """
        if state.due and state.due[0] < state.received_to:
            self._todo.add(self._rows[source, state.due[0]].topic)
        if not state.queue:
            return
        held = state.queue[0]
        self._todo.add(held.topic)
        if (source, held.offset) in self._rows or held.topic not in self._topics:
            return
        if any(held.topic not in switch.topics for switch in self._switches):
            return  # it may lie behind the position where its topic is dropped
        part = self._parts[stamps_partition(self._names[held.topic], self._stamps_partitions)]
        if part.frontier.get(source, 0) > held.offset:
            raise self._contradicts(
                f"{_place(source, held.offset)} of topic {self._names[held.topic]!r} has no stamp, though "
                f"{self._domain}.stamps[{part.partition}] is complete through offset {part.frontier[source] - 1} of it"
            )

    def _has_come(self, row: _Row) -> bool:
        """Whether a row's event is here, and is the first of its partition; or is known to be lost."""
        state = self._sources[row.source]
        if state.ready_batch:
            return False
        if state.queue and state.queue[0].offset < row.offset:
            return False
        if state.queue and state.queue[0].offset == row.offset:
            self._check_event(row, state.queue[0])
            return True
        return state.received_to > row.offset

    def _check_event(self, row: _Row, held: _Held) -> None:
        if held.topic != row.topic:
            self._check_topic(row, self._names[held.topic])
        if held.crc != row.crc:
            raise self._contradicts(
                f"{_place(row.source, row.offset)} has a value with crc32 {held.crc:08x}; its stamp says {row.crc:08x}"
            )

    def _check_topic(self, row: _Row, topic: str | None) -> None:
        raise self._contradicts(
            f"{_place(row.source, row.offset)} is stamped as an event of {self._names[row.topic]!r}, and by "
            f"topic_by={self._topic_by!r} it is one of {topic!r}"
        )

    def _resume(self, source: Source, state: _EventPartition) -> None:
        if state.paused and len(state.queue) <= self._max_buffered // 2:
            state.paused = False
            self._effects.append(ResumeEvents(source=source))

    # --- delivery -----------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Delivers and switches for as long as something can be done."""
        while self._live and not self._over:
            self._release()
            notice = self._next_notice()
            if self._in_frontier_order():
                self._deliver_by_frontiers()
            else:
                self._deliver_by_entries()
            if notice is not None:
                if not self._is_due(notice):
                    return
                self._tell(notice)
                continue
            if not self._switch_due():
                return
            if self._switches[0].lapse:
                # The switch stays: a later process heals the lapse, and delivers the old set on until its own grant.
                self._check_healed()
                self._finish(self._switches[0])
            else:
                self._switch()

    def _in_frontier_order(self) -> bool:
        return bool(self._switches) and not self._switches[0].exact

    def _enter_frontier_order(self) -> None:
        self._by_g = [(row.g, row.topic) for rows in self._waiting.values() for row in rows]
        heapq.heapify(self._by_g)

    def _deliver_by_entries(self) -> None:
        while self._todo:
            topic = self._todo.pop()
            while topic in self._topics and (row := self._deliverable(topic)):
                self._deliver(row)

    def _deliverable(self, topic: int) -> _Row | None:
        rows = self._waiting.get(topic)
        if not rows:
            return None
        row = rows[0]
        if (self._switches and row.g > self._switches[0].g) or (self._notices and row.g > self._notices[0].g):
            return None
        for gate in row.gates:
            if self._clock[gate[0]] < gate[1]:
                self._blocked.setdefault(gate, set()).add(topic)
                return None
        return row if self._has_come(row) else None

    def _deliver_by_frontiers(self) -> None:
        through = min(self._switches[0].g, self._complete_g(), *(notice.g for notice in islice(self._notices, 1)))
        while self._by_g and self._by_g[0][0] <= through:
            row = self._waiting[self._by_g[0][1]][0]
            if not self._has_come(row):
                return
            heapq.heappop(self._by_g)
            self._deliver(row)

    def _deliver(self, row: _Row) -> None:
        if self._clock[row.topic] != row.n - 1:
            raise self._contradicts(f"event {row.n} of {self._names[row.topic]!r} follows {self._clock[row.topic]}")
        if self._min_subscriptions == 1 and row.g <= self._g:
            raise self._contradicts(f"{_place(row.source, row.offset)} has g {row.g}, and {self._g} has passed")
        state = self._sources[row.source]
        held = state.queue.popleft() if state.queue and state.queue[0].offset == row.offset else None
        state.delivered_to = row.offset + 1
        heapq.heappop(state.due)
        self._waiting[row.topic].popleft()
        del self._rows[row.source, row.offset]
        self._clock[row.topic] = row.n
        self._count(row)
        self._effects.append(self._delivery(row, held) if held is not None else self._loss(row))
        if freed := self._blocked.pop((row.topic, row.n), None):
            self._todo |= freed
        self._new_head(row.source, state)
        self._resume(row.source, state)
        self._stop_closed(row.source, state)
        row.partition.waiting -= 1
        self._regulate(row.partition)

    def _count(self, item: _Row | Skipped) -> None:
        """It is delivered now, and waits to be acknowledged."""
        if len(self._unacked) >= MAX_UNACKNOWLEDGED:
            raise LimitExceeded(
                f"{len(self._unacked)} events were delivered and not acknowledged",
                remedy="Call ack() as events are done",
            )
        self._g = max(self._g, item.g)
        self._sequence += 1
        self._unacked.append(item)

    def _delivery(self, row: _Row, held: _Held) -> Deliver:
        return Deliver(
            handle=held.handle,
            topic=self._names[row.topic],
            source=row.source,
            offset=row.offset,
            n=row.n,
            g=row.g,
            entries={self._names[topic]: n for topic, n in row.gates},
            tag=self._tag(row.g),
            sequence=self._sequence,
        )

    def _loss(self, row: _Row) -> DeliverLost:
        state = self._sources[row.source]
        return DeliverLost(
            topic=self._names[row.topic],
            source=row.source,
            begin=row.offset,
            end=row.offset + 1,
            n=row.n,
            g=row.g,
            tag=self._tag(row.g),
            sequence=self._sequence,
            found=state.queue[0].offset if state.queue else state.received_to,
        )

    def _tag(self, g: int) -> Tag | None:
        return "redelivered" if g <= self._delivered_through else None

    # --- what was lost before it was stamped --------------------------------------------------------------------------

    def _note_skipped(self, answer: Skipped) -> None:
        for source, begin, end in _ranges(answer):
            if (begin, end) in self._skipped.setdefault(source, []):
                return  # a repetition
            self._skipped[source].append((begin, end))
            if not self._over:
                self._notices.append(answer)
            if (state := self._sources.get(source)) is not None:
                state.queue = deque(held for held in state.queue if not begin <= held.offset < end)
                self._resume(source, state)
                self._new_head(source, state)

    def _is_skipped(self, source: Source, offset: int) -> bool:
        return any(begin <= offset < end for begin, end in self._skipped.get(source, ()))

    def _next_notice(self) -> Skipped | None:
        """The next one that the set in force is owed, if it lies before the next change."""
        while self._notices:
            notice = self._notices[0]
            if self._switches and self._switches[0].g < notice.g:
                return None
            if notice.g > self._g and self._concerns(notice):
                return notice
            self._notices.popleft()
        return None

    def _concerns(self, notice: Skipped) -> bool:
        """Where keys or headers name topics, what is lost may have been events of any."""
        return bool(self._topics) and (self._topic_by != "topic" or notice.topic in self._topics.values())

    def _is_due(self, notice: Skipped) -> bool:
        """Whether all that is owed before it is delivered."""
        owed = any(rows and rows[0].g < notice.g for rows in self._waiting.values())
        return not owed and self._complete_g() >= notice.g

    def _tell(self, notice: Skipped) -> None:
        self._notices.popleft()
        for source, begin, end in _ranges(notice):
            self._count(notice)
            self._effects.append(
                DeliverLost(
                    topic=source.topic if self._topic_by == "topic" else None,
                    source=source,
                    begin=begin,
                    end=end,
                    n=0,
                    g=notice.g,
                    tag=self._tag(notice.g),
                    sequence=self._sequence,
                    found=end,
                )
            )
        self._todo = set(self._topics)

    # --- small things -------------------------------------------------------------------------------------------------

    def _contradicts(self, what: str) -> Contradiction:
        return Contradiction(
            f"subscriber {self._id!r} of domain {self._domain!r}: {what}",
            remedy="Nothing contradictory was delivered. Find out who else writes to the domain or recreated a topic",
        )

    def _flush(self) -> list[Any]:
        done, self._effects = self._effects, []
        return done


def _ranges(answer: Skipped) -> list[tuple[Source, int, int]]:
    """What was lost, at most one range."""
    return [(Source(answer.topic, answer.topic_id, part), begin, end) for part, (begin, end) in answer.lost.items()]


def _place(source: Source, offset: int) -> str:
    return f"{source.topic}[{source.partition}]@{offset}"
