"""A subscription by a pattern, as its application sees it."""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

import pytest
from logged import by_us
from sim_kafka import SimTransport
from sim_small import World, take

from totalorder.errors import BrokerUnavailable, Fenced, Rejected, SequencerUnavailable, SettingsError
from totalorder.sequencer.wire.control import Ended, Grant
from totalorder.subscriber import AsyncSubscriber, Event, Reader, Retry, SqlitePositions, Subscriber
from totalorder.subscriber.transport import Partition


def subscriber_of(
    world: World, pattern: str | None = "[ab]|d.*", transport: SimTransport | None = None, **settings: Any
) -> Subscriber[Any]:
    return Subscriber(pattern=pattern, **world.settings(settings.pop("id", "s"), transport), **settings)


def begun(**domain: object) -> World:
    """A domain that has made a batch."""
    world = World(**domain)
    world.publish("c")
    world.tick(0)
    return world


def admit(world: World, topic: str) -> None:
    """A new Kafka topic, which the domain reads from now on."""
    world.kafka.create(topic, 2)
    world.sequencer.event_topics.append(topic)


def own(world: World) -> list[Grant]:
    return [answer for answer in world.sequencer.answers if isinstance(answer, Grant) and answer.id == "s"]


def until(subscriber: Subscriber[Any], met: Callable[[], bool]) -> list[Any]:
    """What comes before something is so."""
    found: list[Any] = []
    for _ in range(200):
        if met():
            return found
        found += taken(subscriber, 0.3)
    raise AssertionError("it does not come to that")


def owed(world: World) -> list[tuple[int, str, int]]:
    """What grants and a Reader say that the id is to have: of each event whether the set at its place has its topic."""
    everything: Reader[Any] = Reader(
        pattern=".*",
        domain="d",
        until="now",
        transport=world.transport(),
        clock=lambda: world.now,
        wall_clock=lambda: world.sequencer.time_ms / 1000,
    )
    grants = own(world)
    found = []
    for event in everything:
        sets = [grant.topics for grant in grants if grant.g < event.g]
        if sets and event.topic in sets[-1]:
            found.append((event.g, event.topic, event.n))
    return found


def told(events: list[Event]) -> list[tuple[int, str, int]]:
    return [(event.g, event.topic, event.n) for event in events]


def taken(subscriber: Subscriber[Any], timeout_s: float) -> list[Any]:
    """The next event, acknowledged, if there is one."""
    event = subscriber.poll(timeout_s)
    if event is None:
        return []
    subscriber.ack(event)
    return [event]


def rest(subscriber: Subscriber[Any]) -> list[Any]:
    """All that is there, acknowledged."""
    found: list[Any] = []
    while more := taken(subscriber, 3):
        found += more
    return found


# --- what it has ------------------------------------------------------------------------------------------------------


def test_it_has_what_fits_now_and_what_comes() -> None:
    world = begun()
    subscriber = subscriber_of(world)
    assert subscriber.topics == ("a", "b")
    for topic in "abc":
        world.publish(topic)
    assert [event.topic for event in take(subscriber, 2)] == ["a", "b"]
    admit(world, "d1")
    admit(world, "e")
    world.publish("c")
    assert until(subscriber, lambda: "d1" in subscriber.topics) == []
    world.publish("e")
    world.publish("d1")
    world.publish("a")
    assert [event.topic for event in take(subscriber, 2)] == ["d1", "a"]
    assert [grant.topics for grant in own(world)] == [("a", "b"), ("a", "b", "d1")]


def test_what_a_topic_had_before_it_joined_is_told_and_not_delivered(caplog: pytest.LogCaptureFixture) -> None:
    world = begun()
    subscriber = subscriber_of(world)
    admit(world, "d1")
    world.publish("d1")
    world.publish("d1")
    until(subscriber, lambda: "d1" in subscriber.topics)
    world.publish("d1")
    assert [event.n for event in take(subscriber, 1)] == [3]
    said = [line for line in by_us(caplog) if "joined" in line]
    assert len(said) == 1
    assert "2 events, is not delivered" in said[0]


