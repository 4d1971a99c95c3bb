"""The machine that joins what is known of sets, stamps and events, and says what is delivered next."""

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from totalorder.errors import Contradiction, Fenced
from totalorder.sequencer.wire.control import Answer, Ended, Grant, Link, Retired, Skipped
from totalorder.sequencer.wire.invariants import due
from totalorder.sequencer.wire.numbering import differences
from totalorder.sequencer.wire.position import Progress, StampsMark
from totalorder.sequencer.wire.stamps import KafkaTopic, Source, StampedBatch
from totalorder.subscriber.delivery.acknowledged import Acknowledged
from totalorder.subscriber.delivery.effects import (
    Deliveries,
    DeliverLost,
    Effect,
    Finished,
    Granted,
    Switched,
    Tag,
)
from totalorder.subscriber.delivery.events import HERE, LOST, EventBlock, Events, place, ranges
from totalorder.subscriber.delivery.order import Found, Line, Order, Pool
from totalorder.subscriber.delivery.rows import Rows, groups
from totalorder.subscriber.delivery.sets import Sets
from totalorder.subscriber.delivery.stamps import Stamps
from totalorder.subscriber.delivery.switches import Switch
from totalorder.subscriber.delivery.waits import Wait, waits

Ints = npt.NDArray[np.int64]
_NEVER = 2**63 - 1
"""Behind all positions of π."""


@dataclass(frozen=True, kw_only=True)
class Buffered:
    """What a machine holds at the moment."""

    events: int
    stamps: int
    unacknowledged: int
    repeated_batches: int


