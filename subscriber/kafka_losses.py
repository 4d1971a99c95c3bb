"""What to tell of records that are read and that Kafka no longer has: which, and from where to where."""

from collections.abc import Collection, Mapping

from totalorder.errors import EventsLost
from totalorder.subscriber.transport import Partition

GO_ON = 'start="now" (--start now) begins at the present and gives up all that is owed, of every topic'
BEGIN = 'start="earliest" (--start earliest) begins with what is there by now'
_PLACES_SHOWN = 5

Offsets = Mapping[Partition, int]


def removed(positions: Offsets, begins: Offsets) -> EventsLost | None:
    """`positions`: what is to be read next; None when nothing before the present `begins` is wanted.

    Of events alone nobody is told by this: reading goes on (Feed.poll). What else is gone nobody may skip.
    """
    lost = [(at, offset, begins[at]) for at, offset in sorted(positions.items()) if offset < begins.get(at, 0)]
    if not lost:
        return None
    ranges = [f"{_place(at, first)} to {end - 1} ({end - first:,} offsets)" for at, first, end in lost]
    return EventsLost(
        f"Kafka no longer has {_shown(ranges)}: they were removed before they were read",
        remedy=f"Raise the retention of the topic. {BEGIN}; {GO_ON}",
        gone={at.source: begin for at, _, begin in lost},
    )


def cut_short(positions: Offsets, ends: Offsets) -> EventsLost:
    """`positions`: what is to be read next of logs that hold other records than those that were read before it."""
    places = [
        f"{_place(at, offset)}, and the log ends at {ends[at]}" if at in ends else _place(at, offset)
        for at, offset in sorted(positions.items())
    ]
    return EventsLost(
        f"the log was cut short or its topic created again under its reader: {_shown(places)}",
        remedy=f"What was read and is gone cannot be told from new records: {GO_ON}",
    )


def gone(positions: Offsets, deleted: Collection[str], recreated: Collection[str]) -> EventsLost:
    """Topics that are not there, or not the same ones any more."""
    lost = []
    for at, offset in sorted(positions.items()):
        if at.topic in deleted:
            lost.append(f"{_place(at, offset)} and all behind it: the topic was deleted")
        elif at.topic in recreated:
            lost.append(f"{_place(at, offset)} and all behind it: the topic was deleted and created again")
    return EventsLost(f"Kafka no longer has {_shown(lost)}", remedy=f"It cannot be read any more: {GO_ON}")


def unreadable(positions: Offsets, error: Exception) -> EventsLost:
    """A record that the client cannot decode; it does not always say which."""
    places = [_place(at, offset) for at, offset in sorted(positions.items())]
    return EventsLost(
        f"a record at or behind {_shown(places)} cannot be read: {error}",
        remedy=f"Header names must be UTF-8 and records whole. Mend their producer, or: {GO_ON}",
    )


def _place(at: Partition, offset: int) -> str:
    return f"{at.topic}[{at.number}]@{offset}"


def _shown(places: list[str]) -> str:
    more = len(places) - _PLACES_SHOWN
    return ", ".join(places[:_PLACES_SHOWN]) + (f" and of {more} more partitions" if more > 0 else "")
