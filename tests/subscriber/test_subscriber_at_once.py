"""Events that are handed out without a look at what else is due: nothing that anybody sees is another one by that."""

import random
from typing import Any

import pytest
from sim_receipts import Receipt, receipts_of
from sim_small import World, await_ready, take

from totalorder.errors import EventsLost
from totalorder.subscriber import Event
from totalorder.subscriber.session import Session
from totalorder.subscriber.transport import Partition, Record

SETS = ["a", "ab", "bc", "abc"]


def life(seed: int, m: int) -> tuple[list[Any], list[Receipt], list[list[Record]]]:
    """What an application sees that takes events one by one and in batches, is slow at times, pauses, and wants others;
    and what is on the domain's topics of it.
    """
    world, rng, seen = World(min_subscriptions=m), random.Random(seed), list[Any]()
    subscriber = world.subscriber(
        "abc", nonce="mine", save_interval_s=rng.choice([0, 0.01, 1]), lease_s=9, on_change=seen.append
    )
    event: Event | None = None
    for _ in range(400):
        step = rng.random()
        if step < 0.3:
            for _ in range(rng.randint(1, 8)):
                world.publish(rng.choice("abc"))
        elif step < 0.8:
            event = subscriber.poll(rng.choice([0, 0, 0.2]))
            seen.append((event, subscriber.topics, subscriber.metrics()))
            if event is not None and rng.random() < 0.9:
                subscriber.ack(event)
        elif step < 0.85:
            batch = subscriber.poll_batch(rng.randint(1, 5))
            seen.append((list(batch), subscriber.topics, subscriber.metrics()))
        elif step < 0.95:
            world.now += rng.choice([0.0001, 0.0004, 0.002, 0.3, 2.0])
        elif step < 0.98:
            held = rng.random() < 0.5
            (subscriber.pause if held else subscriber.resume)()
        else:
            subscriber.subscribe(list(rng.choice(SETS)))
    subscriber.resume()
    subscriber.close()
    logs = [world.kafka.logs.get(Partition("d.positions", number), []) for number in range(2)]
    return seen, receipts_of(world.kafka, "s"), logs


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("seed", range(10))
def test_it_is_as_though_each_was_looked_at(seed: int, m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, receipts, saved = life(seed, m=m)
    monkeypatch.setattr(Session, "at_once", lambda _: None)
    twin = life(seed, m=m)
    assert (seen, saved) == (twin[0], twin[2])
    assert [receipt._replace(delivered_ms=0) for receipt in receipts] == [
        receipt._replace(delivered_ms=0) for receipt in twin[1]
    ]
    late_ms = [other.delivered_ms - receipt.delivered_ms for receipt, other in zip(receipts, twin[1], strict=True)]
    assert set(late_ms) <= {0, 1}
    assert len(receipts) > 20


def test_most_are_handed_out_so(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    subscriber = world.subscriber("abc")
    for at in range(30):
        world.publish("abc"[at % 3])
    await_ready(subscriber, 30)
    looked = list[object]()
    hand_out = Session.hand_out

    def look(session: Session) -> Any:
        looked.append(session)
        return hand_out(session)

    monkeypatch.setattr(Session, "hand_out", look)
    events = take(subscriber, 30)
    assert [event.g for event in events] == sorted({event.g for event in events})
    assert len(looked) < 15


def test_a_loss_that_somebody_looked_at_still_stops_it() -> None:
    world = World()
    subscriber = world.subscriber("a")
    for _ in range(4):
        world.publish("a")
    await_ready(subscriber, 4)
    for _ in range(4):
        world.publish("a")
    world.tick(0)
    for number in range(2):
        world.kafka.trim(Partition("a", number), 3)
    handed = take(subscriber, 3)
    while len(subscriber._session.ready) < 2:
        subscriber._session.pump(0)
    handed += take(subscriber, 1)
    assert subscriber.metrics().ready > 0  # it asks how old the first one is
    with pytest.raises(EventsLost):
        subscriber.poll(60)
    assert [event.value for event in handed] == [b"a1", b"a2", b"a3", b"a4"]