class Delivery:
    """The machine of one process of a subscriber id. After an error it must not be used any more.

    `nonce` tells the process's own answers from others'. `position` is where to go on; without one it begins at the
    first grant of its own. `delivered_through`: a former process may have delivered events up to this g that come
    again. What Kafka has no longer is told in its place (DeliverLost); with m = 2 nothing says what that place is to
    others, and nobody may go on behind it.
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
        self._effects: list[Effect] = []
        self._live = self._over = self._dropped = False
        self._answers_g = 0
        self._g = 0
        self._clock: dict[int, int] = {}
        self._lagging = -1
        self._sets = Sets(self._contradicts)
        self._stamps = Stamps(domain, self._sets, self._effects, max_waiting=max_waiting)
        self._events = Events(self._sets, self._effects, self._stamps, self._contradicts, max_buffered=max_buffered)
        self._acked = Acknowledged(self._sets, self._stamps, self._events)
        self._order: Order = Line({})
        self._notices: deque[Skipped] = deque()
        """What was lost before it was stamped, from the place on that delivery has reached."""
        if position is not None:
            self._begin(position)

    # --- inputs -------------------------------------------------------------------------------------------------------

    def start(self) -> list[Effect]:
        """What must be read from the position that the machine was made with; nothing without one."""
        return self._flush()

    def answer(self, answer: Answer) -> list[Effect]:
        """The next record of grants. Fenced when another process has taken the id over."""
        self._answers_g = max(self._answers_g, answer.g)
        if not self._dropped and isinstance(answer, Grant | Ended) and answer.id == self._id:
            self._take_link(answer)
        elif isinstance(answer, Retired):
            self._events.retire(KafkaTopic(answer.topic, answer.topic_id), answer.g)
        elif isinstance(answer, Skipped) and self._events.skip(answer) and not self._over and answer.lost:
            self._notices.append(answer)
        self._advance()
        return self._flush()

    def stamped(self, batch: StampedBatch, *, offset: int, next_offset: int) -> list[Effect]:
        """The next complete batch of its stamps partition; its parts lie in the log from `offset` to `next_offset`."""
        part = self._stamps.parts.get(batch.partition)
        if self._over or part is None or not part.reading:
            return []
        self._sets.check(batch, self._domain)
        if part.admit(batch, offset=offset, next_offset=next_offset):
            self._advance()
            self._stamps.regulate(part)
        return self._flush()

    def events(self, source: Source, block: EventBlock) -> list[Effect]:
        """The next records of an event partition."""
        if not self._over and self._events.take(source, block):
            self._advance()
        return self._flush()

    def gone(self, source: Source, offset: int) -> list[Effect]:
        """Kafka has nothing below `offset` of an event partition any longer; the next record lies there or behind.

        With `GONE` its topic is not there any more, or is another one under the same name.
        """
        if not self._over and self._events.gone(source, offset):
            self._advance()
        return self._flush()

    def acknowledge(self, sequence: int) -> None:
        """Everything through delivery number `sequence` is done with."""
        self._acked.acknowledge(sequence)

    def drop(self) -> None:
        """Delivers nothing more: what was owed is given up, and the position is the end of the chain."""
        self._over = self._dropped = True
        self._sets.switches.clear()
        self._notices.clear()
        self._order = Line({})
        self._acked.drop(self._sets.generation, self._sets.chain_g)

    # --- what can be asked --------------------------------------------------------------------------------------------

    @property
    def topics(self) -> tuple[str, ...]:
        """The set in force, sorted."""
        return tuple(sorted(self._sets.topics.values()))

    @property
    def g(self) -> int:
        """The last position of π that was passed: by an event delivered, or a switch."""
        return self._g

    @property
    def known_g(self) -> int:
        """No stamp is known that lies behind this in π."""
        return self._stamps.known_g

    @property
    def follows_order(self) -> bool:
        """Whether each event delivered lies behind the one before it in π, so that g says how far delivery is."""
        return self._sets.min_subscriptions == 1

    @property
    def acknowledged_g(self) -> int:
        """Like `g`, of what is acknowledged."""
        self._acked.settle()
        return self._acked.g

    @property
    def topic_by(self) -> str:
        """What names an event's pub/sub topic, as the grants say."""
        return self._sets.topic_by

    @property
    def stamps_partitions(self) -> int:
        """How many partitions stamps have, as the grants say."""
        return self._sets.stamps_partitions

    @property
    def delivered_through(self) -> int:
        """Events up to here may have been delivered by a former process."""
        return self._delivered_through

    @property
    def acknowledged_sequence(self) -> int:
        """The last delivery that was acknowledged."""
        return self._acked.sequence

    def buffered(self) -> Buffered:
        """Counts of what is held."""
        parts = self._stamps.parts.values()
        return Buffered(
            events=self._events.held,
            stamps=len(self._order) + sum(part.held_rows for part in parts),
            unacknowledged=self._acked.delivered - self._acked.sequence,
            repeated_batches=sum(part.repeated for part in parts),
        )

    @property
    def repeated_records(self) -> int:
        """How many records of event partitions came once more, and were dropped."""
        return self._events.repeated

    @property
    def heads(self) -> list[object]:
        """The handle of the first event that waits, of each event partition that has one."""
        return self._events.heads

    def waits(self) -> list[Wait]:
        """What delivery waits for; nothing where no event is under way."""
        if self._over:
            return []
        if not self._live:
            return [Wait(kind="grant")]
        ahead = [notice.g for notice in self._notices] + [switch.g for switch in self._sets.switches]
        return waits(self._sets, self._stamps, self._events, self._order, min(ahead, default=None))

    def position(self) -> Progress:
        """The position as acknowledged."""
        acked, sets = self._acked, self._sets
        acked.settle()
        switches = [*acked.passed, *sets.switches]
        needed = sets.partitions_of(acked.topics, *(switch.topics for switch in switches))
        return Progress(
            generation=acked.generation,
            switched_g=acked.switched_g,
            g=acked.g,
            topics=dict(acked.topics),
            clock=dict(acked.clock),
            pending=tuple(switch.answer for switch in switches),
            sources=acked.resume_offsets(),
            stamps={number: self._stamps.parts[number].resume_mark() for number in needed},
            stamps_partitions=sets.stamps_partitions,
            min_subscriptions=sets.min_subscriptions,
            topic_by=sets.topic_by,
        )

    # --- the chain of sets --------------------------------------------------------------------------------------------

    def _begin(self, position: Progress) -> None:
        self._sets.begin(position)
        self._acked.begin(position)
        self._g, self._clock = position.g, dict(position.clock)
        self._order = Line(self._clock) if position.min_subscriptions == 1 else Pool(self._clock)
        for number, mark in position.stamps.items():
            self._stamps.begin(number, mark)
        self._stamps.set_changed()
        for source, offset in position.sources.items():
            self._events.begin(source, offset).delivered_to = offset
        for link in position.pending:
            self._link(link)

    def _take_link(self, answer: Link) -> None:
        own = answer.nonce == self._nonce
        if answer.g <= self._sets.chain_g:
            return  # a repetition, or history from before the position
        if self._live and not own and self._is_anothers(answer):
            # Also one that is over: what it has ready may be handed out only while nobody else begins with it.
            raise Fenced(
                f"another process took over subscriber id {self._id!r} with generation {answer.generation}, at g "
                f"{answer.g}; this one, of generation {self._sets.generation}, has stopped",
                remedy="Give each process an id of its own, or run one process per id",
            )
        if self._over:
            return
        if self._sets.generation:
            self._link(answer)
        elif isinstance(answer, Grant) and own:
            self._begin(Progress.at(answer))
        if own and isinstance(answer, Grant):
            self._live = True
            self._effects.append(Granted(generation=answer.generation, g=answer.g, lease_s=answer.lease_s))

    def _is_anothers(self, answer: Link) -> bool:
        """Whether another process was granted the id since: compaction may have left only the end of what it had."""
        return isinstance(answer, Grant) or answer.reason == "expired" or answer.generation > self._sets.generation + 1

    def _link(self, answer: Link) -> None:
        """Appends a change to the chain and begins to read what it adds."""
        switch, joined = self._sets.link(answer)
        if not isinstance(answer, Grant):
            return
        for number in sorted(self._sets.partitions_of(switch.topics)):
            self._stamps.begin(number, StampsMark.of(answer, number))
        names = {switch.topics[topic] for topic in joined}
        for source, offset in switch.next_offsets.items():
            if self._sets.topic_by != "topic" or source.topic in names:
                self._events.join(source, offset, again=bool(joined))

    def _switch_due(self) -> bool:
        if not self._sets.switches:
            return False
        switch, topics = self._sets.switches[0], self._sets.topics
        if not switch.exact:
            first = self._order.first_g
            return (first is None or first > switch.g) and self._stamps.complete_g >= switch.g
        if self._lagging in topics and self._clock[self._lagging] < switch.clock[self._lagging]:
            return False
        for topic, name in topics.items():
            if self._clock[topic] > switch.clock[topic]:
                raise self._contradicts(f"event {self._clock[topic]} of {name!r} was stamped before {switch.g}")
            if self._clock[topic] < switch.clock[topic]:
                self._lagging = topic
                return False
        return True

    def _switch(self) -> None:
        """The old set is delivered through the position of the change: the new one takes its place."""
        sets, switch = self._sets, self._sets.switches[0]
        for topic in sets.topics.keys() & switch.topics.keys():
            if self._clock[topic] != switch.clock[topic]:
                raise self._contradicts(f"{sets.topics[topic]!r} has {self._clock[topic]} events at {switch.g}")
        sets.take_switch()
        self._g = max(self._g, switch.g)
        self._clock = {topic: switch.clock[topic] for topic in switch.topics}
        self._lagging = -1
        self._stamps.set_changed()
        self._acked.switch(switch)
        self._stamps.forget_dropped(sets.forget_dropped())
        self._events.forget_dropped()
        self._events.switched(switch.g, switch.next_offsets)
        self._order.switch(self._clock)
        self._settle()  # the partitions that are read are others now
        if not switch.topics and not sets.switches:
            self._finish(switch)
        else:
            self._effects.append(Switched(g=switch.g, topics=self.topics))

    def _finish(self, switch: Switch) -> None:
        assert isinstance(switch.answer, Ended)
        self._over = True
        self._effects.append(Finished(g=switch.g, reason=switch.answer.reason))

    # --- delivery -----------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Delivers and switches for as long as something can be done."""
        while self._live and not self._over:
            self._release()
            notice = self._next_notice()
            self._deliver_what_may_go()
            if notice is not None:
                if not self._is_due(notice):
                    return
                self._tell(notice)
            elif not self._switch_due():
                return
            elif self._sets.switches[0].lapse:
                # The switch stays: a later process heals the lapse, and delivers the old set on until its own grant.
                self._sets.check_healed(self._id)
                self._finish(self._sets.switches[0])
            else:
                self._switch()

    def _release(self) -> None:
        """Takes the rows of every batch up to whose end all answers are known."""
        moved = False
        for partition, batch, rows in self._stamps.release(self._answers_g, self._events.number):
            moved = True
            if len(rows):
                self._events.owe(rows, batch)
                self._order.add(partition, rows)
        if moved:
            self._settle()

    def _settle(self) -> None:
        """More is known of stamps, or another set is in force."""
        last = self._sets.switches[0].g if self._sets.switches else _NEVER
        wrong = self._order.settle(self._stamps.complete_g, last, by_entries=not self._sets.in_frontier_order)
        if wrong is not None:
            at = place(self._events.sources[int(wrong.source[0])], int(wrong.offset[0]))
            raise self._contradicts(f"{at} has g {wrong.g[0]}, and by its entries others with a greater g come first")
        self._events.frontier_moved(self._stamps.read_batch, self._stamps.read_g)

    def _deliver_what_may_go(self) -> None:
        last = [notice.g for notice in self._notices] + [switch.g for switch in self._sets.switches]
        if self._sets.in_frontier_order:
            last.append(self._stamps.complete_g)
        through = min(last, default=_NEVER)
        while taken := self._order.take(through, self._events):
            self._deliver(*taken)

    def _deliver(self, rows: Rows, found: Found) -> None:
        lost = np.flatnonzero(found == LOST)
        self._follow(rows)
        behind = [self._events.found_behind(int(rows.source[at]), int(rows.offset[at])) for at in lost.tolist()]
        first = self._acked.count(rows)
        handles, partitions = self._events.release(rows, found == HERE)
        assert len(handles) == len(rows) == self._acked.delivered - first + 1, "each delivery has its handle and number"
        start = 0
        for end, found_at in zip([*lost.tolist(), len(rows)], [*behind, 0], strict=True):
            if end > start:
                self._effects.append(self._deliveries(rows.part(start, end), handles[start:end], first + start))
            if end < len(rows):
                self._effects.append(self._loss(rows.part(end, end + 1), first + end, found_at))
            start = end + 1
        self._events.go_on(partitions)
        self._stamps.deliver(rows.mark)

    def _follow(self, rows: Rows) -> None:
        """They follow each other, and what was delivered; clocks and the place move."""
        for topic, at in groups(rows.topic):
            n, before = rows.n[at], self._clock[topic]
            wrong = np.flatnonzero(differences(n, before) != 1)
            if len(wrong):
                follows = int(n[wrong[0] - 1]) if wrong[0] else before
                raise self._contradicts(f"event {n[wrong[0]]} of {self._sets.names[topic]!r} follows {follows}")
            self._clock[topic] = int(n[-1])
        wrong = np.flatnonzero(differences(rows.g, self._g) <= 0)
        if len(wrong) and self._sets.min_subscriptions == 1:
            first = int(wrong[0])
            event = place(self._events.sources[int(rows.source[first])], int(rows.offset[first]))
            passed = int(rows.g[first - 1]) if first else self._g
            raise self._contradicts(f"{event} has g {rows.g[first]}, and {passed} has passed")
        self._g = max(self._g, int(rows.g.max()))

    def _deliveries(self, rows: Rows, handles: list[object], first: int) -> Deliveries:
        return Deliveries(
            rows=rows,
            handles=handles,
            first=first,
            sources=self._events.sources,
            names=self._sets.names,
            delivered_through=self._delivered_through,
        )

    def _loss(self, row: Rows, sequence: int, found: int) -> DeliverLost:
        topic, n, g, source, offset, _, _ = row.table[:, 0].tolist()
        return DeliverLost(
            topic=self._sets.names[topic],
            source=self._events.sources[source],
            begin=offset,
            end=offset + 1,
            n=n,
            g=g,
            tag=self._tag(g),
            sequence=sequence,
            found=found,
        )

    def _tag(self, g: int) -> Tag | None:
        return "redelivered" if g <= self._delivered_through else None

    # --- what was lost before it was stamped --------------------------------------------------------------------------

    def _next_notice(self) -> Skipped | None:
        """The next one that the set in force is owed, if it lies before the next change."""
        while self._notices:
            notice = self._notices[0]
            if self._sets.switches and self._sets.switches[0].g < notice.g:
                return None
            if notice.g > self._g and self._concerns(notice):
                return notice
            self._notices.popleft()
        return None

    def _concerns(self, notice: Skipped) -> bool:
        """Where keys or headers name topics, what is lost may have been events of any."""
        topics = self._sets.topics
        return bool(topics) and (self._sets.topic_by != "topic" or notice.topic in topics.values())

    def _is_due(self, notice: Skipped) -> bool:
        """Whether all that is owed before it is delivered."""
        first = self._order.first_g
        return (first is None or first >= notice.g) and self._stamps.complete_g >= notice.g

    def _tell(self, notice: Skipped) -> None:
        self._notices.popleft()
        self._g = max(self._g, notice.g)
        for sequence, (source, begin, end) in enumerate(ranges(notice), self._acked.count(notice)):
            self._effects.append(
                DeliverLost(
                    topic=source.topic if self._sets.topic_by == "topic" else None,
                    source=source,
                    begin=begin,
                    end=end,
                    n=0,
                    g=notice.g,
                    tag=self._tag(notice.g),
                    sequence=sequence,
                    found=end,
                )
            )

    # --- small things -------------------------------------------------------------------------------------------------

    def _contradicts(self, what: str) -> Contradiction:
        return Contradiction(
            f"subscriber {self._id!r} of domain {self._domain!r}: {what}",
            remedy="Nothing contradictory was delivered. Find out who else writes to the domain or recreated a topic",
        )

    def _check_whole(self) -> None:
        """Dear (sequencer/wire/invariants.py): what the parts know of each other agrees."""
        rows = self._order.rows
        self._sets.check_whole(self._g)
        self._stamps.check_whole(rows.mark, np.concatenate((rows.mark, self._acked.rows.mark)))
        self._events.check_whole(rows)
        self._order.check_whole(self._clock)
        self._acked.check_whole(self._g, self._clock)
        assert self._clock.keys() == self._sets.topics.keys(), "delivery has no clock of the set in force"

    def _flush(self) -> list[Effect]:
        if not self._dropped and due():
            self._check_whole()
        done = list(self._effects)
        self._effects.clear()  # the parts of the machine write to this very list
        return done
