"""Dear invariants of a step, and when they are looked at."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine_world import configs, rows_of, run
from reference import Change, Event, Item

from totalorder.sequencer import groups
from totalorder.sequencer.invariants import check_step
from totalorder.sequencer.state import State
from totalorder.sequencer.wire.invariants import due, looking

ITEMS: list[Item] = [Change("s", frozenset("ab")), Event("a"), Event("a"), Event("b"), Event("a")]


def test_each_so_many_th_chance_is_taken_counted_anew_for_each_run() -> None:
    for _ in range(2):
        with looking(3):
            assert [due() for _ in range(7)] == [False, False, True, False, False, True, False]


def test_nothing_is_looked_at_where_nobody_asks() -> None:
    with looking(0):
        assert not any(due() for _ in range(100))


def states() -> tuple[State, State]:
    rows = rows_of(ITEMS)
    config = configs(partitions=1)
    return run([rows[:4]], config)[0][0], run([rows[:4], rows[4:]], config)[0][0]


BREAKS: dict[str, dict[str, Any]] = {
    "a topic's clock fell": {"clocks": np.array([1, 3])},
    "have not counted each event once": {"clocks": np.array([3, 2])},
    "two topics have their last events at one position": {"last_g": np.array([5, 5])},
    "it is of batch 7": {"batch": 7},
    "what is no topic owes something": {"rekey": frozenset({8})},
}


@pytest.mark.parametrize("named", BREAKS)
def test_what_is_broken_is_named(named: str) -> None:
    before, after = states()
    check_step(before, after, 1)
    broken = replace(after, hot=replace(after.hot, **BREAKS[named]))
    with pytest.raises(AssertionError) as failed:
        check_step(before, broken, 1)
    assert named in str(failed.value)


def test_groups_that_count_wrongly_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "_lower", lambda *_: [])
    changes = [*ITEMS, Change("s", frozenset("a"))]
    with looking(1), pytest.raises(AssertionError, match="counted otherwise than subscriptions say"):
        run([rows_of(changes)], configs(partitions=1))
