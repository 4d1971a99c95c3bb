"""Finds in a stamps partition the last batch that ends before something, by looking at a few records of its log."""

from collections.abc import Callable
from dataclasses import dataclass

from totalorder.sequencer.wire.position import StampsMark
from totalorder.sequencer.wire.stamps import StampedBatch

_BACK = 16
"""Reading begins so many records before what was found: parts of the next batch may stand between those of the last."""


@dataclass(frozen=True, kw_only=True)
class Looked:
    """A record of stamps that was looked at: its offset, which part of its batch it is, and what all parts tell."""

    offset: int
    part: int
    batch: int
    g: int
    time_ms: int

    @classmethod
    def at(cls, offset: int, part: int, batch: StampedBatch) -> "Looked":
        """Of a record at an offset."""
        return cls(offset=offset, part=part, batch=batch.batch, g=batch.g, time_ms=batch.time_ms)


class Search:
    """Searches the log from `begin` to before `end` for its last record that is `before` what is wanted.

    Look at the record at `offset`, or the next one behind it, and tell `found`; again until `offset` is None.
    Batches follow each other in the log, but for repetitions, so halving finds such a place; where one of those
    misleads it, what it finds is another batch that ends before what is wanted: who reads on from there meets a gap.
    """

    def __init__(self, begin: int, end: int, before: Callable[[Looked], bool]) -> None:
        self.begin, self.end, self._before = begin, end, before
        self._low, self._high = begin, end
        self.last: Looked | None = None
        """The last one that is before; None when there is none, or none so far."""
        self.first: Looked | None = None
        """The first one of the log that is known not to be."""
        self.offset: int | None = end - 1 if begin < end else None
        """Where to look next."""

    def found(self, looked: Looked | None) -> None:
        """What is at `offset` or behind it; None when there is no record before the end."""
        assert self.offset is not None
        left = self._high - self._low
        if looked is None or looked.offset >= self._high:
            self._high = self.offset
        elif self._before(looked):
            self.last, self._low = looked, looked.offset + 1
        else:
            self.first, self._high = looked, self.offset
        assert self._high - self._low < left, "each look leaves less to search"
        self.offset = (self._low + self._high) // 2 if self._low < self._high else None

    def mark(self, behind: int) -> StampsMark:
        """Where to read on, if all batches through number `behind` are known to end before what is wanted."""
        if self.last is None:
            return StampsMark(offset=self.begin, batch=behind)
        offset = max(self.begin, self.last.offset + 1 - _BACK)
        return StampsMark(offset=offset, batch=max(behind, self.last.batch))
