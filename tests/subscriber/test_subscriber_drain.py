"""`stop(drain=True)`: what is there by then comes, and the end does too."""

import asyncio
import itertools
import random
from typing import Any

import pytest
from sim_kafka import SimTransport
from sim_small import World, await_ready, take

from totalorder.errors import BrokerUnavailable
from totalorder.subscriber import Event, Subscriber
from totalorder.subscriber.transport import Partition, Record


def drained(subscriber: Subscriber[Any]) -> list[Any]:
    """What comes until the end, acknowledged; the end comes, and before it no minute without an event."""
    found = []
    subscriber.stop(drain=True)
    while (event := subscriber.poll(60)) is not None:
        subscriber.ack(event)
        found.append(event)
        assert len(found) < 500
    assert subscriber.stopped
    return found


def published(world: World, count: int, topics: str = "ab") -> None:
    for number in range(count):
        world.publish(topics[number % len(topics)])


def numbers(events: list[Event]) -> list[int]:
    return [int((event.value or b"")[1:]) for event in events]


@pytest.mark.parametrize("min_subscriptions", [1, 2])
@pytest.mark.parametrize("max_buffered", [1, 1_000])
def test_all_that_is_stamped_comes_and_then_the_end(min_subscriptions: int, max_buffered: int) -> None:
    world = World(min_subscriptions=min_subscriptions)
    subscriber = world.subscriber("ab", max_buffered=max_buffered)
    for _ in range(4):
        published(world, 10)
        world.tick(0)
    assert sorted(numbers(drained(subscriber))) == list(range(1, 41))