def test_callbacks_tell_of_the_new_set_before_its_first_event() -> None:
    world = begun()
    changes: list[Any] = []
    subscriber = subscriber_of(world, on_change=changes.append)
    admit(world, "d1")
    world.publish("c")
    until(subscriber, lambda: bool(changes))
    assert [change.topics for change in changes] == [("a", "b", "d1")]


def test_events_go_on_while_the_answer_is_awaited() -> None:
    """However long that takes: a sequencer that is away costs the old topics nothing."""
    world = begun()
    subscriber = subscriber_of(world)
    admit(world, "d1")
    for _ in range(5):
        world.publish("a")
    world.tick(0)
    world.running = False
    got = until(subscriber, lambda: subscriber._session._requests.is_open)
    control = world.kafka.end(Partition("d.control", 0))
    got += iter(lambda: subscriber.poll(1), None)
    assert told(got) == [(event.g, "a", number) for number, event in enumerate(got, 1)]
    assert len(got) == 5
    for _ in range(20):
        subscriber.poll(1)
    assert world.kafka.end(Partition("d.control", 0)) == control  # it is asked once
    world.running = True
    until(subscriber, lambda: "d1" in subscriber.topics)


def test_many_topics_come_with_few_changes() -> None:
    world = begun()
    subscriber = subscriber_of(world)
    for number in range(30):
        admit(world, f"d{number}")
        world.publish("c")
        subscriber.poll(0.1)
    until(subscriber, lambda: len(subscriber.topics) == 32)
    assert len(own(world)) <= 8


@pytest.mark.parametrize("seed", range(12))
def test_each_event_is_delivered_whose_topic_is_of_the_set_at_its_place(seed: int) -> None:
    """Topics come while events do, processes end and begin again; grants and a Reader say what is owed."""
    rng = random.Random(seed)
    world = begun(stamps_partitions=rng.choice([1, 3]))
    world.rng.seed(seed)
    names = ["a", "b", "c"]
    subscriber = subscriber_of(world, max_buffered=rng.choice([2, 1_000]), lease_s=0)
    got: list[Event] = []
    for _ in range(150):
        what = rng.random()
        if what < 0.08:
            names.append(rng.choice("de") + str(len(names)))
            admit(world, names[-1])
        elif what < 0.5:
            world.publish(rng.choice(names))
        elif what < 0.53:
            subscriber.close()
            subscriber = subscriber_of(world, lease_s=0)
        elif what < 0.6:
            world.running = False
            for _ in range(rng.randrange(5)):
                got += taken(subscriber, 0.5)
            world.running = True
        else:
            got += taken(subscriber, rng.choice([0, 0.4]))
    world.publish("c")
    fitting = {name for name in names if name in "ab" or name.startswith("d")}
    got += until(subscriber, lambda: set(subscriber.topics) == fitting)
    for name in sorted(fitting):
        world.publish(name)
    got += rest(subscriber)
    assert told(got) == owed(world)
    assert fitting == {event.topic for event in got}


# --- a life -----------------------------------------------------------------------------------------------------------


def test_a_topic_that_came_while_nobody_ran_joins_when_somebody_does(caplog: pytest.LogCaptureFixture) -> None:
    world = begun()
    first = subscriber_of(world)
    first.close()
    admit(world, "d1")
    world.publish("a")
    world.publish("d1")
    world.tick(0)
    second = subscriber_of(world)
    world.publish("d1")
    assert [(event.topic, event.n) for event in take(second, 2)] == [("a", 1), ("d1", 2)]
    assert "1 events, is not delivered" in caplog.text


def test_a_topic_that_is_held_and_that_no_cut_names_stays() -> None:
    world = begun()
    subscriber_of(world, None, topics=["a", "d9"]).close()
    second = subscriber_of(world)
    assert own(world)[-1].topics == ("a", "b", "d9")
    assert second.granted_g == own(world)[-1].g


def test_what_was_held_counts_no_longer_for_who_begins_anew() -> None:
    world = begun()
    subscriber_of(world, None, topics=["a", "d9"]).close()
    subscriber_of(world, start="now").close()
    assert own(world)[-1].topics == ("a", "b")
    subscriber_of(world, None, topics=["a", "d9"]).unsubscribe()
    subscriber_of(world)
    assert own(world)[-1].topics == ("a", "b")


