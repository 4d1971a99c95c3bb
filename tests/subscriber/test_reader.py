"""What a user sees of a Reader."""

import itertools
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest
from logged import by_us
from sim_kafka import SimTransport
from sim_small import World, take

from totalorder.errors import Contradiction, Error, EventsLost, SettingsError
from totalorder.subscriber import Event, Lost, Position, Reader, stamps_log
from totalorder.subscriber.transport import Partition, Record


def reader_of(world: World, topics: Any = "abc", transport: SimTransport | None = None, **settings: Any) -> Reader[Any]:
    return Reader(
        None if topics is None else list(topics),
        domain="d",
        transport=transport or world.transport(),
        clock=lambda: world.now,
        wall_clock=lambda: world.sequencer.time_ms / 1000,
        **settings,
    )


def read(world: World, topics: Any = "abc", **settings: Any) -> list[Any]:
    """Everything through now, unless told otherwise."""
    return list(reader_of(world, topics, **{"until": "now", **settings}))


def backlog(rounds: int = 12, **domain: object) -> World:
    """Events of a, b and c, three a round, and a batch for each two rounds."""
    world = World(**domain)
    world.tick(0)
    for each in range(rounds):
        for topic in "abc":
            world.publish(topic)
        if each % 2:
            world.tick(1)
    world.tick(1)
    return world


def taken(reader: Reader[Any]) -> Any:
    """The next event."""
    event = reader.poll(60)
    assert event is not None
    return event


def said(events: list[Any]) -> list[tuple[Any, ...]]:
    """All that a subscriber and a reader have in common of an event."""
    return [
        (each.g, each.n, each.topic, each.kafka_topic, each.topic_id, each.partition, each.offset, each.key, each.value,
         each.headers, each.timestamp_ms, each.position)
        for each in events
    ]  # fmt: skip


def test_a_reader_gives_what_every_subscriber_got() -> None:
    world = World(stamps_partitions=4)
    sets = ("ab", "bc", "abc", "a")
    subscribers = [world.subscriber(topics, id=topics) for topics in sets]
    for each in range(60):
        world.publish("abc"[each * each % 3])
        world.tick(0.01)
    everything = take(subscribers[2], 60)
    assert said(read(world)) == said(everything)
    for topics, subscriber in zip(sets, subscribers, strict=True):
        mine = [event for event in everything if event.topic in topics]
        assert said(read(world, topics)) == said(mine)
        if topics != "abc":
            assert said(take(subscriber, len(mine))) == said(mine)


def test_what_follows_each_position_is_exactly_the_rest() -> None:
    world = backlog(stamps_partitions=4)
    everything = read(world)
    assert [event.n for event in everything if event.topic == "b"] == list(range(1, 13))
    for at, event in enumerate(everything):
        assert said(read(world, start=event.position)) == said(everything[at + 1 :])
        assert said(read(world, start="earliest", until=event.position)) == said(everything[: at + 1])
    assert said(read(world, start=everything[3].position.at(0))) == said(everything)


def test_a_snapshot_and_what_follows_are_the_whole_for_any_topics_and_while_the_job_goes_on() -> None:
    world = backlog()
    seen = read(world, "ab")
    late = reader_of(world, "bc", start=seen[7].position)
    for topic in "cab" * 3:
        world.publish(topic)
    got = [taken(late) for _ in range(8 + 8 + 6 - sum(e.topic == "b" for e in seen[:8]))]
    rest = [event for event in read(world, "bc") if event.g > seen[7].g]
    assert said(got) == said(rest[: len(got)])
    assert late.position == got[-1].position


def test_it_goes_on_while_the_job_is_down_with_what_is_stamped_and_later_with_the_rest() -> None:
    world = backlog()
    world.running = False
    world.publish("a")
    reader = reader_of(world, "a")
    assert len([reader.poll(60) for _ in range(12)]) == 12
    assert reader.poll(60) is None
    assert not reader.finished
    world.running = True
    late = taken(reader)
    assert (late.n, late.topic) == (13, "a")


