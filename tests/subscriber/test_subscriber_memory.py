"""The Subscriber over Kafka in memory: what a user sees, without a broker."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from sim_kafka import SimTransport
from sim_small import World, await_ready, take

from totalorder.errors import (
    BrokerUnavailable,
    Error,
    EventsLost,
    Fenced,
    Rejected,
    SequencerUnavailable,
    SettingsError,
    SubscriptionEnded,
    WireError,
)
from totalorder.sequencer.wire.control import Unsubscribe, encode_request
from totalorder.subscriber import Event, Position, Subscriber
from totalorder.subscriber.transport import Partition, Record


@pytest.mark.parametrize("m", [1, 2])
def test_delivers_in_order_and_goes_on_after_a_restart(m: int) -> None:
    world = World(min_subscriptions=m)
    first = world.subscriber("ab", save_interval_s=0)
    for topic in "aabbcab":
        world.publish(topic)
    events = take(first, 4)
    first.close()
    second = world.subscriber("ab")
    events += take(second, 2)
    assert [event.value for event in sorted(events, key=lambda e: e.g)] == [b"a1", b"a2", b"b3", b"b4", b"a6", b"b7"]
    assert second.poll(1) is None


def values(events: list[Event]) -> list[str]:
    return [(event.value or b"").decode() for event in events]


def drained(subscriber: Subscriber) -> list[Event]:
    """Everything that comes, acknowledged."""
    events = []
    while (event := subscriber.poll(2)) is not None:
        subscriber.ack(event)
        events.append(event)
    return events


# --- positions --------------------------------------------------------------------------------------------------------


def test_what_was_not_acknowledged_comes_again_with_a_tag() -> None:
    world = World()
    first = world.subscriber("a", save_interval_s=0)
    for _ in range(3):
        world.publish("a")
    take(first, 1)
    world.now += 1  # an application that is so slow is promised one event at a time
    assert first.poll(60) is not None
    second = world.subscriber("a")
    world.publish("a")
    assert [(e.value, e.tag) for e in take(second, 3)] == [
        (b"a2", "redelivered"),
        (b"a3", None),
        (b"a4", None),
    ]


def test_a_with_block_that_fails_saves_what_was_acknowledged_and_nothing_more() -> None:
    world = World()

    def work() -> None:
        with world.subscriber("a", save_interval_s=1000) as first:
            for _ in range(3):
                world.publish("a")
            take(first, 1)
            assert first.poll(60) is not None
            raise RuntimeError

    with pytest.raises(RuntimeError):
        work()
    assert values(take(world.subscriber("a"), 2)) == ["a2", "a3"]


def test_acknowledging_is_cumulative_and_an_older_event_changes_nothing() -> None:
    world = World()
    first = world.subscriber("a")
    for _ in range(3):
        world.publish("a")
    one, two = first.poll(60), first.poll(60)
    assert one is not None
    assert two is not None
    first.ack(two)
    first.ack(one)
    assert first.position == two.position
    assert first.metrics().unacknowledged == 0
    first.close()
    assert values(take(world.subscriber("a"), 1)) == ["a3"]


def test_an_event_of_another_subscriber_cannot_be_acknowledged() -> None:
    world = World()
    first, second = world.subscriber("a"), world.subscriber("a", id="other")
    world.publish("a")
    event = first.poll(60)
    assert event is not None
    said = r"ack.. was given a#1 .a.1.@0, g \d+., which subscriber 'other' has not handed out. Acknowledge with the"
    with pytest.raises(Error, match=said):
        second.ack(event)
    assert second.poll(60) is not None, "it is of use still"
    elsewhere = event._replace(origin=Position("elsewhere", "id", 0))
    with pytest.raises(Error, match="which subscriber 'other' has not handed out"):
        second.ack(elsewhere)
    assert second.metrics().unacknowledged == 1


def test_start_new_begins_at_the_present() -> None:
    world = World()
    world.subscriber("a").close()
    world.publish("a")
    second = world.subscriber("a", start="now")
    world.publish("a")
    assert values(take(second, 1)) == ["a2"]


def test_positions_are_saved_from_time_to_time_and_old_ones_deleted() -> None:
    world = World()
    partitions = [Partition("d.positions", number) for number in range(2)]

    def keys() -> list[tuple[bytes | None, bool]]:
        return [(r.key, r.value is None) for at in partitions for r in world.kafka.logs.get(at, [])]

    first = world.subscriber("a", save_interval_s=5)
    assert keys() == [(b"s/1", False)]
    world.publish("a")
    take(first, 1)
    assert keys() == [(b"s/1", False)] * 2  # the second promises that no more than this event was handed out
    world.now += 5
    first.poll(0)
    assert keys() == [(b"s/1", False)] * 3
    world.subscriber("a")
    assert keys()[3:] == [(b"s/2", False), (b"s/1", True)]


def test_a_subscriber_without_events_keeps_its_offsets_from_ageing() -> None:
    """By key, others' events fill the partition: what retention removed of them must not look like a loss."""
    world = World(topic_by="key")

    def publish(key: bytes) -> None:
        world.count += 1
        world.kafka.append(Partition("a", 0), key=key, value=b"", timestamp_ms=world.count)

    first = world.subscriber("x", save_interval_s=0)
    publish(b"x")
    take(first, 1)
    for _ in range(10):
        publish(b"other")
        world.now += 30
        assert first.poll(1) is None
    world.kafka.trim(Partition("a", 0), 6)
    second = world.subscriber("x")
    publish(b"x")
    assert [(event.offset, event.tag) for event in take(second, 1)] == [(11, None)]


