"""A Subscriber for asyncio: what a call that is cancelled leaves, which calls may overlap, where its thread ends."""

import asyncio
import inspect
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sim_small import World
from waiting import wait_until

from totalorder.errors import Error, Fenced, SequencerUnavailable, SettingsError, SubscriptionEnded
from totalorder.subscriber import AsyncSubscriber, Event, EventBatch, Granted, Subscriber
from totalorder.subscriber.owner import Owner

BOUND_S = 60


def run(main: Callable[[], Awaitable[object]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(main(), BOUND_S)

    asyncio.run(bounded())


def published(world: World, count: int) -> None:
    for at in range(count):
        world.publish("abc"[at % 3])


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "totalorder-s"]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    wait_until(lambda: not threads(), "the subscriber's thread ends")


class Gate:
    """Holds the thread at its next poll of Kafka."""

    def __init__(self, world: World) -> None:
        self.transport = world.transport()
        self._tick = world.tick
        self._reached, self._open = threading.Event(), threading.Event()

    def _hold(self, timeout_s: float) -> None:
        self._reached.set()
        assert self._open.wait(BOUND_S)
        self._tick(timeout_s)

    @contextmanager
    def shut(self) -> Iterator[None]:
        self._reached.clear()
        self._open.clear()
        self.transport.on_poll = self._hold
        try:
            yield
        finally:
            self._open.set()
            self.transport.on_poll = self._tick

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._reached.wait, BOUND_S)


async def everything(subscriber: AsyncSubscriber[Event]) -> list[Event]:
    found: list[Event] = []
    while (event := await subscriber.poll(20)) is not None:
        found.append(event)
        await subscriber.ack(event)
    return found


async def leave_some(subscriber: AsyncSubscriber[Event]) -> None:
    """Cancels calls until events have come for one."""
    while not (await subscriber.metrics()).delivered:
        cut_off = asyncio.ensure_future(subscriber.poll_batch(4, 20))
        await asyncio.sleep(0)
        cut_off.cancel()
        await asyncio.wait([cut_off])
        assert cut_off.cancelled()


def test_it_takes_what_a_subscriber_takes() -> None:
    """To a reader too: help() and editors show the arguments."""
    assert inspect.signature(AsyncSubscriber) == inspect.signature(Subscriber)
    with pytest.raises(TypeError, match="nonsense"):
        AsyncSubscriber(["a"], id="s", domain="d", nonsense=1)  # type: ignore[call-arg]


def test_all_is_delivered_in_order_and_acknowledged() -> None:
    world = World()

    async def main() -> None:
        async with world.async_subscriber("abc") as subscriber:
            published(world, 30)
            events: list[Event] = []
            async for event in subscriber:
                events.append(event)
                await subscriber.ack(event)
                if len(events) == 30:
                    subscriber.stop()
            assert [event.value for event in events] == [f"{'abc'[at % 3]}{at + 1}".encode() for at in range(30)]
            assert (subscriber.position.g, subscriber.topics) == (events[-1].g, ("a", "b", "c"))
            assert (subscriber.granted_g, subscriber.finished, subscriber.stopped) == (1, False, True)
            assert (await subscriber.metrics()).delivered == 30
            await subscriber.save()
        async with world.async_subscriber("abc") as subscriber:
            assert await everything(subscriber) == []

    run(main)


def test_nothing_is_asked_of_kafka_before_it_starts() -> None:
    world = World()

    async def main() -> None:
        gate = Gate(world)
        subscriber = world.async_subscriber("abc", transport=gate.transport)
        assert not threads()
        for call in (subscriber.poll, subscriber.poll_batch, subscriber.save, subscriber.metrics):
            with pytest.raises(Error, match=r"not started.*async with"):
                await call()
        await subscriber.close()
        with gate.shut():  # and nothing of it blocks the loop
            starting = asyncio.ensure_future(subscriber.start())
            await gate.reached()
            assert not starting.done()
        assert await starting is subscriber
        with pytest.raises(Error, match="started already"):
            await subscriber.start()
        await subscriber.close()
        await subscriber.close()
        for call in (subscriber.poll, subscriber.poll_batch, subscriber.save, subscriber.metrics):
            with pytest.raises(SubscriptionEnded, match="closed"):
                await call()
        assert [event async for event in subscriber] == []

    run(main)


@pytest.mark.parametrize("wanted", ["poll", "poll_batch", "anext"])
def test_what_comes_for_a_call_that_was_cancelled_the_next_one_gets(wanted: str) -> None:
    world = World()

    async def main() -> None:
        gate = Gate(world)
        async with world.async_subscriber("abc", transport=gate.transport) as subscriber:
            published(world, 12)
            with gate.shut():
                cut_off = asyncio.ensure_future(subscriber.poll_batch(5, 1))
                await gate.reached()
                cut_off.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await cut_off
            events: list[Event] = []
            if wanted == "poll":
                events = await everything(subscriber)
            elif wanted == "poll_batch":
                while batch := await subscriber.poll_batch(3, 20):
                    assert len(batch) <= 3
                    events += batch
            else:
                async for event in subscriber:
                    events.append(event)
                    if len(events) == 12:
                        break
            assert [event.value for event in events] == [f"{'abc'[at % 3]}{at + 1}".encode() for at in range(12)]

    run(main)


