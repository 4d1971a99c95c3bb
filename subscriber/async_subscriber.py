"""`AsyncSubscriber`: a Subscriber for asyncio."""

import asyncio
import inspect
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from totalorder.errors import Error, SettingsError, SubscriptionEnded
from totalorder.subscriber.batch import EventBatch
from totalorder.subscriber.checks import check_count, check_timeout
from totalorder.subscriber.event import Event, Handed, Lost
from totalorder.subscriber.handling import Plan, Retry
from totalorder.subscriber.metrics import Metrics
from totalorder.subscriber.owner import Owner
from totalorder.subscriber.position import Position
from totalorder.subscriber.running import run_async
from totalorder.subscriber.subscriber import Subscriber

P = ParamSpec("P")
T = TypeVar("T")
_SLICE_S = 0.1
"""The thread waits for events no longer than this at a time: so long other calls may wait for it."""


def _with_arguments_of(
    _: Callable[P, Subscriber[Any]],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """To readers, editors and checkers of types, what follows takes the same arguments."""

    def told(init: Any) -> Any:
        init.__signature__ = inspect.signature(Subscriber.__init__)
        return init

    return told


class AsyncSubscriber(Generic[Handed]):
    """A Subscriber for asyncio: the same arguments, the same order, the same promises and errors; see there.

        async with AsyncSubscriber(["orders", "payments"], id="billing", domain="shop") as subscriber:
            async for event in subscriber:
                await handle(event)
                await subscriber.ack(event)

    Nothing is asked of Kafka before `async with`, or `await start()`, and nothing blocks the loop: one thread of its
    own has the Subscriber, and does one call after another. One task takes events at a time (two would have them in an
    order that nobody knows: the second one is told so by an Error); all other calls may come from any task of the loop,
    also meanwhile. They are done in the order in which they came, and wait a tenth of a second at most for one that
    waits for events.

    Callbacks (`on_granted`, `on_change`, `on_stalled`) are called by that thread, while the task that takes events
    waits: hand over to the loop by its `call_soon_threadsafe`.

    Cancellation loses nothing. What came for a call that was cancelled, the next one gets, in order. Any other call
    that was cancelled is done nevertheless. A task that is cancelled within `async with` leaves it as soon as `close`
    is done: at once, or, while no broker answers, within `outage_timeout_s`. The thread ends with the subscriber, and
    holds no process back.
    """

    @_with_arguments_of(Subscriber)
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        inspect.signature(Subscriber).bind(*arguments, **settings)
        if settings.get("positions") is not None:
            raise SettingsError(
                "an AsyncSubscriber keeps no positions in a database: the transaction would be another thread's",
                remedy="Use a Subscriber, in a thread (asyncio.to_thread)",
            )
        self._make = partial(Subscriber[Handed], *arguments, **settings)
        self._clock: Callable[[], float] = settings.get("clock", time.monotonic)
        self._name = f"totalorder-{settings.get('id')}"
        self._owner: Owner | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._subscriber: Subscriber[Handed] | None = None
        self._closed = self._stopped = self._held = self._taking = False
        self._slice: asyncio.Future[EventBatch[Handed]] | None = None
        """What the thread takes at the moment, or took for a call that was cancelled."""
        self._kept: deque[EventBatch[Handed]] = deque()
        """What was taken, and not asked for yet."""

    def __repr__(self) -> str:
        subscriber: Subscriber[Handed] | None = getattr(self, "_subscriber", None)
        if subscriber is None:
            return "<AsyncSubscriber: not started>"
        return subscriber._shown("AsyncSubscriber", stopped=self.stopped)

    # --- begin and end ------------------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Subscribes; `async with` does it. Raises what making a Subscriber raises, and is of no more use then."""
        if self._owner is not None:
            raise Error("this AsyncSubscriber was started already", remedy="Make a new one")
        self._owner, self._loop = Owner(self._name), asyncio.get_running_loop()
        try:
            await asyncio.shield(self._owner.submit(self._begin))
        except BaseException:
            # It may be in the middle of it, and must not hold the id of a subscription that nobody has.
            self._closed = True
            self._owner.submit(self._end)
            self._owner.finish()
            raise
        return self

    def _begin(self) -> None:
        self._subscriber = self._make()

    def _end(self) -> None:
        if self._subscriber is not None:
            self._subscriber.close()

    async def close(self) -> None:
        """Sends the receipts, saves the acknowledged position and lets go of Kafka; again: nothing.

        The subscription itself goes on.
        """
        if self._closed or self._owner is None:
            return
        self._closed = True
        closing = self._owner.submit(self._end)
        self._owner.finish()
        await asyncio.shield(closing)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except Error:
            if error is None:
                raise

    def stop(self, *, drain: bool = False) -> None:
        """Ends `async for` after the event at hand; may be called from a signal handler or another thread.

        `drain`: as Subscriber.stop.
        """
        if drain:
            self._started.stop(drain=True)
        else:
            self._stopped = True

    @property
    def _started(self) -> Subscriber[Handed]:
        if self._subscriber is None:
            raise Error("this AsyncSubscriber is not started", remedy="Use `async with`, or await start()")
        return self._subscriber

    def _submit(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        owner = self._owner if self._started else None
        if owner is None or self._closed:
            raise SubscriptionEnded(
                "this AsyncSubscriber is closed", remedy="Make a new one; it goes on after the last ack"
            )
        self._check_loop()
        return owner.submit(work)

    def _check_loop(self) -> None:
        """What is under way is of the loop that it was begun in, and would be lost to another one."""
        if self._loop is not asyncio.get_running_loop():
            raise Error(
                "this AsyncSubscriber was started in another event loop",
                remedy="close() it, and make a new one here, which goes on after the last ack",
            )

    async def _do(self, work: Callable[[], T]) -> T:
        return await asyncio.shield(self._submit(work))

    # --- events -------------------------------------------------------------------------------------------------------

    async def poll(self, timeout_s: float = 0.0) -> Handed | None:
        """As Subscriber.poll."""
        check_timeout(timeout_s)
        return next(iter(await self._take(1, timeout_s)), None)

    async def poll_batch(self, max_events: int = 1_000, timeout_s: float = 0.0) -> EventBatch[Handed]:
        """As Subscriber.poll_batch."""
        check_count("max_events", max_events)
        check_timeout(timeout_s)
        return await self._take(max_events, timeout_s)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Handed:
        """The next event, however long it takes; ends after `stop`, `close` or `unsubscribe`."""
        if not self._closed and not self.stopped:
            batch = await self._take(1, math.inf)
            if batch:
                return next(iter(batch))
        raise StopAsyncIteration

    async def _take(self, most: int, timeout_s: float) -> EventBatch[Handed]:
        if self._taking:
            raise Error(
                "two tasks wait for events of one AsyncSubscriber at once",
                remedy="Let one task take them: between two nobody knows their order. Other calls come from any",
            )
        self._taking = True
        try:
            return await self._taken(most, self._clock() + timeout_s)
        finally:
            self._taking = False

    async def _taken(self, most: int, deadline: float) -> EventBatch[Handed]:
        """A batch that a call left behind that was cancelled goes first; `_slice` and `_kept` are what it leaves."""
        subscriber = self._started
        self._check_loop()
        while True:
            if self._kept and not self._held:
                batch, rest = self._kept.popleft().split(most)
                if rest:
                    self._kept.appendleft(rest)
                return batch
            remaining = deadline - self._clock()
            if self._slice is None:
                self._slice = self._submit(partial(subscriber.poll_batch, most, max(0.0, min(remaining, _SLICE_S))))
            try:
                taken = await asyncio.shield(self._slice)
            finally:
                if self._slice.done() and (self._slice.cancelled() or self._slice.exception() is not None):
                    self._slice = None  # it failed, whatever with; what it gave instead is for the next call
            self._slice = None
            if taken:
                self._kept.append(taken)
            elif remaining <= 0 or subscriber.finished or self.stopped or self._closed:
                return taken

    async def ack(self, event: Event | Lost | EventBatch[Handed]) -> None:
        """As Subscriber.ack."""
        await self._do(lambda: self._started.ack(event))

    async def run(
        self,
        handler: Callable[[Handed], Awaitable[object]],
        *,
        retry: Retry | None = None,
        park: str | None = None,
        signals: bool = True,
    ) -> None:
        """As Subscriber.run, with a handler that is awaited; cancelled, it leaves the event at hand unacknowledged."""
        await run_async(self, handler, Plan(retry=retry, park=park), signals=signals)

    async def _rest(self, timeout_s: float) -> None:
        """As Subscriber._rest."""
        deadline = self._clock() + timeout_s
        while not self._stopped and (remaining := deadline - self._clock()) > 0:
            await self._do(partial(self._started._rest, min(remaining, _SLICE_S)))

    async def _begin_run(self, plan: Plan) -> None:
        await self._do(lambda: self._started._begin_run(plan))

    async def _park(self, event: Event | Lost, error: Exception, attempts: int) -> str:
        return await self._do(lambda: self._started._park(event, error, attempts))

    def _leave(self, event: Event | Lost) -> None:
        self._started._leave(event)

    # --- the subscription ---------------------------------------------------------------------------------------------

    async def subscribe(self, topics: Iterable[str] | None = None, *, pattern: str | None = None) -> None:
        """As Subscriber.subscribe."""
        await self._do(lambda: self._started.subscribe(topics, pattern=pattern))

    async def unsubscribe(self, topics: Iterable[str] | None = None, *, drain: bool = True) -> None:
        """As Subscriber.unsubscribe."""
        await self._do(lambda: self._started.unsubscribe(topics, drain=drain))
        if not drain:
            self._kept.clear()
            if not self._taking:
                self._slice = None

    def pause(self) -> None:
        """Delivers nothing until `resume`; the lease is still renewed while events are asked for."""
        self._started.pause()
        self._held = True

    def resume(self) -> None:
        """Ends `pause`."""
        self._started.resume()
        self._held = False

    async def save(self) -> None:
        """Writes the acknowledged position to Kafka now."""
        await self._do(lambda: self._started.save())

    async def metrics(self) -> Metrics:
        """Figures for monitoring."""
        return await self._do(lambda: self._started.metrics())

    @property
    def topics(self) -> tuple[str, ...]:
        """The set in force at the place that delivery has reached."""
        return self._started.topics

    @property
    def position(self) -> Position:
        """As Subscriber.position."""
        return self._started.position

    @property
    def granted_g(self) -> int:
        """Where in the order the last grant of this process lies: its set of topics holds from there on."""
        return self._started.granted_g

    @property
    def finished(self) -> bool:
        """Whether the subscription is over and everything was handed out."""
        return self._started.finished and not self._kept and self._slice is None

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called, and what it drains is handed out."""
        return self._stopped or (self._subscriber is not None and self._subscriber.stopped and not self._kept)
