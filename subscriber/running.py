"""The loops behind `run`: one for threads, one for asyncio. What a failure means, `handling` says."""

import inspect
import logging
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from totalorder.errors import Error
from totalorder.subscriber.event import Event, Handed, Lost, place, told
from totalorder.subscriber.handling import Plan

if TYPE_CHECKING:
    from totalorder.subscriber.async_subscriber import AsyncSubscriber
    from totalorder.subscriber.subscriber import Subscriber

_LOG = logging.getLogger("totalorder.subscriber")
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(subscriber: "Subscriber[Handed]", handler: Callable[[Handed], object], plan: Plan, *, signals: bool) -> None:
    """See Subscriber.run."""
    subscriber._begin_run(plan)
    hand: list[Event | Lost] = []
    with _ended_by_signals(subscriber.stop if signals else None, hand):
        for event in subscriber:
            with _at_hand(subscriber, event, hand) as done:
                if not _handled(subscriber, event, handler, plan):
                    return
                subscriber.ack(event)
                done()


def _handled(subscriber: "Subscriber[Handed]", event: Handed, handler: Callable[[Handed], object], plan: Plan) -> bool:
    """False when it was stopped before the handler took the event."""
    attempts = 0
    while True:
        attempts += 1
        try:
            given = handler(event)
        except Exception as error:
            wait_s = _after(event, error, attempts, plan)
            failed = error
        else:
            _refuse_awaitable(given)
            return True
        if wait_s is None:
            _tell_parked(event, subscriber._park(event, failed, attempts), failed, attempts)
            return True
        subscriber._rest(wait_s)
        if subscriber.stopped:
            return False


async def run_async(
    subscriber: "AsyncSubscriber[Handed]", handler: Callable[[Handed], Awaitable[object]], plan: Plan, *, signals: bool
) -> None:
    """See AsyncSubscriber.run."""
    await subscriber._begin_run(plan)
    hand: list[Event | Lost] = []
    with _ended_by_signals(subscriber.stop if signals else None, hand):
        async for event in subscriber:
            with _at_hand(subscriber, event, hand) as done:
                if not await _handled_async(subscriber, event, handler, plan):
                    return
                await subscriber.ack(event)
                done()


async def _handled_async(
    subscriber: "AsyncSubscriber[Handed]", event: Handed, handler: Callable[[Handed], Awaitable[object]], plan: Plan
) -> bool:
    attempts = 0
    while True:
        attempts += 1
        try:
            given = handler(event)
            if inspect.isawaitable(given):
                await given
        except Exception as error:
            wait_s = _after(event, error, attempts, plan)
            failed = error
        else:
            _require_awaitable(given)
            return True
        if wait_s is None:
            _tell_parked(event, await subscriber._park(event, failed, attempts), failed, attempts)
            return True
        await subscriber._rest(wait_s)
        if subscriber.stopped:
            return False


def _after(event: Event | Lost, error: Exception, attempts: int, plan: Plan) -> float | None:
    """See Plan.after."""
    wait_s = plan.after(event, error, attempts)
    if wait_s is not None:
        _LOG.warning(
            "the handler failed on %s at attempt %d: %s; again in %g s", place(event), attempts, told(error), wait_s
        )
    return wait_s


def _tell_parked(event: Event | Lost, where: str, error: Exception, attempts: int) -> None:
    _LOG.warning("parked %s as %s after attempt %d: %s", place(event), where, attempts, told(error))


def _refuse_awaitable(given: object) -> None:
    """What a handler has not done yet must not be acknowledged."""
    if given is not None and inspect.isawaitable(given):
        if inspect.iscoroutine(given):
            given.close()
        raise Error(
            "the handler gave something to await, and Subscriber.run() awaits nothing",
            remedy="Use AsyncSubscriber for a handler that is `async def`",
        )


def _require_awaitable(given: object) -> None:
    if not inspect.isawaitable(given):
        raise Error(
            "the handler gave nothing to await, so it holds up the loop",
            remedy="Write it as `async def`; use Subscriber, or asyncio.to_thread, for one that blocks",
        )


@contextmanager
def _at_hand(
    subscriber: "Subscriber[Any] | AsyncSubscriber[Any]", event: Event | Lost, hand: list[Event | Lost]
) -> Iterator[Callable[[], None]]:
    """The event is in this hand, with the handler or its acknowledgement, until what this gives is called."""
    hand.append(event)
    try:
        yield hand.clear
    finally:
        for left in hand:
            subscriber._leave(left)


@contextmanager
def _ended_by_signals(stop: Callable[[], None] | None, hand: list[Event | Lost]) -> Iterator[None]:
    """The first SIGTERM or SIGINT calls `stop`, says what is at hand, and leaves the next one to what had them before.

    Python lets the main thread alone have handlers; what is ignored stays so.
    """
    former: dict[signal.Signals, Any] = {}

    def give_back() -> None:
        while former:
            signal.signal(*former.popitem())

    def heard(number: int, _: object) -> None:
        give_back()
        if stop is not None:
            stop()
        for event in hand:
            _LOG.warning(
                "%s: run() ends when %s is handled and acknowledged; a second signal ends it at once",
                signal.Signals(number).name,
                place(event),
            )

    if stop is not None and threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if handler is not None and handler is not signal.SIG_IGN:
                former[number] = handler
                signal.signal(number, heard)
    try:
        yield
    finally:
        give_back()
