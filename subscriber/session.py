"""The work behind a Subscriber: requests, the feeding of the delivery machine, receipts, saved positions.

It carries bytes between a Transport and the machine and keeps times; what may be delivered is the machine's decision
alone. Nothing here runs by itself: `pump` is called by whoever waits for events.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, Literal

from totalorder.errors import (
    BrokerUnavailable,
    SequencerUnavailable,
    SettingsError,
    StoreUnavailable,
    SubscriptionEnded,
)
from totalorder.sequencer.wire.control import (
    Answer,
    Grant,
    Renewed,
    Subscribe,
    Unsubscribe,
)
from totalorder.sequencer.wire.names import DomainTopics, stamps_partition
from totalorder.sequencer.wire.position import Progress, before_subscription
from totalorder.sequencer.wire.stamps import Source, StampedBatch
from totalorder.subscriber.batch import EventBatch
from totalorder.subscriber.beginning import Beginning
from totalorder.subscriber.choosing import Choosing
from totalorder.subscriber.delivery.effects import Deliveries, DeliverLost, Effect, Finished, Granted, Switched
from totalorder.subscriber.delivery.events import GONE
from totalorder.subscriber.delivery.machine import Delivery
from totalorder.subscriber.delivery.waits import Kind, Wait
from totalorder.subscriber.draining import Draining
from totalorder.subscriber.event import Event, Lost, position_of
from totalorder.subscriber.feed import Feed
from totalorder.subscriber.history import History
from totalorder.subscriber.holding import Holding
from totalorder.subscriber.losses import GO_ON_WITHOUT
from totalorder.subscriber.naming import block_of
from totalorder.subscriber.position import Position
from totalorder.subscriber.positions import Positions
from totalorder.subscriber.reading.choice import Choice
from totalorder.subscriber.ready import Ready
from totalorder.subscriber.receipts import ReceiptLog
from totalorder.subscriber.requests import Requests
from totalorder.subscriber.seeing import Seeing, lag_s
from totalorder.subscriber.session_settings import SessionSettings
from totalorder.subscriber.start import check_place
from totalorder.subscriber.stored import Stored, without_store
from totalorder.subscriber.through import through, unread_yet
from totalorder.subscriber.transport import Partition, Record, Transport
from totalorder.subscriber.unseen import Unread
from totalorder.subscriber.watch import Watch

_WAIT_S = 0.2
_IDLE_S = 1.0
"""Where nothing has come for so long, there is nothing that could be read."""
_TIMED_SEND_S = 2.0
"""What is sent because it is time waits no longer for the broker than this, and is sent again at the next time."""
_REFRESH_S = 60.0
"""Even where each acknowledgement is saved: without events the offsets to resume from would age out of retention."""
_FOLLOW_S = 2.0
"""Kafka's position follows that of a store."""
_GRANT = Wait(kind="grant")
_RECEIPTS_REMEDY = (
    "Check that `totalorder sequence` runs; one of an older release keeps no receipts: update it, or go without by "
    "receipts=False (--no-receipts)"
)
_PROMISE_S = 0.1
_MOST_AHEAD = 1 << 20
_MOST_READY = 4
"""Of events as many times `max_buffered` may be ready: as many as of four partitions may wait."""
_AT_ONCE_S = 0.001
"""So long events are handed out one after another without a look at what else is due; receipts tell time by ms."""
_NEWS_S = 1.0
"""However much is ready, grants are read and receipts sent this often."""


