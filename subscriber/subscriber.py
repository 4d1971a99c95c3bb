"""`Subscriber`: a subscription as a context manager and an iterator."""

import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, cast

from totalorder.errors import (
    BrokerUnavailable,
    Defect,
    Error,
    Fenced,
    HandlerFailed,
    SettingsError,
    StateError,
    SubscriptionEnded,
)
from totalorder.sequencer.wire.names import DomainTopics
from totalorder.subscriber.batch import EventBatch
from totalorder.subscriber.checks import (
    check_callback,
    check_choice,
    check_count,
    check_deserializer,
    check_positions,
    check_seconds,
    check_timeout,
    checked_choice,
    checked_topics,
)
from totalorder.subscriber.clients import CLIENTS, Client, transport_of
from totalorder.subscriber.event import Event, Handed, Lost, place, position_of, with_payload
from totalorder.subscriber.guard import Guard, Interrupted
from totalorder.subscriber.handling import Plan, Retry
from totalorder.subscriber.metrics import Metrics
from totalorder.subscriber.parked import Parking
from totalorder.subscriber.position import Position
from totalorder.subscriber.position_store import PositionStore
from totalorder.subscriber.reading.choice import Choice
from totalorder.subscriber.running import run
from totalorder.subscriber.session import Session
from totalorder.subscriber.session_settings import SessionSettings
from totalorder.subscriber.shown import shown
from totalorder.subscriber.start import Start, check_start
from totalorder.subscriber.stored import Stored
from totalorder.subscriber.transport import Transport
from totalorder.subscriber.unseen import warn_of_unseen
from totalorder.subscriber.watch import Changed, Granted, News, Stalled, named

T = TypeVar("T")
_ITERATE_S = 0.5
_ACKNOWLEDGED = (Event, Lost, EventBatch)
"""Not as `Event | Lost | EventBatch`, which is made and looked through anew for each event."""


