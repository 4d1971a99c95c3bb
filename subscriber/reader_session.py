"""The work behind a Reader: finds where to begin, and feeds its machine. It writes nothing."""

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from totalorder.errors import Error, SettingsError
from totalorder.sequencer.wire.control import Answer
from totalorder.sequencer.wire.names import DomainTopics
from totalorder.sequencer.wire.stamps import Source, StampedBatch
from totalorder.subscriber.batch import EventBatch
from totalorder.subscriber.beginning import Beginning
from totalorder.subscriber.delivery.effects import Deliveries, DeliverLost, Effect, Reads
from totalorder.subscriber.delivery.waits import Wait
from totalorder.subscriber.event import Event, Lost
from totalorder.subscriber.feed import Feed
from totalorder.subscriber.losses import READ_ON_WITHOUT
from totalorder.subscriber.naming import block_of
from totalorder.subscriber.position import Position
from totalorder.subscriber.reading.choice import Choice
from totalorder.subscriber.reading.machine import Reading
from totalorder.subscriber.ready import Ready
from totalorder.subscriber.seeing import Seeing
from totalorder.subscriber.stamps_log import StampsLog
from totalorder.subscriber.start import Start, Until, check_place, ms_of
from totalorder.subscriber.through import through, unread_yet
from totalorder.subscriber.transport import Partition, Record, Transport

_LOG = logging.getLogger("totalorder.subscriber")
_WAIT_S = 0.2
_NEVER = 2**63 - 1
_MOST_NAMED = 10


@dataclass(frozen=True, kw_only=True)
class ReaderSettings:
    """What is read of a domain."""

    domain: str
    choice: Choice
    start: Start
    until: Until
    skips_lost: bool
    max_buffered: int
    outage_timeout_s: float
    """A start goes on for as long as something comes of what it looks for; where nothing does, for so long."""
    max_waiting: int = 50_000


