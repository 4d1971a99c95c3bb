"""Dear invariants of a subscriber's machine: what breaks is named at the next input."""

from collections.abc import Callable
from typing import Any

import pytest
from delivery_world import Feed, grant
from sources import src

from totalorder.sequencer.wire import invariants
from totalorder.subscriber.delivery.acknowledged import Acknowledged
from totalorder.subscriber.delivery.events import EventPartition, Events
from totalorder.subscriber.delivery.machine import Delivery
from totalorder.subscriber.delivery.order import Line
from totalorder.subscriber.delivery.owed import Owed
from totalorder.subscriber.delivery.stamps import Stamps


def half_way() -> Feed:
    """a1 is delivered and not acknowledged; a2 waits for b1, which has not come."""
    feed = Feed.granted(("a", "b"))
    feed.stamps(("a", 1, 2, 0, {}), ("b", 1, 3, 0, {"a": 1}), ("a", 2, 4, 1, {"b": 1}))
    assert feed.events(("a", 0), ("a", 1)) == [("a", 1)]
    return feed


def look(machine: Delivery) -> None:
    """An input that changes nothing."""
    with invariants.looking(1):
        machine.gone(src("elsewhere"), 1)


def part(machine: Delivery) -> Any:
    return machine._stamps.parts[0]


def held(machine: Delivery) -> EventPartition:
    return machine._events.read[src("a")]


BREAKS: dict[str, Callable[[Any], Any]] = {
    "2 rows of d.stamps[0] are in the order, and 3 are counted": lambda it: setattr(part(it), "waiting", 3),
    "holds 0 rows, and counts 1": lambda it: setattr(part(it), "held_rows", 1),
    "is paused, and only 2 rows wait": lambda it: setattr(part(it), "paused", True),
    "of the set in force is not read": lambda it: setattr(part(it), "reading", False),
    "miscounted by batches": lambda it: it._acked._waiting.clear(),
    "is paused for 1 events": lambda it: setattr(held(it), "paused", True),
    "other events than it has handles of": lambda it: held(it).handles.clear(),
    "holds what has not come": lambda it: setattr(held(it), "received_to", 1),
    "holds an event that no set wants": lambda it: setattr(held(it), "delivered_to", 2),
    "waits for a batch, or does not": lambda it: it._events._unready.add(src("b")),
    "is not what is owed of it": lambda it: held(it).owed.pending.__setitem__((0, 0), 7),
    "owes an event and is not read": lambda it: it._events.read.pop(src("b")),
    "the line has come to": lambda it: it._order._clock.update({0: 9}),
    "deliveries wait": lambda it: setattr(it._acked, "delivered", 2),
    "and as they wait to": lambda it: it._acked.clock.update({0: 1}),
    "is acknowledged, and 2 delivered": lambda it: setattr(it._acked, "g", 3),
    "a set has a topic without its name": lambda it: it._sets.names.pop(1),
    "names and numbers of topics differ": lambda it: it._sets.ids.update(z=25),
    "is not counted": lambda it: it._sets._expected.pop(1),
}


@pytest.mark.parametrize("named", BREAKS)
def test_what_is_broken_is_named(named: str) -> None:
    feed = half_way()
    look(feed.machine)
    BREAKS[named](feed.machine)
    with pytest.raises(AssertionError) as failed:
        look(feed.machine)
    assert named in str(failed.value)


def nothing(*_: object) -> None:
    """Does nothing."""


FAULTS: list[tuple[type, str, str]] = [
    (Stamps, "deliver", "are counted"),
    (Owed, "deliver", "is not what is owed of it"),
    (Line, "switch", "the line has come to"),
    (Acknowledged, "switch", "deliveries have come to"),
    (Events, "_resume", "is paused for 0 events"),
]


@pytest.mark.parametrize(("of", "method", "named"), FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_fault_of_the_product_is_seen(monkeypatch: pytest.MonkeyPatch, of: type, method: str, named: str) -> None:
    monkeypatch.setattr(of, method, nothing)
    with invariants.looking(1), pytest.raises(AssertionError, match=named):
        _deliver_all_and_change()


def _deliver_all_and_change() -> None:
    feed = Feed.granted(("a",), max_buffered=2)
    feed.events(("a", 0), ("a", 1))
    feed.stamps(("a", 1, 2, 0, {}), ("a", 2, 3, 1, {}))
    feed.answer(_dropped())


def _dropped() -> Any:
    return grant(("b",), g=4, clock={"a": 2, "b": 5}, former=("a",), generation=2, next_offsets={src("b"): 5})