def test_wherever_a_call_is_cancelled_nothing_is_missing_or_repeated() -> None:
    """At any turn of the loop, those between its end and the awakening of who waits for it too."""
    rng, cut_off = random.Random(3), 0

    async def life() -> None:
        nonlocal cut_off
        world = World()
        async with world.async_subscriber("abc") as subscriber:
            published(world, 40)
            events: list[Event] = []
            while len(events) < 40:
                most = rng.randint(1, 6)
                call: asyncio.Future[Any] = asyncio.ensure_future(
                    subscriber.poll(20) if most == 1 else subscriber.poll_batch(most, 20)
                )
                for _ in range(rng.randint(0, 4)):
                    await asyncio.sleep(0)
                if rng.random() < 0.3:
                    await asyncio.to_thread(lambda: None)  # what the thread does meanwhile is done, perhaps
                call.cancel()
                try:
                    found = await call
                except asyncio.CancelledError:
                    cut_off += 1
                else:
                    events += found if isinstance(found, EventBatch) else [found]
                if rng.random() < 0.2:
                    event = await subscriber.poll(20)
                    events += [event] if event is not None else []
            assert [event.sequence for event in events] == list(range(1, 41))
            assert [event.value for event in events] == [f"{'abc'[at % 3]}{at + 1}".encode() for at in range(40)]

    async def main() -> None:
        for _ in range(20):
            await life()

    run(main)
    assert cut_off > 20


def test_one_task_takes_events_and_another_one_acknowledges() -> None:
    """While the first waits for events that do not come."""
    world = World()

    async def main() -> None:
        gate = Gate(world)
        async with world.async_subscriber("abc", transport=gate.transport) as subscriber:
            published(world, 3)
            batch = await subscriber.poll_batch(3, 20)
            with gate.shut():
                waiting = asyncio.ensure_future(subscriber.poll(1e9))
                await gate.reached()
                with pytest.raises(Error, match="two tasks wait for events"):
                    await subscriber.poll(0)
                acknowledging = asyncio.ensure_future(subscriber.ack(batch))
            await acknowledging
            assert subscriber.position.g == batch.g[-1]
            assert not waiting.done()
            subscriber.stop()
            assert await waiting is None

    run(main)


def test_a_paused_one_keeps_what_a_cancelled_call_has_left() -> None:
    world = World()

    async def main() -> None:
        async with world.async_subscriber("abc") as subscriber:
            published(world, 4)
            await leave_some(subscriber)
            subscriber.pause()
            assert await subscriber.poll(1) is None
            assert await subscriber.poll(1) is None
            subscriber.resume()
            assert len(await everything(subscriber)) == 4

    run(main)


@pytest.mark.parametrize("drain", [True, False])
def test_the_end_of_the_subscription_ends_the_iteration(drain: bool) -> None:
    world = World()

    async def main() -> None:
        async with world.async_subscriber("abc") as subscriber:
            published(world, 5)
            first = await subscriber.poll(20)
            assert first is not None
            await subscriber.unsubscribe(drain=drain)
            rest = [event async for event in subscriber]
            assert len(rest) == (4 if drain else 0)
            assert subscriber.finished

    run(main)


@pytest.mark.parametrize("held", [True, False])
def test_what_a_cancelled_call_has_left_is_given_up_without_drain(held: bool) -> None:
    """Whether it lies here, or with the thread."""
    world = World()

    async def main() -> None:
        async with world.async_subscriber("abc") as subscriber:
            published(world, 4)
            await leave_some(subscriber)
            if held:
                subscriber.pause()
                assert await subscriber.poll(1) is None
                subscriber.resume()
            await subscriber.unsubscribe(drain=False)
            assert not await subscriber.poll_batch(4, 20)
            assert subscriber.finished

    run(main)


def test_a_change_of_topics() -> None:
    world = World()

    async def main() -> None:
        async with world.async_subscriber("a") as subscriber:
            await subscriber.subscribe(["b"])
            world.publish("a")
            world.publish("b")
            assert [event.topic for event in await everything(subscriber)] == ["b"]

    run(main)


def test_errors_are_those_of_a_subscriber() -> None:
    world = World()

    async def main() -> None:
        with pytest.raises(SettingsError, match="start = 'tomorrow' is unknown"):
            await world.async_subscriber("abc", start="tomorrow").start()
        async with world.async_subscriber("abc") as subscriber:
            with pytest.raises(Error, match="takes an event or a batch"):
                await subscriber.ack("event")  # type: ignore[arg-type]
            with pytest.raises(SettingsError, match="timeout_s = 'soon'"):
                await subscriber.poll("soon")  # type: ignore[arg-type]
            with pytest.raises(SettingsError, match="max_events = 0"):
                await subscriber.poll_batch(0)
            async with world.async_subscriber("abc"):
                published(world, 3)
                for _ in range(2):
                    with pytest.raises(Fenced, match="took over"):
                        await everything(subscriber)
        world.running = False
        with pytest.raises(SequencerUnavailable):
            async with world.async_subscriber("abc", start_timeout_s=1):
                pass

    run(main)


