"""The stamped events of one event partition that are not acknowledged: the first of them are delivered."""

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
_LEAST = 16
_EMPTY: Ints = np.empty((3, 0), dtype=np.int64)
"""Of all that owe nothing: a partition that is read no longer keeps no room."""


class Owed:
    """Offsets in ascending order, each with its topic id and g. Delivery and acknowledgement follow them, so both are
    places in one table.
    """

    __slots__ = ("_acknowledged", "_delivered", "_end", "_table")

    def __init__(self) -> None:
        self._table = _EMPTY
        self._acknowledged = self._delivered = self._end = 0

    @property
    def oldest(self) -> int | None:
        """The first offset that is not acknowledged."""
        return int(self._table[0, self._acknowledged]) if self._acknowledged < self._end else None

    @property
    def next(self) -> int | None:
        """The first offset that is not delivered."""
        return int(self._table[0, self._delivered]) if self._delivered < self._end else None

    @property
    def pending(self) -> Ints:
        """Those that are not delivered: a line of offsets, one of topic ids, one of g."""
        return self._table[:, self._delivered : self._end]

    def has(self, offsets: Ints) -> npt.NDArray[np.bool_]:
        """Which of these are pending."""
        pending: Ints = self.pending[0]
        found = np.zeros(len(offsets), dtype=np.bool_)
        if len(pending):
            found |= pending.take(np.searchsorted(pending, offsets), mode="clip") == offsets
        return found

    def topic_of(self, offset: int) -> int:
        """The topic id of one that is pending."""
        pending = self.pending
        return int(pending[1, np.searchsorted(pending[0], offset)])

    def add(self, more: Ints) -> tuple[Ints, Ints] | None:
        """Takes offsets, topic ids and g behind all that is delivered, in the order of g.

        Returns the first two columns of what is pending then whose offsets and g do not rise together, or None.
        """
        self._make_room(more.shape[1])
        before = self._end > self._delivered and self._table[0, self._end - 1] >= more[0, 0]
        start, self._end = self._end, self._end + more.shape[1]
        self._table[:, start : self._end] = more
        pending = self.pending
        if before:
            pending[:] = pending[:, np.argsort(pending[0], kind="stable")]
        else:
            pending = self._table[:, max(start - 1, self._delivered) : self._end]
        rises = (pending[::2, 1:] > pending[::2, :-1]).all(axis=0)
        if rises.all():
            return None
        wrong = int(np.argmin(rises))
        return pending[:, wrong], pending[:, wrong + 1]

    def deliver(self, count: int) -> None:
        """The next ones are delivered."""
        self._delivered += count
        assert self._delivered <= self._end, "what is delivered is owed"

    def acknowledge(self, count: int) -> None:
        """The oldest ones are acknowledged."""
        self._acknowledged += count
        assert self._acknowledged <= self._delivered, "what is acknowledged is delivered"
        if self._acknowledged == self._end:
            self._table = _EMPTY
            self._acknowledged = self._delivered = self._end = 0

    def check_whole(self) -> None:
        """Dear (sequencer/wire/invariants.py)."""
        assert 0 <= self._acknowledged <= self._delivered <= self._end <= self._table.shape[1], "places out of order"
        kept = self._table[::2, self._acknowledged : self._end]
        assert (kept[:, 1:] > kept[:, :-1]).all(), "offsets that are owed do not rise together with their g"

    def _make_room(self, count: int) -> None:
        if self._end + count <= self._table.shape[1]:
            return
        kept = self._table[:, self._acknowledged : self._end]
        self._table = np.empty((3, max(_LEAST, 2 * (kept.shape[1] + count))), dtype=np.int64)
        self._table[:, : kept.shape[1]] = kept
        self._delivered -= self._acknowledged
        self._acknowledged, self._end = 0, kept.shape[1]
