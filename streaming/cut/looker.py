"""The thread that looks: it asks every leader for the ends of its partitions, again and again.

It lives in the driver's source process, whose main thread mostly sleeps; it takes some per cent of one core. Whatever
may block (finding leaders, connecting) is done by threads of their own, so that one broker never keeps the others from
being asked.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import Generic, TypeVar

import numpy as np
import structlog

from totalorder.errors import BrokerUnavailable, Error, SettingsError
from totalorder.sequencer.wire.stamps import Source
from totalorder.streaming.cut.connection import Connector, Wire, receive_all
from totalorder.streaming.cut.ends import Ends, Ints, Look, routes
from totalorder.streaming.cut.pace import LookFigures, Minute, Pace
from totalorder.streaming.cut.questions import Questions
from totalorder.streaming.cut.requests import Address, AnswerError, Cluster, OffsetsQuestion

T = TypeVar("T")

LOOK_MS, LOOK_PATIENCE_MS, LOOK_WARN_MS = 5, 1_000, 500
_CONNECT_S = 5.0
_ANSWER_S = 10.0
"""A broker that has not answered for so long is connected to anew."""
_STOP_S = 10.0
_SLICE_S = 0.05
"""Of waiting, so that a stop is noticed."""
_TROUBLE_S = 0.01
"""The least period while something is lacking."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
_LONGEST_THROTTLE_S = 1.0
"""A broker whose quota is used up says for how long it will not read from us."""
_SAY_AGAIN_S = 10.0


@dataclass(frozen=True, kw_only=True, eq=False)
class _Route:
    """What one broker is asked for."""

    address: Address
    places: Ints
    question: OffsetsQuestion


class _Errand(Generic[T]):
    """A call in a thread of its own, which nobody waits for."""

    def __init__(self, call: Callable[[], T], *, unwanted: Callable[[T], None] = lambda _: None) -> None:
        """`unwanted` takes what comes after `abandon`."""
        self.began_s = time.monotonic()
        self._call, self._unwanted = call, unwanted
        self._lock = Lock()
        self._is_abandoned = self._is_done = False
        self._value: T | None = None
        self._error: BaseException | None = None
        Thread(target=self._run, name="totalorder-look-errand", daemon=True).start()

    def _run(self) -> None:
        value, error = None, None
        try:
            value = self._call()
        except BaseException as raised:
            error = raised
        with self._lock:
            self._value, self._error, self._is_done = value, error, True
            late = self._is_abandoned
        if late and value is not None:
            self._unwanted(value)

    @property
    def is_done(self) -> bool:
        return self._is_done

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        assert self._value is not None
        return self._value

    def abandon(self) -> None:
        with self._lock:
            self._is_abandoned = True
            came = self._value
        if came is not None:
            self._unwanted(came)


class _Backoff:
    """When something may be tried again."""

    def __init__(self) -> None:
        self._pause_s = _FIRST_PAUSE_S
        self.next_s = 0.0

    def tried(self, now_s: float) -> None:
        self.next_s = now_s + self._pause_s
        self._pause_s = min(_LONGEST_PAUSE_S, 2 * self._pause_s)

    def reset(self) -> None:
        self._pause_s, self.next_s = _FIRST_PAUSE_S, 0.0


