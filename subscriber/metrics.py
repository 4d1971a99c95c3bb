"""Figures of a Subscriber, for monitoring."""

from dataclasses import dataclass

from totalorder.subscriber.watch import Hold


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Counts of one Subscriber since it started, and what it holds at the moment.

    `delivered` events were handed out; `g` is the last position of the order that was passed; `generation` rises by one
    with each process of the id, and each change of its topics. `buffered_events` wait for their turn, `waiting_stamps`
    for their events, `ready` events for the application, and `unacknowledged` ones were handed to it. Dropped, since
    they came once more: `repeated_batches` of stamps, and `repeated_records` of event partitions; and `already_done`
    events, of which a store of positions says that they are. `hold` is what has been waited for the longest, and for
    how long, looked at about once in a second while events are polled for; None where nothing is. `stalled`: that was
    told as a stall. At least `lag_events` are behind; of the oldest that is here and was not handed out, `lag_s` is the
    age by its record's time. No broker has answered for `silent_s` seconds.
    """

    delivered: int
    unacknowledged: int
    ready: int
    buffered_events: int
    waiting_stamps: int
    repeated_batches: int
    repeated_records: int
    already_done: int
    generation: int
    g: int
    hold: Hold | None
    stalled: bool
    lag_events: int
    lag_s: float
    silent_s: float
