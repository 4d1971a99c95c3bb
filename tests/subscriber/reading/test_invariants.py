"""Dear invariants of a Reader's machine: what breaks is named at the next input."""

from collections.abc import Callable
from typing import Any

import pytest
from delivery_world import stamped
from sources import src

from totalorder.sequencer.wire import invariants
from totalorder.sequencer.wire.position import StampsMark
from totalorder.subscriber.delivery.events import EventBlock
from totalorder.subscriber.reading.choice import Choice
from totalorder.subscriber.reading.events import Sources
from totalorder.subscriber.reading.machine import Reading

FIRST = stamped([("a", 1, 2, 0, {}), ("b", 1, 3, 0, {}), ("a", 2, 4, 1, {})], partition=0, batch=1, g=4, control_g=0)


def half_way() -> Reading:
    """a1 is delivered; b1 has not come, for which a2 waits."""
    marks = {0: StampsMark(offset=0, batch=0)}
    machine = Reading(domain="d", partitions=1, choice=Choice(pattern="[ab]"), marks=marks)
    machine.stamped(FIRST)
    machine.events(src("a"), EventBlock([0, 1], [], [0, 0], ["a1", "a2"]))
    assert (machine.delivered, machine.held) == (1, (1, 2))
    return machine


def look(machine: Reading) -> None:
    """An input that changes nothing."""
    with invariants.looking(1):
        machine.gone(src("elsewhere"), 1)


def part(machine: Any) -> Any:
    return machine._batches._parts[0]


def held(machine: Any) -> Any:
    return machine._events._states[0]


BREAKS: dict[str, Callable[[Any], Any]] = {
    "holds 0 rows, and counts 1": lambda it: setattr(part(it), "rows", 1),
    "is paused, and 2 rows wait": lambda it: setattr(part(it), "paused", True),
    "names and numbers of topics differ": lambda it: it._batches._ids.clear(),
    "is paused for 1 events": lambda it: setattr(held(it), "paused", True),
    "other events than it has handles of": lambda it: held(it).handles.clear(),
    "holds what has not come": lambda it: setattr(held(it), "received_to", 1),
    "owes other events than are in line": lambda it: held(it).owed.deliver(1),
    "holds an event that is not chosen": lambda it: held(it).held.__setitem__((0, 0), 0),
    "is read no longer, and holds events": lambda it: it._events._over.add(src("a")),
    "has passed, and 3 waits": lambda it: setattr(it, "g", 4),
}


@pytest.mark.parametrize("named", BREAKS)
def test_what_is_broken_is_named(named: str) -> None:
    machine = half_way()
    look(machine)
    BREAKS[named](machine)
    with pytest.raises(AssertionError) as failed:
        look(machine)
    assert named in str(failed.value)


def test_an_event_that_is_not_let_go_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sources, "_let_go", lambda *_: None)
    machine = half_way()
    machine.events(src("a"), EventBlock([2], [], [0], ["not stamped"]))
    second = stamped([("a", 3, 5, 3, {})], partition=0, batch=2, g=5, control_g=0, previous=FIRST.digest)
    with invariants.looking(1), pytest.raises(AssertionError, match="holds an event that is not chosen"):
        machine.stamped(second)


def test_what_waits_is_let_go_at_the_end() -> None:
    machine = half_way()
    machine.events(src("a"), EventBlock([2], [], [0], ["beyond"]))
    machine.end_here()
    machine.events(src("b"), EventBlock([0], [], [0], ["b1"]))
    assert (machine.done, machine.delivered, machine.held) == (True, 3, (0, 0))
