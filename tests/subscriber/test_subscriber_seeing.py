"""What a Subscriber shows of itself: its log, its callbacks and its metrics."""

import logging
from collections.abc import Iterable
from typing import Any

import pytest
from logged import by_us
from sim_kafka import SimTransport
from sim_sequencer import Domain
from sim_small import World, await_ready, take

from totalorder.errors import BrokerUnavailable, EventsLost, Fenced
from totalorder.sequencer.wire.names import stamps_partition
from totalorder.subscriber import Changed, Event, Granted, Lost, Stalled, Subscriber, Wait
from totalorder.subscriber.transport import Partition


class Told:
    """What callbacks were told, among the events that were handed out, in order."""

    def __init__(self, world: World, **settings: Any) -> None:
        self.all: list[Any] = []
        self.world = world
        self.subscriber: Subscriber[Any] = world.subscriber(
            **({"topics": "a"} | settings),
            on_granted=self.all.append,
            on_change=self.all.append,
            on_stalled=self.all.append,
        )

    def poll(self, count: int, batch: int = 0) -> None:
        for _ in range(count):
            if batch:
                self.all += self.subscriber.poll_batch(batch, 1)
            elif (event := self.subscriber.poll(1)) is not None:
                self.all.append(event)


def short(told: list[Any]) -> list[Any]:
    return [each.g if isinstance(each, Event) else each for each in told]


def test_events_that_come_while_no_sequencer_runs_are_a_stall_and_silence_is_none() -> None:
    world = World()
    told = Told(world)
    world.publish("a")
    world.publish("a")
    told.poll(10)
    world.running = False
    told.poll(100)
    assert short(told.all) == [Granted(g=1, topics=("a",), generation=1), 2, 3]
    world.publish("a")
    told.poll(25)
    stalls = told.all[3:]
    assert [(stall.wait.kind, stall.wait.topic, stall.over) for stall in stalls] == [("stamps", "a", False)] * 2
    metrics, home = told.subscriber.metrics(), stamps_partition("a", Domain().stamps_partitions)
    assert metrics.stalled
    assert metrics.hold is not None
    assert metrics.hold.wait == stalls[0].wait
    assert (metrics.hold.wait.offset, metrics.hold.wait.stamps_partition) == (1, home)
    assert metrics.hold.for_s >= 20
    assert metrics.lag_events == metrics.buffered_events == 1
    assert metrics.lag_s > 1_000  # its record is of the year 1970
    world.running = True
    told.poll(5)
    over, event = told.all[5:]
    assert isinstance(over, Stalled), "told before the event that came with it is handed out"
    assert over.over
    assert event.g == 4
    metrics = told.subscriber.metrics()
    assert (metrics.hold, metrics.stalled, metrics.lag_events, metrics.lag_s) == (None, False, 0, 0.0)


@pytest.mark.parametrize("batch", [0, 100])
def test_a_change_is_told_between_the_last_event_before_it_and_the_first_one_behind(batch: int) -> None:
    world = World()
    told = Told(world, topics="ab")
    for _ in range(3):
        world.publish("a")
        world.publish("b")
    world.tick(0)
    told.subscriber.subscribe(["b", "c"])
    for _ in range(3):
        world.publish("b")
        world.publish("c")
    await_ready(told.subscriber, 12)
    told.poll(20, batch)
    assert short(told.all) == [
        Granted(g=1, topics=("a", "b"), generation=1),
        Granted(g=8, topics=("b", "c"), generation=2),
        *range(2, 8),
        Changed(g=8, topics=("b", "c")),
        *range(9, 15),
    ]


def test_the_end_of_a_subscription_is_a_change_to_no_topics() -> None:
    world = World()
    told = Told(world)
    world.publish("a")
    world.tick(0)
    told.subscriber.unsubscribe()
    for event in told.subscriber:
        told.all.append(event)
    assert short(told.all)[1:] == [2, Changed(g=3, topics=())]


