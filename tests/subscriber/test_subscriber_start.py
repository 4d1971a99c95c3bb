"""Where a Subscriber begins: at a place in the order, also long before it was subscribed."""

import logging
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from logged import by_us
from sim_kafka import SimCrash, SimTransport
from sim_receipts import receipts_of
from sim_small import World, take

from totalorder.errors import EventsLost, Fenced, SequencerUnavailable, SettingsError
from totalorder.subscriber import Event, Lost, Position, Reader, Subscriber
from totalorder.subscriber.transport import Partition, Record


def history(rounds: int = 10, **domain: object) -> World:
    """Events of a, b and c, a batch for each two rounds; another subscriber had them all."""
    world = World(**domain)
    other = world.subscriber("abc", id="other")
    for each in range(rounds):
        for topic in "abc":
            world.publish(topic)
        if each % 2:
            world.tick(1)
    world.tick(1)
    take(other, 3 * rounds)
    other.close()
    return world


def everything(world: World, topics: str = "abc") -> list[Any]:
    reader: Reader[Any] = Reader(
        list(topics), domain="d", transport=world.transport(), until="now", clock=lambda: world.now
    )
    return list(reader)


def said(events: list[Any]) -> list[tuple[Any, ...]]:
    return [event[:11] for event in events]


def taken(subscriber: Subscriber[Any]) -> list[Any]:
    """All that comes, acknowledged."""
    events = []
    while (event := subscriber.poll(30)) is not None:
        subscriber.ack(event)
        events.append(event)
    return events


def test_a_late_subscriber_has_exactly_what_follows_each_position_and_then_goes_on() -> None:
    world = history(stamps_partitions=4)
    known = everything(world)
    for at in (0, 7, 15, 29):
        late = world.subscriber("ab", id=f"late{at}", start=known[at].position)
        for topic in "abc":
            world.publish(topic)
        got = taken(late)
        expected = [event for event in everything(world, "ab") if event.g > known[at].g]
        assert said(got) == said(expected)
        assert [event.tag for event in got] == [None] * len(got)
        assert late.position.g == max([late.granted_g, *(event.g for event in got)])
        late.close()


def test_earliest_and_a_time_and_now() -> None:
    world = history()
    known = everything(world, "ac")
    time = datetime.fromtimestamp(world.sequencer.batches[4].time_ms / 1000, UTC)
    world.kafka.trim(Partition("c", 1), 2)
    gone = max(event.g for event in known if (event.topic, event.partition) == ("c", 1) and event.offset < 2)
    behind = [event for event in known if event.g > gone]
    assert said(taken(world.subscriber("ac", id="earliest", start="earliest"))) == said(behind)
    reader: Reader[Any] = Reader(
        ["a"], domain="d", transport=world.transport(), until="now", start=time, clock=lambda: world.now,
        wall_clock=lambda: 2e9,
    )  # fmt: skip
    since = list(reader)
    assert 0 < len(since) < 10
    late: Subscriber[Any] = Subscriber(
        ["a"], id="time", domain="d", transport=world.transport(), start=time, clock=lambda: world.now,
        wall_clock=lambda: 2e9,
    )  # fmt: skip
    assert said(taken(late)) == said(since)
    new = world.subscriber("ab", id="now", start="now")
    assert new.poll(30) is None
    world.publish("a")
    assert [event.n for event in taken(new)] == [11]


@pytest.mark.parametrize("count", [0, 1, 5, 14, 16, 18])
def test_it_is_killed_and_goes_on_with_the_rest_by_what_it_saved(count: int) -> None:
    """Within the history, at its end and behind it."""
    world = history()
    known = everything(world)
    first = world.subscriber("ab", start=known[8].position)
    for topic in "abab":
        world.publish(topic)
    got = take(first, count)  # and killed
    second = world.subscriber("ab")
    rest = taken(second)
    assert said(got + rest) == said([event for event in everything(world, "ab") if event.g > known[8].g])
    granted = first.granted_g
    second.close()
    told = sorted(receipt.g for receipt in receipts_of(world.kafka, "s"))
    assert told == [event.g for event in got + rest if event.g > granted]


def test_it_is_killed_at_any_call_before_it_began_and_begins_again() -> None:
    world = history()
    known = everything(world)
    expected = said([event for event in everything(world, "ab") if event.g > known[8].g])
    crashes = 0
    for calls in range(1, 200, 7):
        transport = world.transport()
        transport.crash_in = calls
        try:
            world.subscriber("ab", id=f"s{calls}", transport=transport, start=known[8].position)
        except SimCrash:
            crashes += 1
        else:
            break
        again = world.subscriber("ab", id=f"s{calls}", start=known[8].position)
        assert said(taken(again)) == expected
        again.close()
    assert crashes > 3


