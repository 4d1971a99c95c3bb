"""Processes of one id that overlap: what one does while another is stalled at a call to Kafka."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from sim_kafka import SimCrash, SimTransport
from sim_small import World, await_ready, take

from totalorder.errors import BrokerUnavailable, Fenced, SequencerUnavailable, SubscriptionEnded
from totalorder.sequencer.wire.control import Ended, Unsubscribe, decode_answer, encode_request
from totalorder.sequencer.wire.names import stamps_partition
from totalorder.subscriber import Event, Subscriber
from totalorder.subscriber.transport import Partition


class Stalling(SimTransport):
    """Before its first record to `topic`, the process stalls while `meanwhile` runs."""

    def __init__(self, world: World, topic: str, meanwhile: Callable[[], None], *, after: bool = False) -> None:
        super().__init__(world.kafka, world.rng, world.tick)
        self.topic, self.after = topic, after
        self.meanwhile: Callable[[], None] | None = meanwhile

    def send(self, partition: Partition, key: bytes | None, value: bytes | None, **rest: Any) -> int:
        meanwhile = self.meanwhile if partition.topic == self.topic else None
        if meanwhile is not None:
            self.meanwhile = None
            if not self.after:
                meanwhile()
        offset = super().send(partition, key, value, **rest)
        if meanwhile is not None and self.after:
            meanwhile()
        return offset


def publish(world: World, count: int) -> None:
    for _ in range(count):
        world.publish("a")


def told(events: list[Event]) -> list[tuple[str, str | None]]:
    return [((event.value or b"").decode(), event.tag) for event in events]


def everything(subscriber: Subscriber) -> list[tuple[str, str | None]]:
    """All that comes, acknowledged."""
    events = []
    while (event := subscriber.poll(20)) is not None:
        subscriber.ack(event)
        events.append(event)
    return told(events)


def last_answer(world: World) -> object:
    answers = [decode_answer(record.value or b"") for record in world.kafka.logs[Partition("d.grants", 0)]]
    return [answer for answer in answers if answer.id == "s"][-1]


# --- twice without a flag ---------------------------------------------------------------------------------------------


def test_who_was_granted_and_stalls_before_it_saves_stops_when_another_has_begun() -> None:
    world = World()
    found = []

    def another_begins() -> None:
        publish(world, 3)
        found.append(everything(world.subscriber("a")))

    with pytest.raises(Fenced, match="took over subscriber id 's'"):
        world.subscriber("a", transport=Stalling(world, "d.positions", another_begins))
    assert found == [[("a1", None), ("a2", None), ("a3", None)]]


def test_what_was_acknowledged_while_a_process_stalled_before_its_request_does_not_come_to_it() -> None:
    world = World()
    first = world.subscriber("a")
    publish(world, 2)
    take(first, 1)
    first.close()

    def another_lives_and_ends() -> None:
        with world.subscriber("a") as third:
            publish(world, 2)
            assert everything(third) == [("a2", None), ("a3", None), ("a4", None)]

    second = world.subscriber("a", transport=Stalling(world, "d.control", another_lives_and_ends))
    publish(world, 1)
    assert everything(second) == [("a5", None)]


def test_who_was_granted_and_stalls_while_a_later_process_lives_and_ends_is_told_so() -> None:
    world = World()

    def another_lives_and_ends() -> None:
        world.tick(0)  # the first one is granted
        publish(world, 2)
        with world.subscriber("a") as later:
            assert everything(later) == [("a1", None), ("a2", None)]

    with pytest.raises(Fenced, match="generation 2"):
        world.subscriber("a", transport=Stalling(world, "d.control", another_lives_and_ends, after=True))


def test_a_promise_that_nobody_saw_is_not_used() -> None:
    """The process stalls before it puts its promise on the log; who takes over meanwhile cannot know of it."""
    world = World()
    found = []

    def another_begins() -> None:
        found.append(everything(world.subscriber("a")))

    transport = Stalling(world, "d.positions", another_begins)
    transport.meanwhile = None
    first = world.subscriber("a", transport=transport)
    transport.meanwhile = another_begins
    publish(world, 2)
    with pytest.raises(Fenced):
        first.poll(60)
    assert found == [[("a1", None), ("a2", None)]]


def test_a_promise_holds_for_all_who_follow() -> None:
    """The second process dies before it hands anything out: what the first one handed out is flagged by the third."""
    world = World()
    first = world.subscriber("a")
    publish(world, 3)
    await_ready(first, 3)
    assert first.poll(60) is not None
    world.subscriber("a")
    assert everything(world.subscriber("a")) == [("a1", "redelivered"), ("a2", None), ("a3", None)]


def test_every_promise_is_believed() -> None:
    """Also of one that was replaced and does not know: it saves what it acknowledged, and promises what is next."""
    world = World()
    first = world.subscriber("a")
    publish(world, 3)
    await_ready(first, 3)
    one = first.poll(60)
    assert one is not None
    world.subscriber("a")
    first.ack(one)
    assert everything(world.subscriber("a")) == [("a1", "redelivered"), ("a2", "redelivered"), ("a3", None)]


def test_a_promise_covers_what_the_application_takes_in_a_tenth_of_a_second() -> None:
    """Whatever else is ready: what it covers is flagged after a crash."""
    world = World()
    transport = world.transport()
    first = world.subscriber("a", transport=transport, save_interval_s=1_000)
    publish(world, 200)
    await_ready(first, 200)
    transport.sent.clear()
    for _ in range(150):
        world.now += 0.01
        assert first.poll(0) is not None
    assert 10 <= transport.sent.count("d.positions") <= 30
    flagged = [value for value, tag in everything(world.subscriber("a")) if tag]
    assert 150 <= len(flagged) <= 165


def test_an_application_that_waits_for_events_gets_a_batch_by_one_promise() -> None:
    """However batches differ: only what the application itself takes its time for counts."""
    world = World()
    transport = world.transport()
    subscriber = world.subscriber("a", transport=transport, save_interval_s=1_000)
    for count in (30, 30, 30, 30, 30, 30, 3, 30, 3, 30, 60):
        for _ in range(20):
            assert subscriber.poll(0.01) is None
        publish(world, count)
        await_ready(subscriber, count)
        transport.sent.clear()
        for _ in range(count):
            world.now += 0.0001
            assert subscriber.poll(0) is not None
    assert transport.sent.count("d.positions") == 1


def test_flagged_is_what_may_have_been_delivered_and_not_what_came_since() -> None:
    world = World()
    first = world.subscriber("a", save_interval_s=1_000)
    for _ in range(10):
        publish(world, 1)
        event = first.poll(60)
        assert event is not None
        if event.n < 10:
            first.ack(event)
            first.save()
    publish(world, 1_000)
    found = everything(world.subscriber("a"))
    assert found[:2] == [("a10", "redelivered"), ("a11", None)]
    assert {tag for _, tag in found[1:]} == {None}
    assert len(found) == 1_001


def test_a_save_keeps_the_promise_of_what_is_not_acknowledged() -> None:
    world = World()
    first = world.subscriber("a")
    publish(world, 2)
    one, two = first.poll(60), first.poll(60)
    assert one is not None
    assert two is not None
    first.ack(one)
    assert everything(world.subscriber("a")) == [("a2", "redelivered")]


def test_after_a_close_only_what_was_handed_out_is_flagged() -> None:
    """At one moment of the clock each promise covers twice as many as the one before: 1, 2, 4."""
    world = World()
    with world.subscriber("a", save_interval_s=1_000) as first:
        publish(world, 7)
        await_ready(first, 7)
        for _ in range(4):
            assert first.poll(60) is not None
    flags = ["redelivered"] * 4 + [None] * 3
    assert everything(world.subscriber("a")) == [(f"a{number}", tag) for number, tag in enumerate(flags, 1)]


def test_one_that_was_replaced_saves_nothing_when_it_is_closed() -> None:
    """What it promised last is more than it has handed out, and another's to say now."""
    world = World()
    transport = world.transport()
    first = world.subscriber("a", transport=transport, save_interval_s=1_000)
    publish(world, 4)
    await_ready(first, 4)
    take(first, 2)
    world.subscriber("a")
    with pytest.raises(Fenced):
        take(first, 2)
    transport.sent.clear()
    first.close()
    assert transport.closed
    assert "d.positions" not in transport.sent