def test_what_could_not_be_saved_in_time_is_tried_again_soon() -> None:
    """However seldom it is saved: else nobody would know for long that Kafka takes records again."""
    world = World()
    transport = world.transport()
    subscriber = world.subscriber("a", transport=transport)
    world.publish("a")
    take(subscriber, 1)
    transport.sent.clear()
    transport.refused = {"d.positions": BrokerUnavailable("gone")}
    world.publish("b")
    while world.now < 70:
        assert subscriber.poll(0.5) is None
    transport.refused, begun = {}, world.now
    while "d.positions" not in transport.sent:
        assert world.now < begun + 3
        assert subscriber.poll(0.5) is None
    transport.sent.clear()
    while world.now < begun + 50:
        assert subscriber.poll(0.5) is None
    assert "d.positions" not in transport.sent


def test_a_batch_that_came_in_parts_is_read_again_from_its_first_one() -> None:
    world = World(stamps_partitions=1, max_part_bytes=1)
    first = world.subscriber("a")
    for _ in range(3):
        world.publish("a")
    await_ready(first, 3)
    assert world.kafka.end(Partition("d.stamps", 0)) > 3
    take(first, 1)
    first.close()
    assert values(take(world.subscriber("a"), 2)) == ["a2", "a3"]


def test_a_damaged_position_is_refused_with_a_way_out() -> None:
    world = World()
    world.subscriber("a").close()
    for number in range(2):
        world.kafka.append(Partition("d.positions", number), key=b"s/1", value=b"{}")
    with pytest.raises(WireError, match="--start now"):
        world.subscriber("a")
    world.subscriber("a", start="now").close()


# --- one process per id -----------------------------------------------------------------------------------------------


def test_the_newer_process_wins_and_the_older_stops() -> None:
    world = World()
    old = world.subscriber("a")
    new = world.subscriber("a")
    world.publish("a")
    assert values(take(new, 1)) == ["a1"]
    for _ in range(2):
        with pytest.raises(Fenced, match="subscriber id 's'"):
            old.poll(60)
    old.close()
    assert values(drained(new)) == []


def test_unsubscribing_by_someone_else_ends_it_after_what_is_owed() -> None:
    world = World()
    subscriber = world.subscriber("a")
    world.publish("a")
    world.tick(0)
    request = Unsubscribe(id="s", generation=2, nonce="operator")
    world.kafka.append(Partition("d.control", 0), value=encode_request(request), timestamp_ms=0)
    world.publish("a")
    assert values(take(subscriber, 1)) == ["a1"]
    with pytest.raises(SubscriptionEnded, match="unsubscribed"):
        subscriber.poll(60)


# --- the subscription's end -------------------------------------------------------------------------------------------


def test_topics_can_be_left_one_after_the_other() -> None:
    world = World()
    subscriber = world.subscriber("abc", max_buffered=1)
    for number in range(3):
        for topic in "abc":
            world.publish(topic, f"{topic}{number}")
    world.tick(0)
    subscriber.unsubscribe(["a"])
    subscriber.unsubscribe(["b"])  # of what was granted last, which delivery has not reached yet
    for topic in "abc":
        world.publish(topic, f"{topic}3")
    events = take(subscriber, 10)
    assert [event.value for event in events] == [f"{topic}{n}".encode() for n in range(3) for topic in "abc"] + [b"c3"]
    assert subscriber.topics == ("c",)
    assert subscriber.poll(5) is None


@pytest.mark.parametrize(
    ("given", "drain", "why"),
    [
        (["a", "b"], True, "no topic would be left"),
        (["a", "x"], True, "x: not of this subscription"),
        (["a"], False, "drain=False is for the end"),
        ("a", True, "topics is 'a'"),
        ([], True, "0 topics"),
    ],
)
def test_what_cannot_be_left_changes_nothing(given: Any, drain: bool, why: str) -> None:
    world = World()
    subscriber = world.subscriber("ab")
    with pytest.raises(SettingsError, match=why):
        subscriber.unsubscribe(given, drain=drain)
    world.publish("b", "b1")
    assert [event.value for event in take(subscriber, 1)] == [b"b1"]
    assert subscriber.topics == ("a", "b")