def test_a_batch_that_is_not_on_all_partitions_yet_is_not_given_and_nobody_waits_for_it() -> None:
    world = backlog(stamps_partitions=4)
    whole = read(world)
    world.publish("a")
    world.publish("b")
    world.tick(1)
    torn = Partition("d.stamps", 1)
    last = world.kafka.logs[torn].pop()
    world.kafka.ends[torn] -= 1
    world.running = False
    assert said(read(world)) == said(whole)
    follows = reader_of(world, start=whole[-1].position)
    assert follows.poll(60) is None
    world.kafka.logs[torn].append(last)
    world.kafka.ends[torn] += 1
    assert [taken(follows).topic, taken(follows).topic] == ["a", "b"]


def test_nothing_is_written() -> None:
    world = backlog()
    before = dict(world.kafka.ends)
    transport = world.transport()
    world.running = False
    with reader_of(world, transport=transport, until="now") as reader:
        assert len(list(reader)) == 36
        assert reader.finished
    assert transport.sent == []
    assert transport.closed
    assert world.kafka.ends == before


# --- where it begins and ends -----------------------------------------------------------------------------------------


def batch_times(world: World) -> list[datetime]:
    return [datetime.fromtimestamp(cut.time_ms / 1000, UTC) for cut in world.sequencer.batches]


def test_a_time_begins_with_the_first_batch_that_was_stamped_then_or_later() -> None:
    world = backlog()
    everything, times = read(world), batch_times(world)
    by_batch = [list(group) for _, group in itertools.groupby(everything, lambda event: (event.g - 1) // 6)]
    assert len(times) == len(by_batch) == 6
    for number, time in enumerate(times):
        rest = [event for batch in by_batch[number:] for event in batch]
        past = [event for batch in by_batch[:number] for event in batch]
        assert said(read(world, start=time)) == said(rest)
        assert said(read(world, start=time - timedelta(milliseconds=1))) == said(rest)
        assert said(read(world, until=time)) == said(past)
        assert said(read(world, start=time + timedelta(milliseconds=1))) == said(rest[6:])


def test_until_a_time_that_is_past_ends_though_no_batch_came_since() -> None:
    world = backlog()
    world.running = False
    world.sequencer.time_ms += 3_600_000
    assert len(read(world, until=batch_times(world)[-1] + timedelta(minutes=1))) == 36


def test_until_a_time_ahead_waits_for_it() -> None:
    world = backlog()
    end = datetime.fromtimestamp(world.sequencer.time_ms / 1000 + 100, UTC)
    reader = reader_of(world, "a", start="now", until=end)
    assert reader.poll(10) is None
    world.publish("a")
    assert taken(reader).n == 13
    assert reader.poll(200) is None
    world.publish("a")
    assert reader.poll(20) is None
    assert reader.finished


def test_now_is_behind_all_that_is_stamped() -> None:
    world = backlog()
    reader = reader_of(world, start="now")
    assert reader.position.g == 36
    assert reader.poll(60) is None
    world.publish("c")
    assert (taken(reader).n, reader.position.g) == (13, 37)


def test_an_empty_domain_has_a_beginning_and_an_end() -> None:
    world = World()
    assert read(world) == []
    assert read(world, start="now") == []
    reader = reader_of(world)
    world.publish("a")
    assert taken(reader).g == 1


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"start": Position("store", "id7", 3)}, "is one of domain 'store', and not of 'd'"),
        ({"until": Position("d", "other", 3)}, "is of another incarnation of domain 'd'"),
        ({"start": "new"}, "start = 'new' is unknown"),
        ({"start": "d/id7/3"}, "start = 'd/id7/3' is unknown.*Position.parse"),
        ({"start": 3}, "start = 3 is unknown"),
        ({"until": "earliest"}, "until = 'earliest' is unknown"),
        ({"start": datetime(2026, 11, 30)}, "has no time zone"),  # noqa: DTZ001
        ({"start": datetime(2126, 11, 30, tzinfo=UTC)}, "is in the future"),
        ({"start": Position("d", "id7", 3), "until": Position("d", "id7", 2)}, "lies before start"),
        ({"topics": None}, "wants topics or a pattern"),
        ({"pattern": "a"}, "wants topics or a pattern"),
        ({"topics": None, "pattern": "("}, "is no regular expression"),
        ({"topics": ()}, "0 topics"),
        ({"on_lost": "ignore"}, "on_lost = 'ignore' is unknown"),
        ({"max_buffered": 0}, "must be at least 1"),
    ],
)
def test_what_cannot_be_meant_is_refused(settings: dict[str, Any], why: str) -> None:
    world = backlog(2)
    assert world.kafka.ids["d.stamps"] == "id7"
    with pytest.raises(SettingsError, match=why):
        reader_of(world, **settings)