def test_a_topic_that_is_gone_leaves_with_the_next_change() -> None:
    world = begun()
    subscriber = subscriber_of(world)
    for name in ("d1", "d2"):
        admit(world, name)
        world.publish("c")
        until(subscriber, lambda name=name: name in subscriber.topics)  # type: ignore[misc]
        world.sequencer.retire()
        if name == "d1":
            world.publish("d1")
            assert len(take(subscriber, 1)) == 1
            world.kafka.delete("d1")
            world.sequencer.retire()
    assert subscriber.topics == ("a", "b", "d2")


def test_a_topic_that_came_and_went_leaves_little_behind() -> None:
    world = begun()
    subscriber, other = subscriber_of(world), subscriber_of(world, None, topics=["a", "b"], id="other")
    for number in range(3):
        name = f"d{number}"
        admit(world, name)
        world.publish("c")
        until(subscriber, lambda name=name: name in subscriber.topics)  # type: ignore[misc]
        for _ in range(100):
            world.publish(name)
        take(subscriber, 100)
        world.sequencer.retire()
        world.kafka.delete(name)
        world.sequencer.retire()
    world.publish("a")
    for each in (subscriber, other):
        take(each, 1)
        frontiers = each._session.machine._stamps.frontiers
        assert {source.topic for frontier in frontiers for source in frontier} == {"a", "c"}
    machine = subscriber._session.machine
    assert machine._sets._joins == {}
    assert sum(owed._table.nbytes for owed in machine._events.owed) == 0
    assert {topic.name for topic in subscriber._session._choosing._following._named} == {"a", "b", "c", "d.control"}


def test_it_may_begin_in_the_past() -> None:
    """All that fits by now comes from there on, whenever it came; and cuts go on to be read meanwhile."""
    world = World()
    for topic in "abcab":
        world.publish(topic)
        world.tick(1)
    admit(world, "d1")
    world.publish("d1")
    world.tick(1)
    subscriber = subscriber_of(world, start="earliest")
    admit(world, "d2")
    world.publish("a")
    got = until(subscriber, lambda: "d2" in subscriber.topics)
    assert [event.topic for event in got] == ["a", "b", "a", "b", "d1", "a"]


class Growing(SimTransport):
    """A new topic comes to the domain whenever Kafka is first asked for records of this one's."""

    def __init__(self, world: World, at: str) -> None:
        super().__init__(world.kafka, world.rng, world.tick, most=1, fair=True)
        self.world, self.at, self.done = world, at, False

    def read(self, partition: Partition, offset: int) -> None:
        super().read(partition, offset)
        if partition.topic == self.at and not self.done:
            self.done = True
            admit(self.world, "d1")
            self.world.publish("c")
            self.world.tick(0)


@pytest.mark.parametrize("at", ["d.grants", "d.cuts", "d.positions", "d.stamps", "d.receipts"])
@pytest.mark.parametrize("start", ["saved", "earliest"])
def test_no_topic_is_overlooked_that_comes_while_a_process_begins(at: str, start: str) -> None:
    world = begun()
    for number in range(20):
        world.publish("a")
        world.tick(0)
        # so that positions take a while to be read
        world.kafka.append(Partition("d.positions", number % 2), key=b"other/7", value=b"{}")
    subscriber = subscriber_of(world, transport=Growing(world, at), start=start)
    world.publish("a")
    until(subscriber, lambda: "d1" in subscriber.topics or at == "d.receipts")


def test_only_the_end_of_cuts_is_read() -> None:
    world = begun()
    for _ in range(300):
        world.publish("c")
        world.tick(0)
    transport, begins = world.transport(), []
    read = transport.read

    def note(partition: Partition, offset: int) -> None:
        begins.append((partition, offset))
        read(partition, offset)

    transport.read = note  # type: ignore[method-assign]
    subscriber_of(world, transport=transport)
    end = world.kafka.end(Partition("d.cuts", 0))
    assert [end - offset < 70 for partition, offset in begins if partition.topic == "d.cuts"] == [True]


