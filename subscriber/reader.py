"""`Reader`: the domain's one order from any place on, for whoever does not subscribe."""

import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Generic, Literal, Self

from totalorder.errors import Error
from totalorder.sequencer.wire.names import DomainTopics
from totalorder.subscriber.batch import EventBatch
from totalorder.subscriber.checks import (
    check_choice,
    check_count,
    check_deserializer,
    check_seconds,
    check_timeout,
    checked_choice,
)
from totalorder.subscriber.clients import CLIENTS, Client, transport_of
from totalorder.subscriber.event import Event, Handed, with_payload
from totalorder.subscriber.guard import Guard
from totalorder.subscriber.position import Position
from totalorder.subscriber.reader_session import ReaderSession, ReaderSettings
from totalorder.subscriber.seeing import Seeing
from totalorder.subscriber.shown import shown
from totalorder.subscriber.start import Start, Until, check_start, check_until
from totalorder.subscriber.transport import Transport
from totalorder.subscriber.unseen import Unread
from totalorder.subscriber.watch import Wait, Watch, named

_ITERATE_S = 0.5


class Reader(Generic[Handed]):
    """Reads the events of some topics in the one order of `domain`, with the same g and n as every subscriber has them.

        with Reader(["orders", "payments"], domain="shop", start=stored_position, until="now") as reader:
            for event in reader:
                print(event.position, event.topic, event.value)

    It is no subscriber: it has no id, holds nothing up and writes nothing; any number of them may read, also while the
    job is down (then what is stamped by now). For a new service that wants history, a replay, a look at what happened.
    Give `topics` by their names, or a `pattern`, a regular expression that fits whole names.

    `start` and `until` are each one place in the order, the same in all topics:

    - a Position: reading begins behind it, and ends with it. Begun at `event.position`, it is exactly what follows.
    - a datetime with a time zone: reading begins with the first batch that was stamped then or later, and ends before
      it. What was published after that time comes; what was stamped late may be older. Where the job's clock was set
      back meanwhile, it is one of the places at which that passed the time: give an earlier one, or a Position.
    - "earliest": behind the last event of the topics that Kafka has no longer. To find it all stamps are read once.
    - "now": behind all that is stamped when reading begins. `until=None`: reading never ends.

    What Kafka has no longer stops it with EventsLost at its turn, behind all that stands before it; with
    `on_lost="skip"` a `Lost` comes in its place (to a checker of types that is a `Reader[Event | Lost]`). Stamps that
    are gone stop it always: without them there is no order.
    What is waited for, Python's log says, "totalorder.subscriber": events that are published and that no sequencer
    stamps, for `stalled_after_s` seconds, are a warning. A quiet topic is none: nothing of it is owed.
    `entries` of its events are empty, `tag` is None. At most about `max_buffered` events wait per Kafka partition.
    `deserializer`, `client`, `kafka` and `outage_timeout_s` are as for a Subscriber. For use by one thread, but for
    `stop`. `transport`, `clock` and `wall_clock` are for tests.

    Raises on making: BrokerUnavailable (also where nothing comes for `outage_timeout_s` of what it must look into,
    though brokers answer), SettingsError (a position of another domain or incarnation among it), Error (no such
    domain), EventsLost (stamps do not reach back so far). Later: EventsLost, Contradiction, WireError,
    BrokerUnavailable. At any time: Defect. After an error it is of no more use; a new one goes on from what was stored.
    """

    _begun = False

    def __init__(
        self,
        topics: Iterable[str] | None = None,
        *,
        pattern: str | None = None,
        domain: str,
        bootstrap_servers: str = "localhost:9092",
        start: Start = "earliest",
        until: Until = None,
        on_lost: Literal["fail", "skip"] = "fail",
        outage_timeout_s: float = 60.0,
        max_buffered: int = 1_000,
        stalled_after_s: float = 10.0,
        deserializer: Callable[[Event], Any] | None = None,
        client: Client = "kafka-python",
        kafka: Mapping[str, str] | None = None,
        transport: Transport | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        check_choice("on_lost", on_lost, "fail", "skip")
        check_choice("client", client, *CLIENTS)
        check_seconds("outage_timeout_s", outage_timeout_s)
        check_deserializer(deserializer)
        check_count("max_buffered", max_buffered)
        check_seconds("stalled_after_s", stalled_after_s)
        check_start(start, "earliest", "now")
        check_until(until)
        choice = checked_choice("a Reader", topics, pattern)
        settings = ReaderSettings(
            domain=domain,
            choice=choice,
            start=start,
            until=until,
            skips_lost=on_lost == "skip",
            max_buffered=max_buffered,
            outage_timeout_s=outage_timeout_s,
        )
        own = DomainTopics(domain=domain).own()
        if transport is None:
            transport = transport_of(client)(
                bootstrap_servers, kafka, prompt=own, outage_timeout_s=outage_timeout_s, max_poll_records=max_buffered
            )
        self._clock, self._domain, self._choice, self._deserializer = clock, domain, choice, deserializer
        self._guard = Guard("Reader", goes_on="it begins behind the last position that you have")
        self._stopped = self._closed = False
        self._transport, self._unread = transport, Unread(transport)
        watch = Watch(id=None, domain=domain, stalled_after_s=stalled_after_s)
        self._seeing = Seeing(watch, clock, lambda: transport.silent_s)
        self._session = ReaderSession(transport, settings, clock=clock, wall_clock=wall_clock, seeing=self._seeing)
        try:
            with self._guard.told():
                self._session.start()
        except BaseException:
            self._session.close()
            raise
        self._begun = True

    def __repr__(self) -> str:
        if not self._begun:
            return "<Reader: not begun>"
        choice, states = self._choice, {"finished": self.finished, "stopped": self._stopped}
        chosen = named(tuple(sorted(choice.topics))) if choice.pattern is None else f"pattern {choice.pattern!r}"
        who = f"Reader of domain {self._domain!r}"
        return shown(who, chosen, self.position.g, self._guard.failure, states, closed=self._closed)

    def poll(self, timeout_s: float = 0.0) -> Handed | None:
        """The next event, or None when there is none within `timeout_s`, or all was read. A Lost comes with
        `on_lost="skip"` alone.
        """
        self._check(timeout_s)
        with self._guard:
            found = self._session.hand_out() if self._await(timeout_s) else None
        return found if self._deserializer is None else with_payload(found, self._deserializer)  # type: ignore[return-value]

    def poll_batch(self, max_events: int = 1_000, timeout_s: float = 0.0) -> EventBatch[Handed]:
        """At most `max_events` of the next events, as soon as there is one; none when `poll` would give None."""
        check_count("max_events", max_events)
        self._check(timeout_s)
        with self._guard:
            self._await(timeout_s)
            found: EventBatch[Handed] = self._session.hand_out_batch(max_events)
        return found if self._deserializer is None else found.with_deserializer(self._deserializer)

    def _check(self, timeout_s: float) -> None:
        check_timeout(timeout_s)
        if self._guard.failure is not None:
            raise self._guard.failure
        if self._closed:
            raise Error("this Reader is closed", remedy="Make a new one, from the last position")

    def _await(self, timeout_s: float) -> bool:
        """Whether something is ready, at the latest after `timeout_s`."""
        deadline = self._clock() + timeout_s
        while not self._session.ready and not self._session.finished:
            remaining = deadline - self._clock()
            self._session.pump(max(0.0, min(remaining, _ITERATE_S)))
            self._look()
            if self._stopped or self._clock() >= deadline:
                break
        return bool(self._session.ready)

    def _look(self) -> None:
        self._seeing.look(self._waits)
        self._seeing.news.clear()  # the log has it

    def _waits(self) -> list[Wait]:
        """What is read for and does not come; of partitions that are not read yet, what was published meanwhile."""
        machine = self._session.machine
        if self._session.ready or machine.done:
            return []
        topics = frozenset[str]() if self._transport.silent_s else machine.awaited
        found = self._unread.waits(self._clock(), topics, self._session.event_partitions, machine.partitions)
        return [*machine.waits(), *found]

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Handed:
        """The next event, however long it takes; ends after `stop` or `close`, and where reading was to end."""
        while not self._stopped and not self._closed:
            event = self.poll(_ITERATE_S)
            if event is not None:
                return event
            if self.finished:
                break
        raise StopIteration

    @property
    def finished(self) -> bool:
        """Whether everything until the end was handed out."""
        return self._session.finished

    @property
    def position(self) -> Position:
        """Behind the last event that was handed out; before the first one, where it begins."""
        return self._session.position

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped

    def stop(self) -> None:
        """Ends the iterator after the event at hand; may be called from a signal handler or another thread."""
        self._stopped = True

    def close(self) -> None:
        """Lets go of Kafka; again: nothing. In a fork of the process that made it there is nothing to close."""
        if self._closed or self._guard.is_forked:
            return
        with self._guard:
            self._closed = True
            self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Error:
            if error is None:
                raise