def test_unsubscribe_drains_or_drops() -> None:
    world = World()
    for drain, expected in ((True, ["a1"]), (False, [])):
        subscriber = world.subscriber("a", start="now")
        world.count = 0
        world.publish("a")
        world.tick(0)
        subscriber.unsubscribe(drain=drain)
        world.publish("a")
        assert values(list(subscriber)) == expected
        assert subscriber.finished
        subscriber.close()


def test_after_its_end_a_subscription_begins_anew() -> None:
    world = World()
    first = world.subscriber("a")
    world.publish("a")
    assert values(take(first, 1)) == ["a1"]
    first.unsubscribe(drain=False)
    first.close()
    world.publish("a")
    world.tick(0)
    second = world.subscriber("a")
    world.publish("a")
    assert [(e.value, e.tag) for e in take(second, 1)] == [(b"a3", None)]


def test_a_lapse_stops_a_process_and_the_next_one_loses_nothing() -> None:
    world = World()
    first = world.subscriber("ab", lease_s=10)
    world.publish("a")
    take(first, 1)
    world.now += 100
    world.sequencer.time_ms += 100_000
    world.publish("b")  # an idle domain expires nothing
    world.sequencer.run()
    world.publish("a")
    world.sequencer.run()
    with pytest.raises(SubscriptionEnded, match=r"id 's' in domain 'd' expired at g \d+: .* lease of 10 s"):
        drained(first)
    first.close()
    second = world.subscriber("ab", lease_s=10)
    world.publish("b")
    assert sorted(values(take(second, 3))) == ["a3", "b2", "b4"]


def test_the_lease_is_renewed_in_time() -> None:
    world = World()
    subscriber = world.subscriber("a", lease_s=9)
    began = world.now
    for _ in range(20):
        world.publish("a")
        subscriber.poll(2)
        world.now += 2
    kinds = [
        encoded for r in world.kafka.logs[Partition("d.grants", 0)] if (encoded := r.value) and b"renewed" in encoded
    ]
    assert (world.now - began) / 6 <= len(kinds) <= (world.now - began) / 3 + 1


@pytest.mark.parametrize(
    ("setting", "sent"), [({"lease_s": 1}, "d.control"), ({"save_interval_s": 0.4}, "d.positions")]
)
def test_what_is_due_soon_is_done_however_many_events_are_ready(setting: dict[str, object], sent: str) -> None:
    world = World()
    transport = world.transport()
    settings: dict[str, object] = {"save_interval_s": 1000} | setting
    subscriber = world.subscriber("a", "s", transport, **settings)
    for _ in range(5):
        world.publish("a")
    await_ready(subscriber, 5)
    take(subscriber, 1)
    transport.sent.clear()
    world.now += 0.4
    take(subscriber, 1)
    assert sent in transport.sent


# --- changes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic_by", ["topic", "key"])
def test_changes_its_topics_at_one_position(topic_by: str) -> None:
    world = World(topic_by=topic_by)

    def publish(topic: str) -> None:
        world.count += 1
        kafka_topic = topic if topic_by == "topic" else "a"
        world.kafka.append(
            Partition(kafka_topic, 0),
            key=topic.encode(),
            value=f"{topic}{world.count}".encode(),
            timestamp_ms=world.count,
        )

    subscriber = world.subscriber("ab")
    for topic in "abc":
        publish(topic)
    world.tick(0)
    subscriber.subscribe(["b", "c"])
    assert subscriber.topics in (("a", "b"), ("b", "c"))
    for topic in "abc":
        publish(topic)
    assert values(take(subscriber, 4)) == ["a1", "b2", "b5", "c6"]
    assert subscriber.topics == ("b", "c")


class GrantsFirst(SimTransport):
    """Gives all that there is at each poll, grants before anything else."""

    def __init__(self, world: World) -> None:
        super().__init__(world.kafka, world.rng, world.tick, most=50, fair=True)

    def poll(self, timeout_s: float) -> list[Record]:
        return sorted(super().poll(timeout_s), key=lambda record: record.topic != "d.grants")


def test_what_was_fetched_before_a_partition_is_read_again_counts_for_nothing() -> None:
    """The new topic's events were let pass, and a later one comes along with the grant."""
    world = World(topic_by="key")

    def publish(key: bytes) -> None:
        world.count += 1
        world.kafka.append(Partition("a", 0), key=key, value=b"%s%d" % (key, world.count), timestamp_ms=world.count)

    transport = GrantsFirst(world)
    subscriber = world.subscriber("x", transport=transport)
    publish(b"x")
    take(subscriber, 1)
    world.running = False
    publish(b"y")
    assert subscriber.poll(0) is None
    publish(b"y")
    world.running = True
    subscriber.subscribe(["x", "y"])
    assert values(take(subscriber, 2)) == ["y2", "y3"]