def test_cuts_are_read_from_further_back_until_one_names_the_topics() -> None:
    world = begun()
    for _ in range(300):
        world.publish("c")
        world.tick(0)
    log = world.kafka.logs[Partition("d.cuts", 0)]
    log[1:] = [record for record in log[1:] if ("key", b"1") not in record.headers]
    subscriber = subscriber_of(world, transport=SimTransport(world.kafka, world.rng, world.tick, most=100, fair=True))
    assert subscriber.topics == ("a", "b")


def test_cuts_that_are_gone_before_they_were_read_stop_nobody() -> None:
    """Later ones name all topics too."""
    world = begun()
    subscriber = subscriber_of(world)
    admit(world, "d1")
    for _ in range(20):
        world.publish("c")
        world.tick(0)
    world.kafka.trim(Partition("d.cuts", 0), world.kafka.end(Partition("d.cuts", 0)) - 1)
    for _ in range(6):
        world.publish("c")
        world.tick(0)
    world.publish("a")
    assert [event.topic for event in until(subscriber, lambda: "d1" in subscriber.topics)] == ["a"]


def test_cuts_that_are_gone_while_a_process_begins_stop_nobody() -> None:
    world = begun()
    subscriber_of(world).close()

    class Trimming(SimTransport):
        """What was read of cuts by then, and more, is gone when positions are read."""

        def read(self, partition: Partition, offset: int) -> None:
            super().read(partition, offset)
            if partition.topic == "d.positions":
                for _ in range(12):
                    world.publish("c")
                    self.on_poll(0)
                world.kafka.trim(Partition("d.cuts", 0), world.kafka.end(Partition("d.cuts", 0)) - 1)

    subscriber = subscriber_of(world, transport=Trimming(world.kafka, world.rng, world.tick))
    assert subscriber.topics == ("a", "b")


# --- changes ----------------------------------------------------------------------------------------------------------


def test_names_take_the_place_of_a_pattern_and_a_pattern_that_of_names() -> None:
    world = begun()
    subscriber = subscriber_of(world, None, topics=["c"])
    subscriber.subscribe(pattern="[ab]|d.*")
    admit(world, "d1")
    world.publish("c")
    until(subscriber, lambda: subscriber.topics == ("a", "b", "d1"))
    subscriber.subscribe(pattern="[bc]")
    until(subscriber, lambda: subscriber.topics == ("b", "c"))
    for _ in range(5):
        world.publish("a")
        subscriber.poll(1)
    assert own(world)[-1].topics == ("b", "c"), "the former pattern asks for nothing any more"
    subscriber.subscribe(["a"])
    admit(world, "b2")
    world.publish("a")
    assert [event.topic for event in until(subscriber, lambda: subscriber.topics == ("a",))] == []
    for _ in range(5):
        world.publish("c")
        subscriber.poll(1)
    assert own(world)[-1].topics == ("a",)


def test_a_change_to_a_pattern_that_nothing_fits_is_refused() -> None:
    world = begun()
    subscriber = subscriber_of(world)
    with pytest.raises(SettingsError, match="fits the pattern 'x'"):
        subscriber.subscribe(pattern="x")
    assert [grant.topics for grant in own(world)] == [("a", "b")]


def test_a_change_waits_for_the_answer_to_what_was_asked_before() -> None:
    """Two requests of one generation would be one to the sequencer."""
    world = begun()
    subscriber = subscriber_of(world)
    admit(world, "d1")
    world.publish("c")
    world.tick(0)
    world.running = False
    until(subscriber, lambda: subscriber._session._requests.is_open)
    world.running = True
    subscriber.subscribe(["c"])
    assert [grant.topics for grant in own(world)] == [("a", "b"), ("a", "b", "d1"), ("c",)]
    until(subscriber, lambda: subscriber.topics == ("c",))


def test_an_end_waits_for_it_too() -> None:
    world = begun()
    subscriber = subscriber_of(world)
    admit(world, "d1")
    world.publish("c")
    world.publish("a")
    world.tick(0)
    world.running = False
    until(subscriber, lambda: subscriber._session._requests.is_open)
    world.running = True
    subscriber.unsubscribe()
    rest(subscriber)
    assert subscriber.finished
    assert isinstance(world.sequencer.answers[-1], Ended)


