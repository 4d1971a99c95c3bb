"""Many events at once: the same stream as one by one, as columns."""

import random

import pyarrow as pa
import pytest
from sim_receipts import receipts_of
from sim_small import World, await_ready

from totalorder.errors import BrokerUnavailable, Error, SettingsError, SubscriptionEnded
from totalorder.subscriber import Event, EventBatch, Lost, Subscriber
from totalorder.subscriber.transport import Partition


def published(world: World, count: int) -> None:
    for at in range(count):
        world.publish("abc"[at % 3])


def everything(subscriber: Subscriber[Event | Lost], most: int = 1_000) -> list[Event | Lost]:
    """All that comes in batches, acknowledged."""
    events: list[Event | Lost] = []
    while batch := subscriber.poll_batch(most, 20):
        events += batch
        subscriber.ack(batch)
    return events


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("most", [1, 3, 1_000])
def test_batches_have_what_single_polls_give(m: int, most: int) -> None:
    world = World(min_subscriptions=m)
    one, other = world.subscriber("abc"), world.subscriber("abc", id="t")
    published(world, 30)
    singles = [event for _ in range(30) if (event := one.poll(60)) is not None]
    batched = everything(other, most)
    assert sorted(singles) == sorted(batched) if m == 2 else singles == batched
    assert [event.sequence for event in batched] == list(range(1, 31))


def test_single_polls_and_batches_may_take_turns() -> None:
    world, rng = World(), random.Random(1)
    subscriber = world.subscriber("abc")
    published(world, 60)
    events: list[Event] = []
    while len(events) < 60:
        if rng.random() < 0.5:
            events += subscriber.poll_batch(rng.randint(1, 7), 20)
        elif (event := subscriber.poll(20)) is not None:
            events.append(event)
    assert [event.g for event in events] == sorted(event.g for event in events)
    assert [event.value for event in events] == [f"{'abc'[at % 3]}{at + 1}".encode() for at in range(60)]
    subscriber.ack(events[-1])
    assert [receipt.is_of(event) for receipt, event in zip(receipts_of(world.kafka, "s"), events, strict=True)] == [
        True
    ] * 60


def test_columns_are_those_of_the_events() -> None:
    world = World()
    subscriber = world.subscriber("abc")
    published(world, 20)
    await_ready(subscriber, 20)
    batch = subscriber.poll_batch(20)
    events = [event for event in batch if isinstance(event, Event)]
    assert len(batch) == len(events) == 20
    for name in ("topic", "key", "value"):
        assert getattr(batch, name) == [getattr(event, name) for event in events]
    for name in ("partition", "offset", "n", "g", "timestamp_ms"):
        assert getattr(batch, name).tolist() == [getattr(event, name) for event in events]


def test_an_arrow_table_has_the_columns() -> None:
    world = World()
    subscriber = world.subscriber("abc")
    published(world, 7)
    await_ready(subscriber, 7)
    batch = subscriber.poll_batch()
    table = batch.to_arrow()
    assert table.column_names == ["topic", "partition", "offset", "key", "value", "g", "n", "timestamp"]
    assert table["topic"].to_pylist() == batch.topic
    assert table["value"].to_pylist() == batch.value
    assert table["g"].to_pylist() == batch.g.tolist()
    assert table["timestamp"].cast(pa.int64()).to_pylist() == batch.timestamp_ms.tolist()


def test_nothing_in_time_is_an_empty_batch() -> None:
    world = World()
    subscriber = world.subscriber("abc")
    batch = subscriber.poll_batch(5, 1)
    assert not batch
    assert (len(batch), list(batch), batch.g.tolist(), batch.topic) == (0, [], [], [])
    assert batch.to_arrow().num_rows == 0
    subscriber.ack(batch)
    assert subscriber.position.g == subscriber.granted_g


def test_no_more_than_was_asked_for_comes() -> None:
    world = World()
    subscriber = world.subscriber("abc")
    published(world, 10)
    await_ready(subscriber, 10)
    assert [len(subscriber.poll_batch(4)) for _ in range(3)] == [4, 4, 2]
    with pytest.raises(SettingsError, match="max_events = 0 must be at least 1"):
        subscriber.poll_batch(0)