def test_little_is_read_while_the_application_takes_nothing() -> None:
    world = World()
    subscriber = world.subscriber("a", max_buffered=2)
    for _ in range(60):
        world.publish("a")
    for _ in range(100):
        subscriber._session.pump(0)
    held = subscriber.metrics()
    assert 2 <= held.ready + held.buffered_events < 30
    assert values(take(subscriber, 60)) == [f"a{number}" for number in range(1, 61)]


def test_pause_holds_everything_back_and_resume_lets_it_come() -> None:
    world = World()
    subscriber = world.subscriber("a", lease_s=30)
    subscriber.pause()
    for _ in range(5):
        world.publish("a")
        assert subscriber.poll(10) is None
    subscriber.resume()
    assert values(take(subscriber, 5)) == ["a1", "a2", "a3", "a4", "a5"]


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_wrong_settings_are_refused_before_anything_is_sent() -> None:
    world = World()
    bad: list[Callable[[], Subscriber]] = [
        lambda: world.subscriber(""),
        lambda: Subscriber("abc", id="s", domain="d", transport=world.transport()),
        lambda: world.subscriber("a", id="a/b"),
        lambda: world.subscriber("a", lease_s=-1),
        lambda: world.subscriber("a", start_timeout_s=0),
        lambda: world.subscriber("a", max_buffered=0),
        lambda: world.subscriber("a", save_interval_s=-1),
        lambda: world.subscriber("a", start="oldest"),
    ]
    for make in bad:
        with pytest.raises(SettingsError):
            make()
    assert Partition("d.control", 0) not in world.kafka.logs


def test_says_when_the_sequencer_does_not_answer() -> None:
    world = World()
    world.running = False
    with pytest.raises(SequencerUnavailable, match=r"within 60 s.*totalorder sequence"):
        world.subscriber("a")
    assert world.now < 70
    del world.kafka.topics["d.stamps"]
    with pytest.raises(SequencerUnavailable, match=r"no topic d\.stamps"):
        world.subscriber("a", start_timeout_s=1)


def test_a_rejection_carries_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    monkeypatch.setattr("totalorder.subscriber.checks.valid_topic", lambda name: True)
    with pytest.raises(Rejected, match="not a usable name"):
        world.subscriber(["a", "x" * 256])


def test_a_closed_subscriber_says_so_and_its_iterator_ends() -> None:
    world = World()
    subscriber = world.subscriber("a")
    subscriber.close()
    subscriber.close()
    assert list(subscriber) == []
    with pytest.raises(SubscriptionEnded, match="closed"):
        subscriber.poll()


def test_stop_ends_the_iterator() -> None:
    world = World()
    subscriber = world.subscriber("a")
    world.publish("a")
    world.publish("a")
    seen = []
    for event in subscriber:
        seen.append(event)
        subscriber.stop()
    assert len(seen) == 1


def test_foreign_records_in_the_domains_topics_stop_it_by_name() -> None:
    world = World()
    subscriber = world.subscriber("a")
    world.kafka.append(Partition("d.grants", 0), value=b"hello")
    with pytest.raises(WireError, match="grants"):
        subscriber.poll(60)
    other = World()
    subscriber = other.subscriber("a")
    for number in range(2):
        other.kafka.append(Partition("d.stamps", number), value=b"hello")
    with pytest.raises(WireError, match=r"d\.stamps"):
        subscriber.poll(60)


def test_trimmed_partitions_stop_it_by_name() -> None:
    world = World()
    first = world.subscriber("a")
    for _ in range(4):
        world.publish("a")
    take(first, 1)
    first.close()
    for number in range(2):
        world.kafka.trim(Partition("a", number), 2)
    with pytest.raises(EventsLost, match=r"of topic 'a' is stamped .* but Kafka has it no longer"):
        world.subscriber("a").poll(60)


def test_a_broker_that_is_gone_does_not_hide_what_went_wrong_before(caplog: pytest.LogCaptureFixture) -> None:
    """Closing saves the position; when that fails, the one saved before still holds and the block's error is seen."""
    world = World()

    def work() -> None:
        transport = world.transport()
        with world.subscriber("a", transport=transport) as subscriber:
            world.publish("a")
            assert subscriber.poll(60) is not None
            transport.refused = dict.fromkeys(("d.positions", "d.receipts"), BrokerUnavailable("gone"))
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        work()
    assert "subscriber 's' of domain 'd' was closed unsaved: what was acknowledged since" in caplog.text
    assert caplog.text.count("gone") == 1


def test_importing_the_library_needs_no_spark_and_no_client() -> None:
    code = "import sys, totalorder.subscriber; print(sorted({'pyspark', 'pandas', 'kafka'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