def test_it_ends_though_more_comes_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that something is ready at each moment, news are read before each event."""
    monkeypatch.setattr("totalorder.subscriber.session._NEWS_S", 0.0)
    world = World()
    subscriber = world.subscriber("ab")
    published(world, 10)
    world.tick(0)
    subscriber.stop(drain=True)
    found = []
    for event in itertools.islice(subscriber, 200):
        found.append(event)
        published(world, 2)
    assert 10 <= len(found) < 100
    assert numbers(found) == list(range(1, len(found) + 1))


def test_who_takes_slowly_is_not_kept_by_what_has_come_since() -> None:
    """As with an acknowledgement for each event: more comes than is taken, and much of that is ready at each moment."""
    world = World()
    transport = SimTransport(world.kafka, world.rng, world.tick, most=1_000, fair=True)
    subscriber = world.subscriber("ab", transport=transport)
    published(world, 200)
    await_ready(subscriber, 200)
    found, there = [], 0
    for event in subscriber:
        subscriber.ack(event)
        found.append(event)
        published(world, 3)
        world.tick(0.01)
        if len(found) == 50:
            there = world.count
            subscriber.stop(drain=True)
    assert numbers(found) == list(range(1, len(found) + 1))
    assert there <= len(found) < there + 10


def test_where_nothing_is_there_it_ends_at_once() -> None:
    world = World()
    subscriber = world.subscriber("ab")
    published(world, 3)
    take(subscriber, 3)
    began = world.now
    assert drained(subscriber) == []
    assert world.now - began < 3


def test_no_sequencer_needs_to_run() -> None:
    world = World()
    subscriber = world.subscriber("ab")
    published(world, 6)
    world.tick(0)
    world.running = False
    published(world, 6)
    assert numbers(drained(subscriber)) == [1, 2, 3, 4, 5, 6]


def test_events_that_nobody_stamps_are_not_waited_for() -> None:
    """However many there are: what waits is paused."""
    world = World()
    subscriber = world.subscriber("ab", max_buffered=3)
    published(world, 6)
    world.tick(0)
    world.running = False
    published(world, 60)
    assert numbers(drained(subscriber)) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("writes", range(1, 5))
def test_a_batch_that_is_stamped_by_half_is_not_waited_for(writes: int) -> None:
    world = World(stamps_partitions=3)
    subscriber = world.subscriber("abc")
    published(world, 6, "abc")
    world.tick(0)
    world.running = False
    published(world, 6, "abc")
    world.sequencer.run(crash_after=writes)
    found = numbers(drained(subscriber))
    assert found[:6] == [1, 2, 3, 4, 5, 6]
    subscriber.close()
    world.running = True
    assert sorted(found + numbers(drained(world.subscriber("abc")))) == list(range(1, 13))


def test_a_change_on_the_way_is_gone_through() -> None:
    world = World()
    subscriber = world.subscriber("a")
    published(world, 4, "a")
    world.tick(0)
    subscriber.subscribe(["b"])
    published(world, 4, "b")
    world.tick(0)
    assert [event.topic for event in drained(subscriber)] == ["a"] * 4 + ["b"] * 4


def test_what_is_not_acknowledged_comes_again() -> None:
    world = World()
    subscriber = world.subscriber("ab")
    published(world, 4)
    world.tick(0)
    subscriber.stop(drain=True)
    events = list(subscriber)
    subscriber.ack(events[1])
    subscriber.close()
    assert numbers(drained(world.subscriber("ab"))) == [3, 4]


def test_a_plain_stop_ends_it_too() -> None:
    world = World()
    subscriber = world.subscriber("ab")
    published(world, 4)
    world.tick(0)
    subscriber.stop(drain=True)
    assert next(subscriber).value == b"a1"
    subscriber.stop()
    assert list(subscriber) == []


def test_batches_end_too() -> None:
    world = World()
    subscriber = world.subscriber("ab")
    published(world, 20)
    world.tick(0)
    subscriber.stop(drain=True)
    found: list[Event] = []
    while not subscriber.stopped:
        found += subscriber.poll_batch(7, 0.3)
    assert numbers(found) == list(range(1, 21))


class GrantsLast(SimTransport):
    """Answers come late: what stamps wait for is on the log, and not read yet."""

    def __init__(self, world: World, after: int) -> None:
        super().__init__(world.kafka, world.rng, world.tick, most=100, fair=True)
        self.after: int | None = None
        self.polls = after

    def poll(self, timeout_s: float) -> list[Record]:
        grants = Partition("d.grants", 0)
        if self.after is not None and self.polls:
            self.polls -= 1
            self.paused.add(grants)
        else:
            self.paused.discard(grants)
        return super().poll(timeout_s)


def test_answers_that_stamps_wait_for_are_read_first() -> None:
    world = World()
    transport = GrantsLast(world, 20)
    subscriber = world.subscriber("a", transport=transport)
    published(world, 4)
    world.subscriber("c", id="other")
    published(world, 4)
    world.tick(0)
    transport.after = 0
    subscriber.stop(drain=True)
    found = []
    for _ in range(100):
        try:
            event = next(subscriber)
        except StopIteration:
            break
        found.append(event)
    assert numbers(found) == [1, 3, 5, 7]


def test_an_outage_is_borne(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    transport = world.transport()
    subscriber = world.subscriber("ab", transport=transport)
    published(world, 4)
    world.tick(0)
    ends, silent = transport.end_offsets, [0]

    def fail(partitions: Any, *, once: bool = False) -> dict[Partition, int]:
        if any(at.topic == "d.stamps" for at in partitions) and silent[0] < 5:
            silent[0] += 1
            raise BrokerUnavailable("silence")
        return ends(partitions, once=once)

    monkeypatch.setattr(transport, "end_offsets", fail)
    assert numbers(drained(subscriber)) == [1, 2, 3, 4]
    assert silent == [5]


@pytest.mark.parametrize("seed", range(15))
def test_whatever_was_stamped_before_comes(seed: int) -> None:
    rng = random.Random(seed)
    world = World(stamps_partitions=rng.choice([1, 2, 4]), min_subscriptions=rng.choice([1, 2]))
    world.rng.seed(seed)
    subscriber = world.subscriber("ab", max_buffered=rng.choice([1, 5, 1_000]))
    got = []
    for _ in range(rng.randrange(30)):
        published(world, rng.randrange(4), "abc")
        world.tick(0)
        if rng.random() < 0.4 and (event := subscriber.poll(0)) is not None:
            got.append(event)
    owed = {event for event in range(1, world.count + 1) if event}
    subscriber.stop(drain=True)
    for event in itertools.islice(subscriber, 500):
        got.append(event)
        published(world, rng.randrange(3), "abc")
    assert subscriber.stopped
    read = {record.value for at in (0, 1) for record in world.kafka.logs.get(Partition("c", at), [])}
    others = {int((value or b"")[1:]) for value in read}
    assert owed - others <= set(numbers(got))
    assert len(set(numbers(got))) == len(got)


def test_an_async_subscriber_ends_alike() -> None:
    world = World()

    async def main() -> None:
        async with world.async_subscriber("ab") as subscriber:
            published(world, 9)
            world.tick(0)
            subscriber.stop(drain=True)
            assert not subscriber.stopped
            found = [event async for event in subscriber]
            assert numbers(found) == list(range(1, 10))
            assert subscriber.stopped

    asyncio.run(main())