def test_some_topics_of_a_pattern_cannot_be_left() -> None:
    subscriber = subscriber_of(begun())
    with pytest.raises(SettingsError, match=r"those that fit '\[ab\]\|d\.\*'"):
        subscriber.unsubscribe(["a"])
    assert subscriber.topics == ("a", "b")


# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", [True, False])
def test_a_request_that_kafka_does_not_acknowledge_is_sent_again(written: bool) -> None:
    world = begun()
    transport = world.transport()
    subscriber = subscriber_of(world, transport=transport)
    admit(world, "d1")
    world.publish("a")
    send = transport.send
    failed: list[Partition] = []

    def fail(partition: Partition, *arguments: Any, **settings: Any) -> int:
        if partition.topic == "d.control" and len(failed) < 3:
            failed.append(partition)
            if written:
                send(partition, *arguments, **settings)
            raise BrokerUnavailable("silence")
        return send(partition, *arguments, **settings)

    transport.send = fail  # type: ignore[method-assign]
    assert [event.topic for event in until(subscriber, lambda: "d1" in subscriber.topics)] == ["a"]
    assert len(failed) == (1 if written else 3)
    world.publish("d1")
    assert [event.topic for event in take(subscriber, 1)] == ["d1"]
    assert [grant.topics for grant in own(world)] == [("a", "b"), ("a", "b", "d1")]


def test_a_change_after_a_request_that_may_have_been_written_asks_for_it_again() -> None:
    world = begun()
    transport = world.transport()
    subscriber = subscriber_of(world, transport=transport)
    admit(world, "d1")
    world.publish("c")
    transport.refused = {"d.control": BrokerUnavailable("silence")}
    until(subscriber, lambda: subscriber._session._requests._request is not None)
    transport.refused = {}
    subscriber.subscribe(["c"])
    assert [grant.topics for grant in own(world)] == [("a", "b"), ("a", "b", "d1"), ("c",)]


def test_a_change_that_the_sequencer_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    world = begun()
    subscriber = subscriber_of(world)
    admit(world, "d1")
    world.publish("c")
    world.tick(0)
    monkeypatch.setattr("totalorder.sequencer.draft.MAX_TOPICS_PER_DOMAIN", 3)
    with pytest.raises(Rejected, match="more than 3 pub/sub topics"):
        until(subscriber, lambda: False)


def test_after_its_lease_ran_out_nothing_more_is_asked() -> None:
    world = begun()
    subscriber = subscriber_of(world, lease_s=15)
    subscriber.pause()
    subscriber._session._throttle()
    world.publish("a")
    world.tick(0)
    world.sequencer.time_ms += 100_000
    world.publish("c")
    world.tick(0)
    while not subscriber._session._requests.lapsed:
        subscriber._session.pump(0)
    assert subscriber._session.finished is None  # what is owed before has not come
    admit(world, "d1")
    world.publish("c")
    for _ in range(20):
        subscriber._session.follow()
        subscriber._session.pump(0.3)
    control = world.kafka.logs[Partition("d.control", 0)]
    assert len([record for record in control if b'"subscribe"' in (record.value or b"")]) == 1


def test_who_slept_asks_for_nothing_before_he_knows_that_he_holds_the_id() -> None:
    """Another process has taken over meanwhile, and compaction has taken its grant, but not what it saved."""
    world = begun()
    first = subscriber_of(world, lease_s=0)
    subscriber_of(world, lease_s=0)
    grants = Partition("d.grants", 0)
    world.kafka.logs[grants] = [
        record for record in world.kafka.logs[grants] if b'"generation":2' not in (record.value or b"")
    ]
    world.now += 400
    admit(world, "d1")
    world.publish("c")
    world.tick(0)
    control = world.kafka.end(Partition("d.control", 0))
    with pytest.raises(Fenced, match="generation 2"):
        until(first, lambda: False)
    assert world.kafka.end(Partition("d.control", 0)) == control


def test_a_pattern_that_nothing_fits_is_refused_before_anything_is_asked() -> None:
    world = begun()
    with pytest.raises(SettingsError, match="no topic that domain 'd' reads so far fits the pattern 'x'"):
        subscriber_of(world, "x")
    assert own(world) == []
    assert Partition("d.control", 0) not in world.kafka.logs