class ReaderSession:
    """One reading of a domain. After an error only `close` makes sense. `seeing` says what is waited for."""

    def __init__(
        self,
        transport: Transport,
        settings: ReaderSettings,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        seeing: Seeing,
    ) -> None:
        self.ready = Ready(skips_lost=settings.skips_lost, go_on=READ_ON_WITHOUT)
        self.handed_g = 0
        """Of the last event that was handed out; before, where reading begins."""
        self._transport, self._settings, self._now_ms = transport, settings, round(wall_clock() * 1000)
        self._seeing, self._clock, self._wall_clock = seeing, clock, wall_clock
        self._came_at = 0.0
        """While it is begun: when something came last of what is looked for."""
        self._names = DomainTopics(domain=settings.domain)
        self._grants = Partition(self._names.grants, 0)
        self._answers: list[Answer] = []
        """Those that came before there was a machine."""
        self._machine: Reading | None = None
        self._feed = Feed(transport, settings.domain, self)
        self._ends: dict[Partition, int] | None = None
        """Where stamps and grants ended at the start, until all is read through there."""

    # --- start --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Finds where to begin, and begins."""
        settings, choice = self._settings, self._settings.choice
        partitions = self._transport.partitions(self._names.stamps)
        if not partitions or not self._transport.partitions(self._names.grants):
            raise Error(
                f"there is no domain {settings.domain!r} on this broker: it has no topic {self._names.stamps}",
                remedy="Check domain and bootstrap_servers; `totalorder sequence` makes a domain's topics",
            )
        self.ready.origin = Position(settings.domain, self._transport.topic_id(self._names.stamps), 0)
        self._check_bounds()
        self._came_at = self._clock()
        beginning = Beginning(self._transport, settings.domain, choice, partitions, self._meanwhile)
        log = beginning.log
        self._read_grants()
        marks, after = beginning.find(settings.start, self._answers)
        if isinstance(settings.start, Position):
            self._check_there(settings.start, log)
        self._ends = {Partition(self._names.stamps, number): end for number, end in log.ends.items()}
        self._ends |= self._transport.end_offsets([self._grants])
        self.handed_g = after
        until = settings.until
        self._machine = Reading(
            domain=settings.domain,
            partitions=partitions,
            choice=choice,
            marks=marks,
            after=after,
            through=until.g if isinstance(until, Position) else _NEVER,
            until_ms=ms_of(until) if isinstance(until, datetime) else _NEVER,
            max_buffered=settings.max_buffered,
            max_waiting=settings.max_waiting,
        )
        self._apply(self._machine.start())
        answers, self._answers = self._answers, []
        for answer in answers:
            self._apply(self._machine.answer(answer))

    def _check_bounds(self) -> None:
        """SettingsError for what is of another order, or cannot be."""
        start, until = self._settings.start, self._settings.until
        check_place(start, self._origin, now_ms=self._now_ms)
        if isinstance(until, Position):
            until.check_order(self._origin)
        if isinstance(start, Position) and isinstance(until, Position) and until < start:
            raise SettingsError(f"until = {until} lies before start = {start}", remedy="Change them round")

    def _check_there(self, start: Position, log: StampsLog) -> None:
        """SettingsError for what comes after all that is stamped: what lies between would be passed over."""
        _, present = log.last_marks()
        is_known = present > 0 or not any(log.ends.values())
        if is_known and start.g > present:
            raise SettingsError(
                f"start = {start} comes after g {present}, which is the present", remedy='Begin there: start="now"'
            )

    def _read_grants(self) -> None:
        """Reads answers to their present end, and goes on."""
        grants = self._grants
        self._transport.read(grants, self._transport.beginning_offsets([grants])[grants])
        for _ in through(self._transport, grants, lambda: self._feed.given[grants]):
            records = self._transport.poll(_WAIT_S)
            self._note(self._names.grants, came=bool(records))
            self._feed.give(records)

    def _meanwhile(self, others: list[Record], came: bool) -> None:
        """While stamps are looked into."""
        self._note(self._names.stamps, came=came)
        self._feed.give(others)

    def _note(self, topic: str, *, came: bool) -> None:
        """BrokerUnavailable where nothing has come of what is there for too long."""
        now = self._clock()
        if came:
            self._came_at = now
        elif now >= self._came_at + self._settings.outage_timeout_s:
            raise unread_yet(topic, self._settings.outage_timeout_s, "outage_timeout_s")
        self._seeing.look(lambda: [Wait(kind="history", topic=topic)])

    @property
    def _origin(self) -> Position:
        assert self.ready.origin is not None
        return self.ready.origin

    # --- work ---------------------------------------------------------------------------------------------------------

    @property
    def machine(self) -> Reading:
        """The machine, for questions only."""
        assert self._machine is not None
        return self._machine

    @property
    def event_partitions(self) -> Collection[Source]:
        """Those that are read."""
        return self._feed.event_partitions

    @property
    def position(self) -> Position:
        """Behind the last event that was handed out."""
        return self._origin.at(self.handed_g)

    @property
    def finished(self) -> bool:
        """Whether everything was handed out, and nothing more will come."""
        return self.machine.done and not self.ready

    def pump(self, timeout_s: float) -> None:
        """Reads what has come, for at most `timeout_s` when nothing has."""
        self._feed.hold(holding=len(self.ready) >= self._settings.max_buffered)
        self._feed.pump(timeout_s)
        self._look_for_end()

    def _look_for_end(self) -> None:
        """Notices when all that was stamped at the start is known."""
        if self._ends is None or len(self._feed.stamps) < len(self._ends) - 1:
            return  # or no more stamps are wanted
        if all(self._transport.position(at) >= end for at, end in self._ends.items()):
            self._ends = None
            self._warn_of_unseen()
            until = self._settings.until
            if until == "now" or (isinstance(until, datetime) and ms_of(until) <= self._now_ms):
                self._apply(self.machine.end_here())

    def _warn_of_unseen(self) -> None:
        """A mistyped name looks like a topic where nothing happens."""
        if self._settings.start == "now":
            return
        for name in sorted(self._settings.choice.topics - self.machine.seen)[:_MOST_NAMED]:
            _LOG.warning(
                'no event of topic "%s" in domain %s between start and now (a name fits itself alone; for a pattern '
                "there is pattern=, --pattern)",
                name,
                self._settings.domain,
            )

    # --- what the feed gives, and what the machine says to it ---------------------------------------------------------

    def take_answer(self, answer: Answer, /) -> None:
        """See Fed."""
        if self._machine is None:
            self._answers.append(answer)
        else:
            self._apply(self._machine.answer(answer))

    def take_stamps(self, batch: StampedBatch, _: range, /) -> None:
        """See Fed."""
        self._seeing.stamped(batch, self._wall_clock())
        self._apply(self.machine.stamped(batch))

    def take_events(self, source: Source, records: list[Record], /) -> None:
        """See Fed."""
        self._apply(self.machine.events(source, block_of(records, None)))

    def take_gone(self, source: Source, offset: int, /) -> None:
        """See Fed."""
        self._apply(self.machine.gone(source, offset))

    def take_others(self, _: list[Record], /) -> None:
        """Nothing else is read."""

    def _apply(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Deliveries | DeliverLost):
                self.ready.append(effect)
            elif isinstance(effect, Reads):
                self._feed.apply(effect)

    # --- out ----------------------------------------------------------------------------------------------------------

    def hand_out(self) -> Event | Lost:
        """The next event that is ready. EventsLost where a loss stands that is not skipped, and again from then on."""
        self.ready.check_next()
        event, _, _ = self.ready.pop()
        self.handed_g = event.g
        return event

    def hand_out_batch(self, most: int) -> EventBatch[Any]:
        """At most `most` of the next events that are ready; EventsLost as `hand_out`."""
        self.ready.check_next()
        lost: list[Lost] = []
        parts: list[Deliveries] = []
        while most > 0 and (item := self.ready.take(most, _NEVER, events_only=bool(parts))) is not None:
            if isinstance(item, DeliverLost):
                lost.append(Lost.of(item, self._origin))
                most -= 1
            else:
                parts.append(item)
                most -= len(item)
        batch: EventBatch[Any] = EventBatch(tuple(lost), parts, self._origin)
        if batch:
            self.handed_g = batch.position.g
        return batch

    def close(self) -> None:
        """Lets go of the transport."""
        self._transport.close()
