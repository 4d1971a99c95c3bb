"""Reading a partition from some offset to its present end, for commands that show what lies there."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from totalorder.errors import Error, SettingsError

if TYPE_CHECKING:
    from totalorder.subscriber.transport import Partition, Record, Transport

_POLL_S = 0.5
_SILENT_POLLS = 20


def records_of(transport: "Transport", at: "Partition", from_offset: int | None) -> Iterator["Record"]:
    """Every record from the offset to the present end.

    The partition is read only while one poll lasts: several of these take turns on one transport.
    """
    first, end = transport.beginning_offsets([at])[at], transport.end_offsets([at])[at]
    position = first if from_offset is None else from_offset
    if not first <= position <= end:
        raise SettingsError(
            f"{at.topic}[{at.number}] has no offset {position}", remedy=f"Give one of {first} to {end}."
        )
    silent = 0
    while position < end:
        transport.read(at, position)
        found = [record for record in transport.poll(_POLL_S) if record.offset < end]
        position = transport.position(at)
        transport.stop(at)
        silent = 0 if found else silent + 1
        if silent > _SILENT_POLLS:
            raise Error(f"{at.topic}[{at.number}] gave no record before its end, {end}", remedy="Is the broker well?")
        yield from found