def test_a_batch_is_acknowledged_whole_or_through_one_of_its_events() -> None:
    world = World()
    subscriber = world.subscriber("abc")
    published(world, 10)
    await_ready(subscriber, 10)
    first, second = subscriber.poll_batch(5), subscriber.poll_batch(5)
    subscriber.ack(list(first)[2])
    assert subscriber.position.g == first.g[2]
    subscriber.ack(second)
    subscriber.ack(first)
    assert subscriber.position == second.position
    subscriber.close()
    assert everything(world.subscriber("abc")) == []


def test_another_ones_batch_is_not_acknowledged() -> None:
    world = World()
    one, other = world.subscriber("abc"), world.subscriber("abc", id="t")
    published(world, 3)
    await_ready(one, 3)
    batch = one.poll_batch()
    with pytest.raises(Error, match="which subscriber 't' has not handed out"):
        other.ack(batch)


def test_what_was_handed_out_and_not_acknowledged_comes_again_with_a_tag() -> None:
    """A batch goes no further than what is promised: here what the acknowledgement before it has promised."""
    world = World()
    subscriber = world.subscriber("abc")
    published(world, 9)
    await_ready(subscriber, 9)
    subscriber.ack(subscriber.poll_batch(3))
    handed = list(subscriber.poll_batch(9))
    assert 1 <= len(handed) < 6
    events = everything(world.subscriber("abc"))
    assert [event.g for event in events[: len(handed)]] == [event.g for event in handed]
    assert [event.tag for event in events] == ["redelivered"] * len(handed) + [None] * (6 - len(handed))


def test_what_is_lost_comes_first_in_its_batch() -> None:
    world = World()
    world.subscriber("a").close()
    for _ in range(8):
        world.publish("a")
    world.tick(0)
    world.kafka.trim(Partition("a", 0), 2)
    subscriber: Subscriber[Event | Lost] = world.subscriber("a", on_lost="skip")
    batches: list[EventBatch[Event | Lost]] = []
    while batch := subscriber.poll_batch(10, 20):
        batches.append(batch)
    events = [event for batch in batches for event in batch]
    assert [event.g for event in events] == sorted(event.g for event in events)
    assert [event.sequence for event in events] == list(range(1, 9))
    assert sum(isinstance(event, Lost) for event in events) == 2 == sum(len(batch.lost) for batch in batches)
    subscriber.ack(batches[-1])
    subscriber.close()
    assert [receipt.is_of(event) for receipt, event in zip(receipts_of(world.kafka, "s"), events, strict=True)] == [
        True
    ] * 8


def test_while_kafka_is_silent_nothing_is_handed_out() -> None:
    world = World()
    transport = world.transport()
    subscriber = world.subscriber("abc", transport=transport)
    published(world, 5)
    await_ready(subscriber, 5)
    transport.refused = {"d.positions": BrokerUnavailable("gone")}
    assert not subscriber.poll_batch(5)
    transport.refused = {}
    assert len(subscriber.poll_batch(5)) == 5


def test_a_paused_one_and_one_that_is_over() -> None:
    world = World()
    subscriber = world.subscriber("abc")
    published(world, 4)
    await_ready(subscriber, 4)
    subscriber.pause()
    assert not subscriber.poll_batch(5, 1)
    subscriber.resume()
    assert len(subscriber.poll_batch(5, 1)) == 4
    subscriber.unsubscribe()
    assert not subscriber.poll_batch(5, 1)
    subscriber.close()
    with pytest.raises(SubscriptionEnded):
        subscriber.poll_batch()


def test_an_error_within_is_told_again() -> None:
    world = World()
    subscriber = world.subscriber("abc")
    world.subscriber("abc")
    published(world, 3)
    for _ in range(2):
        with pytest.raises(Error, match="took over"):
            everything(subscriber)


@pytest.mark.parametrize("column", ["offset", "n", "g"])
def test_columns_cannot_be_written_to(column: str) -> None:
    """What is saved for the next process is made of the same numbers."""
    world = World()
    subscriber = world.subscriber("abc")
    published(world, 6)
    await_ready(subscriber, 6)
    batch = subscriber.poll_batch(1_000, 20)
    with pytest.raises(ValueError, match="read-only"):
        getattr(batch, column)[:] += 1
