"""`run`: what is acknowledged, what a failure means, and what ends it; for threads and for asyncio alike."""

import asyncio
import logging
import os
import signal
import threading
from itertools import pairwise
from typing import Any

import pytest
from logged import by_us
from run_faces import BOUND_S, Face, rest, world_with
from sim_receipts import receipts_of
from waiting import wait_until

from totalorder.errors import Error, Fenced, HandlerFailed, SettingsError
from totalorder.subscriber import Event, Lost, Retry
from totalorder.subscriber.transport import Partition


@pytest.fixture(params=["run", "async run"])
def face(request: pytest.FixtureRequest) -> Face:
    return Face(request.param)


def test_each_event_is_acknowledged_when_its_handler_returns(face: Face) -> None:
    world, seen = world_with(6), list[bytes | None]()

    def handle(subscriber: Any, event: Event) -> None:
        assert subscriber.position.g < event.g
        seen.append(event.value)
        if len(seen) == 4:
            subscriber.stop()

    face.run(world, handle)
    assert seen == [b"a1", b"b2", b"c3", b"a4"]
    assert [event.value for event in rest(world)] == [b"b5", b"c6"]
    assert face.left is None


def test_without_a_choice_the_first_failure_ends_it_and_loses_nothing(face: Face) -> None:
    world, seen = world_with(4), list[bytes | None]()

    def handle(_: Any, event: Event) -> None:
        seen.append(event.value)
        if event.value == b"b2":
            raise ValueError("no such customer")

    with pytest.raises(
        HandlerFailed, match=r"failed on b#1 \(b\[0\]@0, g 3\) at attempt 1: ValueError: no such"
    ) as told:
        face.run(world, handle)
    assert isinstance(told.value.__cause__, ValueError)
    assert seen == [b"a1", b"b2"]
    # What came behind it would be acknowledged with it.
    assert isinstance(face.left, HandlerFailed)
    assert "not acknowledged" in str(face.left)
    assert [event.value for event in rest(world)] == [b"b2", b"c3", b"a4"]


def test_retries_hold_the_order_and_wait_longer_each_time(face: Face, caplog: pytest.LogCaptureFixture) -> None:
    world, seen = world_with(3), list[tuple[bytes | None, float]]()

    def handle(subscriber: Any, event: Event) -> None:
        seen.append((event.value, world.now))
        if event.value == b"a1" and len(seen) < 5:
            raise ConnectionError("try later")
        if event.value == b"c3":
            subscriber.stop()

    with caplog.at_level(logging.WARNING, "totalorder.subscriber"):
        face.run(world, handle, retry=Retry(first_s=1, most_s=5))
    assert [value for value, _ in seen] == [b"a1"] * 5 + [b"b2", b"c3"]
    times = [at for _, at in seen]
    waits = [round(after - before) for before, after in pairwise(times[:5])]
    assert waits == [1, 2, 4, 5]
    assert "a#1 (a[1]@0, g 2) at attempt 4: ConnectionError: try later; again in 5 s" in caplog.text
    assert [receipt.g for receipt in receipts_of(world.kafka, "s")] == [2, 3, 4]


def test_attempts_that_are_used_up_end_it(face: Face) -> None:
    world, seen = world_with(2), list[bytes | None]()

    def handle(_: Any, event: Event) -> None:
        seen.append(event.value)
        raise ValueError("never")

    with pytest.raises(HandlerFailed, match="at attempt 3"):
        face.run(world, handle, retry=Retry(times=2))
    assert seen == [b"a1"] * 3
    assert [event.value for event in rest(world)] == [b"a1", b"b2"]


def test_the_lease_is_renewed_while_it_waits(face: Face) -> None:
    world, failures = world_with(1), 0

    def handle(subscriber: Any, _: Event) -> None:
        nonlocal failures
        failures += 1
        if failures < 30:
            raise ValueError("not yet")
        subscriber.stop()

    face.run(world, handle, settings={"lease_s": 20}, retry=Retry(first_s=15, most_s=15))
    assert world.now > 300
    assert rest(world) == []