@pytest.mark.parametrize("how", ["drained", "expired"])
def test_one_that_is_over_hands_nothing_out_when_another_has_begun(how: str) -> None:
    world = World()
    first = world.subscriber("a", lease_s=15)
    publish(world, 4)
    world.tick(0)
    if how == "drained":
        first.unsubscribe(drain=True)
    else:
        world.sequencer.time_ms += 100_000
        world.publish("b")
        world.tick(0)
        world.running = False
    while first._session.finished is None:
        first._session.pump(0.05)
    world.running = True
    assert len(first._session.ready) == 4
    second = world.subscriber("a", lease_s=15)
    assert everything(second) == [(f"a{number}", None) for number in range(1, 5)]
    with pytest.raises(Fenced):
        first.poll(1)


# --- subscriptions that nobody holds ----------------------------------------------------------------------------------


@pytest.mark.parametrize("drain", [True, False])
def test_after_unsubscribing_a_subscriber_does_not_subscribe_again(drain: bool) -> None:
    world = World()
    subscriber = world.subscriber("a")
    subscriber.unsubscribe(drain=drain)
    assert list(subscriber) == []
    with pytest.raises(SubscriptionEnded, match="'s' in domain 'd' was unsubscribed by this process"):
        subscriber.subscribe(["b"])
    world.tick(0)
    assert isinstance(last_answer(world), Ended)