def test_a_domain_that_was_begun_anew_refuses_its_former_positions() -> None:
    world = backlog(2)
    stored = str(read(world)[-1].position)
    for topic in list(world.kafka.topics):
        if topic.startswith("d."):
            world.kafka.delete(topic)
    anew = World()
    anew.kafka.made += 20
    anew.kafka.delete("d.stamps")
    anew.kafka.create("d.stamps", 2)
    with pytest.raises(SettingsError, match="another incarnation of domain 'd': its stamps are id"):
        reader_of(anew, start=Position.parse(stored))


def test_a_domain_that_is_not_there_is_told_at_once() -> None:
    world = World()
    world.kafka.delete("d.stamps")
    with pytest.raises(Error, match="there is no domain 'd' on this broker"):
        reader_of(world)


# --- what is gone -----------------------------------------------------------------------------------------------------


def gone(world: World, topic: str, partition: int, offset: int) -> None:
    world.kafka.trim(Partition(topic, partition), offset)


def test_earliest_is_one_cut_behind_all_that_is_gone() -> None:
    world = backlog()
    everything = read(world)
    gone(world, "b", 0, 3)
    last = max(event.g for event in everything if (event.topic, event.partition) == ("b", 0) and event.offset < 3)
    rest = [event for event in everything if event.g > last]
    assert said(read(world)) == said(rest)
    assert said(read(world, on_lost="skip")) == said(rest)
    assert said(read(world, "ac")) == said([event for event in everything if event.topic in "ac"])


def test_what_is_gone_stops_a_reader_or_is_told_in_its_place() -> None:
    world = backlog()
    everything = read(world)
    beginning = everything[0].position.at(0)
    gone(world, "a", 1, 2)
    lost = [event for event in everything if (event.topic, event.partition) == ("a", 1) and event.offset < 2]
    with pytest.raises(EventsLost, match=r"a\[1\]@0 of topic 'a' is stamped \(g \d+, n \d+\), but Kafka has it no"):
        read(world, start=beginning)
    got = read(world, start=beginning, on_lost="skip")
    assert [event.g for event in got] == [event.g for event in everything]
    told = [event for event in got if isinstance(event, Lost)]
    assert [(each.g, each.n, each.first_offset, each.last_offset) for each in told] == [
        (event.g, event.n, event.offset, event.offset) for event in lost
    ]
    assert [event.sequence for event in got] == list(range(1, 37))
    assert told[0].position == lost[0].position


def take_all(reader: Reader[Any], size: int, got: list[Any]) -> None:
    for _ in range(100):
        got += [taken(reader)] if size == 1 else list(reader.poll_batch(size, 60))


@pytest.mark.parametrize("most", [1, 4, 100])
@pytest.mark.parametrize("size", [1, 7])
def test_a_loss_stops_a_reader_at_its_turn_behind_all_that_stands_before_it(most: int, size: int) -> None:
    world = backlog()
    everything = read(world)
    lost = next(event for event in everything if (event.topic, event.partition, event.offset) == ("a", 1, 3))
    del world.kafka.logs[Partition("a", 1)][3]
    beginning, transport = everything[0].position.at(0), SimTransport(world.kafka, world.rng, world.tick, most=most)
    reader = reader_of(world, start=beginning, transport=transport, until="now")
    got: list[Any] = []
    for _ in range(2):
        with pytest.raises(EventsLost, match=r"a\[1\]@3 of topic 'a' is stamped .* start=.earliest. begins behind it"):
            take_all(reader, size, got)
    assert said(got) == said([event for event in everything if event.g < lost.g])
    assert reader.position == got[-1].position
    assert not reader.finished
    rest = read(world, start=reader.position, on_lost="skip")
    assert (type(rest[0]), rest[0].g, len(got + rest)) == (Lost, lost.g, len(everything))


def test_a_topic_that_was_deleted_is_lost_and_the_new_one_of_its_name_is_read() -> None:
    world = backlog()
    everything = read(world)
    world.kafka.delete("a")
    assert {type(event) for event in read(world, "a", start=everything[0].position, on_lost="skip")} == {Lost}
    assert read(world, "a") == []
    assert said(read(world, "bc")) == said([event for event in everything if event.topic != "a"])