def test_a_process_that_goes_on_with_the_same_topics_tells_no_change(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world = World()
    world.subscriber("a").close()
    told = Told(world)
    world.publish("a")
    told.poll(2)
    assert short(told.all) == [Granted(g=2, topics=("a",), generation=2), 3]
    assert by_us(caplog)[-1].endswith("at g 2: topics a (generation 2, after generation 1 of another process)")


@pytest.mark.parametrize("batch", [0, 100])
def test_what_a_callback_raises_comes_out_of_the_poll_and_loses_nothing(batch: int) -> None:
    world = World()
    failing = [ZeroDivisionError("granted"), ZeroDivisionError("changed")]

    def fail(_: object) -> None:
        raise failing.pop(0)

    subscriber = world.subscriber("ab", on_granted=fail, on_change=fail)
    world.publish("a")
    world.tick(0)
    seen: list[int] = []

    def poll() -> None:
        seen.extend(event.g for event in (subscriber.poll_batch(5, 60) if batch else take(subscriber, 1)))

    with pytest.raises(ZeroDivisionError, match="granted"):
        poll()
    poll()
    failing.insert(0, ZeroDivisionError("granted again"))
    subscriber.subscribe(["b"])
    world.publish("b")
    for said in ("granted again", "changed"):
        with pytest.raises(ZeroDivisionError, match=said):
            poll()
    poll()
    assert seen == [2, 4]
    subscriber.ack(subscriber.poll_batch(1, 0))
    subscriber.close()


def test_a_callback_may_call_the_subscriber() -> None:
    world = World()
    seen = []

    def look(_: Granted) -> None:
        seen.append(subscriber.metrics().generation)
        subscriber.save()
        if len(seen) == 1:
            subscriber.subscribe(["b"])

    subscriber: Subscriber[Any] = world.subscriber("a", on_granted=look)
    world.publish("b")
    take(subscriber, 1)
    assert seen == [1, 2]


def test_a_callback_that_closes_the_subscriber_ends_the_iterator() -> None:
    world = World()
    subscriber: Subscriber[Any] = world.subscriber("a", on_granted=lambda _: subscriber.stop())
    assert list(subscriber) == []


def test_a_renewal_that_nobody_answers_is_a_stall_though_nothing_is_published() -> None:
    world = World()
    told = Told(world, lease_s=30)
    told.poll(15)
    assert told.all[1:] == []
    world.running = False
    told.poll(20)
    assert [each.wait for each in told.all[1:]] == [Wait(kind="renewal")]
    world.running = True
    told.poll(5)
    assert [each.over for each in told.all[1:]] == [False, True]


def test_a_silent_broker_is_told_instead_of_what_it_holds_up() -> None:
    world = World()
    transport = world.transport()
    told = Told(world, transport=transport)
    world.publish("a")
    told.poll(10)
    world.running = False
    world.publish("a")
    world.publish("a")
    told.poll(3)
    transport.silent_s = 1.0
    told.poll(15)
    assert [each.wait for each in told.all[2:]] == [Wait(kind="broker")]
    assert told.subscriber.metrics().silent_s == 1.0


@pytest.mark.parametrize("absent", [False, True])
def test_of_a_topic_that_nobody_stamped_yet_a_dead_sequencer_is_seen_too(absent: bool) -> None:
    world = World()
    if absent:
        world.kafka.delete("a")
    else:
        world.kafka.append(Partition("a", 0), value=b"from before", timestamp_ms=0)
    world.running = True
    world.sequencer.event_topics = ["b", "c"]
    told = Told(world)
    told.poll(100)
    assert told.all[1:] == []  # it was warned of: the domain may begin behind what is there
    if absent:
        world.kafka.create("a", 2)
    world.kafka.append(Partition("a", 0), value=b"new", timestamp_ms=0)
    told.poll(45)
    (stall, *_) = told.all[1:]
    assert (stall.wait.kind, stall.wait.topic, stall.wait.offset) == ("stamps", "a", 0 if absent else 1)


@pytest.mark.parametrize("seen", [True, False])
def test_a_topic_that_nobody_stamps_any_more_is_told_while_events_of_others_come(seen: bool) -> None:
    """As where the job was started again with fewer topics; `seen`: the domain had events of it before."""
    world = World()
    told = Told(world, topics="ab")
    if seen:
        world.publish("b")
        told.poll(5)
    world.sequencer.event_topics = ["a"]
    world.kafka.append(Partition("b", 1), value=b"nobody's", timestamp_ms=0)
    for _ in range(150):
        world.publish("a")
        world.publish("a")
        world.tick(0.5)
        told.poll(2)
        world.kafka.append(Partition("b", 1), value=b"nobody's", timestamp_ms=0)
    stalls = [each.wait for each in told.all if isinstance(each, Stalled)]
    assert {(wait.kind, wait.topic) for wait in stalls} == {("stamps", "b")}
    assert sum(isinstance(each, Event) for each in told.all) > 250


@pytest.mark.parametrize("is_read", [False, True])
def test_a_partition_that_was_never_stamped_is_seen_though_others_of_its_topic_were(is_read: bool) -> None:
    """As under a job that is dead, or that was given too few partitions; `is_read`: it lives, and takes its time."""
    world = World()
    first, second = Partition("a", 0), Partition("a", 1)
    told = Told(world, topics="a")
    world.kafka.append(first, value=b"stamped", timestamp_ms=0)
    told.poll(100)
    assert [type(each) for each in told.all] == [Granted, Event]
    world.running = is_read
    world.kafka.append(second, value=b"nobody's", timestamp_ms=0)
    told.poll(45)
    if is_read:
        assert [type(each) for each in told.all] == [Granted, Event, Event]
        return
    (stall, *_) = told.all[2:]
    assert str(stall.wait).startswith("the stamps of event a[1]@0 of topic 'a'")
    world.running = True
    told.poll(5)
    assert [each.over for each in told.all if isinstance(each, Stalled)][-1]
    assert [each.value for each in told.all if isinstance(each, Event)] == [b"stamped", b"nobody's"]


def test_what_lay_in_a_partition_before_the_subscription_and_was_never_stamped_is_not_waited_for() -> None:
    world = World()
    world.kafka.append(Partition("a", 1), value=b"from before", timestamp_ms=0)
    world.sequencer.event_topics = ["b", "c"]
    told = Told(world, topics="ab")
    for name in "bb":
        world.publish(name)
    told.poll(100)
    assert not [each for each in told.all if isinstance(each, Stalled)]


def test_an_application_that_takes_its_time_is_no_stall() -> None:
    """What is not here yet comes when it takes more: nothing else was asked for meanwhile."""
    world = World()
    told = Told(world, topics="ab", max_buffered=20, transport=SimTransport(world.kafka, world.rng, world.tick, most=2))
    for _ in range(100):
        world.publish("a")
        world.publish("b")
        world.tick(0)
    while len(told.all) < 201:
        world.now += 5
        told.poll(1)
    assert [each for each in told.all if isinstance(each, Stalled)] == []


def test_while_it_is_paused_or_events_are_ready_nothing_is_waited_for() -> None:
    world = World()
    told = Told(world)
    world.publish("a")
    told.poll(10)
    world.running = False
    world.publish("a")
    world.publish("a")
    told.poll(1)
    told.subscriber.pause()
    told.poll(30)
    assert told.all[2:] == []
    told.subscriber.resume()
    told.poll(30)
    assert told.all[2].wait.kind == "stamps"


def test_a_start_without_a_sequencer_says_what_it_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world = World()
    world.subscriber("a").close()
    world.running = False
    caplog.clear()
    with pytest.raises(Exception, match="no answer from the sequencer"):
        world.subscriber("a", start_timeout_s=25)
    waits, stall, again = by_us(caplog)
    assert "waits for the sequencer's grant, for 3 s" in waits
    assert "s for the sequencer's grant. Check that `totalorder sequence` runs for domain 'd'" in stall
    assert "has waited 2" in again


def test_who_is_fenced_says_so_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    old = world.subscriber("a")
    world.subscriber("a")
    with pytest.raises(Fenced):
        old.poll(5)
    (line,) = by_us(caplog, logging.ERROR)
    assert line.startswith("a Subscriber has stopped: another process took over subscriber id 's' with generation 2")
    with pytest.raises(Fenced):
        old.poll(5)
    assert len(by_us(caplog, logging.ERROR)) == 1


def test_what_ends_it_is_not_printed_beside_the_error_where_no_log_is_set_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    world = World()
    old = world.subscriber(["a", "never-seen"])
    assert "never-seen" in capsys.readouterr().err  # Python prints warnings then
    world.publish("a")
    world.subscriber("a")
    with pytest.raises(Fenced):
        old.poll(5)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("on_lost", ["fail", "skip"])
def test_losses_are_in_the_log(on_lost: str, caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    subscriber = world.subscriber("a", on_lost=on_lost)
    for _ in range(8):
        world.publish("a")
    world.tick(0)
    for number in range(2):
        world.kafka.trim(Partition("a", number), 2)
    if on_lost == "fail":
        with pytest.raises(EventsLost):
            subscriber.poll(5)
        assert "has stopped: a[1]@0 of topic 'a' is stamped" in by_us(caplog, logging.ERROR)[0]
        assert "skips what" not in caplog.text
        return
    found = [subscriber.poll(5) for _ in range(8)]
    assert sum(isinstance(event, Lost) for event in found) == 4
    (line,) = by_us(caplog, logging.WARNING)
    assert line == "subscriber 's' of domain 'd' skips what Kafka has no longer: a[1]@0, at g 2"


def test_a_kafka_topic_that_is_replaced_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    subscriber = world.subscriber("a")
    world.publish("a")
    world.publish("a")
    take(subscriber, 2)
    world.running = False
    world.kafka.delete("a")
    subscriber.poll(1)
    said = "Kafka topic 'a' with id id1 was deleted, or replaced by another of its name"
    assert [line for line in by_us(caplog) if line.startswith("Kafka topic")] == [said]


def test_time_that_is_not_positive_is_no_stall() -> None:
    with pytest.raises(Exception, match="stalled_after_s = 0 must be more than 0"):
        World().subscriber("a", stalled_after_s=0)


def test_a_callback_cannot_end_the_iteration() -> None:
    """StopIteration out of `__next__` would be taken for the end of the subscription."""
    world = World()

    def tell(_: Granted) -> None:
        raise StopIteration

    subscriber = world.subscriber("a", on_granted=tell)
    world.publish("a", "a1")
    with pytest.raises(RuntimeError, match="a callback raised StopIteration"):
        next(subscriber)
    assert next(subscriber).value == b"a1"


class Deaf(SimTransport):
    """While it is, nobody hears what is asked in a hurry; records come."""

    is_deaf = False

    def end_offsets(self, partitions: Iterable[Partition], *, once: bool = False) -> dict[Partition, int]:
        if self.is_deaf and once:
            raise BrokerUnavailable("no answer")
        return super().end_offsets(partitions, once=once)


def test_events_that_are_kept_back_since_grants_cannot_be_read_to_their_end_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, stalls = World(), list[Stalled]()
    transport = Deaf(world.kafka, world.rng, world.tick)
    subscriber = world.subscriber("a", transport=transport, on_stalled=stalls.append)
    world.publish("a")
    await_ready(subscriber, 1)
    transport.is_deaf = True
    assert subscriber.poll(30) is None
    assert {str(stall.wait) for stall in stalls} == {"the end of d.grants"}
    assert "the end of d.grants. Look at the broker, and at what else this machine has to do" in caplog.text
    transport.is_deaf = False
    assert subscriber.poll(5) is not None
    assert subscriber.poll(1) is None
    assert stalls[-1].over
    subscriber.close()