@pytest.mark.parametrize("before", [{"pattern": None, "topics": ["a"]}, {"pattern": "a|d.*"}])
def test_a_later_pattern_that_nothing_fits_leaves_the_subscription_as_it_was(before: dict[str, Any]) -> None:
    world = begun()
    subscriber = subscriber_of(world, **before)
    with pytest.raises(SettingsError, match="no topic that domain 'd' reads so far fits the pattern 'x'"):
        subscriber.subscribe(pattern="x")
    with pytest.raises(SettingsError, match="is no regular expression"):
        subscriber.subscribe(pattern="(")
    assert len(own(world)) == 1
    admit(world, "x")
    admit(world, "d1")
    world.publish("a")
    world.publish("c")
    fitting = ("a", "d1") if before["pattern"] else ("a",)
    got = until(subscriber, lambda: world.now > 20 and subscriber.topics == fitting)
    assert [event.topic for event in got + rest(subscriber)] == ["a"]
    assert own(world)[-1].topics == fitting
    subscriber.subscribe(pattern="x|a")
    assert own(world)[-1].topics == ("a", "x")


def test_a_domain_that_has_made_no_batch_makes_its_first() -> None:
    world = World()
    world.running = False
    with pytest.raises(SequencerUnavailable, match=r"d\.cuts has no record that names all topics: it comes with"):
        subscriber_of(world, start_timeout_s=3)
    transport = world.transport()
    tick = transport.on_poll

    def begin(timeout_s: float) -> None:
        world.running = world.now > 10
        tick(timeout_s)

    transport.on_poll = begin
    assert subscriber_of(world, transport=transport).topics == ("a", "b")


def test_who_holds_topics_begins_also_where_retention_has_taken_the_cut_that_names_all() -> None:
    world = begun()
    subscriber_of(world).close()
    cuts = Partition("d.cuts", 0)
    world.kafka.trim(cuts, world.kafka.end(cuts))
    with pytest.raises(SequencerUnavailable, match=r"it comes with the domain's next batch"):
        subscriber_of(world, id="new", start_timeout_s=3)
    subscriber = subscriber_of(world, start_timeout_s=3)
    assert subscriber.topics == ("a", "b")
    admit(world, "d1")
    for _ in range(6):
        world.publish("c")
        world.tick(0)
    until(subscriber, lambda: subscriber.topics == ("a", "b", "d1"))


