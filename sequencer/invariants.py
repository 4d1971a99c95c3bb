"""What holds between two states of a step; dear, and so for tests and the simulation (wire/invariants.py says when)."""

import numpy as np

from totalorder.sequencer.shards import with_counts
from totalorder.sequencer.sound import check_state
from totalorder.sequencer.state import State


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
