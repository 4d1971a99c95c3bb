"""Events that Kafka has no longer: stop with their names, or go on without them and nothing else."""

from collections.abc import Callable

import pytest
from sim_kafka import SimKafka, SimTransport
from sim_receipts import receipts_of
from sim_small import World
from sim_twins import place

from totalorder.errors import EventsLost
from totalorder.sequencer.wire.stamps import Source
from totalorder.subscriber import Event, Lost, Subscriber
from totalorder.subscriber.transport import Partition, Record

Take = Callable[[Subscriber[Event | Lost]], list[Event | Lost]]
"""What comes of one call."""


def everything(subscriber: Subscriber[Event | Lost]) -> list[Event | Lost]:
    """All that comes, acknowledged."""
    events = []
    while (event := subscriber.poll(20)) is not None:
        subscriber.ack(event)
        events.append(event)
    return events


def losses(events: list[Event | Lost]) -> list[Lost]:
    return [event for event in events if isinstance(event, Lost)]


def backlog(gone: int = 5) -> tuple[World, set[tuple[Source, int]]]:
    """A subscriber away, 40 events of a and 20 of b, stamped; some of a's partition 0 are gone; what is left."""
    world = World()
    world.subscriber("ab").close()
    for _ in range(20):
        world.publish("a")
        world.publish("a")
        world.publish("b")
        world.tick(0)
    world.kafka.trim(Partition("a", 0), gone)
    return world, left(world.kafka)


def left(kafka: SimKafka) -> set[tuple[Source, int]]:
    return {(r.at.source, r.offset) for at, log in kafka.logs.items() if at.topic in "ab" for r in log}


def at(world: World, topic: str, partition: int) -> Source:
    return Source(topic, world.kafka.ids[topic], partition)


def test_lost_events_stop_a_subscriber_that_was_not_told_to_go_on() -> None:
    world, _ = backlog()
    subscriber = world.subscriber("ab")
    with pytest.raises(
        EventsLost, match=r"a\[0\]@0 of topic 'a' is stamped \(g \d+, n \d+\), but Kafka has it no longer"
    ):
        everything(subscriber)


def one(subscriber: Subscriber[Event | Lost]) -> list[Event | Lost]:
    event = subscriber.poll(20)
    return [] if event is None else [event]


def several(subscriber: Subscriber[Event | Lost]) -> list[Event | Lost]:
    return list(subscriber.poll_batch(7, 20))


def take_all(subscriber: Subscriber[Event | Lost], take: Take, handed: list[Event | Lost]) -> None:
    for _ in range(100):
        handed += take(subscriber)
        if handed:
            subscriber.ack(handed[-1])


@pytest.mark.parametrize("take", [one, several])
@pytest.mark.parametrize("killed", [True, False])
@pytest.mark.parametrize("most", [1, 4, 100])
@pytest.mark.parametrize("offset", [0, 7, 18])
def test_a_loss_stops_a_subscriber_at_its_turn_behind_all_that_stands_before_it(
    take: Take, killed: bool, most: int, offset: int
) -> None:
    """However much came with it; and whoever skips begins with it, and is told of nothing that it comes again."""
    world, _ = backlog(gone=0)
    del world.kafka.logs[Partition("a", 1)][offset]
    handed: list[Event | Lost] = []
    subscriber = world.subscriber("ab", transport=SimTransport(world.kafka, world.rng, world.tick, most=most))
    with pytest.raises(EventsLost, match=rf"a\[1\]@{offset} of topic 'a' is stamped") as told:
        take_all(subscriber, take, handed)
    with pytest.raises(EventsLost) as again:
        take(subscriber)
    assert again.value is told.value
    if not killed:
        subscriber.close()
    rest = everything(world.subscriber("ab", on_lost="skip"))
    assert [event.g for event in handed + rest] == sorted({event.g for event in handed + rest})
    assert len(handed + rest) == 60
    assert (type(rest[0]), place(rest[0])) == (Lost, (at(world, "a", 1), offset))
    assert {event.tag for event in rest} == {None}


def test_what_is_gone_and_was_no_event_stops_nobody() -> None:
    """A transaction's marker has an offset of its own: behind it a log may begin whose events have all been read."""
    world = World()
    world.publish("a")
    world.publish("a")
    world.tick(0)
    for number in range(2):
        world.kafka.skip(Partition("a", number))
        world.kafka.trim(Partition("a", number), world.kafka.end(Partition("a", number)))
    subscriber = world.subscriber("a")
    assert everything(subscriber) == []
    world.publish("a")
    assert [event.n for event in everything(subscriber)] == [3]


def test_whoever_goes_on_without_what_is_lost_gets_all_else_in_order() -> None:
    world, kept = backlog()
    events = everything(world.subscriber("ab", on_lost="skip"))
    assert [event.g for event in events] == sorted(event.g for event in events)
    assert len(events) == 60
    assert [place(event) for event in losses(events)] == [(at(world, "a", 0), offset) for offset in range(5)]
    assert {(event.topic, event.last_offset - event.first_offset, event.tag) for event in losses(events)} == {
        ("a", 0, None)
    }
    assert not any(hasattr(event, name) for event in losses(events) for name in ("value", "key", "headers"))
    assert {place(event) for event in events if isinstance(event, Event)} == kept
    assert [event.n for event in events if event.topic == "a"] == list(range(1, 41))