class LastRecords(SimTransport):
    """The last records of `a` come of the same poll behind which its topic is found to be gone."""

    def poll(self, timeout_s: float) -> list[Record]:
        found = super().poll(timeout_s)
        if any(record.topic == "a" for record in found):
            for at in [at for at in self.positions if at.topic == "a"]:
                self.stop(at)
                self.gone.append(at)
        return found


def test_what_came_before_its_topic_was_deleted_is_read() -> None:
    world = backlog()
    everything = read(world, "a")
    transport = LastRecords(world.kafka, world.rng, world.tick, most=100, fair=True)
    assert said(read(world, "a", transport=transport)) == said(everything)


def test_stamps_that_are_gone_are_never_passed_over() -> None:
    world = backlog()
    everything = read(world)
    for number in range(2):
        world.kafka.trim(Partition("d.stamps", number), 3)
    for start in (everything[0].position, everything[11].position, datetime.fromtimestamp(1, UTC)):
        with pytest.raises(EventsLost, match=r"d.stamps\[\d\] reaches back to batch 4"):
            read(world, start=start)
    assert said(read(world)) == said(everything[18:])
    # One partition reaches further back: it tells where the third batch ends.
    world = backlog()
    world.kafka.trim(Partition("d.stamps", 0), 3)
    world.kafka.trim(Partition("d.stamps", 1), 2)
    assert said(read(world, start=everything[17].position)) == said(everything[18:])
    with pytest.raises(EventsLost, match="reaches back"):
        read(world, start=everything[16].position)


@pytest.mark.parametrize("late", [(0,), (1,), (0, 1)])
def test_earliest_begins_behind_a_late_repetition_that_retention_left_at_the_front(late: tuple[int, ...]) -> None:
    world = backlog(4)
    for number in range(2):
        at = Partition("d.stamps", number)
        if number in late:
            first = world.kafka.logs[at][0]
            world.kafka.append(at, value=first.value, headers=first.headers)
        world.kafka.trim(at, 2)
    for topic in "abcabc":
        world.publish(topic)
    world.tick(1)
    world.publish("a")
    world.tick(1)
    expected = [*((topic, n) for n in (5, 6) for topic in "abc"), ("a", 7)]
    assert [(event.topic, event.n) for event in read(world)] == expected
    subscriber = world.subscriber("ab", id="late", start="earliest")
    assert [(event.topic, event.n) for event in take(subscriber, 5)] == [each for each in expected if each[0] != "c"]