def test_unsubscribing_twice_is_unsubscribing_once() -> None:
    world = World()
    subscriber = world.subscriber("a")
    publish(world, 3)
    await_ready(subscriber, 3)
    subscriber.unsubscribe(drain=True)
    assert subscriber.poll(60) is not None
    subscriber.unsubscribe(drain=False)
    assert list(subscriber) == []


def test_a_request_that_comes_after_somebody_elses_end_leaves_nothing_behind() -> None:
    world = World()

    def somebody_ends_it() -> None:
        request = Unsubscribe(id="s", generation=2, nonce="operator")
        world.kafka.append(Partition("d.control", 0), value=encode_request(request))

    transport = Stalling(world, "d.control", somebody_ends_it)
    transport.meanwhile = None
    subscriber = world.subscriber("a", transport=transport)
    transport.meanwhile = somebody_ends_it
    with pytest.raises(SubscriptionEnded, match="'s' in domain 'd' was unsubscribed at g 2"):
        subscriber.subscribe(["b"])
    world.tick(0)
    assert isinstance(last_answer(world), Ended)


def test_a_request_that_timed_out_is_taken_back() -> None:
    world = World()
    world.running = False
    with pytest.raises(SequencerUnavailable):
        world.subscriber("a")
    world.running = True
    world.tick(0)
    answer = last_answer(world)
    assert isinstance(answer, Ended)
    assert answer.reason == "unsubscribed"


def test_a_restart_that_timed_out_leaves_the_subscription_as_it_was() -> None:
    world = World()
    first = world.subscriber("a")
    publish(world, 2)
    take(first, 1)
    first.close()
    world.running = False
    with pytest.raises(SequencerUnavailable):
        world.subscriber("a")
    world.running = True
    publish(world, 1)
    world.tick(0)
    assert everything(world.subscriber("a")) == [("a2", None), ("a3", None)]


class Failing(Stalling):
    """Its request number `at` ends in `error`, after it was written or without."""

    def __init__(
        self,
        world: World,
        error: type[BaseException],
        meanwhile: Callable[[], None],
        *,
        at: int,
        written: bool = True,
    ) -> None:
        super().__init__(world, "d.control", meanwhile)
        self.error, self.at, self.written, self.asked = error, at, written, 0

    def send(self, partition: Partition, key: bytes | None, value: bytes | None, **rest: Any) -> int:
        self.asked += partition.topic == "d.control"
        fails = partition.topic == "d.control" and self.asked == self.at
        if fails and not self.written:
            raise self.error("before a request was written")
        offset = super().send(partition, key, value, **rest)
        if fails:
            raise self.error("behind a request")
        return offset