def test_what_is_lost_has_a_receipt_as_all_else() -> None:
    world, _ = backlog()
    events = everything(world.subscriber("ab", on_lost="skip"))
    told = [(receipt.source, receipt.offset, receipt.lost) for receipt in receipts_of(world.kafka, "s")]
    assert told == [(*place(event), isinstance(event, Lost)) for event in events]


def test_what_was_told_to_be_lost_is_acknowledged_like_any_event() -> None:
    world, _ = backlog()
    first = world.subscriber("ab", on_lost="skip")
    while (event := first.poll(20)) is not None:
        first.ack(event)
        if isinstance(event, Lost):
            break
    first.close()
    events = everything(world.subscriber("ab", on_lost="skip"))
    assert [event.first_offset for event in losses(events)] == [1, 2, 3, 4]
    assert {event.tag for event in events} == {None}


def test_what_was_told_to_be_lost_and_not_acknowledged_is_told_again_and_says_so() -> None:
    world, _ = backlog()
    first = world.subscriber("ab", on_lost="skip", nonce="first")
    while not isinstance(first.poll(20), Lost):
        pass
    told = losses(everything(world.subscriber("ab", on_lost="skip")))
    assert len(told) == 5
    assert told[0].tag == "redelivered"


def test_receipts_tell_what_is_lost() -> None:
    world, _ = backlog()
    events = everything(world.subscriber("ab", on_lost="skip", nonce="n"))
    receipts = receipts_of(world.kafka, "s")
    assert len(receipts) == len(events) == 60
    assert all(receipt.is_of(event) for receipt, event in zip(receipts, events, strict=True))
    assert sum(receipt.lost for receipt in receipts) == 5


def test_a_partition_of_which_nothing_is_left_keeps_nobody_waiting() -> None:
    world, _ = backlog()
    world.kafka.trim(Partition("a", 0), world.kafka.ends[Partition("a", 0)])
    events = everything(world.subscriber("ab", on_lost="skip"))
    assert len(events) == 60
    assert len(losses(events)) == 20
    world.publish("a")
    world.publish("a")


def test_a_hole_within_a_partition_is_told_at_its_place() -> None:
    world, _ = backlog()
    log = world.kafka.logs[Partition("a", 1)]
    del log[7:9]
    events = everything(world.subscriber("ab", on_lost="skip"))
    source = at(world, "a", 1)
    assert [place(e) for e in losses(events) if e.partition == 1] == [(source, 7), (source, 8)]


def test_with_m_2_nothing_is_skipped() -> None:
    """No entries order the topics that only this subscriber holds: the place of what is lost is not known."""
    world = World(min_subscriptions=2)
    world.subscriber("ab").close()
    for _ in range(5):
        world.publish("a")
        world.publish("b")
        world.tick(0)
    world.kafka.trim(Partition("a", 0), world.kafka.ends.get(Partition("a", 0), 0))
    world.kafka.trim(Partition("a", 1), world.kafka.ends.get(Partition("a", 1), 0))
    with pytest.raises(EventsLost):
        everything(world.subscriber("ab", on_lost="skip"))


class AllAtOnce(SimTransport):
    """Names all partitions that have lost something in one error, as the one over Kafka does."""

    def poll(self, timeout_s: float) -> list[Record]:
        try:
            return super().poll(timeout_s)
        except EventsLost as error:
            begins = {at: self.kafka.begin(at) for at in self.positions}
            gone = {at.source: begins[at] for at, here in self.positions.items() if here < begins[at]}
            raise EventsLost(error.what, gone=gone) from None


def test_a_loss_that_completes_a_change_may_drop_what_is_lost_beside_it() -> None:
    world = World()
    a, b = Partition("a", 0), Partition("b", 0)
    for at in (a, b):
        world.kafka.append(at, value=b"before")
    world.tick(0)
    subscriber = world.subscriber("ab", on_lost="skip", transport=AllAtOnce(world.kafka, world.rng, world.tick))
    world.kafka.append(a, value=b"lost")
    world.tick(0)
    subscriber.pause()
    subscriber._session._throttle()
    subscriber.subscribe(["c"])
    for at in (b, a) * 3:
        world.kafka.append(at, value=b"behind")
    world.tick(0)
    for _ in range(30):
        subscriber._session.pump(0)
    world.kafka.trim(a, 5)
    world.kafka.trim(b, 4)
    subscriber.resume()
    assert [(event.topic, type(event)) for event in everything(subscriber)] == [("a", Lost)]


def test_lost_stamps_are_never_skipped() -> None:
    world, _ = backlog()
    for number in range(2):
        world.kafka.trim(Partition("d.stamps", number), world.kafka.ends[Partition("d.stamps", number)] - 1)
    with pytest.raises(EventsLost, match=r"d\.stamps|stamps"):
        everything(world.subscriber("ab", on_lost="skip"))
