"""The end of a process that first hands out what is there: when nothing of that is left."""

from collections.abc import Callable

from totalorder.subscriber.feed import Feed
from totalorder.subscriber.transport import Partition, Transport


class Draining:
    """All that was stamped when this is made is handed out, and then it is over. Both calls raise BrokerUnavailable.

    An event lies in its log before its stamp does. So once stamps and answers are read through their ends as they were,
    and event partitions through theirs as they were then, the machine has all that it needs, and has put in order what
    may be. What still waits does so for stamps that nobody has written, as of a batch in whose middle a job died: for
    that no process that ends waits. So does an event partition that the machine has paused, since too much of it waits.

    Where events come in the order of g, it is over too as soon as the next one lies behind all that was stamped: an
    application that takes its time may have as much ready by then that came since.
    """

    def __init__(self, transport: Transport, feed: Feed, grants: Partition, known_g: Callable[[], int]) -> None:
        """`known_g`: through which g stamps are known, of the partition in which they go furthest."""
        self._transport, self._feed, self._grants, self._known_g = transport, feed, grants, known_g
        self._ends = self._ends_of([grants, *feed.stamps])
        self._event_ends: dict[Partition, int] | None = None
        self._last: int | None = None
        """The number of the last delivery."""
        self._last_g: int | None = None
        """What lies behind this was not stamped by then."""

    def is_over(self, *, handed: int, ready: int, next_g: int | None) -> bool:
        """Whether nothing is left, where delivery number `handed` was handed out last and so many are ready, the first
        of them at `next_g`; None where none is, or g does not tell.
        """
        if self._last is None and self._is_all_read():
            self._last = handed + ready
        if self._last_g is not None and next_g is not None and next_g > self._last_g:
            return True
        return self._last is not None and handed >= self._last

    def _is_all_read(self) -> bool:
        if self._event_ends is None:
            read = {self._grants, *self._feed.stamps}
            if any(at in read and self._transport.position(at) < end for at, end in self._ends.items()):
                return False
            self._last_g = self._known_g()
            self._event_ends = self._ends_of([Partition.of(source) for source in self._feed.event_partitions])
        is_paused = self._feed.event_partitions
        return all(
            is_paused.get(at.source, True) or self._transport.position(at) >= end
            for at, end in self._event_ends.items()
        )

    def _ends_of(self, partitions: list[Partition]) -> dict[Partition, int]:
        return self._transport.end_offsets(partitions, once=True) if partitions else {}