class Subscriber(Generic[Handed]):
    """Delivers the events of `topics` in the one order of `domain`, at least once, and once if acknowledged.

        with Subscriber(["orders", "payments"], id="billing", domain="shop") as subscriber:
            for event in subscriber:
                handle(event)
                subscriber.ack(event)

    Instead of `topics`, which may be yet to come, a `pattern` may be given: a regular expression that fits whole names
    of Kafka topics. What the domain reads of them now is subscribed; what it comes to read later joins at one position
    of the order, as by `subscribe`, while events go on. The domain's next batch tells of a new topic, and it joins a
    batch or two later; what it had before is not delivered, and the log says how much that was. One topic at least must
    be there to begin with. One that leaves the
    domain leaves the set with its next change. Not with topics by keys or headers (`topic_by`), nor with `positions`.

    `id` names the subscription; one process holds it at a time, and the newest wins: an older one stops with Fenced. A
    process that starts goes on after the last acknowledged event, and what a former one may have delivered without
    acknowledging it comes again, tagged "redelivered". `start` says otherwise, and gives up what was owed before: "now"
    begins at the present; a Position, a datetime or "earliest" (see Reader) there, also long before this id was
    subscribed. Events from before the subscription have no receipts. They come once all stamps since that place were
    read, during which the lease is not renewed. The next process goes on by "saved", or from a position stored since;
    but one whose former was killed while that began starts as that did.

    What Kafka has no longer (retention, deletion) stops it with EventsLost at its turn, behind all that stands before
    it in the order; with `on_lost="skip"` a `Lost` comes in its place, which names topic, partition and offsets, and is
    acknowledged like an event (to a checker of types that is a `Subscriber[Event | Lost]`).

    The subscription ends when no process renews it for `lease_s` seconds (0: never). Acknowledged positions are saved
    within each `ack`, a few milliseconds: acknowledge every hundredth event where that is too slow. With
    `save_interval_s` they are saved that often instead, at each change and on `close`, and what a killed process
    acknowledged since the last time comes again. At most about `max_buffered` events wait per Kafka partition.
    With `receipts` what was delivered is told to the domain, so that the order can be audited: before each position is
    saved, and within a second or two while events are polled for. `control_key` signs requests, in a domain that wants
    that: the id's own key (`totalorder control-key`), or the domain's. `client="confluent"` reads and writes by
    librdkafka (the extra `fast`), which takes less time and processor. `kafka` takes client settings by their Java
    names. Topics of which the domain has seen nothing are warned of in Python's log, "totalorder.subscriber": a name
    may be mistyped.

    With `positions`, a store in the application's own database (SqlitePositions, SqlAlchemyPositions), `ack` writes the
    position within the application's transaction: position and effects are committed together, so that each event has
    its effect once, whatever is killed when. A process goes on from there; Kafka's saved position follows each two
    seconds, or `save_interval_s`. A store that is older than what Kafka has saved, as a database that was restored, is
    refused with StateError, and so is one of another domain, or of one that was begun anew. An id whose position is in
    a store is not opened without one: SettingsError, unless `start` says where to begin.

    That log also says what was granted, what is waited for after some seconds, outages, losses that are skipped, and
    why a Subscriber stopped. `on_granted`, `on_change` (of the set of topics, before the first event behind it) and
    `on_stalled` (nothing came for `stalled_after_s` seconds of what must come, as when no sequencer runs; again, more
    and more seldom; and once when it is over) are called between events by the thread that polls, within `poll`,
    `poll_batch` or the iterator. They may call the Subscriber. What one raises comes out of that call; nothing is lost
    by it, and the next call goes on.

    For use by one thread, but for `stop`. `transport`, `clock`, `wall_clock` and `nonce` (which must
    differ for each process) are for tests.

    With a `deserializer`, any function of an Event such as those of totalorder.payloads, events are TypedEvents: their
    `payload` is made when it is first asked for. So an event that cannot be read is delivered like any other, and fails
    where it is handled. To a checker of types that is a `Subscriber[TypedEvent[...]]`, of what the deserializer gives.

    Raises on making: BrokerUnavailable, SequencerUnavailable (no grant within `start_timeout_s`), Rejected,
    SettingsError, Fenced (yet another process of the id began meanwhile). What was asked is then taken back: an id that
    is new begins at what is the present when it is asked for again, others go on where they were. Later: Fenced,
    SubscriptionEnded, EventsLost, Contradiction, WireError, BrokerUnavailable (no broker for `outage_timeout_s`). At
    any time: Defect. After an error the subscriber is of no more use; a new one goes on after what was acknowledged.
    """

    _begun = False

    def __init__(
        self,
        topics: Iterable[str] | None = None,
        *,
        pattern: str | None = None,
        id: str,  # noqa: A002
        domain: str,
        bootstrap_servers: str = "localhost:9092",
        start: Start | Literal["saved"] = "saved",
        on_lost: Literal["fail", "skip"] = "fail",
        lease_s: int = 86_400,
        start_timeout_s: float = 60.0,
        outage_timeout_s: float = 60.0,
        save_interval_s: float = 0.0,
        max_buffered: int = 1_000,
        positions: PositionStore | None = None,
        receipts: bool = True,
        control_key: str | None = None,
        deserializer: Callable[[Event], Any] | None = None,
        client: Client = "kafka-python",
        kafka: Mapping[str, str] | None = None,
        on_granted: Callable[[Granted], object] | None = None,
        on_change: Callable[[Changed], object] | None = None,
        on_stalled: Callable[[Stalled], object] | None = None,
        stalled_after_s: float = 10.0,
        transport: Transport | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        nonce: str | None = None,
    ) -> None:
        check_start(start, "saved", "now", "earliest")
        check_choice("on_lost", on_lost, "fail", "skip")
        check_choice("client", client, *CLIENTS)
        check_seconds("outage_timeout_s", outage_timeout_s)
        check_deserializer(deserializer)
        check_positions(positions)
        for name, callback in (("on_granted", on_granted), ("on_change", on_change), ("on_stalled", on_stalled)):
            check_callback(name, callback)
        choice = _choice(topics, pattern, stores=positions is not None)
        settings = SessionSettings(
            id=id,
            domain=domain,
            lease_s=lease_s,
            start_timeout_s=start_timeout_s,
            save_interval_s=save_interval_s,
            max_buffered=max_buffered,
            stalled_after_s=stalled_after_s,
            start=start,
            skips_lost=on_lost == "skip",
            receipts=receipts,
            control_key=control_key,
        )
        if transport is None:
            from totalorder.kafka_clients import CONNECT_TIMEOUT_S

            transport = transport_of(client)(
                bootstrap_servers,
                kafka,
                prompt=DomainTopics(domain=domain).own(),
                connect_timeout_s=min(CONNECT_TIMEOUT_S, start_timeout_s),
                outage_timeout_s=outage_timeout_s,
                max_poll_records=max_buffered,
            )
        self._clock, self._deserializer = clock, deserializer
        nonce = nonce or secrets.token_hex(12)
        stored = None if positions is None else Stored(positions, id=id, domain=domain, nonce=nonce)
        self._session = Session(transport, settings, nonce=nonce, clock=clock, wall_clock=wall_clock, stored=stored)
        self._guard = Guard("Subscriber", goes_on="it goes on after what was saved")
        self._callbacks: dict[type[News], Callable[[Any], object] | None] = {
            Granted: on_granted,
            Changed: on_change,
            Stalled: on_stalled,
        }
        self._stopped = self._drains = self._closed = False
        self._id, self._domain, self._transport = id, domain, transport
        self._parking = Parking(transport, domain=domain, id=id, wall_clock=wall_clock)
        self._looked_at: set[str] = set()
        try:
            with self._guard.told():
                self._session.start(choice)
                self._warn_of_unseen()
        except BaseException:
            self._session.close(save=False)
            raise
        self._begun = True

    def __repr__(self) -> str:
        return self._shown("Subscriber", stopped=self._begun and self._stopped)

    def _shown(self, kind: str, *, stopped: bool) -> str:
        """On one line, at any time; no settings, which have secrets among them."""
        if not self._begun:
            return f"<{kind}: not begun>"
        who, session = f"{kind} {self._id!r} of domain {self._domain!r}", self._session
        states = {"paused": session.held, "finished": self.finished, "stopped": stopped}
        failure = self._guard.failure
        return shown(who, named(self.topics), session.machine.g, failure, states, closed=self._closed)

    # --- events -------------------------------------------------------------------------------------------------------

    def poll(self, timeout_s: float = 0.0) -> Handed | None:
        """The next event, or None when there is none within `timeout_s`, or the subscription is over or paused.

        A Lost comes with `on_lost="skip"` alone.
        """
        check_timeout(timeout_s)
        self._check()
        found: Event | Lost | None = None
        if not self._drains:
            with self._guard:
                found = self._session.at_once()
        if found is None:
            found = self._await(self._session.hand_out, None, timeout_s)
        if self._deserializer is not None:
            found = with_payload(found, self._deserializer)
        return cast("Handed | None", found)

    def poll_batch(self, max_events: int = 1_000, timeout_s: float = 0.0) -> EventBatch[Handed]:
        """The next events, at most `max_events`, as soon as there is one; an empty batch when `poll` would give None.

        Much less work for each event than `poll`, where an application takes many at once, or columns of them.
        """
        check_count("max_events", max_events)
        check_timeout(timeout_s)
        nothing: EventBatch[Handed] = EventBatch((), ())
        found = self._await(lambda: self._session.hand_out_batch(max_events), nothing, timeout_s)
        return found if self._deserializer is None else found.with_deserializer(self._deserializer)

    def _await(self, hand_out: Callable[[], Any], nothing: T, timeout_s: float) -> T:
        """What `hand_out` gives, as soon as there is something; else `nothing`, which counts as false."""
        deadline = self._clock() + timeout_s
        pumped = False
        seeing = self._session.seeing
        while True:
            if seeing.news:
                self._tell()
            self._check()
            with self._guard:
                while not seeing.news:
                    if found := self._next(hand_out, nothing):
                        return found
                    if seeing.news:
                        break
                    over = self.finished or (self._drains and self._stopped)
                    if over or (pumped and (self._clock() >= deadline or self._stopped)):
                        return nothing
                    self._session.pump(max(0.0, min(deadline - self._clock(), _ITERATE_S)))
                    pumped = True

    def _tell(self) -> None:
        """Tells callbacks, between calls: whatever they do or raise, nothing is torn."""
        while self._session.seeing.news:
            news = self._session.seeing.news.popleft()
            if (callback := self._callbacks[type(news)]) is not None:
                try:
                    callback(news)
                except StopIteration as error:  # it would end the iterator, as though nothing more came
                    raise RuntimeError("a callback raised StopIteration") from error

    def _next(self, hand_out: Callable[[], Any], nothing: T) -> T:
        session = self._session
        session.tick()
        if self._drains and self._is_drained():
            self._stopped = True
            return nothing
        if not session.ready or session.held:
            self._check_end()
            return nothing
        found: T = hand_out()
        return found

    def _is_drained(self) -> bool:
        try:
            return self._session.is_drained()
        except BrokerUnavailable:  # it is asked again; how long an outage is borne, poll decides
            return False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Handed:
        """The next event, however long it takes; ends after `stop`, `close` or `unsubscribe`."""
        while not self._stopped and not self._closed:
            event = self.poll(_ITERATE_S)
            if event is not None:
                return event
            if self.finished:
                break
        raise StopIteration

    def ack(self, event: Event | Lost | EventBatch[Handed], *, within: Any = None) -> None:
        """Everything through `event`, or a whole batch, is done with, in the order of delivery; an older one again
        changes nothing.

        With `positions` the position is written `within` the open transaction of a connection, together with the
        effects: then each event has its effect once. Raises, and then the transaction must be rolled back: Fenced,
        StateError (the row is gone), after which the Subscriber is of no more use; StoreUnavailable; AlreadyDone, an
        older event again; NotCommitted, where what was acknowledged before was rolled back.

        Error for what another Subscriber gave, as far as its number and domain tell, and for anything else: nothing is
        acknowledged, and this one is of use still.
        """
        self._check()
        if not isinstance(event, _ACKNOWLEDGED):
            raise Error(
                f"ack() takes an event or a batch that poll(), poll_batch() or the iterator gave, and not {event!r}",
                remedy="poll() gives None when nothing came in time: then there is nothing to acknowledge",
            )
        if isinstance(event, EventBatch) and not event:
            return
        origin = self._session.ready.origin
        is_of_another = event.origin is not origin and event.origin != origin
        if event.sequence > self._session.handed or is_of_another:
            what = event if isinstance(event, EventBatch) else place(event)
            raise Error(
                f"ack() was given {what}, which subscriber {self._id!r} has not handed out",
                remedy="Acknowledge with the Subscriber that gave it, in the process that it gave it to",
            )
        if (stored := self._session.stored) is None:
            if within is not None:
                raise SettingsError(
                    "within is for a Subscriber with positions=", remedy="Give it a store, or ack(event)"
                )
            with self._guard:
                self._session.acknowledge(event.sequence)
            return
        if within is None:
            raise SettingsError(
                "this Subscriber keeps its position in a store, and ack() was given no connection",
                remedy="ack(event, within=connection), in the transaction that has the event's effects",
            )
        try:
            with self._guard.told():
                stored.write(within, event.sequence, event.position)
        except (Fenced, StateError, Defect) as error:
            self._guard.failure = error
            raise

    def run(
        self,
        handler: Callable[[Handed], object],
        *,
        retry: Retry | None = None,
        park: str | None = None,
        signals: bool = True,
    ) -> None:
        """Gives each event to `handler`, and acknowledges it when that returns; until `stop`, or the subscription ends.

        In the main thread SIGTERM and SIGINT end it after the event at hand, which the log names where there is one; a
        second signal does what it did before.
        `signals=False` leaves them alone. A handler that fails, with any Exception, is given the same event again as
        `retry` says; nothing else is delivered meanwhile, and the lease is renewed. Attempts are counted within the
        process. When they are used up, or without `retry`, that raises HandlerFailed; or, where `park` names a Kafka
        topic, the event is written there, with its place, the error and all that it has, and then acknowledged:
        `totalorder parked` makes such a topic, shows what lies there, and brings it back. It must be compacted, and
        nothing else: SettingsError for another, where what is parked would expire, or which has events of its own.
        One that does not return holds everything up, the lease too: when that has ended, or at once where another
        process takes the id over, the next one begins with that event.

        Whatever ends `run` with an event that is not acknowledged (an error, or `stop` between two attempts) ends the
        use of this Subscriber, but for `close`: the next one of the id begins with that event. With `positions` each
        event wants a transaction: SettingsError.
        """
        run(self, handler, Plan(retry=retry, park=park), signals=signals)

    def _rest(self, timeout_s: float) -> None:
        """Hands nothing out for so long, or until `stop`; what `poll` does besides goes on."""
        self._check()
        deadline = self._clock() + timeout_s
        with self._guard:
            while not self._stopped and (remaining := deadline - self._clock()) > 0:
                self._session.follow()
                self._session.pump(min(remaining, _ITERATE_S))

    def _begin_run(self, plan: Plan) -> None:
        self._check()
        if self._session.stored is not None:
            raise SettingsError(
                "run() acknowledges outside of transactions, in which this Subscriber keeps its position (positions=)",
                remedy="Write the loop: for event in subscriber, and ack(event, within=connection) in each transaction",
            )
        if plan.park is not None:
            with self._guard, self._guard.sparing():
                self._parking.open(plan.park, self._session.may_read)

    def _park(self, event: Event | Lost, error: Exception, attempts: int) -> str:
        """Returns where, when it is durable there."""
        self._check()
        with self._guard:
            return self._parking.park(event, error, attempts)

    def _leave(self, event: Event | Lost) -> None:
        """Nothing more is delivered: to acknowledge what comes behind this event would acknowledge it too."""
        if self._guard.failure is None:
            self._guard.failure = HandlerFailed(
                f"run() has ended with {place(event)} at hand, which is not acknowledged",
                remedy="Make a new Subscriber of this id: it begins with that event",
            )

    # --- the subscription ---------------------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str] | None = None, *, pattern: str | None = None) -> None:
        """Changes the set of topics at one position of the order; returns once that is granted.

        Events of the old set before that position are delivered first, then those of the new set behind it. Named
        topics end the following of a pattern, and a pattern takes the place of names. After a SettingsError, as for a
        pattern that nothing fits, the subscription goes on as it was.
        """
        choice = _choice(topics, pattern, stores=self._session.stored is not None)
        self._check()
        with self._guard:
            with self._guard.sparing():
                chosen = self._session.choose(choice)
            self._session.change(chosen)
            self._warn_of_unseen()

    def _warn_of_unseen(self) -> None:
        """Of each topic once, when it was granted; a pattern has those alone that the domain reads."""
        grant = self._session.grant
        if grant is not None and self._session.pattern is None:
            news = set(grant.topics) - self._looked_at
            self._looked_at |= news
            warn_of_unseen(grant, news, domain=self._domain, transport=self._transport)

    def unsubscribe(self, topics: Iterable[str] | None = None, *, drain: bool = True) -> None:
        """Ends the subscription for good, or of these topics alone, at one position of the order.

        With `drain` the events before the end can still be taken, else none; of some topics they always can: the
        subscription goes on, and what it holds until then is owed, as audits know too. Topics that a pattern chose
        would come again: SettingsError.
        """
        if topics is None:
            self._check()
            with self._guard:
                self._session.end(drain=drain)
        elif drain:
            self.subscribe(self._without(checked_topics(topics)))
        else:
            raise SettingsError(
                "drain=False is for the end of a whole subscription",
                remedy="Pass over events of topics that are left, until the change",
            )

    def _without(self, topics: Collection[str]) -> set[str]:
        """The set that was granted last, which delivery may not have reached yet, without these topics."""
        self._check()
        if (pattern := self._session.pattern) is not None:
            raise SettingsError(
                f"the topics of this Subscriber are those that fit {pattern!r}",
                remedy="subscribe(pattern=...) with another one, or subscribe() to topics by their names",
            )
        assert self._session.grant is not None
        held = set(self._session.grant.topics)
        if absent := sorted(set(topics) - held):
            raise SettingsError(f"{', '.join(absent)}: not of this subscription", remedy="See its topics")
        if rest := held - set(topics):
            return rest
        raise SettingsError("no topic would be left", remedy="unsubscribe() without topics ends the subscription")

    def pause(self) -> None:
        """Delivers nothing until `resume`; the lease is still renewed by `poll`."""
        self._session.held = True

    def resume(self) -> None:
        """Ends `pause`."""
        self._session.held = False

    def save(self) -> None:
        """Writes the acknowledged position to Kafka now."""
        self._check()
        with self._guard:
            self._session.save()

    @property
    def topics(self) -> tuple[str, ...]:
        """The set in force at the place that delivery has reached."""
        return self._session.machine.topics

    @property
    def position(self) -> Position:
        """Everything acknowledged lies at or before this place in the order; Error with min_subscriptions = 2.

        With `positions` it is as far as the store was seen to have committed: it may lag behind what you committed.
        """
        return position_of(self._session.ready.origin, self._session.machine.acknowledged_g)

    @property
    def granted_g(self) -> int:
        """Where in the order the last grant of this process lies: its set of topics holds from there on."""
        grant = self._session.grant
        return grant.g if grant is not None else 0

    @property
    def finished(self) -> bool:
        """Whether the subscription is over and everything was handed out."""
        return self._session.finished is not None and not self._session.ready

    def metrics(self) -> Metrics:
        """Figures for monitoring."""
        machine = self._session.machine
        held = machine.buffered()
        lag_events, lag_s = self._session.lag()
        return Metrics(
            delivered=self._session.handed - self._session.already_done,
            unacknowledged=held.unacknowledged - len(self._session.ready),
            ready=len(self._session.ready),
            buffered_events=held.events,
            waiting_stamps=held.stamps,
            repeated_batches=held.repeated_batches,
            repeated_records=machine.repeated_records,
            already_done=self._session.already_done,
            generation=self._session.generation,
            g=machine.g,
            hold=self._session.seeing.hold,
            stalled=self._session.seeing.stalled,
            lag_events=lag_events,
            lag_s=lag_s,
            silent_s=self._transport.silent_s,
        )

    # --- the end ------------------------------------------------------------------------------------------------------

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called, and what it drains is handed out."""
        return self._stopped

    def stop(self, *, drain: bool = False) -> None:
        """Ends the iterator after the event at hand; may be called from a signal handler or another thread.

        With `drain` it ends once all that was stamped by then is handed out, and a little of what came since. Nothing
        that is to come is waited for, so that no job needs to run: it ends as soon as Kafka gives what it has, or with
        BrokerUnavailable, but not while it is paused, nor while `run` tries one event for ever. A stop without `drain`
        ends that too.
        """
        if drain:
            self._drains = True
        else:
            self._stopped = True

    def close(self) -> None:
        """Sends the receipts, saves the acknowledged position and lets go of Kafka; again: nothing.

        The subscription itself goes on: what was not handed out stays owed, and what was and is not acknowledged comes
        again. So there is nothing to drain here; who wants to have all that is there first calls stop(drain=True), and
        takes events until the iterator ends. In a fork of the process that made it there is nothing to close.
        """
        if self._closed or self._guard.is_forked:
            return
        with self._guard:
            self._closed = True
            if isinstance(self._guard.failure, Interrupted | Defect):
                self._transport.close()  # what was saved last holds
            else:
                self._session.close(save=not isinstance(self._guard.failure, Fenced))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Error:
            if error is None:
                raise

    def _check(self) -> None:
        if self._guard.failure is not None:
            raise self._guard.failure
        if self._closed:
            raise SubscriptionEnded("this Subscriber is closed", remedy="Make a new one; it goes on after the last ack")

    def _check_end(self) -> None:
        finished = self._session.finished
        if finished is None or (finished.reason == "unsubscribed" and self._session.ending):
            return
        raise self._session.ended()


def _choice(topics: Iterable[str] | None, pattern: str | None, *, stores: bool) -> Choice:
    if pattern is not None and stores:
        raise SettingsError(
            "topics of a pattern join whenever they come, and a change claims the position in the store, which would "
            "wait for the application's own open transaction",
            remedy="Name the topics, and subscribe() to others between two transactions",
        )
    return checked_choice("a Subscriber", topics, pattern)