class Looker:
    """Looks at the ends of what it is told to watch, and hands each look out."""

    def __init__(
        self,
        bootstrap_servers: str,
        kafka: Mapping[str, str],
        *,
        on_look: Callable[[Look], None],
        look_ms: float = LOOK_MS,
        look_patience_ms: float = LOOK_PATIENCE_MS,
        look_warn_ms: float = LOOK_WARN_MS,
    ) -> None:
        """Connects when it is started. Raises SettingsError.

        `on_look` is called in the looker's thread, for each look in turn, and should be quick. `look_ms`: the least
        time between begins of looks. `look_patience_ms`: for so long a broker that does not answer holds looks back.
        Of longer periods than `look_warn_ms` the log has a word, every ten seconds at most.
        """
        self._connector = Connector(bootstrap_servers, kafka)
        self._questions = Questions(bootstrap_servers, kafka, timeout_s=_CONNECT_S)
        self._on_look, self._warn_s = on_look, look_warn_ms / 1000
        self._ends = Ends(patience_s=look_patience_ms / 1000)
        self._pace, self._minute = Pace(look_ms / 1000), Minute()
        self._stopping, self._lock = Event(), Lock()
        self._watched: tuple[Sequence[Source], Sequence[int] | None] | None = None
        self._newest: Look | None = None
        self._failure: Error | None = None
        self._routes: list[_Route] = []
        self._wires: dict[Address, Wire] = {}
        self._opening: dict[Address, _Errand[Wire]] = {}
        self._backoffs: dict[Address, _Backoff] = {}
        self._scouting: _Errand[Cluster] | None = None
        self._scout_backoff = _Backoff()
        self._has_connected = self._is_mending = False
        self._expires_s = math.inf
        self._throttle_s = 0.0
        self._said_s: dict[str, float] = {}
        self._trouble = ""
        self._thread = Thread(target=self._run, name="totalorder-looker", daemon=True)

    # --- in other threads ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to look."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and its connections; may be called twice."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_S)

    def watch(self, sources: Sequence[Source], known: Sequence[int] | None = None) -> None:
        """From the next look on these are looked at; what is known of those that were watched before is kept.

        `known`: for each an end that was seen before (of a batch that is in Spark's log, say), or -1: one that is less
        now is an error. Looks say which sources they are of.
        """
        assert known is None or len(known) == len(sources), "an end for each source"
        with self._lock:
            self._watched = (tuple(sources), None if known is None else tuple(known))

    def newest(self) -> Look | None:
        """The last look; None before the first. Raises the Error that ended the looker."""
        if self._failure is not None:
            raise self._failure
        return self._newest

    @property
    def failure(self) -> Error | None:
        """What ended the looker."""
        return self._failure

    def figures(self) -> LookFigures:
        """How it went."""
        return self._minute.figures(time.monotonic())

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._step()
        except Error as error:
            self._failure = error
        except Exception as error:
            structlog.get_logger().exception("the looker failed")
            self._failure = Error(f"The looker failed: {type(error).__name__}: {error}")
        finally:
            self._close()

    def _close(self) -> None:
        for opening in self._opening.values():
            opening.abandon()
        for wire in self._wires.values():
            wire.close()
        _Errand(self._questions.close)  # a question that is under way is waited for

    def _step(self) -> None:
        began_s, spent_s = time.monotonic(), time.thread_time()
        self._take_watched()
        self._take_errands(began_s)
        look = self._attempt(began_s) if self._ends.sources else None
        moved = look is not None and (self._newest is None or look.ends is not self._newest.ends)
        if look is not None:
            self._hand_out(look)
        cost_s, now_s = time.thread_time() - spent_s, time.monotonic()
        self._minute.add_cost(now_s, cost_s)
        took_s = 0.0 if look is None else look.ended_s - look.began_s
        period_s = max(self._pace.after(now_s, moved=moved, cost_s=cost_s, took_s=took_s), self._throttle_s)
        if look is None or look.silent:
            self._mend(now_s)
            period_s = max(_TROUBLE_S, period_s)
        elif now_s >= self._expires_s:
            self._open_missing(now_s)
        time.sleep(max(0.0, began_s + period_s - time.monotonic()))

    def _hand_out(self, look: Look) -> None:
        was_silent = self._newest is not None and bool(self._newest.silent)
        self._newest = look
        since_s = self._minute.add_look(look.began_s, look.ended_s, len(look.silent))
        took_s = max(since_s, look.ended_s - look.began_s)
        if look.silent:
            self._warn("looks go on without what no broker tells of", look.ended_s, partitions=len(look.silent))
        elif was_silent:
            structlog.get_logger().info("looks are whole again")
        elif took_s > self._warn_s:
            self._warn("looks are far apart", look.ended_s, longest_ms=round(took_s * 1000))
        if self._is_mending and not look.silent:
            self._is_mending = False
            for backoff in (self._scout_backoff, *self._backoffs.values()):
                backoff.reset()
        self._on_look(look)

    def _warn(self, what: str, now_s: float, **more: object) -> None:
        if now_s - self._said_s.get(what, -math.inf) >= _SAY_AGAIN_S:
            self._said_s[what] = now_s
            if self._trouble:
                more["reason"], self._trouble = self._trouble, ""
            structlog.get_logger().warning(what, **more)

    # --- asking -------------------------------------------------------------------------------------------------------

    def _attempt(self, now_s: float) -> Look | None:
        self._ends.begin(now_s)
        self._throttle_s = 0.0
        asked = {wire: route for route in self._routes if (wire := self._ask(route, now_s)) is not None}
        until_s = max((self._ends.waits_until_s(at.places, wire.took_s) for wire, at in asked.items()), default=0.0)
        for wire, outcome in self._receive(list(asked), until_s).items():
            self._take(wire, asked[wire], outcome)
        return None if self._stopping.is_set() else self._ends.judge(time.monotonic())

    def _ask(self, route: _Route, now_s: float) -> Wire | None:
        """The wire on which the route was asked just now."""
        wire = self._wires.get(route.address)
        if wire is None:
            return None
        try:
            if wire.is_asked and not self._is_late_answer_over(wire, now_s):
                return None
            wire.ask(route.question.request)
        except Error as error:
            self._lose(wire, error)
            return None
        return wire

    def _is_late_answer_over(self, wire: Wire, now_s: float) -> bool:
        """An answer that came too late for its look is dropped: it may be older than this look."""
        if wire.receive() is not None:
            return True
        if now_s - wire.asked_s > _ANSWER_S:
            raise wire.lost(f"not within {_ANSWER_S:g} s")
        return False

    def _receive(self, wires: list[Wire], until_s: float) -> dict[Wire, bytes | Error]:
        outcomes: dict[Wire, bytes | Error] = {}
        while True:
            left = [wire for wire in wires if wire not in outcomes]
            now_s = time.monotonic()
            outcomes |= receive_all(left, min(until_s, now_s + _SLICE_S))
            if len(outcomes) == len(wires) or now_s >= until_s or self._stopping.is_set():
                return outcomes

    def _take(self, wire: Wire, route: _Route, outcome: bytes | Error) -> None:
        try:
            if isinstance(outcome, Error):
                raise outcome
            offsets = route.question.read(outcome)
        except (BrokerUnavailable, AnswerError) as error:
            self._lose(wire, error)
            return
        self._ends.take(route.places, offsets)
        self._throttle_s = max(self._throttle_s, min(_LONGEST_THROTTLE_S, offsets.throttle_ms / 1000))

    def _lose(self, wire: Wire, error: Error) -> None:
        self._wires.pop(wire.address).close()
        self._trouble = error.what

    # --- leaders and connections --------------------------------------------------------------------------------------

    def _take_watched(self) -> None:
        with self._lock:
            watched, self._watched = self._watched, None
        if watched is not None:
            self._ends.watch(*watched)
            self._routes = []
            if self._scouting is not None:
                self._scouting.abandon()
                self._scouting = None
            self._scout_backoff.reset()
            self._scout()

    def _scout(self) -> None:
        names = sorted({source.topic for source in self._ends.sources})
        self._scouting = _Errand(lambda: self._questions.cluster(names))

    def _mend(self, now_s: float) -> None:
        """Something is lacking: asks who leads, and connects."""
        self._is_mending = True
        if self._scouting is None and now_s >= self._scout_backoff.next_s:
            self._scout_backoff.tried(now_s)
            self._scout()
        self._open_missing(now_s)

    def _open_missing(self, now_s: float) -> None:
        for route in self._routes:
            address = route.address
            backoff = self._backoffs.setdefault(address, _Backoff())
            is_due = address not in self._wires or now_s >= self._wires[address].expires_s
            if is_due and address not in self._opening and now_s >= backoff.next_s:
                backoff.tried(now_s)
                self._opening[address] = _Errand(
                    lambda address=address: self._connector.open(address, _CONNECT_S),  # type: ignore[misc]
                    unwanted=Wire.close,
                )

    def _take_errands(self, now_s: float) -> None:
        if self._scouting is not None and self._scouting.is_done:
            scouting, self._scouting = self._scouting, None
            try:
                self._take_leaders(scouting.result(), scouting.began_s)
            except (BrokerUnavailable, AnswerError) as error:
                self._trouble = error.what
            except SettingsError as error:
                self._bear(error)
            self._open_missing(now_s)
        for address in [address for address, errand in self._opening.items() if errand.is_done]:
            self._take_wire(address, self._opening.pop(address))

    def _take_leaders(self, cluster: Cluster, asked_s: float) -> None:
        found = routes(self._ends.sources, cluster)
        self._ends.confirm(found.gone, asked_s)
        before = {(route.address, tuple(route.places.tolist())): route for route in self._routes}
        self._routes = [
            before.get((address, tuple(places))) or self._route(address, places)
            for address, places in found.led.items()
        ]
        for address in self._wires.keys() - found.led.keys():
            self._wires.pop(address).close()

    def _route(self, address: Address, places: list[int]) -> _Route:
        sources = self._ends.sources
        question = OffsetsQuestion([(sources[place].topic, sources[place].partition) for place in places])
        return _Route(address=address, places=np.array(places, np.int64), question=question)

    def _take_wire(self, address: Address, errand: _Errand[Wire]) -> None:
        try:
            wire = errand.result()
        except BrokerUnavailable as error:
            self._trouble = error.what
        except SettingsError as error:
            self._bear(error)
        else:
            if (old := self._wires.pop(address, None)) is not None:
                old.close()
            self._wires[address], self._has_connected = wire, True
            self._expires_s = min(wire.expires_s for wire in self._wires.values())

    def _bear(self, error: SettingsError) -> None:
        """A broker that is just starting refuses logins that it will take a moment later."""
        if not self._has_connected:
            raise error
        self._trouble = error.what
