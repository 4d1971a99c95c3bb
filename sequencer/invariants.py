"""Invariants that cost a walk through a whole state: looked at in tests and in the simulation, and not in production.

What costs a comparison or two is an `assert` where it must hold, always. A state is walked at the end of a step, or of
an input to a machine, if `due()`; a failure is an AssertionError that names what broke. Here are the sequencer's own;
`delivery/` and `reading/` have theirs beside them.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from totalorder.sequencer.shards import with_counts
from totalorder.sequencer.sound import check_state
from totalorder.sequencer.state import State

_each = _chances = 0


@contextmanager
def looking(each: int) -> Iterator[None]:
    """Within, states are walked at every `each`-th chance, counted from here on: the same run looks at the same ones.

    0 means never. It holds for the process, which production never asks for.
    """
    global _each, _chances
    former = _each, _chances
    _each, _chances = each, 0
    try:
        yield
    finally:
        _each, _chances = former


def due() -> bool:
    """Whether the state at hand is to be walked now."""
    global _chances
    if not _each:
        return False
    _chances += 1
    return _chances % _each == 0


def check_step(before: State, after: State, events: int) -> None:
    """A step that has stamped so many events, in all shards together, has led from one sound state to another."""
    hot, former = after.hot, before.hot
    try:
        check_state(after, former.batch + 1)
    except ValueError as error:
        raise AssertionError(f"batch {hot.batch} leaves an unsound state behind: {error}") from error
    counted = len(former.clocks)
    assert (hot.clocks[:counted] >= former.clocks).all(), "a topic's clock fell"
    assert int(hot.clocks.sum()) == int(former.clocks.sum()) + events, "clocks have not counted each event once"
    seen = hot.last_g[hot.last_g > 0]
    assert len(np.unique(seen)) == len(seen), "two topics have their last events at one position"
    assert after.cold.counts == with_counts(after).cold.counts, "groups are counted otherwise than subscriptions say"