@pytest.mark.parametrize("late", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("kept", [(2, 2), (2, 1), (1, 2)])
def test_a_late_repetition_misleads_nobody_who_begins_behind_what_is_gone(
    late: tuple[int, ...], kept: tuple[int, int]
) -> None:
    """The log of a partition has batch 3, then the first one once more, then batch 4: the search finds that one."""
    world = backlog(6)
    for number in range(2):
        at = Partition("d.stamps", number)
        if number in late:
            first = world.kafka.logs[at][0]
            world.kafka.append(at, value=first.value, headers=first.headers)
        world.kafka.trim(at, kept[number])
    for topic in "abcabc":
        world.publish(topic)
        world.tick(1)
    rest = read(world)[-6:]
    start = rest[0].position.at(18)
    assert [event.g for event in rest] == [*range(19, 25)]
    assert said(read(world, start=start)) == said(rest)
    assert said(read(world, None, pattern=".*", start=start)) == said(rest)
    subscriber = world.subscriber("ab", id="late", start=start)
    assert [event.g for event in take(subscriber, 4)] == [event.g for event in rest if event.topic in "ab"]
    with pytest.raises(EventsLost):
        read(world, None, pattern=".*", start=start.at(11))


def test_a_domain_of_which_all_stamps_expired_goes_on_from_now() -> None:
    world = backlog()
    stored = read(world)[-1].position
    for number in range(2):
        world.kafka.trim(Partition("d.stamps", number), world.kafka.end(Partition("d.stamps", number)))
    with pytest.raises(EventsLost, match="reaches back to offset 6"):
        reader_of(world, start=stored)
    readers = [reader_of(world, start="now"), reader_of(world)]
    world.publish("b")
    assert [taken(reader).n for reader in readers] == [13, 13]


@pytest.mark.parametrize("poll", range(6))  # three of the search, three of the walk
def test_retention_that_moves_while_the_earliest_is_looked_for_is_no_loss(poll: int) -> None:
    """To find it all stamps are read, which takes its time: what is gone by then is before what is earliest."""
    world = backlog(6, stamps_partitions=1)
    everything, stamps, transport = read(world), Partition("d.stamps", 0), world.transport()
    polls = count()

    def trim(timeout_s: float) -> None:
        world.tick(timeout_s)
        if next(polls) == poll:
            world.kafka.trim(stamps, 1)

    transport.most, transport.fair, transport.on_poll = 1, True, trim
    with Reader(list("abc"), domain="d", transport=transport, until="now", clock=lambda: world.now) as reader:
        assert said(list(reader)) == said(everything[6:])


def test_stamps_that_vanish_while_they_are_read_are_told() -> None:
    world = backlog()
    reader = reader_of(world, "a", start="now")
    world.publish("a")
    world.tick(1)
    world.publish("a")
    world.tick(1)
    for number in range(2):
        world.kafka.trim(Partition("d.stamps", number), 7)
    with pytest.raises(EventsLost):
        reader.poll(60)
    with pytest.raises(EventsLost):
        reader.poll(60)


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_a_pattern_takes_topics_that_come_later_too() -> None:
    world = backlog()
    reader = reader_of(world, None, pattern="[ab]|d.*")
    assert [taken(reader).topic for _ in range(24)] == ["a", "b"] * 12
    world.publish("c")
    world.publish("b")
    assert taken(reader).topic == "b"
    assert read(world, None, pattern="A|ab") == []


def test_where_subscribers_follow_no_common_order_a_reader_still_has_one() -> None:
    world = backlog(min_subscriptions=2)
    assert [event.g for event in read(world)] == list(range(1, 37))
    assert read(world)[3].position.g == 4


def test_many_at_once() -> None:
    world = backlog()
    reader = reader_of(world, until="now")
    batches = []
    while not reader.finished:
        batches.append(reader.poll_batch(10, 60))
    assert said([event for batch in batches for event in batch]) == said(read(world))
    assert [event.entries for batch in batches for event in batch] == [{}] * 36
    assert reader.position == batches[-1].position if batches[-1] else batches[-2].position
    assert not reader.poll_batch(10, 60)


def test_little_is_held_however_much_lies_there() -> None:
    world = World()
    for _ in range(400):
        world.publish("a", "x")
        world.publish("a", "x")
        world.tick(0.01)
    for _ in range(3):
        world.publish("b")
    world.tick(1)
    reader = reader_of(world, "ab", max_buffered=5, until="now")
    reader._session.machine._batches._max_waiting = 20
    got, most = 0, (0, 0)
    while (event := reader.poll(60)) is not None:
        got += isinstance(event, Event)
        held = reader._session.machine.held
        most = max(most[0], held[0]), max(most[1], held[1])
        assert len(reader._session.ready) <= 5 + 4 * 4 + 5
    assert got == 803
    assert most[0] <= 4 * (5 + 4)
    assert most[1] <= 20 + 2 * 4 * 2


def test_a_record_that_is_not_what_was_stamped_reaches_nobody() -> None:
    world = backlog()
    at = Partition("b", 0)
    world.kafka.logs[at][2] = world.kafka.logs[at][2]._replace(value=b"forged")
    with pytest.raises(Contradiction, match=r"b\[0\]@2 has a value with crc32 .*; its stamp says"):
        read(world)


def test_topics_of_which_nothing_came_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    world = backlog()
    with caplog.at_level(logging.WARNING):
        read(world, ["a", "ordres"])
    (line,) = by_us(caplog)
    assert 'no event of topic "ordres" in domain d' in line


# --- what is waited for -----------------------------------------------------------------------------------------------


def silent(reader: Reader[Any], world: World, seconds: int) -> None:
    """Nothing comes for so long."""
    end = world.now + seconds
    while world.now < end:
        assert reader.poll(1) is None


def words(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = by_us(caplog, logging.WARNING)
    caplog.clear()
    return found


def test_a_long_way_to_the_beginning_is_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world = World(stamps_partitions=1)
    for _ in range(100):
        world.publish("a")
        world.tick(1)
    slow = SimTransport(world.kafka, world.rng, world.tick, most=1, fair=True)
    Reader(["a"], domain="d", transport=slow, clock=lambda: world.now, wall_clock=lambda: 2_000.0)
    (line,) = by_us(caplog)
    assert "a reader of domain 'd' waits for what it looks for in d.stamps, which is read, for 3 s" in line


@pytest.mark.parametrize("grants", [False, True])
def test_events_that_nobody_stamps_are_told_and_silence_is_not(caplog: pytest.LogCaptureFixture, grants: bool) -> None:
    world = backlog()
    if grants:
        world.subscriber("a").close()
    follows = reader_of(world, "ab", start="earliest")
    for _ in range(24):
        taken(follows)
    world.running = False
    silent(follows, world, 100)
    world.publish("c")
    silent(follows, world, 100)
    assert words(caplog) == []
    world.publish("a")
    silent(follows, world, 30)
    first, *again = words(caplog)
    assert "a reader of domain 'd' has waited 10 s for the stamps of event a[" in first
    assert "Check that `totalorder sequence` runs for domain 'd' and reads topic 'a'" in first
    assert len(again) == 1
    world.running = True
    assert taken(follows).n == 13
    silent(follows, world, 30)
    (over,) = words(caplog)
    assert "a reader of domain 'd' waits no longer for the stamps of event a[" in over
    silent(follows, world, 1_000)
    assert words(caplog) == []


def test_what_is_published_on_a_topic_that_was_never_stamped_is_missed_too(caplog: pytest.LogCaptureFixture) -> None:
    world = backlog()
    follows = reader_of(world, "a", start="now")
    world.running = False
    silent(follows, world, 100)
    assert words(caplog) == []
    world.publish("a")
    silent(follows, world, 60)
    assert "has waited 10 s for the stamps of event a[" in words(caplog)[0]


def test_a_partition_that_was_never_stamped_is_missed_too(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.kafka.append(Partition("a", 0), value=b"stamped")
    world.tick(1)
    follows = reader_of(world, "a")
    assert taken(follows).value == b"stamped"
    silent(follows, world, 100)
    world.running = False
    world.kafka.append(Partition("a", 1), value=b"nobody's")
    silent(follows, world, 60)
    assert "has waited 10 s for the stamps of event a[1]@0" in words(caplog)[0]


def test_where_keys_name_topics_an_event_of_none_is_not_missed(caplog: pytest.LogCaptureFixture) -> None:
    world = World(topic_by="key")
    world.subscriber("a").close()
    caplog.clear()
    at = Partition("a", 0)
    world.kafka.append(at, key=b"a", value=b"1")
    world.tick(1)
    follows = reader_of(world, "a")
    assert taken(follows).value == b"1"
    world.kafka.append(at, key=None, value=b"2")
    world.running = False
    silent(follows, world, 100)
    assert words(caplog) == []


def test_an_event_that_is_stamped_and_does_not_come_is_told(caplog: pytest.LogCaptureFixture) -> None:
    world = backlog()
    transport = world.transport()
    late = reader_of(world, "a", transport=transport)
    while not (reads := [at for at in transport.positions if at.topic == "a"]):
        late._session.pump(0)
    taken(late)
    for at in reads:
        transport.positions.pop(at)  # as though its leader did not answer
    while late.poll(1) is not None:
        pass
    silent(late, world, 30)
    assert "a reader of domain 'd' has waited 10 s for event a[" in words(caplog)[0]


def test_stop_and_close_end_it() -> None:
    world = backlog()
    reader = reader_of(world)
    for event in reader:
        if event.g == 5:
            reader.stop()
    assert (reader.position.g, reader.stopped) == (5, True)
    reader.close()
    reader.close()
    with pytest.raises(Error, match="this Reader is closed"):
        reader.poll()


def test_a_call_that_was_interrupted_is_not_gone_on_with() -> None:
    world = backlog()

    class Interrupting(SimTransport):
        def poll(self, timeout_s: float) -> Any:
            found = super().poll(timeout_s)
            if broken:
                raise KeyboardInterrupt
            return found

    broken: list[int] = []
    reader = reader_of(world, transport=Interrupting(world.kafka, world.rng, world.tick))
    reader.poll(60)
    broken.append(1)
    call: Callable[[], Any] = lambda: [reader.poll(60) for _ in range(40)]  # noqa: E731
    with pytest.raises(KeyboardInterrupt):
        call()
    with pytest.raises(Error, match="interrupted by KeyboardInterrupt"):
        [reader.poll(60) for _ in range(40)]


def test_a_position_after_the_present_is_refused() -> None:
    """What lies between would be passed over without a word, and stored as done."""
    world = World(stamps_partitions=2)
    other = world.subscriber("ab", id="other")
    for topic in "abab":
        world.publish(topic)
    last = take(other, 4)[-1].position
    for start in (last, Position(last.domain, last.log, last.g + 1)):
        settings: dict[str, Any] = {"domain": "d", "transport": world.transport(), "clock": lambda: world.now}
        if start == last:
            assert list(Reader(["a"], start=start, until="now", **settings)) == []
        else:
            with pytest.raises(SettingsError, match=f"comes after g {last.g}, which is the present"):
                Reader(["a"], start=start, until="now", **settings)


def write_once_more(world: World, number: int, times: int) -> None:
    """A process of the job that was replaced writes an early batch late."""
    at = Partition("d.stamps", number)
    for record in world.kafka.ever(at)[1:2] * times:
        world.kafka.append(at, value=record.value, headers=record.headers)


@pytest.mark.parametrize("late", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("times", [1, 15])
def test_the_present_is_not_what_a_replaced_job_wrote_late(late: tuple[int, ...], times: int) -> None:
    """A Reader would begin with what is past, and a position of what was read would be refused as not there yet."""
    world = backlog(stamps_partitions=2)
    last = read(world)[-1]
    for number in late:
        write_once_more(world, number, times)
    readers = [reader_of(world, pattern, start="now") for pattern in ("a", "abc")]
    readers.append(reader_of(world, start=last.position))
    assert [reader.position for reader in readers] == [last.position] * 3
    for topic in "abc":
        world.publish(topic)
        world.tick(1)
    assert [event.n for event in itertools.islice(readers[0], 1)] == [13]
    for reader in readers[1:]:
        assert [(event.topic, event.n) for event in itertools.islice(reader, 3)] == [("a", 13), ("b", 13), ("c", 13)]


def test_now_needs_nothing_of_before_though_one_partition_ends_with_what_was_written_late() -> None:
    """That one does not say what its next batch follows; the other one does."""
    world = backlog(stamps_partitions=2)
    write_once_more(world, 0, 20)
    reader = reader_of(world, None, pattern=".*", start="now")
    for number in range(2):
        at = Partition("d.stamps", number)
        world.kafka.trim(at, world.kafka.end(at))
    for topic in "abc":
        world.publish(topic)
        world.tick(1)
    assert [(event.topic, event.n) for event in itertools.islice(reader, 3)] == [("a", 13), ("b", 13), ("c", 13)]


def test_a_partition_that_waits_for_one_that_is_read_to_its_end_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has a batch more, of many stamps, and behind that what a replaced process of the job has written late."""
    monkeypatch.setattr(stamps_log, "_MOST_WAITING", 1)
    world = backlog(stamps_partitions=2)
    everything = read(world)
    other = Partition("d.stamps", 0)
    write_once_more(world, 1, 3)
    world.kafka.held[other] = world.kafka.end(other) - 1
    world.running = False
    transport = world.transport()
    transport.most, transport.fair = 1, True
    reader = reader_of(world, None, pattern=".*", transport=transport, until="now")
    assert said(list(reader)) == said(everything[:-6])


def test_what_the_search_missed_is_looked_for_where_stamps_begin_by_then() -> None:
    """Retention goes on while an application has a Reader and does not ask it."""
    world = backlog(6, stamps_partitions=1)
    write_once_more(world, 0, 20)
    for topic in "abcabcabc":
        world.publish(topic)
        world.tick(1)
    rest = read(world)[-9:]
    reader = reader_of(world, start=rest[0].position.at(18))
    assert reader._session.machine._batches._marks[0].offset > 0, "else it reads all from the beginning on"
    world.kafka.trim(Partition("d.stamps", 0), 1)
    assert said(list(itertools.islice(reader, 9))) == said(rest)
