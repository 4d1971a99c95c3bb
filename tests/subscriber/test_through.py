"""A compacted partition is read as far as it goes just now, whatever is written and compacted meanwhile."""

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, strategies as st
from sim_kafka import SimKafka, SimTransport
from sim_small import World, await_ready, take

from totalorder.errors import BrokerUnavailable, Fenced
from totalorder.subscriber import Event, Lost, Reader
from totalorder.subscriber.through import through
from totalorder.subscriber.transport import Partition, Record

AT = Partition("saved", 0)


class Busy(SimTransport):
    """Whenever it is asked for the end of a topic, `meanwhile` runs before."""

    def __init__(self, world: World, topic: str, meanwhile: Callable[[], None]) -> None:
        super().__init__(world.kafka, world.rng, world.tick)
        self.topic, self.meanwhile = topic, meanwhile

    def end_offsets(self, partitions: Iterable[Partition], *, once: bool = False) -> dict[Partition, int]:
        partitions = list(partitions)
        if any(partition.topic == self.topic for partition in partitions):
            self.meanwhile()
        return super().end_offsets(partitions, once=once)


class Late(Busy):
    """And its records come some time after they were written."""

    late_s = 3.0

    def __init__(self, world: World, topic: str, meanwhile: Callable[[], None]) -> None:
        super().__init__(world, topic, meanwhile)
        self.world, self.written = world, list[float]()
        """When each record was written, or a little later."""

    def _take(self, partition: Partition) -> list[Record]:
        if partition.topic != self.topic:
            return super()._take(partition)
        now, position = self.world.now, self.positions[partition]
        self.written += [now] * (self.kafka.end(partition) - len(self.written))
        reached = max(position, sum(at <= now - self.late_s for at in self.written))
        self.positions[partition] = reached
        return [record._replace(topic_id="") for record in self.kafka.records(partition, position, reached - position)]


class Bounded(SimTransport):
    """May not be asked for an end again and again, where nothing comes any more."""

    asked = 0

    def end_offsets(self, partitions: Iterable[Partition], *, once: bool = False) -> dict[Partition, int]:
        self.asked += 1
        assert self.asked < 200, "it comes to an end"
        return super().end_offsets(partitions, once=once)


def read(kafka: SimKafka, between: Callable[[], None], rng: random.Random) -> dict[bytes | None, int]:
    """By key the newest offset that was read; `between` runs before each poll."""
    transport, records = Bounded(kafka, rng, lambda _: between()), list[Record]()
    transport.read(AT, 0)
    for _ in through(transport, AT, records.__len__):
        records += transport.poll(0)
    return {record.key: record.offset for record in records}


def test_what_others_write_all_the_time_does_not_put_it_off() -> None:
    kafka, polls = SimKafka(), 0
    kafka.create(AT.topic, 1)
    kafka.append(AT, key=b"mine")

    def between() -> None:
        nonlocal polls
        polls += 1
        assert polls < 100
        for _ in range(5):
            kafka.append(AT, key=b"theirs")
        kafka.compact(AT, before=3)

    assert read(kafka, between, random.Random(1))[b"mine"] == 0


def test_what_is_missing_is_looked_for_behind_the_end_as_it_was() -> None:
    """Each time that the end is reached, what lay before it has been taken by compaction, for a newer one; and what
    comes of others beyond it does not make up for that.
    """
    kafka, left = SimKafka(), 3
    kafka.create(AT.topic, 1)
    for key in (b"mine", b"theirs", b"mine"):
        kafka.append(AT, key=key)

    def between() -> None:
        nonlocal left
        if left:
            left -= 1
            for key in (b"theirs", b"mine"):
                kafka.append(AT, key=key)
            kafka.compact(AT)

    for seed in range(20):
        left = 3
        assert read(kafka, between, random.Random(seed))[b"mine"] == kafka.ends[AT] - 1


@given(st.integers(0, 2**32), st.integers(1, 40))
def test_the_newest_of_each_key_is_read(seed: int, writes: int) -> None:
    """Of what was there at the begin, or a newer one; for as long as there are writes, each may compact."""
    rng, kafka, left = random.Random(seed), SimKafka(), writes
    kafka.create(AT.topic, 1)

    def write() -> None:
        kafka.append(AT, key=b"%d" % rng.randrange(4))
        if rng.random() < 0.3:
            kafka.compact(AT)

    def between() -> None:
        nonlocal left
        if left and rng.random() < 0.7:
            left -= 1
            write()

    for _ in range(rng.randrange(12)):
        write()
    there = {record.key: record.offset for record in kafka.logs.get(AT, [])}
    newest = read(kafka, between, rng)
    assert all(newest.get(key, -1) >= offset for key, offset in there.items())


class Silent(SimTransport):
    """No broker says where a partition ends. A question that is asked once has no answer; others would wait for it."""

    def end_offsets(self, partitions: Iterable[Partition], *, once: bool = False) -> dict[Partition, int]:
        assert once, "it waits for ever"
        raise BrokerUnavailable("no broker answers", remedy="")