def test_an_application_that_stores_positions_begins_where_its_data_are_whatever_was_saved() -> None:
    world = history()
    known = everything(world)
    first = world.subscriber("ab", start=known[2].position)
    got = take(first, 6)
    stored = got[3].position  # its database was restored to this
    second = world.subscriber("abc", start=Position.parse(str(stored)))
    rest = taken(second)
    assert said(rest) == said([event for event in known if event.g > stored.g])
    assert {event.g for event in rest if event.tag} >= {event.g for event in got[4:]}
    with pytest.raises(Fenced):
        taken(first)


def test_former_sets_of_the_id_do_not_count() -> None:
    world = history(2)
    first = world.subscriber("c")
    for topic in "abc":
        world.publish(topic)
    first.subscribe(["a"])
    for topic in "abc":
        world.publish(topic)
    first.unsubscribe(drain=False)
    first.close()
    second = world.subscriber("bc", start=everything(world)[0].position.at(1))
    assert said(taken(second)) == said([event for event in everything(world, "bc") if event.g > 1])


def test_a_change_of_topics_within_the_history_comes_behind_it() -> None:
    world = history()
    known = everything(world)
    late = world.subscriber("ab", start=known[8].position)
    late.subscribe(["b", "c"])
    changed = late.granted_g
    for topic in "abc":
        world.publish(topic)
    got = taken(late)
    total = everything(world)
    expected = [e for e in total if known[8].g < e.g and (e.topic in "ab" if e.g < changed else e.topic in "bc")]
    assert said(got) == said(expected)


def test_what_is_gone_of_the_history_is_told() -> None:
    world = history()
    known = everything(world, "ab")
    world.kafka.trim(Partition("a", 0), 3)
    with pytest.raises(EventsLost, match="Kafka has it no longer"):
        taken(world.subscriber("ab", id="x", start=known[0].position))
    got = taken(world.subscriber("ab", id="y", start=known[0].position, on_lost="skip"))
    assert [event.g for event in got] == [event.g for event in known[1:]]
    assert {type(event) for event in got} == {Event, Lost}
    for number in range(2):
        world.kafka.trim(Partition("d.stamps", number), 4)
    with pytest.raises(EventsLost, match="reaches back to batch"):
        world.subscriber("ab", id="z", start=known[0].position)


def test_places_that_cannot_be_are_refused_and_nothing_is_asked() -> None:
    world = history()
    before = world.kafka.end(Partition("d.control", 0))
    for start, why in (
        (Position("d", "other", 3), "another incarnation"),
        (Position("e", "id7", 3), "one of domain 'e'"),
        (datetime(2126, 1, 1, tzinfo=UTC), "in the future"),
        ("new", "start = 'new' is unknown"),
    ):
        with pytest.raises(SettingsError, match=why):
            world.subscriber("ab", start=start)
    assert world.kafka.end(Partition("d.control", 0)) == before
    log = world.kafka.ids["d.stamps"]
    with pytest.raises(SettingsError, match="comes after g 32, which is the present"):
        world.subscriber("ab", start=Position("d", log, 99))


@pytest.mark.parametrize("is_time", [False, True])
def test_a_place_that_is_the_present_has_no_history(is_time: bool) -> None:
    """A time that the job's clock has not reached yet, where that is behind, is the present too."""
    world = history()
    log = everything(world)[0].position.log
    place: Any = datetime.fromtimestamp(world.sequencer.time_ms / 1000 + 60, UTC)
    if not is_time:
        ahead = everything(world)[-1].g
        place = Position("d", log, world.subscriber("ab", id="probe").granted_g + 1)
        assert place.g > ahead
    later: dict[str, Any] = {"wall_clock": lambda: 2e9} if is_time else {}
    late: Subscriber[Any] = Subscriber(["a", "b"], **(world.settings("s", None) | later | {"start": place}))
    assert is_time or late.granted_g == place.g
    for topic in "abc":
        world.publish(topic)
    assert [event.topic for event in taken(late)] == ["a", "b"]
    again = world.subscriber("ab")
    assert taken(again) == []


def test_where_there_is_no_common_order_history_is_refused() -> None:
    world = history(min_subscriptions=2)
    with pytest.raises(SettingsError, match="needs min_subscriptions = 1"):
        world.subscriber("ab", start="earliest")


