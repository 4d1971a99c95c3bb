"""A call that an exception breaks off, as Ctrl-C does, or a signal handler that raises: at any line of the product."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import pytest
from sim_small import World, await_ready

from totalorder.errors import Error
from totalorder.subscriber import Event, Subscriber

COUNT = 30
Call = Callable[[Subscriber[Event], list[Event]], None]
"""Takes what is next, notes it, and acknowledges it."""


class TimeIsOver(Exception):
    """As the handler of SIGALRM of an application raises it."""


@contextmanager
def broken_off(error: type[BaseException], line: int) -> Iterator[list[str]]:
    """Raises the error at the line of that number that is run under subscriber/; gives where that was, if it was."""
    ran, places = 0, list[str]()

    def local(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal ran
        if event == "line":
            ran += 1
            if ran == line:
                places.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
                sys.settrace(None)
                raise error
        return local

    def begun(frame: FrameType, event: str, argument: Any) -> Any:
        is_ours = "/subscriber/" in frame.f_code.co_filename and "/tests/" not in frame.f_code.co_filename
        # What guards a call is not what is guarded.
        return local if is_ours and frame.f_code.co_name not in ("__enter__", "__exit__") else None

    former = sys.gettrace()
    sys.settrace(begun)
    try:
        yield places
    finally:
        sys.settrace(former)


def take_some(subscriber: Subscriber[Event], handed: list[Event]) -> None:
    batch = subscriber.poll_batch(7, 5)
    handed += batch
    subscriber.ack(batch)


def take_one(subscriber: Subscriber[Event], handed: list[Event]) -> None:
    event = subscriber.poll(5)
    assert event is not None
    handed.append(event)
    subscriber.ack(event)


def life(world: World, call: Call, error: type[BaseException], line: int) -> tuple[list[Event], list[str]]:
    """What was handed to a process whose third call is broken off at a line; and where that was."""
    handed: list[Event] = []
    with suppress(error), world.subscriber("abc") as subscriber:
        await_ready(subscriber, 20)
        for _ in range(2):
            take_one(subscriber, handed)
        with broken_off(error, line) as places:
            call(subscriber, handed)
    return handed, places


def test_one_that_was_broken_off_writes_nothing_when_it_is_closed() -> None:
    """What was under way may have been noted by half: what was saved last holds."""
    world = World()
    transport = world.transport()
    subscriber = world.subscriber("a", transport=transport, save_interval_s=1_000)
    world.publish("a")
    take_one(subscriber, [])

    def break_off(_: float) -> None:
        raise TimeIsOver

    transport.on_poll = break_off
    with pytest.raises(TimeIsOver):
        subscriber.poll(20)
    transport.sent.clear()
    subscriber.close()
    assert transport.closed
    assert not transport.sent


def test_one_that_was_broken_off_says_so_and_hands_nothing_out() -> None:
    """Records that had come may be nowhere now: what comes behind them would hide that."""
    world = World()
    subscriber = world.subscriber("abc")
    for at in range(COUNT):
        world.publish("abc"[at % 3])
    with pytest.raises(TimeIsOver), broken_off(TimeIsOver, 60):
        subscriber.poll(20)
    with pytest.raises(Error, match="a call was interrupted by TimeIsOver"):
        subscriber.poll(20)
    subscriber.close()


@pytest.mark.parametrize("call", [take_one, take_some])
@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeIsOver])
def test_who_comes_next_goes_on_wherever_a_call_was_broken_off(call: Call, error: type[BaseException]) -> None:
    """Nothing comes again without a mark, and nothing is missing."""
    tried = 0
    for line in range(1, 10_000, 13):
        world = World()
        for at in range(COUNT):
            world.publish("abc"[at % 3])
        handed, places = life(world, call, error, line)
        if not places:
            break
        tried += 1
        following = world.subscriber("abc")
        rest: list[Event] = []
        while (event := following.poll(20)) is not None:
            rest.append(event)
            following.ack(event)
        first = {place(event) for event in handed}
        assert not [event for event in rest if place(event) in first and event.tag is None], places
        assert [event.g for event in rest] == sorted({event.g for event in rest}), places
        assert len(first | {place(event) for event in rest}) == COUNT, places
        assert {place(event) for event in handed[:2]}.isdisjoint(map(place, rest)), places
    assert tried > 10


def place(event: Event) -> tuple[str, int]:
    return event.topic, event.n