@pytest.mark.parametrize("error", [KeyboardInterrupt, BrokerUnavailable, SystemExit])
def test_a_request_whose_sending_ended_in_an_error_is_taken_back(error: type[BaseException]) -> None:
    world = World()
    with pytest.raises(error):
        world.subscriber("a", transport=Failing(world, error, lambda: None, at=1))
    for _ in range(3):
        world.tick(0)
    assert isinstance(last_answer(world), Ended)


@pytest.mark.parametrize("written", [True, False])
def test_what_is_taken_back_is_never_the_subscription_of_somebody_else(written: bool) -> None:
    """Another process got the generation that was asked for; the next request fails."""
    world = World()
    others = []

    def another_begins() -> None:
        others.append(world.subscriber("a"))
        publish(world, 2)
        take(others[0], 1)

    with pytest.raises(BrokerUnavailable):
        world.subscriber("a", transport=Failing(world, BrokerUnavailable, another_begins, at=2, written=written))
    for _ in range(3):
        world.tick(0)
    publish(world, 3)
    assert not isinstance(last_answer(world), Ended)
    assert [value for value, _ in everything(world.subscriber("a"))] == ["a2", "a3", "a4", "a5"]


def test_a_change_that_a_lapse_overtakes_takes_nothing_back() -> None:
    """The end of the lease is read when `subscribe` is called, and reached before it is answered."""
    world = World()
    transport = world.transport()
    first = world.subscriber("a", lease_s=15, transport=transport)
    publish(world, 2)
    take(first, 1)
    first.pause()
    first._session._throttle()
    publish(world, 2)
    world.tick(0)
    world.sequencer.time_ms += 100_000
    world.publish("b")
    world.tick(0)
    while not first._session.machine._sets.switches:
        first._session.pump(0)
    first.resume()

    def answer_late(timeout_s: float) -> None:
        world.running = first._session.finished is not None
        world.tick(timeout_s)

    transport.on_poll = answer_late
    with pytest.raises(SubscriptionEnded, match="expired"):
        first.subscribe(["a", "b"])
    world.running = True
    for _ in range(3):
        world.tick(0)
    publish(world, 2)
    values = [value for value, _ in everything(world.subscriber("a", lease_s=15))]
    assert values[-2:] == ["a6", "a7"]
    assert not isinstance(last_answer(world), Ended)


def test_an_old_end_that_is_repeated_gives_up_nothing() -> None:
    world = World()
    answers = Partition("d.grants", 0)
    first = world.subscriber("a")
    first.unsubscribe(drain=False)
    first.close()

    def dies() -> None:
        raise SimCrash

    with pytest.raises(SimCrash):
        world.subscriber("a", transport=Stalling(world, "d.positions", dies))
    publish(world, 2)
    world.tick(0)
    end = next(r for r in world.kafka.logs[answers] if isinstance(decode_answer(r.value or b""), Ended))
    world.kafka.append(answers, key=end.key, value=end.value)
    for number in range(2):  # as if the first process's position had been compacted away
        world.kafka.logs.pop(Partition("d.positions", number), None)
    assert everything(world.subscriber("a")) == [("a1", None), ("a2", None)]


def test_what_nobody_could_save_is_owed_though_its_lease_ran_out() -> None:
    world = World()

    def dies() -> None:
        raise SimCrash

    with pytest.raises(SimCrash):
        world.subscriber("a", transport=Stalling(world, "d.positions", dies), lease_s=15)
    publish(world, 2)
    world.tick(0)
    world.sequencer.time_ms += 100_000
    publish(world, 1)
    world.tick(0)
    assert isinstance(last_answer(world), Ended)
    assert everything(world.subscriber("a")) == [("a1", None), ("a2", None), ("a3", None)]


def test_the_last_answer_before_a_process_begins_counts_whosever_it_is() -> None:
    """Stamps say up to which answer they are complete, and that one is read before there is a machine to hear it."""
    world = World()

    def another_asks() -> None:
        world.kafka.append(Partition("d.control", 0), value=b"a record that is refused behind the grant")

    transport = Stalling(world, "d.control", another_asks, after=True)
    transport.fair, transport.most = True, 50
    subscriber = world.subscriber("a", transport=transport)
    publish(world, 2)
    assert everything(subscriber) == [("a1", None), ("a2", None)]


