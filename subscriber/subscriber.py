"""`Subscriber`: a subscription as a context manager and an iterator."""

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar

from totalorder.errors import Error, Fenced, SubscriptionEnded
from totalorder.sequencer.names import DomainTopics
from totalorder.subscriber.batch import EventBatch
from totalorder.subscriber.checks import check_choice, check_count, check_seconds, check_timeout, checked_topics
from totalorder.subscriber.clients import CLIENTS, Client, transport_of
from totalorder.subscriber.event import Event, Handed, Lost, position_of
from totalorder.subscriber.position import Position
from totalorder.subscriber.session import Session, SessionSettings
from totalorder.subscriber.start import Start, check_start
from totalorder.subscriber.transport import Transport
from totalorder.subscriber.unseen import warn_of_unseen

T = TypeVar("T")
_ITERATE_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Counts of one Subscriber since it started, and what it holds at the moment."""

    delivered: int
    unacknowledged: int
    ready: int
    buffered_events: int
    waiting_stamps: int
    repeated_batches: int
    generation: int
    g: int


class _Misused(Error):
    """A call that came while another one was under way."""


class _Interrupted(Error):
    """What a call had under way is torn."""


class _Guard:
    """Lets in one call at a time, and remembers what went wrong within: from then on every call raises it again."""

    def __init__(self) -> None:
        self.failure: Error | None = None
        self._one_call = threading.Lock()
        self._thread = 0

    def __enter__(self) -> None:
        if not self._one_call.acquire(blocking=False):
            here = self._thread == threading.get_ident()
            raise _Misused(
                "a Subscriber was called in the middle of another call, by a signal handler"
                if here
                else "two threads call one Subscriber at once",
                remedy="A Subscriber is for one thread, and only stop() may be called from elsewhere",
            )
        self._thread = threading.get_ident()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._one_call.release()
        if isinstance(error, Error) and not isinstance(error, _Misused):
            self.failure = error
        elif error is not None and not isinstance(error, _Misused):
            # Records that had come, or half of an acknowledgement, may be nowhere now.
            self.failure = _Interrupted(
                f"a call was interrupted by {type(error).__name__}, and what was under way in it is not known",
                remedy="Make a new Subscriber: it goes on after what was saved. A signal handler may call stop(), and "
                "must not raise",
            )


class Subscriber(Generic[Handed]):
    """Delivers the events of `topics` in the one order of `domain`, at least once, and once if acknowledged.

    `id` names the subscription; one process holds it at a time, and the newest wins: an older one stops with Fenced. A
    process that starts goes on after the last acknowledged event, and what a former one may have delivered without
    acknowledging it comes again, tagged "redelivered". `start` says otherwise, and gives up what was owed before: "now"
    begins at the present; a Position, a datetime or "earliest" (see Reader) there, also long before this id was
    subscribed. Events from before the subscription have no receipts. They come once all stamps since that place were
    read, during which the lease is not renewed. The next process goes on by "saved", or from a position stored since.

    What Kafka has no longer (retention, deletion) stops it with EventsLost; with `on_lost="skip"` a
    `Lost` comes in its place, which names topic, partition and offsets, and is acknowledged like an event (to a checker
    of types that is a `Subscriber[Event | Lost]`).

    The subscription ends when no process renews it for `lease_s` seconds (0: never). Acknowledged positions are saved
    within each `ack`, a few milliseconds: acknowledge every hundredth event where that is too slow. With
    `save_interval_s` they are saved that often instead, at each change and on `close`, and what a killed process
    acknowledged since the last time comes again. At most about `max_buffered` events wait per Kafka partition.
    With `receipts` what was delivered is told to the domain, so that the order can be audited: before each position is
    saved, and within a second or two while events are polled for. `control_key` signs requests, in a domain that wants
    that: the id's own key (`totalorder control-key`), or the domain's. `client="confluent"` reads and writes by
    librdkafka (the extra `fast`), which takes less time and processor. `kafka` takes client settings by their Java
    names. Topics of which the domain has seen nothing are warned of in Python's log, "totalorder.subscriber": a name
    may be mistyped. For use by one thread, but for `stop`. `transport`, `clock`, `wall_clock` and `nonce` (which must
    differ for each process) are for tests.

    Raises on making: BrokerUnavailable, SequencerUnavailable (no grant within `start_timeout_s`), Rejected,
    SettingsError, Fenced (yet another process of the id began meanwhile). Later: Fenced, SubscriptionEnded, EventsLost,
    Contradiction, WireError, BrokerUnavailable (no broker for `outage_timeout_s`). After an error the subscriber is of
    no more use; a new one goes on after what was acknowledged.
    """

    def __init__(
        self,
        topics: Iterable[str],
        *,
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
        receipts: bool = True,
        control_key: str | None = None,
        client: Client = "kafka-python",
        kafka: Mapping[str, str] | None = None,
        transport: Transport | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        nonce: str | None = None,
    ) -> None:
        check_start(start, "saved", "now", "earliest")
        check_choice("on_lost", on_lost, "fail", "skip")
        check_choice("client", client, *CLIENTS)
        check_seconds("outage_timeout_s", outage_timeout_s)
        names = checked_topics(topics)
        settings = SessionSettings(
            id=id,
            domain=domain,
            lease_s=lease_s,
            start_timeout_s=start_timeout_s,
            save_interval_s=save_interval_s,
            max_buffered=max_buffered,
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
        self._clock = clock
        self._session = Session(
            transport, settings, nonce=nonce or secrets.token_hex(12), clock=clock, wall_clock=wall_clock
        )
        self._guard = _Guard()
        self._stopped = self._closed = False
        self._domain, self._transport = domain, transport
        self._looked_at: set[str] = set()
        try:
            self._session.start(names)
            self._warn_of_unseen()
        except BaseException:
            self._session.close(save=False)
            raise

    # --- events -------------------------------------------------------------------------------------------------------

    def poll(self, timeout_s: float = 0.0) -> Handed | None:
        """The next event, or None when there is none within `timeout_s`, or the subscription is over or paused.

        A Lost comes with `on_lost="skip"` alone.
        """
        return self._await(self._session.hand_out, None, timeout_s)

    def poll_batch(self, max_events: int = 1_000, timeout_s: float = 0.0) -> EventBatch[Handed]:
        """The next events, at most `max_events`, as soon as there is one; an empty batch when `poll` would give None.

        Much less work for each event than `poll`, where an application takes many at once, or columns of them.
        """
        check_count("max_events", max_events)
        nothing: EventBatch[Handed] = EventBatch((), ())
        return self._await(lambda: self._session.hand_out_batch(max_events), nothing, timeout_s)

    def _await(self, hand_out: Callable[[], Any], nothing: T, timeout_s: float) -> T:
        """What `hand_out` gives, as soon as there is something; else `nothing`, which counts as false."""
        check_timeout(timeout_s)
        deadline = self._clock() + timeout_s
        self._check()
        with self._guard:
            while True:
                found = self._next(hand_out, nothing)
                if found or self.finished:
                    return found
                remaining = deadline - self._clock()
                self._session.pump(max(0.0, min(remaining, _ITERATE_S)))
                if (found := self._next(hand_out, nothing)) or self._clock() >= deadline or self._stopped:
                    return found

    def _next(self, hand_out: Callable[[], Any], nothing: T) -> T:
        self._session.tick()
        if not self._session.ready or self._session.held:
            self._check_end()
            return nothing
        found: T = hand_out()
        return found

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

    def ack(self, event: Event | Lost | EventBatch[Handed]) -> None:
        """Everything through `event`, or a whole batch, is done with, in the order of delivery; an older one again
        changes nothing.
        """
        self._check()
        if not isinstance(event, Event | Lost | EventBatch):
            raise Error(
                f"ack() takes an event or a batch that poll(), poll_batch() or the iterator gave, and not {event!r}",
                remedy="poll() gives None when nothing came in time: then there is nothing to acknowledge",
            )
        if isinstance(event, EventBatch) and not event:
            return
        if event.sequence > self._session.handed:
            raise ValueError(f"{event} was not delivered by this subscriber")
        with self._guard:
            self._session.acknowledge(event.sequence)

    # --- the subscription ---------------------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str]) -> None:
        """Changes the set of topics at one position of the order; returns once that is granted.

        Events of the old set before that position are delivered first, then those of the new set behind it.
        """
        names = checked_topics(topics)
        self._check()
        with self._guard:
            self._session.change(names)
            self._warn_of_unseen()

    def _warn_of_unseen(self) -> None:
        """Of each topic once, when it was granted."""
        grant = self._session.grant
        if grant is not None:
            news = set(grant.topics) - self._looked_at
            self._looked_at |= news
            warn_of_unseen(grant, news, domain=self._domain, transport=self._transport)

    def unsubscribe(self, *, drain: bool = True) -> None:
        """Ends the subscription for good. With `drain` the events before its end can still be taken, else none."""
        self._check()
        with self._guard:
            self._session.end(drain=drain)

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
        """Everything acknowledged lies at or before this place in the order; Error with min_subscriptions = 2."""
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
        return Metrics(
            delivered=self._session.handed,
            unacknowledged=held.unacknowledged - len(self._session.ready),
            ready=len(self._session.ready),
            buffered_events=held.events,
            waiting_stamps=held.stamps,
            repeated_batches=held.repeated_batches,
            generation=self._session.generation,
            g=machine.g,
        )

    # --- the end ------------------------------------------------------------------------------------------------------

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped

    def stop(self) -> None:
        """Ends the iterator after the event at hand; may be called from a signal handler or another thread."""
        self._stopped = True

    def close(self) -> None:
        """Sends the receipts, saves the acknowledged position and lets go of Kafka; again: nothing.

        The subscription itself goes on.
        """
        if self._closed:
            return
        with self._guard:
            self._closed = True
            if isinstance(self._guard.failure, _Interrupted):
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
