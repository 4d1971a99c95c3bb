"""`Subscriber`: a subscription as a context manager and an iterator."""

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from totalorder.errors import Error, Fenced, SubscriptionEnded
from totalorder.sequencer.names import DomainTopics
from totalorder.subscriber.checks import check_choice, check_seconds, checked_topics
from totalorder.subscriber.event import Event
from totalorder.subscriber.session import Session, SessionSettings
from totalorder.subscriber.transport import Transport
from totalorder.subscriber.unseen import warn_of_unseen

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


class Subscriber:
    """Delivers the events of `topics` in the one order of `domain`, at least once, and once if acknowledged.

    `id` names the subscription; one process holds it at a time, and the newest wins: an older one stops with Fenced. A
    process that starts goes on after the last acknowledged event, and what a former one may have delivered without
    acknowledging it comes again, tagged "redelivered". `start="new"` begins at the present instead, and gives up all
    that was owed. With `lost="skip"` an event that Kafka has no longer (retention, deletion) comes in its place with
    the tag "lost" and without a value, instead of EventsLost; acknowledge it like any other.

    The subscription ends when no process renews it for `lease_s` seconds (0: never). Acknowledged positions are saved
    within each `ack`, a few milliseconds: acknowledge every hundredth event where that is too slow. With
    `save_interval_s` they are saved that often instead, at each change and on `close`, and what a killed process
    acknowledged since the last time comes again. At most about `max_buffered` events wait per Kafka partition.
    With `receipts` what was delivered is told to the domain, so that the order can be audited: before each position is
    saved, and within a second or two while events are polled for. `kafka` takes client settings by their Java names.
    Topics of which the domain has seen nothing are warned of in Python's log, "totalorder.subscriber": a name may be
    mistyped. For use by one thread, but for `stop`. `transport`, `clock`, `wall_clock` and `nonce` (which must differ
    for each process) are for tests.

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
        start: Literal["saved", "new"] = "saved",
        lost: Literal["stop", "skip"] = "stop",
        lease_s: int = 86_400,
        start_timeout_s: float = 60.0,
        outage_timeout_s: float = 60.0,
        save_interval_s: float = 0.0,
        max_buffered: int = 1_000,
        receipts: bool = True,
        kafka: Mapping[str, str] | None = None,
        transport: Transport | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        nonce: str | None = None,
    ) -> None:
        check_choice("start", start, "saved", "new")
        check_choice("lost", lost, "stop", "skip")
        check_seconds("outage_timeout_s", outage_timeout_s)
        names = checked_topics(topics)
        settings = SessionSettings(
            id=id,
            domain=domain,
            lease_s=lease_s,
            start_timeout_s=start_timeout_s,
            save_interval_s=save_interval_s,
            max_buffered=max_buffered,
            begin_anew=start == "new",
            skips_lost=lost == "skip",
            receipts=receipts,
        )
        if transport is None:
            from totalorder.kafka_clients import CONNECT_TIMEOUT_S
            from totalorder.subscriber.kafka_python import KafkaPythonTransport

            transport = KafkaPythonTransport(
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

    def poll(self, timeout_s: float = 0.0) -> Event | None:
        """The next event, or None when there is none within `timeout_s`, or the subscription is over or paused."""
        deadline = self._clock() + timeout_s
        self._check()
        with self._guard:
            while True:
                event = self._next()
                if event is not None or self.finished:
                    return event
                remaining = deadline - self._clock()
                self._session.pump(max(0.0, min(remaining, _ITERATE_S)))
                if (event := self._next()) is not None or self._clock() >= deadline or self._stopped:
                    return event

    def _next(self) -> Event | None:
        self._session.tick()
        if not self._session.ready or self._session.held:
            self._check_end()
            return None
        return self._session.hand_out()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        """The next event, however long it takes; ends after `stop`, `close` or `unsubscribe`."""
        while not self._stopped and not self._closed:
            event = self.poll(_ITERATE_S)
            if event is not None:
                return event
            if self.finished:
                break
        raise StopIteration

    def ack(self, event: Event) -> None:
        """Everything through `event` is done with, in the order of delivery; an older event again changes nothing."""
        self._check()
        if not isinstance(event, Event):
            raise Error(
                f"ack() takes an event that poll() or the iterator gave, and not {event!r}",
                remedy="poll() gives None when nothing came in time: then there is nothing to acknowledge",
            )
        if event.sequence > self._session.handed:
            raise ValueError(f"event {event.topic} {event.n} was not delivered by this subscriber")
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
    def position(self) -> int:
        """Everything acknowledged lies at or before this index of the order (g)."""
        return self._session.machine.acknowledged_g

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