# --- answers that compaction took -------------------------------------------------------------------------------------


def compacted(world: World) -> None:
    world.kafka.compact(Partition("d.grants", 0))


def test_a_grant_of_which_only_the_expiry_is_left_is_asked_for_again() -> None:
    world = World()

    def granted_and_expired() -> None:
        world.tick(0)
        world.sequencer.time_ms += 100_000
        publish(world, 1)
        world.tick(0)
        compacted(world)

    transport = Stalling(world, "d.control", granted_and_expired, after=True)
    subscriber = world.subscriber("a", transport=transport, lease_s=10)
    publish(world, 1)
    assert everything(subscriber) == [("a2", None)]


def test_a_grant_of_which_only_another_processs_is_left_is_none() -> None:
    world = World()

    def granted_and_taken_over() -> None:
        world.tick(0)
        world.subscriber("a")
        world.kafka.append(Partition("d.control", 0), value=b"a record whose answer shows that ours has passed")
        world.tick(0)
        compacted(world)

    with pytest.raises(Fenced, match="generation 2"):
        world.subscriber("a", transport=Stalling(world, "d.control", granted_and_taken_over, after=True))


def test_an_old_grant_that_came_late_and_is_the_last_one_left_hides_no_newer_one() -> None:
    """As of a process of the job that was replaced: compaction keeps what came last, and drops the newer grant."""
    world = World()
    world.subscriber("a")
    old = world.kafka.logs[Partition("d.grants", 0)][-1]
    publish(world, 1)
    second = world.subscriber("ab")
    assert told(take(second, 1)) == [("a1", None)]
    second.close()
    world.kafka.append(Partition("d.grants", 0), key=old.key, value=old.value)
    compacted(world)
    assert last_answer(world) == decode_answer(old.value or b"")
    publish(world, 2)
    third = world.subscriber("ab")
    assert third.metrics().generation == 3
    assert everything(third) == [("a2", None), ("a3", None)]


def test_an_old_grant_that_is_repeated_is_not_the_last_one() -> None:
    """As by a process of the job that was replaced."""
    world = World()
    first = world.subscriber("a")
    old = world.kafka.logs[Partition("d.grants", 0)][-1]
    publish(world, 1)
    first.subscribe(["a", "b"])
    granted = first.granted_g
    world.kafka.append(Partition("d.grants", 0), key=old.key, value=old.value)
    publish(world, 1)
    assert everything(first) == [("a1", None), ("a2", None)]
    assert first.granted_g == granted


@pytest.mark.parametrize("reason", ["expired", "unsubscribed"])
def test_one_that_was_replaced_is_told_by_the_end_of_what_replaced_it(reason: str) -> None:
    """Nothing else is left of that: the two have handed the same events out, and only one of them flagged."""
    world = World()
    first = world.subscriber("a", lease_s=15)
    publish(world, 2)
    await_ready(first, 2)
    second = world.subscriber("a", lease_s=15)
    assert everything(second) == [("a1", None), ("a2", None)]
    if reason == "expired":
        world.sequencer.time_ms += 100_000
        publish(world, 1)
        world.tick(0)
    else:
        second.unsubscribe(drain=False)
    compacted(world)
    answer = last_answer(world)
    assert isinstance(answer, Ended)
    assert answer.reason == reason
    with pytest.raises(Fenced, match="another process took over subscriber id 's'"):
        first.poll(60)


def test_one_that_was_replaced_is_told_by_a_renewal_where_only_its_own_grant_is_left() -> None:
    """It slept for longer than grants are kept from compaction, and a replaced job had written its grant once more,
    behind the newer one: so that is the last one of the id.
    """
    world = World()
    first = world.subscriber("a", lease_s=15)
    old = world.kafka.logs[Partition("d.grants", 0)][-1]
    publish(world, 2)
    await_ready(first, 2)
    second = world.subscriber("a", lease_s=15)
    assert everything(second) == [("a1", None), ("a2", None)]
    assert second.metrics().generation == 2
    world.kafka.append(Partition("d.grants", 0), key=old.key, value=old.value)
    compacted(world)
    assert last_answer(world) == decode_answer(old.value or b"")
    with pytest.raises(Fenced, match="another process took over subscriber id 's' with generation 2"):
        first.poll(60)


