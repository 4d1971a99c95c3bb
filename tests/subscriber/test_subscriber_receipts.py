"""Receipts as the Subscriber sends them, over Kafka in memory."""

import pytest
from sim_receipts import Receipt, receipts_of
from sim_small import World, await_ready, take

from totalorder.errors import BrokerUnavailable, Error, Fenced, SequencerUnavailable
from totalorder.sequencer.wire.position import decode_saved
from totalorder.subscriber import Event, Subscriber, receipts as receipt_log
from totalorder.subscriber.transport import Partition

GONE = {"d.receipts": BrokerUnavailable("gone")}


def unacknowledged(subscriber: Subscriber, count: int) -> list[Event]:
    """The next events, not acknowledged."""
    events = [subscriber.poll(60) for _ in range(count)]
    return [event for event in events if event is not None]


def assert_receipts(receipts: list[Receipt], events: list[Event]) -> None:
    assert len(receipts) == len(events)
    for receipt, event in zip(receipts, events, strict=True):
        assert receipt.is_of(event)


def saved_g(world: World) -> int:
    """The newest saved position of s."""
    logs = [world.kafka.logs.get(Partition("d.positions", number), []) for number in range(2)]
    return max(decode_saved(record.value).position.g for log in logs for record in log if record.value is not None)


@pytest.mark.parametrize("m", [1, 2])
def test_each_acknowledged_delivery_has_a_receipt_before_its_position(m: int) -> None:
    world = World(min_subscriptions=m)
    transport = world.transport()
    subscriber = world.subscriber("ab", transport=transport, nonce="mine")
    for topic in "abca":
        world.publish(topic)
    events = []
    for _ in range(3):
        transport.sent.clear()
        events += take(subscriber, 1)
        assert transport.sent[-2:] == ["d.receipts", "d.positions"]
    receipts = receipts_of(world.kafka, "s")
    assert_receipts(receipts, events)
    assert {(receipt.nonce, receipt.generation) for receipt in receipts} == {("mine", 1)}


def test_a_receipt_tells_the_time_of_delivery() -> None:
    world = World()
    subscriber = world.subscriber("a")
    world.publish("a")
    world.publish("a")
    times = []
    for _ in range(2):
        world.now += 7
        take(subscriber, 1)
        times.append(int((1_000 + world.now) * 1000))
    assert [receipt.delivered_ms for receipt in receipts_of(world.kafka, "s")] == times


def test_what_is_not_acknowledged_is_sent_within_a_second() -> None:
    world = World()
    subscriber = world.subscriber("a", save_interval_s=1000)
    world.publish("a")
    events = unacknowledged(subscriber, 1)
    assert receipts_of(world.kafka, "s") == []
    world.now += 1
    assert subscriber.poll(0) is None
    assert_receipts(receipts_of(world.kafka, "s"), events)
    assert saved_g(world) < events[0].g


def test_no_more_than_a_limit_wait_while_events_are_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipt_log, "_MOST", 5)
    world = World()
    transport = world.transport()
    subscriber = world.subscriber("a", transport=transport, save_interval_s=1000)
    for _ in range(11):
        world.publish("a")
    await_ready(subscriber, 11)
    transport.sent.clear()
    events = unacknowledged(subscriber, 11)
    assert [topic for topic in transport.sent if topic != "d.positions"] == ["d.receipts"] * 2
    assert_receipts(receipts_of(world.kafka, "s"), events[:10])


def test_a_promise_of_what_may_be_handed_out_saves_nothing_that_has_no_receipt() -> None:
    world = World()
    transport = world.transport()
    subscriber = world.subscriber("a", transport=transport, save_interval_s=1000)
    transport.refused = {"d.receipts": BrokerUnavailable("gone")}
    world.publish("a")
    events = take(subscriber, 1)
    world.publish("a")
    assert subscriber.poll(60) is not None
    assert saved_g(world) < events[0].g


def test_a_subscription_that_is_over_still_sends_what_waits() -> None:
    world = World()
    transport = world.transport()
    subscriber = world.subscriber("a", transport=transport, save_interval_s=1000)
    for _ in range(3):
        world.publish("a")
    await_ready(subscriber, 3)
    subscriber.unsubscribe(drain=True)
    events = take(subscriber, 3)
    assert subscriber.poll(0) is None
    assert subscriber.finished
    transport.sent.clear()
    world.now += 2
    assert subscriber.poll(0) is None
    assert transport.sent == ["d.receipts"]
    assert_receipts(receipts_of(world.kafka, "s"), events)


# --- failures ---------------------------------------------------------------------------------------------------------


def test_a_position_waits_for_receipts_that_could_not_be_sent() -> None:
    world = World()
    transport = world.transport()
    subscriber = world.subscriber("a", transport=transport, save_interval_s=2)
    world.publish("a")
    events = take(subscriber, 1)
    before = saved_g(world)
    transport.refused = GONE
    transport.sent.clear()
    world.now += 3
    assert subscriber.poll(0) is None
    assert transport.sent == []
    transport.refused = {}
    world.now += 3
    assert subscriber.poll(0) is None
    assert transport.sent == ["d.receipts", "d.positions"]
    assert saved_g(world) == events[0].g > before


def test_an_acknowledgement_fails_with_its_receipt_and_closing_makes_up_for_both() -> None:
    world = World()
    transport = world.transport()
    subscriber = world.subscriber("a", transport=transport)
    world.publish("a")
    events = unacknowledged(subscriber, 1)
    transport.refused = GONE
    with pytest.raises(BrokerUnavailable):
        subscriber.ack(events[0])
    assert saved_g(world) < events[0].g
    transport.refused = {}
    subscriber.close()
    assert_receipts(receipts_of(world.kafka, "s"), events)
    assert saved_g(world) == events[0].g