@pytest.mark.parametrize("id_", ["new", "had-another", "holds-another"])
def test_a_batch_is_asked_for_where_retention_has_taken_the_cut_that_names_all(
    id_: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing was published for as long as cuts are kept: nobody else would bring a batch about."""
    world = begun()
    if id_ != "new":
        other = subscriber_of(world, None, topics=["c"], id=id_)
        if id_ == "had-another":
            other.unsubscribe()
    cuts = Partition("d.cuts", 0)
    world.tick(3_600)
    world.kafka.trim(cuts, world.kafka.end(cuts))
    if id_ == "holds-another":
        other.subscribe(pattern="[ab]")
        world.publish("a")
        assert take(other, 1)[0].topic == "a"
    else:
        assert subscriber_of(world, id=id_).topics == ("a", "b")
        answers = [record.key or b"" for record in world.kafka.logs[Partition("d.grants", 0)]]
        assert sum(key.startswith(b"reject/") for key in answers) == 1
    world.running = False
    world.kafka.trim(cuts, world.kafka.end(cuts))
    caplog.set_level(logging.INFO)
    with pytest.raises(SequencerUnavailable, match=r"d\.cuts has no record that names all topics: it comes with the"):
        subscriber_of(world, id="another")
    assert "waits for a record on d.cuts that names all topics, which the domain's next batch brings" in caplog.text


def test_a_topic_that_was_retired_before_the_pattern_came_is_not_of_it() -> None:
    world = begun()
    world.publish("b")
    world.tick(0)
    subscriber = subscriber_of(world, None, topics=["a"])
    world.sequencer.retire()
    world.kafka.delete("b")
    world.sequencer.retire()
    for _ in range(8):
        world.publish("c")
        world.tick(0)
    taken(subscriber, 1)
    subscriber.subscribe(pattern="[abc]")
    assert own(world)[-1].topics == ("a", "c")


def test_topics_that_keys_name_have_no_pattern() -> None:
    world = World(topic_by="key")
    world.kafka.append(Partition("a", 0), key=b"JFK", value=b"", timestamp_ms=0)
    world.tick(0)
    with pytest.raises(SettingsError, match="topic_by = 'key'"):
        subscriber_of(world)
    for _ in range(3):
        world.tick(0)
    assert isinstance(world.sequencer.answers[-1], Ended)  # what was granted before that was known is taken back
    asked = world.kafka.end(Partition("d.control", 0))
    with pytest.raises(SettingsError, match="topic_by = 'key'"):
        subscriber_of(world, id="t")
    assert world.kafka.end(Partition("d.control", 0)) == asked


def test_a_subscriber_of_topics_that_keys_name_takes_no_pattern_later() -> None:
    world = World(topic_by="key")
    world.kafka.append(Partition("a", 0), key=b"JFK", value=b"", timestamp_ms=0)
    world.tick(0)
    subscriber = subscriber_of(world, None, topics=["JFK"])
    asked = world.kafka.end(Partition("d.control", 0))
    with pytest.raises(SettingsError, match="topic_by = 'key'"):
        subscriber.subscribe(pattern="[ab]")
    assert world.kafka.end(Partition("d.control", 0)) == asked


def test_what_was_read_of_cuts_for_a_former_pattern_is_not_all_for_a_later_one() -> None:
    world = begun()
    subscriber = subscriber_of(world)
    subscriber.subscribe(["c"])
    admit(world, "d1")
    for _ in range(70):
        world.publish("c")
        world.tick(0)
    rest(subscriber)
    subscriber.subscribe(pattern="d.*|c")
    assert own(world)[-1].topics == ("c", "d1")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"pattern": None}, "a Subscriber wants topics or a pattern"),
        ({"topics": ["a"]}, "a Subscriber wants topics or a pattern"),
        ({"pattern": "("}, "is no regular expression"),
        ({"pattern": 7}, "is no regular expression"),
        ({"pattern": b"a"}, "is no regular expression. Give it as a str"),
        ({"positions": SqlitePositions("nowhere.db")}, "which would wait for the application's own open transaction"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, Any], why: str) -> None:
    world = begun()
    with pytest.raises(SettingsError, match=why):
        subscriber_of(world, **given)
    assert own(world) == []


def test_no_topic_that_fits_can_be_parked_on() -> None:
    world = begun()
    world.kafka.create("d.parked.x", 1)
    with pytest.raises(SettingsError, match="the subscriber reads"):
        subscriber_of(world).run(print, park="d.parked.x")


# --- other faces ------------------------------------------------------------------------------------------------------


def test_topics_join_while_a_handler_is_retried() -> None:
    """Nothing is delivered meanwhile; what comes then is of the new topic too."""
    world = begun()
    subscriber = subscriber_of(world)
    got: list[str] = []

    def handle(event: Event) -> None:
        if not got and "d1" not in world.kafka.topics:
            admit(world, "d1")
            world.publish("c")
        if len(own(world)) == 1:
            raise ValueError("not yet")
        got.append(event.topic)
        if got == ["a"]:
            world.publish("d1")
        else:
            subscriber.stop()

    world.publish("a")
    subscriber.run(handle, retry=Retry(times=50), signals=False)
    assert got == ["a", "d1"]


def test_an_async_subscriber_has_a_pattern_too() -> None:
    world = begun()

    async def main() -> None:
        async with AsyncSubscriber[Event](pattern="[ab]|d.*", **world.settings("s", None)) as subscriber:
            admit(world, "d1")
            world.publish("c")
            while "d1" not in subscriber.topics:
                assert await subscriber.poll(0.3) is None
            world.publish("d1")
            event = await subscriber.poll(60)
            assert event is not None
            assert event.topic == "d1"
            await subscriber.subscribe(pattern="[bc]")
            await subscriber.subscribe(["a"])

    asyncio.run(main())
    assert [grant.topics for grant in own(world)] == [("a", "b"), ("a", "b", "d1"), ("b", "c"), ("a",)]