def test_stop_between_two_attempts_leaves_the_event_to_the_next_one(face: Face) -> None:
    world, seen = world_with(2), list[bytes | None]()

    def handle(subscriber: Any, event: Event) -> None:
        seen.append(event.value)
        subscriber.stop()
        raise ValueError("no")

    face.run(world, handle, retry=Retry(first_s=1e6, most_s=1e6))
    assert seen == [b"a1"]
    assert isinstance(face.left, HandlerFailed)
    assert [event.value for event in rest(world)] == [b"a1", b"b2"]


def test_another_process_that_takes_over_ends_the_attempts(face: Face) -> None:
    world, seen = world_with(2), list[bytes | None]()

    def handle(_: Any, event: Event) -> None:
        seen.append(event.value)
        world.subscriber("abc")
        raise ValueError("no")

    with pytest.raises(Fenced):
        face.run(world, handle, retry=Retry(first_s=5))
    assert seen == [b"a1"]


@pytest.mark.parametrize("lapses", [True, False])
def test_while_a_handler_does_not_return_another_process_goes_on_with_its_event(face: Face, lapses: bool) -> None:
    """The handler returns at last, for the test's sake: what it did is done twice, and told so."""
    world, others = world_with(3), list[Event]()

    def handle(_: Any, event: Event) -> None:
        if lapses:
            world.tick(40)
            world.publish("a")
            world.tick(1)
        others.extend(rest(world))

    with pytest.raises(Fenced):
        face.run(world, handle, settings={"lease_s": 30})
    assert [event.value for event in others] == [b"a1", b"b2", b"c3", *([b"a4"] if lapses else [])]
    assert others[0].tag == "redelivered"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_after_the_event_at_hand(face: Face, number: signal.Signals) -> None:
    world, seen = world_with(3), list[bytes | None]()
    before = signal.getsignal(number)

    def handle(_: Any, event: Event) -> None:
        os.kill(os.getpid(), number)
        seen.append(event.value)

    face.run(world, handle)
    assert seen == [b"a1"]
    assert signal.getsignal(number) is before
    assert [event.value for event in rest(world)] == [b"b2", b"c3"]


def test_a_second_signal_does_what_it_did_before(face: Face) -> None:
    world = world_with(1)

    def handle(_: Any, event: Event) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("it is interrupted before")

    with pytest.raises((KeyboardInterrupt, asyncio.CancelledError)):
        face.run(world, handle, retry=Retry())
    assert [event.value for event in rest(world)] == [b"a1"]


def test_a_signal_says_what_is_waited_for(face: Face, caplog: pytest.LogCaptureFixture) -> None:
    """As while an acknowledgement waits for a broker that is away: the handler's part is done then."""
    world = world_with(2)
    transport = world.transport()
    send = transport.send

    def slow(partition: Partition, *arguments: Any, **settings: Any) -> int:
        if partition.topic == "d.positions" and seen == [b"a1"]:
            seen.append(None)
            os.kill(os.getpid(), signal.SIGTERM)
            wait_until(lambda: "run() ends" in caplog.text, "the signal is heard")
        return send(partition, *arguments, **settings)

    transport.send = slow  # type: ignore[method-assign]
    seen: list[bytes | None] = []
    face.run(world, lambda _, event: seen.append(event.value), settings={"transport": transport})
    assert [line for line in by_us(caplog) if "run() ends" in line] == [
        "SIGTERM: run() ends when a#1 (a[1]@0, g 2) is handled and acknowledged; a second signal ends it at once"
    ]
    assert [event.value for event in rest(world)] == [b"b2"]