def test_stamps_of_the_grant_that_do_not_come_are_waited_for_no_longer_than_the_sequencer() -> None:
    world = history()
    known = everything(world)
    transport, kafka = world.transport(), world.kafka
    end = kafka.end(Partition("d.stamps", 1))
    kept = transport._take

    def hides(partition: Partition) -> Any:
        return [r for r in kept(partition) if not (r.topic == "d.stamps" and r.partition == 1 and r.offset >= end)]

    transport._take = hides  # type: ignore[method-assign]
    with pytest.raises(SequencerUnavailable, match="stamps do not go as far as its answer"):
        world.subscriber("abc", transport=transport, start=known[3].position)


def test_keys_name_topics_and_old_and_new_events_of_one_partition_are_told_apart() -> None:
    world = World(topic_by="key")
    world.tick(0)
    for number in range(40):
        world.kafka.append(Partition("a", 0), key=b"xyz"[number % 3 : number % 3 + 1], value=b"%d" % number)
        if number % 3:
            world.tick(1)
    world.tick(1)
    known = everything(world, "xyz")
    late = world.subscriber("yz", start=known[10].position)
    assert said(taken(late)) == said([event for event in known[11:] if event.topic in "yz"])
    assert all(one.g < other.g for one, other in pairwise(known))


class SlowLine(SimTransport):
    """Each second poll brings nothing."""

    _polls = 0

    def poll(self, timeout_s: float) -> list[Record]:
        self._polls += 1
        if self._polls % 2:
            self.on_poll(timeout_s)
            return []
        return super().poll(timeout_s)


def test_a_long_history_over_a_slow_line_is_begun(caplog: pytest.LogCaptureFixture) -> None:
    """What comes at all is not waited for in vain, however often nothing does; and it is said, but not as a stall."""
    caplog.set_level(logging.INFO)
    world = World(stamps_partitions=1)
    for _ in range(100):
        world.publish("a")
        world.tick(1)
    slow = SlowLine(world.kafka, world.rng, world.tick, most=2, fair=True)
    late = world.subscriber("a", transport=slow, start="earliest", start_timeout_s=3)
    assert len(taken(late)) == 100
    assert "subscriber 's' of domain 'd' waits for what it looks for in d.stamps, which is read, for" in caplog.text
    assert not by_us(caplog, logging.WARNING)


@pytest.mark.parametrize("most", [1, 2, 50])
def test_old_batches_that_a_replaced_job_wrote_once_more_are_no_loss(most: int) -> None:
    """They mislead the search; what came with the record behind the gap is read once more, and not now."""
    world = World(stamps_partitions=1)
    stamps = Partition("d.stamps", 0)
    for _ in range(60):
        world.publish("a")
        world.tick(1)
    for record in list(world.kafka.logs[stamps])[2:5] * 6:
        told: dict[str, Any] = {"headers": record.headers, "timestamp_ms": record.timestamp_ms}
        world.kafka.append(stamps, key=record.key, value=record.value, **told)
    for _ in range(20):
        world.publish("a")
        world.tick(1)
    known = everything(world, "a")
    transport = SimTransport(world.kafka, world.rng, world.tick, most=most, fair=True)
    late = world.subscriber("a", transport=transport, start=known[49].position)
    assert [event.g for event in taken(late)] == [event.g for event in known[50:]]


@pytest.mark.parametrize("is_killed_at_once", [False, True])
def test_stamps_of_the_grant_that_come_behind_it_where_all_others_expired_are_the_beginning(
    is_killed_at_once: bool,
) -> None:
    """What begins so goes on, and leaves a position that a later process can read."""
    world = World(stamps_partitions=2)
    for topic in "abc":
        world.publish(topic)
    world.tick(1)
    stamps = [Partition("d.stamps", number) for number in range(2)]
    for at in stamps:
        world.kafka.trim(at, world.kafka.end(at))
        world.kafka.hold(at)
    transport = world.transport()

    def show_what_is_waited_for(timeout_s: float) -> None:
        world.tick(timeout_s)
        if not transport.positions.keys().isdisjoint(stamps):
            for at in stamps:
                world.kafka.held.pop(at, None)

    transport.on_poll = show_what_is_waited_for
    subscriber = world.subscriber("abc", start="earliest", transport=transport)
    if is_killed_at_once:
        transport.close()
        subscriber = world.subscriber("abc")
    for n in (2, 3):
        for topic in "abc":
            world.publish(topic)
            world.tick(1)
        assert [(event.topic, event.n) for event in take(subscriber, 3)] == [(topic, n) for topic in "abc"]
        subscriber._transport.close()
        subscriber = world.subscriber("abc")