class Session:
    """One process's life as a subscriber. After an error only `close` makes sense."""

    def __init__(
        self,
        transport: Transport,
        settings: SessionSettings,
        *,
        nonce: str,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        stored: Stored | None = None,
    ) -> None:
        self.stored = stored
        """The store that has the acknowledged position, if that is not Kafka."""
        self.already_done = 0
        """So many deliveries were dropped, since the store says that they are done."""
        self.ready = Ready(skips_lost=settings.skips_lost, go_on=GO_ON_WITHOUT)
        self.finished: Finished | None = None
        self.generation = 0
        """Of this process, 0 before its first grant."""
        self.grant: Grant | None = None
        """The last one of this process."""
        self.handed = 0
        """Number of the last delivery that was handed to the application."""
        self.ending = False
        """Whether this process has ended the subscription."""
        self.held = False
        """While true no event partition is read, and what waits stays here."""
        self._transport, self._settings, self._nonce, self._clock = transport, settings, nonce, clock
        self._wall_clock = wall_clock
        self._names = DomainTopics(domain=settings.domain)
        self._grants = Partition(self._names.grants, 0)
        self._machine = Delivery(id=settings.id, nonce=nonce, domain=settings.domain)
        self._history: History | None = History(id=settings.id, nonce=nonce)
        """Until there is a machine for this process."""
        self._requests = Requests(
            transport, id=settings.id, domain=settings.domain, nonce=nonce, wait=self._await, signer=settings.signer()
        )
        self._deadline = 0.0
        self._receipt_log = ReceiptLog(
            transport, domain=settings.domain, id=settings.id, nonce=nonce, clock=clock, wall_clock=wall_clock
        )
        watch = Watch(id=settings.id, domain=settings.domain, stalled_after_s=settings.stalled_after_s)
        self.seeing = Seeing(watch, clock, lambda: transport.silent_s)
        self._unread = Unread(transport)
        self._draining: Draining | None = None
        self._began_g: int | None = None
        """Where in the order the position lies with which this process began, if there was one."""
        self._begins_anew = stored is not None and settings.begin_anew
        """Whether the store is to begin there whatever it has, and does not yet."""
        self._promised_before = 0
        """How far former processes may have handed out events."""
        self._stamps_count = 0
        self._choosing = Choosing(
            transport,
            settings.domain,
            clock=clock,
            wait=partial(self._await, wait=Wait(kind="cuts", topic=self._names.cuts)),
            stir=self._stir,
        )
        self._feed = Feed(transport, settings.domain, self)
        self._event_partitions = self._feed.event_partitions
        self._renew_at: float | None = None
        self._save_at = self._pump_at = 0.0
        self._allowed_g = self._handed_g = 0
        """How far events may be handed out, and were."""
        self._is_kept_back = False
        """Whether the application asked for an event that is ready, and it is not certain yet that the id is still this
        process's."""
        self._at_once_until = -math.inf
        """Until then events are handed out by `at_once`."""
        self._idle_s = 0.0
        self._handed_before = 0
        self._promised_at = -math.inf
        self._pumped_s = 0.0
        """Of the time since then: events were waited for, and ordered."""
        self._holding = Holding(
            transport, self._grants, clock=clock, wall_clock=wall_clock, pump=self.pump, given=self._feed.given
        )
        self._ahead = 1
        """So many events that are ready are promised at a time: what the application takes in `_PROMISE_S`."""

    # --- start --------------------------------------------------------------------------------------------------------

    def start(self, choice: Choice) -> None:
        """Takes the id over and subscribes to what is chosen; returns once the sequencer has granted it.

        Raises SequencerUnavailable when that takes longer than `start_timeout_s`, Rejected when it is refused, Fenced
        when yet another process has taken the id over meanwhile.
        """
        self._wait_anew()
        self._stamps_count = self._count(self._names.stamps)
        self._origin = Position(self._settings.domain, self._transport.topic_id(self._names.stamps), 0)
        check_place(self._settings.start, self._origin, now_ms=round(self._wall_clock() * 1000))
        ends = self._stamps_ends()
        self._read_through(self._grants)
        self._positions = Positions(
            self._transport,
            self._partition_of_id(self._names.positions),
            id=self._settings.id,
            nonce=self._nonce,
            stored=self.stored is not None,
        )
        if self._settings.receipts:
            self._receipt_log.open(self._partition_of_id(self._names.receipts, _RECEIPTS_REMEDY))
        try:
            assert self._history is not None
            topics = self._choosing.chosen(choice, () if self._settings.begin_anew else self._history.held())
            self._take_over(self._subscribe(topics, ends))
            while not self._still_holds():
                self._await(wait=Wait(kind="log", topic=self._names.grants))
            if self._begins_anew:
                assert self.grant is not None
                self._begins_anew = False
                self._begin_stored(self.grant, anew=True)
                self.save(always=True)
        except (Exception, KeyboardInterrupt, SystemExit):
            self._requests.withdraw(_TIMED_SEND_S)
            raise
        self._requests.vacant = False

    def _take_over(self, generation: int) -> None:
        """Begins where former processes have left off.

        What they saved is looked at only now: whatever one of them hands out from here on, it must look at grants
        before, and finds this process's.
        """
        saved, promised = None, 0
        self._wait_anew()
        if self._settings.start != "now":
            saved, promised = self._positions.newest(self._read_through(self._positions.partition))
            self._transport.stop(self._positions.partition)
            if saved is not None and saved.generation > generation:
                raise self._requests.fenced(saved.generation)
        if self.stored is None and saved is not None and saved.stored and not self._settings.begin_anew:
            raise without_store(self._settings.id)
        history = self._history
        assert self.grant is not None
        assert history is not None
        begun = self._begin_at(self._settings.place, history) if self._settings.place is not None else None
        self._history = None
        answers = history.answers if begun is None else history.without_former(self.grant)
        position = begun
        if not self._settings.begin_anew:
            granted = history.never_saved()
            if saved is not None:
                position = saved.position
                self._begins_anew = saved.anew
            elif granted is not None:
                position = Progress.at(granted)
        self._began_g, self._promised_before = None if position is None else position.g, promised
        self._receipt_log.behind_g = before_subscription(position, self.grant)
        self._machine = Delivery(
            id=self._settings.id,
            nonce=self._nonce,
            domain=self._settings.domain,
            position=position,
            delivered_through=promised,
            max_buffered=self._settings.max_buffered,
            max_waiting=self._settings.max_waiting,
        )
        self.seeing.begins(self._machine.topics)
        self._apply(self._machine.start())
        for answer in answers:
            self._apply(self._machine.answer(answer))

    def _begin_at(self, place: Position | datetime | Literal["earliest"], history: History) -> Progress | None:
        """What lies between a place in the order and the grant is delivered too, by the stamps that are there.

        None where nothing does: the place is the present. What answers come meanwhile join the others. Receipts tell of
        nothing before the grant: the id held nothing.
        """
        grant = self.grant
        assert grant is not None
        if grant.min_subscriptions != 1:
            raise SettingsError(
                f"start = {place} needs min_subscriptions = 1: here nothing says in which order others had what lies "
                "before a subscription",
                remedy='Begin at the present: start="now"',
            )
        beginning = Beginning(
            self._transport, self._settings.domain, Choice(grant.topics), self._stamps_count, self._meanwhile
        )
        marks, after = beginning.find(place, history.answers)
        if isinstance(place, Position) and after > grant.g:
            raise SettingsError(
                f"start = {place} comes after g {grant.g}, which is the present", remedy='Begin there: start="now"'
            )
        if after >= grant.g:  # there is no history; the job's clock may be behind the time that was given
            return None
        begun = beginning.progress(marks, after, grant)
        self._wait_anew()
        return begun

    def _meanwhile(self, others: list[Record], came: bool) -> None:
        """While stamps are looked into."""
        self._idle_s = 0.0 if came else self._idle_s + _WAIT_S
        if self._idle_s >= self._settings.start_timeout_s:
            raise self._no_sequencer("stamps do not go as far as its answer")
        kind: Kind = "log" if self._idle_s >= _IDLE_S else "history"
        self.seeing.look(lambda: [Wait(kind=kind, topic=self._names.stamps)])
        self._feed.give(others)

    def _partition_of_id(self, topic: str, remedy: str = "") -> Partition:
        """Where a topic of the domain's holds what this id writes."""
        return Partition(topic, stamps_partition(self._settings.id, self._count(topic, remedy)))

    def _count(self, topic: str, remedy: str = "") -> int:
        """Partitions of one of the domain's topics, which the sequencer makes when it first runs."""
        while not (count := self._transport.partitions(topic)):
            if self._clock() >= self._deadline:
                raise self._no_sequencer(f"there is no topic {topic}", remedy)
            self.seeing.look(lambda: [Wait(kind="topic", topic=topic)])
            self._transport.poll(_WAIT_S)
        return count

    def _read_through(self, partition: Partition) -> list[Record]:
        """All records of a partition up to its present end, if it is that of positions: others go where they belong.

        It stays read, and others that are read go on.
        """
        self._transport.read(partition, self._transport.beginning_offsets([partition])[partition])
        records: list[Record] = []
        for _ in through(self._transport, partition, lambda: len(records) + self._feed.given[partition]):
            if self._clock() >= self._deadline:
                raise self._unread_yet(partition.topic)
            self.seeing.look(lambda: [Wait(kind="log", topic=partition.topic)])
            found = self._feed.poll(_WAIT_S)
            if any(record.topic == partition.topic for record in found):
                self._wait_anew()  # a long log takes its time
            for record in found:
                if record.topic == self._names.positions:
                    records.append(record)
                else:
                    self._feed.give([record])
        return records

    def _stamps_ends(self, *, once: bool = False) -> dict[int, int]:
        partitions = [Partition(self._names.stamps, number) for number in range(self._stamps_count)]
        return {at.number: end for at, end in self._transport.end_offsets(partitions, once=once).items()}

    # --- requests -----------------------------------------------------------------------------------------------------

    def choose(self, choice: Choice) -> tuple[str, ...]:
        """The set to `change` to. SettingsError for a pattern that cannot be meant: then nothing was touched."""
        if self.ending or self.finished is not None:
            raise self.ended()
        self._require_committed()
        self._wait_anew()
        assert self.grant is not None
        self._require_awake()
        return self._choosing.chosen(choice, self.grant.topics)

    def _require_committed(self) -> None:
        """A change claims the position's row in the store, which would wait for the application's own transaction."""
        if self.stored is None:
            return
        self._machine.acknowledge(self.stored.committed())
        if self.stored.is_open:
            raise SettingsError(
                "the topics cannot change while a transaction is open that has acknowledged something, or has come to "
                "nothing",
                remedy="Commit it, or do its events again, and change the topics then",
            )

    def change(self, topics: tuple[str, ...]) -> None:
        """Re-subscribes with another set; returns once it is granted. What the old set is owed comes first."""
        generation = self._subscribe(topics, self._stamps_ends())
        if self.generation != generation:
            # It came to its end while the answer was under way: nobody would hold what was granted.
            self._requests.withdraw(_TIMED_SEND_S)
            raise self.ended()

    def end(self, *, drain: bool) -> None:
        """Unsubscribes; with `drain` everything before the end is still delivered, else nothing more."""
        if not drain:
            self.ready.clear()
        if not self.ending and self.finished is None:
            self._wait_anew()
            self._require_awake()
            self._requests.ask(
                lambda generation: Unsubscribe(id=self._settings.id, generation=generation, nonce=self._nonce)
            )
            self._renew_at = None
        self.ending = True
        if not drain:
            if self.stored is not None:
                self._machine.acknowledge(self.stored.committed())
                self.stored.give_up()
            self._machine.drop()
            self.seeing.drop()
            self.ready.clear()
            self.finished = Finished(g=self._machine.g, reason="unsubscribed")
        self.save()

    def _subscribe(self, topics: tuple[str, ...], ends: dict[int, int]) -> int:
        """Returns the generation that was granted."""
        return self._requests.ask(self._request(topics, ends))

    def _request(self, topics: tuple[str, ...], ends: dict[int, int]) -> Callable[[int], Subscribe]:
        """By its generation."""
        return lambda generation: Subscribe(
            id=self._settings.id,
            generation=generation,
            nonce=self._nonce,
            topics=topics,
            lease_s=self._settings.lease_s,
            stamps_ends=ends,
        )

    def follow(self) -> None:
        """Asks for topics that have come to a pattern, and does not wait: they join at their place in the order."""
        if self._choosing.pattern is None:
            return
        if self.grant is None or self._requests.is_open or self._requests.lapsed or self.ending or self.finished:
            return
        topics = self._choosing.due(self.grant.topics)
        if topics is None:
            return
        self._requests.check()
        with suppress(BrokerUnavailable):  # how long an outage is borne, poll decides
            self._holding.note()
            if not self._holding.slept or self._still_holds():
                ends = self._stamps_ends(once=True)
                self._requests.begin(self._request(topics, ends), _TIMED_SEND_S)

    def _wait_anew(self) -> None:
        """What is waited for from here on has its own time."""
        self._deadline = self._clock() + self._settings.start_timeout_s

    def _stir(self) -> None:
        """Has the sequencer make a batch: a process that holds nothing yet is refused, which changes nothing."""
        self._requests.renew(self.generation or self._requests.latest + 1, None)

    def _await(self, why: str = "it did not answer the request", *, wait: Wait = _GRANT) -> None:
        """Lets an answer come, or what else is waited for."""
        if self._clock() >= self._deadline:
            raise self._unread_yet(str(wait.topic)) if wait.kind == "log" else self._no_sequencer(why)
        self.pump(_WAIT_S, [wait])

    def ended(self) -> SubscriptionEnded:
        """Why nothing more comes."""
        at = f" at g {self.finished.g}" if self.finished is not None else ""
        if self.ending:
            how, remedy = "was unsubscribed by this process", "Make a new Subscriber to subscribe again"
        elif self.finished is not None and self.finished.reason == "expired":
            how = f"expired{at}: nothing renewed its lease of {self._settings.lease_s} s in time"
            remedy = "Make a new Subscriber to go on; call poll() more often, or give a longer lease_s"
        else:
            how, remedy = f"was unsubscribed{at} by somebody else", "Make a new Subscriber to subscribe again"
        return SubscriptionEnded(
            f"the subscription of id {self._settings.id!r} in domain {self._settings.domain!r} {how}", remedy=remedy
        )

    def _unread_yet(self, topic: str) -> BrokerUnavailable:
        return unread_yet(topic, self._settings.start_timeout_s, "start_timeout_s (--start-timeout)")

    def _no_sequencer(self, why: str, remedy: str = "") -> SequencerUnavailable:
        return SequencerUnavailable(
            f"no answer from the sequencer of domain {self._settings.domain!r} within "
            f"{self._settings.start_timeout_s:g} s: {why}",
            remedy=remedy
            or "Check that `totalorder sequence` runs for this domain, on this broker; its first batch takes Spark a "
            "while, and start_timeout_s (--start-timeout) waits longer. The request is taken back: an id that is new "
            "begins at what is then the present",
        )

    # --- work ---------------------------------------------------------------------------------------------------------

    def pump(self, timeout_s: float, waits: Sequence[Wait] = ()) -> None:
        """Reads what has come, for at most `timeout_s` when nothing has; does what is due by time.

        `waits` is what the caller waits for, besides events.
        """
        self._at_once_until = -math.inf
        self._holding.note()
        self._keep()
        begun = self._clock()
        self._pump_at = begun + _NEWS_S
        self._throttle()
        self._feed.pump(timeout_s)
        self.seeing.look(lambda: [*waits, *self._waits()])
        self._pumped_s += self._clock() - begun

    def _waits(self) -> list[Wait]:
        """What events wait for. While the application has some to take, that nobody stamps others alone counts: what
        else they wait for is on its way, and not asked for while enough is ready. Where it gets none, that counts.
        """
        if self.ready and self._is_kept_back:
            return [Wait(kind="log", topic=self._names.grants)]
        if self._is_full:
            return []
        by_topic = self.generation and self._machine.topic_by == "topic" and not self._transport.silent_s
        topics = self._machine.topics if by_topic else ()
        found = self._unread.waits(self._clock(), topics, self._event_partitions, self._machine.stamps_partitions)
        waits = [*self._machine.waits(), *found]
        return [wait for wait in waits if wait.kind == "stamps" and wait.g is None] if self.ready else waits

    def tick(self) -> None:
        """Before an event is taken, or when none will come: looks for news now and then, and does what is due.

        The id may be another's by now. With nothing ready, `pump` is about to be called anyway.
        """
        self._at_once_until = -math.inf
        self.follow()
        if not self.ready:
            self.seeing.holds_back(None)
            if self.finished is None:
                return
        now = self._clock()
        is_due = now >= self._save_at or (self._renew_at is not None and now >= self._renew_at)
        if now >= self._pump_at and self.ready:
            self.pump(0.0)
        elif is_due or self.finished is not None or self._receipt_log.full:
            self._keep()

    def _keep(self) -> None:
        """Renews the lease, sends receipts and saves the position when it is time."""
        if self._receipt_log.full:
            self._receipt_log.send()
        now = self._clock()
        try:
            if self._renew_at is not None and now >= self._renew_at and self.finished is None:
                self._renew_at = now + min(self._settings.lease_s / 3, _TIMED_SEND_S)
                self._requests.renew(self.generation, _TIMED_SEND_S)
                self.seeing.asked()
                self._renew_at = now + self._settings.lease_s / 3
            if self._receipt_log.due:
                self._receipt_log.send(_TIMED_SEND_S)
            if self.generation and now >= self._save_at:
                self.save(timeout_s=_TIMED_SEND_S)
        except BrokerUnavailable:
            # Nothing is lost by being late. How long an outage is borne, poll decides; a write that is tried again soon
            # tells it when that is over.
            self._save_at = min(self._save_at, self._clock() + _TIMED_SEND_S)

    def is_drained(self) -> bool:
        """Whether all is handed out that was stamped when this was asked first."""
        if self._draining is None:
            self._draining = Draining(self._transport, self._feed, self._grants, lambda: self._machine.known_g)
            self._pump_at = self._clock()  # however much is ready: what was stamped by now is to be known
        next_g = self.ready.first_g if self.ready and self._machine.follows_order else None
        return self._draining.is_over(handed=self.handed, ready=len(self.ready), next_g=next_g)

    def at_once(self) -> Event | None:
        """The next event, where `tick` and `hand_out` would do nothing but give it; None says nothing of what is ready.

        They have looked within the last millisecond, and nothing was done since that they look at.
        """
        event = self.ready.made
        if not isinstance(event, Event) or event.g > self._allowed_g:
            return None
        if self._clock() >= self._at_once_until or self.held or self._receipt_log.full:
            return None
        _, item, at = self.ready.pop()
        self.handed = event.sequence
        if event.g > self._handed_g:
            self._handed_g = event.g
        self._receipt_log.note_next(item, at, self.generation)
        return event

    def hand_out(self) -> Event | Lost | None:
        """The next event that is ready, for the application; None while Kafka is silent, or news are to be told.

        EventsLost where a loss stands that is not skipped: at its turn, and again whenever this is called.
        """
        if self.seeing.through is not None and self.seeing.holds_back(self.ready.first_g):
            return None
        self.ready.check_next()
        if self.ready.front.g > self._allowed_g and not self._promise():
            return None
        event, item, at = self.ready.pop()
        self.handed, self._handed_g = event.sequence, max(self._handed_g, event.g)
        now = self._clock()
        self._receipt_log.note(item, at, at + 1, self.generation)
        if not self.seeing.news and self.seeing.through is None:
            renew_at = math.inf if self._renew_at is None else self._renew_at
            self._at_once_until = min(now + _AT_ONCE_S, self._pump_at, self._save_at, renew_at)
        return event

    def hand_out_batch(self, most: int) -> EventBatch[Any]:
        """At most `most` of the next events that are ready; none while Kafka is silent, or news are to be told."""
        if self.seeing.through is not None and self.seeing.holds_back(self.ready.first_g):
            return EventBatch((), ())
        self.ready.check_next()
        if self.ready.first_g > self._allowed_g and not self._promise(most):
            return EventBatch((), ())
        lost: list[Lost] = []
        parts: list[Deliveries] = []
        change_g = self.seeing.through
        through = self._allowed_g if change_g is None else min(self._allowed_g, change_g)
        while most > 0 and (item := self.ready.take(most, through, events_only=bool(parts))) is not None:
            size = 1 if isinstance(item, DeliverLost) else len(item)
            if isinstance(item, DeliverLost):
                lost.append(Lost.of(item, self.ready.origin))
                self._handed_g = max(self._handed_g, item.g)
            else:
                parts.append(item)
                self._handed_g = max(self._handed_g, int(item.rows.g.max()))
            self._receipt_log.note(item, 0, size, self.generation)
            most -= size
        batch = EventBatch(tuple(lost), parts, self.ready.origin)
        self.handed = max(self.handed, batch.sequence)
        return batch

    def _suit_pace(self) -> None:
        """A promise costs some milliseconds, and what it covers is flagged after a crash: so it covers a while.

        How long events were waited for does not count: an application that takes a batch at once needs one promise.
        """
        now = self._clock()
        took_s, handed = now - self._promised_at - self._pumped_s, self.handed - self._handed_before
        most = min(_MOST_AHEAD, 2 * max(self._ahead, handed))
        self._ahead = max(1, math.ceil(min(most, handed * _PROMISE_S / took_s))) if took_s > 0 else most
        self._promised_at, self._handed_before, self._pumped_s = now, self.handed, 0.0

    def _next_g(self) -> int:
        """How far the next events go that are promised together."""
        return self.ready.max_g(self._ahead)

    def _promise(self, least: int = 1) -> bool:
        """Whether the next events may be handed out."""
        self._is_kept_back = not self._promised(least)
        return not self._is_kept_back

    def _promised(self, least: int) -> bool:
        """Sees to it that the next events may be handed out, and that the id is still this process's.

        It covers `least` events, or more. First the promise is put on the log, then grants are read to their end. A
        process that takes over is granted first, then looks for promises: so it sees this one, or this process sees its
        grant, and stops.
        """
        self._gather()
        self._suit_pace()
        self._ahead = max(self._ahead, least)
        saved = self._positions.saved
        assert saved is not None, "a position is saved at each grant"
        try:
            if self.ready.first_g > self._positions.promised:
                # What is acknowledged meanwhile would need receipts first, and is saved in its own time.
                self._write_position(saved, self._next_g(), _TIMED_SEND_S)
        except BrokerUnavailable:
            # How long an outage is borne, poll decides.
            return False
        return self._still_holds() and self.ready.first_g <= self._allowed_g

    def _gather(self) -> None:
        """Of a backlog more is made ready before it is promised: a promise takes as long as some hundred events."""
        much = max(1, self._settings.max_buffered // 2)
        while much <= len(self.ready) < _MOST_READY * self._settings.max_buffered:
            before = len(self.ready)
            self.pump(0.0)
            if len(self.ready) < before + much:
                break

    def _still_holds(self) -> bool:
        """See Holding.look."""
        behind = self._holding.look(self._positions.partition, self._positions.promised)
        self._allowed_g = max(self._allowed_g, behind or 0)
        return behind is not None

    def _require_awake(self) -> None:
        """Behind a long sleep: Fenced where another process has the id by now, before anything is asked in its name."""
        self._holding.note()
        while self._holding.slept and not self._still_holds():
            self._await(wait=Wait(kind="log", topic=self._names.positions))

    def acknowledge(self, sequence: int) -> None:
        """Everything through delivery number `sequence` is done with."""
        self._machine.acknowledge(sequence)
        if self._settings.save_interval_s == 0:
            self.save()

    # --- what the feed gives, and what the machine says to it ---------------------------------------------------------

    def take_answer(self, answer: Answer, /) -> None:
        """See Fed."""
        self._requests.note(answer)
        self._choosing.note(answer)
        if isinstance(answer, Renewed) and answer.nonce == self._nonce:
            self.seeing.answered()
        if (
            isinstance(answer, Grant)
            and answer.nonce == self._nonce
            and (self.grant is None or answer.g > self.grant.g)
        ):
            self.grant = answer
        if self._history is None:
            self._apply(self._machine.answer(answer))
        else:
            self._history.note(answer)

    def take_stamps(self, batch: StampedBatch, offsets: range, /) -> None:
        """See Fed."""
        self.seeing.stamped(batch, self._wall_clock())
        self._apply(self._machine.stamped(batch, offset=offsets.start, next_offset=offsets.stop))

    def take_events(self, source: Source, records: list[Record], /) -> None:
        """See Fed."""
        self._apply(self._machine.events(source, block_of(records, self._machine.topic_by)))

    def take_gone(self, source: Source, offset: int, /) -> None:
        """See Fed."""
        if offset == GONE:
            self.seeing.vanished(source.topic, source.topic_id)
        self._apply(self._machine.gone(source, offset))

    def take_others(self, records: list[Record], /) -> None:
        """Cuts, or what processes of the id have saved."""
        if records[0].topic == self._names.positions:
            if (later := self._positions.later(records, self.generation)) is not None:
                raise self._requests.fenced(later)
        else:
            self._choosing.take(records)

    def _apply(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Deliveries | DeliverLost):
                self._delivered(effect)
            elif isinstance(effect, Granted):
                self._granted(effect)
            elif isinstance(effect, Finished):
                self.finished, self._renew_at = effect, None
                self.seeing.switched(effect)
            elif isinstance(effect, Switched):
                self._save_at = self._clock()
                self.seeing.switched(effect)
            else:
                self._feed.apply(effect)

    def _delivered(self, effect: Deliveries | DeliverLost) -> None:
        """It is the application's next, but for what a store says that is done."""
        done, size = self._done_of(effect), 1 if isinstance(effect, DeliverLost) else len(effect)
        if done:
            # A former process handed it out, and may have been killed before it told of that.
            self._receipt_log.note(effect, 0, done, self.generation)
            self.handed = (effect.sequence if isinstance(effect, DeliverLost) else effect.first) + done - 1
            self.already_done += done
            self._machine.acknowledge(self.handed)
        if done == size:
            return
        if isinstance(effect, DeliverLost):
            if self.ready.skips_lost:
                self.seeing.lost(effect)
            self.ready.append(effect)
        else:
            self.ready.append(effect.part(done, size) if done else effect)

    def _done_of(self, effect: Deliveries | DeliverLost) -> int:
        """How many of its first deliveries are done."""
        if self.stored is None or self.stored.done is None:
            return 0
        done_g = self.stored.done.g
        return int(effect.g <= done_g) if isinstance(effect, DeliverLost) else int((effect.rows.g <= done_g).sum())

    def _throttle(self) -> None:
        """Stops reading events while more is ready than the application takes, or while it is paused."""
        self._feed.hold(holding=self._is_full)

    @property
    def _is_full(self) -> bool:
        return self.held or len(self.ready) >= _MOST_READY * self._settings.max_buffered

    # --- positions ----------------------------------------------------------------------------------------------------

    def _granted(self, granted: Granted) -> None:
        assert self.grant is not None, "it is noted before the machine has it"
        self.seeing.granted(granted.g, self.grant.topics, granted.generation, first=not self.generation)
        if self.generation or not self._settings.begin_anew:
            self._choosing.say_joined(self.grant)
        self.generation = granted.generation
        self.ready.origin = self._origin if self._machine.follows_order else None
        if granted.lease_s:
            self._renew_at = self._clock() + granted.lease_s / 3
        # Before anything is delivered under it: a process that dies now leaves a position that knows of its grant.
        if self._begins_anew:
            # The store comes behind a look at grants: who takes over from here on finds that it is to begin anew, and
            # who took over before has a store that this process leaves alone (docs/adr/0023).
            self._write_position(self._machine.position(), 0, None, anew=True)
        else:
            self._begin_stored(granted, anew=False)
            self.save(always=True)

    def _begin_stored(self, granted: Granted | Grant, *, anew: bool) -> None:
        if self.stored is not None:
            self.stored.begin(
                generation=granted.generation,
                kafka=position_of(self.ready.origin, granted.g if self._began_g is None else self._began_g),
                handed_g=self._promised_before,
                granted_g=granted.g,
                anew=anew,
            )

    def save(self, *, always: bool = False, timeout_s: float | None = None) -> None:
        """Writes the acknowledged position to Kafka, if it has moved."""
        interval = self._settings.save_interval_s or (_REFRESH_S if self.stored is None else _FOLLOW_S)
        self._save_at = self._clock() + interval
        if not self.generation:
            return
        position = self._done(waits=always)
        if position is None:
            if always:
                raise StoreUnavailable(
                    "the store of positions is locked", remedy="Commit what is acknowledged before the topics change"
                )
        elif always or position != self._positions.saved:
            # A position is a promise not to deliver again: without its receipt the delivery would be lost to audits.
            self._receipt_log.send(timeout_s)
            self._write_position(position, max(self._positions.promised, self._next_g()), timeout_s)

    def _save_last(self) -> None:
        """Nothing more is handed out: only what was can come again."""
        position = self._done()
        if position is not None and (position != self._positions.saved or self._handed_g < self._positions.promised):
            self._write_position(position, self._handed_g, None)

    def _done(self, *, waits: bool = False) -> Progress | None:
        """The position as acknowledged; None while a store is not as far: Kafka's never runs ahead of it. `waits` for
        one that others have locked.
        """
        if self.stored is None:
            return self._machine.position()
        if self._begins_anew:
            return None
        self._machine.acknowledge(self.stored.committed())
        position = self._machine.position()
        place = position_of(self.ready.origin, position.g)
        return position if self.stored.covers(place, waits=waits) else None

    def _write_position(self, position: Progress, through: int, timeout_s: float | None, *, anew: bool = False) -> None:
        through = max(through, self._machine.delivered_through)
        self._positions.save(position, generation=self.generation, through=through, timeout_s=timeout_s, anew=anew)

    def lag(self) -> tuple[int, float]:
        """How many events are known of that were not handed out, and how old the oldest is, in seconds."""
        held = self._machine.buffered()
        events = len(self.ready) + max(held.events, held.stamps)
        return events, lag_s(self.ready, self._machine, self.seeing.hold, self._wall_clock())

    @property
    def pattern(self) -> str | None:
        """See Choosing."""
        return self._choosing.pattern

    def may_read(self, topic: str) -> bool:
        """Whether a topic is of the set in force, or a pattern chooses it when it comes."""
        return topic in self._machine.topics or self._choosing.may_read(topic)

    @property
    def machine(self) -> Delivery:
        """The delivery machine, for questions only."""
        return self._machine

    def close(self, *, save: bool) -> None:
        """Sends receipts, saves what was acknowledged, and lets go of the transport."""
        try:
            self._receipt_log.send()
            if save and self.generation:
                self._save_last()
        except BrokerUnavailable as error:
            # The position saved last still holds: a later process begins there.
            self.seeing.unsaved(error)
        finally:
            self._transport.close()