def test_signals_may_be_left_alone(face: Face) -> None:
    world, handlers = world_with(1), list[object]()
    before = signal.getsignal(signal.SIGTERM)

    def handle(subscriber: Any, _: Event) -> None:
        handlers.append(signal.getsignal(signal.SIGTERM))
        subscriber.stop()

    face.run(world, handle, signals=False)
    assert handlers == [before]


def test_what_ignores_signals_goes_on_to(face: Face) -> None:
    world, before = world_with(1), signal.signal(signal.SIGINT, signal.SIG_IGN)

    def handle(subscriber: Any, _: Event) -> None:
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        subscriber.stop()

    try:
        face.run(world, handle)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_it_runs_in_other_threads_too(face: Face) -> None:
    world, seen = world_with(2), list[bytes | None]()

    def handle(subscriber: Any, event: Event) -> None:
        seen.append(event.value)
        if len(seen) == 2:
            subscriber.stop()

    thread = threading.Thread(target=face.run, args=(world, handle))
    thread.start()
    thread.join(BOUND_S)
    assert seen == [b"a1", b"b2"]


def test_a_notice_of_loss_goes_to_the_handler(face: Face) -> None:
    world = world_with(3)
    world.tick(0)
    world.kafka.trim(Partition("b", 0), 1)
    seen: list[object] = []

    def handle(subscriber: Any, event: Event | Lost) -> None:
        seen.append(type(event))
        if len(seen) == 3:
            subscriber.stop()
        if isinstance(event, Lost):
            raise ValueError("lost")

    with pytest.raises(HandlerFailed, match=r"what is lost of b\[0\]@0, g 3"):
        face.run(world, handle, settings={"on_lost": "skip"})
    assert seen == [Event, Lost]


def test_a_coroutine_that_nobody_awaits_is_not_acknowledged() -> None:
    world = world_with(1)

    async def handler(event: Event) -> None:
        pass

    with world.subscriber("abc") as subscriber, pytest.raises(Error, match="awaits nothing"):
        subscriber.run(handler)
    assert len(rest(world)) == 1


def test_a_handler_that_holds_up_the_loop_is_told_so() -> None:
    world = world_with(1)

    async def main() -> None:
        async with world.async_subscriber("abc") as subscriber:
            await subscriber.run(lambda event: None)  # type: ignore[arg-type,return-value]

    with pytest.raises(Error, match="nothing to await"):
        asyncio.run(main())
    assert len(rest(world)) == 1


def test_a_cancelled_run_leaves_the_event_at_hand() -> None:
    world = world_with(2)

    async def main() -> None:
        begun = asyncio.Event()

        async def handler(event: Event) -> None:
            begun.set()
            await asyncio.Event().wait()

        async with world.async_subscriber("abc") as subscriber:
            task = asyncio.ensure_future(subscriber.run(handler))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(HandlerFailed, match="not acknowledged"):
                await subscriber.poll(0)

    asyncio.run(asyncio.wait_for(main(), BOUND_S))
    assert [event.value for event in rest(world)] == [b"a1", b"b2"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"times": 0}, "times = 0 must be at least 1"),
        ({"times": 1.5}, "times = 1.5 is no whole number"),
        ({"first_s": 0}, "first_s = 0 must be more than 0"),
        ({"most_s": float("nan")}, "most_s = nan must be more than 0"),
    ],
)
def test_what_is_no_number_of_attempts_or_seconds_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        Retry(**given)


def test_what_is_no_retry_is_refused(face: Face) -> None:
    with pytest.raises(SettingsError, match="retry is 3"):
        face.run(world_with(0), lambda *_: None, retry=3)


def test_waits_grow_to_their_limit_however_often_it_failed() -> None:
    retry = Retry(first_s=0.5, most_s=60)
    assert [retry.wait_s(failures) for failures in (1, 2, 3, 8, 9, 10_000_000)] == [0.5, 1, 2, 60, 60, 60]
    assert [Retry(times=2).wait_s(failures) for failures in (1, 2, 3)] == [0.1, 0.2, None]