def asleep(world: World, *, suspended: bool = False) -> Subscriber:
    """A process that slept for longer than grants are kept whole, and does not know that another one has taken
    all: that had no lease to renew, and a replaced job had written the sleeper's grant once more, behind the newer one.
    """
    first = world.subscriber("a", lease_s=0)
    old = world.kafka.logs[Partition("d.grants", 0)][-1]
    publish(world, 2)
    await_ready(first, 2)
    if suspended:
        world.suspended += 400
    else:
        world.now += 400
    second = world.subscriber("a", lease_s=0)
    assert everything(second) == [("a1", None), ("a2", None)]
    world.kafka.append(Partition("d.grants", 0), key=old.key, value=old.value)
    compacted(world)
    assert last_answer(world) == decode_answer(old.value or b"")
    return first


DOINGS: dict[str, Callable[[Subscriber], object]] = {
    "poll": lambda subscriber: subscriber.poll(60),
    "poll_batch": lambda subscriber: subscriber.poll_batch(5, 60),
    "subscribe": lambda subscriber: subscriber.subscribe(["a", "b"]),
    "unsubscribe": lambda subscriber: subscriber.unsubscribe(),
}


@pytest.mark.parametrize("doing", DOINGS)
def test_one_that_was_replaced_in_its_sleep_is_told_by_what_the_other_saved(doing: str) -> None:
    world = World()
    first = asleep(world)
    with pytest.raises(Fenced, match="another process took over subscriber id 's' with generation 2"):
        DOINGS[doing](first)


def test_a_key_that_somebody_else_wrote_is_no_generation() -> None:
    world = World()
    first = asleep(world)
    saved = Partition("d.positions", stamps_partition("s", 2))
    for odd in (b"x", b"-7", b"9" * 5_000):
        world.kafka.append(saved, key=b"s/" + odd, value=b"{}")
    transport = first._session._transport
    assert isinstance(transport, SimTransport)
    transport.most, transport.fair = 50, True  # all come at once
    with pytest.raises(Fenced, match="generation 2"):
        first.poll(60)


def test_a_machine_that_was_suspended_slept() -> None:
    world = World()
    with pytest.raises(Fenced, match="generation 2"):
        asleep(world, suspended=True).poll(60)


def test_who_slept_reads_positions_as_long_as_it_takes_before_it_hands_anything_out() -> None:
    """Kafka is slow: what it sends in the time of one look is not all, and the next look goes on."""
    world = World()
    first = world.subscriber("a", lease_s=0, save_interval_s=1e6)
    publish(world, 1)
    await_ready(first, 1)
    positions = Partition("d.positions", stamps_partition("s", 2))
    for _ in range(60):
        world.kafka.append(positions, key=b"other/7", value=b"{}")
    transport = first._session._transport
    assert isinstance(transport, SimTransport)
    transport.most, transport.fair = 2, True
    transport.on_poll = lambda _: world.tick(0.7)
    world.now += 400
    looks = 1
    while first.poll(0) is None:
        looks += 1
    assert 2 < looks < 30
    assert positions not in transport.positions