def test_who_must_not_wait_for_a_broker_does_not() -> None:
    transport = Silent(SimKafka(), random.Random(1), lambda _: None)
    transport.read(AT, 0)
    with pytest.raises(BrokerUnavailable):
        list(through(transport, AT, lambda: 0, once=True))


@pytest.mark.parametrize("topic", ["d.positions", "d.grants"])
def test_a_subscriber_begins_and_goes_on_while_others_save_and_are_answered_all_the_time(topic: str) -> None:
    world = World(stamps_partitions=1)
    world.publish("a")
    other = world.subscriber("a", id="other")

    def meanwhile() -> None:
        if topic == "d.grants":
            other._session._requests.renew(other._session.generation, 2.0)
            world.tick(0)
        else:
            other._session.save(always=True)

    subscriber = world.subscriber("a", transport=Busy(world, topic, meanwhile), start_timeout_s=20)
    for _ in range(5):
        world.publish("a")
    assert [event.topic for event in take(subscriber, 5)] == ["a"] * 5
    with Reader(["a"], domain="d", transport=Busy(world, topic, meanwhile), start="earliest", until="now") as reader:
        assert len(list(reader)) == 6
    for one in (subscriber, other):
        one.close()


def test_what_is_there_may_take_longer_to_be_read_than_a_start_may_wait() -> None:
    """Of a domain with many subscriptions. What does not come is another matter."""
    world = World(stamps_partitions=1)
    other = world.subscriber("b", id="other")
    for _ in range(60):
        other._session._requests.renew(other._session.generation, 2.0)
        world.tick(0.01)
    slow = world.transport()
    slow.most = 1
    begun, subscriber = world.now, world.subscriber("a", transport=slow, start_timeout_s=5)
    assert world.now - begun > 10
    subscriber.close()
    silent = Late(world, "d.grants", lambda: None)
    silent.late_s = 1e6
    with pytest.raises(BrokerUnavailable, match=r"d\.grants could not be read to its end within 5 s"):
        world.subscriber("a", id="silent", transport=silent, start_timeout_s=5)
    other.close()


@pytest.mark.parametrize("topic", ["d.grants", "d.stamps"])
def test_a_reader_waits_for_its_beginning_while_something_comes_and_not_for_ever(topic: str) -> None:
    world = World(stamps_partitions=1)
    world.publish("a")
    other = world.subscriber("a", id="other")
    for _ in range(60):
        other._session._requests.renew(other._session.generation, 2.0)
        world.publish("b")
        world.tick(0.01)
    other.close()
    settings: dict[str, Any] = {"domain": "d", "outage_timeout_s": 5, "clock": lambda: world.now}
    slow, begun = world.transport(), world.now
    slow.most = 1
    Reader(["a", "b"], transport=slow, **settings).close()
    assert world.now - begun > 10
    silent = Late(world, topic, lambda: None)
    silent.late_s = 1e6
    with pytest.raises(BrokerUnavailable, match=rf"{topic} could not be read to its end within 5 s.*outage_timeout_s"):
        Reader(["a", "b"], transport=silent, **settings)


def test_a_subscriber_whom_answers_reach_late_begins_and_goes_on_while_others_are_answered_all_the_time() -> None:
    """A look at grants ends sooner than they come, and when the next one begins there are more."""
    world = World(stamps_partitions=1)
    other = world.subscriber("b", id="other")

    def meanwhile() -> None:
        other._session._requests.renew(other._session.generation, 2.0)
        world.tick(0)

    subscriber = world.subscriber("a", transport=Late(world, "d.grants", meanwhile), start_timeout_s=20)
    for _ in range(5):
        world.publish("a")
        assert [event.topic for event in take(subscriber, 1)] == ["a"]
    for one in (subscriber, other):
        one.close()


def test_a_look_that_goes_on_covers_nothing_that_was_promised_since() -> None:
    """Another process that was granted the id between the look's begin and that promise did not see the promise."""
    world = World(stamps_partitions=1)
    other = world.subscriber("b", id="other")

    def meanwhile() -> None:
        other._session._requests.renew(other._session.generation, 2.0)
        world.tick(0)

    first = world.subscriber("a", transport=Late(world, "d.grants", meanwhile), save_interval_s=1e6)
    holding, grants = first._session._holding, Partition("d.grants", 0)
    for _ in range(20):
        world.publish("a")
    await_ready(first, 20)
    got: list[Event | Lost] = []

    def take_next() -> None:
        if (event := first._session.hand_out()) is not None:  # `poll` would look more than once
            got.append(event)

    while not (got and grants in holding._begun):
        take_next()
    second = world.subscriber("a")
    first._session._ahead = 20
    first._session.save(always=True)
    assert first._session._positions.promised > holding._begun[grants][0]

    def take_all() -> None:
        while first._session.ready:
            take_next()

    with pytest.raises(Fenced):
        take_all()
    tags = {event.g: event.tag for event in take(second, 20)}
    assert {tags[event.g] for event in got} == {"redelivered"}
    assert None in tags.values()
    for one in (second, other):
        one.close()
