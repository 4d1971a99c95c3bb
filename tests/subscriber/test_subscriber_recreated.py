"""Topics that are deleted and created again under a subscriber, over Kafka in memory."""

from typing import Any

import pytest
from sim_receipts import receipts_of
from sim_small import World, await_ready, take

from totalorder.errors import EventsLost
from totalorder.subscriber import Event, Lost, Subscriber
from totalorder.subscriber.transport import Partition


def everything(subscriber: Subscriber[Any]) -> list[Any]:
    """All that comes, acknowledged."""
    events = []
    while (event := subscriber.poll(20)) is not None:
        subscriber.ack(event)
        events.append(event)
    return events


def recreate(world: World, topic: str, *, retire: bool = True) -> str:
    """Another topic of the name, which the sequencer notices; returns its id."""
    world.kafka.delete(topic)
    world.kafka.create(topic, 2)
    if retire:
        world.sequencer.retire()
        world.tick(0)
    return world.kafka.ids[topic]


def small_world() -> World:
    """Whose sequencer knows its topics by their ids."""
    world = World()
    world.sequencer.retire()
    return world


def test_goes_on_with_the_topic_that_has_the_name_now() -> None:
    world = small_world()
    subscriber = world.subscriber("ab")
    for topic in "aab":
        world.publish(topic)
    events = everything(subscriber)
    topic_id = recreate(world, "a")
    for topic in "aba":
        world.publish(topic)
    events += everything(subscriber)
    of_a = [event for event in events if event.topic == "a"]
    assert [event.n for event in of_a] == [1, 2, 3, 4]
    assert [event.topic_id == topic_id for event in of_a] == [False, False, True, True]
    assert [event.g for event in events] == sorted(event.g for event in events)
    assert {source.topic_id for source in subscriber._session.machine.position().sources if source.topic == "a"} == {
        topic_id
    }


def test_receipts_tell_which_topic_of_a_name() -> None:
    world = small_world()
    subscriber = world.subscriber("a")
    world.publish("a")
    events = everything(subscriber)
    recreate(world, "a")
    world.publish("a")
    world.publish("a")
    events += everything(subscriber)
    subscriber.close()
    receipts = receipts_of(world.kafka, "s")
    assert all(receipt.is_of(event) for receipt, event in zip(receipts, events, strict=True))
    assert len({receipt.source.topic_id for receipt in receipts}) == 2


@pytest.mark.parametrize("away", [True, False])
def test_what_was_stamped_and_not_read_stops_a_subscriber(away: bool) -> None:
    world = small_world()
    subscriber = world.subscriber("ab", max_buffered=1)
    former = world.kafka.ids["a"]
    for topic in "aaaabb":
        world.publish(topic)
    take(subscriber, 1)
    while world.sequencer.run():
        pass
    if away:
        subscriber.close()
    recreate(world, "a")
    world.publish("a")
    if away:
        subscriber = world.subscriber("ab")
    with pytest.raises(EventsLost, match=f"Kafka topic a with id {former} was deleted, or created again") as told:
        everything(subscriber)
    assert "--on-lost skip" in told.value.remedy


def test_with_skip_it_is_marked_and_the_order_goes_on() -> None:
    world = small_world()
    first = world.subscriber("ab")
    other = world.subscriber("ab", id="other")
    for _ in range(4):
        world.publish("a")
        world.publish("b")
    seen = everything(other)
    take(first, 2)
    first.close()
    topic_id = recreate(world, "a")
    world.publish("a")
    seen += everything(other)
    events = everything(world.subscriber("ab", on_lost="skip"))
    assert [event.g for event in events] == [event.g for event in seen if event.g >= events[0].g]
    assert len(events) == len(seen) - 2
    assert {event.topic_id == topic_id for event in events if isinstance(event, Lost)} == {False}
    assert [type(event) for event in events if event.topic == "a"] == [Lost] * 3 + [Event]
    assert {event.tag for event in events if event.topic == "b"} == {None}


def test_a_later_process_knows_of_topics_that_were_retired_while_nobody_ran() -> None:
    """The answer that says so is older than those that came last, and is another's."""
    world = small_world()
    first = world.subscriber("ab")
    world.publish("a")
    everything(first)
    first.close()
    former = world.kafka.ids["a"]
    recreate(world, "a")
    world.subscriber("b", id="other").close()
    world.publish("a")
    second = world.subscriber("ab")
    assert len(everything(second)) == 1
    sources = second._session.machine.position().sources
    assert former not in {source.topic_id for source in sources}
    assert former not in {source.topic_id for source in second._session._event_partitions}


def test_events_that_the_job_never_saw_hold_nobody_up() -> None:
    """They were read, and their topic was deleted before the job came to them: they are in no order."""
    world = small_world()
    subscriber = world.subscriber("ab", max_buffered=2)
    for topic in "aab":
        world.publish(topic)
    everything(subscriber)
    world.running = False
    for _ in range(6):
        world.publish("a")
    for _ in range(20):
        subscriber._session.pump(0)
    assert subscriber.metrics().buffered_events > 0
    world.running = True
    recreate(world, "a")
    world.publish("a")
    world.publish("b")
    events = everything(subscriber)
    assert [event.topic for event in sorted(events, key=lambda event: event.topic)] == ["a", "b"]
    assert {event.topic_id for event in events if event.topic == "a"} == {world.kafka.ids["a"]}
    assert subscriber.metrics().buffered_events == 0


def test_a_topic_that_is_deleted_and_owes_nothing_is_no_news() -> None:
    world = small_world()
    subscriber = world.subscriber("ab")
    world.publish("a")
    everything(subscriber)
    world.kafka.delete("a")
    world.publish("b")
    world.publish("b")
    assert len(everything(subscriber)) == 2
    assert not [source for source in subscriber._session._event_partitions if source.topic == "a"]


def test_what_is_ready_when_its_topic_goes_is_still_handed_out() -> None:
    world = small_world()
    subscriber = world.subscriber("a")
    for _ in range(3):
        world.publish("a")
    await_ready(subscriber, 3)
    recreate(world, "a")
    assert [event.tag for event in take(subscriber, 3)] == [None] * 3


def test_another_topic_of_the_name_before_the_job_knows_of_it() -> None:
    """The stamps name the former one: what has its name now, at the same offsets, is never taken for it."""
    world = small_world()
    subscriber = world.subscriber("a")
    world.publish("a")
    world.publish("a")
    while world.sequencer.run():
        pass
    former = world.kafka.ids["a"]
    recreate(world, "a", retire=False)
    for number in (0, 1):
        world.kafka.append(Partition("a", number), value=b"a1")
    with pytest.raises(EventsLost, match=f"with id {former} was deleted"):
        everything(subscriber)