def test_who_waits_for_events_did_not_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each event of a quiet topic would cost a look at all positions."""
    world = World()
    first = world.subscriber("a", lease_s=0)
    for _ in range(30):
        assert first.poll(20) is None
    transport = first._session._transport
    assert isinstance(transport, SimTransport)
    monkeypatch.setattr(transport, "beginning_offsets", lambda _: pytest.fail("it looks at positions"))
    publish(world, 1)
    assert told(take(first, 1)) == [("a1", None)]


def test_renewals_of_former_processes_fence_nobody() -> None:
    world = World()
    first = world.subscriber("a", lease_s=15)
    publish(world, 1)
    for _ in range(3):
        assert told([event for event in [first.poll(20)] if event is not None]) in ([("a1", None)], [])
    first.close()
    grants = Partition("d.grants", 0)
    renewed = next(record for record in world.kafka.logs[grants] if (record.key or b"").startswith(b"renew/"))
    publish(world, 1)
    second = world.subscriber("a", lease_s=15)
    world.kafka.append(grants, key=renewed.key, value=renewed.value)  # of a job that was replaced, late
    assert [value for value, _ in everything(second)] == ["a1", "a2"]
    assert second.metrics().generation == 2


class AtEnds(SimTransport):
    """Reads record by record. When the end of a topic was asked for, it stalls while `meanwhile` runs, once."""

    def __init__(self, world: World, topic: str, meanwhile: Callable[[], None]) -> None:
        super().__init__(world.kafka, world.rng, world.tick, most=1, fair=True)
        self.topic, self.meanwhile = topic, [meanwhile]

    def end_offsets(self, partitions: Iterable[Partition], *, once: bool = False) -> dict[Partition, int]:
        found = super().end_offsets(partitions, once=once)
        if self.topic in {partition.topic for partition in found} and self.meanwhile:
            self.meanwhile.pop()()
        return found


def test_a_position_that_is_saved_and_compacted_while_positions_are_read_is_found() -> None:
    """Before the end as it was, there are other ids' alone by then; what took the place of ours lies behind it."""
    world = World()
    first = world.subscriber("a")
    publish(world, 4)
    one, two = first.poll(60), first.poll(60)
    assert one is not None
    assert two is not None
    first.ack(one)
    positions = [Partition("d.positions", number) for number in range(2)]
    for at in positions:
        world.kafka.append(at, key=b"other/1")

    def goes_on() -> None:
        first.ack(two)
        for at in positions:
            world.kafka.compact(at)

    second = world.subscriber("a", transport=AtEnds(world, "d.positions", goes_on))
    assert everything(second) == [("a3", "redelivered"), ("a4", None)]


def test_a_grant_that_is_compacted_while_grants_are_read_still_tells_that_another_has_begun() -> None:
    """Where it was there is a record of somebody else's; the newer grant lies behind the end as it was."""
    world = World()
    found: list[list[tuple[str, str | None]]] = []

    def a_third_begins() -> None:
        began = world.now
        found.append(everything(world.subscriber("a")))
        compacted(world)
        world.now = began  # else it would have taken too long, and nothing is handed out then

    transport = AtEnds(world, "d.grants", a_third_begins)
    a_third, transport.meanwhile = transport.meanwhile, []
    first = world.subscriber("a", transport=transport)
    publish(world, 2)
    await_ready(first, 2)
    world.subscriber("a")
    world.kafka.append(Partition("d.control", 0), value=b"a record that is refused behind the grant")
    world.tick(0)
    transport.meanwhile = a_third
    with pytest.raises(Fenced):
        first._session.hand_out()
    assert found == [[("a1", "redelivered"), ("a2", None)]]


def test_while_no_broker_says_where_grants_end_nothing_is_handed_out_and_nobody_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    first = world.subscriber("a")
    publish(world, 1)
    await_ready(first, 1)
    transport = first._session._transport
    ends = transport.end_offsets

    def asked(partitions: Iterable[Partition], *, once: bool = False) -> dict[Partition, int]:
        if once:
            raise BrokerUnavailable("no broker answers", remedy="")
        return dict(ends(list(partitions)))

    monkeypatch.setattr(transport, "end_offsets", asked)
    assert first.poll(0) is None
    monkeypatch.undo()
    assert told(take(first, 1)) == [("a1", None)]


# --- stamps that are written once more --------------------------------------------------------------------------------


def test_an_old_batch_that_is_repeated_behind_the_noted_ends_is_passed_over() -> None:
    world = World(stamps_partitions=1)
    at = Partition("d.stamps", 0)
    for _ in range(3):
        publish(world, 1)
        world.tick(0)
    old = world.kafka.logs[at][0]

    def repeated() -> None:
        world.kafka.append(at, value=old.value, headers=old.headers)

    first = world.subscriber("a", transport=Stalling(world, "d.control", repeated))
    publish(world, 1)
    assert told(take(first, 1)) == [("a4", None)]
    second = world.subscriber("a")
    publish(world, 1)
    assert everything(second) == [("a5", None)]