def test_a_task_that_is_cancelled_closes_what_it_has() -> None:
    world = World()

    async def main() -> None:
        async def service() -> None:
            async with world.async_subscriber("abc", transport=transport) as subscriber:
                published(world, 1)
                async for event in subscriber:
                    await subscriber.ack(event)
                    begun.set()

        transport, begun = world.transport(), asyncio.Event()
        task = asyncio.ensure_future(service())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert transport.closed

    run(main)


def test_a_start_that_is_cancelled_leaves_nobody_who_holds_the_id() -> None:
    world = World()

    async def main() -> None:
        gate = Gate(world)
        with gate.shut():
            starting = asyncio.ensure_future(world.async_subscriber("abc", transport=gate.transport).start())
            await gate.reached()
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
            assert not gate.transport.closed
        await asyncio.to_thread(wait_until, lambda: gate.transport.closed, "it is closed")

    run(main)


_WAITS = """
import asyncio, sys, threading
from sim_small import World

async def main():
    world, polled = World(), threading.Event()
    transport = world.transport()
    subscriber = await world.async_subscriber("abc", transport=transport).start()

    def poll(timeout_s):
        polled.set()
        world.tick(timeout_s)

    transport.on_poll = poll
    waits = asyncio.ensure_future(subscriber.poll(1e9))
    while not polled.is_set():
        await asyncio.sleep(0.01)
    print("waits", flush=True)
    if sys.argv[1] == "interrupted":
        await waits

asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["interrupted", "abandoned"])
def test_a_process_ends_though_its_subscriber_waits(how: str) -> None:
    """By Ctrl-C, or by the end of the loop without a word to the subscriber."""
    command = [sys.executable, "-c", _WAITS, how]
    own = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}  # its folder counts for nothing under PYTHONSAFEPATH
    with subprocess.Popen(command, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"waits\n"  # imports take a busy machine its time
            if how == "interrupted":
                process.send_signal(signal.SIGINT)
            _, complaints = process.communicate(timeout=BOUND_S)
        finally:
            process.kill()
    assert (process.returncode != 0) == (how == "interrupted")
    assert b"KeyboardInterrupt" in complaints if how == "interrupted" else not complaints


def test_the_end_of_a_loop_is_no_error_of_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(threading, "excepthook", told.append)
    owner, go_on = Owner("totalorder-s"), threading.Event()

    async def main() -> None:
        owner.submit(lambda: go_on.wait(BOUND_S))

    asyncio.run(main())
    go_on.set()
    owner.finish()
    wait_until(lambda: not threads(), "the thread ends")
    assert told == []


@pytest.mark.parametrize("raised", [StopIteration(), asyncio.CancelledError(), ValueError()])
def test_whatever_a_callback_raises_the_next_call_goes_on(raised: BaseException) -> None:
    world = World()

    def tell(_: object) -> None:
        raise raised

    async def main() -> None:
        async with world.async_subscriber("a", on_granted=tell) as subscriber:
            published(world, 1)
            with pytest.raises((RuntimeError, asyncio.CancelledError, ValueError)):
                await asyncio.wait_for(subscriber.poll(30), 20)
            event = await asyncio.wait_for(subscriber.poll(30), 20)
            assert event is not None

    asyncio.run(main())


def test_callbacks_come_from_the_thread_that_waits_and_reach_the_loop_by_its_own_call() -> None:
    world, told = World(), list[Any]()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        granted = loop.create_future()

        def tell(news: Granted) -> None:
            told.append(threading.current_thread().name)
            loop.call_soon_threadsafe(granted.set_result, news)

        async with world.async_subscriber("a", on_granted=tell) as subscriber:
            published(world, 1)
            assert await asyncio.wait_for(subscriber.poll(30), 20) is not None
            assert (await granted).topics == ("a",)

    asyncio.run(main())
    assert told == ["totalorder-s"]


def test_another_event_loop_is_refused_and_takes_nothing_away() -> None:
    """What is under way for a loop that has ended would be lost to the next call."""
    world = World()
    subscriber = world.async_subscriber("a")

    async def begin() -> None:
        await subscriber.start()
        published(world, 3)
        waits = asyncio.create_task(subscriber.poll(30))
        await asyncio.sleep(0)
        waits.cancel()

    async def go_on() -> None:
        for call in (subscriber.poll, subscriber.save):
            with pytest.raises(Error, match="started in another event loop"):
                await call()
        await subscriber.close()

    async def once_more() -> list[bytes | None]:
        async with world.async_subscriber("a") as newer:
            return [event.value async for event in _first(newer, 1)]

    asyncio.run(begin())
    asyncio.run(go_on())
    assert asyncio.run(once_more()) == [b"a1"]


async def _first(subscriber: Any, count: int) -> Any:
    async for event in subscriber:
        yield event
        count -= 1
        if not count:
            return


def test_positions_in_a_database_are_for_threads() -> None:
    with pytest.raises(SettingsError, match="another thread's"):
        World().async_subscriber("a", positions=object())