def test_a_broker_that_does_not_come_back_for_receipts_is_named_before_too_many_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receipt_log, "_MOST", 10)
    world = World()
    transport = world.transport()
    subscriber = world.subscriber("a", transport=transport, save_interval_s=1000)
    transport.refused = GONE
    for _ in range(12):
        world.publish("a")
    events = unacknowledged(subscriber, 10)
    with pytest.raises(BrokerUnavailable):
        subscriber.poll(60)
    transport.refused = {}
    subscriber.close()
    assert_receipts(receipts_of(world.kafka, "s"), events)


def test_a_failed_attempt_is_not_repeated_at_each_event() -> None:
    world = World()
    transport = world.transport()
    subscriber = world.subscriber("a", transport=transport, save_interval_s=1000)
    for _ in range(5):
        world.publish("a")
    unacknowledged(subscriber, 1)
    await_ready(subscriber, 4)
    transport.refused = GONE
    world.now += 1
    unacknowledged(subscriber, 1)
    transport.refused = {}
    unacknowledged(subscriber, 3)
    assert receipts_of(world.kafka, "s") == []
    world.now += 1
    subscriber.poll(0)
    assert len(receipts_of(world.kafka, "s")) == 5


def test_a_fenced_process_still_tells_what_it_delivered() -> None:
    world = World()
    transport = world.transport()
    old = world.subscriber("a", transport=transport, nonce="old")
    world.publish("a")
    events = unacknowledged(old, 1)
    new = world.subscriber("a", nonce="anew")
    transport.refused = GONE
    with pytest.raises(Fenced):
        old.poll(60)
    transport.refused = {}
    old.close()
    events += take(new, 1)
    receipts = receipts_of(world.kafka, "s")
    assert [(r.nonce, r.generation, r.redelivered) for r in receipts] == [("anew", 2, True), ("old", 1, False)]
    assert_receipts(receipts, events[::-1])


def test_receipts_that_are_refused_do_not_hide_what_went_wrong_before() -> None:
    world = World()

    def close_in_vain(mine: Exception | None) -> None:
        transport = world.transport()
        with world.subscriber("a", transport=transport) as subscriber:
            world.publish("a")
            assert len(unacknowledged(subscriber, 1)) == 1
            transport.refused = {"d.receipts": Error("no permission")}
            if mine is not None:
                raise mine

    with pytest.raises(RuntimeError, match="mine"):
        close_in_vain(RuntimeError("mine"))
    with pytest.raises(Error, match="no permission"):
        close_in_vain(None)


# --- restarts and changes ---------------------------------------------------------------------------------------------


def test_after_a_crash_what_comes_again_is_told_again_as_redelivered() -> None:
    world = World()
    first = world.subscriber("a", nonce="n1")
    for _ in range(3):
        world.publish("a")
    events = take(first, 1)
    world.now += 1  # an application that is so slow is promised one event at a time
    lost = unacknowledged(first, 1)  # the process is killed before it can tell
    second = world.subscriber("a", nonce="n2")
    events += take(second, 2)
    receipts = receipts_of(world.kafka, "s")
    assert_receipts(receipts, events)
    assert [(r.nonce, r.generation, r.sequence, r.redelivered) for r in receipts] == [
        ("n1", 1, 1, False),
        ("n2", 2, 1, True),
        ("n2", 2, 2, False),
    ]
    assert receipts[1].g == lost[0].g


def test_a_change_of_the_set_raises_the_generation_and_not_the_count() -> None:
    world = World()
    subscriber = world.subscriber("ab", nonce="n1")
    world.publish("a")
    events = take(subscriber, 1)
    world.publish("b")
    subscriber.subscribe(["b", "c"])
    world.publish("c")
    events += take(subscriber, 2)
    receipts = receipts_of(world.kafka, "s")
    assert_receipts(receipts, events)
    assert [(r.nonce, r.generation, r.sequence) for r in receipts] == [("n1", 1, 1), ("n1", 2, 2), ("n1", 2, 3)]


def test_what_a_dropped_subscription_did_not_hand_out_has_no_receipt() -> None:
    world = World()
    subscriber = world.subscriber("a")
    for _ in range(3):
        world.publish("a")
    events = unacknowledged(subscriber, 1)
    subscriber.unsubscribe(drain=False)
    subscriber.close()
    assert_receipts(receipts_of(world.kafka, "s"), events)


# --- without ----------------------------------------------------------------------------------------------------------


def test_without_receipts_nothing_is_sent_and_no_topic_is_needed() -> None:
    world = World()
    del world.kafka.topics["d.receipts"]
    subscriber = world.subscriber("a", receipts=False)
    world.publish("a")
    take(subscriber, 1)
    world.now += 100
    subscriber.poll(1)
    subscriber.close()
    assert not [at for at in world.kafka.logs if at.topic == "d.receipts"]


def test_a_sequencer_without_receipts_is_named_with_the_way_out() -> None:
    world = World()
    del world.kafka.topics["d.receipts"]
    with pytest.raises(SequencerUnavailable, match=r"no topic d\.receipts.*receipts=False \(--no-receipts\)"):
        world.subscriber("a")
    assert 60 <= world.now < 70


def test_a_topic_that_comes_late_is_waited_for() -> None:
    world = World()
    del world.kafka.topics["d.receipts"]
    tick = world.tick

    def create_in_time(timeout_s: float) -> None:
        tick(timeout_s)
        if world.now > 5:
            world.kafka.create("d.receipts", 2)

    transport = world.transport()
    transport.on_poll = create_in_time
    subscriber = world.subscriber("a", transport=transport)
    world.publish("a")
    events = take(subscriber, 1)
    assert_receipts(receipts_of(world.kafka, "s"), events)
